//! States of recurrent layers that running prompts leave behind, and requests that wait for one.
//!
//! KV is there for every token that was computed; a state only where a snapshot was taken when the
//! sequence passed a border. So a running prompt carries marks: the borders at which another request
//! will want to go on.
//!
//! ```text
//! request 1   [ system prompt  | question          ]
//!                     ▲ added by 2             ▲ its own last border
//! request 2   [ system prompt  | another question        ]     waits for the first mark
//! ```

use super::Scheduler;
use crate::queue::Spot;
use crate::radix::common_prefix;
use crate::sequence::Running;

impl Scheduler {
    /// Takes snapshots for the marked borders that the new share of a running request passes. A mark
    /// for which there is none is skipped.
    pub(super) fn take_marks(&mut self, idx: usize) {
        let running = &mut self.running[idx];
        let end = running.n_planned();
        while let Some(border) = running.marks.next_before(end) {
            if let Some(snapshot) = self.kv.take_snapshot_at(&running.sequence, border) {
                running.marks.take(border, snapshot);
            }
        }
    }

    /// Keeps the snapshots that the last plan filled for a running request. Where the share is not
    /// known to be computed, they go back, and nothing of the lane is worth keeping.
    pub(super) fn settle(&mut self, idx: usize, is_sound: bool) {
        let Running { sequence, held, marks, .. } = &mut self.running[idx];
        for (border, snapshot) in marks.taken.drain(..) {
            match is_sound {
                true => self.kv.keep_state(held, sequence, border, snapshot),
                false => self.kv.give_back(Some(snapshot)),
            }
        }
        if let (Some(lane), false) = (&mut held.lane, is_sound) {
            lane.spoil();
        }
    }

    /// Whether a running request is about to pass a border from which a waiting one could go on,
    /// beyond the first `n_found` tokens. That border is then marked, if it was not. The plan at hand
    /// may already contain the share that passes it.
    pub(super) fn awaits_state(&mut self, spot: Spot, n_found: usize) -> bool {
        let Some(states) = &self.config.states else { return false };
        if !self.config.choices.prefix_cache || states.n_snapshots == 0 {
            return false;
        }
        let sequence = self.queue.at(spot).sequence();
        // All but the last token, which has to be computed for the logits after it.
        let wanted = &sequence.tokens[..sequence.tokens.len() - 1];
        let (mut deepest, mut passing) = (n_found, None);
        for (idx, running) in self.running.iter().enumerate() {
            if !running.is_catching_up() || running.sequence.namespace != sequence.namespace {
                continue;
            }
            let prompt = running.prompt();
            // The row at the border is computed too; with it the state is folded.
            let border = states.border(common_prefix(prompt, wanted).min(prompt.len() - 1));
            if border > deepest && running.passes(border) {
                (deepest, passing) = (border, Some(idx));
            }
        }
        let Some(idx) = passing else { return false };
        let running = &mut self.running[idx];
        if deepest >= running.n_planned() {
            running.marks.add(deepest);
        } else if !running.marks.takes(deepest) {
            let snapshot = self.kv.take_snapshot_at(&running.sequence, deepest);
            let Some(snapshot) = snapshot else { return false };
            running.marks.take(deepest, snapshot);
        }
        true
    }
}
