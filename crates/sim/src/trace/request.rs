//! One request of a trace: its arrival, its lengths, and the shared part of its prompt.
//!
//! ```text
//! prompt + answer   [ prefix 7: 64 tokens | prefix 12: 30 tokens | its own ............ ]
//!                                                       prompt ends ┘  answer goes on
//! token             text(7)[0..64]          text(12)[0..30]        text(own)[0..]
//! ```
//!
//! A *text* is an endless row of tokens, each a function of the text's number and its place.
//! Prompts that name the same prefixes begin with the same tokens. The rest of the prompt is a text
//! of its own. The answer continues the text where the prompt ends. So if prefixes fill the whole
//! prompt, a later prompt that names more tokens of the last prefix repeats the answer as well, as
//! the next question of a conversation does.

use crate::random::mix;
use pelton_base::{ServiceParams, Slo, TenantId, TokenId};

/// Most prefixes of one prompt.
pub const MOST_PREFIXES: usize = 4;

/// A part of a prompt that other prompts may begin with too.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Prefix {
    /// Number of the text.
    pub id: u64,
    /// Tokens of it, from its beginning.
    pub n_tokens: usize,
}

/// The shared beginning of a prompt: at most [`MOST_PREFIXES`], one after the other.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Prefixes {
    list: [Prefix; MOST_PREFIXES],
    n: usize,
}

impl Prefixes {
    /// All of them, in order.
    pub fn as_slice(&self) -> &[Prefix] {
        &self.list[..self.n]
    }

    /// Their tokens, together.
    fn n_tokens(&self) -> usize {
        self.as_slice().iter().map(|prefix| prefix.n_tokens).sum()
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TraceRequest {
    /// Arrival, in nanoseconds from the start.
    pub at_ns: u64,
    /// Tokens of its prompt; at least one.
    pub n_prompt: usize,
    /// Tokens of its answer; at least one.
    pub n_output: usize,
    /// The sender, as an index into [`Tenants`](super::Tenants).
    pub tenant: TenantId,
    /// Urgency.
    pub priority: i32,
    /// Its latency targets.
    pub slo: Slo,
    /// Prefixes of its prompt; together no longer than the prompt.
    pub prefixes: Prefixes,
    /// Its place in a conversation, or `None` where it waits for no other request.
    pub turn: Option<Turn>,
}

/// A turn of a conversation: it is sent once the request before it of the same session has ended,
/// and its user has thought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Turn {
    /// Number of the conversation.
    pub session: u64,
    /// From the end of the answer before to this turn, in nanoseconds.
    pub think_ns: u64,
}

impl TraceRequest {
    /// A request that shares nothing and asks for nothing special.
    pub fn new(at_ns: u64, n_prompt: usize, n_output: usize) -> Self {
        Self { at_ns, n_prompt, n_output, ..Self::default() }
    }

    /// Appends a prefix; `None` if the prompt has no room for it, or if there are
    /// [`MOST_PREFIXES`].
    #[must_use]
    pub fn with_prefix(mut self, prefix: Prefix) -> Option<Self> {
        let n_shared = self.prefixes.n_tokens().checked_add(prefix.n_tokens)?;
        let Prefixes { list, n } = &mut self.prefixes;
        *list.get_mut(*n).filter(|_| n_shared <= self.n_prompt)? = prefix;
        *n += 1;
        Some(self)
    }

    /// Its tenant, priority and targets as the scheduler takes them.
    pub fn service(&self) -> ServiceParams {
        let Self { tenant, priority, slo, .. } = *self;
        ServiceParams { tenant, priority, slo, ..ServiceParams::default() }
    }

    /// The tokens of its prompt, below `vocab`; `number` is its place in the trace.
    ///
    /// # Panics
    ///
    /// Panics if `vocab` is zero.
    pub fn prompt(&self, number: u64, vocab: u32) -> Vec<TokenId> {
        let mut prompt = Vec::with_capacity(self.n_prompt);
        for prefix in self.prefixes.as_slice() {
            let text = Text::shared(prefix.id);
            prompt.extend((0..prefix.n_tokens).map(|place| text.token(place, vocab)));
        }
        let own = Text::own(number);
        let n_own = self.n_prompt - prompt.len();
        prompt.extend((0..n_own).map(|place| own.token(place, vocab)));
        prompt
    }

    /// The token at a position of prompt or answer, equal to that of [`prompt`](Self::prompt).
    pub(crate) fn token(&self, number: u64, position: usize, vocab: u32) -> TokenId {
        let mut first = 0;
        for prefix in self.prefixes.as_slice() {
            if position < first + prefix.n_tokens {
                return Text::shared(prefix.id).token(position - first, vocab);
            }
            first += prefix.n_tokens;
        }
        match position < self.n_prompt {
            true => Text::own(number).token(position - first, vocab),
            false => {
                let (text, place) = self.answer(number);
                text.token(place + position - self.n_prompt, vocab)
            }
        }
    }

    /// The text that the answer continues, and the place in it where the prompt ends.
    pub(crate) fn answer(&self, number: u64) -> (Text, usize) {
        let n_shared = self.prefixes.n_tokens();
        match self.prefixes.as_slice().last() {
            Some(last) if n_shared == self.n_prompt => (Text::shared(last.id), last.n_tokens),
            _ => (Text::own(number), self.n_prompt - n_shared),
        }
    }
}

/// An endless row of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text(u64);

impl Text {
    fn shared(id: u64) -> Self {
        Self(mix(mix(1) ^ id))
    }

    fn own(number: u64) -> Self {
        Self(mix(mix(2) ^ number))
    }

    /// The token at a place.
    pub(crate) fn token(self, place: usize, vocab: u32) -> TokenId {
        let bits = mix(self.0 ^ place as u64) >> 32;
        TokenId(((bits * u64::from(vocab)) >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: u32 = 1000;

    fn prefix(id: u64, n_tokens: usize) -> Prefix {
        Prefix { id, n_tokens }
    }

    #[test]
    fn prompts_are_equal_as_far_as_their_prefixes_and_no_further() {
        let plain = TraceRequest::new(0, 50, 1);
        let a = plain.with_prefix(prefix(7, 20)).expect("room");
        let (x, y) = (a.prompt(1, VOCAB), a.prompt(2, VOCAB));
        assert_eq!(x[..20], y[..20]);
        assert_ne!(x[20..], y[20..]);
        assert_eq!(x.len(), 50);
        assert_ne!(plain.prompt(1, VOCAB)[..20], x[..20]);
        assert!(x.iter().all(|token| token.0 < VOCAB));
    }

    #[test]
    fn the_next_question_of_a_conversation_repeats_the_answer() {
        let first = TraceRequest::new(0, 30, 10).with_prefix(prefix(7, 30)).expect("room");
        let (text, place) = first.answer(1);
        let answer: Vec<TokenId> = (place..place + 10).map(|at| text.token(at, VOCAB)).collect();
        let second = TraceRequest::new(0, 60, 10).with_prefix(prefix(7, 55)).expect("room");
        assert_eq!(second.prompt(2, VOCAB)[30..40], answer);
        assert_eq!(second.answer(2).1, 5);
        let at = |position| second.token(2, position, VOCAB);
        let prompt: Vec<TokenId> = (0..60).map(at).collect();
        assert_eq!(prompt, second.prompt(2, VOCAB));
        assert_eq!(at(60), second.answer(2).0.token(5, VOCAB));
    }

    #[test]
    fn prefixes_never_outgrow_the_prompt() {
        let request = TraceRequest::new(0, 10, 1).with_prefix(prefix(1, 6)).expect("room");
        assert_eq!(request.with_prefix(prefix(2, 5)), None);
        let mut full = request;
        for id in 2..=MOST_PREFIXES as u64 {
            full = full.with_prefix(prefix(id, 1)).expect("room");
        }
        assert_eq!(full.with_prefix(prefix(9, 1)), None);
        assert_eq!(full.prefixes.as_slice().len(), MOST_PREFIXES);
    }
}
