//! Drafts from unused candidates: the likeliest tokens after each token, as last seen.
//!
//! ```text
//! verified row         the   ─▶ cat 0.4, dog 0.2, ...     known anyway, and thrown away otherwise
//! matrix row of `the`        ◀─ [cat dog old ...]         K followers, the likeliest first
//!
//! drafts after `the`   cat ─┬─ sat      by rank, the best first: a path of ranks r1, r2, ... is right
//!                      dog  └─ is       with probability q[r1] q[r2] ...; take the best, offer its
//!                                       next sibling and its first child, take the best, ...
//! ```
//!
//! So the first `n` drafts are the best `n`, whatever `n` will be, and parents come before
//! children. `q` is counted: how often what followed stood at each rank of the row of what it
//! followed.
//!
//! Rows of rejected drafts are learned from as well; where a token stands in several rows of a step
//! the accepted one counts, because what is before it is what was said.
//!
//! **Costs.** Of compute a row per draft, as ever, and for every row of every request a pass over
//! the vocabulary that finds the [`K`] likeliest (`pelton_sampling::Likely`), whether drafts are
//! made or not. Of memory 48 bytes and the map's slack for each of at most [`MOST_ROWS`] rows.
//!
//! **Shared.** All requests of a namespace share the matrix, as they share cached prefixes: an
//! answer shows in how fast the next request gets the same text. Namespaces may be as many as
//! requests, so rows are forgotten by age and not by namespace: a row lives in the younger of two
//! maps, and when that is half full it becomes the older, whose rows go.
//!
//! Paper: Luo et al., "Turning Trash into Treasure: Accelerating Inference of LLMs with Token
//! Recycling", 2024. Where the paper has one tree for all steps, laid out beforehand, this grows it
//! from `q`.

use super::{Abilities, BLANK, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Namespace, Request, RequestId, TokenId};
use pelton_sampling::Likely;
use pelton_sched::DraftTree;
use std::collections::{BinaryHeap, HashMap};

/// Followers of a token.
const K: usize = 8;
/// Rows of the matrix, over all namespaces.
const MOST_ROWS: usize = 1 << 18;
/// `q` before the first outcome.
const PRIOR: [f32; K] = [0.4, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01];
/// Weight of that, in outcomes.
const PRIOR_WEIGHT: f32 = 20.0;
/// Each outcome weighs this much of the one after it.
const FADING: f32 = 0.995;

type Key = (Namespace, TokenId);
/// The likeliest first, filled up with [`Likely::NONE`].
type Followers = [TokenId; K];

/// Token recycling.
#[derive(Debug)]
pub struct Recycle {
    younger: HashMap<Key, Followers>,
    older: HashMap<Key, Followers>,
    most_rows: usize,
    ranks: Ranks,
    /// Of each request.
    namespaces: HashMap<RequestId, Namespace>,
    frontier: BinaryHeap<Candidate>,
}

/// How often a token is followed by each of its followers.
#[derive(Debug, Default)]
struct Ranks {
    n_seen: f32,
    hits: [f32; K],
}

/// A draft that may be taken next.
#[derive(Debug)]
struct Candidate {
    /// Probability that it and all that it follows are right.
    chance: f32,
    /// Probability of the token that it follows.
    parent_chance: f32,
    parent: Option<usize>,
    followers: Followers,
    rank: usize,
}

impl Default for Recycle {
    fn default() -> Self {
        Self {
            younger: HashMap::new(),
            older: HashMap::new(),
            most_rows: MOST_ROWS,
            ranks: Ranks::default(),
            namespaces: HashMap::new(),
            frontier: BinaryHeap::new(),
        }
    }
}

impl Ranks {
    /// Counts that the next token stood at this rank, or at none.
    fn saw(&mut self, rank: Option<usize>) {
        self.n_seen = self.n_seen * FADING + 1.0;
        for (i, hits) in self.hits.iter_mut().enumerate() {
            *hits = *hits * FADING + f32::from(u8::from(rank == Some(i)));
        }
    }

    fn chance(&self, rank: usize) -> f32 {
        (self.hits[rank] + PRIOR_WEIGHT * PRIOR[rank]) / (self.n_seen + PRIOR_WEIGHT)
    }
}

impl Recycle {
    fn followers(&self, key: Key) -> Option<&Followers> {
        self.younger.get(&key).or_else(|| self.older.get(&key))
    }

    fn learn(&mut self, key: Key, likely: &[TokenId]) {
        let mut followers = [Likely::NONE; K];
        let told = likely.iter().take_while(|&&token| token != Likely::NONE);
        for (slot, &token) in followers.iter_mut().zip(told) {
            *slot = token;
        }
        if followers[0] == Likely::NONE {
            return;
        }
        if self.younger.len() >= self.most_rows / 2 && !self.younger.contains_key(&key) {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(key, followers);
    }

    /// Offers the follower of this rank, if there is one.
    fn offer(&mut self, parent: (Option<usize>, f32), followers: Followers, rank: usize) {
        if rank < K && followers[rank] != Likely::NONE {
            let (parent, parent_chance) = parent;
            let chance = parent_chance * self.ranks.chance(rank);
            self.frontier.push(Candidate { chance, parent_chance, parent, followers, rank });
        }
    }

    fn grow(&mut self, namespace: Namespace, last: TokenId, n_drafts: usize, tree: &mut DraftTree) {
        self.frontier.clear();
        if let Some(&followers) = self.followers((namespace, last)) {
            self.offer((None, 1.0), followers, 0);
        }
        while let Some(best) = self.frontier.pop().filter(|_| tree.len() < n_drafts) {
            let Candidate { chance, parent_chance, parent, followers, rank, .. } = best;
            let token = followers[rank];
            let idx = tree.push(parent, token);
            self.offer((parent, parent_chance), followers, rank + 1);
            if let Some(&followers) = self.followers((namespace, token)) {
                self.offer((Some(idx), chance), followers, 0);
            }
        }
    }
}

impl Proposer for Recycle {
    fn name(&self) -> &'static str {
        "recycle"
    }

    fn abilities(&self) -> Abilities {
        Abilities { branches: true, n_candidates: K, ..Abilities::default() }
    }

    fn add(&mut self, request: &Request) {
        self.namespaces.insert(request.id, request.ask.service.namespace);
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        let namespace = self.namespaces.get(&row.id);
        let key = namespace.zip(row.tokens.last()).map(|(&namespace, &last)| (namespace, last));
        let is_known = key.is_some_and(|key| self.followers(key).is_some());
        (if is_known { most } else { 0 }, 0)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            let namespace = self.namespaces.get(&row.id).copied();
            if let (Some(namespace), Some(&last)) = (namespace, row.tokens.last()) {
                self.grow(namespace, last, row.n_drafts, row.drafts);
            }
        }
        Ok(())
    }

    fn observe(&mut self, seen: &Seen<'_>) {
        let Some(&namespace) = self.namespaces.get(&seen.id) else { return };
        let tokens = seen.rows.tokens;
        // Rows whose next token is known.
        let path = || [0].into_iter().chain(seen.accepted.iter().copied());
        for (row, next) in path().zip(seen.sampled) {
            if let Some(followers) = self.followers((namespace, tokens[row])) {
                let rank = followers.iter().position(|follower| follower == next);
                self.ranks.saw(rank);
            }
        }
        for row in (0..tokens.len()).chain(path()).filter(|&row| tokens[row] != BLANK) {
            self.learn((namespace, tokens[row]), seen.likely_after(row));
        }
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn finished(&mut self, id: RequestId) {
        self.namespaces.remove(&id);
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.chance.total_cmp(&other.chance)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::super::tests::{see, tree_of};
    use super::*;
    use proptest::prelude::*;

    const NONE: u32 = Likely::NONE.0;

    /// After token `1` come 2 or 3, after 2 comes 4, after 3 nothing is known.
    fn taught() -> Recycle {
        let mut recycle = Recycle::default();
        let mut tree = DraftTree::default();
        tree.extend([TokenId(2)]);
        see(&mut recycle, Namespace(0), (&[1], &tree), &[9], &[&[2, 3, NONE], &[4, NONE, NONE]]);
        recycle
    }

    fn drafts(recycle: &mut Recycle, namespace: u64, last: u32, n: usize) -> DraftTree {
        tree_of(recycle, Namespace(namespace), &[0, last], n)
    }

    #[test]
    fn what_was_likely_is_drafted_the_best_first() {
        let mut recycle = taught();
        let tree = drafts(&mut recycle, 0, 1, 8);
        assert_eq!(tree.tokens(), [2, 4, 3].map(TokenId));
        assert_eq!([0, 1, 2].map(|i| tree.parent(i)), [None, Some(0), None]);
        assert_eq!(drafts(&mut recycle, 0, 1, 2).tokens(), [2, 4].map(TokenId));
        assert!(drafts(&mut recycle, 0, 3, 8).is_empty(), "never seen");
        assert!(drafts(&mut recycle, 1, 1, 8).is_empty(), "another namespace");
    }

    #[test]
    fn ranks_that_hit_come_first() {
        let mut recycle = taught();
        for _ in 0..200 {
            let likely: &[&[u32]] = &[&[2, 3, NONE]];
            see(&mut recycle, Namespace(0), (&[1], &DraftTree::default()), &[3], likely);
        }
        // The second follower is now right almost always, and what follows the first almost never.
        assert_eq!(drafts(&mut recycle, 0, 1, 8).tokens(), [2, 3, 4].map(TokenId));
    }

    #[test]
    fn a_draft_is_as_likely_as_all_of_its_path() {
        let mut recycle = taught();
        for rank in [0, 1].repeat(100) {
            recycle.ranks.saw(Some(rank));
        }
        // One half each, and so a quarter for the follower of the first.
        assert_eq!(drafts(&mut recycle, 0, 1, 8).tokens(), [2, 3, 4].map(TokenId));
    }

    #[test]
    fn an_accepted_row_is_believed_before_a_rejected_one() {
        let mut recycle = Recycle::default();
        let mut tree = DraftTree::default();
        let right = tree.push(None, TokenId(5));
        tree.push(Some(right), TokenId(6));
        tree.push(None, TokenId(6));
        // The 6 after 5 is accepted; the other is the last row.
        let likely: &[&[u32]] = &[&[5], &[6], &[7], &[8]];
        see(&mut recycle, Namespace(0), (&[1], &tree), &[5, 6, 9], likely);
        assert_eq!(drafts(&mut recycle, 0, 6, 1).tokens(), [TokenId(7)]);
    }

    #[test]
    fn old_rows_are_forgotten() {
        let mut recycle = Recycle { most_rows: 8, ..Recycle::default() };
        for token in 0..100 {
            let likely: &[&[u32]] = &[&[token + 1]];
            let none = DraftTree::default();
            see(&mut recycle, Namespace(0), (&[token], &none), &[token + 1], likely);
            assert!(recycle.younger.len() + recycle.older.len() <= 8);
        }
        assert_eq!(drafts(&mut recycle, 0, 99, 1).tokens(), [TokenId(100)]);
        assert!(drafts(&mut recycle, 0, 50, 1).is_empty());
    }

    #[test]
    fn old_hits_fade() {
        let mut ranks = Ranks::default();
        (0..1_000).for_each(|_| ranks.saw(Some(0)));
        assert!(ranks.chance(0) > 0.9 && ranks.chance(1) < 0.1, "{ranks:?}");
        (0..1_000).for_each(|_| ranks.saw(Some(1)));
        assert!(ranks.chance(0) < 0.1 && ranks.chance(1) > 0.9, "{ranks:?}");
        (0..1_000).for_each(|_| ranks.saw(None));
        assert!(ranks.chance(1) < 0.1, "{ranks:?}");
    }

    proptest! {
        #[test]
        fn siblings_differ_and_there_are_no_more_than_asked_for(
            rows in prop::collection::vec((0..12_u32, prop::sample::subsequence((0..12_u32).collect::<Vec<_>>(), 0..=8)), 1..40),
            n in 0..40_usize,
        ) {
            let mut recycle = Recycle::default();
            for (token, mut likely) in rows {
                likely.resize(8, NONE);
                see(&mut recycle, Namespace(0), (&[token], &DraftTree::default()), &[3], &[&likely]);
            }
            for last in 0..12 {
                let tree = drafts(&mut recycle, 0, last, n);
                super::super::tests::check(&tree, n);
                let first = drafts(&mut recycle, 0, last, n / 2);
                prop_assert_eq!(first.tokens(), &tree.tokens()[..first.len()]);
            }
        }
    }
}
