//! Options of a quantization.

use pelton_quant::solve::{Grid, Group, fp8, gptq};

use crate::{Method, QuantizeError, Result};

/// Options of a quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How codes are chosen.
    pub method: Method,
    /// Bits, group and symmetry; with a [`target`](Self::target) each matrix has bits of its own.
    pub grid: Grid,
    /// Settings of GPTQ, which others follow that make errors good by later inputs.
    pub gptq: gptq::Options,
    /// Exponent of SmoothQuant's factors; the best of 21 for each place where there is none.
    pub alpha: Option<f32>,
    /// Type of the floats of FP8.
    pub fp8: fp8::Kind,
    /// Modules that stay as they are: names, or whole parts of names such as `down_proj`.
    pub keep: Vec<String>,
    /// The size that all matrices together may have.
    pub target: Option<Target>,
    /// Whether the residual stream is rotated first.
    pub rotate: bool,
}

/// The size that the matrices may have: each gets the bits that lose least within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Bits per weight of the quantized matrices, scales included.
    BitsPerWeight(f64),
    /// Bytes of all tensors of the folder.
    Bytes(u64),
}

impl Options {
    /// Options of a method with its usual bits and groups.
    pub fn new(method: Method) -> Self {
        let (bits, group) = (method.bits()[0], method.group());
        let grid = Grid { bits, group, symmetric: method.is_symmetric() };
        let (gptq, fp8) = (gptq::Options::default(), fp8::Kind::default());
        Self { method, grid, gptq, alpha: None, fp8, keep: Vec::new(), target: None, rotate: false }
    }

    /// Checks that the parts agree.
    ///
    /// # Errors
    ///
    /// Names the flag that is out of range.
    pub fn check(&self) -> Result<()> {
        let (method, Grid { bits, group, symmetric }) = (self.method, self.grid);
        let name = method.name();
        let refuse = |why: String| Err(QuantizeError::Option(why));
        if !method.bits().contains(&bits) {
            return refuse(format!(
                "`--bits` is {bits}: expected {} for `{name}`",
                method.widths()
            ));
        }
        if symmetric != method.is_symmetric() && !method.has_both() {
            return match symmetric {
                true => refuse(format!("`--symmetric` with `{name}`: it always has zero points")),
                false => refuse(format!("`--asymmetric` with `{name}`: it has no zero points")),
            };
        }
        if !method.takes_group(group) {
            return refuse(format!(
                "`--group` is {group}: expected {} for `{name}`",
                method.groups()
            ));
        }
        if self.gptq.act_order && method != Method::Gptq {
            return refuse(format!("`--act-order` with `{name}`: only `gptq` has it"));
        }
        let damping = gptq::Options::default().damping;
        if self.gptq.damping != damping && method != Method::Gptq && !method.compensates() {
            return refuse(format!("`--damping` with `{name}`: it has no Hessian"));
        }
        if self.alpha.is_some() && method != Method::SmoothQuant {
            return refuse(format!("`--alpha` with `{name}`: only `smoothquant` has it"));
        }
        if self.fp8 != fp8::Kind::default() && method != Method::Fp8 {
            return refuse(format!("`--fp8-type` with `{name}`: only `fp8` has it"));
        }
        if self.target.is_some() {
            if self.rotate {
                let why = "the pass that measures what matrices lose does not rotate them";
                return refuse(format!("`--target-bpw` or `--target-size` with `--rotate`: {why}"));
            }
            if ![Method::Rtn, Method::Gptq].contains(&method) {
                let why = "only `rtn` and `gptq` write matrices of different bits";
                return refuse(format!("`--target-bpw` or `--target-size` with `{name}`: {why}"));
            }
            if group == Group::Tensor {
                let why = "its files have a scale for each output or for some of its inputs";
                return refuse(format!(
                    "`--target-bpw` or `--target-size` with `--group tensor`: {why}"
                ));
            }
            if self.gptq.act_order || !symmetric {
                let why = "its files have no zero points and no scattered groups";
                return refuse(format!(
                    "`--target-bpw` or `--target-size` with `--act-order` or `--asymmetric`: {why}"
                ));
            }
        }
        Ok(())
    }

    /// Whether a module stays as it is.
    pub(crate) fn keeps(&self, module: &str) -> bool {
        let padded = format!(".{module}.");
        self.keep.iter().any(|name| padded.contains(&format!(".{name}.")))
    }

    /// Method, bits and groups in a few words.
    pub fn words(&self) -> String {
        let Grid { bits, group, symmetric } = self.grid;
        let name = self.method.name();
        let sharing = match (self.method, group) {
            (Method::Quip | Method::Aqlm, _) => "vectors of 8".to_owned(),
            (_, Group::Tensor) => "a scale per matrix".to_owned(),
            (_, Group::Row) => "a scale per output".to_owned(),
            (Method::Fp8, Group::Inputs(n)) => format!("blocks of {n} by {n}"),
            (_, Group::Inputs(n)) => format!("groups of {n}"),
        };
        let bits = match self.target {
            None => format!("{bits} bits"),
            Some(Target::BitsPerWeight(bits)) => format!("{bits} bits per weight or less"),
            Some(Target::Bytes(n)) => format!("{n} bytes or less"),
        };
        let zeros = match (self.method.has_both(), symmetric) {
            (true, false) => ", zero points",
            _ => "",
        };
        let order = if self.gptq.act_order { ", act-order" } else { "" };
        let alpha = self.alpha.map_or(String::new(), |alpha| format!(", alpha {alpha}"));
        let kind = if self.fp8 == fp8::Kind::E5m2 { ", E5M2" } else { "" };
        let turned = if self.rotate { ", rotated" } else { "" };
        format!("{name}, {bits}, {sharing}{zeros}{order}{alpha}{kind}{turned}")
    }
}
