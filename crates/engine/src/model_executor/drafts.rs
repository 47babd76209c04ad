//! Drafts within a step: blank ones are made, all are judged, and the KV of the accepted ones is
//! moved to where it belongs.
//!
//! ```text
//! draft_early   blanks ─ first layers, place by place ─▶ tokens          before the pass
//! verify        logits of the last known token and of every draft, or their likeliest tokens
//!               ─ sample, or judge ─▶ tokens, along one path of the tree  after it
//! straighten    KV of that path ─▶ the slots of an unbranched sequence
//! ```

use super::{ADDED, ModelExecutor, SAMPLING, Scratch};
use crate::spec::{BLANK, Verification};
use crate::{Execution, Fault, guard};
use pelton_base::{RequestId, TokenId};
use pelton_model::{BlockTables, ForwardInput, ForwardSequence, GreedyRows, Ops};
use pelton_sampling::verify::{Place, Proposal, Typical, typical_lossy};
use pelton_sampling::{Masked, Sampled, SamplerState};
use pelton_sched::{Rows, ScheduledSequence, SchedulerOutput};

/// The reason where no single rule has one.
const ALL_FORBIDDEN: &str =
    "what the request allows (its rule, `min_tokens`, biases, processors) leaves no token";

/// The model's output after the last known token of a share and after each draft.
pub(super) enum Answered<'a> {
    /// `[rows, vocab]` of the rows after certain ones.
    Logits {
        rows: &'a mut [f32],
        /// Leading drafts that are certain.
        n_certain: usize,
    },
    /// The likeliest tokens, `[rows]`; none where no logit is a finite number.
    Tokens(&'a [Option<TokenId>]),
}

/// A share whose drafts came blank, while they are made.
struct Early<'a> {
    share: &'a ScheduledSequence,
    /// Has seen the drafts of this step.
    state: SamplerState,
    /// Whether the likeliest tokens are its drafts.
    is_greedy: bool,
    has_panicked: bool,
}

impl Early<'_> {
    /// Index in the plan of the token before the blank at `place`: at first the last known token.
    fn row(&self, place: usize) -> usize {
        self.share.tokens.end - 1 - self.share.n_drafts + place
    }
}

impl<D: Ops> ModelExecutor<D> {
    /// Makes the drafts that came blank: a pass through the first layers for each place, over all
    /// sequences that have a draft there.
    pub(super) fn draft_early(&mut self, plan: &SchedulerOutput, n_layers: usize) {
        let mut shares = self.blank_shares(plan);
        for place in 0.. {
            shares.retain(|early| !early.has_panicked && early.share.n_drafts > place);
            if shares.is_empty() {
                return;
            }
            let is_greedy = shares.iter().all(|early| early.is_greedy);
            self.early_pass(n_layers, place, &shares, is_greedy);
            for (i, early) in shares.iter_mut().enumerate() {
                self.draw_early(i, early, place, is_greedy);
            }
        }
    }

    /// The shares whose drafts came blank. Each blank becomes token 0, so that a share that panics
    /// has tokens nevertheless.
    fn blank_shares<'a>(&mut self, plan: &'a SchedulerOutput) -> Vec<Early<'a>> {
        let mut shares = Vec::new();
        let is_blank = |share: &&ScheduledSequence| {
            share.n_drafts > 0 && plan.tokens[share.tokens.end - 1] == BLANK
        };
        for share in plan.sequences.iter().filter(is_blank) {
            let blanks = share.tokens.end - share.n_drafts..share.tokens.end;
            self.scratch.tokens[blanks].fill(TokenId(0));
            let state = self.states.get(&share.id).expect(ADDED);
            let matches = self.verification == Verification::Match;
            // A panic drops the copy and changes nothing else.
            let fork = guard(SAMPLING, || (state.fork(), matches && state.takes_largest()));
            match fork {
                Ok((state, is_greedy)) => {
                    shares.push(Early { share, state, is_greedy, has_panicked: false });
                }
                Err(panicked) => self.faults.push((share.id, panicked.into())),
            }
        }
        shares
    }

    /// A pass of the first layers over the tokens before the blanks at `place`.
    fn early_pass(&mut self, n_layers: usize, place: usize, shares: &[Early<'_>], is_greedy: bool) {
        let n_groups = self.decoder.spec().n_kv_groups();
        let Self { decoder, kv, scratch, n_sampled, .. } = self;
        let Scratch { tokens, tables, logits_rows, logits, likeliest, .. } = scratch;
        let inputs: Vec<TokenId> = shares.iter().map(|early| tokens[early.row(place)]).collect();
        let sequence = |(i, early): (usize, &Early<'_>)| ForwardSequence {
            rows: i..i + 1,
            n_source: early.share.n_source,
            first_position: early.share.first_position + early.row(place)
                - early.share.tokens.start,
            block_tables: BlockTables::new(&tables[early.share.blocks.clone()], n_groups),
            lane: None,
            tree: None,
        };
        let sequences: Vec<_> = shares.iter().enumerate().map(sequence).collect();
        logits_rows.clear();
        logits_rows.extend(0..shares.len());
        let input = ForwardInput { tokens: &inputs, sequences: &sequences, logits_rows };
        let n_rows = if is_greedy { shares.len() } else { 0 };
        let greedy = GreedyRows { n_rows, n_sampled: *n_sampled, tokens: likeliest };
        decoder.forward_greedy(n_layers, kv, &input, logits, greedy);
    }

    /// Draws the draft at `place` of the `i`-th share of a pass.
    fn draw_early(&mut self, i: usize, early: &mut Early<'_>, place: usize, is_greedy: bool) {
        let vocab_size = self.decoder.spec().vocab_size;
        let Self { scratch, sampler, n_sampled, verification, odds, .. } = self;
        let Scratch { tokens, logits, likeliest, .. } = scratch;
        let (row, share) = (early.row(place), early.share);
        let state = &mut early.state;
        let position = share.n_generated + place;
        // A panic ends the request, and with it its state and its odds; scratch is filled anew.
        let drawn = guard(SAMPLING, || {
            let draft = if is_greedy {
                likeliest[i].unwrap_or(TokenId(0))
            } else {
                let logits = &mut logits[i * vocab_size..][..*n_sampled];
                match verification {
                    Verification::Match => sampler.sample(state, logits, position).token,
                    _ => odds.chain(share.id).draw(sampler, state, logits, position),
                }
            };
            state.accepted(draft);
            draft
        });
        match drawn {
            Ok(draft) => tokens[row + 1] = draft,
            Err(panicked) => {
                early.has_panicked = true;
                self.faults.push((share.id, panicked.into()));
            }
        }
    }

    /// Samples along the drafts of a share while they are right; `false` when there was nothing to
    /// sample from.
    ///
    /// Nothing to sample from behind a draft that was right is no error yet: the answer may have
    /// ended with that draft, and then no token follows it. If the answer goes on, the next step
    /// finds the error.
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
                // Where one token is possible, every way of judging drafts is matching.
                Answered::Tokens(tokens) => match tokens[nth] {
                    Some(token) => {
                        (Sampled { token, logprobs: None }, rows.draft_after(row, token))
                    }
                    None if self.scratch.path.is_empty() => {
                        return self.fail(share.id, Fault::Damaged);
                    }
                    None => return true,
                },
                Answered::Logits { n_certain, .. } if nth < *n_certain => {
                    let token = rows.tokens[row + 1];
                    (Sampled { token, logprobs: None }, Some(row + 1))
                }
                Answered::Logits { rows: logits, n_certain } => {
                    let vocab_size = self.decoder.spec().vocab_size;
                    let logits = &mut logits[(nth - *n_certain) * vocab_size..][..self.n_sampled];
                    match self.judge(share, rows, row, logits) {
                        Ok(decided) => decided,
                        Err(fault) if self.scratch.path.is_empty() => {
                            return self.fail(share.id, fault);
                        }
                        Err(_) => return true,
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

    /// Ends a request that cannot go on.
    fn fail(&mut self, id: RequestId, fault: Fault) -> bool {
        match fault.is_of_request() {
            true => tracing::debug!(%id, "{fault}"),
            false => tracing::error!(%id, "{fault}"),
        }
        self.faults.push((id, fault));
        false
    }

    /// Samples from the logits of one row of a share, and finds the draft after it that was right.
    ///
    /// # Errors
    ///
    /// When there is nothing to sample from.
    fn judge(
        &mut self,
        share: &ScheduledSequence,
        rows: Rows<'_>,
        row: usize,
        logits: &mut [f32],
    ) -> Result<(Sampled, Option<usize>), Fault> {
        // Ends at the first finite one; a checkpoint with NaN in it has none.
        if !logits.iter().any(|logit| logit.is_finite()) {
            return Err(Fault::Damaged);
        }
        let state = self.states.get_mut(&share.id).expect(ADDED);
        let n_right = self.scratch.path.len();
        let position = share.n_generated + n_right;
        let (sampled, next) = match self.verification {
            // Samples as plain decoding would here, and goes on along the draft that equals the
            // sample.
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
            let why = state.rule().and_then(Masked::stuck);
            return Err(Fault::Stuck(why.unwrap_or_else(|| ALL_FORBIDDEN.to_owned())));
        }
        Ok((sampled, next))
    }

    /// Moves the KV of the drafts that were right to where tokens of an unbranched sequence lie.
    pub(super) fn straighten(&mut self, share: &ScheduledSequence) {
        let table = &self.scratch.tables[share.blocks.clone()];
        let lane = share.lane.as_ref().map(|lane| lane.lane.0 as usize);
        let first = share.tokens.len() - share.n_drafts;
        for (place, &row) in (first..).zip(&self.scratch.path) {
            if place != row {
                let (from, to) = (share.first_position + row, share.first_position + place);
                let tables = BlockTables::new(table, self.decoder.spec().n_kv_groups());
                self.decoder.copy_kv_position(&mut self.kv, tables, lane, from, to);
            }
        }
    }
}
