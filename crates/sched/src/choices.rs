//! The scheduling choices that a person makes: one type from the command line down to the scheduler.
//!
//! Sizes that come from the machine (blocks, tokens per block, the model's context) are no choices;
//! they lie beside [`Choices`] in [`SchedulerConfig`](crate::SchedulerConfig).
//!
//! **Architecture invariant:** no choice changes a token of any answer.

use crate::{Eviction, PolicyKind};
use pelton_base::{Slo, limits};
use std::collections::HashSet;
use std::time::Duration;

/// How requests share the machine. The default suits a server for a few dozen users.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Choices {
    /// Order in which waiting requests start.
    pub policy: PolicyKind,
    /// Which end of the scale of priorities starts first.
    pub priority_order: PriorityOrder,
    /// Age from which a waiting request may be served by the guard against starvation, ahead of
    /// the policy's order. Above zero.
    pub max_wait: Duration,
    /// Longest step beside requests that generate; zero for no limit.
    pub max_step: Duration,
    /// When waiting requests may join a batch.
    pub batching: Batching,
    /// How KV blocks are given to a request.
    pub kv_allocation: KvAllocation,
    /// Whether requests share the KV of equal prefixes.
    pub prefix_cache: bool,
    /// Order in which the prefix cache evicts.
    pub eviction: Eviction,
    /// Treatment of the KV of a preempted request.
    pub preemption: PreemptionMode,
    /// Latency targets of requests that state none and whose tenant has none. They steer the order
    /// of work; they never cause a refusal.
    pub slo: Slo,
    /// Settings of each tenant. The first entry applies to requests of unknown tenants; the list is
    /// never empty.
    pub tenants: Vec<TenantConfig>,
    /// Most tokens of one step, over all requests; at least one.
    pub max_batch_tokens: usize,
    /// Most tokens of one request in one step, at least one; `None` for all of a step.
    pub max_chunk_tokens: Option<usize>,
    /// Most requests computed at once; at least one.
    pub max_running: usize,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            priority_order: PriorityOrder::default(),
            max_wait: Duration::from_secs(60),
            max_step: Duration::from_millis(250),
            batching: Batching::default(),
            kv_allocation: KvAllocation::default(),
            prefix_cache: true,
            eviction: Eviction::default(),
            preemption: PreemptionMode::default(),
            slo: Slo::default(),
            tenants: vec![TenantConfig::default()],
            max_batch_tokens: limits::STEP_TOKENS,
            max_chunk_tokens: None,
            max_running: 64,
        }
    }
}

/// A choice that cannot be honoured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChoiceError {
    /// Name of the option, as in a configuration file.
    pub option: &'static str,
    /// The wrong value and the expected range.
    pub why: String,
}

impl std::fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}", self.option, self.why)
    }
}

impl std::error::Error for ChoiceError {}

impl Choices {
    /// Refuses values outside their ranges.
    ///
    /// # Errors
    ///
    /// Names the first option that is wrong.
    pub fn check(&self) -> Result<(), ChoiceError> {
        let fail = |option, why: &str| Err(ChoiceError { option, why: why.to_owned() });
        for (option, n) in [
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_chunk_tokens", self.chunk_tokens()),
            ("max_running", self.max_running),
        ] {
            if n == 0 {
                return fail(option, "expected at least 1, got 0");
            }
        }
        for (option, time) in [
            ("max_wait", Some(self.max_wait)),
            ("ttft_target", self.slo.ttft),
            ("tpot_target", self.slo.tpot),
        ] {
            if time.is_some_and(|time| time.is_zero()) {
                return fail(option, "expected a time above 0");
            }
        }
        check_tenants(&self.tenants).or_else(|why| fail("tenants", &why))
    }

    /// Most tokens of one request in one step.
    pub fn chunk_tokens(&self) -> usize {
        self.max_chunk_tokens.unwrap_or(self.max_batch_tokens)
    }
}

/// Refuses a list of tenants that is empty, too long, or ambiguous.
fn check_tenants(tenants: &[TenantConfig]) -> Result<(), String> {
    let n_tenants = tenants.len();
    if !(1..=limits::TENANTS).contains(&n_tenants) {
        return Err(format!("expected from 1 to {} tenants, got {n_tenants}", limits::TENANTS));
    }
    let mut names = HashSet::new();
    for TenantConfig { name, weight, max_waiting, slo } in tenants {
        let is_plain = (1..=limits::TENANT_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain {
            let most = limits::TENANT_NAME_BYTES;
            return Err(format!(
                "expected a name of 1 to {most} visible ASCII characters, got {name:?}"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two tenants are named `{name}`"));
        }
        if *weight == 0 {
            return Err(format!("`{name}`: expected a weight of at least 1, got 0"));
        }
        if *max_waiting == 0 {
            return Err(format!("`{name}`: expected max_waiting of at least 1, got 0"));
        }
        if [slo.ttft, slo.tpot].into_iter().flatten().any(|target| target.is_zero()) {
            return Err(format!("`{name}`: expected latency targets above 0"));
        }
    }
    Ok(())
}

/// Settings of one tenant.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TenantConfig {
    /// Name in requests and metrics; unique.
    pub name: String,
    /// Its share under [`PolicyKind::Fair`], relative to the weights of other tenants; at least one.
    pub weight: u32,
    /// Most of its requests that may wait; at least one.
    pub max_waiting: usize,
    /// Latency targets of its requests that state none.
    pub slo: Slo,
}

impl Default for TenantConfig {
    fn default() -> Self {
        let name = "default".to_owned();
        Self { name, weight: 1, max_waiting: usize::MAX, slo: Slo::default() }
    }
}

/// Order of priorities.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PriorityOrder {
    /// Lower numbers start first, as in vLLM.
    #[default]
    LowFirst,
    /// Higher numbers start first, as in SGLang.
    HighFirst,
}

/// When waiting requests may join a batch.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Batching {
    /// At every step (Yu et al., "Orca", OSDI 2022).
    #[default]
    Continuous,
    /// After all running requests have ended: the baseline.
    Static,
}

/// How KV blocks are given to a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KvAllocation {
    /// Block by block as it grows (Kwon et al., "PagedAttention", SOSP 2023).
    #[default]
    Paged,
    /// All blocks of the longest possible answer at admission: the baseline ("Orca (Max)" in the
    /// paper on PagedAttention).
    Contiguous,
}

/// Treatment of the KV of a preempted request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PreemptionMode {
    /// The cheaper of swapping and recomputing, by measured prices.
    #[default]
    ByCost,
    /// It is dropped and computed again.
    Recompute,
    /// It is copied to host memory and back, while there is room.
    Swap,
}

/// Gives the values of an option their names.
macro_rules! named {
    ($type:ident, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}
pub(crate) use named;

named!(PriorityOrder, LowFirst = "low-first", HighFirst = "high-first");
named!(Batching, Continuous = "continuous", Static = "static");
named!(KvAllocation, Paged = "paged", Contiguous = "contiguous");
named!(PreemptionMode, ByCost = "by-cost", Recompute = "recompute", Swap = "swap");

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(names: &[(&str, u32)]) -> Choices {
        let tenant = |&(name, weight): &(&str, u32)| TenantConfig {
            name: name.to_owned(),
            weight,
            ..TenantConfig::default()
        };
        Choices { tenants: names.iter().map(tenant).collect(), ..Choices::default() }
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_the_name_of_its_option() {
        let plain = Choices::default;
        let target = |ttft, tpot| Slo { ttft, tpot };
        let zero = Some(Duration::ZERO);
        for (option, choices) in [
            ("max_batch_tokens", Choices { max_batch_tokens: 0, ..plain() }),
            ("max_chunk_tokens", Choices { max_chunk_tokens: Some(0), ..plain() }),
            ("max_running", Choices { max_running: 0, ..plain() }),
            ("max_wait", Choices { max_wait: Duration::ZERO, ..plain() }),
            ("ttft_target", Choices { slo: target(zero, None), ..plain() }),
            ("tpot_target", Choices { slo: target(None, zero), ..plain() }),
            ("tenants", tenants(&[])),
            ("tenants", tenants(&[("a", 1), ("b", 0)])),
            ("tenants", tenants(&[("a", 1), ("a", 1)])),
            ("tenants", tenants(&[("a b", 1)])),
            ("tenants", tenants(&[("", 1)])),
        ] {
            let error = choices.check().expect_err(option);
            assert_eq!(error.option, option, "{error}");
            assert!(error.to_string().contains(option), "{error}");
        }
        tenants(&[("a", 1), ("b", 7)]).check().expect("two tenants");
        plain().check().expect("the defaults");
    }
}
