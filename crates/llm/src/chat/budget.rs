//! A bound on the tokens of a thought.
//!
//! ```text
//! before ── opening text ──▶ inside ── closing text ──▶ after
//!    └── any other text ──────────────────────────────▶
//!                              └ budget used up: only the tokens of the closing text are allowed
//! ```
//!
//! The thought ends as if the model had ended it, so the answer that follows is in a form that the
//! model knows.

use std::sync::Arc;

use pelton_base::{Constraint, Rule, RuleState, TokenId, TokenSet};
use pelton_parse::ReasoningFormat;
use pelton_text::Tokenizer;

/// The texts around a thought, and how long it may be.
#[derive(Debug)]
pub(crate) struct Thought {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) format: &'static ReasoningFormat,
    /// Whether the prompt ends within the thought.
    pub(crate) starts_inside: bool,
    /// Tokens with which a thought ends that has been long enough.
    pub(crate) close: Vec<TokenId>,
    /// Most tokens.
    pub(crate) budget: usize,
}

impl Thought {
    /// The rule that bounds a thought, beside the rule of the whole answer.
    pub(crate) fn bound(self, inner: Option<Constraint>) -> Constraint {
        Constraint(Arc::new(Bounded { thought: Arc::new(self), inner }))
    }

    fn bytes(&self, token: TokenId) -> &[u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Bounded {
    thought: Arc<Thought>,
    inner: Option<Constraint>,
}

impl Rule for Bounded {
    fn begin(&self) -> Box<dyn RuleState> {
        let place =
            if self.thought.starts_inside { Place::Inside { n_tokens: 0 } } else { Place::Before };
        let inner = self.inner.as_ref().map(|inner| inner.begin());
        Box::new(State { thought: Arc::clone(&self.thought), inner, place, tail: Vec::new() })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Before,
    Inside {
        n_tokens: usize,
    },
    /// So many tokens of the closing text have come.
    Closing(usize),
    After,
}

#[derive(Debug)]
struct State {
    thought: Arc<Thought>,
    inner: Option<Box<dyn RuleState>>,
    place: Place,
    /// The end of the text so far, as much as can begin the text that is waited for.
    tail: Vec<u8>,
}

impl State {
    /// Whether a thought of so many tokens must end now: not within a character.
    fn is_due(&self, n_tokens: usize) -> bool {
        n_tokens >= self.thought.budget && !ends_within_character(&self.tail)
    }

    /// The tokens of the closing text that must come next.
    fn rest(&self) -> &[TokenId] {
        match self.place {
            Place::Inside { n_tokens } if self.is_due(n_tokens) => &self.thought.close,
            Place::Closing(n) => &self.thought.close[n..],
            _ => &[],
        }
    }

    fn follow(&mut self, token: TokenId) {
        let is_due = matches!(self.place, Place::Inside { n_tokens } if self.is_due(n_tokens));
        let Self { thought, place, tail, .. } = self;
        match *place {
            Place::Before => {
                tail.extend_from_slice(thought.bytes(token));
                let start = tail.iter().position(|byte| !byte.is_ascii_whitespace());
                let text = &tail[start.unwrap_or(tail.len())..];
                let mut opens = thought.format.opens().iter().map(|open| open.as_bytes());
                if opens.clone().any(|open| text.starts_with(open)) {
                    tail.clear();
                    *place = Place::Inside { n_tokens: 0 };
                } else if !opens.any(|open| open.starts_with(text)) {
                    *place = Place::After;
                }
            }
            Place::Inside { .. } if is_due => {
                *place = if thought.close.len() > 1 { Place::Closing(1) } else { Place::After };
            }
            Place::Inside { n_tokens } => {
                tail.extend_from_slice(thought.bytes(token));
                let mut closes = thought.format.closes().iter().map(|close| close.as_bytes());
                let holds = |close: &[u8]| tail.windows(close.len()).any(|window| window == close);
                if closes.clone().any(holds) {
                    *place = Place::After;
                    return;
                }
                let longest = closes.by_ref().map(<[u8]>::len).max().unwrap_or(1);
                let n_extra = tail.len().saturating_sub(longest - 1);
                tail.drain(..n_extra);
                *place = Place::Inside { n_tokens: n_tokens + 1 };
            }
            Place::Closing(n) if n + 1 < thought.close.len() => *place = Place::Closing(n + 1),
            Place::Closing(_) => *place = Place::After,
            Place::After => {}
        }
    }
}

/// Whether bytes end before the last byte of a UTF-8 character.
fn ends_within_character(bytes: &[u8]) -> bool {
    let n_after = bytes.iter().rev().take_while(|byte| **byte & 0xc0 == 0x80).count();
    let Some(first) = bytes.len().checked_sub(n_after + 1).map(|at| bytes[at]) else {
        return false;
    };
    let n_more = match first {
        0xc0..0xe0 => 1,
        0xe0..0xf0 => 2,
        0xf0..=0xff => 3,
        _ => 0,
    };
    n_after < n_more
}

impl RuleState for State {
    fn allow(&mut self, allowed: &mut TokenSet) {
        match (self.rest().first().copied(), &mut self.inner) {
            (Some(token), _) => allowed.insert(token),
            (None, Some(inner)) => inner.allow(allowed),
            (None, None) => allowed.words_mut().fill(u64::MAX),
        }
    }

    fn accept(&mut self, token: TokenId) -> bool {
        if self.rest().first().is_some_and(|&next| next != token)
            || self.inner.as_mut().is_some_and(|inner| !inner.accept(token))
        {
            return false;
        }
        self.follow(token);
        true
    }

    fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        tokens.extend_from_slice(self.rest());
        if self.rest().is_empty()
            && let Some(inner) = &mut self.inner
        {
            inner.forced(tokens);
        }
    }

    fn stuck(&self) -> Option<String> {
        self.inner.as_ref().and_then(|inner| inner.stuck())
    }

    fn fork(&self) -> Box<dyn RuleState> {
        Box::new(Self {
            thought: Arc::clone(&self.thought),
            inner: self.inner.as_ref().map(|inner| inner.fork()),
            place: self.place,
            tail: self.tail.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::{Namespace, Shape};
    use pelton_grammar::Layout;
    use pelton_parse::reasoning_format;

    use super::*;
    use crate::form::Forms;

    fn tokenizer() -> Arc<Tokenizer> {
        let json = pelton_testkit::tokenizer_json().to_string();
        Arc::new(Tokenizer::from_bytes(json.as_bytes()).expect("a tokenizer"))
    }

    fn thought(starts_inside: bool, budget: usize) -> Thought {
        let tokenizer = tokenizer();
        let format = reasoning_format("deepseek_r1").expect("it is in the registry");
        let close = tokenizer.encode(format.close(), false).expect("tokens");
        Thought { tokenizer, format, starts_inside, close, budget }
    }

    /// A text that the rule allows: of the tokens that may come, `choose` picks one by its place.
    fn walk(rule: &Constraint, ends: &[TokenId], mut choose: impl FnMut(usize) -> usize) -> String {
        let (tokenizer, mut state) = (tokenizer(), rule.begin());
        let (mut allowed, mut bytes, mut forced) = (TokenSet::default(), Vec::new(), Vec::new());
        for _ in 0..400 {
            allowed.clear(tokenizer.vocab_size());
            state.allow(&mut allowed);
            let all: Vec<TokenId> = (0..tokenizer.vocab_size() as u32)
                .map(TokenId)
                .filter(|&token| allowed.contains(token))
                .collect();
            assert!(!all.is_empty(), "stuck: {:?}", state.stuck());
            let token = all[choose(all.len())];
            forced.clear();
            state.forced(&mut forced);
            assert!(forced.is_empty() || all == [forced[0]], "a forced token is the only one");
            assert!(state.accept(token), "an allowed token is accepted");
            if ends.contains(&token) {
                break;
            }
            bytes.extend_from_slice(tokenizer.token_bytes(token).unwrap_or_default());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn a_thought_that_was_long_enough_ends_once_and_the_form_follows() {
        let tokenizer = tokenizer();
        let ends = [TokenId(0)];
        for starts_inside in [true, false] {
            let format = reasoning_format("deepseek_r1").expect("it is in the registry");
            let shape = format.before(Shape::Regex("[0-9]{2}".to_owned()), starts_inside);
            let forms = Forms::new(&tokenizer);
            let inner =
                forms.compile(&shape, Layout::Free, &ends, Namespace::default()).expect("a rule");
            let rule = thought(starts_inside, 5).bound(Some(inner));
            for seed in 0..40_usize {
                let mut at = seed * 7919;
                let text = walk(&rule, &ends, |n| {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
                    (at >> 33) % n
                });
                let n_closes = text.matches("</think>").count();
                let is_open = starts_inside || text.contains("<think>");
                assert_eq!(n_closes, usize::from(is_open), "{text:?}");
                let answer = text.rsplit("</think>").next().unwrap_or_default().trim();
                assert!(answer.len() == 2 && answer.parse::<u8>().is_ok(), "{text:?}");
            }
        }
    }

    #[test]
    fn a_thought_does_not_end_within_a_character() {
        for (bytes, is_within) in [
            (&b"a"[..], false),
            (b"", false),
            ("\u{e9}".as_bytes(), false),
            (b"a\xc3", true),
            (b"\xe2\x82", true),
            ("\u{20ac}".as_bytes(), false),
            (b"\xf0\x9f\x98", true),
            (b"\x80\x80", false),
        ] {
            assert_eq!(ends_within_character(bytes), is_within, "{bytes:?}");
        }
    }

    #[test]
    fn without_a_form_the_answer_is_free_before_and_after() {
        let rule = thought(true, 3).bound(None);
        // Always the token of `a`, where it is allowed.
        let a = pelton_testkit::byte_token(b'a') as usize;
        let text = walk(&rule, &[], |n| if n > 1 { a } else { 0 });
        assert!(text.starts_with("aaa\n</think>\n\naaaa"), "{text:?}");
    }
}
