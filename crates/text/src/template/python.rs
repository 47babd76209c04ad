//! Values as Python prints them: `str`, `repr` and `json.dumps`.
//!
//! Templates are written against Python's Jinja, where `{{ none }}` is `None` and a list prints as
//! Python's `repr`. Everything is written piece by piece through the budget, so that a value that
//! holds itself many times over ends in an error and not in memory.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::budget::Budget;

/// A text that pays for every piece.
pub(super) struct Text<'b> {
    budget: &'b Budget,
    out: String,
}

/// Deepest nesting that is printed.
const MAX_DEPTH: usize = 200;

impl<'b> Text<'b> {
    pub(super) fn new(budget: &'b Budget) -> Self {
        Self { budget, out: String::new() }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    pub(super) fn push(&mut self, piece: &str) -> Result<(), Error> {
        // A piece costs more than its bytes, so that a storm of empty ones ends too.
        self.budget.work(piece.len() + 64)?;
        self.budget.make_check(self.out.len() + piece.len())?;
        self.out.push_str(piece);
        Ok(())
    }

    /// `str(value)`.
    pub(super) fn str(&mut self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.push(text),
            None if value.is_undefined() => Ok(()),
            None => self.repr(value, 0),
        }
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::Undefined => self.push("Undefined"),
            ValueKind::Number => self.push(&number(value, "nan", "inf")),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                self.quote_python(text)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
                self.push(open)?;
                let mut n_items = 0;
                for item in value.try_iter()?.checked() {
                    self.push(if n_items == 0 { "" } else { ", " })?;
                    self.repr(&item?, depth + 1)?;
                    n_items += 1;
                }
                self.push(if value.is_tuple() && n_items == 1 { "," } else { "" })?;
                self.push(close)
            }
            ValueKind::Map => {
                self.push("{")?;
                for (idx, key) in value.try_iter()?.checked().enumerate() {
                    let key = key?;
                    self.push(if idx == 0 { "" } else { ", " })?;
                    self.repr(&key, depth + 1)?;
                    self.push(": ")?;
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.push("}")
            }
            // The engine prints `None`, `True` and `False` as Python does.
            _ => self.push(&value.to_string()),
        }
    }

    fn quote_python(&mut self, text: &str) -> Result<(), Error> {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        let mut quoted = String::with_capacity(text.len().min(1 << 16) + 2);
        quoted.push(quote);
        for c in text.chars() {
            match c {
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                c if c == quote => {
                    quoted.push('\\');
                    quoted.push(c);
                }
                c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) => {
                    write!(quoted, "\\x{:02x}", c as u32).map_err(|_| unprintable())?;
                }
                c => quoted.push(c),
            }
        }
        quoted.push(quote);
        self.push(&quoted)
    }

    /// `json.dumps(value, ensure_ascii=...)`.
    pub(super) fn json(&mut self, value: &Value, style: &JsonStyle) -> Result<(), Error> {
        self.json_at(value, style, 0)
    }

    fn json_at(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => self.push("null"),
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.push(&number(value, "NaN", "Infinity")),
            ValueKind::String => self.quote_json(value.as_str().unwrap_or_default(), style),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut n_items = 0;
                for item in value.try_iter()?.checked() {
                    self.push(if n_items == 0 { "[" } else { &style.item_separator })?;
                    self.new_line(style, depth + 1)?;
                    self.json_at(&item?, style, depth + 1)?;
                    n_items += 1;
                }
                if n_items == 0 {
                    return self.push("[]");
                }
                self.new_line(style, depth)?;
                self.push("]")
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if style.sort_keys {
                    keys.sort();
                }
                if keys.is_empty() {
                    return self.push("{}");
                }
                for (idx, key) in keys.iter().enumerate() {
                    self.push(if idx == 0 { "{" } else { &style.item_separator })?;
                    self.new_line(style, depth + 1)?;
                    self.json_key(key, style)?;
                    self.push(&style.key_separator)?;
                    self.json_at(&value.get_item(key)?, style, depth + 1)?;
                }
                self.new_line(style, depth)?;
                self.push("}")
            }
            kind => {
                let reason = format!("a value of type {kind} has no JSON form");
                Err(Error::new(ErrorKind::BadSerialization, reason))
            }
        }
    }

    /// A key: a text, or an atom in quotes. Python refuses lists and tuples here.
    fn json_key(&mut self, key: &Value, style: &JsonStyle) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.json_at(key, style, 0),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.push("\"")?;
                self.json_at(key, style, 0)?;
                self.push("\"")
            }
            kind => {
                let reason = format!("a key of type {kind} has no JSON form");
                Err(Error::new(ErrorKind::BadSerialization, reason))
            }
        }
    }

    fn new_line(&mut self, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        let Some(indent) = &style.indent else { return Ok(()) };
        self.push("\n")?;
        (0..depth).try_for_each(|_| self.push(indent))
    }

    fn quote_json(&mut self, text: &str, style: &JsonStyle) -> Result<(), Error> {
        let mut quoted = String::with_capacity(text.len().min(1 << 16) + 2);
        quoted.push('"');
        for c in text.chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                c if (c as u32) < 0x20 || (style.ensure_ascii && (c as u32) > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(quoted, "\\u{unit:04x}").map_err(|_| unprintable())?;
                    }
                }
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.push(&quoted)
    }
}

/// The arguments of `tojson`.
#[derive(Clone, Debug)]
pub(super) struct JsonStyle {
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    Ok(())
}

fn unprintable() -> Error {
    Error::new(ErrorKind::WriteFailure, "a character could not be written")
}

/// A number: integers as they are, floats as Python's shortest form. `repr` and `json.dumps` have
/// names of their own for what is no finite number.
fn number(value: &Value, nan: &str, infinity: &str) -> String {
    let Some(x) = (!value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten() else {
        return value.to_string();
    };
    if x.is_nan() {
        return nan.to_owned();
    }
    if x.is_infinite() {
        return format!("{}{infinity}", if x.is_sign_negative() { "-" } else { "" });
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ if x.fract() == 0.0 => format!("{x:.1}"),
        _ => x.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::limits;

    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (x, expected) in [
            (2.5, "2.5"),
            (2.25, "2.25"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e16, "-1.25e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e300, "1e+300"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(number(&Value::from(x), "nan", "inf"), expected);
        }
        assert_eq!(number(&Value::from(7), "nan", "inf"), "7");
    }

    #[test]
    fn every_piece_is_paid_for_even_an_empty_one() {
        let paid = |pieces: &[&str]| {
            let budget = Budget::new();
            let mut text = Text::new(&budget);
            pieces.iter().for_each(|piece| text.push(piece).expect("far below the limits"));
            budget.worked()
        };
        assert_eq!(paid(&["", ""]), 128);
        assert_eq!(paid(&["abc"]), 67);
        // A text that grows past its limit ends there, however small its pieces.
        let (budget, half) = (Budget::new(), "a".repeat(limits::TEMPLATE_OUTPUT_BYTES / 2));
        let mut text = Text::new(&budget);
        for piece in [&half, &half, ""] {
            text.push(piece).expect("within the limit");
        }
        text.push("a").expect_err("beyond the limit");
        assert_eq!(budget.exceeded(), Some((half.len() as u64 * 2, "bytes of text")));
    }
}
