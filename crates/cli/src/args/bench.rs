//! Flags of `pelton bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use pelton_bench::kernels::AttentionSizes;
use pelton_model::ActivationGroup;

use super::bench_ablate::{ABLATE_HELP_END, BenchAblateArgs};
use super::bench_grammar::{BenchGrammarArgs, GRAMMAR_HELP_END};
use super::bench_load::{BenchLoadArgs, LOAD_HELP_END};
use super::bench_offline::{BenchOfflineArgs, OFFLINE_HELP_END};
use super::bench_reports::{BenchCompareArgs, BenchReportArgs, COMPARE_HELP_END, REPORT_HELP_END};
use super::bench_serve::{BenchServeArgs, SERVE_HELP_END};
use super::bench_sim::{BenchSimArgs, SIM_HELP_END};
use super::bench_spec::{BenchSpecArgs, SPEC_HELP_END};
use super::bench_sweep::{BenchSweepArgs, SWEEP_HELP_END};
use crate::flags::{ActivationArgs, ModelArgs, ThreadsArgs};

const KERNELS_HELP_END: &str = "\
Examples:
  pelton bench kernels
  pelton bench kernels --filter \"matmul q8\" --threads 1
  pelton bench kernels --filter attention --heads 16/4x256 --context 32768
  pelton bench kernels --json > today.json

Each call is timed in rounds; the table gives the median and the distance between the quartiles.
The ceilings of the machine (memory in bytes, arithmetic in operations, where a multiply-add counts
as two) are measured before and after each shape, and a speed is given as a share of the nearer
ceiling. More than 100 % of memory means that the data fitted in the caches. Ctrl-C ends early and
prints the results so far.";

const MODEL_HELP_END: &str = "\
Examples:
  pelton bench model
  pelton bench model -m model.gguf --batch 1,4,16 --context 128,4096,16384
  pelton bench model -m model.gguf --threads 8 --rounds 9 --json > figures.json

Every round measures each figure once, so that other programs on the machine disturb all figures
alike; the table gives the median, the lowest and the highest. Results go to stdout (with --json as
one object), progress to stderr. Ctrl-C ends early and prints the results so far.";

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure each operation as a share of what this machine can do
    #[command(after_help = KERNELS_HELP_END)]
    Kernels(BenchKernelsArgs),
    /// Measure a model: prompts, generation alone and in batches, long contexts, verification
    #[command(after_help = MODEL_HELP_END)]
    Model(Box<BenchModelArgs>),
    /// Serve batches of equal requests: prompts and generation apart, with their tails
    #[command(after_help = OFFLINE_HELP_END)]
    Offline(Box<BenchOfflineArgs>),
    /// Simulate hours of service under different policies within seconds, without a model
    #[command(after_help = SIM_HELP_END)]
    Sim(Box<BenchSimArgs>),
    /// Serve a workload with the real engine and report latency and throughput
    #[command(after_help = LOAD_HELP_END)]
    Load(Box<BenchLoadArgs>),
    /// Send a workload to any OpenAI-compatible server and report what its clients see
    #[command(after_help = SERVE_HELP_END)]
    Serve(Box<BenchServeArgs>),
    /// Measure a server at several loads, and find the knee of its curve and the limit behind it
    #[command(after_help = SWEEP_HELP_END)]
    Sweep(Box<BenchSweepArgs>),
    /// Compare ways to draft tokens with plain decoding, and report which is faster
    #[command(after_help = SPEC_HELP_END)]
    Spec(Box<BenchSpecArgs>),
    /// Turn techniques on, alone and on top of each other, and report the gain of each
    #[command(after_help = ABLATE_HELP_END)]
    Ablate(Box<BenchAblateArgs>),
    /// Compile JSON schemas for a vocabulary and time their masks
    #[command(after_help = GRAMMAR_HELP_END)]
    Grammar(BenchGrammarArgs),
    /// Tell whether two reports differ, and exit with 3 when the second is worse
    #[command(after_help = COMPARE_HELP_END)]
    Compare(BenchCompareArgs),
    /// Draw reports as one page of HTML
    #[command(after_help = REPORT_HELP_END)]
    Report(BenchReportArgs),
}

/// Flags of `pelton bench kernels`.
#[derive(Args, Debug)]
pub(crate) struct BenchKernelsArgs {
    /// One JSON object on stdout: machine, ceilings, rows
    #[arg(long)]
    pub(crate) json: bool,
    /// Threads that compute.
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Activations that share a scale.
    #[command(flatten)]
    activations: ActivationArgs,
    /// Only lines that contain each of these words, such as "matmul q8 8192"
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Heads of attention as its lines show them: query heads, KV heads and size [default: 32/8x64]
    #[arg(long, value_name = "Q/KVxN", value_parser = parse_heads)]
    heads: Option<[usize; 3]>,
    /// Tokens that a decoding row sees in attention [default: 128,1024,4096]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    context: Vec<NonZeroUsize>,
    /// Tokens per block of keys and values [default: 16]
    #[arg(long, value_name = "N")]
    block_size: Option<NonZeroUsize>,
    /// Seconds per measurement, from 0.001 to 60 [default: 0.2]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Tiny shapes and few rounds: checks that everything runs, measures nothing
    #[arg(long)]
    pub(crate) quick: bool,
}

impl BenchKernelsArgs {
    /// The value of `--threads`.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.threads.chosen().threads
    }

    /// The value of `--activation-group`.
    pub(crate) fn activation_group(&self) -> ActivationGroup {
        self.activations.chosen().llm.activation_group
    }

    /// The values of `--heads`, `--context` and `--block-size`.
    pub(crate) fn attention(&self) -> AttentionSizes {
        AttentionSizes {
            heads: self.heads,
            contexts: self.context.iter().map(|n| n.get()).collect(),
            block_tokens: self.block_size.map(NonZeroUsize::get),
        }
    }

    /// Seconds per measurement.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.001 } else { 0.2 })
    }
}

fn parse_heads(text: &str) -> Result<[usize; 3], String> {
    let text = text.replace(' ', "");
    let numbers: Option<Vec<usize>> = text.split_once('/').and_then(|(query, rest)| {
        let (kv, size) = rest.split_once('x')?;
        [query, kv, size].iter().map(|number| number.parse().ok()).collect()
    });
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| "expected query heads, KV heads and size, such as 32/8x64".to_owned())
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
    /// Drafted tokens per verification, which is a step of N + 1 rows after the prompt
    #[arg(long, value_name = "N", default_value = "5")]
    verify: NonZeroUsize,
    /// Tokens of context while decoding [default: 128,4096, up to the model's context]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    context: Vec<NonZeroUsize>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Also time each operation of a step, and write the steps for Chrome's profiler or Perfetto
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
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

    /// The values of `--context`, in tokens; empty for the default.
    pub(crate) fn contexts(&self) -> Vec<usize> {
        self.context.iter().map(|n| n.get()).collect()
    }

    /// The value of `--rounds`.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.get()
    }
}
