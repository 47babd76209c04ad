//! `TQ1_0`: blocks of 256 weights of -1, 0 or 1 times one half-precision scale, five to a byte;
//! 1.6875 bits per weight. For models that were trained with such weights.
//!
//! ```text
//! byte 0..32     digit n of byte i: weight 32 n + i              n = 0..5
//! byte 32..48    digit n of byte i: weight 160 + 16 n + i        n = 0..5
//! byte 48..52    digit n of byte i: weight 240 + 4 n + i         n = 0..4
//! byte 52..54    d     f16, amax
//! q[i] = round(w[i] / d) + 1, halves away from zero
//! w[i] = d * (q[i] - 1)
//! ```
//! The digits of `x = 81 q0 + 27 q1 + 9 q2 + 3 q3 + q4 < 243` are stored as the fraction `x / 243`
//! in 256ths, rounded up. Then digit `n` is the integer part of three times what `3^n` leaves of
//! the fraction: `(byte * 3^n mod 256) * 3 / 256`, without a division.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{BlockFormat, ternary};

/// Weights per block.
const BLOCK_LEN: usize = 256;
/// Bytes that hold them.
const N_BYTES: usize = 52;

/// Powers of three.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// The format.
pub(super) struct Tq1_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    q: [u8; N_BYTES],
    d: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 54 && align_of::<Block>() == 1);

/// The byte and the digit in which weight `i` lies.
fn place(i: usize) -> (usize, usize) {
    match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
        _ => (48 + (i - 240) % 4, (i - 240) / 4),
    }
}

impl BlockFormat for Tq1_0 {
    const DTYPE: DType = DType::Tq1_0;
    const LAYOUT: WeightLayout = WeightLayout::Tq1;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let (d, q) = ternary::round(weights);
        let mut numbers = [0_u16; N_BYTES];
        for (i, q) in q.into_iter().enumerate() {
            let (byte, digit) = place(i);
            numbers[byte] += u16::from(q * POWERS[4 - digit]);
        }
        block.d = d.to_le_bytes();
        block.q = numbers.map(|x| (x * 256).div_ceil(243) as u8);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        for (i, weight) in weights.iter_mut().enumerate() {
            let (byte, digit) = place(i);
            let fraction = block.q[byte].wrapping_mul(POWERS[digit]);
            let q = (u16::from(fraction) * 3) >> 8;
            *weight = d * (f32::from(q) - 1.0);
        }
    }

    fn relative_error() -> f32 {
        ternary::RELATIVE_ERROR
    }
}
