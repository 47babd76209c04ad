//! Who goes first, how requests are batched, and what becomes of their keys and values.

use std::collections::HashSet;
use std::time::Duration;

use pelton_base::{Slo, limits};
use pelton_engine::{EngineConfig, SchedulingConfig};
use pelton_sched::{
    Batching, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder, SchedulerConfig,
    TenantConfig,
};

use crate::error::LlmError;
use crate::load::LlmOptions;

/// The scheduler's choices; its limits are part of [`LlmOptions`].
///
/// None of them changes a token of any answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scheduling {
    /// Who goes first.
    pub policy: PolicyKind,
    /// Which end of the scale of priorities goes first.
    pub priority_order: PriorityOrder,
    /// Whoever waited this long goes before everyone who waited less, whatever the policy says.
    pub max_wait: Duration,
    /// When requests may join those that run.
    pub batching: Batching,
    /// How much KV a request takes.
    pub kv_allocation: KvAllocation,
    /// Whether prefixes are shared between requests.
    pub prefix_cache: bool,
    /// Whether they are shared between tenants too.
    pub share_prefixes: bool,
    /// What the prefix cache forgets first.
    pub eviction: Eviction,
    /// What becomes of the KV of a request that must give way.
    pub preemption: PreemptionMode,
    /// Host memory for the KV of requests that gave way, in bytes; zero for none.
    pub swap_bytes: u64,
    /// Latency targets of requests that state none and whose tenant has none.
    pub slo: Slo,
    /// Whose requests these are; the first is whoever has no entry. Never empty.
    pub tenants: Vec<TenantConfig>,
}

impl Default for Scheduling {
    fn default() -> Self {
        // What the scheduler itself thinks best; the pool plays no part in it.
        let config = SchedulerConfig::new(1, 1);
        Self {
            policy: config.policy,
            priority_order: config.priority_order,
            max_wait: config.max_wait,
            batching: config.batching,
            kv_allocation: config.kv_allocation,
            prefix_cache: config.prefix_cache,
            share_prefixes: false,
            eviction: config.eviction,
            preemption: config.preemption,
            swap_bytes: 0,
            slo: Slo::default(),
            tenants: config.tenants,
        }
    }
}

impl Scheduling {
    /// Refuses what contradicts itself.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] names the first option that is wrong.
    pub fn check(&self) -> Result<(), LlmError> {
        let fail = |option, why: String| Err(LlmError::Option { option, why });
        if self.preemption == PreemptionMode::Swap && self.swap_bytes == 0 {
            return fail("preemption", "`swap` needs memory to swap to, got none".to_owned());
        }
        if self.preemption == PreemptionMode::Recompute && self.swap_bytes > 0 {
            return fail("swap_memory", "`recompute` never swaps; expected none".to_owned());
        }
        if self.max_wait.is_zero() {
            return fail("max_wait", "expected a time above 0".to_owned());
        }
        for (option, target) in [("ttft_target", self.slo.ttft), ("tpot_target", self.slo.tpot)] {
            if target.is_some_and(|target| target.is_zero()) {
                return fail(option, "expected a time above 0".to_owned());
            }
        }
        self.check_tenants().map_or(Ok(()), |why| fail("tenants", why))
    }

    /// The part of it that is the engine's.
    fn engine(&self) -> SchedulingConfig {
        SchedulingConfig {
            policy: self.policy,
            priority_order: self.priority_order,
            max_wait: self.max_wait,
            batching: self.batching,
            kv_allocation: self.kv_allocation,
            prefix_cache: self.prefix_cache,
            eviction: self.eviction,
            preemption: self.preemption,
            tenants: self.tenants.clone(),
        }
    }

    /// What is wrong with the tenants, if anything is.
    fn check_tenants(&self) -> Option<String> {
        let n_tenants = self.tenants.len();
        if !(1..=limits::TENANTS).contains(&n_tenants) {
            return Some(format!("expected from 1 to {}, got {n_tenants}", limits::TENANTS));
        }
        let mut names = HashSet::new();
        for TenantConfig { name, weight, max_waiting, slo } in &self.tenants {
            let is_decent = (1..=limits::TENANT_NAME_BYTES).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_decent {
                let most = limits::TENANT_NAME_BYTES;
                return Some(format!("a name is 1 to {most} visible ASCII letters, got {name:?}"));
            }
            if !names.insert(name) {
                return Some(format!("there are two of the name `{name}`"));
            }
            if *weight == 0 {
                return Some(format!("`{name}`: expected a weight of at least 1, got 0"));
            }
            if *max_waiting == 0 {
                return Some(format!("`{name}`: expected max_waiting of at least 1, got 0"));
            }
            if [slo.ttft, slo.tpot].into_iter().flatten().any(|target| target.is_zero()) {
                return Some(format!("`{name}`: expected targets above 0"));
            }
        }
        None
    }
}

impl LlmOptions {
    /// What the engine is told, for sequences of up to `context_tokens` tokens.
    pub(crate) fn engine(&self, context_tokens: usize) -> EngineConfig {
        EngineConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_chunk_tokens: self.max_batch_tokens,
            max_running_requests: self.max_running,
            max_waiting_requests: self.max_waiting,
            max_context_tokens: context_tokens,
            slo: self.scheduling.slo,
            scheduling: self.scheduling.engine(),
            spec: self.spec,
            ..EngineConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused_by_option() {
        let plain = Scheduling::default;
        let tenants = |names: &[(&str, u32)]| {
            let tenant = |&(name, weight): &(&str, u32)| TenantConfig {
                name: name.to_owned(),
                weight,
                ..TenantConfig::default()
            };
            Scheduling { tenants: names.iter().map(tenant).collect(), ..plain() }
        };
        let swap = PreemptionMode::Swap;
        for (option, scheduling) in [
            ("preemption", Scheduling { preemption: swap, ..plain() }),
            (
                "swap_memory",
                Scheduling { preemption: PreemptionMode::Recompute, swap_bytes: 1, ..plain() },
            ),
            ("max_wait", Scheduling { max_wait: Duration::ZERO, ..plain() }),
            (
                "tpot_target",
                Scheduling { slo: Slo { ttft: None, tpot: Some(Duration::ZERO) }, ..plain() },
            ),
            ("tenants", tenants(&[])),
            ("tenants", tenants(&[("a", 1), ("b", 0)])),
            ("tenants", tenants(&[("a", 1), ("a", 1)])),
            ("tenants", tenants(&[("a b", 1)])),
            ("tenants", tenants(&[("", 1)])),
        ] {
            let error = scheduling.check().expect_err(option).to_string();
            assert!(error.contains(option), "{option}: {error}");
        }
        tenants(&[("a", 1), ("b", 7)]).check().expect("two tenants");
        Scheduling { preemption: swap, swap_bytes: 1 << 30, ..plain() }.check().expect("swapping");
        plain().check().expect("the defaults");
    }
}
