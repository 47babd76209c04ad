//! `Q8_K`: blocks of 256 weights, one single-precision scale and 256 signed bytes; 9.125 bits per
//! weight.
//!
//! ```text
//! byte 0..4       d     f32, amax / 127
//! byte 4..260     q[i]  i8, round(w[i] / d), halves away from zero
//! byte 260..292   sums of 16 bytes each, i16
//! w[i] = d * q[i]
//! ```
//! Made for activations between products of K formats, hence the sums; as weights it is allowed and
//! hardly ever seen. No layout has a single-precision scale per 256, and none is worth having for
//! this, so that rows are dequantized: 3.5 times as large in memory as in the file.

use bytemuck::{Pod, Zeroable};
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;

/// Weights per block.
const BLOCK_LEN: usize = 256;

/// The format.
pub(super) struct Q8K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 4],
    q: [i8; BLOCK_LEN],
    sums: [[u8; 2]; BLOCK_LEN / 16],
}

const _: () = assert!(size_of::<Block>() == 292 && align_of::<Block>() == 1);

impl BlockFormat for Q8K {
    const DTYPE: DType = DType::Q8K;
    const LAYOUT: WeightLayout = WeightLayout::F32;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
        let d = amax / 127.0;
        // The largest weight is 127 steps away, or 126.x where the step is subnormal.
        let quotient = |w: f32| if d == 0.0 { 0.0 } else { (w / d).clamp(-127.0, 127.0) };
        block.d = d.to_le_bytes();
        block.q = weights.map(|w| quotient(w).round() as i8);
        let sums = block.q.as_chunks::<16>().0.iter();
        for (sum, q) in block.sums.iter_mut().zip(sums) {
            *sum = q.iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes();
        }
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f32::from_le_bytes(block.d);
        *weights = block.q.map(|q| d * f32::from(q));
    }

    fn relative_error() -> f32 {
        // Half a step of 1/127, and the rounding of the step and the quotient.
        0.5 / 127.0 + 1e-6
    }
}
