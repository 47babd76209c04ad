//! Flags of `pelton bench serve`.

use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pelton_base::Slo;
use pelton_bench::serve::{Address, Config, Endpoint};
use pelton_bench::{BenchError, Pace};
use pelton_sim::trace::Trace;

use super::workload::WorkloadArgs;
use crate::config::Secret;

pub(super) const SERVE_HELP_END: &str = "\
Examples:
  pelton bench serve                                       the server on this machine
  pelton bench serve --url http://10.0.0.7:8000 --rate 4 -n 500
  pelton bench serve --workload shared-prefix --chat --ttft-target 2000 --tpot-target 200
  pelton bench serve --concurrency 32 --json > run.json

Requests arrive by the clock at the given rate, whether or not the server keeps up; with
--concurrency each arrives when another has ended. Times are those of the clients, network included,
and count from the arrival, so a stalled server hides nothing. Prompts are common words, one per token
of the workload; the report counts tokens as the server does. Of a Pelton, the report has the
processor time of the server, too. Ctrl-C ends early and reports the requests so far.";

/// Flags of `pelton bench serve`.
#[derive(Args, Debug)]
pub(crate) struct BenchServeArgs {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Model to ask for [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server; other users of the machine can see command lines, so prefer the
    /// environment
    #[arg(
        long,
        env = "PELTON_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    key: Option<Secret>,
    /// Certificates that certify an https server, in PEM [default: those that browsers trust]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Send chat completions instead of completions
    #[arg(long)]
    chat: bool,
    /// Longest time for one request, in seconds
    #[arg(long, value_name = "S", default_value = "600")]
    timeout: NonZeroU32,
    /// The workload.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Keep N requests running instead of following the clock
    #[arg(long, value_name = "N", conflicts_with = "rate", help_heading = "Workload")]
    concurrency: Option<NonZeroUsize>,
    /// Latest first token of a request that counts as good, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Workload")]
    ttft_target: Option<NonZeroU32>,
    /// Longest time per token of a request that counts as good, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Workload")]
    tpot_target: Option<NonZeroU32>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchServeArgs {
    /// How the server is measured with this trace.
    ///
    /// # Errors
    ///
    /// A value of `--url` that cannot be asked.
    pub(crate) fn config(&self, trace: &Trace) -> Result<Config, BenchError> {
        let target = |ms: NonZeroU32| Duration::from_millis(u64::from(ms.get()));
        Ok(Config {
            address: Address::parse(&self.url)?,
            key: self.key.as_ref().map(|key| key.expose().to_owned()),
            ca: self.ca.clone(),
            model: self.model.clone(),
            endpoint: if self.chat { Endpoint::Chat } else { Endpoint::Completions },
            n_requests: self.workload.n_requests(trace),
            pace: self.concurrency.map_or(Pace::Clock, |n| Pace::Concurrency(n.get())),
            default_slo: Slo {
                ttft: self.ttft_target.map(target),
                tpot: self.tpot_target.map(target),
            },
            timeout: Duration::from_secs(u64::from(self.timeout.get())),
            workload: self.workload.describe(trace),
        })
    }
}

/// Accepts any text: the server judges it.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
