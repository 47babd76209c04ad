//! A rule as a mask: tokens that may not come next become impossible.
//!
//! # Masks ahead of their rows
//!
//! The mask of a row depends on the tokens before it alone, and these are known before the model
//! computes the row. [`Masked::look_ahead`] therefore computes the masks of a whole share, drafts
//! included, while the forward pass runs on other threads:
//!
//! ```text
//! rows of the share     [ last known token | draft a | draft b | draft c ]
//! masks of              what follows it      a         a b       a c        each a fork of its parent's state
//! ```
//!
//! Tokens that are accepted then walk along these states; a token that was not drafted leaves them.
//! A row without a mask of its own computes it when it is sampled from, with the same outcome.

use pelton_base::{RuleState, TokenId, TokenSet};

/// The rule of one answer, and masks of rows to come.
#[derive(Debug)]
pub struct Masked {
    state: Box<dyn RuleState>,
    /// The mask of `state`, where it is known.
    mask: Option<TokenSet>,
    /// States and masks after drafts.
    ahead: Vec<Ahead>,
    /// Place of `state` among `ahead`; `None` at the last known token.
    at: Option<usize>,
    /// Sets whose memory is used again.
    spare: Vec<TokenSet>,
}

/// The rule after a draft, and its mask; `None` where the draft is forbidden or was accepted.
#[derive(Debug)]
struct Ahead {
    parent: Option<usize>,
    token: TokenId,
    after: Option<(Box<dyn RuleState>, TokenSet)>,
}

impl Masked {
    /// Masks from this state of a rule on.
    pub fn new(state: Box<dyn RuleState>) -> Self {
        Self { state, mask: None, ahead: Vec::new(), at: None, spare: Vec::new() }
    }

    /// Computes the masks of the next row and of the rows after drafts, over `n_tokens` tokens.
    ///
    /// `drafts` are tokens and the indices of the drafts before them, `None` for the last known
    /// token. The masks that come before the first `n_certain` drafts, which are a chain of forced
    /// tokens, are left out.
    pub fn look_ahead(
        &mut self,
        n_tokens: usize,
        n_certain: usize,
        drafts: impl Iterator<Item = (Option<usize>, TokenId)>,
    ) {
        self.forget_ahead();
        if n_certain == 0 {
            let mut mask = self.spare.pop().unwrap_or_default();
            mask.clear(n_tokens);
            self.state.allow(&mut mask);
            self.mask = Some(mask);
        }
        for (idx, (parent, token)) in drafts.enumerate() {
            let before = match parent {
                None => Some(&self.state),
                Some(parent) => self.ahead[parent].after.as_ref().map(|(state, _)| state),
            };
            let state = before.map(|state| state.fork()).and_then(|mut state| {
                let is_allowed = state.accept(token);
                is_allowed.then_some(state)
            });
            let after = state.map(|mut state| {
                let mut mask = self.spare.pop().unwrap_or_default();
                mask.clear(n_tokens);
                if idx + 1 >= n_certain {
                    state.allow(&mut mask);
                }
                (state, mask)
            });
            self.ahead.push(Ahead { parent, token, after });
        }
    }

    /// Makes every forbidden token impossible.
    ///
    /// # Shapes
    ///
    /// `logits`: `[vocab]`.
    pub fn apply(&mut self, logits: &mut [f32]) {
        let mask = self.mask.get_or_insert_with(|| {
            let mut mask = self.spare.pop().unwrap_or_default();
            mask.clear(logits.len());
            self.state.allow(&mut mask);
            mask
        });
        for (word, logits) in mask.words().iter().zip(logits.chunks_mut(64)) {
            match *word {
                u64::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    // Most masks of free text forbid few tokens, which are scattered.
                    let mut forbidden = !word;
                    while forbidden != 0 {
                        let bit = forbidden.trailing_zeros() as usize;
                        if let Some(logit) = logits.get_mut(bit) {
                            *logit = f32::NEG_INFINITY;
                        }
                        forbidden &= forbidden - 1;
                    }
                }
            }
        }
    }

    /// Learns which token the sequence went on with.
    pub fn accepted(&mut self, token: TokenId) {
        let is_next = |ahead: &Ahead| ahead.parent == self.at && ahead.token == token;
        let next = self.ahead.iter().position(is_next);
        self.spare.extend(self.mask.take());
        self.at = next;
        match next.and_then(|idx| self.ahead[idx].after.take()) {
            Some((state, mask)) => (self.state, self.mask) = (state, Some(mask)),
            // A forbidden token is chosen only where the rule allows none; its logit shows that.
            None => {
                self.forget_ahead();
                self.state.accept(token);
            }
        }
    }

    /// The tokens that must come next, see [`RuleState::forced`].
    pub fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        self.state.forced(tokens);
    }

    /// The reason why no token may come next, see [`RuleState::stuck`].
    pub fn stuck(&self) -> Option<String> {
        self.state.stuck()
    }

    /// A copy that continues on its own, to draft with.
    pub fn fork(&self) -> Self {
        Self::new(self.state.fork())
    }

    fn forget_ahead(&mut self) {
        self.at = None;
        self.spare.extend(self.mask.take());
        let masks = self.ahead.drain(..).filter_map(|ahead| ahead.after);
        self.spare.extend(masks.map(|(_, mask)| mask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows the tokens below 100 that are larger than the last one; 7 is always followed by 8, 9.
    #[derive(Clone, Debug)]
    struct Rising(u32);

    impl RuleState for Rising {
        fn allow(&mut self, allowed: &mut TokenSet) {
            let last = if (7..9).contains(&self.0) { self.0 + 2 } else { 100 };
            (self.0 + 1..last).for_each(|token| allowed.insert(TokenId(token)));
        }

        fn accept(&mut self, token: TokenId) -> bool {
            let is_allowed = token.0 > self.0;
            self.0 = self.0.max(token.0);
            is_allowed
        }

        fn forced(&mut self, tokens: &mut Vec<TokenId>) {
            if (7..9).contains(&self.0) {
                tokens.extend((self.0 + 1..10).map(TokenId));
            }
        }

        fn stuck(&self) -> Option<String> {
            (self.0 == 99).then(|| "nothing is above 99".to_owned())
        }

        fn fork(&self) -> Box<dyn RuleState> {
            Box::new(self.clone())
        }
    }

    fn possible(masked: &mut Masked) -> Vec<usize> {
        let mut logits = [0.0; 130];
        masked.apply(&mut logits);
        (0..130).filter(|&id| logits[id] == 0.0).collect()
    }

    #[test]
    fn masks_ahead_are_the_masks_that_would_be_computed_later() {
        // Drafts 3, then 5 or 4 after it, one that is forbidden, and one after that.
        let drafts = [(None, 3), (Some(0), 5), (Some(0), 4), (Some(1), 2), (Some(3), 6)];
        for path in [&[3, 5, 6, 7][..], &[3, 4, 9], &[8, 12], &[3, 50], &[]] {
            let (mut ahead, mut plain) =
                (Masked::new(Box::new(Rising(1))), Masked::new(Box::new(Rising(1))));
            ahead.look_ahead(130, 0, drafts.iter().map(|&(at, id)| (at, TokenId(id))));
            assert_eq!(possible(&mut ahead), possible(&mut plain));
            for &token in path {
                ahead.accepted(TokenId(token));
                plain.accepted(TokenId(token));
                assert_eq!(possible(&mut ahead), possible(&mut plain), "{path:?} at {token}");
            }
            // The next share begins where the last one ended.
            ahead.look_ahead(130, 0, std::iter::once((None, TokenId(60))));
            ahead.accepted(TokenId(60));
            plain.accepted(TokenId(60));
            assert_eq!(possible(&mut ahead), possible(&mut plain));
        }
    }

    #[test]
    fn certain_drafts_need_no_mask_and_the_row_after_them_has_one() {
        let mut masked = Masked::new(Box::new(Rising(7)));
        let mut forced = Vec::new();
        masked.forced(&mut forced);
        assert_eq!(forced, [8, 9].map(TokenId));
        masked.look_ahead(130, 2, [(None, TokenId(8)), (Some(0), TokenId(9))].into_iter());
        masked.accepted(TokenId(8));
        masked.accepted(TokenId(9));
        assert_eq!(possible(&mut masked), (10..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_reason_of_a_rule_without_a_way_on_is_passed_on() {
        let mut masked = Masked::new(Box::new(Rising(50)));
        assert_eq!(masked.stuck(), None);
        masked.accepted(TokenId(99));
        assert_eq!(masked.stuck().as_deref(), Some("nothing is above 99"));
        assert_eq!(possible(&mut masked), [0; 0]);
    }
}
