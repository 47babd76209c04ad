//! Flags that choose what is served in `pelton bench sim`, `load` and `serve`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pelton_base::limits;
use pelton_bench::Pace;
use pelton_bench::sweep::Load;
use pelton_sched::TenantConfig;
use pelton_sim::report::Grouping;
use pelton_sim::trace::{ArrivalKind, Tenants, Trace, TraceFile, Workload, WorkloadKind, save};

use crate::bench::{Named, check_outputs};
use crate::failure::{Failure, Result};

/// Fewest tokens of a prompt that the report calls long, before scaling.
const LONG_PROMPT_TOKENS: f64 = 1024.0;

/// Which requests arrive, and when.
#[derive(Args, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Kind of requests
    #[arg(
        long,
        value_name = "NAME",
        value_parser = named(WorkloadKind::ALL, WorkloadKind::name),
        default_value = WorkloadKind::default().name()
    )]
    workload: WorkloadKind,
    /// Requests from a file instead, one per line: at_ms prompt_tokens output_tokens [tenant=NAME]
    /// [priority=N] [ttft_ms=MS] [tpot_ms=MS] [prefix=ID:TOKENS]... [session=ID:THINK_MS], or a
    /// trace of Mooncake or BurstGPT
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["workload", "rate", "scale", "seed", "arrivals", "lengths"]
    )]
    trace: Option<PathBuf>,
    /// How requests follow each other [default: the workload's own]
    #[arg(long, value_name = "NAME", value_parser = named(ArrivalKind::ALL, ArrivalKind::name))]
    arrivals: Option<ArrivalKind>,
    /// Tokens of every prompt and answer, instead of the workload's own lengths
    #[arg(long, value_name = "IN:OUT", value_parser = parse_lengths, conflicts_with = "scale")]
    lengths: Option<(usize, usize)>,
    /// Number of requests; the first N of a file
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    requests: Option<u64>,
    /// Requests per second [default: the workload's own]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Factor on all lengths; below 1 for slower machines and shorter contexts
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    scale: f64,
    /// Seed of the workload; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the requests to a file, for --trace
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    save_trace: Option<PathBuf>,
}

/// How the scheduler treats the tenants of a workload.
#[derive(Args, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct TenantArgs {
    /// Shares of tenants under --policy fair, such as acme=3,free=1
    #[arg(
        long,
        value_name = "NAME=N",
        value_delimiter = ',',
        value_parser = parse_weight,
    )]
    tenant_weight: Vec<(String, NonZeroU32)>,
    /// Most waiting requests of one tenant; further ones are refused
    #[arg(long, value_name = "N", default_value_t = limits::MAILBOX_REQUESTS)]
    max_waiting: usize,
}

impl WorkloadArgs {
    /// The requests, by default `default_requests` of them; `--save-trace` also writes them to a
    /// file, which is none of the other `inputs` of the command.
    ///
    /// # Errors
    ///
    /// A rate or scale out of range, a file that is wrong, cannot be written or is an input.
    pub(crate) fn trace(&self, default_requests: u64, inputs: &[Named<'_>]) -> Result<Trace> {
        check_outputs(&[("--save-trace", self.save_trace.as_deref())], inputs)?;
        let trace = self.trace_at(default_requests, None, 0)?;
        if let Some(path) = &self.save_trace {
            save(&trace, path)?;
        }
        Ok(trace)
    }

    /// The same at another rate, with other requests for each `place`; nothing is written.
    ///
    /// # Errors
    ///
    /// As of [`trace`](Self::trace).
    pub(crate) fn trace_at(
        &self,
        default_requests: u64,
        rate: Option<f64>,
        place: u64,
    ) -> Result<Trace> {
        if let Some(path) = &self.trace {
            return Ok(Trace::File(TraceFile::open(path)?));
        }
        let n_requests = self.requests.unwrap_or(default_requests);
        let workload = Workload::new(self.workload, n_requests, self.seed.wrapping_add(place));
        let rate = rate.or(self.rate).unwrap_or(self.workload.default_rate());
        let at_rate = workload.at_rate(rate).map_err(|error| Failure::from(error).at("--rate"))?;
        let scaled = at_rate.scaled(self.scale);
        let mut workload = scaled.map_err(|error| Failure::from(error).at("--scale"))?;
        if let Some(arrivals) = self.arrivals {
            workload = workload.arriving(arrivals);
        }
        if let Some((n_prompt, n_output)) = self.lengths {
            workload = workload.of_lengths(n_prompt, n_output);
        }
        Ok(Trace::Workload(workload))
    }

    /// Refuses a flag that replaces prompts where requests wait for the answers of others.
    ///
    /// # Errors
    ///
    /// Names the flag. A trace from a file is read to see its sessions.
    pub(crate) fn expect_no_sessions(&self, flag: &str) -> Result<()> {
        if !self.trace_at(1, None, 0)?.has_sessions() {
            return Ok(());
        }
        let why = format!("`{flag}`: prompts of sessions repeat the questions before them");
        Err(Failure::new(why).hint("choose a `--workload` or `--trace` without sessions"))
    }

    /// The file of `--trace`.
    pub(crate) fn input(&self) -> Named<'_> {
        ("--trace", self.trace.as_deref())
    }

    /// Refuses these of the flags `--rate`, `--arrivals` and `--save-trace`, where one was given.
    ///
    /// # Errors
    ///
    /// Names the flag and the reason.
    pub(crate) fn refuse(&self, flags: &[&str], why: &str) -> Result<()> {
        let given = [
            ("--rate", self.rate.is_some()),
            ("--arrivals", self.arrivals.is_some()),
            ("--save-trace", self.save_trace.is_some()),
        ];
        let found = given.iter().find(|(flag, is_given)| *is_given && flags.contains(flag));
        found.map_or(Ok(()), |(flag, _)| Err(Failure::new(format!("`{flag}`: {why}"))))
    }

    /// Whether no flag says how many requests are served.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.requests.is_none()
    }

    /// How requests follow each other, and how many per second, where a generator makes them.
    pub(crate) fn arrivals(&self, trace: &Trace) -> Option<(ArrivalKind, f64)> {
        match trace {
            Trace::Workload(workload) => Some((workload.arrivals(), workload.rate())),
            Trace::File(_) => None,
        }
    }

    /// How many requests of a trace are served.
    pub(crate) fn n_requests(&self, trace: &Trace) -> u64 {
        self.requests.unwrap_or(u64::MAX).min(trace.n_requests())
    }

    /// Seed of the workload.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// How the report groups the requests of a trace.
    pub(crate) fn grouping<'a>(&self, trace: &'a Trace) -> Grouping<'a> {
        let long_prompt_tokens = (LONG_PROMPT_TOKENS * self.scale).max(2.0) as u32;
        Grouping { tenants: trace.tenants(), long_prompt_tokens }
    }

    /// The requests and how they arrive, in words.
    pub(crate) fn describe(&self, trace: &Trace, pace: Pace) -> String {
        let n = self.n_requests(trace);
        let clients = match pace {
            Pace::Clock => None,
            Pace::Concurrency(n) => Some(Load::Clients(n).name()),
        };
        match (trace, &self.trace) {
            (Trace::Workload(workload), _) => {
                let name = workload.kind().name();
                let scale = match workload.scale() {
                    1.0 => String::new(),
                    scale => format!(", lengths times {scale}"),
                };
                let arrivals = clients.unwrap_or_else(|| {
                    let rate = workload.rate();
                    match workload.arrivals() {
                        kind if kind == workload.kind().default_arrivals() => {
                            format!("{rate} per second")
                        }
                        kind => format!("{rate} per second ({})", kind.name()),
                    }
                });
                let lengths = workload.lengths().map_or_else(String::new, |(input, output)| {
                    format!(", {input} + {output} tokens each")
                });
                let seed = self.seed;
                format!("{name}, {n} requests, {arrivals}{scale}{lengths}, seed {seed}")
            }
            (Trace::File(_), path) => {
                let path = path.as_ref().map(|path| path.display().to_string());
                let parts = [path, Some(format!("{n} requests")), clients];
                parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
            }
        }
    }
}

impl TenantArgs {
    /// The tenants of a trace, with their weights.
    ///
    /// # Errors
    ///
    /// A weight of a tenant that is not in the trace.
    pub(crate) fn tenants(&self, tenants: &Tenants) -> Result<Vec<TenantConfig>> {
        let config = |name: &String| TenantConfig {
            name: name.clone(),
            max_waiting: self.max_waiting,
            ..TenantConfig::default()
        };
        let mut configs: Vec<TenantConfig> = tenants.names().iter().map(config).collect();
        for (name, weight) in &self.tenant_weight {
            let tenant = configs.iter_mut().find(|config| config.name == *name);
            let tenant = tenant.ok_or_else(|| {
                Failure::new(format!(
                    "--tenant-weight: no tenant of this workload is named `{name}`"
                ))
                .hint(format!("the tenants are: {}", tenants.names().join(", ")))
            })?;
            tenant.weight = weight.get();
        }
        Ok(configs)
    }
}

/// Reads one of some values by its name, and shows all names in the help.
pub(crate) fn named<T>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|&value| name(value))).map(move |text| {
        let found = all.iter().find(|&&value| name(value) == text);
        *found.expect("invariant: the parser lets only these names pass")
    })
}

fn parse_weight(text: &str) -> std::result::Result<(String, NonZeroU32), String> {
    let parsed = text.split_once('=').and_then(|(name, weight)| {
        Some((name.to_owned(), weight.parse().ok()?)).filter(|_| !name.is_empty())
    });
    parsed.ok_or_else(|| "expected NAME=N with N from 1".to_owned())
}

/// Reads tokens of a prompt and of its answer.
pub(super) fn parse_lengths(text: &str) -> std::result::Result<(usize, usize), String> {
    let number = |text: &str| text.parse().ok().filter(|n| (1..=limits::MODEL_CONTEXT).contains(n));
    let parsed = text.split_once(':').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    parsed.ok_or_else(|| "expected tokens of prompt and answer, such as 128:64".to_owned())
}
