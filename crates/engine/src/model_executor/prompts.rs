//! Scores of the tokens of prompts: how likely the model held each for, after the tokens before it.
//!
//! ```text
//! prompt   [ a  b  c  d ]        row of a token ─ logits ─▶ the score of the next one
//! rows       a  b  c             the last row is sampled from, and scores nothing
//! ```
//!
//! A prompt that is scored is computed in chunks like any other, and nothing of it comes from a cache.
//! The logits of a row are reduced to its score at once, so that a prompt takes as much memory as its
//! scores. Rows that are computed again after a preemption are not scored again.

use pelton_base::{Request, RequestId, TokenId};
use pelton_sampling::{ScoredToken, Scorer};
use pelton_sched::{ScheduledSequence, SchedulerOutput};
use std::collections::HashMap;
use std::ops::Range;

/// The prompts that are being scored.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    prompts: HashMap<RequestId, Prompt>,
    /// The rows of the step at hand: each with its request.
    rows: Vec<RequestId>,
    scorer: Scorer,
}

#[derive(Debug)]
struct Prompt {
    tokens: Vec<TokenId>,
    n_top: usize,
    /// Of the tokens but the first.
    scores: Vec<ScoredToken>,
}

impl Prompt {
    /// Rows of a share that are scored, as indices in the plan.
    fn rows_of(&self, share: &ScheduledSequence) -> Range<usize> {
        let n_known = share.tokens.len() - share.n_drafts;
        let (first, n_done) = (share.first_position, self.scores.len());
        assert!(first <= n_done, "invariant: a prompt that is scored is computed whole");
        let end = (first + n_known).min(self.tokens.len() - 1).max(n_done);
        share.tokens.start + n_done - first..share.tokens.start + end - first
    }
}

impl Prompts {
    /// Begins to score the prompt of a request, with the `n_top` likeliest tokens in each place.
    pub(super) fn add(&mut self, request: &Request, n_top: usize) {
        let (tokens, scores) = (request.ask.prompt.clone(), Vec::new());
        self.prompts.insert(request.id, Prompt { tokens, n_top, scores });
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        self.prompts.remove(&id);
    }

    /// Asks for the rows of a plan that are scored, behind those that `rows` has; their number.
    pub(super) fn ask(&mut self, plan: &SchedulerOutput, rows: &mut Vec<usize>) -> usize {
        self.rows.clear();
        if self.prompts.is_empty() {
            return 0;
        }
        for share in &plan.sequences {
            let Some(prompt) = self.prompts.get(&share.id) else { continue };
            let scored = prompt.rows_of(share);
            self.rows.extend(scored.clone().map(|_| share.id));
            rows.extend(scored);
        }
        self.rows.len()
    }

    /// Scores the token after the `nth` row that was asked for.
    pub(super) fn score(&mut self, nth: usize, logits: &[f32]) {
        let prompt = self.prompts.get_mut(&self.rows[nth]).expect("invariant: its rows are wanted");
        let token = prompt.tokens[prompt.scores.len() + 1];
        prompt.scores.push(self.scorer.score(logits, token, prompt.n_top));
    }

    /// Hands over the scores of the prompts that a plan has computed to the end.
    pub(super) fn hand_over(
        &mut self,
        plan: &SchedulerOutput,
        out: &mut Vec<(RequestId, Vec<ScoredToken>)>,
    ) {
        for share in plan.sequences.iter().filter(|share| share.samples) {
            if let Some(prompt) = self.prompts.remove(&share.id) {
                out.push((share.id, prompt.scores));
            }
        }
    }
}
