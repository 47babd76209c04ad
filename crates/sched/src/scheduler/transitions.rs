//! The ways out of the running state and back: an end, a preemption, KV that has come in.

use super::Scheduler;
use crate::queue::Spot;
use crate::sequence::{Loading, Parked, Preempted, Running};
use crate::{PreemptionMode, SchedulerOutput, TransferId};

impl Scheduler {
    /// Removes a request from the queue for good.
    pub(super) fn unpark(&mut self, spot: Spot) {
        let (sequence, host) = self.queue.take(spot).into_parts();
        self.tenants.waits_no_more(sequence.tenant);
        if let Some(host) = host {
            self.kv.drop_host(host);
        }
    }

    /// Ends a running request. Nothing of it is left but its cached prefix; where its last share is
    /// known to be computed, also the state that goes with the prefix.
    pub(super) fn complete(&mut self, idx: usize, is_sound: bool) {
        self.settle(idx, is_sound);
        let Running { sequence, held, n_computed, .. } = self.running.remove(idx);
        self.tenants.runs_no_more(sequence.tenant);
        let keeps = self.config.choices.prefix_cache && !sequence.is_scored;
        self.kv.release(held, &sequence, n_computed, keeps);
    }

    /// Ends a loading request. Its blocks are free when the transfer that fills them is over.
    pub(super) fn abandon(&mut self, idx: usize) {
        let Loading { running, transfer } = self.loading.remove(idx);
        self.tenants.runs_no_more(running.sequence.tenant);
        self.kv.abandon(running.held, transfer);
    }

    /// Ends a transfer: its memory is free, and the sequence that waited for it runs.
    pub(super) fn arrive(&mut self, id: TransferId) {
        self.kv.end_transfer(id);
        let loaded = self.loading.iter().position(|loading| loading.transfer == id);
        if let Some(idx) = loaded {
            let Loading { running, .. } = self.loading.remove(idx);
            self.run(running);
        }
    }

    /// Puts a sequence among the running ones, in order of standing; its index there.
    pub(super) fn run(&mut self, running: Running) -> usize {
        let standing = running.sequence.standing;
        let idx = self.running.partition_point(|other| other.sequence.standing < standing);
        self.running.insert(idx, running);
        idx
    }

    /// Takes the blocks of a running sequence, which will run again later.
    pub(super) fn preempt(&mut self, idx: usize, output: &mut SchedulerOutput) {
        let is_at_rest = self.running[idx].is_at_rest();
        let Running { sequence, held, n_computed, .. } = self.running.remove(idx);
        let swapped = match self.is_swap_cheaper(n_computed) {
            true => self.kv.swap_out(held, &sequence, n_computed, output),
            false => Err(held),
        };
        let host = match swapped {
            Ok(host) => {
                self.stats.n_swapped += 1;
                Some(host)
            }
            Err(held) => {
                self.stats.n_recomputed += 1;
                self.kv.release(held, &sequence, n_computed, true);
                None
            }
        };
        output.preempted.push(sequence.id);
        self.tenants.runs_no_more(sequence.tenant);
        let preempted = Preempted { sequence, host };
        if is_at_rest {
            self.resting.push(preempted);
        } else {
            self.tenants.waits(preempted.sequence.tenant);
            self.queue.push(Parked::Preempted(preempted));
        }
    }

    /// Whether swapping a sequence out and in again is cheaper than computing it anew. A state is
    /// kept as it was at the last border, so the tokens behind it are computed anew either way.
    fn is_swap_cheaper(&self, n_computed: usize) -> bool {
        match self.config.choices.preemption {
            PreemptionMode::Recompute => return false,
            PreemptionMode::Swap => return true,
            PreemptionMode::ByCost => {}
        }
        let (cost, chunk) = (&self.signals.cost, self.config.choices.chunk_tokens());
        let (state_blocks, border) = match &self.config.states {
            Some(states) => (states.n_blocks, states.border(n_computed)),
            None => (0, n_computed),
        };
        let n_moves = 2 * (self.config.n_held(border) as u64).saturating_add(state_blocks);
        let moves_ns = n_moves.saturating_mul(cost.moved_block_ps) / 1000;
        let rest_ns = cost.prefill_ns(border, n_computed - border, chunk);
        cost.is_known() && moves_ns.saturating_add(rest_ns) < cost.prefill_ns(0, n_computed, chunk)
    }
}
