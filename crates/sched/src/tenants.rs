//! The service that each tenant had, relative to its weight.
//!
//! ```text
//! service of a share = prices of what it computes + its part of the step's base
//!                    + the part of the pool that it holds · the time of the step
//! counter of a tenant += service / weight
//! ```
//!
//! Cached tokens cost nothing and are not charged. A request that finds no other request of its
//! tenant waiting lifts the tenant's counter to the smallest one of the waiting tenants, so an unused
//! share earns no credit; a tenant with running requests keeps up to [`CREDIT_PS`]. If no request waits
//! at all, the counter is lifted to that of the tenant that waited last, so service that no other
//! tenant wanted is no debt.
//!
//! Paper: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, Algorithm 2. There,
//! a tenant with running requests keeps no credit. Then a small tenant whose requests overlap waits
//! for its second one: 423 instead of 372 ms in the median beside a flood, 3.9 instead of 2.0 s at
//! P99 (`pelton bench sim --workload tenants --policy fair --tenant-weight many=1,few=1`).

use crate::{StepCost, StepLoad, TenantConfig};

/// Prices while nothing was measured: every token costs the same.
const TOKENS_ONLY: StepCost =
    StepCost { base_ps: 0, token_ps: 1_000_000, sample_ps: 0, attended_ps: 0, moved_block_ps: 0 };

/// The most service that a tenant below its share can have to its credit: 5 s.
const CREDIT_PS: u64 = 5_000_000_000_000;

/// The counters of all tenants.
#[derive(Debug)]
pub(crate) struct Tenants {
    accounts: Vec<Account>,
    /// The tenant whose last waiting request left most recently.
    last: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    weight: u64,
    /// Virtual time: service over weight.
    counter: u64,
    n_waiting: usize,
    n_running: usize,
}

/// The prices by which the shares of a step are charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tariff {
    cost: StepCost,
    /// The part of the step's base that each share pays.
    pub(crate) base_ps: u64,
    /// The time of the step.
    pub(crate) step_ps: u64,
    pub(crate) n_blocks: u64,
}

impl Tariff {
    pub(crate) fn new(cost: &StepCost, load: &StepLoad, n_shares: usize, n_blocks: u64) -> Self {
        let cost = if cost.is_known() { *cost } else { TOKENS_ONLY };
        let step_ps = cost.base_ps.saturating_add(cost.marginal_ps(load));
        Self { cost, base_ps: cost.base_ps / n_shares.max(1) as u64, step_ps, n_blocks }
    }

    /// The price of one share of the step.
    pub(crate) fn of(&self, load: &StepLoad, n_held_blocks: usize) -> u64 {
        let held = u128::from(self.step_ps) * n_held_blocks as u128 / u128::from(self.n_blocks);
        let held = u64::try_from(held).unwrap_or(u64::MAX);
        self.cost.marginal_ps(load).saturating_add(self.base_ps).saturating_add(held)
    }
}

impl Tenants {
    pub(crate) fn new(tenants: &[TenantConfig]) -> Self {
        let account = |tenant: &TenantConfig| Account {
            weight: u64::from(tenant.weight.max(1)),
            ..Account::default()
        };
        Self { accounts: tenants.iter().map(account).collect(), last: 0 }
    }

    /// Counts one more waiting request of `tenant`.
    pub(crate) fn waits(&mut self, tenant: usize) {
        if self.accounts[tenant].n_waiting == 0 {
            let waiting = self.accounts.iter().filter(|account| account.n_waiting > 0);
            let least = waiting.map(|account| account.counter).min();
            let least = least.unwrap_or(self.accounts[self.last].counter);
            let account = &mut self.accounts[tenant];
            let credit = if account.n_running > 0 { CREDIT_PS / account.weight } else { 0 };
            account.counter = account.counter.max(least.saturating_sub(credit));
        }
        self.accounts[tenant].n_waiting += 1;
    }

    /// Counts one waiting request of `tenant` less.
    pub(crate) fn waits_no_more(&mut self, tenant: usize) {
        self.accounts[tenant].n_waiting -= 1;
        if self.accounts[tenant].n_waiting == 0 {
            self.last = tenant;
        }
    }

    /// Counts one more running request of `tenant`.
    pub(crate) fn runs(&mut self, tenant: usize) {
        self.accounts[tenant].n_running += 1;
    }

    /// Counts one running request of `tenant` less.
    pub(crate) fn runs_no_more(&mut self, tenant: usize) {
        self.accounts[tenant].n_running -= 1;
    }

    /// Charges `tenant` for a share of a step.
    pub(crate) fn charge(&mut self, tenant: usize, service_ps: u64) {
        let account = &mut self.accounts[tenant];
        account.counter = account.counter.saturating_add(service_ps / account.weight);
    }

    /// Service over weight, so far.
    pub(crate) fn counter(&self, tenant: usize) -> u64 {
        self.accounts[tenant].counter
    }

    /// The order of tenants, the smallest first: service over weight, then running requests.
    pub(crate) fn turn(&self, tenant: usize) -> (u64, usize) {
        (self.counter(tenant), self.accounts[tenant].n_running)
    }

    /// Whether there is no other tenant.
    pub(crate) fn is_alone(&self) -> bool {
        self.accounts.len() == 1
    }

    /// Whether at least the part of its weight of the running requests is of `tenant`, and there is
    /// another tenant to leave the rest to.
    pub(crate) fn has_its_share(&self, tenant: usize) -> bool {
        let sum = |part: fn(&Account) -> u64| self.accounts.iter().map(part).sum::<u64>();
        let weights = u128::from(sum(|account| account.weight));
        let n_running = u128::from(sum(|account| account.n_running as u64));
        let own = self.accounts[tenant];
        !self.is_alone() && own.n_running as u128 * weights >= u128::from(own.weight) * n_running
    }

    /// Requests of each tenant that wait.
    pub(crate) fn n_waiting(&self) -> impl Iterator<Item = usize> {
        self.accounts.iter().map(|account| account.n_waiting)
    }

    pub(crate) fn n_live(&self) -> (usize, usize) {
        let sum = |n: fn(&Account) -> usize| self.accounts.iter().map(n).sum();
        (sum(|account| account.n_waiting), sum(|account| account.n_running))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_credit_of_a_tenant_that_runs_is_service_over_its_weight() {
        for weight in [1, 4] {
            let tenant = |weight| TenantConfig { weight, ..TenantConfig::default() };
            let mut tenants = Tenants::new(&[tenant(1), tenant(weight)]);
            tenants.waits(0);
            tenants.charge(0, 10 * CREDIT_PS);
            tenants.runs(1);
            tenants.waits(1);
            let below = tenants.counter(0) - tenants.counter(1);
            assert_eq!(below, CREDIT_PS / u64::from(weight), "weight {weight}");

            tenants.waits_no_more(1);
            tenants.runs_no_more(1);
            tenants.waits(1);
            assert_eq!(tenants.counter(1), tenants.counter(0), "none without a running request");
        }
    }
}
