//! Rules that constrain answers.
//!
//! [`turns`] changes at every step, as a grammar does: at place `n` of the answer a token may come
//! next unless its id leaves `n` mod 4 over when divided by 4. A real grammar says more. But this
//! mask changes at each step, forbids some of the model's own tokens and of the drafts, and costs
//! only the time to write it.
//!
//! [`script`] makes the answer a given one, which a model that was trained for the task would give;
//! any model then takes its own time for it. The drafting method does not know the answer.

use std::sync::Arc;

use pelton_base::{Constraint, Rule, RuleState, TokenId, TokenSet};

/// Ids that are forbidden in turn.
const PERIOD: u32 = 4;

/// The place of the next token.
#[derive(Clone, Copy, Debug, Default)]
struct Turns(u32);

/// The rule as requests have it.
pub(super) fn turns() -> Constraint {
    Constraint(Arc::new(Turns::default()))
}

/// A given answer, and the place of the next token.
#[derive(Clone, Debug)]
struct Script {
    answer: Arc<[TokenId]>,
    place: usize,
}

/// The rule that makes an answer this one; it allows nothing after its end.
pub(super) fn script(answer: &[TokenId]) -> Constraint {
    Constraint(Arc::new(Script { answer: answer.into(), place: 0 }))
}

impl Rule for Script {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }

    fn binds_drafts(&self) -> bool {
        false
    }
}

impl RuleState for Script {
    fn allow(&mut self, allowed: &mut TokenSet) {
        if let Some(&token) = self.answer.get(self.place) {
            allowed.insert(token);
        }
    }

    fn accept(&mut self, token: TokenId) -> bool {
        let is_next = self.answer.get(self.place) == Some(&token);
        self.place += usize::from(is_next);
        is_next
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        None
    }

    fn fork(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

impl Rule for Turns {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(Self::default())
    }
}

impl RuleState for Turns {
    fn allow(&mut self, allowed: &mut TokenSet) {
        // Words of 64 ids begin with a multiple of the period.
        let forbidden = (0..64).step_by(PERIOD as usize).map(|id| 1_u64 << id).sum::<u64>();
        allowed.words_mut().fill(!(forbidden << (self.0 % PERIOD)));
    }

    fn accept(&mut self, token: TokenId) -> bool {
        let is_allowed = token.0 % PERIOD != self.0 % PERIOD;
        self.0 += u32::from(is_allowed);
        is_allowed
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        None
    }

    fn fork(&self) -> Box<dyn RuleState> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_accepted_and_changes_at_every_step() {
        let mut state = turns().begin();
        for place in 0..9 {
            let mut allowed = TokenSet::default();
            allowed.clear(200);
            state.allow(&mut allowed);
            for id in 0..192 {
                let expected = id % 4 != place % 4;
                assert_eq!(allowed.contains(TokenId(id)), expected, "{id} at {place}");
                assert_eq!(state.fork().accept(TokenId(id)), expected, "{id} at {place}");
            }
            assert!(state.accept(TokenId(place + 1)));
        }
    }

    #[test]
    fn a_script_allows_its_next_token_alone() {
        let rule = script(&[7, 9].map(TokenId));
        assert!(!rule.binds_drafts());
        let mut state = rule.begin();
        let allowed = |state: &mut dyn RuleState| -> Vec<u32> {
            let mut allowed = TokenSet::default();
            allowed.clear(20);
            state.allow(&mut allowed);
            (0..20).filter(|&id| allowed.contains(TokenId(id))).collect()
        };
        assert_eq!(allowed(&mut *state), [7]);
        assert!(!state.accept(TokenId(3)));
        let mut later = state.fork();
        assert!(later.accept(TokenId(7)));
        assert_eq!((allowed(&mut *later), allowed(&mut *state)), (vec![9], vec![7]));
        assert!(later.accept(TokenId(9)) && !later.accept(TokenId(9)));
        assert!(allowed(&mut *later).is_empty());
    }
}
