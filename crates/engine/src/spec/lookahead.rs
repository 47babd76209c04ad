//! Lookahead decoding: the model guesses several places ahead, refines its guesses step by step,
//! and what comes out of that is tried.
//!
//! ```text
//! window    3 columns (W), 3 levels (N - 1)        in the tree of drafts, after the last token t
//!           a1  a2  a3    level 0: the trunk       t ─ a1 ─ a2 ─ a3 ─ b3 ─ c3
//!           b1  b2  b3    level 1                       │    └─ b2 ─ c2
//!           c1  c2  c3    level 2                       └─ b1 ─ c1
//!
//! step      the likeliest token after c1 is d1: the n-gram `a1 b1 c1 d1` goes to the pool, column 1
//!           becomes b1 c1 d1, which begins a place later, where the next step begins
//! pool      after token a1 came  b1 c1 d1          kept: the latest G of each first token
//! drafts    n-grams that begin with t ; the window
//! ```
//!
//! The window is Jacobi iteration: each column is a trajectory of guesses at the same text, each
//! guess made with the older guesses before it in view. A column sees the trunk up to it and
//! its own levels, which is a tree, so window and n-grams are branches of one tree and verified
//! in one pass; where they agree they share rows. Where more than one token was accepted, the
//! columns whose places are past are dropped. New columns begin as runs of the text itself: any
//! tokens do, and these are text. A window row that is what is sampled is accepted like any draft;
//! none is there for that.
//!
//! **Costs** `W (N - 1)` rows for the window and up to as many for n-grams at every step, more than
//! [`SpecConfig::max_drafts`](super::SpecConfig) of other methods, so that is multiplied by
//! [`ROWS_PER_DRAFT`]. It pays where rows are nearly free: one request on a device with compute to
//! spare. And a pass over the vocabulary for each row that is verified, to tell the likeliest
//! token.
//!
//! **Priced as a whole.** A window row is hardly ever right, so draft by draft it would never be
//! worth its price, and without it there is nothing to verify later. So all rows are taken or none,
//! by the mean number of accepted drafts against the price of all rows: plain decoding against
//! lookahead, in tokens per second ([`Proposer::invests_for`]).
//!
//! Paper: Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
//! ICML 2024. Where the paper's window moves by one place a step and begins with single random
//! tokens that grow levels, this moves with what was accepted, and begins with whole columns.
//! N-grams of the prompt are left to [`Suffix`](super::Suffix), which finds longer ones.

use super::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Request, RequestId, TokenId};
use pelton_sampling::Likely;
use pelton_sched::DraftTree;
use std::collections::{HashMap, VecDeque};

/// Guesses of a column, and tokens of an n-gram after its first: N - 1.
const LEVELS: usize = 3;
/// Most columns: W.
const MOST_COLUMNS: usize = 15;
/// Most n-grams that begin with the same token: G.
const MOST_GRAMS: usize = 8;
/// Rows for each draft that other methods may make.
const ROWS_PER_DRAFT: usize = 4;
/// Steps to fill the pool with n-grams that went through all levels, and some to see what they
/// bring.
const INVESTED_STEPS: u32 = 16;

type Run = [TokenId; LEVELS];

/// Lookahead decoding.
#[derive(Debug, Default)]
pub struct Lookahead {
    sequences: HashMap<RequestId, Guesses>,
}

/// Of one sequence.
#[derive(Debug, Default)]
struct Guesses {
    /// The n-grams that followed each token, the latest first.
    pool: HashMap<TokenId, Vec<Run>>,
    /// Tokens before the first column; each later column begins one place further on.
    columns: VecDeque<Run>,
    n_before: usize,
    /// How many columns there shall be.
    n_columns: usize,
    /// Of each column that is being computed, the row of its last level.
    rows: Vec<usize>,
}

impl Guesses {
    /// Drops the columns whose places are past, and makes new ones.
    fn align(&mut self, tokens: &[TokenId], n_columns: usize) {
        let n_past = tokens.len().saturating_sub(self.n_before);
        self.columns.drain(..n_past.min(self.columns.len()));
        self.columns.truncate(n_columns);
        self.n_before = tokens.len();
        while self.columns.len() < n_columns {
            // Scattered over the text, and the same for the same request.
            let start = tokens.len().wrapping_mul(0x9E37_79B1) >> 5;
            let start = start.wrapping_add(self.columns.len().wrapping_mul(0x85EB_CA77) >> 3);
            let run = std::array::from_fn(|i| tokens[(start % tokens.len() + i) % tokens.len()]);
            self.columns.push_back(run);
        }
    }

    /// N-grams first, while they leave room for the window.
    fn draw(&mut self, tokens: &[TokenId], n_drafts: usize, tree: &mut DraftTree) {
        let n_columns = self.n_columns.min(n_drafts / LEVELS);
        let n_for_grams = n_drafts - n_columns * LEVELS;
        for gram in tokens.last().and_then(|last| self.pool.get(last)).into_iter().flatten() {
            let mut parent = None;
            for &token in gram {
                match child(tree, parent, token) {
                    None if tree.len() == n_for_grams => break,
                    None => parent = Some(tree.push(parent, token)),
                    known => parent = known,
                }
            }
        }
        self.align(tokens, n_columns);
        let mut trunk = None;
        for column in &self.columns {
            let mut follow = |parent, token| {
                Some(child(tree, parent, token).unwrap_or_else(|| tree.push(parent, token)))
            };
            trunk = follow(trunk, column[0]);
            let leaf = column[1..].iter().fold(trunk, |parent, &token| follow(parent, token));
            // Row 0 is the last known token.
            self.rows.push(leaf.map_or(0, |leaf| leaf + 1));
        }
    }

    /// Moves each computed column one place on, by the model's likeliest token after it.
    fn refine(&mut self, seen: &Seen<'_>) {
        let rows = std::mem::take(&mut self.rows);
        let mut n_refined = 0;
        for (column, &row) in self.columns.iter_mut().zip(&rows) {
            // Fewer rows than were drafted may have been computed, or rows of another proposer.
            let is_it = seen.rows.tokens.get(row) == column.last();
            let Some(&next) = seen.likely_after(row).first().filter(|_| is_it) else { break };
            if next == Likely::NONE {
                break;
            }
            let [first, rest @ ..] = *column;
            *column.last_mut().expect("invariant: a column has levels") = next;
            column[..rest.len()].copy_from_slice(&rest);
            remember(self.pool.entry(first).or_default(), *column);
            n_refined += 1;
        }
        if !rows.is_empty() {
            self.columns.truncate(n_refined);
            self.n_before += 1;
        }
    }
}

/// The draft that follows `parent` and is `token`.
fn child(tree: &DraftTree, parent: Option<usize>, token: TokenId) -> Option<usize> {
    (0..tree.len()).find(|&idx| tree.tokens()[idx] == token && tree.parent(idx) == parent)
}

/// Puts an n-gram first; where there are too many the last one goes.
fn remember(grams: &mut Vec<Run>, gram: Run) {
    let place = grams.iter().position(|known| *known == gram);
    match place {
        Some(place) => grams[..=place].rotate_right(1),
        None => {
            grams.truncate(MOST_GRAMS - 1);
            grams.insert(0, gram);
        }
    }
}

impl Proposer for Lookahead {
    fn name(&self) -> &'static str {
        "lookahead"
    }

    fn abilities(&self) -> Abilities {
        let (invests_for, n_candidates) = (Some(INVESTED_STEPS), 1);
        Abilities {
            branches: true,
            rows_per_place: ROWS_PER_DRAFT,
            invests_for,
            n_candidates,
            ..Abilities::default()
        }
    }

    fn add(&mut self, request: &Request) {
        self.sequences.insert(request.id, Guesses::default());
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        let Some(guesses) = self.sequences.get_mut(&row.id) else { return (0, 0) };
        // Whatever was drafted last is seen by now, or was dropped.
        guesses.rows.clear();
        guesses.n_columns = (most / 2 / LEVELS).min(MOST_COLUMNS);
        let grams = row.tokens.last().and_then(|last| guesses.pool.get(last));
        let n_for_grams = grams.map_or(0, Vec::len) * LEVELS;
        (most.min(guesses.n_columns * LEVELS + n_for_grams), 0)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            if let Some(guesses) = self.sequences.get_mut(&row.id) {
                guesses.draw(row.tokens, row.n_drafts, row.drafts);
            }
        }
        Ok(())
    }

    fn observe(&mut self, seen: &Seen<'_>) {
        if let Some(guesses) = self.sequences.get_mut(&seen.id) {
            guesses.refine(seen);
        }
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn finished(&mut self, id: RequestId) {
        self.sequences.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, request, see_for, tree_for};
    use super::*;
    use proptest::prelude::*;

    const N: usize = 32;

    /// Steps of decoding by a model that says `next`: tokens accepted in each.
    fn decode(n_steps: usize, next: impl Fn(u32) -> u32) -> Vec<usize> {
        let mut lookahead = Lookahead::default();
        let asked = request(&[0]);
        lookahead.add(&asked);
        let mut tokens = vec![0, next(0)];
        let mut n_accepted = Vec::new();
        for _ in 0..n_steps {
            let last = tokens[tokens.len() - 1];
            let tree = tree_for(&mut lookahead, asked.id, &tokens, N);
            check(&tree, N);
            let mut sampled = vec![next(last)];
            let mut row = None;
            while let Some(next_row) = child(&tree, row, TokenId(sampled[sampled.len() - 1])) {
                row = Some(next_row);
                sampled.push(next(tree.tokens()[next_row].0));
            }
            let likely: Vec<[u32; 1]> = [last]
                .into_iter()
                .chain(tree.tokens().iter().map(|t| t.0))
                .map(|t| [next(t)])
                .collect();
            let likely: Vec<&[u32]> = likely.iter().map(|row| &row[..]).collect();
            see_for(&mut lookahead, asked.id, (&[last], &tree), &sampled, &likely);
            n_accepted.push(sampled.len() - 1);
            tokens.extend(sampled);
        }
        n_accepted
    }

    #[test]
    fn guesses_become_right_by_being_refined() {
        // A cycle of 16 tokens: no token comes again before all others did.
        let n_accepted = decode(60, |token| (token * 5 + 3) % 16);
        assert_eq!(n_accepted[0], 0, "nothing is known");
        let late: usize = n_accepted[40..].iter().sum();
        assert!(late >= 20 * LEVELS, "{n_accepted:?}");
    }

    #[test]
    fn a_column_moves_on_and_leaves_an_n_gram() {
        let mut lookahead = Lookahead::default();
        let asked = request(&[1]);
        lookahead.add(&asked);
        // Room for two columns; a text of one token leaves no choice what they begin as.
        let tree = tree_for(&mut lookahead, asked.id, &[1], 12);
        assert_eq!(tree.tokens(), [1; 4].map(TokenId), "1 1 1, and one place later 1 1 1: shared");
        let likely: &[&[u32]] = &[&[9], &[9], &[9], &[5], &[6]];
        see_for(&mut lookahead, asked.id, (&[1], &tree), &[9], likely);
        // The columns as they are now, after the new token, about which nothing is known.
        let tree = tree_for(&mut lookahead, asked.id, &[1, 9], 12);
        assert_eq!(tree.tokens(), [1, 1, 5, 1, 6].map(TokenId));
        let parents: Vec<Option<usize>> = (0..5).map(|idx| tree.parent(idx)).collect();
        assert_eq!(parents, [None, Some(0), Some(1), Some(1), Some(3)]);
        // And the n-grams, the latest first, where there is no room for a window.
        let grams = tree_for(&mut lookahead, asked.id, &[1, 9, 1], 5);
        assert_eq!(grams.tokens(), [1, 1, 6, 5].map(TokenId));
    }

    proptest! {
        #[test]
        fn trees_are_trees_whatever_is_said(
            said in prop::collection::vec(prop::collection::vec(0..6_u32, 1 + N), 1..30),
            n in 0..=N,
        ) {
            let mut lookahead = Lookahead::default();
            let asked = request(&[0]);
            lookahead.add(&asked);
            let mut tokens = vec![0];
            for said in said {
                let mut tree = tree_for(&mut lookahead, asked.id, &tokens, n);
                check(&tree, n);
                // The scheduler may cut it short; a five is no token.
                tree.truncate(said[0] as usize * 6);
                let likely: Vec<[u32; 1]> =
                    said[..=tree.len()].iter().map(|&t| [if t == 5 { Likely::NONE.0 } else { t }]).collect();
                let likely: Vec<&[u32]> = likely.iter().map(|row| &row[..]).collect();
                let next = said[0];
                let last = tokens[tokens.len() - 1];
                see_for(&mut lookahead, asked.id, (&[last], &tree), &[next], &likely);
                tokens.push(next);
            }
        }
    }
}
