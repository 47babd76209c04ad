//! The turns of a conversation, and which of them the model still sees.
//!
//! ```text
//! instructions │ turn 0 │ turn 1 │ turn 2 │ turn 3 │ the next question
//!              └── forgotten ────┘└──── sent ──────┘
//! ```
//!
//! A context that is full forgets whole turns, the oldest first. The instructions are always sent,
//! and forgotten turns stay in the list: they are saved, counted and taken back like all turns.

use pelton_text::Message;

/// A question and its answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Turn {
    /// The person's words.
    pub(crate) question: String,
    /// The model's words, perhaps only their beginning.
    pub(crate) answer: String,
}

/// A conversation without the question that is being asked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Turns {
    system: Option<String>,
    turns: Vec<Turn>,
    /// Turns at the beginning that are no longer sent.
    n_forgotten: usize,
}

impl Turns {
    /// An empty conversation under these instructions.
    pub(crate) fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// A conversation that went on before.
    pub(crate) fn of(system: Option<String>, turns: Vec<Turn>) -> Self {
        Self { system, turns, n_forgotten: 0 }
    }

    /// Adds a turn.
    pub(crate) fn push(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// Removes the last turn. The model sees forgotten turns again, where they fit.
    pub(crate) fn take_back(&mut self) -> Option<Turn> {
        self.n_forgotten = 0;
        self.turns.pop()
    }

    /// Forgets the oldest turn that is still sent; false where none is left.
    pub(crate) fn forget_oldest(&mut self) -> bool {
        let is_left = self.n_forgotten < self.turns.len();
        self.n_forgotten += usize::from(is_left);
        is_left
    }

    /// The instructions.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// All turns, forgotten ones included.
    pub(crate) fn all(&self) -> &[Turn] {
        &self.turns
    }

    /// The last turn.
    pub(crate) fn last(&self) -> Option<&Turn> {
        self.turns.last()
    }

    /// Turns that are no longer sent.
    pub(crate) fn n_forgotten(&self) -> usize {
        self.n_forgotten
    }

    /// Messages that the model sees: the instructions, the turns that are not forgotten, and the question.
    pub(crate) fn messages(&self, question: Option<&str>) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        let turns = self.turns[self.n_forgotten..].iter().flat_map(|turn| {
            [Message::new("user", &*turn.question), Message::new("assistant", &*turn.answer)]
        });
        let question = question.into_iter().map(|text| Message::new("user", text));
        system.chain(turns).chain(question).collect()
    }
}

/// Tokens of the context, as a conversation divides them between prompt and answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Most tokens of prompt and answer together.
    pub(crate) context: usize,
    /// Most tokens of an answer, where there is a limit.
    pub(crate) max_tokens: Option<usize>,
    /// Least tokens of an answer.
    pub(crate) min_tokens: usize,
}

impl Room {
    /// Forgets turns until the next answer has room; `n_tokens` counts the tokens of what is sent.
    ///
    /// Nothing is forgotten while an eighth of the context is free, or the whole answer fits. Then
    /// turns go until a quarter is free, so that not every further question shifts again, which
    /// would compute the whole prompt anew each time.
    ///
    /// # Errors
    ///
    /// The errors of `n_tokens`.
    pub(crate) fn make<E>(
        self,
        turns: &mut Turns,
        n_tokens: impl Fn(&Turns) -> Result<usize, E>,
    ) -> Result<(), E> {
        let for_answer = |part: usize| {
            let part = (self.context / part).max(1);
            self.max_tokens.map_or(part, |most| most.min(part)).max(self.min_tokens)
        };
        let mut wanted = for_answer(8);
        while n_tokens(turns)? + wanted > self.context && turns.forget_oldest() {
            wanted = for_answer(4);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn turn(idx: usize) -> Turn {
        Turn { question: format!("q{idx}"), answer: format!("a{idx}") }
    }

    fn turns(n_turns: usize) -> Turns {
        Turns::of(Some("s".to_owned()), (0..n_turns).map(turn).collect())
    }

    fn words(turns: &Turns, question: Option<&str>) -> String {
        let messages = turns.messages(question);
        let words = messages.iter().map(|message| message.content.as_str().expect("text"));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_model_sees_the_instructions_the_turns_and_the_question() {
        assert_eq!(words(&turns(2), Some("q2")), "s q0 a0 q1 a1 q2");
        assert_eq!(words(&Turns::default(), Some("q0")), "q0");
        assert_eq!(words(&turns(1), None), "s q0 a0");
    }

    #[test]
    fn forgetting_takes_whole_turns_from_the_front_and_keeps_the_instructions() {
        let mut turns = turns(3);
        assert!(turns.forget_oldest() && turns.forget_oldest());
        assert_eq!(words(&turns, Some("q3")), "s q2 a2 q3");
        assert!(turns.forget_oldest() && !turns.forget_oldest());
        assert_eq!(words(&turns, Some("q3")), "s q3");
        assert_eq!((turns.n_forgotten(), turns.all().len()), (3, 3));
        assert_eq!(turns.take_back(), Some(turn(2)));
        assert_eq!(words(&turns, None), "s q0 a0 q1 a1", "what fits again is seen again");
    }

    /// A conversation of `n_turns` of 20 tokens each, shifted; the turns that are forgotten.
    fn forgotten(n_turns: usize, room: Room) -> usize {
        let mut turns = turns(n_turns);
        let count = |turns: &Turns| Ok::<_, Infallible>(10 * turns.messages(Some("q")).len());
        room.make(&mut turns, count).expect("counted");
        turns.n_forgotten()
    }

    #[test]
    fn room_is_made_once_in_a_while_and_not_for_every_question() {
        let room = |max_tokens, min_tokens| Room { context: 160, max_tokens, min_tokens };
        // Instructions and question take 20 tokens, so six turns leave 20: an eighth.
        assert_eq!(forgotten(6, room(None, 0)), 0);
        // Seven leave nothing; without two of them a quarter is free.
        assert_eq!(forgotten(7, room(None, 0)), 2);
        assert_eq!(forgotten(7, room(Some(10), 0)), 1, "a short answer needs less");
        assert_eq!(forgotten(6, room(None, 60)), 2, "the least length needs more");
        assert_eq!(forgotten(0, room(None, 500)), 0, "nothing is left to forget");
    }
}
