//! JSON text, checked byte by byte as it comes.
//!
//! It follows RFC 8259 and builds nothing: the text of arguments is passed on as it is written, so
//! that its pieces concatenate to exactly that text.

/// Deepest nesting of arrays and objects, as in `serde_json`.
const MOST_DEPTH: usize = 127;

/// The role of a byte in the value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fed {
    /// A part of the value, which goes on.
    Within,
    /// The last byte of the value.
    Last,
    /// Not a part of the value, which was complete before: the end of a number.
    Past,
    /// No JSON.
    Bad,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Value,
    /// After `[`.
    FirstItem,
    /// After `{`.
    FirstKey,
    /// After `,` in an object.
    Key,
    /// After a key.
    Colon,
    /// After a value in an array or an object.
    After,
    String,
    Escape,
    Hex(u8),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(Number),
    Done,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// How far a JSON value has come.
#[derive(Debug)]
pub(crate) struct Scanner {
    state: State,
    /// The open arrays (`false`) and objects (`true`).
    open: Vec<bool>,
    /// Whether the string at hand is a key.
    is_key: bool,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { state: State::Value, open: Vec::new(), is_key: false }
    }
}

impl Scanner {
    /// Reads a byte.
    pub(crate) fn feed(&mut self, byte: u8) -> Fed {
        let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match self.state {
            State::Value | State::FirstItem if is_blank => Fed::Within,
            State::FirstItem if byte == b']' => self.close(false),
            State::Value | State::FirstItem => self.begin(byte),
            State::FirstKey | State::Key | State::Colon | State::After if is_blank => Fed::Within,
            State::FirstKey if byte == b'}' => self.close(true),
            State::FirstKey | State::Key if byte == b'"' => {
                self.is_key = true;
                self.go(State::String)
            }
            State::Colon if byte == b':' => self.go(State::Value),
            State::After => self.after(byte),
            State::String => self.string(byte),
            State::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(State::String),
                b'u' => self.go(State::Hex(4)),
                _ => Fed::Bad,
            },
            State::Hex(left) if byte.is_ascii_hexdigit() => {
                self.go(if left == 1 { State::String } else { State::Hex(left - 1) })
            }
            State::Word([next, rest @ ..]) if byte == *next => match rest {
                [] => self.complete(),
                _ => self.go(State::Word(rest)),
            },
            State::Number(number) => self.number(number, byte),
            _ => Fed::Bad,
        }
    }

    fn go(&mut self, state: State) -> Fed {
        self.state = state;
        Fed::Within
    }

    /// The first byte of a value.
    fn begin(&mut self, byte: u8) -> Fed {
        match byte {
            b'{' | b'[' if self.open.len() == MOST_DEPTH => Fed::Bad,
            b'{' => {
                self.open.push(true);
                self.go(State::FirstKey)
            }
            b'[' => {
                self.open.push(false);
                self.go(State::FirstItem)
            }
            b'"' => {
                self.is_key = false;
                self.go(State::String)
            }
            b't' => self.go(State::Word(b"rue")),
            b'f' => self.go(State::Word(b"alse")),
            b'n' => self.go(State::Word(b"ull")),
            b'-' => self.go(State::Number(Number::Minus)),
            b'0' => self.go(State::Number(Number::Zero)),
            b'1'..=b'9' => self.go(State::Number(Number::Digits)),
            _ => Fed::Bad,
        }
    }

    fn string(&mut self, byte: u8) -> Fed {
        match byte {
            b'"' if self.is_key => self.go(State::Colon),
            b'"' => self.complete(),
            b'\\' => self.go(State::Escape),
            0..0x20 => Fed::Bad,
            _ => Fed::Within,
        }
    }

    fn number(&mut self, number: Number, byte: u8) -> Fed {
        use Number::{Digits, E, Exponent, Fraction, Minus, Point, Sign, Zero};
        let next = match (number, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Digits, b'0'..=b'9') => Digits,
            (Zero | Digits, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Digits | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            (Zero | Digits | Fraction | Exponent, _) => {
                if self.complete() == Fed::Last {
                    return Fed::Past;
                }
                return self.feed(byte);
            }
            _ => return Fed::Bad,
        };
        self.go(State::Number(next))
    }

    fn after(&mut self, byte: u8) -> Fed {
        match (byte, self.open.last()) {
            (b',', Some(true)) => self.go(State::Key),
            (b',', Some(false)) => self.go(State::Value),
            (b'}', Some(true)) => self.close(true),
            (b']', Some(false)) => self.close(false),
            _ => Fed::Bad,
        }
    }

    fn close(&mut self, is_object: bool) -> Fed {
        debug_assert_eq!(self.open.last(), Some(&is_object));
        self.open.pop();
        self.complete()
    }

    /// A value is complete: the whole, or one inside of it.
    fn complete(&mut self) -> Fed {
        match self.open.is_empty() {
            true => {
                self.state = State::Done;
                Fed::Last
            }
            false => self.go(State::After),
        }
    }
}

/// Whether a text is one JSON value.
pub(crate) fn is_value(text: &str) -> bool {
    let mut scanner = Scanner::default();
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    for (byte_idx, byte) in text.bytes().enumerate() {
        match scanner.feed(byte) {
            Fed::Within => {}
            fed => return fed == Fed::Last && byte_idx + 1 == text.len(),
        }
    }
    // A number has no mark at its end.
    !text.is_empty() && scanner.open.is_empty() && scanner.feed(b' ') == Fed::Past
}

/// A text as a JSON string, in quotes.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_what_serde_json_takes() {
        let texts = [
            "{}",
            "[]",
            "null",
            "true",
            "0",
            "-0",
            "1.5e3",
            "1E-7",
            "\"\"",
            "\"\\u00e9\\n\"",
            "[1,2]",
            "{\"a\":[{\"b\":null}]}",
            " { \"a\" : 1 } ",
            "",
            "{",
            "}",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "+1",
            "tru",
            "nulll",
            "{a:1}",
            "'a'",
            "\"\\x\"",
            "\"\n\"",
            "1 2",
            "{}{}",
            "[1 2]",
            "{\"a\" 1}",
            "-",
            "1e",
            "1e+",
            "\"é\"",
            "[[[]]]",
            "]",
            "[}",
            "{]",
            "NaN",
            "\u{a0}1",
        ];
        for text in texts {
            let expected = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(is_value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn nesting_ends_where_serde_json_ends_it() {
        for depth in [1, 126, 127, 128, 100_000] {
            let text = "[".repeat(depth) + &"]".repeat(depth);
            let expected = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            assert_eq!(is_value(&text), expected, "{depth}");
        }
    }
}
