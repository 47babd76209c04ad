//! What happens to drafts within a step: those that came blank are made, all are judged, and the KV of
//! those that were right is moved to where it belongs.
//!
//! ```text
//! draft_early   blanks ─ first layers, place by place ─▶ tokens          before the pass
//! verify        logits of the last known token and of every draft
//!               ─ sample, or judge ─▶ tokens, along one path of the tree  after it
//! straighten    KV of that path ─▶ the slots of an unbranched sequence
//! ```

use super::{ADDED, ModelExecutor, Scratch};
use crate::Execution;
use crate::spec::{BLANK, Verification};
use pelton_base::TokenId;
use pelton_model::{Backend, ForwardInput, ForwardSequence};
use pelton_sampling::Sampled;
use pelton_sampling::verify::{Place, Proposal, Typical, typical_lossy};
use pelton_sched::{Rows, ScheduledSequence, SchedulerOutput};

impl<B: Backend> ModelExecutor<B> {
    /// Makes the drafts that came blank: a pass through the first layers for each place, over all
    /// sequences that have a draft there.
    pub(super) fn draft_early(&mut self, plan: &SchedulerOutput, n_layers: usize) {
        let Self { decoder, kv, scratch, states, sampler, n_sampled, verification, odds, .. } =
            self;
        let Scratch { tokens, tables, logits_rows, logits, .. } = scratch;
        let vocab_size = decoder.spec().vocab_size;
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
                block_table: &tables[share.blocks.clone()],
                tree: None,
            };
            let sequences: Vec<_> = shares.iter().enumerate().map(sequence).collect();
            logits_rows.clear();
            logits_rows.extend(0..shares.len());
            let input = ForwardInput { tokens: &inputs, sequences: &sequences, logits_rows };
            decoder.forward_through(n_layers, kv, &input, logits);
            for ((share, state), logits) in all.iter_mut().zip(logits.chunks_exact_mut(vocab_size))
            {
                let logits = &mut logits[..*n_sampled];
                let position = share.n_generated + place;
                let draft = match verification {
                    Verification::Match => sampler.sample(state, logits, position).token,
                    _ => odds.chain(share.id).draw(sampler, state, logits, position),
                };
                state.accepted(draft);
                tokens[row(share) + 1] = draft;
            }
        }
    }

    /// Samples along the drafts of a share while they are right; `false` when there was nothing to
    /// sample from.
    ///
    /// `logits`: a row for the last known token and for each draft.
    pub(super) fn verify(
        &mut self,
        share: &ScheduledSequence,
        rows: Rows<'_>,
        logits: &mut [f32],
        execution: &mut Execution,
    ) -> bool {
        let vocab_size = self.decoder.spec().vocab_size;
        let n_known = rows.tokens.len() - share.n_drafts;
        let state = self.states.get_mut(&share.id).expect(ADDED);
        let path = &mut self.scratch.path;
        path.clear();
        let mut row = n_known - 1;
        loop {
            let logits = &mut logits[(row + 1 - n_known) * vocab_size..][..self.n_sampled];
            // Ends at the first finite one; a checkpoint with NaN in it has none.
            if !logits.iter().any(|logit| logit.is_finite()) {
                tracing::error!("no logit is a finite number: the weights seem to be damaged");
                return false;
            }
            let position = share.n_generated + path.len();
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
                    let drawn = self.odds.at(share.id, path.len());
                    let verdict = match judged_by {
                        Verification::Typical => {
                            typical_lossy(&place, siblings, Typical::default())
                        }
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
                return false;
            }
            state.accepted(sampled.token);
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
            path.push(row);
        }
    }

    /// Moves the KV of the drafts that were right to where tokens of an unbranched sequence lie.
    pub(super) fn straighten(&mut self, share: &ScheduledSequence) {
        let table = &self.scratch.tables[share.blocks.clone()];
        let first = share.tokens.len() - share.n_drafts;
        for (place, &row) in (first..).zip(&self.scratch.path) {
            if place != row {
                let (from, to) = (share.first_position + row, share.first_position + place);
                self.decoder.copy_kv_position(&mut self.kv, table, from, to);
            }
        }
    }
}
