//! A value between two tags, which the schema of its parameter makes JSON.
//!
//! A parameter that can only be a string is its text as it stands, and passed on as it comes. Any
//! other text waits for its end: JSON where it is JSON of a kind that the schema allows, then a
//! Python literal, then a string after all.

use super::json::{is_value, quoted};
use super::kinds::{Kinds, ValueForm};
use super::python;

/// How far the value has come.
#[derive(Debug)]
pub(crate) struct ValueReader {
    form: ValueForm,
    /// Whether the value stands on lines of its own, whose ends do not belong to it.
    has_lines: bool,
    is_first: bool,
    /// A string: the end of a line that may be the last. Other values: the text so far.
    held: String,
}

impl ValueReader {
    pub(crate) fn new(form: ValueForm, has_lines: bool) -> Self {
        Self { form, has_lines, is_first: true, held: String::new() }
    }

    fn is_text(&self) -> bool {
        self.form.is_text()
    }

    /// Writes the beginning of the JSON text.
    pub(crate) fn begin(&self, json: &mut String) {
        if self.is_text() {
            json.push('"');
        }
    }

    /// Reads more, and writes what is certain to `json`.
    pub(crate) fn feed(&mut self, text: &str, json: &mut String) {
        if text.is_empty() {
            return;
        }
        let mut text = text;
        if std::mem::take(&mut self.is_first) && self.has_lines {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if !self.is_text() {
            return self.held.push_str(text);
        }
        for char in text.chars() {
            if !std::mem::take(&mut self.held).is_empty() {
                python::push('\n', json);
            }
            match char {
                '\n' if self.has_lines => self.held.push(char),
                _ => python::push(char, json),
            }
        }
    }

    /// Writes the rest of the JSON text.
    pub(crate) fn end(&mut self, json: &mut String) {
        let text = std::mem::take(&mut self.held);
        match self.is_text() {
            true => json.push('"'),
            false => {
                let text = match self.has_lines {
                    true => text.strip_suffix('\n').unwrap_or(&text),
                    false => &text,
                };
                json.push_str(&json_of(text, self.form));
            }
        }
    }

    /// Writes what there is of a value whose end is missing.
    pub(crate) fn cut(&mut self, json: &mut String) {
        if !self.is_text() {
            json.push_str(&self.held);
        }
    }
}

/// The JSON of a text for a parameter of this form.
pub(crate) fn json_of(text: &str, form: ValueForm) -> String {
    let trimmed = text.trim();
    let written = match is_value(trimmed) {
        true => Some(trimmed.to_owned()),
        false => literal(trimmed, form.kinds),
    };
    match written {
        Some(json) if fits(&json, form) => json,
        _ => quoted(text),
    }
}

/// A Python literal that cannot be meant as a plain text.
fn literal(text: &str, kinds: Kinds) -> Option<String> {
    if kinds.has(Kinds::BOOLEAN) && text.eq_ignore_ascii_case("true") {
        return Some("true".to_owned());
    }
    if kinds.has(Kinds::BOOLEAN) && text.eq_ignore_ascii_case("false") {
        return Some("false".to_owned());
    }
    let looks_so = text == "None" || text.starts_with(['[', '{', '.', '-']);
    looks_so.then(|| python::json_of(text)).flatten()
}

/// Whether JSON text is meant by a text for a parameter of these kinds. Where a string is allowed,
/// only a value of another kind that is allowed, too, is more than a text.
fn fits(json: &str, form: ValueForm) -> bool {
    let kinds = form.kinds;
    let is_number = json.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    if is_number && !json.parse().is_ok_and(f64::is_finite) {
        return false;
    }
    if kinds == Kinds::ANY || !kinds.has(Kinds::STRING) {
        return true;
    }
    let kind = match json.as_bytes().first() {
        Some(b'{') => Kinds::OBJECT,
        Some(b'[') => Kinds::ARRAY,
        Some(b't' | b'f') => Kinds::BOOLEAN,
        Some(b'n') => Kinds::NULL,
        Some(b'"') | None => return form.is_quoted,
        Some(_) if !json.contains(['.', 'e', 'E']) && kinds.has(Kinds::INTEGER) => Kinds::INTEGER,
        Some(_) => Kinds::NUMBER,
    };
    kinds.has(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::form_of;
    use serde_json::{Value, json};

    fn read(text: &str, schema: &Value) -> String {
        let mut reader = ValueReader::new(form_of(schema, &Value::Null), true);
        let mut json = String::new();
        reader.begin(&mut json);
        for char in text.chars() {
            reader.feed(char.encode_utf8(&mut [0; 4]), &mut json);
        }
        reader.end(&mut json);
        json
    }

    #[test]
    fn the_schema_decides_what_a_text_is() {
        let nullable = json!({"type": ["string", "null"]});
        let table = [
            ("\n42\n", json!({"type": "string"}), "\"42\""),
            ("\na\n\nb\n\n", json!({"type": "string"}), "\"a\\n\\nb\\n\""),
            ("\n42\n", json!({"type": "integer"}), "42"),
            ("3.5", json!({"type": "number"}), "3.5"),
            ("True", json!({"type": "boolean"}), "true"),
            ("maybe", json!({"type": "boolean"}), "\"maybe\""),
            ("{'a': None}", json!({"type": "object"}), "{\"a\": null}"),
            ("{\"a\":\n1}", json!({"type": "object"}), "{\"a\":\n1}"),
            ("null", nullable.clone(), "null"),
            ("nil", nullable.clone(), "\"nil\""),
            ("7", nullable, "\"7\""),
            ("7", json!({"type": ["string", "integer"]}), "7"),
            ("7.5", json!({"type": ["string", "integer"]}), "\"7.5\""),
            ("\"a\"", json!({}), "\"a\""),
            ("a", json!({}), "\"a\""),
            ("\"a\"", json!({"type": "string"}), "\"\\\"a\\\"\""),
            ("\"a\"", json!({"type": "string", "pattern": "a"}), "\"a\""),
            ("12", json!({"type": "string", "pattern": "1"}), "\"12\""),
            ("1e999", json!({}), "\"1e999\""),
            ("\n\n", json!({"type": "string"}), "\"\""),
            ("", json!({"type": "string"}), "\"\""),
        ];
        for (text, schema, expected) in table {
            assert_eq!(read(text, &schema), expected, "{text:?} {schema}");
        }
    }
}
