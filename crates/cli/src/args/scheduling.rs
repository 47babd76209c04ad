//! Flags that say who goes first, and what becomes of the keys and values of the others.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pelton_llm::{LlmOptions, Verification};
use pelton_sched::{
    Batching, Choices, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder,
    TenantConfig,
};

use super::SpecArgs;
use crate::failure::Result;
use crate::units::{parse_bytes, parse_milliseconds, parse_seconds};

/// How requests share the machine; what is absent comes from the file of `--config`, else from the
/// scheduler.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Scheduling")]
pub(crate) struct SchedulingArgs {
    /// Who goes first: by arrival, by priority, longest cached prefix, least time left to its
    /// target, or a fair share per tenant [default: fcfs]
    #[arg(long, env = "PELTON_POLICY", value_parser = choice::<PolicyKind>())]
    pub(crate) policy: Option<PolicyKind>,
    /// Which priorities go first, the low numbers as in vLLM or the high ones as in SGLang
    /// [default: low-first]
    #[arg(long, env = "PELTON_PRIORITY_ORDER", value_name = "ORDER",
        value_parser = choice::<PriorityOrder>())]
    pub(crate) priority_order: Option<PriorityOrder>,
    /// Target for the time to the first token of requests that state none
    #[arg(long, env = "PELTON_TTFT_TARGET", value_name = "MS", value_parser = parse_milliseconds)]
    pub(crate) ttft_target: Option<Duration>,
    /// Target for the time per further token of requests that state none
    #[arg(long, env = "PELTON_TPOT_TARGET", value_name = "MS", value_parser = parse_milliseconds)]
    pub(crate) tpot_target: Option<Duration>,
    /// Whoever waited this long goes first, whatever the policy says [default: 60]
    #[arg(long, env = "PELTON_MAX_WAIT", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) max_wait: Option<Duration>,
    /// When requests may join: at every step, or when all that ran have ended [default: continuous]
    #[arg(long, env = "PELTON_BATCHING", value_parser = choice::<Batching>())]
    pub(crate) batching: Option<Batching>,
    /// Keys and values block by block, or at once what the longest request could need [default:
    /// paged]
    #[arg(long, env = "PELTON_KV_ALLOCATION", value_name = "KIND",
        value_parser = choice::<KvAllocation>())]
    pub(crate) kv_allocation: Option<KvAllocation>,
    /// Compute every prompt anew instead of sharing what begins alike
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// What the prefix cache forgets first: the longest unused, or the cheapest [default: lru]
    #[arg(long, env = "PELTON_CACHE_EVICTION", value_name = "KIND",
        value_parser = choice::<Eviction>())]
    pub(crate) cache_eviction: Option<Eviction>,
    /// What becomes of a request that must give way [default: by-cost]
    #[arg(long, env = "PELTON_PREEMPTION", value_name = "KIND",
        value_parser = choice::<PreemptionMode>())]
    pub(crate) preemption: Option<PreemptionMode>,
    /// Memory for keys and values of requests that gave way, such as 4GiB [default: none]
    #[arg(long, env = "PELTON_SWAP_MEMORY", value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) swap_memory: Option<u64>,
    /// Memory for keys and values, such as 4GiB [default: what all requests can use, at most half
    /// of what the machine has left]
    #[arg(long, env = "PELTON_KV_MEMORY", value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// Whether and how tokens are guessed.
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// Most tokens computed in one step, over all requests [default: 512]
    #[arg(long, env = "PELTON_MAX_BATCH_TOKENS", value_name = "N")]
    pub(crate) max_batch_tokens: Option<NonZeroUsize>,
    /// Most requests answered at the same time; others wait [default: 64]
    #[arg(long, env = "PELTON_MAX_RUNNING", value_name = "N")]
    pub(crate) max_running: Option<NonZeroUsize>,
    /// Tokens per block of keys and values [default: 16]
    #[arg(long, env = "PELTON_BLOCK_SIZE", value_name = "N")]
    pub(crate) block_size: Option<NonZeroUsize>,
}

impl SchedulingArgs {
    /// Adds these flags to the options of a model.
    ///
    /// # Errors
    ///
    /// Names the flag that contradicts another.
    pub(crate) fn apply(
        &self,
        default: LlmOptions,
        tenants: Vec<TenantConfig>,
        share_prefixes: bool,
    ) -> Result<LlmOptions> {
        let options = LlmOptions {
            block_size: self.block_size.map_or(default.block_size, NonZeroUsize::get),
            kv_bytes: self.kv_memory.or(default.kv_bytes),
            swap_bytes: self.swap_memory.unwrap_or(default.swap_bytes),
            share_prefixes,
            choices: self.choices(tenants),
            ..self.spec.apply(default)?
        };
        options.check_scheduling()?;
        Ok(options)
    }

    /// The scheduler's choices for these tenants.
    fn choices(&self, tenants: Vec<TenantConfig>) -> Choices {
        let mut choices = Choices { tenants, ..Choices::default() };
        fn set<T: Copy>(place: &mut T, value: Option<T>) {
            *place = value.unwrap_or(*place);
        }
        set(&mut choices.policy, self.policy);
        set(&mut choices.priority_order, self.priority_order);
        set(&mut choices.max_wait, self.max_wait);
        set(&mut choices.batching, self.batching);
        set(&mut choices.kv_allocation, self.kv_allocation);
        set(&mut choices.eviction, self.cache_eviction);
        set(&mut choices.preemption, self.preemption);
        set(&mut choices.max_running, self.max_running.map(NonZeroUsize::get));
        set(&mut choices.max_batch_tokens, self.max_batch_tokens.map(NonZeroUsize::get));
        choices.slo.ttft = self.ttft_target;
        choices.slo.tpot = self.tpot_target;
        choices.prefix_cache = !self.no_prefix_cache;
        choices
    }
}

/// A type with few values, each of which has a name.
pub(crate) trait Choice: Copy + Send + Sync + 'static {
    /// Every value.
    fn all() -> &'static [Self];
    /// Its name on the command line and in files.
    fn name(self) -> &'static str;

    /// The value of this name.
    fn named(name: &str) -> Option<Self> {
        Self::all().iter().copied().find(|value| value.name() == name)
    }
}

macro_rules! choices {
    ($($type:ty),+) => {$(
        impl Choice for $type {
            fn all() -> &'static [Self] {
                Self::ALL
            }

            fn name(self) -> &'static str {
                self.name()
            }
        }
    )+};
}
choices!(PolicyKind, PriorityOrder, Batching, KvAllocation, Eviction, PreemptionMode, Verification);

/// Reads the name of a value; knows all of them, for the help.
pub(super) fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::all().iter().map(|value| value.name()))
        .map(|name| T::named(&name).expect("invariant: only names of values are let through"))
}
