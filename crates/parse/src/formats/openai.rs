//! Harmony, the format of gpt-oss: messages with headers, in channels.
//!
//! ```text
//! <|channel|>analysis<|message|>The user asks...<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>
//! <|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>
//! ```
//!
//! `analysis` is the thought, `final` and `commentary` without a recipient are content, a message to
//! `functions.NAME` is a call. Messages of one kind are joined by a newline. A message to another
//! recipient, such as a tool that nobody offered, is text. Source: the Harmony guide of OpenAI.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust};
use crate::read::{ArgumentsReader, Begins, Driver, Found, Machine, Output, Took, begins, find};
use crate::shape::{Calling, Placed, mark, one_of};
use crate::{Demand, ShapeError, Standing, Tool};

pub(super) struct OpenAi;

const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
/// Where a header begins.
const HEADERS: [&str; 2] = [CHANNEL, START];
/// Where a header ends.
const BODIES: [&str; 4] = [MESSAGE, END, CALL, RETURN];
/// Where a message ends; the last two begin the next.
const ENDS: [&str; 5] = [END, CALL, RETURN, CHANNEL, START];
/// Longest header, in bytes.
const MOST_HEADER: usize = 512;

impl ToolFormat for OpenAi {
    fn name(&self) -> &'static str {
        "openai"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["gpt-oss", "harmony"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains(CHANNEL)
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &[CHANNEL, START, MESSAGE, CONSTRAIN, END, CALL, RETURN]
    }

    fn parser(&self, tools: &[Tool], trust: Trust) -> Box<dyn Parser> {
        parser(tools, trust, false)
    }

    fn shape(
        &self,
        tools: &[Tool],
        demand: Demand<'_>,
        parallel: bool,
    ) -> Result<Shape, ShapeError> {
        let calling = Calling::new(tools, demand, parallel)?;
        let call = |tool: &Placed<'_>| {
            Ok(Shape::Sequence(vec![
                mark(CHANNEL),
                Shape::Text(format!("commentary to=functions.{} ", tool.tool.name)),
                mark(CONSTRAIN),
                Shape::text("json"),
                mark(MESSAGE),
                tool.arguments()?,
                mark(CALL),
            ]))
        };
        let next = Shape::Sequence(vec![mark(START), Shape::text("assistant")]);
        let said = |channel: &str| {
            vec![
                mark(CHANNEL),
                Shape::text(channel),
                mark(MESSAGE),
                Shape::Until(END.to_owned()),
                next.clone(),
            ]
        };
        // Thoughts, and words before calls.
        let before = Shape::Repeat {
            item: Box::new(one_of(vec![
                Shape::Sequence(said("analysis")),
                Shape::Sequence(said("commentary")),
            ])),
            separator: String::new(),
            least: 0,
            most: None,
        };
        let call = calling.any(call)?;
        let last = match calling.is_auto() {
            true => Shape::OneOf(vec![
                call,
                Shape::Sequence(vec![
                    mark(CHANNEL),
                    Shape::text("final"),
                    mark(MESSAGE),
                    Shape::Any,
                ]),
            ]),
            false => call,
        };
        Ok(Shape::Sequence(vec![before, last]))
    }
}

/// The parser; `starts_inside` says that the prompt ends in a message of the channel `analysis`.
pub(crate) fn parser(tools: &[Tool], trust: Trust, starts_inside: bool) -> Box<dyn Parser> {
    let state = if starts_inside { State::Body(Body::Thought) } else { State::Outside };
    let machine =
        Harmony { state, has_thought: starts_inside, has_content: false, is_joined: true };
    Box::new(Driver::new(machine, Output::new(tools, trust)))
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Body {
    Thought,
    Content,
    /// Text after the arguments of a call, where nothing should be.
    Rest,
}

enum State {
    /// Before a header.
    Outside,
    /// The header so far.
    Header(String),
    Body(Body),
    Call {
        arguments: ArgumentsReader,
        has_begun: bool,
    },
}

struct Harmony {
    state: State,
    has_thought: bool,
    has_content: bool,
    /// Whether the message at hand has been set apart from the one before.
    is_joined: bool,
}

impl Harmony {
    fn outside(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        match find(text, &HEADERS, is_last) {
            Found::Free(0) => None,
            Found::Free(n_free) => {
                self.content(&text[..n_free], out);
                Some(n_free)
            }
            Found::At(0, header) => {
                let mark = HEADERS[header];
                out.take(mark);
                self.state = State::Header(mark.to_owned());
                Some(mark.len())
            }
            Found::At(n_free, _) => {
                self.content(&text[..n_free], out);
                Some(n_free)
            }
        }
    }

    /// Text outside of messages and in messages to the user.
    fn content(&mut self, text: &str, out: &mut Output) {
        if text.trim().is_empty() && !self.has_content {
            return out.text(text);
        }
        if !std::mem::replace(&mut self.is_joined, true) && self.has_content {
            out.text("\n");
        }
        self.has_content = true;
        out.text(text);
    }

    /// The text taken last is no part of a call after all, and neither is the rest of the message.
    fn as_text(&mut self, out: &mut Output) {
        out.reject(true);
        self.has_content = true;
        self.is_joined = true;
        self.state = State::Body(Body::Content);
    }

    fn header(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        let State::Header(header) = &mut self.state else { return None };
        // No end that is farther away counts, so that nothing is looked for again and again.
        let near = &text[..text.floor_char_boundary(2 * MOST_HEADER)];
        let found = find(near, &BODIES, is_last && near.len() == text.len());
        let (Found::At(n_free, _) | Found::Free(n_free)) = found;
        if found == Found::Free(0) {
            return None;
        }
        let n_left = text.floor_char_boundary(MOST_HEADER - header.len());
        let n_taken = n_free.min(n_left);
        out.take(&text[..n_taken]);
        header.push_str(&text[..n_taken]);
        if n_taken < n_free {
            self.state = State::Outside;
            out.reject(true);
            return Some(n_taken);
        }
        let Found::At(_, body) = found else { return Some(n_free) };
        let mark = BODIES[body];
        out.take(mark);
        if mark != MESSAGE {
            // A message that has no body.
            self.state = State::Outside;
            out.reject(true);
            return Some(n_free + mark.len());
        }
        let (channel, recipient) = parts(header);
        let function = recipient.as_deref().map(|to| to.strip_prefix("functions.").unwrap_or(""));
        self.is_joined = false;
        self.state = match function {
            Some(name) if out.name(name) => {
                State::Call { arguments: ArgumentsReader::default(), has_begun: false }
            }
            Some(_) => {
                self.as_text(out);
                return Some(n_free + mark.len());
            }
            None => {
                out.forget_marks();
                State::Body(if channel == "analysis" { Body::Thought } else { Body::Content })
            }
        };
        Some(n_free + mark.len())
    }

    fn body(&mut self, body: Body, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        let found = find(text, &ENDS, is_last);
        let (Found::At(n_free, _) | Found::Free(n_free)) = found;
        if found == Found::Free(0) {
            return None;
        }
        let free = &text[..n_free];
        match body {
            _ if free.is_empty() => {}
            Body::Thought => {
                if !std::mem::replace(&mut self.is_joined, true) && self.has_thought {
                    out.reasoning("\n");
                }
                self.has_thought = true;
                out.reasoning(free);
            }
            Body::Content => self.content(free, out),
            Body::Rest => {
                out.take(free);
                if !free.trim().is_empty() {
                    self.as_text(out);
                }
            }
        }
        let Found::At(_, end) = found else { return Some(n_free) };
        // Blanks after a call are no text where none followed.
        out.forget_marks();
        self.state = State::Outside;
        self.is_joined = false;
        Some(n_free + if HEADERS.contains(&ENDS[end]) { 0 } else { ENDS[end].len() })
    }

    fn call(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        let State::Call { arguments, has_begun } = &mut self.state else { return None };
        if !*has_begun {
            let n_blanks = text.len() - text.trim_start().len();
            if n_blanks > 0 {
                out.take(&text[..n_blanks]);
                return Some(n_blanks);
            }
            match begins(text, ENDS.into_iter()) {
                Begins::Partly if !is_last => return None,
                Begins::With(_) => {
                    out.arguments("{}");
                    out.complete();
                    self.state = State::Body(Body::Rest);
                    return Some(0);
                }
                _ => *has_begun = true,
            }
        }
        let n_bytes = match arguments.feed(text, out) {
            Took::All => return Some(text.len()),
            Took::Done(n_bytes) => {
                out.complete();
                self.state = State::Body(Body::Rest);
                n_bytes
            }
            Took::Bad(n_bytes) => {
                self.as_text(out);
                n_bytes
            }
        };
        Some(n_bytes)
    }
}

impl Machine for Harmony {
    fn step(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize> {
        match self.state {
            State::Outside => self.outside(text, is_last, out),
            State::Header(_) => self.header(text, is_last, out),
            State::Body(body) => self.body(body, text, is_last, out),
            State::Call { .. } => self.call(text, is_last, out),
        }
    }

    fn end(&mut self, text: &str, out: &mut Output) {
        match self.state {
            State::Header(_) => {
                out.take(text);
                out.forget_marks();
            }
            State::Call { .. } => {
                out.take(text);
                out.cut(true);
            }
            State::Outside | State::Body(_) => out.rest(text),
        }
    }

    fn standing(&self) -> Standing {
        match self.state {
            // A thought may follow, unless the model has said something.
            State::Outside | State::Header(_) if !self.has_content => Standing::Undecided,
            State::Body(Body::Thought) => Standing::Thought,
            _ => Standing::Said,
        }
    }
}

/// Channel and recipient of a header.
fn parts(header: &str) -> (String, Option<String>) {
    let word = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|char: char| char.is_whitespace() || char == '<').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let channel = header.split_once(CHANNEL).map(|(_, text)| word(text)).unwrap_or_default();
    let recipient = header.split_once(" to=").map(|(_, text)| word(text));
    (channel, recipient)
}
