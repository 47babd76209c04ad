//! The machine that reads the calls of a [`Program`].

use std::collections::HashMap;

use serde_json::Value;

use super::kinds::{ValueForm, form_of};
use super::marks::{Begins, Found, begins, blanks, count, find};
use super::object::ObjectReader;
use super::program::{Arm, NameForm, Next, Part, Program, Trigger};
use super::python::PythonReader;
use super::value::ValueReader;
use super::{ArgumentsReader, Machine, Output, Took};
use crate::read::json::{Fed, quoted};
use crate::{Standing, Tool};

/// Longest name of a tool or a parameter, in bytes.
pub(crate) const MOST_NAME: usize = 256;
/// Longest mark, in bytes, and more.
const MOST_MARK: usize = 64;

/// The text that the part at hand has read.
enum Reading {
    Nothing,
    Object(ObjectReader),
    Arguments(ArgumentsReader),
    Value(ValueReader),
    Python(PythonReader),
}

/// How the parameters of a tool are written, for formats that write them one by one.
struct Parameters {
    tool: String,
    listed: HashMap<String, ValueForm>,
    other: ValueForm,
}

impl Parameters {
    fn of(tool: &Tool, program: &Program) -> Self {
        let has_values = program.parts.iter().any(|part| matches!(part, Part::Value { .. }));
        let schema = if has_values { &tool.parameters } else { &Value::Null };
        let form = |value| form_of(value, schema);
        let listed = schema.get("properties").and_then(Value::as_object);
        let listed = listed.into_iter().flatten().map(|(key, value)| (key.clone(), form(value)));
        Self {
            tool: tool.name.clone(),
            listed: listed.collect(),
            other: schema.get("additionalProperties").map_or_else(ValueForm::default, form),
        }
    }
}

/// Reads an answer with calls.
pub(crate) struct Calls {
    program: &'static Program,
    /// The texts of the triggers.
    triggers: Vec<&'static str>,
    tools: Vec<Parameters>,
    /// The part at hand; `None` in text.
    part: Option<usize>,
    reading: Reading,
    /// Whether the value or the arguments at hand have begun.
    has_begun: bool,
    /// The name or key at hand.
    word: String,
    /// The tool of the call at hand.
    tool: Option<usize>,
    key: String,
    n_keys: usize,
    /// The trigger of the call at hand.
    trigger: usize,
    /// Complete calls when its trigger came.
    n_calls_before: usize,
}

impl Calls {
    pub(crate) fn new(program: &'static Program, tools: &[Tool]) -> Self {
        Self {
            program,
            triggers: program.triggers.iter().map(|trigger| trigger.text).collect(),
            tools: tools.iter().map(|tool| Parameters::of(tool, program)).collect(),
            part: None,
            reading: Reading::Nothing,
            has_begun: false,
            word: String::new(),
            tool: None,
            key: String::new(),
            n_keys: 0,
            trigger: 0,
            n_calls_before: 0,
        }
    }

    fn trigger(&self) -> &'static Trigger {
        &self.program.triggers[self.trigger]
    }

    /// Text, as far as the next trigger.
    fn text(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        let (n_free, trigger) = match find(text, &self.triggers, is_last) {
            Found::At(n_free, trigger) => (n_free, trigger),
            Found::Free(0) => return None,
            Found::Free(n_free) => {
                out.text(&text[..n_free]);
                return Some(n_free);
            }
        };
        out.text(&text[..n_free]);
        self.trigger = trigger;
        let Trigger { text: mark, next, is_left, is_first, .. } = *self.trigger();
        if is_first && !out.is_at_beginning() {
            out.text(mark);
            return Some(n_free + mark.len());
        }
        self.n_calls_before = out.n_calls();
        self.enter(next);
        if is_left {
            return Some(n_free);
        }
        out.take(mark);
        Some(n_free + mark.len())
    }

    fn enter(&mut self, part: usize) {
        self.part = Some(part);
        self.word.clear();
        self.has_begun = false;
        self.reading = match &self.program.parts[part] {
            Part::Object => Reading::Object(ObjectReader::default()),
            Part::Arguments(_) => Reading::Arguments(ArgumentsReader::default()),
            Part::Python => Reading::Python(PythonReader::default()),
            Part::Value { has_lines, .. } => {
                let form = self.form();
                Reading::Value(ValueReader::new(form, *has_lines))
            }
            _ => Reading::Nothing,
        };
    }

    /// How the value of the parameter at hand is written.
    fn form(&self) -> ValueForm {
        let parameters = self.tool.and_then(|tool| self.tools.get(tool));
        parameters.map_or_else(ValueForm::default, |parameters| {
            parameters.listed.get(&self.key).copied().unwrap_or(parameters.other)
        })
    }

    /// Goes on after a part.
    fn go(&mut self, next: Next, out: &mut Output) {
        match next {
            Next::Part(part) => {
                self.enter(part);
                if matches!(self.program.parts[part], Part::Close) {
                    self.close(out);
                }
            }
            Next::Text => {
                self.part = None;
                match out.n_calls() > self.n_calls_before {
                    true => out.forget_marks(),
                    false => out.reject(self.is_flagged(out)),
                }
            }
            Next::Refuse => self.refuse(out),
        }
    }

    fn refuse(&mut self, out: &mut Output) {
        self.part = None;
        out.reject(self.is_flagged(out));
    }

    /// Whether what was read so far looks like a call.
    fn is_flagged(&self, out: &Output) -> bool {
        !self.trigger().is_common || out.has_name()
    }

    /// The part after this one.
    fn advance(&mut self, out: &mut Output) {
        let next = self.part.map_or(Next::Text, |part| Next::Part(part + 1));
        self.go(next, out);
    }

    fn take_arm(&mut self, text: &str, arm: &Arm, out: &mut Output) -> usize {
        if arm.is_left {
            self.go(arm.next, out);
            return 0;
        }
        out.take(arm.text);
        debug_assert!(text.starts_with(arm.text));
        // A mark that ends a call; one that begins the next may turn out to be text.
        if let (Some(at), Next::Part(next)) = (self.part, arm.next)
            && self.program.parts[at].is_choice()
            && self.program.parts[next].is_choice()
            && out.n_calls() > self.n_calls_before
        {
            out.forget_marks();
        }
        self.go(arm.next, out);
        arm.text.len()
    }

    fn choice(
        &mut self,
        text: &str,
        arms: &[Arm],
        otherwise: Next,
        out: &mut Output,
    ) -> Option<usize> {
        match begins(text, arms.iter().map(|arm| arm.text)) {
            Begins::With(arm) => Some(self.take_arm(text, &arms[arm], out)),
            Begins::Partly => None,
            _ => {
                if otherwise == Next::Text && out.n_calls() > self.n_calls_before {
                    // White space that was skipped is text again.
                    self.part = None;
                    out.reject(false);
                } else {
                    self.go(otherwise, out);
                }
                Some(0)
            }
        }
    }

    /// Collects a name or a key; the marks decide where it ends.
    fn word(
        &mut self,
        text: &str,
        is_last: bool,
        arms: &[Arm],
        is_allowed: fn(char) -> bool,
        out: &mut Output,
    ) -> Word {
        let marks: Vec<&str> = arms.iter().map(|arm| arm.text).collect();
        let n_left = MOST_NAME - self.word.len();
        let is_bad =
            |(at, char): &(usize, char)| !is_allowed(*char) || at + char.len_utf8() > n_left;
        let bad = text.char_indices().find(is_bad).map_or(text.len(), |(at, _)| at);
        // No mark that begins later counts, so that nothing is looked at again and again.
        let near = &text[..text.ceil_char_boundary((bad + MOST_MARK).min(text.len()))];
        let found = find(near, &marks, is_last && near.len() == text.len());
        let (Found::At(n_free, _) | Found::Free(n_free)) = found;
        let n_bytes = bad.min(n_free);
        count(n_bytes);
        out.take(&text[..n_bytes]);
        self.word.push_str(&text[..n_bytes]);
        if bad < n_free {
            self.refuse(out);
            return Word::Read(n_bytes);
        }
        match found {
            Found::At(_, arm) => Word::End(n_bytes, arm),
            Found::Free(0) => Word::More,
            Found::Free(_) => Word::Read(n_bytes),
        }
    }

    fn name(&mut self, form: NameForm, out: &mut Output) -> bool {
        let word = std::mem::take(&mut self.word);
        let name = match form {
            NameForm::Plain => Some(word.trim()),
            NameForm::Numbered => numbered(word.trim()),
        };
        let Some(name) = name.filter(|name| !name.contains(char::is_whitespace)) else {
            return false;
        };
        self.tool = self.tools.iter().position(|known| known.tool == name);
        self.n_keys = 0;
        out.name(name)
    }

    fn key(&mut self, out: &mut Output) {
        self.key = std::mem::take(&mut self.word).trim().to_owned();
        let mut json = if self.n_keys == 0 { "{" } else { ", " }.to_owned();
        self.n_keys += 1;
        json.push_str(&quoted(&self.key));
        json.push_str(": ");
        out.arguments(&json);
    }

    fn value(
        &mut self,
        text: &str,
        is_last: bool,
        arms: &[Arm],
        out: &mut Output,
    ) -> Option<usize> {
        let Reading::Value(reader) = &mut self.reading else { return None };
        let marks: Vec<&str> = arms.iter().map(|arm| arm.text).collect();
        let found = find(text, &marks, is_last);
        let (Found::At(n_free, _) | Found::Free(n_free)) = found;
        if found == Found::Free(0) {
            return None;
        }
        let mut json = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            reader.begin(&mut json);
        }
        reader.feed(&text[..n_free], &mut json);
        out.take(&text[..n_free]);
        let Found::At(_, arm) = found else {
            out.arguments(&json);
            return Some(n_free);
        };
        reader.end(&mut json);
        out.arguments(&json);
        Some(n_free + self.take_arm(&text[n_free..], &arms[arm], out))
    }

    fn python(&mut self, text: &str, out: &mut Output) -> usize {
        let Reading::Python(reader) = &mut self.reading else { return 0 };
        self.has_begun = true;
        let mut json = String::new();
        for (char_idx, char) in text.char_indices() {
            let n_bytes = match reader.feed(char, &mut json) {
                Fed::Within => continue,
                Fed::Last => char_idx + char.len_utf8(),
                Fed::Past => char_idx,
                Fed::Bad => {
                    out.take(&text[..char_idx]);
                    out.arguments(&json);
                    self.refuse(out);
                    return char_idx;
                }
            };
            out.take(&text[..n_bytes]);
            out.arguments(&json);
            self.advance(out);
            return n_bytes;
        }
        out.take(text);
        out.arguments(&json);
        text.len()
    }

    fn arguments(
        &mut self,
        text: &str,
        is_last: bool,
        ends: &[&str],
        out: &mut Output,
    ) -> Option<usize> {
        if !self.has_begun {
            match begins(text, ends.iter().copied()) {
                Begins::Partly if !is_last => return None,
                Begins::With(_) => {
                    out.arguments("{}");
                    out.complete();
                    self.advance(out);
                    return Some(0);
                }
                _ => self.has_begun = true,
            }
        }
        let Reading::Arguments(reader) = &mut self.reading else { return None };
        Some(match reader.feed(text, out) {
            Took::All => text.len(),
            Took::Done(n_bytes) => {
                out.complete();
                self.advance(out);
                n_bytes
            }
            Took::Bad(n_bytes) => {
                self.refuse(out);
                n_bytes
            }
        })
    }

    fn object(&mut self, text: &str, out: &mut Output) -> usize {
        let Reading::Object(reader) = &mut self.reading else { return 0 };
        self.has_begun = true;
        match reader.feed(text, out) {
            Took::All => text.len(),
            Took::Done(n_bytes) => {
                out.complete();
                self.advance(out);
                n_bytes
            }
            Took::Bad(n_bytes) => {
                self.refuse(out);
                n_bytes
            }
        }
    }

    fn close(&mut self, out: &mut Output) {
        out.arguments(if self.n_keys == 0 { "{}" } else { "}" });
        out.complete();
        self.advance(out);
    }
}

impl Machine for Calls {
    fn step(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        let Some(part) = self.part else { return self.text(text, is_last, out) };
        let part = &self.program.parts[part];
        let is_between = match part {
            Part::Choice(..) => true,
            Part::Object | Part::Arguments(_) | Part::Python => !self.has_begun,
            Part::Name(..) => self.word.is_empty(),
            _ => false,
        };
        let n_blanks = blanks(text);
        if is_between && n_blanks > 0 {
            out.take(&text[..n_blanks]);
            return Some(n_blanks);
        }
        match part {
            Part::Choice(arms, otherwise) => self.choice(text, arms, *otherwise, out),
            Part::Object => Some(self.object(text, out)),
            Part::Arguments(ends) => self.arguments(text, is_last, ends, out),
            Part::Python => Some(self.python(text, out)),
            Part::Value { arms, .. } => self.value(text, is_last, arms, out),
            Part::Close => None,
            Part::Skip(arms) | Part::Name(_, arms) | Part::Key(arms) => {
                let is_allowed = match part {
                    Part::Skip(_) => |_| true,
                    Part::Name(..) => is_of_name,
                    _ => is_of_key,
                };
                match self.word(text, is_last, arms, is_allowed, out) {
                    Word::More => None,
                    Word::Read(n_bytes) => Some(n_bytes),
                    Word::End(n_bytes, arm) => {
                        match part {
                            Part::Name(form, _) if !self.name(*form, out) => {
                                self.refuse(out);
                                return Some(n_bytes);
                            }
                            Part::Key(_) => self.key(out),
                            _ => {}
                        }
                        Some(n_bytes + self.take_arm(&text[n_bytes..], &arms[arm], out))
                    }
                }
            }
        }
    }

    fn end(&mut self, text: &str, out: &mut Output) {
        let Some(part) = self.part.take() else { return out.rest(text) };
        let is_after_call =
            out.n_calls() > self.n_calls_before && self.program.parts[part].is_choice();
        out.take(text);
        let mut json = String::new();
        match &mut self.reading {
            Reading::Value(reader) => reader.cut(&mut json),
            Reading::Python(reader) => reader.cut(&mut json),
            _ => {}
        }
        if !json.is_empty() {
            out.arguments(&json);
        }
        match is_after_call {
            true => out.forget_marks(),
            false => out.cut(!self.trigger().is_common),
        }
    }

    fn standing(&self) -> Standing {
        Standing::Said
    }
}

/// The word that [`Calls::word`] read.
enum Word {
    /// More text is needed.
    More,
    /// So many bytes.
    Read(usize),
    /// So many bytes, and then this mark.
    End(usize, usize),
}

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || char.is_whitespace() || "_-.:/".contains(char)
}

/// Whether a tool of this name can be called in every format.
pub(crate) fn is_name(name: &str) -> bool {
    let is_of = |char| is_of_name(char) && !char.is_whitespace();
    (1..=MOST_NAME).contains(&name.len()) && name.chars().all(is_of)
}

/// Whether a parameter of this name can be written in the formats that write parameters one by one.
pub(crate) fn is_key(key: &str) -> bool {
    (1..=MOST_NAME).contains(&key.len()) && key.trim() == key && key.chars().all(is_of_key)
}

fn is_of_key(char: char) -> bool {
    !char.is_control() && !"<>(){}[]=,\"'".contains(char)
}

/// The name in `functions.NAME:NUMBER`.
fn numbered(id: &str) -> Option<&str> {
    let (name, number) = id.rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| name.strip_prefix("functions.").unwrap_or(name))
}
