//! The prospects of a new request: work ahead of it, places, and the prompts that are computed
//! next.

use super::Scheduler;
use crate::{Outlook, outlook};

impl Scheduler {
    /// Fills `outlook` with the prospects of a new request; its memory is kept.
    pub fn outlook(&self, outlook: &mut Outlook) {
        let cost = self.signals.cost;
        let chunk = self.config.choices.chunk_tokens();
        let catching_up = self.placed().filter(|running| running.is_catching_up());
        let running_ns: u64 = catching_up
            .map(|running| cost.prefill_ns(running.n_computed, running.n_remaining(), chunk))
            .sum();
        // As if all waiting tokens were one prompt from position 0. Leaving their attention out
        // makes the outlook a little too bright, which is better than refusing a request that could
        // be served.
        let n_tokens = self.queue.n_tokens();
        let n_steps = n_tokens.div_ceil(chunk as u64).max(self.queue.len() as u64);
        let waiting_ps = n_tokens
            .saturating_mul(cost.token_ps)
            .saturating_add(n_steps.saturating_mul(cost.base_ps));
        outlook.cost = cost;
        outlook.now = self.now;
        outlook.urgent.clear();
        if self.policy.is_by_rank() {
            self.list_urgent(&mut outlook.urgent);
        }
        outlook.backlog_ns = running_ns.saturating_add(waiting_ps / 1000);
        outlook.stretch = self.pace.stretch();
        outlook.ending_ns = self.pace.ending_ns();
        outlook.n_waiting = self.queue.len();
        let has_room = self.kv.n_available() > self.config.watermark_blocks();
        outlook.n_places = if has_room { self.n_free_places() } else { 0 };
        outlook.waiting_by_tenant.clear();
        outlook.waiting_by_tenant.extend(self.tenants.n_waiting());
    }

    /// The prompts that are computed next, with their ranks.
    fn list_urgent(&self, urgent: &mut Vec<(i64, u64)>) {
        let (cost, chunk) = (&self.signals.cost, self.config.choices.chunk_tokens());
        let catching_up = self.placed().filter(|running| running.is_catching_up());
        let running = catching_up.map(|running| {
            let left_ns = cost.prefill_ns(running.n_computed, running.n_remaining(), chunk);
            (running.sequence.standing.rank(), left_ns)
        });
        let waiting = self.queue.iter().map(|parked| {
            let sequence = parked.sequence();
            (sequence.standing.rank(), sequence.size().prefill_ns(cost, chunk))
        });
        urgent.extend(running.chain(waiting).take(outlook::MOST_URGENT));
        urgent.sort_unstable();
    }
}
