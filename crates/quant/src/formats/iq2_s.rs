//! `IQ2_S`: blocks of 256 weights in 32 points of 8 out of 1,024, a scale per 16; 2.5625 bits per
//! weight.
//!
//! ```text
//! byte 0..2      d     f16
//! byte 2..34     lower 8 bits of point j
//! byte 34..66    signs of point j
//! byte 66..74    bits 2 p.. of byte g: upper two bits of point 4 g + p
//! byte 74..82    low nibble of byte g: s of weights 32 g ..; high nibble: s of weights 32 g + 16 ..
//! w[i] = (d / 8 * (2 s + 1)) * value[i]          value: 8, 25 or 43, with its sign
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{BLOCK_LEN, IQ2, Lattice, LatticeFormat, Levels, POINTS_IQ2_S, Parts, Signs};

/// The format.
pub(super) struct Iq2S;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    low: [u8; BLOCK_LEN / 8],
    signs: [u8; BLOCK_LEN / 8],
    high: [u8; 8],
    s: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 82 && align_of::<Block>() == 1);

impl LatticeFormat for Iq2S {
    const DTYPE: DType = DType::Iq2S;
    const LEVELS: &'static Levels = &IQ2;
    const LATTICE: &'static Lattice = &POINTS_IQ2_S;
    const SIGNS: Signs = Signs::Free;
    const SCALE_LEN: usize = 16;
    const S_MAX: u8 = 15;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        parts.set_nibble_scales(&block.s);
        for j in 0..BLOCK_LEN / 8 {
            let high = block.high[j / 4] >> (j % 4 * 2) & 3;
            let point = usize::from(block.low[j]) | usize::from(high) << 8;
            parts.set_eight::<Self>(j, point, block.signs[j]);
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let points: [usize; BLOCK_LEN / 8] =
            std::array::from_fn(|j| parts.index_of_eight::<Self>(j));
        let high =
            |g: usize| (0..4).fold(0, |byte, p| byte | ((points[4 * g + p] >> 8) as u8) << (2 * p));
        Block {
            d: parts.d.to_le_bytes(),
            low: points.map(|point| point as u8),
            signs: parts.signs,
            high: std::array::from_fn(high),
            s: parts.nibble_scales(),
        }
    }
}
