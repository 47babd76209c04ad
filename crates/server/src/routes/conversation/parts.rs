//! The parts of an answer one after the other: a thought, text, calls.
//!
//! ```text
//!   Event, Event, ... ─▶ Open(Thought) Add Add Close  Open(Text) Add Close  Open(Call) Add Close
//! ```
//!
//! At most one part is open at a time. Text that is only white space so far is held back, because it
//! is a part only beside other text.

use pelton_llm::{CallPiece, Event, EventToken};

use crate::wire::fresh_id;

/// A part of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Thought,
    Text,
    Call { id: String, name: String },
}

/// A piece of news about the parts of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Open(Part),
    /// More text of the open part: arguments where it is a call. Tokens are those of a text.
    Add {
        text: String,
        tokens: Vec<EventToken>,
    },
    Close,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Open {
    Thought,
    Text,
    /// The call of this number.
    Call(usize),
}

/// Turns the events of one answer into its parts.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Beginning of the ids of calls.
    call_prefix: &'static str,
    hides_thoughts: bool,
    open: Option<Open>,
    /// Whether a part was opened so far.
    has_any: bool,
    /// White space at the beginning of a text.
    space: String,
    /// Tokens whose text has not come yet.
    tokens: Vec<EventToken>,
}

impl Parts {
    /// No parts yet; ids of calls will begin with `call_prefix`.
    pub(crate) fn new(call_prefix: &'static str, hides_thoughts: bool) -> Self {
        let (open, has_any, space, tokens) = (None, false, String::new(), Vec::new());
        Self { call_prefix, hides_thoughts, open, has_any, space, tokens }
    }

    /// The news of one event.
    pub(crate) fn event(&mut self, event: Event) -> Vec<Step> {
        let mut steps = Vec::new();
        let Event { text, thought, mut calls, tokens, .. } = event;
        let is_plain = thought.is_empty() && calls.is_empty();
        if is_plain && !matches!(self.open, Some(Open::Thought | Open::Call(_)) if text.is_empty())
        {
            self.tokens.extend(tokens.into_iter().filter(|token| !token.is_special));
        }
        if !thought.is_empty() && !self.hides_thoughts {
            self.turn_to(Open::Thought, || Part::Thought, &mut steps);
            steps.push(Step::Add { text: thought, tokens: Vec::new() });
        }
        // The rest of the open call comes before a text after it.
        let n_rest = calls.iter().take_while(|piece| self.continues(piece)).count();
        for piece in calls.drain(..n_rest) {
            steps.push(Step::Add { text: piece.arguments, tokens: Vec::new() });
        }
        self.text(text, &mut steps);
        for piece in calls {
            self.call(piece, &mut steps);
        }
        steps
    }

    /// The news of the end. Where `needs_text`, an answer without text and calls gets an empty text.
    pub(crate) fn end(&mut self, needs_text: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        let is_text = self.open == Some(Open::Text);
        let is_bare = !self.has_any || (needs_text && self.open == Some(Open::Thought));
        let space = std::mem::take(&mut self.space);
        if is_bare && (needs_text || !space.is_empty()) {
            self.turn_to(Open::Text, || Part::Text, &mut steps);
            self.add(space, &mut steps);
        } else if is_text && !self.tokens.is_empty() {
            self.add(String::new(), &mut steps);
        }
        if self.open.take().is_some() {
            steps.push(Step::Close);
        }
        steps
    }

    fn continues(&self, piece: &CallPiece) -> bool {
        piece.name.is_none() && self.open == Some(Open::Call(piece.index))
    }

    fn text(&mut self, text: String, steps: &mut Vec<Step>) {
        if text.is_empty() {
            return;
        }
        if self.open == Some(Open::Text) {
            self.add(text, steps);
            return;
        }
        self.space.push_str(&text);
        if !self.space.trim().is_empty() {
            let text = std::mem::take(&mut self.space);
            self.turn_to(Open::Text, || Part::Text, steps);
            self.add(text, steps);
        }
    }

    fn call(&mut self, piece: CallPiece, steps: &mut Vec<Step>) {
        if let Some(name) = piece.name.clone() {
            let id = fresh_id(self.call_prefix);
            self.space.clear();
            self.turn_to(Open::Call(piece.index), || Part::Call { id, name }, steps);
        }
        if !piece.arguments.is_empty() && self.open == Some(Open::Call(piece.index)) {
            steps.push(Step::Add { text: piece.arguments, tokens: Vec::new() });
        }
    }

    fn add(&mut self, text: String, steps: &mut Vec<Step>) {
        steps.push(Step::Add { text, tokens: std::mem::take(&mut self.tokens) });
    }

    /// Opens a part, unless it is open.
    fn turn_to(&mut self, open: Open, part: impl FnOnce() -> Part, steps: &mut Vec<Step>) {
        if self.open == Some(open) {
            return;
        }
        if self.open.is_some() {
            steps.push(Step::Close);
        }
        (self.open, self.has_any) = (Some(open), true);
        steps.push(Step::Open(part()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(thought: &str, text: &str, calls: &[(usize, Option<&str>, &str)]) -> Event {
        let calls = calls.iter().map(|&(index, name, arguments)| CallPiece {
            index,
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        });
        let (thought, text) = (thought.to_owned(), text.to_owned());
        Event { thought, text, calls: calls.collect(), ..Event::new(0) }
    }

    /// Parts as one line: `thought(..) text(..) name(..)`.
    fn line(events: Vec<Event>, needs_text: bool) -> String {
        let mut parts = Parts::new("id_", false);
        let mut steps: Vec<Step> = events.into_iter().flat_map(|e| parts.event(e)).collect();
        steps.extend(parts.end(needs_text));
        let mut line = String::new();
        for step in steps {
            match step {
                Step::Open(Part::Thought) => line.push_str("thought("),
                Step::Open(Part::Text) => line.push_str("text("),
                Step::Open(Part::Call { id, name }) => {
                    assert!(id.starts_with("id_"));
                    line.push_str(&format!("{name}("));
                }
                Step::Add { text, .. } => line.push_str(&text),
                Step::Close => line.push(')'),
            }
        }
        line
    }

    #[test]
    fn parts_come_in_order_and_each_is_closed() {
        let events = || {
            vec![
                event("hm", "", &[]),
                event("m", " ", &[]),
                event("", "a", &[(0, Some("f"), "{")]),
                event("", " ", &[(0, None, "}"), (1, Some("g"), "{}")]),
                event("", "b", &[]),
            ]
        };
        assert_eq!(line(events(), false), "thought(hmm)text( a)f({})g({})text(b)");
        let mut hidden = Parts::new("id_", true);
        let steps: Vec<Step> = events().into_iter().flat_map(|e| hidden.event(e)).collect();
        assert_eq!(steps[0], Step::Open(Part::Text));
    }

    #[test]
    fn a_text_after_a_call_does_not_part_the_call_from_its_arguments() {
        let events = vec![
            event("", "", &[(0, Some("f"), "{\"a\":")]),
            event("", "so", &[(0, None, "1}"), (1, Some("g"), "{}")]),
        ];
        assert_eq!(line(events, false), "f({\"a\":1})text(so)g({})");
    }

    #[test]
    fn white_space_is_a_part_only_where_nothing_else_is() {
        assert_eq!(line(vec![event("", " \n", &[])], false), "text( \n)");
        assert_eq!(line(vec![event("", " ", &[(0, Some("f"), "{}")])], true), "f({})");
        assert_eq!(line(vec![event("hm", " ", &[])], false), "thought(hm)");
        assert_eq!(line(vec![event("hm", "", &[])], true), "thought(hm)text()");
        assert_eq!(line(vec![], false), "");
        assert_eq!(line(vec![], true), "text()");
    }
}
