//! Drafts under a rule: a token that may not come next is not worth verifying.
//!
//! A draft that the request's rule forbids can never be sampled, so it is cut, and with it all that
//! follows it. Whether the rule allows a draft depends on the drafts before it, so each has a state
//! of the rule of its own. Whether the answer may end yet (`min_tokens`) depends on how many drafts
//! are before it: no stop token is verified where the answer would be too short.
//!
//! A rule may also know what comes next whatever the model says, such as the name of the next field
//! of a JSON object. These tokens are drafts that are certain (*jump-forward decoding*): one step
//! computes all of them. They need no proposer and no price, because a row more in a step always
//! costs less than a step more.

use super::{BLANK, MOST_DRAFTS};
use crate::guard;
use pelton_base::{Ask, Request, RequestId, RuleState, TokenId};
use pelton_sched::{DraftTree, Generating};
use std::collections::HashMap;

/// The part of a request's work that is guarded here, for errors.
const RULE: &str = "the rule of a request, while its drafts were cut";

/// The rules of the requests that have any.
#[derive(Debug, Default)]
pub(super) struct Rules {
    ruled: HashMap<RequestId, Ruled>,
    kept: DraftTree,
    forced: Vec<TokenId>,
}

#[derive(Debug)]
struct Ruled {
    /// Its rule so far, if it has one.
    state: Option<Box<dyn RuleState>>,
    /// Output tokens that the state has accepted.
    n_accepted: usize,
    /// Tokens that may not come before `min_tokens` output tokens.
    ends: Vec<TokenId>,
    min_tokens: usize,
}

/// A draft that is allowed.
struct Kept {
    /// The rule after it, if there is one; a blank has none, so nothing that follows it is judged
    /// by it.
    state: Option<Box<dyn RuleState>>,
    /// Output tokens with it.
    n_generated: usize,
    /// Its index in the tree of allowed drafts.
    idx: usize,
}

impl Ruled {
    /// Takes in the tokens that the answer has by now.
    fn follow(&mut self, row: &Generating<'_>) {
        for &token in &row.tokens[row.n_prompt + self.n_accepted..] {
            if let Some(state) = &mut self.state {
                state.accept(token);
            }
            self.n_accepted += 1;
        }
    }
}

impl Rules {
    /// Meets a request; `false` when its rule panics, so that its drafts are not cut by the rule.
    pub(super) fn add(&mut self, request: &Request) -> bool {
        let Ask { constraint, stop_tokens, sampling, .. } = &request.ask;
        let min_tokens = if stop_tokens.is_empty() { 0 } else { sampling.min_tokens };
        // A panic drops the state that was being made and touches nothing else.
        let begun = constraint.as_ref().map(|rule| guard(RULE, || rule.begin_for_drafts()));
        let is_sound = !matches!(begun, Some(Err(_)));
        let state = begun.and_then(Result::ok).flatten();
        if state.is_some() || min_tokens > 0 {
            let ends = stop_tokens.clone();
            self.ruled.insert(request.id, Ruled { state, n_accepted: 0, ends, min_tokens });
        }
        is_sound
    }

    /// Whether no request has a rule.
    pub(super) fn is_empty(&self) -> bool {
        self.ruled.is_empty()
    }

    pub(super) fn finished(&mut self, id: RequestId) {
        self.ruled.remove(&id);
    }

    /// Cuts the drafts that the row's rule forbids, and those that would end its answer too soon.
    ///
    /// `false` when the rule panics. The row then has no drafts, and the rule's state is dropped, so
    /// that later drafts of the request would not be cut.
    pub(super) fn prune(&mut self, row: &mut Generating<'_>) -> bool {
        let is_sound = guard(RULE, || self.cut(row)).is_ok();
        if !is_sound {
            self.ruled.remove(&row.id);
            row.drafts.clear();
        }
        is_sound
    }

    /// Drafts the tokens that the row's rule forces, in place of any drafts it has; `false` when the
    /// rule panics, as in [`prune`](Self::prune).
    pub(super) fn force(&mut self, row: &mut Generating<'_>) -> bool {
        if !self.ruled.contains_key(&row.id) {
            return true;
        }
        let is_sound = guard(RULE, || self.jump(row)).is_ok();
        if !is_sound {
            self.ruled.remove(&row.id);
            row.drafts.clear();
        }
        is_sound
    }

    fn jump(&mut self, row: &mut Generating<'_>) {
        let Self { ruled, forced, .. } = self;
        let Some(ruled) = ruled.get_mut(&row.id) else { return };
        ruled.follow(row);
        let n_generated = row.tokens.len() - row.n_prompt;
        let Some(state) = ruled.state.as_mut().filter(|_| n_generated >= ruled.min_tokens) else {
            return;
        };
        forced.clear();
        state.forced(forced);
        row.drafts.clear();
        let mut parent = None;
        for &token in forced.iter().take(row.most_drafts.min(MOST_DRAFTS)) {
            parent = Some(row.drafts.push(parent, token));
        }
    }

    fn cut(&mut self, row: &mut Generating<'_>) {
        let Some(ruled) = self.ruled.get_mut(&row.id) else { return };
        let n_generated = row.tokens.len() - row.n_prompt;
        if ruled.state.is_none() && n_generated >= ruled.min_tokens {
            return;
        }
        ruled.follow(row);
        let Ruled { state, ends, min_tokens, .. } = ruled;
        let mut after: Vec<Option<Kept>> = Vec::new();
        self.kept.clear();
        for (idx, &token) in row.drafts.tokens().iter().enumerate() {
            let (before, n_before, parent) = match row.drafts.parent(idx).map(|at| &after[at]) {
                None => (state.as_ref(), n_generated, None),
                Some(Some(Kept { state, n_generated, idx })) => {
                    (state.as_ref(), *n_generated, Some(*idx))
                }
                Some(None) => {
                    after.push(None);
                    continue;
                }
            };
            let mut state = before.filter(|_| token != BLANK).map(|state| state.fork());
            let is_allowed = state.as_mut().is_none_or(|state| state.accept(token))
                && (n_before >= *min_tokens || !ends.contains(&token));
            after.push(is_allowed.then(|| {
                let idx = self.kept.push(parent, token);
                Kept { state, n_generated: n_before + 1, idx }
            }));
        }
        std::mem::swap(row.drafts, &mut self.kept);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use pelton_base::{Constraint, Rule, TokenId, TokenSet};
    use std::sync::Arc;

    /// Each token is larger than the one before.
    #[derive(Clone, Debug)]
    struct Rising(u32);

    impl Rule for Rising {
        fn begin(&self) -> Box<dyn RuleState> {
            Box::new(self.clone())
        }
    }

    impl RuleState for Rising {
        fn allow(&mut self, allowed: &mut TokenSet) {
            (self.0 + 1..100).for_each(|token| allowed.insert(TokenId(token)));
        }

        fn accept(&mut self, token: TokenId) -> bool {
            let rises = token.0 > self.0;
            self.0 = self.0.max(token.0);
            rises
        }

        fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

        fn stuck(&self) -> Option<String> {
            None
        }

        fn fork(&self) -> Box<dyn RuleState> {
            self.begin()
        }
    }

    #[test]
    fn what_a_rule_forbids_is_cut_with_all_that_follows_it() {
        let mut rules = Rules::default();
        let mut asked = request(&[50]);
        asked.ask.constraint = Some(Constraint(Arc::new(Rising(0))));
        rules.add(&asked);
        let mut drafts = DraftTree::default();
        for (parent, token) in
            [(None, 7), (None, 3), (Some(1), 9), (Some(0), 8), (Some(3), 8), (Some(3), 9)]
        {
            drafts.push(parent, TokenId(token));
        }
        drafts.push(Some(5), BLANK);
        drafts.push(Some(6), BLANK);
        let tokens = [50, 2, 5].map(TokenId);
        let mut prune = |drafts: &mut DraftTree| {
            let (id, most_drafts) = (asked.id, 99);
            rules.prune(&mut Generating { id, tokens: &tokens, n_prompt: 1, most_drafts, drafts });
        };
        prune(&mut drafts);
        assert_eq!(drafts.tokens(), [TokenId(7), TokenId(8), TokenId(9), BLANK, BLANK]);
        assert!(drafts.is_chain());
        // Allowed drafts stay as they are.
        let before = drafts.clone();
        prune(&mut drafts);
        assert_eq!(drafts, before);
    }

    #[test]
    fn what_would_end_an_answer_too_soon_is_cut_along_each_path() {
        const END: u32 = 9;
        let mut rules = Rules::default();
        let mut asked = request(&[50]);
        (asked.ask.stop_tokens, asked.ask.sampling.min_tokens) = (vec![TokenId(END)], 4);
        rules.add(&asked);
        let mut tree = DraftTree::default();
        // Two tokens are there: a stop token may be the fifth, two drafts further on.
        for (parent, token) in [(None, END), (Some(0), 1), (None, 2), (Some(2), 3), (Some(3), END)]
        {
            tree.push(parent, TokenId(token));
        }
        tree.push(Some(2), TokenId(END));
        tree.push(Some(3), BLANK);
        let prune = |rules: &mut Rules, n_generated: usize| {
            let (tokens, mut drafts) = (vec![TokenId(1); 1 + n_generated], tree.clone());
            let (id, most_drafts) = (asked.id, 99);
            let drafting = &mut drafts;
            let tokens = &tokens[..];
            rules.prune(&mut Generating { id, tokens, n_prompt: 1, most_drafts, drafts: drafting });
            drafts.tokens().iter().map(|token| token.0).collect::<Vec<_>>()
        };
        assert_eq!(prune(&mut rules, 2), [2, 3, END, BLANK.0]);
        assert_eq!(prune(&mut rules, 3), [2, 3, END, END, BLANK.0]);
        assert_eq!(prune(&mut rules, 4).len(), tree.len());
        rules.finished(asked.id);
        assert_eq!(prune(&mut rules, 0).len(), tree.len());
    }
}
