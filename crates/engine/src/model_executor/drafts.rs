//! What happens to drafts within a step: those that came blank are made, all are judged, and the KV of
//! those that were right is moved to where it belongs.
//!
//! ```text
//! draft_early   blanks ─ first layers, place by place ─▶ tokens          before the pass
//! verify        logits of the last known token and of every draft, or their likeliest tokens
//!               ─ sample, or judge ─▶ tokens, along one path of the tree  after it
//! straighten    KV of that path ─▶ the slots of an unbranched sequence
//! ```

use super::{ADDED, ModelExecutor, Scratch};
use crate::Execution;
use crate::spec::{BLANK, Verification};
use pelton_base::TokenId;
use pelton_model::{BlockTables, ForwardInput, ForwardSequence, GreedyRows, Ops};
use pelton_sampling::Sampled;
use pelton_sampling::verify::{Place, Proposal, Typical, typical_lossy};
use pelton_sched::{Rows, ScheduledSequence, SchedulerOutput};

/// What the log says where there is nothing to sample from.
const DAMAGED: &str = "no logit is a finite number: the weights seem to be damaged";

/// What the model said after the last known token of a share and after each draft.
pub(super) enum Answered<'a> {
    /// `[rows, vocab]`.
    Logits(&'a mut [f32]),
    /// The likeliest tokens, `[rows]`; none where no logit is a finite number.
    Tokens(&'a [Option<TokenId>]),
}

impl<D: Ops> ModelExecutor<D> {
    /// Makes the drafts that came blank: a pass through the first layers for each place, over all
    /// sequences that have a draft there.
    pub(super) fn draft_early(&mut self, plan: &SchedulerOutput, n_layers: usize) {
        let Self { decoder, kv, scratch, states, sampler, n_sampled, verification, odds, .. } =
            self;
        let Scratch { tokens, tables, logits_rows, logits, likeliest, .. } = scratch;
        let (vocab_size, n_sampled) = (decoder.spec().vocab_size, *n_sampled);
        let is_blank = |share: &&ScheduledSequence| {
            share.n_drafts > 0 && plan.tokens[share.tokens.end - 1] == BLANK
        };
        let shares = plan.sequences.iter().filter(is_blank);
        let fork = |share: &'_ ScheduledSequence| states.get(&share.id).expect(ADDED).fork();
        let mut all: Vec<_> = shares.map(|share| (share, fork(share))).collect();
        for place in 0.. {
            all.retain(|(share, _)| share.n_drafts > place);
            if all.is_empty() {
                return;
            }
            let shares: Vec<&ScheduledSequence> = all.iter().map(|(share, _)| *share).collect();
            // The token before the blank: the last known one at first.
            let row = |share: &ScheduledSequence| share.tokens.end - 1 - share.n_drafts + place;
            let inputs: Vec<TokenId> = shares.iter().map(|share| tokens[row(share)]).collect();
            let sequence = |(i, share): (usize, &&ScheduledSequence)| ForwardSequence {
                rows: i..i + 1,
                first_position: share.first_position + row(share) - share.tokens.start,
                block_tables: BlockTables::one(&tables[share.blocks.clone()]),
                tree: None,
            };
            let sequences: Vec<_> = shares.iter().enumerate().map(sequence).collect();
            logits_rows.clear();
            logits_rows.extend(0..shares.len());
            let input = ForwardInput { tokens: &inputs, sequences: &sequences, logits_rows };
            let is_greedy = *verification == Verification::Match
                && all.iter().all(|(_, state)| state.takes_largest());
            let n_rows = if is_greedy { all.len() } else { 0 };
            let greedy = GreedyRows { n_rows, n_sampled, tokens: likeliest };
            decoder.forward_greedy(n_layers, kv, &input, logits, greedy);
            for (i, (share, state)) in all.iter_mut().enumerate() {
                let position = share.n_generated + place;
                let draft = if is_greedy {
                    likeliest[i].unwrap_or(TokenId(0))
                } else {
                    let logits = &mut logits[i * vocab_size..][..n_sampled];
                    match verification {
                        Verification::Match => sampler.sample(state, logits, position).token,
                        _ => odds.chain(share.id).draw(sampler, state, logits, position),
                    }
                };
                state.accepted(draft);
                tokens[row(share) + 1] = draft;
            }
        }
    }

    /// Samples along the drafts of a share while they are right; `false` when there was nothing to
    /// sample from.
    pub(super) fn verify(
        &mut self,
        share: &ScheduledSequence,
        rows: Rows<'_>,
        mut answered: Answered<'_>,
        execution: &mut Execution,
    ) -> bool {
        let n_known = rows.tokens.len() - share.n_drafts;
        self.scratch.path.clear();
        let mut row = n_known - 1;
        loop {
            let nth = row + 1 - n_known;
            let (sampled, next) = match &mut answered {
                // However drafts are judged: where one token is possible that is matching.
                Answered::Tokens(tokens) => match tokens[nth] {
                    Some(token) => {
                        (Sampled { token, logprobs: None }, rows.draft_after(row, token))
                    }
                    None => {
                        tracing::error!("{DAMAGED}");
                        return false;
                    }
                },
                Answered::Logits(logits) => {
                    let vocab_size = self.decoder.spec().vocab_size;
                    let logits = &mut logits[nth * vocab_size..][..self.n_sampled];
                    match self.judge(share, rows, row, logits) {
                        Some(decided) => decided,
                        None => return false,
                    }
                }
            };
            self.states.get_mut(&share.id).expect(ADDED).accepted(sampled.token);
            execution.step.sampled.push((share.id, sampled.token));
            match (sampled.logprobs, execution.logprobs.last_mut()) {
                (None, _) => {}
                (Some(logprobs), Some((id, all))) if *id == share.id => all.push(logprobs),
                (Some(logprobs), _) => execution.logprobs.push((share.id, vec![logprobs])),
            }
            match next {
                Some(next) => row = next,
                None => return true,
            }
            self.scratch.path.push(row);
        }
    }

    /// Samples from the logits of one row of a share, and finds the draft after it that was right;
    /// `None` when there is nothing to sample from.
    fn judge(
        &mut self,
        share: &ScheduledSequence,
        rows: Rows<'_>,
        row: usize,
        logits: &mut [f32],
    ) -> Option<(Sampled, Option<usize>)> {
        // Ends at the first finite one; a checkpoint with NaN in it has none.
        if !logits.iter().any(|logit| logit.is_finite()) {
            tracing::error!("{DAMAGED}");
            return None;
        }
        let state = self.states.get_mut(&share.id).expect(ADDED);
        let n_right = self.scratch.path.len();
        let position = share.n_generated + n_right;
        let (sampled, next) = match self.verification {
            // What plain decoding would sample here; it goes on along the draft that is just that.
            Verification::Match => {
                let sampled = self.sampler.sample(state, logits, position);
                let next = rows.draft_after(row, sampled.token);
                (sampled, next)
            }
            judged_by => {
                let rng = state.rng();
                let target = self.sampler.distribution(state, logits, position);
                let place = Place { target, rng, position: position as u64 };
                let siblings = rows.drafts_after(row).map(|next| rows.tokens[next]);
                let drawn = self.odds.at(share.id, n_right);
                let verdict = match judged_by {
                    Verification::Typical => typical_lossy(&place, siblings, Typical::default()),
                    _ => {
                        let proposal = drawn.map_or(Proposal::Known, Proposal::Drawn);
                        self.verifier.judge(&place, siblings, proposal)
                    }
                };
                let next = verdict.accepted.and_then(|nth| rows.drafts_after(row).nth(nth));
                let token = verdict.token;
                (Sampled { token, logprobs: self.sampler.logprobs(token) }, next)
            }
        };
        if logits.get(sampled.token.0 as usize) == Some(&f32::NEG_INFINITY) {
            tracing::error!(
                id = %share.id,
                "no token may come next: the request's rule or its `min_tokens` forbids all"
            );
            return None;
        }
        Some((sampled, next))
    }

    /// Moves the KV of the drafts that were right to where tokens of an unbranched sequence lie.
    pub(super) fn straighten(&mut self, share: &ScheduledSequence) {
        let table = &self.scratch.tables[share.blocks.clone()];
        let first = share.tokens.len() - share.n_drafts;
        for (place, &row) in (first..).zip(&self.scratch.path) {
            if place != row {
                let (from, to) = (share.first_position + row, share.first_position + place);
                self.decoder.copy_kv_position(&mut self.kv, BlockTables::one(table), from, to);
            }
        }
    }
}
