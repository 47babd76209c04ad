//! The methods: what each takes, and the layout that it writes.

use pelton_quant::solve::Group;

/// The way codes are chosen, and the layout that they are written in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// Every weight by itself.
    Rtn,
    /// Errors are made good by later inputs.
    Gptq,
    /// Inputs are scaled by their size.
    Awq,
    /// Int8 rows, once inputs are scaled so that they are int8 too.
    SmoothQuant,
    /// Int8 rows.
    Int8,
    /// Int8 rows of bitsandbytes, which computes large inputs in 16 bits.
    LlmInt8,
    /// 8-bit floats.
    Fp8,
    /// Quantiles of the normal distribution.
    Nf4,
    /// 4-bit floats and powers of two.
    Mxfp4,
    /// 4-bit floats and 8-bit floats.
    Nvfp4,
    /// Zero points that are not whole.
    Hqq,
    /// Vectors of a lattice, between two Hadamard transforms.
    Quip,
    /// Sums of entries of learned codebooks.
    Aqlm,
    /// -1, 0 and 1 with one scale per matrix.
    BitNet,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 14] = [
        Self::Rtn,
        Self::Gptq,
        Self::Awq,
        Self::SmoothQuant,
        Self::Int8,
        Self::LlmInt8,
        Self::Fp8,
        Self::Nf4,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Hqq,
        Self::Quip,
        Self::Aqlm,
        Self::BitNet,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtn => "rtn",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::SmoothQuant => "smoothquant",
            Self::Int8 => "int8",
            Self::LlmInt8 => "llm-int8",
            Self::Fp8 => "fp8",
            Self::Nf4 => "nf4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
            Self::Hqq => "hqq",
            Self::Quip => "quip",
            Self::Aqlm => "aqlm",
            Self::BitNet => "bitnet",
        }
    }

    /// Whether it looks at activations.
    pub fn needs_calibration(self) -> bool {
        matches!(self, Self::Gptq | Self::Awq | Self::SmoothQuant | Self::Aqlm)
    }

    /// Bits of a code, the usual ones first.
    pub fn bits(self) -> &'static [usize] {
        match self {
            Self::Rtn | Self::Gptq | Self::Hqq => &[4, 2, 3, 8],
            Self::Quip | Self::Aqlm => &[2, 3, 4],
            Self::BitNet => &[2],
            Self::Awq | Self::Nf4 | Self::Mxfp4 | Self::Nvfp4 => &[4],
            Self::SmoothQuant | Self::Int8 | Self::LlmInt8 | Self::Fp8 => &[8],
        }
    }

    /// The usual group.
    pub fn group(self) -> Group {
        match self {
            Self::Rtn | Self::Gptq | Self::Awq => Group::Inputs(128),
            Self::Nf4 | Self::Hqq => Group::Inputs(64),
            Self::Mxfp4 => Group::Inputs(32),
            Self::Nvfp4 => Group::Inputs(16),
            Self::SmoothQuant | Self::Int8 | Self::LlmInt8 | Self::Fp8 => Group::Row,
            Self::Quip | Self::Aqlm => Group::Row,
            Self::BitNet => Group::Tensor,
        }
    }

    /// Whether its codes usually have no zero points.
    pub fn is_symmetric(self) -> bool {
        !matches!(self, Self::Awq | Self::Hqq)
    }

    /// Whether the layout that it writes has matrices `[n, k]` where a family stores them transposed.
    pub(crate) fn turns(self) -> bool {
        matches!(self, Self::Rtn | Self::Gptq | Self::LlmInt8 | Self::Nf4)
    }

    /// Whether errors are made good by later inputs where there is a calibration, beside GPTQ itself.
    pub fn compensates(self) -> bool {
        use Method::{BitNet, Fp8, Int8, LlmInt8, Mxfp4, Nvfp4, Quip, SmoothQuant};
        matches!(self, SmoothQuant | Int8 | LlmInt8 | Fp8 | Mxfp4 | Nvfp4 | Quip | BitNet)
    }

    /// Whether inputs are scaled before weights are rounded.
    pub(crate) fn folds(self) -> bool {
        matches!(self, Self::Awq | Self::SmoothQuant)
    }

    /// Whether it takes zero points, and goes without.
    pub(crate) fn has_both(self) -> bool {
        matches!(self, Self::Rtn | Self::Gptq)
    }

    pub(crate) fn takes_group(self, group: Group) -> bool {
        match (self, group) {
            (_, Group::Inputs(0)) => false,
            (Self::Rtn, _) => true,
            (Self::Gptq | Self::Awq, group) => group != Group::Tensor,
            (Self::Hqq, Group::Inputs(n)) => n.is_multiple_of(8),
            (Self::Nf4, Group::Inputs(n)) => (64..=4096).contains(&n) && n.is_power_of_two(),
            (Self::Fp8, group) => [Group::Tensor, Group::Row, Group::Inputs(128)].contains(&group),
            (Self::SmoothQuant | Self::Int8, group) => [Group::Tensor, Group::Row].contains(&group),
            (_, group) => group == self.group(),
        }
    }

    /// The groups that it takes, in words.
    pub(crate) fn groups(self) -> &'static str {
        match self {
            Self::Rtn => "1 up, `row` or `tensor`",
            Self::Gptq | Self::Awq => "1 up, or `row`",
            Self::Hqq => "a multiple of 8",
            Self::Nf4 => "64, 128, 256, 512, 1024, 2048 or 4096",
            Self::Fp8 => "`row`, `tensor`, or 128 for blocks of 128 by 128,",
            Self::Mxfp4 => "32",
            Self::Nvfp4 => "16",
            Self::SmoothQuant | Self::Int8 => "`row` or `tensor`",
            Self::LlmInt8 | Self::Quip | Self::Aqlm => "`row`",
            Self::BitNet => "`tensor`",
        }
    }

    /// The widths that it takes, in words.
    pub(crate) fn widths(self) -> &'static str {
        match self.bits() {
            [2] => "2",
            [4] => "4",
            [8] => "8",
            [2, 3, 4] => "2, 3 or 4",
            _ => "2, 3, 4 or 8",
        }
    }
}
