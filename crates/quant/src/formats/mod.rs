//! The registry of weight formats.

mod bf16;
mod f16;
mod f32;
mod fifth_bit;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_table;
mod iq4_xs;
mod k_scales;
mod lattice;
mod mxfp4;
mod pairs;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_k;
mod round_to;
mod ternary;
mod tq1_0;
mod tq2_0;

use bytemuck::Pod;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

pub use round_to::RoundTo;

/// One way to store weights.
///
/// Rows are independent of each other and a whole number of blocks long.
pub trait WeightFormat: Sync {
    /// Element type in files.
    fn dtype(&self) -> DType;

    /// The kernel layout that holds these weights without losing a bit.
    ///
    /// Its source rows are this format's own bytes, or [`rewrite`](Self::rewrite) makes them;
    /// for [`WeightLayout::F32`] rows are dequantized.
    fn layout(&self) -> WeightLayout;

    /// Function that turns stored blocks into source rows of the layout, where the two differ.
    fn rewrite(&self) -> Option<Rewrite> {
        None
    }

    /// Quantizes `row`, finite weights only, to `out`.
    ///
    /// # Panics
    ///
    /// When `row` is not a whole number of blocks, or `out` has another length than these blocks.
    fn quantize(&self, row: &[f32], out: &mut [u8]);

    /// The quantizer for inputs that differ in importance, where the format has one.
    fn weighted(&self) -> Option<Weighted> {
        None
    }

    /// Writes the weights of the stored `blocks` to `out`: the specification of the format.
    ///
    /// # Panics
    ///
    /// When `out` is not a whole number of blocks, or `blocks` has another length than these
    /// blocks.
    fn dequantize(&self, blocks: &[u8], out: &mut [f32]);

    /// Bound on the quantization error of one weight, as a part of the largest magnitude in its
    /// block.
    fn relative_error(&self) -> f32;

    /// Name for users.
    fn name(&self) -> &'static str {
        self.dtype().name()
    }

    /// Weights per block.
    fn block_len(&self) -> usize {
        self.dtype().block_len()
    }

    /// Bytes per block.
    fn block_bytes(&self) -> usize {
        self.dtype().block_bytes()
    }
}

/// A format whose weights lie in blocks, each of which is written and read by itself.
trait BlockFormat: Sync {
    /// Its type in files.
    const DTYPE: DType;
    /// See [`WeightFormat::layout`].
    const LAYOUT: WeightLayout;
    /// See [`WeightFormat::rewrite`].
    const REWRITE: Option<Rewrite> = None;
    /// Whether its quantizer looks at the importance of inputs.
    const IS_WEIGHTED: bool = false;
    /// A block as it lies in the file; alignment 1.
    type Block: Pod;
    /// The weights of a block, an array of f32.
    type Weights: Pod;

    /// Quantizes the weights of a block, whose inputs may differ in importance.
    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Self::Block);

    /// Writes the weights of a block.
    fn dequantize(block: &Self::Block, weights: &mut Self::Weights);

    /// See [`WeightFormat::relative_error`].
    fn relative_error() -> f32;
}

impl<F: BlockFormat> WeightFormat for F {
    fn dtype(&self) -> DType {
        F::DTYPE
    }

    fn layout(&self) -> WeightLayout {
        F::LAYOUT
    }

    fn rewrite(&self) -> Option<Rewrite> {
        F::REWRITE
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        quantize::<F>(row, None, out);
    }

    fn weighted(&self) -> Option<Weighted> {
        F::IS_WEIGHTED.then_some(|row, inputs, out| quantize::<F>(row, Some(inputs), out))
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(F::DTYPE, out.len(), blocks.len());
        let blocks: &[F::Block] = bytemuck::cast_slice(blocks);
        let row: &mut [F::Weights] = bytemuck::cast_slice_mut(out);
        for (weights, block) in row.iter_mut().zip(blocks) {
            F::dequantize(block, weights);
        }
    }

    fn relative_error(&self) -> f32 {
        F::relative_error()
    }
}

/// Quantizes a row, whose inputs may differ in importance.
fn quantize<F: BlockFormat>(row: &[f32], inputs: Option<&[f32]>, out: &mut [u8]) {
    check_sizes(F::DTYPE, row.len(), out.len());
    let blocks: &mut [F::Block] = bytemuck::cast_slice_mut(out);
    let row: &[F::Weights] = bytemuck::cast_slice(row);
    let inputs: Option<&[F::Weights]> = inputs.map(bytemuck::cast_slice);
    for (i, (block, weights)) in blocks.iter_mut().zip(row).enumerate() {
        F::quantize(weights, inputs.map(|inputs| &inputs[i]), block);
    }
}

/// Writes stored blocks as the source row of a layout.
pub type Rewrite = fn(&[u8], &mut [u8]);

/// Quantizes a row whose inputs have each an importance, above zero: row, importance, blocks.
pub type Weighted = fn(&[f32], &[f32], &mut [u8]);

/// Every format. Conformance tests iterate over this table.
pub static FORMATS: &[&dyn WeightFormat] = &[
    &f32::F32,
    &f16::F16,
    &bf16::Bf16,
    &q8_0::Q8_0,
    &q6_k::Q6K,
    &q5_k::Q5K,
    &q5_1::Q5_1,
    &q5_0::Q5_0,
    &q4_k::Q4K,
    &q4_1::Q4_1,
    &q4_0::Q4_0,
    &iq4_nl::Iq4Nl,
    &iq4_xs::Iq4Xs,
    &mxfp4::Mxfp4,
    &q3_k::Q3K,
    &q2_k::Q2K,
    &tq2_0::Tq2_0,
    &tq1_0::Tq1_0,
    &iq3_s::Iq3S,
    &iq3_xxs::Iq3Xxs,
    &iq2_s::Iq2S,
    &iq2_xs::Iq2Xs,
    &iq2_xxs::Iq2Xxs,
    &iq1_m::Iq1M,
    &iq1_s::Iq1S,
    &q8_k::Q8K,
];

/// The format that stores elements as `dtype`, or `None` when there is none.
pub fn for_dtype(dtype: DType) -> Option<&'static dyn WeightFormat> {
    FORMATS.iter().copied().find(|format| format.dtype() == dtype)
}

/// Format for rows of `row_len` weights: `wished` when they are whole blocks of it, else `Q8_0`,
/// else `F32`.
pub fn fitting(wished: &'static dyn WeightFormat, row_len: usize) -> &'static dyn WeightFormat {
    let choices: [&'static dyn WeightFormat; 2] = [wished, &q8_0::Q8_0];
    let fits = |format: &&dyn WeightFormat| row_len.is_multiple_of(format.block_len());
    choices.into_iter().find(fits).unwrap_or(&f32::F32)
}

/// The format with this name, in upper or lower case.
pub fn for_name(name: &str) -> Option<&'static dyn WeightFormat> {
    FORMATS.iter().copied().find(|format| format.name().eq_ignore_ascii_case(name))
}

/// Names of all formats, for messages.
pub fn supported_names() -> String {
    FORMATS.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}

/// Panics unless `n_weights` take `n_bytes`.
fn check_sizes(dtype: DType, n_weights: usize, n_bytes: usize) {
    assert_eq!(dtype.bytes_for(n_weights), Some(n_bytes), "bytes of {n_weights} {dtype} weights");
}
