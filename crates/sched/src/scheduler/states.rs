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
use crate::StateConfig;
use crate::queue::Spot;
use crate::sequence::{Parked, Running, Sequence};

/// Waiting requests for which a newly admitted one leaves states; it bounds the time of a plan.
const MOST_FORESEEN: usize = 8;

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

    /// Marks the borders of a request that was just admitted from which the next waiting ones could go
    /// on. While it takes whole steps for itself, no other request is looked at before it has passed
    /// them.
    pub(super) fn mark_for_waiting(&mut self, idx: usize) {
        let Some(states) = self.shared_states() else { return };
        let running = &mut self.running[idx];
        for sequence in self.queue.iter().take(MOST_FORESEEN).map(Parked::sequence) {
            let border = running.common_border(&states, &sequence.tokens);
            if sequence.namespace == running.sequence.namespace && running.is_ahead(border) {
                running.marks.add(border);
            }
        }
    }

    /// Marks the deepest border that a running request will pass and from which a new one could go on.
    pub(super) fn mark_for_arrival(&mut self, sequence: &Sequence) {
        let Some(states) = self.shared_states() else { return };
        let alike = self.running.iter_mut().filter(|running| {
            running.is_catching_up() && running.sequence.namespace == sequence.namespace
        });
        let ahead = alike.filter_map(|running| {
            let border = running.common_border(&states, &sequence.tokens);
            running.is_ahead(border).then_some((border, running))
        });
        if let Some((border, running)) = ahead.max_by_key(|(border, _)| *border) {
            running.marks.add(border);
        }
    }

    /// Whether a running request is about to pass a border from which a waiting one could go on,
    /// beyond the first `n_found` tokens. That border is then marked, if it was not. The plan at hand
    /// may already contain the share that passes it.
    pub(super) fn awaits_state(&mut self, spot: Spot, n_found: usize) -> bool {
        let Some(states) = self.shared_states() else { return false };
        let sequence = self.queue.at(spot).sequence();
        let (mut deepest, mut passing) = (n_found, None);
        for (idx, running) in self.running.iter().enumerate() {
            if running.is_catching_up() && running.sequence.namespace == sequence.namespace {
                let border = running.common_border(&states, &sequence.tokens);
                if border > deepest && running.passes(border) {
                    (deepest, passing) = (border, Some(idx));
                }
            }
        }
        let Some(idx) = passing else { return false };
        let running = &mut self.running[idx];
        if running.is_ahead(deepest) {
            running.marks.add(deepest);
        } else if !running.marks.takes(deepest) {
            // The plan at hand has the share already.
            let snapshot = self.kv.take_snapshot_at(&running.sequence, deepest);
            let Some(snapshot) = snapshot else { return false };
            running.marks.take(deepest, snapshot);
        }
        true
    }

    /// The memory for states, where requests find the states of others.
    fn shared_states(&self) -> Option<StateConfig> {
        let is_shared = |states: &StateConfig| states.n_snapshots > 0;
        self.config.states.filter(is_shared).filter(|_| self.config.choices.prefix_cache)
    }
}
