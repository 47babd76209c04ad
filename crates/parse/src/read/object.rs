//! A call that is written as one JSON object: `{"name": "f", "arguments": {"a": 1}}`.
//!
//! `parameters` will do for `arguments`, the keys may come in any order, and other keys are
//! skipped.

use super::arguments::{ArgumentsReader, Took};
use super::json::{Fed, Scanner};
use super::{Output, marks};

#[derive(Debug)]
enum State {
    /// Before `{`.
    Open,
    /// Before a key; directly after `{` the object may end.
    Key {
        is_first: bool,
    },
    KeyText,
    Colon,
    /// Before a value.
    Value,
    Name,
    Arguments(ArgumentsReader),
    Other,
    /// After a value.
    After,
}

/// Reads a call.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    state: State,
    scanner: Scanner,
    /// The key at hand, or the name, as written.
    text: String,
    has_arguments: bool,
}

impl Default for ObjectReader {
    fn default() -> Self {
        Self {
            state: State::Open,
            scanner: Scanner::default(),
            text: String::new(),
            has_arguments: false,
        }
    }
}

/// The value of a key.
const NAME: &str = "\"name\"";
const ARGUMENTS: [&str; 2] = ["\"arguments\"", "\"parameters\""];

impl ObjectReader {
    /// Reads more of the call.
    pub(crate) fn feed(&mut self, text: &str, out: &mut Output) -> Took {
        let mut at = 0;
        while at < text.len() {
            match self.step(&text[at..], out) {
                Step::On(n_bytes) => at += n_bytes,
                Step::Done(n_bytes) => return Took::Done(at + n_bytes),
                Step::Bad(n_bytes) => return Took::Bad(at + n_bytes),
            }
        }
        Took::All
    }

    fn step(&mut self, text: &str, out: &mut Output) -> Step {
        let n_blanks = marks::blanks(text);
        let is_between = !matches!(
            self.state,
            State::KeyText | State::Name | State::Arguments(_) | State::Other
        );
        if n_blanks > 0 && is_between {
            out.take(&text[..n_blanks]);
            return Step::On(n_blanks);
        }
        match &mut self.state {
            State::Arguments(reader) => match reader.feed(text, out) {
                Took::All => Step::On(text.len()),
                Took::Done(n_bytes) => self.go(State::After, n_bytes),
                Took::Bad(n_bytes) => Step::Bad(n_bytes),
            },
            State::KeyText | State::Name | State::Other => self.scan(text, out),
            State::Value => self.value(text),
            _ => self.punctuation(text, out),
        }
    }

    /// One byte between keys and values.
    fn punctuation(&mut self, text: &str, out: &mut Output) -> Step {
        let byte = text.as_bytes()[0];
        let next = match (&self.state, byte) {
            (State::Open, b'{') => State::Key { is_first: true },
            (State::Key { .. }, b'"') => {
                self.begin_scan();
                State::KeyText
            }
            (State::Colon, b':') => State::Value,
            (State::After, b',') => State::Key { is_first: false },
            (State::After | State::Key { is_first: true }, b'}') => {
                if !(self.has_arguments && out.has_name()) {
                    return Step::Bad(0);
                }
                out.take("}");
                return Step::Done(1);
            }
            _ => return Step::Bad(0),
        };
        if matches!(next, State::KeyText) {
            return self.go(next, 0);
        }
        out.take(&text[..1]);
        self.go(next, 1)
    }

    /// The beginning of the value of the key at hand.
    fn value(&mut self, text: &str) -> Step {
        let is_text = text.starts_with('"');
        if self.text == NAME && is_text {
            self.begin_scan();
            return self.go(State::Name, 0);
        }
        if ARGUMENTS.contains(&self.text.as_str()) {
            if self.has_arguments {
                return Step::Bad(0);
            }
            self.has_arguments = true;
            return self.go(State::Arguments(ArgumentsReader::default()), 0);
        }
        self.begin_scan();
        self.go(State::Other, 0)
    }

    /// A key, a name, or a value that nothing depends on.
    fn scan(&mut self, text: &str, out: &mut Output) -> Step {
        let mut end = None;
        for (byte_idx, byte) in text.bytes().enumerate() {
            match self.scanner.feed(byte) {
                Fed::Within => {}
                Fed::Last => end = Some(byte_idx + 1),
                Fed::Past => end = Some(byte_idx),
                Fed::Bad => {
                    out.take(&text[..byte_idx]);
                    return Step::Bad(byte_idx);
                }
            }
            if end.is_some() {
                break;
            }
        }
        let n_bytes = end.unwrap_or(text.len());
        out.take(&text[..n_bytes]);
        if !matches!(self.state, State::Other) {
            self.text.push_str(&text[..n_bytes]);
        }
        match (&self.state, end) {
            (_, None) => Step::On(n_bytes),
            (State::KeyText, _) => self.go(State::Colon, n_bytes),
            (State::Name, _) => match serde_json::from_str::<String>(&self.text) {
                Ok(name) if out.name(&name) => self.go(State::After, n_bytes),
                _ => Step::Bad(n_bytes),
            },
            _ => self.go(State::After, n_bytes),
        }
    }

    fn begin_scan(&mut self) {
        self.scanner = Scanner::default();
        self.text.clear();
    }

    fn go(&mut self, state: State, n_bytes: usize) -> Step {
        self.state = state;
        Step::On(n_bytes)
    }
}

/// The part that a step read.
enum Step {
    On(usize),
    Done(usize),
    Bad(usize),
}
