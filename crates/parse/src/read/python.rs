//! Python literals, turned into JSON text character by character.
//!
//! Strings, numbers, `True`, `False`, `None`, lists and dictionaries whose keys are strings; and,
//! because models write them, `true`, `false`, `null` and lines that break within a string.
//! Spaces are as in Python's own `json.dumps`. Tuples, sets, bytes, prefixes of strings and
//! expressions are none of these.

use super::json::Fed;

/// Deepest nesting of lists and dictionaries.
const MOST_DEPTH: usize = 127;
/// Longest number, in characters.
const MOST_NUMBER: usize = 400;

#[derive(Debug)]
enum State {
    /// Before a value; a list may end here.
    Value {
        may_close: bool,
    },
    /// Before a key; a dictionary may end here.
    Key,
    Colon,
    /// After a value in a list or a dictionary.
    After,
    String,
    Escape,
    /// Digits of a character's number: how many may follow, and the number so far.
    Code {
        left: u8,
        code: u32,
        radix: u32,
    },
    Word(String),
    Number(String),
    Done,
}

#[derive(Debug)]
struct Open {
    is_dictionary: bool,
    n_items: usize,
}

/// How far a literal has come.
#[derive(Debug)]
pub(crate) struct PythonReader {
    state: State,
    open: Vec<Open>,
    quote: char,
    is_key: bool,
}

impl Default for PythonReader {
    fn default() -> Self {
        let state = State::Value { may_close: false };
        Self { state, open: Vec::new(), quote: '"', is_key: false }
    }
}

impl PythonReader {
    /// Reads a character, and writes what it means to `json`.
    pub(crate) fn feed(&mut self, char: char, json: &mut String) -> Fed {
        match &mut self.state {
            State::Value { .. } | State::Key | State::Colon | State::After
                if char.is_whitespace() =>
            {
                Fed::Within
            }
            State::Value { may_close: true } if char == ']' => self.close(json),
            State::Value { .. } => self.begin(char, json),
            State::Key if char == '}' => self.close(json),
            State::Key if matches!(char, '"' | '\'') => {
                self.item(json);
                self.is_key = true;
                self.open_string(char, json)
            }
            State::Colon if char == ':' => {
                json.push_str(": ");
                self.go(State::Value { may_close: false })
            }
            State::After => self.after(char, json),
            State::String if char == self.quote => {
                json.push('"');
                if self.is_key { self.go(State::Colon) } else { self.complete() }
            }
            State::String if char == '\\' => self.go(State::Escape),
            State::String => {
                push(char, json);
                Fed::Within
            }
            State::Escape => self.escape(char, json),
            State::Code { .. } => self.code(char, json),
            State::Word(word) if char.is_ascii_alphabetic() && word.len() < 5 => {
                word.push(char);
                Fed::Within
            }
            State::Number(number) if is_of_number(char) && number.len() < MOST_NUMBER => {
                number.push(char);
                Fed::Within
            }
            State::Word(_) | State::Number(_) => self.past(char, json),
            _ => Fed::Bad,
        }
    }

    /// Ends the literal where the text ends: a number is as long as it is.
    pub(crate) fn cut(&self, json: &mut String) {
        if let State::Number(number) = &self.state {
            json.push_str(&json_number(number).unwrap_or_default());
        }
    }

    fn go(&mut self, state: State) -> Fed {
        self.state = state;
        Fed::Within
    }

    /// The first character of a value.
    fn begin(&mut self, char: char, json: &mut String) -> Fed {
        let is_dictionary = char == '{';
        match char {
            '{' | '[' if self.open.len() == MOST_DEPTH => return Fed::Bad,
            '{' | '[' | '"' | '\'' | '-' | '.' | '0'..='9' => {}
            _ if char.is_ascii_alphabetic() => {}
            _ => return Fed::Bad,
        }
        if self.open.last().is_some_and(|open| !open.is_dictionary) {
            self.item(json);
        }
        match char {
            '{' | '[' => {
                json.push(char);
                self.open.push(Open { is_dictionary, n_items: 0 });
                self.go(match is_dictionary {
                    true => State::Key,
                    false => State::Value { may_close: true },
                })
            }
            '"' | '\'' => {
                self.is_key = false;
                self.open_string(char, json)
            }
            _ if char.is_ascii_alphabetic() => self.go(State::Word(char.into())),
            _ => self.go(State::Number(char.into())),
        }
    }

    fn open_string(&mut self, quote: char, json: &mut String) -> Fed {
        self.quote = quote;
        json.push('"');
        self.go(State::String)
    }

    /// An item of the innermost list or dictionary begins.
    fn item(&mut self, json: &mut String) {
        if let Some(open) = self.open.last_mut() {
            if open.n_items > 0 {
                json.push_str(", ");
            }
            open.n_items += 1;
        }
    }

    fn after(&mut self, char: char, json: &mut String) -> Fed {
        let is_dictionary = self.open.last().is_some_and(|open| open.is_dictionary);
        match (char, is_dictionary) {
            (',', true) => self.go(State::Key),
            (',', false) => self.go(State::Value { may_close: true }),
            ('}', true) | (']', false) => self.close(json),
            _ => Fed::Bad,
        }
    }

    fn close(&mut self, json: &mut String) -> Fed {
        let open = self.open.pop().expect("invariant: only an open list or dictionary is closed");
        json.push(if open.is_dictionary { '}' } else { ']' });
        self.complete()
    }

    fn complete(&mut self) -> Fed {
        match self.open.is_empty() {
            true => {
                self.state = State::Done;
                Fed::Last
            }
            false => self.go(State::After),
        }
    }

    /// The character after a word or a number.
    fn past(&mut self, char: char, json: &mut String) -> Fed {
        let written = match &self.state {
            State::Word(word) => json_word(word).map(str::to_owned),
            State::Number(number) => json_number(number),
            _ => None,
        };
        let Some(written) = written else { return Fed::Bad };
        json.push_str(&written);
        match self.complete() {
            Fed::Last => Fed::Past,
            _ => self.feed(char, json),
        }
    }

    fn escape(&mut self, char: char, json: &mut String) -> Fed {
        let digits = match char {
            '0'..='7' => Some((2, char.to_digit(8).unwrap_or(0), 8)),
            'x' => Some((2, 0, 16)),
            'u' => Some((4, 0, 16)),
            'U' => Some((8, 0, 16)),
            _ => None,
        };
        if let Some((left, code, radix)) = digits {
            return self.go(State::Code { left, code, radix });
        }
        match char {
            'n' => push('\n', json),
            't' => push('\t', json),
            'r' => push('\r', json),
            'b' => push('\u{8}', json),
            'f' => push('\u{c}', json),
            'v' => push('\u{b}', json),
            'a' => push('\u{7}', json),
            '\n' => {}
            '\\' | '\'' | '"' | '/' => push(char, json),
            // As Python does it.
            _ => {
                push('\\', json);
                push(char, json);
            }
        }
        self.go(State::String)
    }

    fn code(&mut self, char: char, json: &mut String) -> Fed {
        let State::Code { left, code, radix } = self.state else { return Fed::Bad };
        match char.to_digit(radix) {
            Some(digit) => {
                let code = code * radix + digit;
                if left > 1 {
                    return self.go(State::Code { left: left - 1, code, radix });
                }
                self.state = State::String;
                write_code(code, json)
            }
            // Octal numbers may be shorter.
            None if radix == 8 => {
                self.state = State::String;
                match write_code(code, json) {
                    Fed::Within => self.feed(char, json),
                    bad => bad,
                }
            }
            None => Fed::Bad,
        }
    }
}

/// Writes the character of a number; halves of a pair stay as they are, because JSON joins them.
fn write_code(code: u32, json: &mut String) -> Fed {
    use std::fmt::Write as _;
    match char::from_u32(code) {
        Some(char) => push(char, json),
        None if code <= 0xffff => {
            let _ = write!(json, "\\u{code:04x}");
        }
        None => return Fed::Bad,
    }
    Fed::Within
}

/// Writes a character of a JSON string.
pub(crate) fn push(char: char, json: &mut String) {
    use std::fmt::Write as _;
    match char {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        '\u{8}' => json.push_str("\\b"),
        '\u{c}' => json.push_str("\\f"),
        '\0'..'\x20' => {
            let _ = write!(json, "\\u{:04x}", char as u32);
        }
        _ => json.push(char),
    }
}

fn json_word(word: &str) -> Option<&'static str> {
    match word {
        "True" | "true" => Some("true"),
        "False" | "false" => Some("false"),
        "None" | "null" => Some("null"),
        _ => None,
    }
}

fn is_of_number(char: char) -> bool {
    matches!(char, '0'..='9' | '.' | 'e' | 'E' | '+' | '-')
}

/// A number as JSON writes it: digits on both sides of a point, no overflow.
fn json_number(number: &str) -> Option<String> {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    let (whole, rest) = digits.split_at(digits.find(['.', 'e', 'E']).unwrap_or(digits.len()));
    let whole = if whole.is_empty() && rest.starts_with('.') { "0" } else { whole };
    let rest = match rest.strip_prefix('.') {
        Some(fraction) if !fraction.starts_with(|char: char| char.is_ascii_digit()) => {
            format!(".0{fraction}")
        }
        _ => rest.to_owned(),
    };
    let json = format!("{sign}{whole}{rest}");
    let is_finite = digits != "." && json.parse::<f64>().is_ok_and(f64::is_finite);
    (is_finite && super::json::is_value(&json)).then_some(json)
}

/// A whole literal as JSON.
pub(crate) fn json_of(text: &str) -> Option<String> {
    let (mut reader, mut json) = (PythonReader::default(), String::new());
    let text = text.trim();
    for (char_idx, char) in text.char_indices() {
        match reader.feed(char, &mut json) {
            Fed::Within => {}
            Fed::Last if char_idx + char.len_utf8() == text.len() => return Some(json),
            _ => return None,
        }
    }
    (reader.feed(' ', &mut json) == Fed::Past).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        let table = [
            ("'a'", "\"a\""),
            ("'Martha\\'s'", "\"Martha's\""),
            ("'say \"hi\"'", "\"say \\\"hi\\\"\""),
            ("\"a\\tb\\x41\\u00e9\\101\"", "\"a\\tbAéA\""),
            ("'\\ud83d\\ude00'", "\"\\ud83d\\ude00\""),
            ("'\\d'", "\"\\\\d\""),
            ("[1, -2.5, 1e3, .5, 2.]", "[1, -2.5, 1e3, 0.5, 2.0]"),
            ("{'a': True, 'b': [None, false],}", "{\"a\": true, \"b\": [null, false]}"),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[{'a': {}}, ]", "[{\"a\": {}}]"),
            (" 7 ", "7"),
            ("None", "null"),
        ];
        for (text, expected) in table {
            assert_eq!(json_of(text).as_deref(), Some(expected), "{text}");
            serde_json::from_str::<serde_json::Value>(expected).expect("JSON");
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        let texts = [
            "",
            "f",
            "1 + 2",
            "b'x'",
            "f'x'",
            "(1,)",
            "{1: 2}",
            "{1}",
            "1e999",
            "01",
            "'a",
            "[1",
            "--1",
            "1.2.3",
            "x.y",
            "{'a'}",
            "{'a': }",
            "[,]",
            "\\n",
            "'\\xzz'",
            "'\\U00110000'",
            ".",
            "-",
            "1_0",
        ];
        for text in texts {
            assert_eq!(json_of(text), None, "{text}");
        }
    }
}
