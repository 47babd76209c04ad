//! The parts of an answer, whole and as they grow.

use crate::ToolCall;

/// The next piece of an answer. Pieces of the same part concatenate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the thought before the answer.
    Reasoning(String),
    /// A call begins.
    Call {
        /// Place among the calls of the answer, from 0.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of a call that has begun, as JSON text.
    Arguments {
        /// Place of the call.
        index: usize,
        /// The text.
        text: String,
    },
}

/// The last pieces of an answer, and how it went.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct End {
    /// The pieces that were held back until now.
    pub deltas: Vec<Delta>,
    /// Whether something that looked like a call was none, and is text of the answer instead.
    pub malformed: bool,
    /// Whether the text ended inside a call; the arguments of the last call lack their end.
    pub cut: bool,
}

/// An answer taken apart.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// Text outside of thought and calls.
    pub content: String,
    /// Text of the thought.
    pub reasoning: String,
    /// Calls in the order in which they were written.
    pub calls: Vec<ToolCall>,
    /// As in [`End::malformed`].
    pub malformed: bool,
    /// As in [`End::cut`].
    pub cut: bool,
}

impl Answer {
    /// Adds a piece.
    pub fn add(&mut self, delta: &Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(text),
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::Call { name, .. } => {
                self.calls.push(ToolCall { name: name.clone(), arguments: String::new() });
            }
            Delta::Arguments { index, text } => {
                let call = self.calls.get_mut(*index).expect("invariant: a call begins first");
                call.arguments.push_str(text);
            }
        }
    }

    /// Adds the last pieces.
    pub fn end(&mut self, end: &End) {
        end.deltas.iter().for_each(|delta| self.add(delta));
        self.malformed |= end.malformed;
        self.cut |= end.cut;
    }
}

/// Appends a piece, joined with the last one where they belong to the same part.
pub(crate) fn append(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), &delta) {
        (Some(Delta::Content(last)), Delta::Content(text))
        | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(text),
        (
            Some(Delta::Arguments { index: last_index, text: last }),
            Delta::Arguments { index, text },
        ) if last_index == index => last.push_str(text),
        _ => deltas.push(delta),
    }
}
