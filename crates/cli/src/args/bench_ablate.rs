//! Flags of `pelton bench ablate`.

use std::num::NonZeroUsize;

use clap::Args;

use super::workload::WorkloadArgs;
use crate::failure::{Failure, Result};
use crate::flags::{Chosen, ModelArgs, set_key, table};

pub(super) const ABLATE_HELP_END: &str = "\
Examples:
  pelton bench ablate
  pelton bench ablate -m model.gguf --clients 16 --workload shared-prefix --scale 0.25
  pelton bench ablate -m model-bf16.gguf --technique model=model-q8_0.gguf,max_running=8,spec=suffix

The workload is served by a plain server (one request at a time, no prefix cache, bf16 keys and values, no
drafts), by the plain server with each technique alone, and with one technique after the other, each once
per round. Techniques are KEY=VALUE as in the file of `pelton serve --config`; without --technique those
are max_running, prefix_cache, kv_dtype=int8 and spec=auto. Clients send a request when another has ended.
Ctrl-C ends early and prints the rounds so far.";

/// Settings of the plain server.
const PLAIN: [(&str, &str); 4] =
    [("max_running", "1"), ("prefix_cache", "false"), ("kv_dtype", "bf16"), ("spec", "off")];

/// Flags of `pelton bench ablate`.
#[derive(Args, Debug)]
pub(crate) struct BenchAblateArgs {
    /// Where the model is.
    #[command(flatten)]
    model: ModelArgs,
    /// The workload.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Techniques in the order in which they are stacked [default: max_running=CLIENTS,
    /// prefix_cache=true,kv_dtype=int8,spec=auto]
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    technique: Vec<String>,
    /// Requests under way
    #[arg(long, value_name = "N", default_value = "8", help_heading = "Workload")]
    clients: NonZeroUsize,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroUsize,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchAblateArgs {
    /// The name of the model.
    pub(crate) fn model(&self) -> String {
        self.model.chosen().model
    }

    /// The value of `--clients`.
    pub(crate) fn clients(&self) -> usize {
        self.clients.get()
    }

    /// The value of `--rounds`.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.get()
    }

    /// The techniques, as they are written in a file.
    pub(crate) fn techniques(&self) -> Vec<String> {
        if !self.technique.is_empty() {
            return self.technique.clone();
        }
        let batching = format!("max_running={}", self.clients);
        vec![
            batching,
            "prefix_cache=true".to_owned(),
            "kv_dtype=int8".to_owned(),
            "spec=auto".to_owned(),
        ]
    }

    /// The plain server with these techniques.
    ///
    /// # Errors
    ///
    /// A technique that is no setting of a model, and settings that contradict each other.
    pub(crate) fn chosen(&self, techniques: &[String]) -> Result<Chosen> {
        let keys = techniques.iter().filter_map(|technique| technique.split_once('='));
        let is_of_server =
            |key: &str| table().any(|flag| flag.key() == key && !flag.concerns_models());
        if let Some((key, value)) = keys.into_iter().find(|(key, _)| is_of_server(key.trim())) {
            let why = format!("`{}` is a setting of a server", key.trim());
            return Err(Failure::new(format!("`--technique {key}={value}`: {why}"))
                .hint("expected a setting that changes how a model is loaded and run"));
        }
        plain_with(self.model.chosen(), techniques)
    }
}

/// The plain server with these techniques, over other choices.
///
/// # Errors
///
/// A technique that is no setting, and settings that contradict each other.
pub(crate) fn plain_with(mut chosen: Chosen, techniques: &[String]) -> Result<Chosen> {
    for (key, value) in PLAIN {
        set_key(&mut chosen, key, value).expect("invariant: a setting");
    }
    for technique in techniques {
        let wrong = |why: String| Failure::new(format!("`--technique {technique}`: {why}"));
        let pair = technique.split_once('=');
        let (key, value) = pair.ok_or_else(|| wrong("expected KEY=VALUE".to_owned()))?;
        set_key(&mut chosen, key.trim(), value.trim()).map_err(wrong)?;
    }
    chosen.resolve()
}
