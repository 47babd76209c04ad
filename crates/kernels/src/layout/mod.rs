//! How weights lie in memory.

pub(crate) mod bytes;
pub(crate) mod float;
pub(crate) mod int;
mod packed;
mod storage;
mod version;

pub use packed::{BAND_BYTES, PackedMatrix, Rows};
pub use storage::Storage;
pub use version::LAYOUT_VERSION;

/// Output rows per panel: the 32-bit lanes of the widest register.
pub const PANEL: usize = 16;

/// The packed layouts that kernels exist for. Many file formats decode into these few.
///
/// The quantized ones multiply int8 activations; what their source rows look like stands at the
/// layout.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WeightLayout {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16, interleaved in pairs.
    Bf16,
    /// 8-bit floats (4 bits of exponent) with one scale per output; rows are an f32 scale and one
    /// byte per weight.
    Fp8E4M3,
    /// 8-bit floats (5 bits of exponent) with one scale per output; rows as [`Fp8E4M3`](Self::Fp8E4M3).
    Fp8E5M2,
    /// Nibbles into a table of normal floats; rows are blocks of an f32 scale and 64 nibbles, the
    /// first of each byte high.
    Nf4,
    /// Nibbles into a table of small floats; rows as [`Nf4`](Self::Nf4).
    Fp4,
    /// 8-bit integers with one f16 scale per 32 weights; GGUF `Q8_0` rows.
    Q8G32,
    /// 8-bit integers with one scale per output; rows are an f32 scale and one byte per weight.
    Int8Row,
    /// 4-bit integers (zero 8) with one f16 scale per 32 weights; GGUF `Q4_0` rows.
    Q4G32,
    /// 4-bit integers with an f16 scale and minimum per 32 weights; GGUF `Q4_1` rows.
    Q4G32Min,
    /// 4-bit integers with an f16 scale and a zero point per 32 weights. Rows are blocks of the
    /// scale, the zero point in a byte (0 to 16) and 16 bytes of nibbles, the first 16 weights low.
    Int4G32,
    /// As [`Int4G32`](Self::Int4G32) with one scale per 64 weights: scale, zero point, twice 16
    /// bytes.
    Int4G64,
    /// As [`Int4G32`](Self::Int4G32) with one scale per 128 weights: scale, zero point, 4 times 16
    /// bytes.
    Int4G128,
    /// 2-bit integers with an f16 scale and an f16 zero point per 16 weights.
    ///
    /// Rows of this and the next seven are blocks of the scales, the zero points and the codes of
    /// groups of 32 weights. Of 2 bits: 8 bytes, of which byte `k` has the weights `k`, `k + 8`, `k +
    /// 16` and `k + 24`, the first lowest. Of 4 bits: 16 bytes, the first 16 weights low. Of 8 bits:
    /// 32 bytes.
    Affine2G16,
    /// As [`Affine2G16`](Self::Affine2G16) with one scale and zero point per 64 weights.
    Affine2G64,
    /// 4-bit integers with an f16 scale and an f16 zero point per 16 weights.
    Affine4G16,
    /// As [`Affine4G16`](Self::Affine4G16) per 32 weights.
    Affine4G32,
    /// As [`Affine4G16`](Self::Affine4G16) per 64 weights.
    Affine4G64,
    /// 8-bit integers with an f16 scale and an f16 zero point per 32 weights.
    Affine8G32,
    /// 4-bit integers with an f32 scale and an f32 zero point per 32 weights.
    Affine4G32Wide,
    /// 8-bit integers with an f32 scale and an f32 zero point per 32 weights.
    Affine8G32Wide,
    /// 5-bit integers (zero 16) with one f16 scale per 32 weights; GGUF `Q5_0` rows.
    Q5G32,
    /// 5-bit integers with an f16 scale and minimum per 32 weights; GGUF `Q5_1` rows.
    Q5G32Min,
    /// Super-blocks of 2-bit integers; GGUF `Q2_K` rows.
    Q2K,
    /// Super-blocks of 3-bit integers; GGUF `Q3_K` rows.
    Q3K,
    /// Super-blocks of 4-bit integers; GGUF `Q4_K` rows.
    Q4K,
    /// Super-blocks of 5-bit integers; GGUF `Q5_K` rows.
    Q5K,
    /// Super-blocks of 6-bit integers; GGUF `Q6_K` rows.
    Q6K,
    /// Nibbles into a table of signed bytes, one f16 scale per 32 weights; GGUF `IQ4_NL` rows.
    Iq4Nl,
    /// As [`Iq4Nl`](Self::Iq4Nl) in super-blocks; GGUF `IQ4_XS` rows.
    Iq4Xs,
    /// 4-bit floats with one power of two per 32 weights; GGUF `MXFP4` rows.
    Mxfp4,
    /// 4-bit floats with an 8-bit float (E4M3) as scale per 16 weights, divided by a number per output.
    ///
    /// Rows are an f32 divisor and blocks of two scales and 16 bytes of nibbles, the first 16 weights
    /// low.
    Nvfp4,
    /// Ternary weights, five to a byte; GGUF `TQ1_0` rows.
    Tq1,
    /// Ternary weights, four to a byte; GGUF `TQ2_0` rows.
    Tq2,
    /// Codes of 3 bits into the values of GGUF `IQ1_S` and `IQ1_M`, odd scales per 16 weights.
    ///
    /// Rows of this and the next three are not those of a file. Blocks of 256 weights are an f16
    /// `d` and 8 groups of 32: a byte with the scales of 16 weights each (`2 s + 1` with `s` in the
    /// low and the high nibble), then the codes. Of 4 bits: 16 bytes, the first 16 weights low. Of
    /// 3 bits: 8 bytes, of which byte `k` has bits 0 and 1 of the weights `k`, `k + 8`, `k + 16`
    /// and `k + 24`, the first lowest, and 4 bytes, of which bit `b` of byte `k` is bit 2 of weight
    /// `4 b + k`. The upper half of the codes are the negatives of the lower.
    Iq1,
    /// As [`Iq1`](Self::Iq1) with the values of GGUF `IQ2_XXS`, `IQ2_XS` and `IQ2_S`: 8, 25, 43.
    Iq2,
    /// Codes of 4 bits into the values of GGUF `IQ3_XXS`; one scale per 32 weights, the low nibble.
    Iq3Xxs,
    /// As [`Iq3Xxs`](Self::Iq3Xxs) with the values of GGUF `IQ3_S`.
    Iq3S,
}

/// Evaluates `$body` with the type alias `$name` for the integer layout that `$layout` names, and
/// `$other` for the float layouts.
macro_rules! with_int_layout {
    ($layout:expr, $name:ident => $body:expr, else $other:expr) => {
        with_int_layout!(@match $layout, $name => $body, else $other,
            Q8G32 Int8Row Q4G32 Q4G32Min Q5G32 Q5G32Min Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4 Nvfp4 Tq1
            Tq2 Iq1 Iq2 Iq3Xxs Iq3S Affine2G16 Affine2G64 Affine4G16 Affine4G32 Affine4G64 Affine8G32
            Affine4G32Wide Affine8G32Wide;
            Int4G32 = 1, Int4G64 = 2, Int4G128 = 4)
    };
    (@match $layout:expr, $name:ident => $body:expr, else $other:expr,
        $($variant:ident)+; $($int4:ident = $groups:literal),+
    ) => {
        match $layout {
            $($crate::layout::WeightLayout::$variant => {
                type $name = $crate::layout::int::$variant;
                $body
            })+
            $($crate::layout::WeightLayout::$int4 => {
                type $name = $crate::layout::int::Int4<$groups>;
                $body
            })+
            _ => $other,
        }
    };
}
/// As [`with_int_layout`] for the float layouts.
macro_rules! with_float_layout {
    ($layout:expr, $name:ident => $body:expr, else $other:expr) => {
        with_float_layout!(@match $layout, $name => $body, else $other,
            F32 F16 Bf16 Fp8E4M3 Fp8E5M2 Nf4 Fp4)
    };
    (@match $layout:expr, $name:ident => $body:expr, else $other:expr, $($variant:ident)+) => {
        match $layout {
            $($crate::layout::WeightLayout::$variant => {
                type $name = $crate::layout::float::$variant;
                $body
            })+
            _ => $other,
        }
    };
}
pub(crate) use {with_float_layout, with_int_layout};

/// Evaluates one of two expressions with the type alias for the layout.
macro_rules! with_layout {
    ($layout:expr, $int:ident => $int_body:expr, $float:ident => $float_body:expr) => {
        with_int_layout!($layout, $int => $int_body, else with_float_layout!($layout,
            $float => $float_body, else unreachable!("invariant: a layout is one or the other")))
    };
}

impl WeightLayout {
    /// Every layout, for tests and benches that iterate.
    pub const ALL: &'static [Self] = &[
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Fp8E4M3,
        Self::Fp8E5M2,
        Self::Nf4,
        Self::Fp4,
        Self::Q8G32,
        Self::Int8Row,
        Self::Q4G32,
        Self::Q4G32Min,
        Self::Int4G32,
        Self::Int4G64,
        Self::Int4G128,
        Self::Affine2G16,
        Self::Affine2G64,
        Self::Affine4G16,
        Self::Affine4G32,
        Self::Affine4G64,
        Self::Affine8G32,
        Self::Affine4G32Wide,
        Self::Affine8G32Wide,
        Self::Q5G32,
        Self::Q5G32Min,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Tq1,
        Self::Tq2,
        Self::Iq1,
        Self::Iq2,
        Self::Iq3Xxs,
        Self::Iq3S,
    ];

    /// Short name, for logs and benches.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8E4M3 => "fp8-e4m3",
            Self::Fp8E5M2 => "fp8-e5m2",
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Q8G32 => "q8",
            Self::Int8Row => "int8-row",
            Self::Q4G32 => "q4",
            Self::Q4G32Min => "q4-min",
            Self::Int4G32 => "int4-g32",
            Self::Int4G64 => "int4-g64",
            Self::Int4G128 => "int4-g128",
            Self::Affine2G16 => "affine2-g16",
            Self::Affine2G64 => "affine2-g64",
            Self::Affine4G16 => "affine4-g16",
            Self::Affine4G32 => "affine4-g32",
            Self::Affine4G64 => "affine4-g64",
            Self::Affine8G32 => "affine8-g32",
            Self::Affine4G32Wide => "affine4-g32-f32",
            Self::Affine8G32Wide => "affine8-g32-f32",
            Self::Q5G32 => "q5",
            Self::Q5G32Min => "q5-min",
            Self::Q2K => "q2k",
            Self::Q3K => "q3k",
            Self::Q4K => "q4k",
            Self::Q5K => "q5k",
            Self::Q6K => "q6k",
            Self::Iq4Nl => "iq4nl",
            Self::Iq4Xs => "iq4xs",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
            Self::Tq1 => "tq1",
            Self::Tq2 => "tq2",
            Self::Iq1 => "iq1",
            Self::Iq2 => "iq2",
            Self::Iq3Xxs => "iq3xxs",
            Self::Iq3S => "iq3s",
        }
    }

    /// Weights per block: a row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        with_layout!(self, I => <I as int::IntLayout>::LEN, F => <F as float::FloatLayout>::LEN)
    }

    /// Bytes of one source row of `k` weights.
    ///
    /// # Panics
    ///
    /// When `k` is not a multiple of [`block_len`](Self::block_len).
    pub fn row_bytes(self, k: usize) -> usize {
        self.check_width(k);
        with_layout!(self,
            I => int::row_bytes::<I>(k),
            F => <F as float::FloatLayout>::row_bytes(k)
        )
    }

    /// Whether activations must be quantized for this layout.
    pub fn needs_quantized_input(self) -> bool {
        with_int_layout!(self, _L => true, else false)
    }

    /// Bytes of one panel of `k` inputs.
    fn panel_bytes(self, k: usize) -> usize {
        self.check_width(k);
        with_layout!(self,
            I => int::panel_bytes::<I>(k),
            F => <F as float::FloatLayout>::panel_bytes(k)
        )
    }

    fn check_width(self, k: usize) {
        let block = self.block_len();
        assert!(k.is_multiple_of(block), "k = {k} is not a multiple of the block of {block}");
    }

    /// Writes one source row to its lane of a panel of zeros.
    fn place_row(self, row: &[u8], panel: &mut [u8], lane: usize) {
        with_layout!(self,
            I => int::place_row::<I>(row, panel, lane),
            F => <F as float::FloatLayout>::place(row, panel, lane)
        );
    }

    /// The weights of one lane of a panel, dequantized.
    fn unpack_lane(self, panel: &[u8], lane: usize, out: &mut [f32]) {
        with_layout!(self,
            I => int::unpack_lane::<I>(panel, lane, out),
            F => float::unpack_lane::<F>(panel, lane, out)
        );
    }
}
