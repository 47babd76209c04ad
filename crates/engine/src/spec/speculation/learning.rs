//! Learning from a step: which drafts were right, which tokens followed, and the time they took.

use super::Speculation;
use crate::Execution;
use crate::spec::Seen;
use pelton_base::{RequestId, TokenId};
use pelton_sched::{Rows, SchedulerOutput};
use std::time::Duration;

impl Speculation {
    /// Learns from the outcome of a plan.
    pub fn learn(&mut self, plan: &SchedulerOutput, execution: &Execution) {
        self.count_late_drafts(plan, execution.drafting);
        let (mut sampled, mut candidates) =
            (&execution.step.sampled[..], &execution.candidates[..]);
        for share in plan.sequences.iter().filter(|share| share.samples) {
            let n_sampled = sampled.iter().take_while(|(id, _)| *id == share.id).count();
            let (own, rest) = sampled.split_at(n_sampled);
            sampled = rest;
            let n_likely = (share.n_drafts + 1) * execution.n_candidates;
            let (likely, rest) = candidates.split_at(n_likely.min(candidates.len()));
            candidates = rest;
            let all = plan.rows_of(share);
            let rows = Rows { tokens: &all.tokens[all.tokens.len() - 1 - share.n_drafts..], ..all };
            self.sampled.clear();
            self.sampled.extend(own.iter().map(|(_, token)| *token));
            if n_sampled > 0 {
                let position = share.first_position + all.tokens.len() - share.n_drafts;
                self.learn_of((share.id, position), rows, likely, execution.n_candidates);
            }
        }
    }

    /// Learns from one share, the first of whose drafts is at `position`; `self.sampled` are its
    /// new tokens.
    fn learn_of(
        &mut self,
        (id, position): (RequestId, usize),
        rows: Rows<'_>,
        candidates: &[TokenId],
        n_candidates: usize,
    ) {
        let n_drafts = rows.tokens.len() - 1;
        self.accepted.clear();
        let mut row = 0;
        for &token in &self.sampled[..self.sampled.len() - 1] {
            // Late drafts are a chain; one is right if a token was sampled after it.
            row = rows.draft_after(row, token).unwrap_or(row + 1);
            self.accepted.push(row);
        }
        let accepted = &self.accepted[..];
        if let (Some(asked), true) = (self.asked.get(&id), n_drafts > 0) {
            self.guessers[asked.guesser].learn(id, asked.sure, n_drafts, accepted);
            self.depths.clear();
            self.depths.push(0);
            for row in 1..=n_drafts {
                let parent = rows.parents.map_or(row - 1, |parents| parents[row] as usize);
                self.depths.push(self.depths[parent] + 1);
            }
            // From here on, the number of drafts before each draft.
            self.depths.iter_mut().for_each(|depth| *depth = depth.saturating_sub(1));
            self.stats.verified(&self.depths[1..], accepted.len(), position, &self.plain);
        }
        let sampled = &self.sampled[..];
        let seen = Seen { id, rows, accepted, sampled, candidates, n_candidates };
        for guesser in &mut self.guessers {
            self.stats.n_failures += u64::from(!guesser.observe(&seen));
        }
    }

    /// Learns that the executor took `elapsed` to make the drafts that came blank.
    fn count_late_drafts(&mut self, plan: &SchedulerOutput, elapsed: Duration) {
        let late = self.guessers.iter().position(|guesser| guesser.abilities().is_late);
        let Some(late) = late else { return };
        let is_late = |id| self.asked.get(id).is_some_and(|asked| asked.guesser == late);
        let shares = plan.sequences.iter().filter(|share| is_late(&share.id));
        let n_drafts = shares.map(|share| share.n_drafts).sum();
        self.guessers[late].count(n_drafts, elapsed);
        self.stats.made(elapsed);
    }
}
