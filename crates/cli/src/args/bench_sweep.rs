//! Flags of `pelton bench sweep`.

use std::num::NonZeroUsize;

use clap::Args;
use pelton_bench::sweep::Load;

use super::bench_serve::RemoteArgs;
use super::workload::WorkloadArgs;
use crate::failure::Result;

pub(super) const SWEEP_HELP_END: &str = "\
Examples:
  pelton bench sweep                                   1 to 32 clients of the server on this machine
  pelton bench sweep --rates 1,2,4,8,16 -n 200 --workload sharegpt
  pelton bench sweep --clients 1,4,16,64 --lengths 128:64 --json > sweep.json

Each load serves the workload once, with prompts of its own. The knee is the load with the most answers
per second over the mean time of an answer; the limit beyond it is named by the counters that the server
publishes under /metrics. Run nothing else against the server. Ctrl-C ends early and prints the loads so
far.";

/// Clients of a sweep where neither clients nor rates are named.
const CLIENTS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Flags of `pelton bench sweep`.
#[derive(Args, Debug)]
pub(crate) struct BenchSweepArgs {
    /// The server.
    #[command(flatten)]
    pub(crate) server: RemoteArgs,
    /// The workload.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Requests under way, one load after the other [default: 1,2,4,8,16,32]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    clients: Vec<NonZeroUsize>,
    /// Requests per second instead, one load after the other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = rate,
        conflicts_with_all = ["clients", "rate", "trace"],
        help_heading = "Workload"
    )]
    rates: Vec<f64>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchSweepArgs {
    /// Refuses flags of the workload that a sweep has no use for.
    ///
    /// # Errors
    ///
    /// Names the flag.
    pub(crate) fn check(&self) -> Result<()> {
        self.workload.refuse(&["--rate"], "a sweep has `--clients` or `--rates`")?;
        if self.rates.is_empty() {
            let why = "clients send a request once another has ended; `--rates` follows the clock";
            self.workload.refuse(&["--arrivals"], why)?;
        }
        self.workload.refuse(&["--save-trace"], "each load of a sweep has requests of its own")
    }

    /// The loads, from the lowest.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        if !rates.is_empty() {
            return rates.into_iter().map(Load::Rate).collect();
        }
        let mut clients: Vec<usize> = self.clients.iter().map(|n| n.get()).collect();
        if clients.is_empty() {
            clients.extend(CLIENTS);
        }
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().map(Load::Clients).collect()
    }
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (1e-6..=1e6).contains(rate));
    rate.ok_or_else(|| "expected requests per second from 0.000001 to 1000000".to_owned())
}
