//! Flags of `pelton plan`.

use std::num::NonZeroUsize;

use clap::{Args, Subcommand};
use pelton_model::{KvDtype, StateDtype};
use pelton_plan::Split;

use super::advise::{ADVISE_HELP_END, AdviseArgs};
use super::workload::named;
use crate::failure::{Failure, Result};
use crate::flags::KvArgs;
use crate::units::parse_bytes;

pub(super) const HELP_END: &str = "\
Examples:
  pelton plan Llama-3.1-8B/config.json --hardware h100-sxm --weights bf16 --batch 32 --context 8192
  pelton plan model.gguf --memory 16GiB --batch 4
  pelton plan Qwen/Qwen3-30B-A3B --hardware rtx-4090 --weights q4_k
  pelton plan ./my-model --hardware rtx-4090 --table --weights bf16,q8_0,q4_k
  pelton plan ./my-model --hardware h200 --ranks 4 --price-per-hour 3.50 --json
  pelton plan advise ./my-model --scenario rag --memory 16GiB --write serve.yaml

Only the configuration is read: a folder with config.json (weights need not be there), the file itself,
the header of a GGUF file, or a model of `pelton list`. Of another model of the hub, config.json or the
header of its GGUF file is fetched, and no weights.

Without --hardware the plan is for this machine, as `pelton doctor` measured it. The profiles of other
machines have the peaks of their datasheets, so their times are bounds that no program is faster than.

Keys and values take what the server allocates: whole blocks of 16 tokens in every layer, also in
layers with a window, and one block more. A plan that does not fit says by how much, and which single
changes would make it fit.";

/// The questions beside the plan of one configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Name the techniques that help a workload on a machine, in order, with their expected gains
    #[command(after_help = ADVISE_HELP_END)]
    Advise(Box<AdviseArgs>),
}

/// Flags of `pelton plan`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PlanArgs {
    /// Another question than the plan of one configuration.
    #[command(subcommand)]
    pub(crate) command: Option<PlanCommand>,
    /// Folder, config.json, .gguf file, name from `pelton list` or hub id (owner/name,
    /// owner/name:Q4_K_M) [default: PELTON_MODEL, else the small model inside the binary]
    #[arg(conflicts_with = "model_flag")]
    model: Option<String>,
    /// The model, spelled as in other commands
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    model_flag: Option<String>,
    /// Profile of a machine, such as h100-sxm, or `here` [default: here]
    #[arg(long, value_name = "NAME", help_heading = "Machine")]
    pub(crate) hardware: Option<String>,
    /// Memory of one machine, such as 24GiB [default: what the machine has]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Machine")]
    pub(crate) memory: Option<u64>,
    /// Machines that run the model together
    #[arg(long, value_name = "N", default_value = "1", value_parser = ranks, help_heading = "Machine")]
    pub(crate) ranks: usize,
    /// How they share it: each matrix by its outputs, the layers one machine after the other, or
    /// the experts [default: outputs]
    #[arg(
        long,
        value_name = "HOW",
        value_parser = named(Split::ALL, Split::name),
        help_heading = "Machine"
    )]
    split: Option<Split>,
    /// Price of one machine for an hour, in any currency
    #[arg(long, value_name = "PRICE", value_parser = price, help_heading = "Machine")]
    pub(crate) price_per_hour: Option<f64>,
    /// Format of the weights, such as q4_k; several for --table [default: as stored, else bf16]
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', help_heading = "Workload")]
    pub(crate) weights: Vec<String>,
    /// Storage of keys, values and states.
    #[command(flatten)]
    kv: KvArgs,
    /// Most tokens of a sequence; several for --table [default: 8192, or what the model reaches]
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Workload")]
    pub(crate) context: Vec<NonZeroUsize>,
    /// Sequences at the same time
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Workload")]
    pub(crate) batch: NonZeroUsize,
    /// Tokens of a prompt [default: 512, or half of the context]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    pub(crate) input: Option<NonZeroUsize>,
    /// Tokens of an answer [default: 128, or a quarter of the context]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    pub(crate) output: Option<NonZeroUsize>,
    /// Most tokens of one step, as --max-batch-tokens of the server
    #[arg(long, value_name = "N", default_value = "512", help_heading = "Workload")]
    pub(crate) step_tokens: NonZeroUsize,
    /// Formats in rows, contexts in columns: how many sequences fit
    #[arg(
        long,
        conflicts_with_all = ["input", "output", "price_per_hour"],
        help_heading = "Output"
    )]
    pub(crate) table: bool,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl PlanArgs {
    /// The value of `--split`.
    pub(crate) fn split(&self) -> Split {
        self.split.unwrap_or(Split::Outputs)
    }

    /// Refuses `--split` where there is nothing to share, and a price where no time is known.
    ///
    /// # Errors
    ///
    /// Names the flag.
    pub(crate) fn check(&self, is_timed: bool) -> Result<()> {
        if let (Some(split), 1) = (self.split, self.ranks) {
            let message = format!("`--split {}` with one machine: nothing is shared", split.name());
            return Err(Failure::new(message).hint("`--ranks` takes the number of machines"));
        }
        if self.price_per_hour.is_some() && !is_timed {
            let why = "no speed of this machine is known, so tokens have no price";
            return Err(Failure::new(format!("`--price-per-hour`: {why}"))
                .hint("`pelton doctor` measures this machine, `--hardware` names another"));
        }
        Ok(())
    }

    /// The value of `--kv-dtype`.
    pub(crate) fn kv_dtype(&self) -> KvDtype {
        self.kv.chosen().llm.kv_dtype.unwrap_or(KvDtype::Bf16)
    }

    /// The value of `--state-dtype`.
    pub(crate) fn state_dtype(&self) -> StateDtype {
        self.kv.chosen().llm.state_dtype
    }

    /// The model named, whichever way.
    pub(crate) fn model(&self) -> Option<String> {
        let named = self.model_flag.as_ref().or(self.model.as_ref()).cloned();
        named.or_else(|| std::env::var("PELTON_MODEL").ok())
    }
}

fn ranks(text: &str) -> std::result::Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=1024).contains(n));
    n.ok_or_else(|| "expected a whole number from 1 to 1024".to_owned())
}

pub(super) fn price(text: &str) -> std::result::Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| *price >= 0.0 && *price <= 1e9);
    price.ok_or_else(|| "expected a price such as 2.50".to_owned())
}
