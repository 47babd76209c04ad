//! Speculative decoding: guess what follows, verify all guesses in one step.
//!
//! # The chapter
//!
//! ```text
//! generating rows ─▶ Proposer::look     how many drafts there could be, and how long the match is
//!                 ─▶ lengths::choose    whose drafts, and how many, are worth their price
//!                 ─▶ Proposer::propose  the drafts: a chain, or a tree
//!                 ─▶ Scheduler          verifies them in the next plan, next to everything else
//! sampled tokens  ─▶ Acceptance         which of the drafts were right
//! likely tokens   ─▶ Proposer::observe  the model's likeliest tokens after each draft
//! ```
//!
//! **Exact.** A verified row samples each of its places with the processors, the parameters and the
//! random number that plain decoding would use there, and goes on while the draft equals the
//! sample: *sample and match*. So the answer is that of plain decoding token for token, with any
//! proposer, at any temperature, under any mask, and not only in distribution. For a draft that is
//! a single sequence this accepts as often as rejection sampling does: `x` with probability `p(x)`.
//!
//! **Or exact in distribution.** A draft model's own distribution allows more:
//! [`Verification::Rejection`] accepts with probability `min(1, p / q)` and corrects after a
//! rejection, so the answers have the distribution of plain decoding, though not its tokens for a
//! seed; greedy answers are the same. [`Verification::Typical`] is lossy.
//!
//! **Priced.** Drafts cost rows, and rows cost time; see [`lengths`]. Where nothing pays nothing is
//! drafted. Whether drafting pays at all is timed besides, see `trial.rs`: costs that prices leave
//! out count there.
//!
//! Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML
//! 2023; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.

pub mod acceptance;
mod draft_model;
mod early_exit;
mod guesser;
pub mod lengths;
mod lookahead;
mod method;
mod ngram;
mod odds;
mod recent;
mod recycle;
mod rules;
mod session;
mod speculation;
mod stats;
pub mod suffix;
mod trial;

pub use draft_model::DraftModel;
pub use early_exit::EarlyExit;
pub use lookahead::Lookahead;
pub use method::{SpecConfig, SpecMethod, Verification};
pub use ngram::Ngram;
pub use odds::{DrawnChain, Odds};
pub use recent::Recent;
pub use recycle::Recycle;
pub use session::Suffix;
pub use speculation::Speculation;
pub use stats::{COUNTED_PLACES, SpecStats};

use pelton_base::{Request, RequestId, TokenId};
use pelton_sched::{DraftTree, Rows};

/// Most drafts of one request in one step that can be asked for.
pub const MOST_DRAFTS: usize = acceptance::MOST_PLACES;

/// Stands for a draft that the executor makes; no model has this token.
pub const BLANK: TokenId = TokenId(u32::MAX);

/// One request that generates, as a proposer sees it.
#[derive(Debug)]
pub struct Row<'a> {
    /// The request.
    pub id: RequestId,
    /// Prompt, then output.
    pub tokens: &'a [TokenId],
    /// Number of tokens of the prompt.
    pub n_prompt: usize,
    /// Number of drafts that are wanted.
    pub n_drafts: usize,
    /// Takes the drafts, the likeliest first.
    pub drafts: &'a mut DraftTree,
}

/// The outcome of one request's share of a step.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The request.
    pub id: RequestId,
    /// The last known token, then the drafts.
    pub rows: Rows<'a>,
    /// The rows of drafts that were right, a path from row 0.
    pub accepted: &'a [usize],
    /// New tokens: one more than accepted drafts.
    pub sampled: &'a [TokenId],
    candidates: &'a [TokenId],
    n_candidates: usize,
}

impl Seen<'_> {
    /// The likeliest tokens after a row by the model alone, the likeliest first: as many as any
    /// proposer asks for ([`Abilities::n_candidates`]), or none where the executor reports none.
    pub fn likely_after(&self, row: usize) -> &[TokenId] {
        let end = (row + 1) * self.n_candidates;
        self.candidates.get(end - self.n_candidates..end).unwrap_or(&[])
    }
}

/// How the drafts of a proposer are to be read. The default is a chain of tokens that pays by
/// itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abilities {
    /// Whether its drafts branch: each is then judged by itself, not by its place.
    pub branches: bool,
    /// Drafts that it makes for a row in place of each draft of a chain.
    pub rows_per_place: usize,
    /// The steps over which its drafts pay, where they do not pay by themselves: they are then made
    /// all or none, judged by the mean outcome of a step, and tried for this many steps in a row.
    pub invests_for: Option<u32>,
    /// Whether its drafts are blank ([`BLANK`]): the executor fills them in when it verifies them.
    pub is_late: bool,
    /// Likeliest tokens that it wants to see after each row.
    pub n_candidates: usize,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            branches: false,
            rows_per_place: 1,
            invests_for: None,
            is_late: false,
            n_candidates: 0,
        }
    }
}

/// Makes drafts: guesses at the tokens that follow.
///
/// The calls for one request are `add`, any number of `look` and `propose`, `finished`.
pub trait Proposer: Send + std::fmt::Debug {
    /// Its name in flags and reports.
    fn name(&self) -> &'static str;

    /// How its drafts are to be read; asked once, at the start.
    fn abilities(&self) -> Abilities;

    /// Meets a request.
    fn add(&mut self, request: &Request);

    /// The number of drafts that it could make for a row, at most `most`, and the number of tokens
    /// that its guess rests on, zero where that is no measure. Sees every row at every step, except
    /// rows of requests that do not want its drafts.
    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize);

    /// Makes up to `n_drafts` drafts for each row; fewer is no failure.
    ///
    /// With `odds` the drafts are judged by rejection sampling. A proposer that draws at random
    /// draws with [`Stream::Draft`](pelton_sampling::Stream) and records the distribution there.
    /// Drafts without a record count as known, which is right for drafts that were not drawn.
    ///
    /// # Errors
    ///
    /// Decoding goes on without drafts.
    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError>;

    /// Whether its drafts for a row take longer this time than they will in the steps to come,
    /// because it did not see the last ones.
    fn is_catching_up(&self, row: &Row<'_>) -> bool;

    /// Sees the outcome of a share of a step, also where another proposer made its drafts.
    fn observe(&mut self, seen: &Seen<'_>);

    /// Forgets a request.
    fn finished(&mut self, id: RequestId);
}

/// The reason for which a proposer made no drafts.
#[derive(Debug, thiserror::Error)]
#[error("the `{proposer}` proposer failed: {why}")]
pub struct ProposerError {
    /// Its name.
    pub proposer: &'static str,
    /// The error, in words.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_base::{Ask, Namespace, SamplingParams, ServiceParams};
    use pelton_sampling::Likely;

    pub(super) fn request(prompt: &[u32]) -> Request {
        Request {
            id: RequestId(1),
            ask: Ask {
                prompt: prompt.iter().copied().map(TokenId).collect(),
                sampling: SamplingParams::greedy(),
                choice: 0,
                max_tokens: 100,
                stop_tokens: Vec::new(),
                service: ServiceParams::default(),
                prediction: Vec::new(),
                constraint: None,
            },
        }
    }

    /// The drafts that a known request would be offered once it has these tokens.
    pub(super) fn drafts_for(
        proposer: &mut impl Proposer,
        (id, n_prompt): (RequestId, usize),
        tokens: &[u32],
        most: usize,
    ) -> Vec<u32> {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        let mut drafts = DraftTree::default();
        let mut row = Row { id, tokens: &tokens, n_prompt, n_drafts: 0, drafts: &mut drafts };
        (row.n_drafts, _) = proposer.look(&row, most);
        proposer.propose(&mut [row], None).expect("no failure");
        drafts.tokens().iter().map(|token| token.0).collect()
    }

    /// The drafts that a fresh request with these tokens would be offered.
    pub(super) fn drafts_of(proposer: &mut impl Proposer, tokens: &[u32], most: usize) -> Vec<u32> {
        let asked = request(tokens);
        proposer.add(&asked);
        let drafts = drafts_for(proposer, (asked.id, 1), tokens, most);
        proposer.finished(asked.id);
        drafts
    }

    #[test]
    fn the_drafts_of_each_method_are_read_as_what_they_are() {
        let abilities = |method: SpecMethod| {
            let proposers = SpecConfig { method, ..SpecConfig::default() }.proposers();
            proposers.iter().map(|proposer| proposer.abilities()).collect::<Vec<_>>()
        };
        let chain = Abilities::default();
        assert_eq!(abilities(SpecMethod::Ngram), [chain]);
        assert_eq!(abilities(SpecMethod::Suffix), [chain]);
        for method in [SpecMethod::Recycle, SpecMethod::Lookahead] {
            let [tree] = abilities(method)[..] else { panic!("{method:?} has one proposer") };
            // Both learn from the likeliest tokens after each row of their trees.
            assert!(tree.branches && !tree.is_late && tree.n_candidates > 0, "{tree:?}");
        }
        assert_eq!(EarlyExit.abilities(), Abilities { is_late: true, ..chain });
    }

    fn asked_in(namespace: Namespace) -> Request {
        let service = ServiceParams { namespace, ..ServiceParams::default() };
        let mut asked = request(&[0]);
        asked.ask.service = service;
        asked
    }

    /// The tree that a fresh request with these tokens is offered.
    pub(super) fn tree_of(
        proposer: &mut impl Proposer,
        namespace: Namespace,
        tokens: &[u32],
        n_drafts: usize,
    ) -> DraftTree {
        let asked = asked_in(namespace);
        proposer.add(&asked);
        let tree = tree_for(proposer, asked.id, tokens, n_drafts);
        proposer.finished(asked.id);
        tree
    }

    /// The tree that a known request with these tokens is offered.
    pub(super) fn tree_for(
        proposer: &mut impl Proposer,
        id: RequestId,
        tokens: &[u32],
        n_drafts: usize,
    ) -> DraftTree {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        let mut drafts = DraftTree::default();
        let mut row = Row { id, tokens: &tokens, n_prompt: 1, n_drafts, drafts: &mut drafts };
        let (n_most, _) = proposer.look(&row, n_drafts);
        row.n_drafts = n_most.min(n_drafts);
        proposer.propose(&mut [row], None).expect("no failure");
        drafts
    }

    /// Shows what came of a share of a request of its own: its last token, drafts, the new tokens
    /// and the likeliest tokens after each row.
    pub(super) fn see(
        proposer: &mut impl Proposer,
        namespace: Namespace,
        share: (&[u32], &DraftTree),
        sampled: &[u32],
        likely: &[&[u32]],
    ) {
        let asked = asked_in(namespace);
        proposer.add(&asked);
        see_for(proposer, asked.id, share, sampled, likely);
        proposer.finished(asked.id);
    }

    /// Likewise, of a known request.
    pub(super) fn see_for(
        proposer: &mut impl Proposer,
        id: RequestId,
        (last, drafts): (&[u32], &DraftTree),
        sampled: &[u32],
        likely: &[&[u32]],
    ) {
        let tokens = |ids: &[u32]| ids.iter().copied().map(TokenId).collect::<Vec<_>>();
        let rows = [&tokens(last)[..], drafts.tokens()].concat();
        let parent = |idx| drafts.parent(idx).map_or(0, |parent| parent as u32 + 1);
        let parents: Vec<u32> =
            [Rows::ROOT].into_iter().chain((0..drafts.len()).map(parent)).collect();
        let rows = Rows { tokens: &rows, parents: Some(&parents) };
        let sampled = tokens(sampled);
        let (mut accepted, mut row) = (Vec::new(), 0);
        for &token in &sampled[..sampled.len() - 1] {
            row = rows.draft_after(row, token).expect("it was drafted");
            accepted.push(row);
        }
        let candidates = tokens(&likely.concat());
        let n_candidates = likely[0].len();
        let accepted = &accepted[..];
        let (sampled, candidates) = (&sampled[..], &candidates[..]);
        proposer.observe(&Seen { id, rows, accepted, sampled, candidates, n_candidates });
    }

    /// Properties of every tree of every proposer.
    pub(super) fn check(tree: &DraftTree, n_most: usize) {
        assert!(tree.len() <= n_most, "{tree:?} has more than {n_most}");
        let draft = |idx| (tree.parent(idx), tree.tokens()[idx]);
        for idx in 0..tree.len() {
            assert!(![BLANK, Likely::NONE].contains(&tree.tokens()[idx]), "{tree:?}");
            assert!((0..idx).all(|other| draft(other) != draft(idx)), "{tree:?} says {idx} twice");
        }
    }
}
