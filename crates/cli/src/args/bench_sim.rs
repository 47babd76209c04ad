//! Flags of `pelton bench sim`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pelton_base::Slo;
use pelton_sched::{
    Batching, Choices, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder,
    SchedulerConfig,
};
use pelton_sim::Prices;
use pelton_sim::trace::Tenants;

use super::workload::{WorkloadArgs, named};
use crate::failure::{Failure, Result};

pub(super) const SIM_HELP_END: &str = "\
Examples:
  pelton bench sim
  pelton bench sim --workload mixed --policy fcfs,sla --ttft-target 2000
  pelton bench sim --workload tenants --policy fcfs --policy fair --tenant-weight many=1,few=1
  pelton bench sim --workload shared-prefix --prefix-cache on,off --json
  pelton bench sim --batching continuous,static --kv-allocation paged,contiguous -n 100000
  pelton bench sim --workload long-tail --save-trace tail.txt; pelton bench sim --trace tail.txt

The scheduler is the real one; the model is only its prices, and the clock is virtual: an hour of
service takes a moment. A list of values simulates each of them (several lists: each with each) on
the same requests, and tells how the later ones relate to the first. Prices are those of a model of
half a billion weights on two threads unless told otherwise; --prices takes a file such as
{\"base_ms\": 18, \"token_ms\": 1.3, \"sample_ms\": 0.05, \"attended_ms\": 0.0003, \"moved_block_ms\": 0.02}.
Ctrl-C ends with what was simulated so far.";

/// Flags of `pelton bench sim`.
#[derive(Args, Debug)]
pub(crate) struct BenchSimArgs {
    /// What is served.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Who goes first; a list compares
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(PolicyKind::ALL, PolicyKind::name),
        default_value = "fcfs",
        help_heading = "Scheduling"
    )]
    policy: Vec<PolicyKind>,
    /// When requests may join those that run; a list compares
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(Batching::ALL, Batching::name),
        default_value = "continuous",
        help_heading = "Scheduling"
    )]
    batching: Vec<Batching>,
    /// How much KV a request takes: as it grows, or all at once; a list compares
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(KvAllocation::ALL, KvAllocation::name),
        default_value = "paged",
        help_heading = "Scheduling"
    )]
    kv_allocation: Vec<KvAllocation>,
    /// What becomes of the KV of a request that gives way; a list compares
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(PreemptionMode::ALL, PreemptionMode::name),
        default_value = "by-cost",
        help_heading = "Scheduling"
    )]
    preemption: Vec<PreemptionMode>,
    /// What the prefix cache forgets first; a list compares
    #[arg(
        long,
        alias = "eviction",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(Eviction::ALL, Eviction::name),
        default_value = "lru",
        help_heading = "Scheduling"
    )]
    cache_eviction: Vec<Eviction>,
    /// Whether requests share cached prefixes; a list compares
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = named(&[true, false], on_or_off),
        default_value = "on",
        help_heading = "Scheduling"
    )]
    prefix_cache: Vec<bool>,
    /// The same as --prefix-cache off
    #[arg(long, conflicts_with = "prefix_cache", help_heading = "Scheduling")]
    no_prefix_cache: bool,
    /// Which priorities go first
    #[arg(
        long,
        value_name = "ORDER",
        value_parser = named(PriorityOrder::ALL, PriorityOrder::name),
        default_value = "low-first",
        help_heading = "Scheduling"
    )]
    priority_order: PriorityOrder,
    /// Milliseconds to the first token that requests are due unless they say otherwise
    #[arg(long, value_name = "MS", value_parser = parse_ms, help_heading = "Scheduling")]
    ttft_target: Option<Duration>,
    /// Milliseconds per token after the first that requests are due unless they say otherwise
    #[arg(long, value_name = "MS", value_parser = parse_ms, help_heading = "Scheduling")]
    tpot_target: Option<Duration>,
    /// Take every request that fits, also when it will be late
    #[arg(long, help_heading = "Scheduling")]
    no_admission: bool,
    /// Most tokens of one step
    #[arg(long, value_name = "N", default_value = "512", help_heading = "Scheduling")]
    max_batch_tokens: NonZeroUsize,
    /// Most tokens that one request gets in one step
    #[arg(long, value_name = "N", default_value = "512", help_heading = "Scheduling")]
    max_chunk_tokens: NonZeroUsize,
    /// Most requests running at once
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Scheduling")]
    max_running: NonZeroUsize,
    /// Most tokens of one request, prompt and answer together [default: what the blocks hold]
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    max_context: Option<NonZeroUsize>,
    /// Blocks of keys and values
    #[arg(long, value_name = "N", default_value = "4096", help_heading = "Scheduling")]
    blocks: NonZeroU32,
    /// Blocks of the swap store in host memory
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Scheduling")]
    host_blocks: u32,
    /// Tokens of one block
    #[arg(long, value_name = "N", default_value = "16", help_heading = "Scheduling")]
    block_size: NonZeroUsize,
    /// Prices of a step's parts as JSON
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    prices: Option<PathBuf>,
    /// Milliseconds of a step, whatever it holds [default: 18]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    base_ms: Option<f64>,
    /// Milliseconds of a token [default: 1.3]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    token_ms: Option<f64>,
    /// Milliseconds of a row whose logits are computed [default: 0.05]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    sample_ms: Option<f64>,
    /// Milliseconds of a pair of a token and one that it attends to [default: 0.0003]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    attended_ms: Option<f64>,
    /// Milliseconds of a block copied to or from the host [default: 0.02]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    moved_block_ms: Option<f64>,
    /// Deviation of a step's time, relative to it, such as 0.1
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_noise, help_heading = "Machine")]
    pub(crate) noise: f64,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Check the scheduler in every step, which takes many times as long
    #[arg(long, help_heading = "Output")]
    pub(crate) check: bool,
}

/// One configuration of those that are compared.
#[derive(Clone, Debug)]
pub(crate) struct SimVariant {
    /// What distinguishes it from the others; its policy where nothing does.
    pub(crate) name: String,
    /// Its limits and choices.
    pub(crate) scheduler: SchedulerConfig,
}

impl BenchSimArgs {
    /// Every combination of what the lists say, the last list changing fastest.
    ///
    /// # Errors
    ///
    /// Weights of tenants that the trace does not have.
    pub(crate) fn variants(&self, tenants: &Tenants) -> Result<Vec<SimVariant>> {
        let base = self.scheduler(tenants)?;
        let caches: &[bool] = if self.no_prefix_cache { &[false] } else { &self.prefix_cache };
        let mut variants = vec![SimVariant { name: String::new(), scheduler: base }];
        cross(&mut variants, &self.policy, PolicyKind::name, |config, x| config.choices.policy = x);
        cross(&mut variants, &self.batching, Batching::name, |config, x| {
            config.choices.batching = x
        });
        cross(&mut variants, &self.kv_allocation, KvAllocation::name, |config, x| {
            config.choices.kv_allocation = x;
        });
        cross(&mut variants, &self.preemption, PreemptionMode::name, |config, x| {
            config.choices.preemption = x;
        });
        cross(&mut variants, &self.cache_eviction, Eviction::name, |config, x| {
            config.choices.eviction = x;
        });
        let cache = |on| if on { "cache" } else { "no cache" };
        cross(&mut variants, caches, cache, |config, x| config.choices.prefix_cache = x);
        for variant in &mut variants {
            if variant.name.is_empty() {
                variant.name = variant.scheduler.choices.policy.name().to_owned();
            }
        }
        Ok(variants)
    }

    /// Whether requests are judged before they are taken.
    pub(crate) fn admission(&self) -> bool {
        !self.no_admission
    }

    /// What steps cost: the file's prices, and over them those of the flags.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or holds something else.
    pub(crate) fn prices(&self) -> Result<Prices> {
        let file = match &self.prices {
            None => Prices::default(),
            Some(path) => {
                let at = |failure: Failure| failure.at(&path.display().to_string());
                let text = std::fs::read_to_string(path).map_err(|error| at(error.into()))?;
                serde_json::from_str(&text).map_err(|error| at(error.into()))?
            }
        };
        Ok(Prices {
            base_ms: self.base_ms.unwrap_or(file.base_ms),
            token_ms: self.token_ms.unwrap_or(file.token_ms),
            sample_ms: self.sample_ms.unwrap_or(file.sample_ms),
            attended_ms: self.attended_ms.unwrap_or(file.attended_ms),
            moved_block_ms: self.moved_block_ms.unwrap_or(file.moved_block_ms),
        })
    }

    /// What all variants have in common.
    fn scheduler(&self, tenants: &Tenants) -> Result<SchedulerConfig> {
        let configs = self.workload.tenants(tenants)?;
        let config = SchedulerConfig {
            n_host_blocks: self.host_blocks,
            max_context: self.max_context.map_or(usize::MAX, NonZeroUsize::get),
            choices: Choices {
                max_batch_tokens: self.max_batch_tokens.get(),
                max_running: self.max_running.get(),
                max_chunk_tokens: Some(self.max_chunk_tokens.get()),
                priority_order: self.priority_order,
                slo: Slo { ttft: self.ttft_target, tpot: self.tpot_target },
                tenants: configs,
                ..Choices::default()
            },
            ..SchedulerConfig::new(self.blocks.get(), self.block_size.get())
        };
        if config.context_tokens() < 2 {
            let message = "--blocks and --max-context leave no room for a prompt and an answer";
            return Err(Failure::new(message));
        }
        Ok(config)
    }
}

/// Puts each of `values` on each of `variants`; they are named after it only where there are several.
fn cross<T: Copy>(
    variants: &mut Vec<SimVariant>,
    values: &[T],
    name: impl Fn(T) -> &'static str,
    set: impl Fn(&mut SchedulerConfig, T),
) {
    let mut crossed = Vec::with_capacity(variants.len() * values.len());
    for variant in variants.iter() {
        for &value in values {
            let mut variant = variant.clone();
            set(&mut variant.scheduler, value);
            if values.len() > 1 {
                let space = if variant.name.is_empty() { "" } else { " " };
                variant.name = format!("{}{space}{}", variant.name, name(value));
            }
            crossed.push(variant);
        }
    }
    *variants = crossed;
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn parse_ms(text: &str) -> std::result::Result<Duration, String> {
    let ms = text.parse::<f64>().ok().filter(|ms| *ms > 0.0 && *ms <= 1e9);
    let ms = ms.ok_or_else(|| "expected milliseconds above 0, up to 1000000000".to_owned())?;
    Ok(Duration::from_nanos(((ms * 1e6).round() as u64).max(1)))
}

fn parse_noise(text: &str) -> std::result::Result<f64, String> {
    let noise = text.parse::<f64>().ok().filter(|noise| (0.0..=1.0).contains(noise));
    noise.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
