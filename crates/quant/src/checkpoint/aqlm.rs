//! AQLM: vectors of weights, each the sum of entries of a few codebooks.
//!
//! ```text
//! codes      i8, i16 [n / a, k / b, c]   c codes of `bits` bits with a sign for each vector of a by b
//!                                        weights: -2^(bits - 1) to 2^(bits - 1) - 1, taken modulo 2^bits
//! codebooks  f16 [c, 2^bits, a, b]
//! scales     f16 [n / a, 1, 1, 1]
//! w[r a + i][s b + j] = scales[r] * (codebooks[0][codes[r][s][0]][i][j] + codebooks[1][..] + ...)
//! ```
//!
//! The usual ones are 1x16 (one codebook of 16 bits, vectors of 1 by 8: two bits a weight) and 2x8.
//! The sum is taken in f32, codebooks ascending; libraries take it in f16. A weight has no code of
//! its own, so the matrix becomes `f32`.
//!
//! # Paper
//!
//! Egiazarian et al., *Extreme Compression of Large Language Models via Additive Quantization*,
//! 2024.

use pelton_kernels::WeightLayout;
use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::floats::Floats;
use super::ignored::Ignored;
use super::matrix::Opened;
use super::packing::{Found, Stored};
use super::patterns::Pattern;
use super::setting::Setting;
use super::tensors::{FLOATS, Tensors, scales, wrong};
use super::{CheckpointMethod, Kind, ROOT, Scheme, unpackable};
use crate::Result;

/// Most codebooks, and most weights along one side of a vector.
const MOST: i64 = 64;
/// Most bits of a code.
const MOST_BITS: i64 = 16;

/// The method.
pub(super) struct Aqlm;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    /// Outputs and inputs of a vector.
    vector: [usize; 2],
    n_codebooks: usize,
    bits: usize,
}

impl CheckpointMethod for Aqlm {
    fn names(&self) -> &'static [&'static str] {
        &["aqlm"]
    }

    fn supported(&self) -> &'static str {
        "codebooks of up to 16 bits, any number and group sizes up to 64"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        // The defaults are those of the library.
        let count = |name: &str, default: i64, most: i64| {
            let field = root.get(name);
            match field.whole()?.unwrap_or(default) {
                n if (1..=most).contains(&n) => Ok(n as usize),
                _ => Err(field.error(format!("a number from 1 to {most}"))),
            }
        };
        let kind = Config {
            vector: [count("out_group_size", 1, MOST)?, count("in_group_size", 8, MOST)?],
            n_codebooks: count("num_codebooks", 1, MOST)?,
            bits: count("nbits_per_codebook", 16, MOST_BITS)?,
        };
        let plain = root.get("linear_weights_not_to_quantize");
        let names = plain.texts()?.into_iter();
        let modules = names.map(|name| Pattern::Name(name.trim_end_matches(".weight").to_owned()));
        Ok(Scheme { ignored: Ignored::of(modules.collect()), kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        let Self { vector: [a, b], n_codebooks, bits } = self;
        format!("AQLM, {n_codebooks}x{bits}, vectors of {a} x {b}")
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("codes").is_none() {
            return Ok(None);
        }
        let ([n, k], [a, b]) = (shape, self.vector);
        if !n.is_multiple_of(a) || !k.is_multiple_of(b) {
            return Err(unpackable(tensors, shape, &format!("a matrix in vectors of {a} x {b}")));
        }
        let kind = if self.bits <= 8 { DType::I8 } else { DType::I16 };
        let codes = tensors.need("codes", &[kind], &[n / a, k / b, self.n_codebooks])?;
        let size = 1 << self.bits;
        let codebooks = tensors.need("codebooks", FLOATS, &[self.n_codebooks, size, a, b])?;
        let scales = tensors.need("scales", FLOATS, &[n / a, 1, 1, 1])?;
        let views = vec![codes, codebooks, scales];
        let stored = Parts { config: *self, k, codes, codebooks, scales };
        Ok(Some(Found { order: None, views, stored: Box::new(stored) }))
    }
}

/// The tensors of one matrix.
struct Parts<'a> {
    config: Config,
    k: usize,
    codes: TensorView<'a>,
    codebooks: TensorView<'a>,
    scales: TensorView<'a>,
}

/// Code `index` of a tensor of codes of the type `dtype`.
fn code(data: &[u8], dtype: DType, index: usize) -> i32 {
    match dtype {
        DType::I8 => i32::from(data[index].cast_signed()),
        _ => i32::from(i16::from_le_bytes(data.as_chunks().0[index])),
    }
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let Config { vector: [a, b], n_codebooks, bits } = self.config;
        let (entries, scales) = (scales(&self.codebooks)?, scales(&self.scales)?);
        let (data, dtype, k) = (self.codes.data, self.codes.dtype, self.k);
        let most = 1 << (bits - 1);
        let n_codes = self.codes.n_elements();
        if let Some(i) = (0..n_codes).find(|i| !(-most..most).contains(&code(data, dtype, *i))) {
            let got = format!("{} at element {i}", code(data, dtype, i));
            return Err(wrong(&self.codes, format!("codes from {} to {}", -most, most - 1), got));
        }
        let mask = (1 << bits) - 1;
        let rows = move |row: usize, out: &mut [f32]| {
            let (group, i) = (row / a, row % a);
            for (s, out) in out.chunks_exact_mut(b).enumerate() {
                for c in 0..n_codebooks {
                    let index = (group * (k / b) + s) * n_codebooks + c;
                    let entry = (c << bits) + (code(data, dtype, index) & mask) as usize;
                    let vector = &entries[(entry * a + i) * b..][..b];
                    if c == 0 {
                        out.copy_from_slice(vector);
                    } else {
                        out.iter_mut().zip(vector).for_each(|(out, x)| *out += x);
                    }
                }
                out.iter_mut().for_each(|out| *out *= scales[group]);
            }
        };
        Ok(Floats { k, rows: Box::new(rows), kind: WeightLayout::F32 }.into())
    }
}
