//! Places, blocks and steps that are kept for tenants below their share, under a policy that
//! shares service between tenants.
//!
//! A tenant is below its share while a smaller part of the running requests is its own than its
//! weight is of all weights. Three things are kept for such tenants, so that a tenant that comes
//! back finds room at once, however many requests of other tenants wait and run:
//!
//! ```text
//! the last place      of eight or more places
//! blocks              four times the watermark
//! every second step   while such a tenant has a prompt to compute, and it is its turn
//! ```
//!
//! In a step that is kept, rows and prompts of other tenants sit out, so a row waits one step more
//! for its token, and never two. A tenant above its share pays with time that is due to another.

use super::Scheduler;
use crate::Batching;

/// Fewest places of which one is kept: of fewer, one would be too much to leave empty.
const LEAST_PLACES: usize = 8;

impl Scheduler {
    /// Decides whether the step at hand is for tenants below their share alone.
    pub(super) fn keep_step(&mut self) {
        let was_kept = std::mem::replace(&mut self.is_kept, false);
        self.cursors.fill(None);
        if was_kept || !self.policy.is_by_service() || self.tenants.is_alone() {
            return;
        }
        let head = self.queue.next(&self.cursors, &self.tenants);
        let waiting = head.filter(|_| self.n_free_places() > 0);
        let waiting = waiting.map(|spot| self.queue.at(spot).sequence().tenant);
        let catching_up = self.running.iter().filter(|running| running.is_catching_up());
        let catching_up = catching_up.map(|running| running.sequence.tenant);
        let mut tenants = waiting.into_iter().chain(catching_up);
        self.is_kept = tenants.any(|tenant| !self.has_its_share(tenant));
    }

    /// Whether the requests of a tenant have no part in this step.
    pub(super) fn sits_out(&self, tenant: usize) -> bool {
        self.is_kept && self.has_its_share(tenant)
    }

    /// Whether the last place is kept from a tenant.
    pub(super) fn lacks_place(&self, tenant: usize) -> bool {
        let n_places = self.max_running();
        self.n_free_places() == 1 && n_places >= LEAST_PLACES && self.has_its_share(tenant)
    }

    /// Whether a tenant has its share of the running requests, so that something is kept from it.
    pub(super) fn has_its_share(&self, tenant: usize) -> bool {
        self.policy.is_by_service()
            && self.config.choices.batching == Batching::Continuous
            && self.tenants.has_its_share(tenant)
    }
}
