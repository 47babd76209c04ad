//! `IQ1_M`: blocks of 256 weights in 32 points of 8 out of 2,048, a scale per 16, a shift per 8;
//! 1.75 bits per weight.
//!
//! ```text
//! byte 0..32     lower 8 bits of point j
//! byte 32..48    low nibble of byte j: point 2 j, high nibble: point 2 j + 1
//!                bits 0..3 upper three bits of the point;  bit 3: the shift is down
//! byte 48..56    4 words of 16 bits: bits 3 p..: s of weights 64 h + 16 p ..
//!                                    bits 12..16: bits 4 h.. of d, f16
//! w[i] = (d / 8 * (2 s + 1)) * (8 t[i] + shift)          t: -1, 0 or 1; shift: 1 or -1
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{BLOCK_LEN, IQ1, Lattice, LatticeFormat, Levels, POINTS_IQ1, Parts, Signs};

/// The format.
pub(super) struct Iq1M;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    low: [u8; BLOCK_LEN / 8],
    high: [u8; BLOCK_LEN / 16],
    s_and_d: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<Block>() == 56 && align_of::<Block>() == 1);

impl LatticeFormat for Iq1M {
    const DTYPE: DType = DType::Iq1M;
    const LEVELS: &'static Levels = &IQ1;
    const LATTICE: &'static Lattice = &POINTS_IQ1;
    const SIGNS: Signs = Signs::Shared(8);
    const SCALE_LEN: usize = 16;
    const S_MAX: u8 = 7;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let words = block.s_and_d.map(u16::from_le_bytes);
        let d = (0..4).fold(0, |d, h| d | words[h] >> 12 << (4 * h));
        let mut parts = Parts::new(f16::from_bits(d));
        for i in 0..16 {
            parts.set_scales(i..i + 1, (words[i / 4] >> (i % 4 * 3) & 7) as u8);
        }
        for (j, &low) in block.low.iter().enumerate() {
            let nibble = block.high[j / 2] >> (j % 2 * 4) & 15;
            let point = usize::from(low) | usize::from(nibble & 7) << 8;
            parts.set_eight::<Self>(j, point, 255 * (nibble >> 3));
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let points: [usize; BLOCK_LEN / 8] =
            std::array::from_fn(|j| parts.index_of_eight::<Self>(j));
        let nibble = |j: usize| (points[j] >> 8) as u8 | (parts.signs[j] & 1) << 3;
        let word = |h: usize| {
            let s = (0..4).fold(0, |word, p| word | u16::from(parts.s[4 * h + p]) << (3 * p));
            (s | parts.d.to_bits() >> (4 * h) << 12).to_le_bytes()
        };
        Block {
            low: points.map(|point| point as u8),
            high: std::array::from_fn(|j| nibble(2 * j) | nibble(2 * j + 1) << 4),
            s_and_d: std::array::from_fn(word),
        }
    }
}
