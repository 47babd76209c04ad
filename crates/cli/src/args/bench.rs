//! Flags of `pelton bench`.

use std::num::NonZeroUsize;

use clap::{Args, Subcommand};

use super::ModelArgs;
use super::bench_load::{BenchLoadArgs, LOAD_HELP_END};
use super::bench_sim::{BenchSimArgs, SIM_HELP_END};
use super::bench_spec::{BenchSpecArgs, SPEC_HELP_END};

const KERNELS_HELP_END: &str = "\
Examples:
  pelton bench kernels
  pelton bench kernels --filter \"matmul q8\" --threads 1
  pelton bench kernels --json > today.json

A call is timed in rounds; the time told is the median round, the spread what lies between the
quarters. Before and after each shape the ceilings of the machine are measured again, and a speed is
told as a share of the nearer one: memory by its bytes, arithmetic by its operations (a
multiplication and an addition are two). More than 100 % of memory means that the data fitted in
the caches. Ctrl-C ends with what was measured so far.";

const MODEL_HELP_END: &str = "\
Examples:
  pelton bench model
  pelton bench model -m model.gguf --batch 1,4,16 --context 128,4096,16384
  pelton bench model -m model.gguf --threads 8 --rounds 9 --json > figures.json

Every figure is measured once per round, one after the other, so that other programs on the machine
disturb all of them alike; told are the median, the lowest and the highest. The table (with --json
one object) goes to stdout, progress to stderr. Ctrl-C ends early with what was measured.";

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure each operation as a share of what this machine can do
    #[command(after_help = KERNELS_HELP_END)]
    Kernels(BenchKernelsArgs),
    /// Measure a model: prompts, generation alone and in batches, long contexts, verification
    #[command(after_help = MODEL_HELP_END)]
    Model(Box<BenchModelArgs>),
    /// Simulate hours of service under different policies, in moments and without a model
    #[command(after_help = SIM_HELP_END)]
    Sim(Box<BenchSimArgs>),
    /// Serve a workload with the real engine and tell how it was served
    #[command(after_help = LOAD_HELP_END)]
    Load(Box<BenchLoadArgs>),
    /// Compare ways to guess tokens with plain decoding, and tell which pays
    #[command(after_help = SPEC_HELP_END)]
    Spec(Box<BenchSpecArgs>),
}

/// Flags of `pelton bench kernels`.
#[derive(Args, Debug)]
pub(crate) struct BenchKernelsArgs {
    /// One JSON object on stdout: machine, ceilings, rows
    #[arg(long)]
    pub(crate) json: bool,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, env = "PELTON_THREADS", value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Only lines that hold each of these words, such as "matmul q8 8192"
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Seconds per measurement, from 0.001 to 60 [default: 0.2]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Tiny shapes and few rounds: shows that everything runs, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
}

impl BenchKernelsArgs {
    /// The value of `--threads`.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.threads.map(NonZeroUsize::get)
    }

    /// Seconds per measurement.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.001 } else { 0.2 })
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.001 to 60".to_owned())
}

/// Flags of `pelton bench model`.
#[derive(Args, Debug)]
pub(crate) struct BenchModelArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "512")]
    prompt: NonZeroUsize,
    /// Steps of generation
    #[arg(long, value_name = "N", default_value = "128")]
    generate: NonZeroUsize,
    /// Sequences generated at once; 1 is always measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,32")]
    batch: Vec<NonZeroUsize>,
    /// Drafted tokens per verification: a step of as many rows and one more, after the prompt
    #[arg(long, value_name = "N", default_value = "5")]
    verify: NonZeroUsize,
    /// Tokens in the context of a decoded one [default: 128,4096 as far as the model reaches]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    context: Vec<NonZeroUsize>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchModelArgs {
    /// The value of `--prompt`, in tokens.
    pub(crate) fn prompt(&self) -> usize {
        self.prompt.get()
    }

    /// The value of `--generate`, in steps.
    pub(crate) fn generate(&self) -> usize {
        self.generate.get()
    }

    /// The values of `--batch`, in sequences.
    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batch.iter().map(|n| n.get()).collect()
    }

    /// The value of `--verify`, in tokens.
    pub(crate) fn verify(&self) -> usize {
        self.verify.get()
    }

    /// The values of `--context`, in tokens; empty when nobody said.
    pub(crate) fn contexts(&self) -> Vec<usize> {
        self.context.iter().map(|n| n.get()).collect()
    }

    /// The value of `--rounds`.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.get()
    }
}
