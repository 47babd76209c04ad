//! The whole answer: first the thought, then content with calls.

use crate::answer::append;
use crate::formats::{Parser, ToolFormat, Trust, harmony_parser};
use crate::read::{Found, find};
use crate::{Answer, Delta, End, ReasoningFormat, Tool};

/// How an answer is read.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// Marks of the thought; `None` leaves thoughts in the content.
    pub reasoning: Option<&'static ReasoningFormat>,
    /// Whether the prompt ends within a thought ([`ReasoningFormat::opens_in`]).
    pub starts_inside: bool,
    /// Format of the calls, and the tools; `None` leaves calls in the content.
    pub tools: Option<(&'static dyn ToolFormat, Vec<Tool>)>,
    /// Whether the form of calls is enforced.
    pub trust: Trust,
}

/// Reads one answer as it grows.
pub struct Reader {
    thought: Thought,
    reasoning: Option<&'static ReasoningFormat>,
    content: Option<Box<dyn Parser>>,
    /// Text that may be the beginning of a mark.
    rest: String,
}

/// How far the thought has come.
enum Thought {
    /// Nothing but white space so far, kept here.
    Before(String),
    /// Within. Nothing but white space of it so far, or white space that may be its last.
    Within { has_text: bool, blank: String },
    /// Over, and only white space came after it.
    Over,
    /// The answer has begun.
    Past,
}

impl Reader {
    /// A reader at the beginning of an answer.
    pub fn new(options: ReaderOptions) -> Self {
        let ReaderOptions { reasoning, starts_inside, tools, trust } = options;
        let channels = reasoning.is_some_and(ReasoningFormat::has_channels);
        let content = match tools {
            // One machine reads channels and calls.
            Some((format, tools)) if channels || format.name() == "openai" => {
                Some(harmony_parser(&tools, trust, starts_inside))
            }
            Some((format, tools)) => Some(format.parser(&tools, trust)),
            None if channels => Some(harmony_parser(&[], trust, starts_inside)),
            None => None,
        };
        let thought = match (reasoning, channels) {
            (None, _) | (_, true) => Thought::Past,
            _ if starts_inside => Thought::Within { has_text: false, blank: String::new() },
            _ => Thought::Before(String::new()),
        };
        Self { thought, reasoning, content, rest: String::new() }
    }

    /// Reads the next text, and returns what is certain now. All pieces together are the same
    /// however the text is split.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.read(text, false, &mut deltas);
        deltas
    }

    /// Ends the answer.
    pub fn finish(&mut self) -> End {
        let mut deltas = Vec::new();
        self.read("", true, &mut deltas);
        if let Thought::Before(blank) = &mut self.thought {
            let blank = std::mem::take(blank);
            self.thought = Thought::Past;
            self.pass_on(&blank, &mut deltas);
        }
        let mut end = self.content.as_mut().map(|parser| parser.finish()).unwrap_or_default();
        for delta in std::mem::take(&mut end.deltas) {
            append(&mut deltas, delta);
        }
        End { deltas, ..end }
    }

    /// Whether the thought is over, or there is none.
    pub fn is_past_thought(&self) -> bool {
        matches!(self.thought, Thought::Over | Thought::Past)
    }

    fn read(&mut self, text: &str, is_last: bool, deltas: &mut Vec<Delta>) {
        if matches!(self.thought, Thought::Past) && self.rest.is_empty() {
            return self.pass_on(text, deltas);
        }
        let mut whole = std::mem::take(&mut self.rest);
        whole.push_str(text);
        let mut rest = whole.as_str();
        while !rest.is_empty() {
            let Some(n_bytes) = self.step(rest, is_last, deltas) else { break };
            rest = &rest[n_bytes..];
        }
        self.rest = rest.to_owned();
    }

    fn step(&mut self, text: &str, is_last: bool, deltas: &mut Vec<Delta>) -> Option<usize> {
        let (opens, closes) =
            self.reasoning.map_or((&[][..], &[][..]), |r| (r.opens(), r.closes()));
        let n_blanks = text.len() - text.trim_start().len();
        match &mut self.thought {
            Thought::Before(blank) => {
                if n_blanks > 0 {
                    blank.push_str(&text[..n_blanks]);
                    return Some(n_blanks);
                }
                if let Some(open) = opens.iter().find(|open| text.starts_with(**open)) {
                    self.thought = Thought::Within { has_text: false, blank: String::new() };
                    return Some(open.len());
                }
                if !is_last && opens.iter().any(|open| open.starts_with(text)) {
                    return None;
                }
                let blank = std::mem::take(blank);
                self.thought = Thought::Past;
                self.pass_on(&blank, deltas);
                Some(0)
            }
            Thought::Within { has_text, blank } => {
                let (n_free, close) = match find(text, closes, is_last) {
                    Found::At(n_free, close) => (n_free, Some(closes[close])),
                    Found::Free(0) => return None,
                    Found::Free(n_free) => (n_free, None),
                };
                let said = text[..n_free].trim_end();
                let said = if *has_text { said } else { said.trim_start() };
                if said.is_empty() {
                    if *has_text {
                        blank.push_str(&text[..n_free]);
                    }
                } else {
                    *has_text = true;
                    let thought = std::mem::take(blank) + said;
                    append(deltas, Delta::Reasoning(thought));
                    let n_said = text[..n_free].trim_end().len();
                    blank.push_str(&text[n_said..n_free]);
                }
                if close.is_some() {
                    self.thought = Thought::Over;
                }
                Some(n_free + close.map_or(0, str::len))
            }
            Thought::Over if n_blanks > 0 => Some(n_blanks),
            Thought::Over | Thought::Past => {
                self.thought = Thought::Past;
                self.pass_on(text, deltas);
                Some(text.len())
            }
        }
    }

    /// Text after the thought.
    fn pass_on(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        match &mut self.content {
            Some(parser) => parser.push(text).into_iter().for_each(|delta| append(deltas, delta)),
            None => append(deltas, Delta::Content(text.to_owned())),
        }
    }
}

/// Reads a whole answer.
pub fn read(options: ReaderOptions, text: &str) -> Answer {
    let mut reader = Reader::new(options);
    let mut answer = Answer::default();
    reader.push(text).iter().for_each(|delta| answer.add(delta));
    answer.end(&reader.finish());
    answer
}
