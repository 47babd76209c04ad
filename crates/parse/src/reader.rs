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

/// The part of an answer that its text read last belongs to, for counting the tokens of thoughts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// The next text decides: so far there is only white space, or the header of a message.
    Undecided,
    /// A thought.
    Thought,
    /// Content or a call.
    Said,
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

    /// The part that the text read last belongs to. The mark that ends a thought is no part of it.
    pub fn standing(&self) -> Standing {
        match self.thought {
            Thought::Before(_) => Standing::Undecided,
            Thought::Within { .. } => Standing::Thought,
            Thought::Over => Standing::Said,
            Thought::Past => self.content.as_ref().map_or(Standing::Said, |read| read.standing()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasoning_format;

    /// The part that the text belongs to after each piece.
    fn standings(format: &str, pieces: &[&str]) -> Vec<Standing> {
        let reasoning = reasoning_format(format);
        assert!(reasoning.is_some(), "{format}");
        let mut reader = Reader::new(ReaderOptions { reasoning, ..ReaderOptions::default() });
        let mut read = |piece: &&str| {
            reader.push(piece);
            reader.standing()
        };
        pieces.iter().map(&mut read).collect()
    }

    #[test]
    fn text_is_undecided_until_a_thought_or_an_answer_begins() {
        use Standing::{Said, Thought, Undecided};
        let thought = ["\n", "<th", "ink>", "Hm", ".</", "think>", "\n", "Yes"];
        let expected = [Undecided, Undecided, Thought, Thought, Thought, Said, Said, Said];
        assert_eq!(standings("deepseek_r1", &thought), expected);
        assert_eq!(standings("deepseek_r1", &["\n", "Yes", " <think>"]), [Undecided, Said, Said]);
        let channels =
            ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant"];
        let expected = [Undecided, Undecided, Thought, Thought, Undecided, Undecided, Undecided];
        assert_eq!(standings("openai_gptoss", &channels), expected);
        let answer = ["<|channel|>", "final", "<|message|>", "Yes", "<|return|>"];
        assert_eq!(standings("openai_gptoss", &answer), [Undecided, Undecided, Said, Said, Said]);
    }
}
