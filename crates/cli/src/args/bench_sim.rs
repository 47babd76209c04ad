//! Flags of `pelton bench sim`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::Args;
use pelton_base::limits;
use pelton_sched::{Choices, SchedulerConfig};
use pelton_sim::Prices;
use pelton_sim::trace::Tenants;

use super::workload::{TenantArgs, WorkloadArgs};
use crate::bench::Named;
use crate::failure::{Failure, Result};
use crate::flags::Lists;

pub(super) const SIM_HELP_END: &str = "\
Examples:
  pelton bench sim
  pelton bench sim --workload mixed --policy fcfs,sla --ttft-target 2000
  pelton bench sim --workload tenants --policy fcfs --policy fair --tenant-weight many=1,few=1
  pelton bench sim --workload shared-prefix --prefix-cache on,off --json
  pelton bench sim --batching continuous,static --kv-allocation paged,contiguous -n 100000
  pelton bench sim --workload long-tail --save-trace tail.txt; pelton bench sim --trace tail.txt

The scheduler is the real one, prices stand for the model, and the clock is virtual, so that an hour
of service takes seconds. A list simulates each of its values on the same requests (several lists:
every combination) and compares the later ones with the first. The default prices are those of a model
of half a billion weights on two threads; --prices reads others from a file such as
{\"base_ms\": 18, \"token_ms\": 1.3, \"sample_ms\": 0.05, \"attended_ms\": 0.0003, \"moved_block_ms\": 0.02}.
Ctrl-C ends early and reports the requests so far.";

/// Flags of `pelton bench sim`.
#[derive(Args, Debug)]
pub(crate) struct BenchSimArgs {
    /// The requests that are served.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// How its tenants are treated.
    #[command(flatten)]
    tenants: TenantArgs,
    /// Choices that are compared.
    #[command(flatten)]
    choices: Lists,
    /// Accept every request that fits, even if it will miss its target
    #[arg(long, help_heading = "Scheduling")]
    no_admission: bool,
    /// Most tokens of one request in one step
    #[arg(long, value_name = "N", default_value = "512", help_heading = "Scheduling")]
    max_chunk_tokens: NonZeroUsize,
    /// Most tokens of one request, prompt and answer together [default: as many as the blocks hold]
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    max_context: Option<NonZeroUsize>,
    /// Blocks of keys and values
    #[arg(long, value_name = "N", default_value = "4096", help_heading = "Scheduling")]
    blocks: NonZeroU32,
    /// Blocks of the swap store in host memory
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Scheduling")]
    host_blocks: u32,
    /// Tokens per block
    #[arg(long, value_name = "N", default_value = "16", help_heading = "Scheduling")]
    block_size: NonZeroUsize,
    /// JSON file with the prices of a step
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    prices: Option<PathBuf>,
    /// Milliseconds per step, in addition to those below [default: 18]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    base_ms: Option<f64>,
    /// Milliseconds per token [default: 1.3]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    token_ms: Option<f64>,
    /// Milliseconds per row whose logits are computed [default: 0.05]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    sample_ms: Option<f64>,
    /// Milliseconds per pair of a token and an earlier token that it attends to [default: 0.0003]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    attended_ms: Option<f64>,
    /// Milliseconds per block copied to or from the host [default: 0.02]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, help_heading = "Machine")]
    moved_block_ms: Option<f64>,
    /// Standard deviation of the time of a step, relative to that time, such as 0.1
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_noise, help_heading = "Machine")]
    pub(crate) noise: f64,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Check the scheduler's invariants in every step, which is many times slower
    #[arg(long, help_heading = "Output")]
    pub(crate) check: bool,
}

/// One of the configurations that are compared.
#[derive(Clone, Debug)]
pub(crate) struct SimVariant {
    /// The values in which it differs from the other variants; else its policy.
    pub(crate) name: String,
    /// Its sizes and choices.
    pub(crate) scheduler: SchedulerConfig,
}

impl BenchSimArgs {
    /// Every combination of the values of the lists, the last list changing fastest.
    ///
    /// # Errors
    ///
    /// Weights of tenants that the trace does not have, choices out of their range, sizes without
    /// room for a request.
    pub(crate) fn variants(&self, tenants: &Tenants) -> Result<Vec<SimVariant>> {
        let choices = Choices {
            max_chunk_tokens: Some(self.max_chunk_tokens.get()),
            tenants: self.tenants.tenants(tenants)?,
            ..Choices::default()
        };
        let variant = |(name, choices): (String, Choices)| {
            choices.check()?;
            let name = if name.is_empty() { choices.policy.name().to_owned() } else { name };
            Ok(SimVariant { name, scheduler: self.scheduler(choices)? })
        };
        self.choices.combinations(choices).into_iter().map(variant).collect()
    }

    /// Whether requests are judged before they are taken.
    pub(crate) fn admission(&self) -> bool {
        !self.no_admission
    }

    /// The file of `--prices`.
    pub(crate) fn input(&self) -> Named<'_> {
        ("--prices", self.prices.as_deref())
    }

    /// Prices of steps: the file's prices, and over them those of the flags.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or holds something else.
    pub(crate) fn prices(&self) -> Result<Prices> {
        let file = match &self.prices {
            None => Prices::default(),
            Some(path) => {
                let at = |failure: Failure| failure.at(&path.display().to_string());
                let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES);
                let text = text.map_err(|error| at(error.into()))?;
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

    /// A scheduler with these choices.
    fn scheduler(&self, choices: Choices) -> Result<SchedulerConfig> {
        let config = SchedulerConfig {
            n_host_blocks: self.host_blocks,
            max_context: self.max_context.map_or(usize::MAX, NonZeroUsize::get),
            choices,
            ..SchedulerConfig::new(self.blocks.get(), self.block_size.get())
        };
        if config.context_tokens() < 2 {
            let message = "--blocks and --max-context leave no room for a prompt and an answer";
            return Err(Failure::new(message));
        }
        Ok(config)
    }
}

fn parse_noise(text: &str) -> std::result::Result<f64, String> {
    let noise = text.parse::<f64>().ok().filter(|noise| (0.0..=1.0).contains(noise));
    noise.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
