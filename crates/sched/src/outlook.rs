//! How soon a request that arrives now would be served. Admission control decides by it.
//!
//! ```text
//! expected TTFT = max(prompts ahead · stretch, queue for a place) + own prompt · stretch
//! ```
//!
//! Of a prompt, the tokens that are not cached count. How many are cached is a guess of the caller's:
//! the prefix cache is at the thread that works.
//!
//! *Ahead* are the requests that the policy ranks before the new one; under a policy without ranks,
//! all requests.
//!
//! *Stretch* is the factor by which a prompt takes longer than it would alone, because decoding
//! goes on beside it; it is measured, as is the pace at which places become free. An outlook is a
//! copy that other threads can ask while the scheduler works. Each thread adds the requests that it
//! submits, so that the next request is judged with them.

use crate::{Refusal, SchedulerConfig, StepCost, TenantConfig, Tick};
use pelton_base::ServiceParams;
use std::time::Duration;

/// Parts per one of [`Outlook::stretch`].
pub(crate) const ONE: u64 = 1024;

/// The part of the scheduler's state that matters to a new request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Outlook {
    /// Prices of a step.
    pub(crate) cost: StepCost,
    /// Time of the last plan.
    pub(crate) now: Tick,
    /// Time to compute all unfinished prompts alone on the machine, in nanoseconds.
    pub(crate) backlog_ns: u64,
    /// Rank and nanoseconds of the most urgent prompts, sorted; empty under a policy without ranks.
    pub(crate) urgent: Vec<(i64, u64)>,
    /// Factor by which prompts take longer beside decoding, in 1/1024; zero while unknown.
    pub(crate) stretch: u64,
    /// Requests that could start without waiting for another to end.
    pub(crate) n_places: usize,
    /// Requests that wait.
    pub(crate) n_waiting: usize,
    /// Time between two endings while requests wait, in nanoseconds; zero while unknown.
    pub(crate) ending_ns: u64,
    /// Waiting requests of each tenant.
    pub(crate) waiting_by_tenant: Vec<usize>,
}

/// The tokens of a prompt that arrives, or waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PromptSize {
    /// All of them.
    pub n_tokens: usize,
    /// Tokens at its beginning that are expected in the prefix cache.
    pub n_cached: usize,
}

impl PromptSize {
    /// Tokens that are computed: at least the last one.
    pub(crate) fn n_computed(self) -> usize {
        self.n_tokens.saturating_sub(self.n_cached).max(1)
    }

    /// Time of the prompt alone on the machine, in nanoseconds.
    pub(crate) fn prefill_ns(self, cost: &StepCost, chunk: usize) -> u64 {
        let n_computed = self.n_computed();
        cost.prefill_ns(self.n_tokens.saturating_sub(n_computed), n_computed, chunk)
    }

    /// The size that counts where this prompt waits: a fork finds its tokens at its parent.
    pub(crate) fn waiting(self, service: &ServiceParams) -> Self {
        let n_cached = if service.fork_of.is_some() { self.n_tokens } else { self.n_cached };
        Self { n_cached, ..self }
    }
}

impl Outlook {
    /// Time until the first token of a prompt that arrives now; `None` while nothing was measured.
    pub fn expected_ttft(
        &self,
        prompt: PromptSize,
        service: &ServiceParams,
        config: &SchedulerConfig,
    ) -> Option<Duration> {
        if !self.cost.is_known() {
            return None;
        }
        let stretched = |ns: u64| {
            let product = u128::from(ns) * u128::from(self.stretch.max(ONE)) / u128::from(ONE);
            u64::try_from(product).unwrap_or(u64::MAX)
        };
        let own = self.own_ns(prompt, config);
        let rank = self.rank(prompt, service, config);
        let n_urgent = self.urgent.partition_point(|urgent| urgent.0 <= rank);
        let n_before = match n_urgent < self.urgent.len() {
            true => n_urgent.min(self.n_waiting),
            false => self.n_waiting,
        };
        let n_ahead = (n_before + 1).saturating_sub(self.n_places) as u64;
        let for_a_place = n_ahead.saturating_mul(self.ending_ns);
        let wait = stretched(self.ahead_ns(rank)).max(for_a_place);
        Some(Duration::from_nanos(wait.saturating_add(stretched(own))))
    }

    /// Time of a prompt alone on the machine.
    fn own_ns(&self, prompt: PromptSize, config: &SchedulerConfig) -> u64 {
        prompt.prefill_ns(&self.cost, config.choices.chunk_tokens())
    }

    /// The rank that the policy gives a request that arrives now. As in the queue, its whole prompt
    /// counts, cached or not.
    fn rank(&self, prompt: PromptSize, service: &ServiceParams, config: &SchedulerConfig) -> i64 {
        let whole = PromptSize { n_cached: 0, ..prompt };
        config.rank(self.now, service, self.own_ns(whole, config))
    }

    /// Time of the prompts that are computed before a new request of this rank.
    fn ahead_ns(&self, rank: i64) -> u64 {
        let n_ahead = self.urgent.partition_point(|urgent| urgent.0 <= rank);
        if n_ahead == self.urgent.len() {
            // Behind all listed prompts, so behind the whole backlog.
            return self.backlog_ns;
        }
        self.urgent[..n_ahead].iter().fold(0, |sum, urgent| sum.saturating_add(urgent.1))
    }

    /// Decides whether a request is taken now.
    ///
    /// # Errors
    ///
    /// Refuses a request whose tenant has too many waiting requests, and a request whose first
    /// token would come after its target. Both errors say when to try again.
    pub fn judge(
        &self,
        prompt: PromptSize,
        service: &ServiceParams,
        config: &SchedulerConfig,
    ) -> Result<(), Refusal> {
        if service.fork_of.is_some() || service.is_further {
            // A part of a request that was taken.
            return Ok(());
        }
        let (tenant, terms) = terms(service, config);
        let expected = self.expected_ttft(prompt, service, config);
        let n_waiting = self.waiting_by_tenant.get(tenant).copied().unwrap_or(0);
        if n_waiting >= terms.max_waiting {
            let one_second = Duration::from_secs(1);
            return Err(Refusal::TenantQueueFull {
                tenant: terms.name.clone(),
                limit: terms.max_waiting,
                retry_after: expected.map_or(one_second, |wait| wait.max(one_second)),
            });
        }
        match (service.slo.or(terms.slo).ttft, expected) {
            (Some(ttft), Some(expected)) if expected > ttft => {
                let own = Duration::from_nanos(self.own_ns(prompt, config));
                let retry_after = (own <= ttft).then(|| expected - ttft);
                Err(Refusal::DeadlineUnreachable { ttft, expected, retry_after })
            }
            _ => Ok(()),
        }
    }

    /// Counts a request that was taken and that the scheduler has not seen yet.
    pub fn add(&mut self, prompt: PromptSize, service: &ServiceParams, config: &SchedulerConfig) {
        let (tenant, _) = terms(service, config);
        let prompt = prompt.waiting(service);
        let own = self.own_ns(prompt, config);
        self.backlog_ns = self.backlog_ns.saturating_add(own);
        if config.choices.policy.policy().is_by_rank() {
            let rank = self.rank(prompt, service, config);
            let idx = self.urgent.partition_point(|urgent| urgent.0 <= rank);
            if idx < self.urgent.len() || self.urgent.len() < MOST_URGENT {
                self.urgent.insert(idx, (rank, own));
            }
        }
        self.n_waiting += 1;
        if self.waiting_by_tenant.len() <= tenant {
            self.waiting_by_tenant.resize(tenant + 1, 0);
        }
        self.waiting_by_tenant[tenant] += 1;
    }
}

/// Most entries of [`Outlook::urgent`], which bounds the time to fill it.
pub(crate) const MOST_URGENT: usize = 256;

/// The tenant of a request, as an index, and its terms; an unknown tenant counts as the first.
pub(crate) fn terms<'a>(
    service: &ServiceParams,
    config: &'a SchedulerConfig,
) -> (usize, &'a TenantConfig) {
    let idx = service.tenant.0 as usize;
    let idx = if idx < config.choices.tenants.len() { idx } else { 0 };
    (idx, &config.choices.tenants[idx])
}

#[cfg(test)]
mod tests {
    use pelton_base::Slo;

    use super::*;
    use crate::{Choices, PolicyKind};

    /// A prompt of which nothing is cached.
    fn new(n_tokens: usize) -> PromptSize {
        PromptSize { n_tokens, n_cached: 0 }
    }

    #[test]
    fn tokens_that_are_cached_take_no_time() {
        let config = SchedulerConfig::new(100, 16);
        let cost = StepCost { token_ps: 1_000_000, ..StepCost::default() };
        let mut outlook = Outlook { cost, n_places: 100, ..Outlook::default() };
        let service = ServiceParams::default();
        let expected = |outlook: &Outlook, prompt| outlook.expected_ttft(prompt, &service, &config);
        let warm = PromptSize { n_tokens: 100, n_cached: 90 };
        assert_eq!(expected(&outlook, warm), Some(Duration::from_micros(10)));
        let all = PromptSize { n_tokens: 100, n_cached: 100 };
        assert_eq!(expected(&outlook, all), Some(Duration::from_micros(1)), "the last is computed");
        outlook.add(warm, &service, &config);
        assert_eq!(expected(&outlook, new(5)), Some(Duration::from_micros(15)));
    }

    #[test]
    fn a_prompt_that_alone_takes_longer_than_its_target_is_refused_for_good() {
        let config = SchedulerConfig::new(100, 16);
        let cost = StepCost { token_ps: 1_000_000, ..StepCost::default() };
        let mut outlook = Outlook { cost, n_places: 100, ..Outlook::default() };
        let ttft = Duration::from_micros(100);
        let slo = Slo { ttft: Some(ttft), ..Slo::default() };
        let service = ServiceParams { slo, ..ServiceParams::default() };
        let retry = |outlook: &Outlook, n_prompt, service: &ServiceParams| {
            outlook.judge(new(n_prompt), service, &config).map_err(|refusal| refusal.retry_after())
        };
        assert_eq!(retry(&outlook, 100, &service), Ok(()));
        assert_eq!(retry(&outlook, 101, &service), Err(None));
        outlook.add(new(30), &service, &config);
        assert_eq!(retry(&outlook, 100, &service), Err(Some(Duration::from_micros(30))));
        assert_eq!(retry(&outlook, 101, &service), Err(None));
        let further = ServiceParams { is_further: true, ..service };
        assert_eq!(retry(&outlook, 101, &further), Ok(()), "the request was taken");
    }

    #[test]
    fn a_request_waits_for_those_that_its_policy_ranks_before_it() {
        let choices = Choices { policy: PolicyKind::Priority, ..Choices::default() };
        let config = SchedulerConfig { choices, ..SchedulerConfig::new(100, 16) };
        let cost = StepCost { token_ps: 1_000_000, ..StepCost::default() };
        let mut outlook = Outlook { cost, n_places: 100, ..Outlook::default() };
        let with = |priority| ServiceParams { priority, ..ServiceParams::default() };
        for (priority, n_prompt) in [(10, 100), (30, 400), (20, 200)] {
            outlook.add(new(n_prompt), &with(priority), &config);
        }
        for (priority, n_before) in [(5, 0), (15, 100), (25, 300), (35, 700)] {
            let expected = outlook.expected_ttft(new(10), &with(priority), &config);
            let microseconds = n_before + 10;
            assert_eq!(expected, Some(Duration::from_micros(microseconds)), "{priority}");
        }
    }

    #[test]
    fn the_list_of_urgent_prompts_stays_short() {
        let choices = Choices { policy: PolicyKind::Priority, ..Choices::default() };
        let config = SchedulerConfig { choices, ..SchedulerConfig::new(100, 16) };
        let mut outlook = Outlook::default();
        for priority in 0..2 * MOST_URGENT as i32 {
            let service = ServiceParams { priority, ..ServiceParams::default() };
            outlook.add(new(1), &service, &config);
        }
        assert_eq!(outlook.urgent.len(), MOST_URGENT);
        assert_eq!(outlook.n_waiting, 2 * MOST_URGENT);
        let urgent = ServiceParams { priority: -1, ..ServiceParams::default() };
        outlook.add(new(1), &urgent, &config);
        assert_eq!(outlook.urgent[0].0, -1, "a full list still takes those that come first");
    }
}
