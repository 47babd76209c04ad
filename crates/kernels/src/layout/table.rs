//! The table of weight layouts: every list of them is made from it.
//!
//! A row is `Variant = "name": kind(file::Type)`. The kind says which trait the type implements,
//! `int` ([`IntLayout`](super::int::IntLayout)) or `float`
//! ([`FloatLayout`](super::float::FloatLayout)); sizes, packing and kernels follow from the type.
//! To add a layout, implement the trait in a file and add a row here;
//! [`LAYOUT_VERSION`](super::LAYOUT_VERSION) has a test that pins its bytes.

/// Calls another macro with `$args` and the table.
macro_rules! layouts {
    ([$($then:tt)+], $args:tt) => {
        $($then)+! {
            $args
            /// 32-bit floats.
            F32 = "f32": float(plain::F32);
            /// IEEE half precision.
            F16 = "f16": float(plain::F16);
            /// bfloat16, interleaved in pairs.
            Bf16 = "bf16": float(plain::Bf16);
            /// 8-bit floats (4 bits of exponent) with one f32 scale per output.
            ///
            /// A source row is the scale, then one byte per weight.
            Fp8E4M3 = "fp8-e4m3": float(fp8::Fp8E4M3);
            /// 8-bit floats (5 bits of exponent) with one f32 scale per output.
            ///
            /// A source row is that of [`Fp8E4M3`](Self::Fp8E4M3).
            Fp8E5M2 = "fp8-e5m2": float(fp8::Fp8E5M2);
            /// 4-bit codes into the table [`NF4`](crate::codes::NF4), one f32 scale per 64 weights.
            ///
            /// A source row is blocks of the scale and 32 bytes; the first weight of a byte is its
            /// high nibble.
            Nf4 = "nf4": float(code4::Nf4);
            /// 4-bit codes into the table [`FP4`](crate::codes::FP4), one f32 scale per 64 weights.
            ///
            /// A source row is that of [`Nf4`](Self::Nf4).
            Fp4 = "fp4": float(code4::Fp4);
            /// 8-bit integers with one f16 scale per 32 weights; GGUF `Q8_0` rows.
            Q8G32 = "q8": int(plain::Q8G32);
            /// 8-bit integers with one f32 scale per output.
            ///
            /// A source row is the scale, then one byte per weight.
            Int8Row = "int8-row": int(plain::Int8Row);
            /// 4-bit integers less 8, with one f16 scale per 32 weights; GGUF `Q4_0` rows.
            Q4G32 = "q4": int(plain::Q4G32);
            /// 4-bit integers with an f16 scale and minimum per 32 weights; GGUF `Q4_1` rows.
            Q4G32Min = "q4-min": int(plain::Q4G32Min);
            /// 4-bit integers with an f16 scale and a whole zero point per 32 weights.
            ///
            /// A source row is blocks of the scale, the zero point in one byte (0 to 16), and 16
            /// bytes per 32 weights; the first 16 weights are the low nibbles.
            Int4G32 = "int4-g32": int(plain::Int4<1>);
            /// As [`Int4G32`](Self::Int4G32), with one scale and zero point per 64 weights.
            Int4G64 = "int4-g64": int(plain::Int4<2>);
            /// As [`Int4G32`](Self::Int4G32), with one scale and zero point per 128 weights.
            Int4G128 = "int4-g128": int(plain::Int4<4>);
            /// 2-bit integers with an f16 scale and an f16 zero point per 16 weights.
            ///
            /// A source row of this and the next seven layouts is blocks of scales, zero points and
            /// the codes of groups of 32 weights:
            ///
            /// * 2 bits: 8 bytes; byte `k` has the weights `k`, `k + 8`, `k + 16`, `k + 24`, lowest
            ///   bits first;
            /// * 4 bits: 16 bytes; the first 16 weights are the low nibbles;
            /// * 8 bits: 32 bytes.
            Affine2G16 = "affine2-g16": int(affine::Affine2G16);
            /// As [`Affine2G16`](Self::Affine2G16), with one scale and zero point per 64 weights.
            Affine2G64 = "affine2-g64": int(affine::Affine2G64);
            /// 4-bit integers with an f16 scale and an f16 zero point per 16 weights.
            Affine4G16 = "affine4-g16": int(affine::Affine4G16);
            /// As [`Affine4G16`](Self::Affine4G16), per 32 weights.
            Affine4G32 = "affine4-g32": int(affine::Affine4G32);
            /// As [`Affine4G16`](Self::Affine4G16), per 64 weights.
            Affine4G64 = "affine4-g64": int(affine::Affine4G64);
            /// 8-bit integers with an f16 scale and an f16 zero point per 32 weights.
            Affine8G32 = "affine8-g32": int(affine::Affine8G32);
            /// 4-bit integers with an f32 scale and an f32 zero point per 32 weights.
            Affine4G32Wide = "affine4-g32-f32": int(affine::Affine4G32Wide);
            /// 8-bit integers with an f32 scale and an f32 zero point per 32 weights.
            Affine8G32Wide = "affine8-g32-f32": int(affine::Affine8G32Wide);
            /// 5-bit integers less 16, with one f16 scale per 32 weights; GGUF `Q5_0` rows.
            Q5G32 = "q5": int(plain::Q5G32);
            /// 5-bit integers with an f16 scale and minimum per 32 weights; GGUF `Q5_1` rows.
            Q5G32Min = "q5-min": int(plain::Q5G32Min);
            /// Super-blocks of 2-bit integers; GGUF `Q2_K` rows.
            Q2K = "q2k": int(k_quants::Q2K);
            /// Super-blocks of 3-bit integers; GGUF `Q3_K` rows.
            Q3K = "q3k": int(k_quants::Q3K);
            /// Super-blocks of 4-bit integers; GGUF `Q4_K` rows.
            Q4K = "q4k": int(k_quants::Q4K);
            /// Super-blocks of 5-bit integers; GGUF `Q5_K` rows.
            Q5K = "q5k": int(k_quants::Q5K);
            /// Super-blocks of 6-bit integers; GGUF `Q6_K` rows.
            Q6K = "q6k": int(k_quants::Q6K);
            /// 4-bit codes into the table [`IQ4`](crate::codes::IQ4), one f16 scale per 32 weights;
            /// GGUF `IQ4_NL` rows.
            Iq4Nl = "iq4nl": int(codebook::Iq4Nl);
            /// As [`Iq4Nl`](Self::Iq4Nl) in super-blocks; GGUF `IQ4_XS` rows.
            Iq4Xs = "iq4xs": int(codebook::Iq4Xs);
            /// 4-bit floats with one power of two per 32 weights; GGUF `MXFP4` rows.
            Mxfp4 = "mxfp4": int(codebook::Mxfp4);
            /// 4-bit floats with an 8-bit float (E4M3) as scale per 16 weights and a divisor per
            /// output.
            ///
            /// A source row is the f32 divisor, then blocks of two scales and 16 bytes; the first
            /// 16 weights are the low nibbles.
            Nvfp4 = "nvfp4": int(codebook::Nvfp4);
            /// Ternary weights, five to a byte; GGUF `TQ1_0` rows.
            Tq1 = "tq1": int(ternary::Tq1);
            /// Ternary weights, four to a byte; GGUF `TQ2_0` rows.
            Tq2 = "tq2": int(ternary::Tq2);
            /// 3-bit codes into the table [`IQ1`](crate::codes::IQ1) of GGUF `IQ1_S` and `IQ1_M`,
            /// an odd scale per 16 weights.
            ///
            /// A source row of this and the next three layouts is none of a file. It is blocks of
            /// 256 weights: an f16 `d` and 8 groups of 32. A group is one byte with `s` of each 16
            /// weights in its low and its high nibble (the scale is `2 s + 1`), then the codes:
            ///
            /// * 3 bits: 8 bytes, of which byte `k` has bits 0 and 1 of the weights `k`, `k + 8`,
            ///   `k + 16`, `k + 24`, lowest bits first, and 4 bytes, of which bit `b` of byte `k`
            ///   is bit 2 of weight `4 b + k`;
            /// * 4 bits: 16 bytes; the first 16 weights are the low nibbles.
            Iq1 = "iq1": int(grid::Iq1);
            /// As [`Iq1`](Self::Iq1) with the table [`IQ2`](crate::codes::IQ2) of GGUF `IQ2_XXS`,
            /// `IQ2_XS` and `IQ2_S`.
            Iq2 = "iq2": int(grid::Iq2);
            /// 4-bit codes into the table [`IQ3_XXS`](crate::codes::IQ3_XXS), one odd scale per 32
            /// weights, whose `s` is the low nibble.
            Iq3Xxs = "iq3xxs": int(grid::Iq3Xxs);
            /// As [`Iq3Xxs`](Self::Iq3Xxs) with the table [`IQ3_S`](crate::codes::IQ3_S).
            Iq3S = "iq3s": int(grid::Iq3S);
        }
    };
}

/// Makes the enum, the list of its variants and their names.
macro_rules! define {
    (() $($(#[$doc:meta])* $variant:ident = $name:literal: $kind:ident($($type:tt)+);)+) => {
        /// The packed layouts that kernels exist for. Many file formats decode into these few.
        ///
        /// The quantized ones multiply int8 activations. Each says what its source rows look like.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum WeightLayout {
            $($(#[$doc])* $variant,)+
        }

        impl WeightLayout {
            /// Every layout, for tests and benches that iterate.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Short name, for logs and benches.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
layouts!([define], ());

/// `with_layout!(layout, I => .., F => ..)`: the first expression, with `I` naming the type of an
/// integer layout, or the second one, with `F` naming the type of a float layout.
macro_rules! with_layout {
    ($layout:expr, $int:ident => $int_body:expr, $float:ident => $float_body:expr $(,)?) => {
        $crate::layout::table::layouts!(
            [$crate::layout::table::choose],
            ($layout, $int => $int_body, $float => $float_body)
        )
    };
}

/// The match behind [`with_layout`].
macro_rules! choose {
    (
        ($layout:expr, $int:ident => $int_body:expr, $float:ident => $float_body:expr)
        $($(#[$doc:meta])* $variant:ident = $name:literal: $kind:ident($($type:tt)+);)+
    ) => {
        match $layout {
            $($crate::layout::WeightLayout::$variant => $crate::layout::table::choose!(
                @$kind($($type)+) $int => $int_body, $float => $float_body
            ),)+
        }
    };
    (@int($($type:tt)+) $int:ident => $body:expr, $float:ident => $other:expr) => {{
        type $int = $crate::layout::int::$($type)+;
        $body
    }};
    (@float($($type:tt)+) $int:ident => $other:expr, $float:ident => $body:expr) => {{
        type $float = $crate::layout::float::$($type)+;
        $body
    }};
}
pub(crate) use {choose, layouts, with_layout};
