//! The parts of an answer one after the other: a thought, text, calls.
//!
//! ```text
//!   Event, Event, ... ─▶ Open(Thought) Add Add Close  Open(Text) Add Close  Open(Call) Add Close
//! ```
//!
//! At most one part is open at a time. Text that is only white space so far is held back, because it
//! is a part only beside other text.

use pelton_llm::{CallPiece, Event, EventToken, Released};

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
    /// Tokens that are held back: their text has not come yet.
    held: Vec<EventToken>,
    /// Tokens of the text that comes next.
    tokens: Vec<EventToken>,
}

impl Parts {
    /// No parts yet; ids of calls will begin with `call_prefix`.
    pub(crate) fn new(call_prefix: &'static str, hides_thoughts: bool) -> Self {
        let (held, tokens) = (Vec::new(), Vec::new());
        let (open, has_any, space) = (None, false, String::new());
        Self { call_prefix, hides_thoughts, open, has_any, space, held, tokens }
    }

    /// The news of one event.
    pub(crate) fn event(&mut self, event: Event) -> Vec<Step> {
        let mut steps = Vec::new();
        let Event { text, thought, mut calls, tokens, finish, .. } = event;
        self.sort(tokens, &text, finish.is_some());
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
        } else if is_text {
            // A stop string cut the text of these.
            self.give(0);
            if !self.tokens.is_empty() {
                self.add(String::new(), &mut steps);
            }
        }
        if self.open.take().is_some() {
            steps.push(Step::Close);
        }
        steps
    }

    /// Sorts the tokens of an event by the part that each released, so that it does not matter how
    /// many tokens an event has. At the end, the rest of the text is that of the tokens held back.
    fn sort(&mut self, tokens: Vec<EventToken>, text: &str, is_end: bool) {
        let mut rest = text;
        for token in tokens {
            let released = token.released;
            self.held.push(token);
            match released {
                Released::Nothing => {}
                Released::Other => self.held.clear(),
                Released::Text(n_bytes) => {
                    let (said, after) = rest.split_at_checked(n_bytes).unwrap_or((rest, ""));
                    rest = after;
                    self.give_for(said);
                }
            }
        }
        if is_end && !rest.is_empty() {
            self.give_for(rest);
        }
    }

    /// Moves the tokens held back to those of the text, from the first of `said` on. Those before
    /// it are markers, such as the end of a call.
    fn give_for(&mut self, said: &str) {
        let bytes: Vec<u8> = self.held.iter().flat_map(|token| token.bytes.clone()).collect();
        let mut places = bytes.windows(said.len().max(1));
        self.give(places.rposition(|place| place == said.as_bytes()).unwrap_or(0));
    }

    /// Moves the tokens held back to those of the text, without those that end before byte `start`.
    fn give(&mut self, start: usize) {
        let mut end = 0;
        for token in self.held.drain(..) {
            end += token.bytes.len();
            if end > start && !token.is_special {
                self.tokens.push(token);
            }
        }
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
            self.tokens.clear();
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
    use pelton_base::TokenId;

    use super::*;

    /// Index, name and arguments of a piece of a call.
    type Piece<'a> = (usize, Option<&'a str>, &'a str);

    fn event(thought: &str, text: &str, calls: &[Piece<'_>]) -> Event {
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

    /// One event for each token; the last of two calls is no call after all.
    fn of_tokens() -> Vec<Event> {
        let read: [(&str, &str, Option<Piece<'_>>); 12] = [
            ("hm ", "", None),
            ("so", "hm so", None),
            ("\n", "\n", None),
            ("<call>", "", None),
            ("{\"name\": \"f\", \"arguments\": ", "", Some((0, Some("f"), ""))),
            ("{\"a\":", "", Some((0, None, "{\"a\":"))),
            ("1}}", "", Some((0, None, "1}"))),
            ("</call>", "", None),
            ("\n<c", "", None),
            ("all>{\"n", "", None),
            ("ay", "\n<call>{\"nay", None),
            (" <", "", None),
        ];
        let events = read.map(|(bytes, text, call)| {
            let mut event = event("", text, call.as_slice());
            let released = match (text.len(), call) {
                (0, None) => Released::Nothing,
                (0, Some(_)) => Released::Other,
                (n_bytes, _) => Released::Text(n_bytes),
            };
            event.tokens.push(EventToken {
                id: TokenId(0),
                bytes: bytes.as_bytes().to_vec(),
                is_special: false,
                logprob: None,
                released,
            });
            event
        });
        events.into()
    }

    /// The texts, each with its tokens joined.
    fn texts(events: impl IntoIterator<Item = Event>) -> Vec<(String, String)> {
        let mut parts = Parts::new("id_", false);
        let mut steps: Vec<Step> = events.into_iter().flat_map(|e| parts.event(e)).collect();
        steps.extend(parts.end(false));
        let (mut texts, mut is_text) = (Vec::new(), false);
        for step in steps {
            match step {
                Step::Open(part) => {
                    is_text = part == Part::Text;
                    texts.extend(is_text.then(Default::default));
                }
                Step::Add { text, tokens } if is_text => {
                    let last: &mut (String, String) = texts.last_mut().expect("opened");
                    last.0.push_str(&text);
                    for token in tokens {
                        last.1.push_str(std::str::from_utf8(&token.bytes).expect("UTF-8"));
                    }
                }
                Step::Add { tokens, .. } => assert!(tokens.is_empty()),
                Step::Close => {}
            }
        }
        texts
    }

    #[test]
    fn a_text_has_its_own_tokens_however_they_fall_into_events() {
        let alone = texts(of_tokens());
        let own = |text: &str, tokens: &str| (text.to_owned(), tokens.to_owned());
        let expected = [own("hm so\n", "hm so\n"), own("\n<call>{\"nay", "\n<call>{\"nay <")];
        assert_eq!(alone, expected);
        for n in 2..6 {
            let mut joined: Vec<Event> = Vec::new();
            for (i, mut event) in of_tokens().into_iter().enumerate() {
                match joined.last_mut().filter(|_| i % n != 0) {
                    Some(last) => {
                        last.text.push_str(&event.text);
                        last.tokens.append(&mut event.tokens);
                        last.calls.append(&mut event.calls);
                    }
                    None => joined.push(event),
                }
            }
            assert_eq!(texts(joined), expected, "{n} tokens in an event");
        }
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
