//! Flags of `pelton quantize`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use pelton_quant::solve::{Grid, gptq};
use pelton_quantize::{Method, Options};

use crate::flags::ThreadsArgs;

pub(super) const HELP_END: &str = "\
Examples:
  pelton quantize ./my-model ./my-model-4bit --method gptq --calibration book.txt
  pelton quantize ./my-model ./my-model-awq --method awq --calibration book.txt --group 128
  pelton quantize ./my-model ./my-model-8bit --method rtn --bits 8 --group row
  pelton eval ./my-model-4bit --reference ./my-model --text other-book.txt

Methods:
  rtn    rounds every weight to nearest; needs no text
  gptq   rounds one input after the other, and makes each error good in the inputs that follow
  awq    scales inputs by their size, folds the factors into what comes before, and clips ranges
`rtn` and `gptq` write the layout of GPTQ, `awq` that of AWQ's GEMM kernels, each with its
`quantization_config`. Embeddings, head, norms and routers stay as they are.

The calibration text goes through the model layer by layer, in f32: each layer is solved for the output
of the quantized layers before it. The memory that takes is printed first. Take a text like what the
model is for, and another one to evaluate with. The same source, text and seed give the same bytes.

The folder appears only when it is complete; an error or Ctrl-C leaves nothing behind.";

/// Flags of `pelton quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// Folder with config.json and safetensors in f32, f16 or bf16, or a hub id (owner/name)
    pub(crate) input: String,
    /// The folder to write
    pub(crate) output: PathBuf,
    /// How codes are chosen: rtn, gptq or awq
    #[arg(long, value_parser = parse_method)]
    pub(crate) method: Method,
    /// Bits of a weight: 2, 3, 4 or 8; 4 for awq
    #[arg(long, value_name = "N", default_value_t = 4)]
    bits: usize,
    /// Inputs that share a scale; `row` for all of them
    #[arg(long, value_name = "N", default_value = "128", value_parser = parse_group)]
    group: Group,
    /// Leave out zero points [default: rtn and gptq leave them out, awq has them]
    #[arg(long, conflicts_with = "asymmetric")]
    symmetric: bool,
    /// Give each group a zero point
    #[arg(long)]
    asymmetric: bool,
    /// UTF-8 text that shows what the matrices read; needed by gptq and awq
    #[arg(long, value_name = "FILE", help_heading = "Calibration")]
    pub(crate) calibration: Option<PathBuf>,
    /// Windows of the text that are used
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Calibration")]
    samples: NonZeroUsize,
    /// Tokens of a window [default: 512, or the context where that is shorter]
    #[arg(long, value_name = "N", help_heading = "Calibration")]
    pub(crate) sample_length: Option<usize>,
    /// Order in which windows are taken
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Calibration")]
    pub(crate) seed: u64,
    /// Added to the diagonal of the Hessian, as a share of its mean
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = parse_damping)]
    #[arg(help_heading = "GPTQ")]
    damping: f64,
    /// Round the largest inputs first; groups then hold scattered inputs, which some readers cannot
    /// compute fast
    #[arg(long, help_heading = "GPTQ")]
    act_order: bool,
    /// Threads that compute.
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
    /// One JSON object on stdout, with the error of every matrix
    #[arg(long)]
    pub(crate) json: bool,
}

/// Inputs of a group, or all of a row.
#[derive(Clone, Copy, Debug)]
struct Group(Option<usize>);

impl QuantizeArgs {
    /// The options that the flags ask for.
    pub(crate) fn options(&self) -> Options {
        let symmetric = match self.method {
            Method::Awq => self.symmetric,
            Method::Rtn | Method::Gptq => !self.asymmetric,
        };
        let grid = Grid { bits: self.bits, group: self.group.0, symmetric };
        let (damping, act_order) = (self.damping, self.act_order);
        let gptq = gptq::Options { damping, act_order, ..gptq::Options::default() };
        Options { method: self.method, grid, gptq }
    }

    /// The value of `--samples`.
    pub(crate) fn n_samples(&self) -> usize {
        self.samples.get()
    }
}

fn parse_method(text: &str) -> Result<Method, String> {
    let found = Method::ALL.into_iter().find(|method| method.name() == text);
    found.ok_or_else(|| "expected rtn, gptq or awq".to_owned())
}

fn parse_group(text: &str) -> Result<Group, String> {
    if text == "row" {
        return Ok(Group(None));
    }
    let group = text.parse::<usize>().ok().filter(|group| *group > 0);
    group.map(|group| Group(Some(group))).ok_or_else(|| "expected a number or `row`".to_owned())
}

fn parse_damping(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}
