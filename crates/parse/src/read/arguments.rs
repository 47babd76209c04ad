//! Arguments that are written as JSON: an object, or a string that holds one.

use super::Output;
use super::json::{Fed, Scanner, is_value};

/// How much of a text was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Took {
    /// All of it, and more follows.
    All,
    /// So many bytes, with which the thing is complete.
    Done(usize),
    /// So many bytes, after which comes something wrong.
    Bad(usize),
}

/// Where the arguments are written.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Not known yet.
    Unknown,
    /// An object, passed on as it is written.
    Object,
    /// A string that holds an object.
    Text,
    /// `null`: no arguments.
    Null,
}

/// Reads arguments; the first byte decides what they are.
#[derive(Debug)]
pub(crate) struct ArgumentsReader {
    scanner: Scanner,
    form: Form,
    text: String,
}

impl Default for ArgumentsReader {
    fn default() -> Self {
        Self { scanner: Scanner::default(), form: Form::Unknown, text: String::new() }
    }
}

impl ArgumentsReader {
    /// Reads more of the arguments, whose first byte is no white space.
    pub(crate) fn feed(&mut self, text: &str, out: &mut Output) -> Took {
        if let (Form::Unknown, Some(first)) = (self.form, text.bytes().next()) {
            self.form = match first {
                b'{' => Form::Object,
                b'"' => Form::Text,
                b'n' => Form::Null,
                _ => return Took::Bad(0),
            };
        }
        let mut took = Took::All;
        for (byte_idx, byte) in text.bytes().enumerate() {
            match self.scanner.feed(byte) {
                Fed::Within => continue,
                Fed::Last => took = Took::Done(byte_idx + 1),
                Fed::Past | Fed::Bad => took = Took::Bad(byte_idx),
            }
            break;
        }
        let n_bytes = match took {
            Took::All => text.len(),
            Took::Done(n_bytes) | Took::Bad(n_bytes) => n_bytes,
        };
        let text = &text[..n_bytes];
        out.take(text);
        match (self.form, took) {
            (Form::Object, _) => out.arguments(text),
            (Form::Text, _) => self.text.push_str(text),
            (Form::Null, Took::Done(_)) => out.arguments("{}"),
            _ => {}
        }
        if matches!((self.form, took), (Form::Text, Took::Done(_))) {
            return match self.held() {
                Some(object) => {
                    out.arguments(&object);
                    took
                }
                None => Took::Bad(n_bytes),
            };
        }
        took
    }

    /// The object that the string holds.
    fn held(&self) -> Option<String> {
        let text: String = serde_json::from_str(&self.text).ok()?;
        match text.trim() {
            "" => Some("{}".to_owned()),
            object => (object.starts_with('{') && is_value(object)).then(|| object.to_owned()),
        }
    }
}
