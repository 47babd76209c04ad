//! Flags of `pelton plan advise`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use pelton_plan::advise::Goal;

use super::workload::named;
use crate::units::parse_bytes;

pub(super) const ADVISE_HELP_END: &str = "\
Examples:
  pelton plan advise
  pelton plan advise Llama-3.1-8B/config.json --hardware rtx-4090 --scenario rag
  pelton plan advise model.gguf --goal throughput --batch 32 --loss 0.1 --write serve.yaml
  pelton plan advise model.gguf --trace requests.txt --goal latency --json

Scenarios: chat, rag, agents, batch, code, edge; single flags change one. Each step is the technique that
helps the goal most on top of those before; its gain is the ratio of two plans. Only the configuration of
the model is read. Gains of drafts rest on a guess of how often they are right: `pelton bench spec`
measures it.";

/// Flags of `pelton plan advise`.
#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    /// Folder, config.json, .gguf file, name from `pelton list` or hub id (owner/name,
    /// owner/name:Q4_K_M) [default: PELTON_MODEL, else the small model inside the binary]
    model: Option<String>,
    /// Figure to improve [default: that of the scenario]
    #[arg(long, value_name = "GOAL", value_parser = named(Goal::ALL, Goal::name))]
    pub(crate) goal: Option<Goal>,
    /// Workload by name
    #[arg(long, value_name = "NAME", default_value = "chat", help_heading = "Workload")]
    pub(crate) scenario: String,
    /// Lengths and shared beginnings of the requests of a file, as `bench serve --trace` reads it
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["input", "output", "shared_prefix"],
        help_heading = "Workload"
    )]
    pub(crate) trace: Option<PathBuf>,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", value_parser = tokens, help_heading = "Workload")]
    pub(crate) input: Option<NonZeroUsize>,
    /// Tokens of an answer
    #[arg(long, value_name = "N", value_parser = tokens, help_heading = "Workload")]
    pub(crate) output: Option<NonZeroUsize>,
    /// Requests at the same time
    #[arg(long, value_name = "N", value_parser = requests, help_heading = "Workload")]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Share of a prompt that an earlier one began with, from 0 to 0.99
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Workload")]
    pub(crate) shared_prefix: Option<f64>,
    /// Share of drafted tokens that are right, from 0 to 0.99
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Workload")]
    pub(crate) acceptance: Option<f64>,
    /// Profile of a machine, such as h100-sxm, or `here` [default: here]
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub(crate) hardware: Option<String>,
    /// Memory, such as 24GiB [default: what the machine has]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Limits")]
    pub(crate) memory: Option<u64>,
    /// Largest loss of perplexity by formats of weights, in per cent; 0 also keeps 16-bit keys and
    /// values
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent, help_heading = "Limits")]
    pub(crate) loss: f64,
    /// Price of the machine for an hour, in any currency
    #[arg(long, value_name = "PRICE", value_parser = super::plan::price, help_heading = "Output")]
    pub(crate) price_per_hour: Option<f64>,
    /// Serve the workload here with the steps one after the other, and put the measured gains
    /// beside the expected ones; weights stay as they are
    #[arg(long, conflicts_with = "hardware", help_heading = "Output")]
    pub(crate) measure: bool,
    /// Write the settings for `pelton serve --config`; replace a file only if this command wrote it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) write: Option<PathBuf>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl AdviseArgs {
    /// The model named.
    pub(crate) fn model(&self) -> Option<String> {
        self.model.clone().or_else(|| std::env::var("PELTON_MODEL").ok())
    }
}

/// Tokens of a prompt or an answer: a plan takes time in proportion.
fn tokens(text: &str) -> Result<NonZeroUsize, String> {
    count(text, 1 << 24)
}

fn requests(text: &str) -> Result<NonZeroUsize, String> {
    count(text, 1 << 16)
}

fn count(text: &str, most: usize) -> Result<NonZeroUsize, String> {
    let n = text.parse::<NonZeroUsize>().ok().filter(|n| n.get() <= most);
    n.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=0.99).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 0.99".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected per cent from 0 to 100".to_owned())
}
