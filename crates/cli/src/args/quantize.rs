//! Flags of `pelton quantize`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use pelton_quant::solve::{Grid, Group, fp8};
use pelton_quantize::{Method, Options, Target};

use super::convert::parse_size;
use crate::flags::ThreadsArgs;

pub(super) const HELP_END: &str = "\
Examples:
  pelton quantize ./my-model ./my-model-4bit --method gptq --calibration book.txt
  pelton quantize ./my-model ./my-model-awq --method awq --calibration book.txt --group 128
  pelton quantize ./my-model ./my-model-fp8 --method fp8
  pelton quantize ./my-model ./my-model-mixed --method gptq --calibration book.txt --target-bpw 4.5
  pelton quantize ./my-model my-model.gguf --method gguf --type q4_k --calibration book.txt
  pelton eval ./my-model-4bit --reference ./my-model --text other-book.txt

Methods:
  rtn          rounds every weight to nearest
  gptq         rounds one input after the other, and makes each error good in the inputs that follow
  awq          scales inputs by their size, folds the factors into what comes before, clips ranges
  smoothquant  scales inputs so that engines with int8 activations lose less; int8 rows
  int8         int8 rows, for engines with int8 activations
  llm-int8     int8 rows as bitsandbytes has them
  fp8          8-bit floats with a scale per output, per block of 128 by 128 (`--group 128`), or per
               matrix (`--group tensor`)
  nf4          bitsandbytes' table of 16 numbers, with scales that are quantized too
  mxfp4        4-bit floats with a power of two per 32 inputs
  nvfp4        4-bit floats with an 8-bit float per 16 inputs
  hqq          zero points that are not whole, found without a text
  quip         2, 3 or 4 bits: eight weights at a time become a vector of a lattice, between two
               Hadamard transforms
  aqlm         2, 3 or 4 bits: eight weights at a time become a sum of entries of learned codebooks
  bitnet       -1, 0 and 1 with one scale per matrix, for models that were trained for it
  gguf         a GGUF file with `--type`, and an importance matrix where there is one

`gptq`, `awq`, `smoothquant` and `aqlm` need a text. With one, `int8`, `llm-int8`, `fp8`, `mxfp4`,
`nvfp4`, `quip` and `bitnet` make errors good as `gptq` does. `rtn` and `gptq` write the layout of
GPTQ, `awq` that of AWQ's GEMM kernels, `llm-int8` and `nf4` that of bitsandbytes, `hqq`, `quip`,
`aqlm` and `bitnet` their own, blocks of `fp8` that of DeepSeek, and all else compressed-tensors, each
with its `quantization_config`. Embeddings, head, norms and routers stay as they are.

The calibration text goes through the model layer by layer, in bf16 where it is stored so and in f32
otherwise: each layer is solved for the output of the quantized layers before it. The memory that takes
is printed first. Take a text like what the model is for, and another one to evaluate with: a file, a
folder of .txt, .md and .jsonl files, or a .jsonl file whose lines have `text`, or `messages` that go
through the chat template; `sample` is prose that comes with Pelton. The same source, text and seed give
the same bytes.

With `--target-bpw` or `--target-size` each matrix gets 3, 4, 5, 6 or 8 bits: a first pass measures what
each loses, and the least total loss within the budget is found.

The folder appears only when it is complete; an error or Ctrl-C leaves nothing behind. A kill leaves a
hidden folder beside it, and `--resume` goes on with that.";

/// Flags of `pelton quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// Folder with config.json and safetensors in f32, f16 or bf16, or a hub id (owner/name)
    pub(crate) input: String,
    /// The folder to write; a file that ends in .gguf for gguf
    pub(crate) output: PathBuf,
    /// How codes are chosen, and in which layout they are written: rtn, gptq, awq and others below
    #[arg(long, value_parser = parse_method)]
    method: Way,
    /// Bits of a weight: 2, 3, 4 or 8 for rtn, gptq and hqq, 2, 3 or 4 for quip and aqlm [default: 4,
    /// or what the method has]
    #[arg(long, value_name = "N")]
    bits: Option<usize>,
    /// Inputs that share a scale; `row` for all of an output, `tensor` for all of a matrix
    /// [default: 128 for rtn, gptq and awq, else what the method has]
    #[arg(long, value_name = "N")]
    group: Option<Group>,
    /// Leave out zero points [default: rtn and gptq leave them out, awq and hqq have them]
    #[arg(long, conflicts_with = "asymmetric")]
    symmetric: bool,
    /// Give each group a zero point
    #[arg(long)]
    asymmetric: bool,
    /// Type of the floats of fp8: e4m3, or e5m2, which few readers take
    #[arg(long, value_name = "TYPE", value_parser = parse_fp8)]
    fp8_type: Option<fp8::Kind>,
    /// Leave a module as it is: a name, or whole parts of names such as down_proj or layers.0; may
    /// be given more than once
    #[arg(long, value_name = "NAME")]
    keep: Vec<String>,
    /// Rotate the residual stream first: the model computes the same, and no input of a matrix is much
    /// larger than the others
    #[arg(long)]
    rotate: bool,
    /// Bits per weight of all matrices together, scales included; each gets bits of its own
    #[arg(long, value_name = "BITS", value_parser = parse_bpw, conflicts_with = "bits")]
    target_bpw: Option<f64>,
    /// Bytes of all tensors of the folder, such as 500M or 4G; each matrix gets bits of its own
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    #[arg(conflicts_with_all = ["bits", "target_bpw"])]
    target_size: Option<u64>,
    /// Type of the matrices of a GGUF file: q4_k, q6_k, iq4_xs and others of `pelton convert`
    #[arg(long = "type", value_name = "TYPE", help_heading = "GGUF")]
    pub(crate) gguf_type: Option<String>,
    /// Importance matrix of this model, in GGUF or in the older layout; k-quants and IQ4 weigh errors
    /// by it
    #[arg(long, value_name = "FILE", help_heading = "GGUF", conflicts_with = "calibration")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Write the importance matrix that the calibration gives
    #[arg(long, value_name = "FILE", help_heading = "GGUF", requires = "calibration")]
    pub(crate) save_imatrix: Option<PathBuf>,
    /// Go on with what a run left that was killed; when it is interrupted, keep what is done
    #[arg(long)]
    pub(crate) resume: bool,
    /// Text that shows what the matrices read: a file, a folder, chats in a .jsonl file, or `sample`
    /// for the one that comes with Pelton; needed by gptq, awq, smoothquant and aqlm
    #[arg(long, value_name = "PATH", help_heading = "Calibration")]
    pub(crate) calibration: Option<PathBuf>,
    /// Windows of the text that are used
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Calibration")]
    #[arg(requires = "calibration")]
    samples: NonZeroUsize,
    /// Tokens of a window [default: 512, or the context where that is shorter]
    #[arg(long, value_name = "N", help_heading = "Calibration", requires = "calibration")]
    pub(crate) sample_length: Option<usize>,
    /// Order in which windows are taken
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Calibration")]
    #[arg(requires = "calibration")]
    pub(crate) seed: u64,
    /// Added to the diagonal of the Hessian, as a share of its mean
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = parse_damping)]
    #[arg(help_heading = "GPTQ")]
    damping: f64,
    /// Round the largest inputs first; groups then hold scattered inputs, which some readers cannot
    /// compute fast
    #[arg(long, help_heading = "GPTQ")]
    act_order: bool,
    /// Write a page with plots of the errors, bits, outliers and times of all matrices
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Exponent by which sizes move from the inputs to the weights, from 0 to 1 [default: the best
    /// of 21 for each place]
    #[arg(long, value_name = "ALPHA", value_parser = parse_alpha, help_heading = "SmoothQuant")]
    alpha: Option<f32>,
    /// Threads that compute.
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
    /// One JSON object on stdout, with the error of every matrix
    #[arg(long)]
    pub(crate) json: bool,
}

/// A folder by one of the methods, or a GGUF file.
#[derive(Clone, Copy, Debug)]
enum Way {
    Folder(Method),
    Gguf,
}

impl QuantizeArgs {
    /// The method, unless a GGUF file is to be written.
    pub(crate) fn method(&self) -> Option<Method> {
        match self.method {
            Way::Folder(method) => Some(method),
            Way::Gguf => None,
        }
    }

    /// A flag that belongs to the other kind of output, if one was given.
    pub(crate) fn misplaced(&self) -> Option<&'static str> {
        let of_gguf = [
            ("--type", self.gguf_type.is_some()),
            ("--imatrix", self.imatrix.is_some()),
            ("--save-imatrix", self.save_imatrix.is_some()),
        ];
        let of_folders = [
            ("--bits", self.bits.is_some()),
            ("--group", self.group.is_some()),
            ("--symmetric", self.symmetric),
            ("--asymmetric", self.asymmetric),
            ("--fp8-type", self.fp8_type.is_some()),
            ("--keep", !self.keep.is_empty()),
            ("--rotate", self.rotate),
            ("--target-bpw", self.target_bpw.is_some()),
            ("--target-size", self.target_size.is_some()),
            ("--act-order", self.act_order),
            ("--alpha", self.alpha.is_some()),
            ("--resume", self.resume),
            ("--html", self.html.is_some()),
        ];
        let misplaced = match self.method {
            Way::Folder(_) => &of_gguf[..],
            Way::Gguf => &of_folders[..],
        };
        misplaced.iter().find(|(_, is_given)| *is_given).map(|(flag, _)| *flag)
    }

    /// The options that the flags ask for.
    pub(crate) fn options(&self, method: Method) -> Options {
        let mut options = Options::new(method);
        let grid = options.grid;
        let symmetric = match grid.symmetric {
            true => !self.asymmetric,
            false => self.symmetric,
        };
        let group = self.group.unwrap_or(grid.group);
        options.grid = Grid { bits: self.bits.unwrap_or(grid.bits), group, symmetric };
        options.gptq.damping = self.damping;
        options.gptq.act_order = self.act_order;
        options.alpha = self.alpha;
        options.fp8 = self.fp8_type.unwrap_or_default();
        options.keep.clone_from(&self.keep);
        options.rotate = self.rotate;
        let bits = self.target_bpw.map(Target::BitsPerWeight);
        options.target = bits.or(self.target_size.map(Target::Bytes));
        options
    }

    /// The flags that decide which bytes are written, for the model card; paths without their folders.
    pub(crate) fn command(&self, sample_length: Option<usize>) -> String {
        let Some(method) = self.method() else { return String::new() };
        let Grid { bits, group, symmetric } = self.options(method).grid;
        let mut words = vec!["pelton".to_owned(), "quantize".to_owned(), shown(&self.input)];
        words.push(shown(&self.output.to_string_lossy()));
        let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
        flag("--method", method.name().to_owned());
        match (self.target_bpw, self.target_size) {
            (Some(bits), _) => flag("--target-bpw", bits.to_string()),
            (_, Some(size)) => flag("--target-size", size.to_string()),
            _ => flag("--bits", bits.to_string()),
        }
        flag("--group", group.to_string());
        self.keep.iter().for_each(|name| flag("--keep", quoted(name)));
        if let Some(file) = &self.calibration {
            flag("--calibration", shown(&file.to_string_lossy()));
            flag("--samples", self.samples.to_string());
            if let Some(length) = sample_length {
                flag("--sample-length", length.to_string());
            }
            flag("--seed", self.seed.to_string());
        }
        if self.fp8_type == Some(fp8::Kind::E5m2) {
            flag("--fp8-type", "e5m2".to_owned());
        }
        if let Some(alpha) = self.alpha {
            flag("--alpha", alpha.to_string());
        }
        let is_made_good = method.compensates() && self.calibration.is_some();
        if method == Method::Gptq || is_made_good {
            flag("--damping", self.damping.to_string());
        }
        let is_asymmetric = !symmetric && self.asymmetric;
        words.extend(is_asymmetric.then(|| "--asymmetric".to_owned()));
        words.extend(self.rotate.then(|| "--rotate".to_owned()));
        words.extend(self.act_order.then(|| "--act-order".to_owned()));
        words.join(" ")
    }

    /// The value of `--samples`.
    pub(crate) fn n_samples(&self) -> usize {
        self.samples.get()
    }
}

fn parse_method(text: &str) -> Result<Way, String> {
    if text == "gguf" {
        return Ok(Way::Gguf);
    }
    let found = Method::ALL.into_iter().find(|method| method.name() == text);
    found.map(Way::Folder).ok_or_else(|| {
        let names: Vec<&str> = Method::ALL.into_iter().map(Method::name).collect();
        format!("expected one of {}, gguf", names.join(", "))
    })
}

/// A name for a shell: the last part of a path, and other names as they are.
fn shown(name: &str) -> String {
    let path = Path::new(name);
    let is_path = path.is_absolute() || name.starts_with('.') || path.exists();
    let last = path.file_name().filter(|_| is_path);
    quoted(&last.map_or(name.into(), |last| last.to_string_lossy()))
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=+,@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn parse_bpw(text: &str) -> Result<f64, String> {
    let bits = text.parse::<f64>().ok().filter(|bits| (1.0..=16.0).contains(bits));
    bits.ok_or_else(|| "expected bits per weight from 1 to 16".to_owned())
}

fn parse_fp8(text: &str) -> Result<fp8::Kind, String> {
    match text {
        "e4m3" => Ok(fp8::Kind::E4m3),
        "e5m2" => Ok(fp8::Kind::E5m2),
        _ => Err("expected e4m3 or e5m2".to_owned()),
    }
}

fn parse_alpha(text: &str) -> Result<f32, String> {
    let alpha = text.parse::<f32>().ok().filter(|alpha| (0.0..=1.0).contains(alpha));
    alpha.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn parse_damping(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}
