//! Drafts under a rule: what may not come next is not worth verifying.
//!
//! A draft that the request's rule forbids can never be sampled, so it is cut, and with it all that
//! follows it. Whether the rule allows a draft depends on the drafts before it, so each has a state of
//! the rule of its own.

use super::BLANK;
use pelton_base::{Constraint, Request, RequestId, RuleState};
use pelton_sched::{DraftTree, Generating};
use std::collections::HashMap;

/// The rules of the requests that have any.
#[derive(Debug, Default)]
pub(super) struct Rules {
    ruled: HashMap<RequestId, Ruled>,
    kept: DraftTree,
}

#[derive(Debug)]
struct Ruled {
    state: Box<dyn RuleState>,
    /// Output tokens that the state has accepted.
    n_accepted: usize,
}

/// A draft that is allowed.
struct Kept {
    /// The rule after it; a blank has none, so nothing that follows it is judged.
    state: Option<Box<dyn RuleState>>,
    /// Where it went.
    idx: usize,
}

impl Rules {
    pub(super) fn add(&mut self, request: &Request) {
        if let Some(state) = request.constraint.as_ref().and_then(Constraint::begin_for_drafts) {
            let ruled = Ruled { state, n_accepted: 0 };
            self.ruled.insert(request.id, ruled);
        }
    }

    pub(super) fn finished(&mut self, id: RequestId) {
        self.ruled.remove(&id);
    }

    /// Cuts the drafts that the row's rule forbids.
    pub(super) fn prune(&mut self, row: &mut Generating<'_>) {
        let Some(Ruled { state, n_accepted }) = self.ruled.get_mut(&row.id) else { return };
        for &token in &row.tokens[row.n_prompt + *n_accepted..] {
            state.accept(token);
            *n_accepted += 1;
        }
        let mut after: Vec<Option<Kept>> = Vec::new();
        self.kept.clear();
        for (idx, &token) in row.drafts.tokens().iter().enumerate() {
            let (before, parent) = match row.drafts.parent(idx).map(|parent| &after[parent]) {
                None => (Some(&*state), None),
                Some(Some(Kept { state, idx })) => (state.as_ref(), Some(*idx)),
                Some(None) => {
                    after.push(None);
                    continue;
                }
            };
            let mut state = before.filter(|_| token != BLANK).map(|state| state.fork());
            let is_allowed = state.as_mut().is_none_or(|state| state.accept(token));
            after.push(is_allowed.then(|| Kept { state, idx: self.kept.push(parent, token) }));
        }
        std::mem::swap(row.drafts, &mut self.kept);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use pelton_base::{Rule, TokenId, TokenSet};
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

        fn fork(&self) -> Box<dyn RuleState> {
            self.begin()
        }
    }

    #[test]
    fn what_a_rule_forbids_is_cut_with_all_that_follows_it() {
        let mut rules = Rules::default();
        let mut asked = request(&[50]);
        asked.constraint = Some(Constraint(Arc::new(Rising(0))));
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
        // What is allowed stays as it is.
        let before = drafts.clone();
        prune(&mut drafts);
        assert_eq!(drafts, before);
    }
}
