//! `IQ3_S`: blocks of 256 weights in 64 points of 4 out of 512, a scale per 32; 3.4375 bits per
//! weight.
//!
//! ```text
//! byte 0..2       d     f16
//! byte 2..66      lower 8 bits of point j of 4 weights
//! byte 66..74     bit p of byte g: the upper bit of point 8 g + p
//! byte 74..106    signs of 8 weights
//! byte 106..110   low nibble of byte g: s of weights 64 g ..; high nibble: s of weights 64 g + 32 ..
//! w[i] = (d * (2 s + 1)) * value[i]          value: 1, 3, 5, 7, 9, 11, 13 or 15, with its sign
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{
    BLOCK_LEN, IQ3_S, Lattice, LatticeFormat, Levels, POINTS_IQ3_S, Parts, Signs,
};

/// The format.
pub(super) struct Iq3S;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    low: [u8; BLOCK_LEN / 4],
    high: [u8; 8],
    signs: [u8; BLOCK_LEN / 8],
    s: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 110 && align_of::<Block>() == 1);

impl LatticeFormat for Iq3S {
    const DTYPE: DType = DType::Iq3S;
    const LEVELS: &'static Levels = &IQ3_S;
    const LATTICE: &'static Lattice = &POINTS_IQ3_S;
    const SIGNS: Signs = Signs::Free;
    const SCALE_LEN: usize = 32;
    const S_MAX: u8 = 15;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        for g in 0..8 {
            parts.set_scales(2 * g..2 * g + 2, block.s[g / 2] >> (g % 2 * 4) & 15);
        }
        let point = |j: usize| {
            let high = block.high[j / 8] >> (j % 8) & 1;
            usize::from(block.low[j]) | usize::from(high) << 8
        };
        for (j, &signs) in block.signs.iter().enumerate() {
            parts.set_two_fours::<Self>(j, [point(2 * j), point(2 * j + 1)], signs);
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let points: [usize; BLOCK_LEN / 4] =
            std::array::from_fn(|j| parts.index_of_four::<Self>(j));
        let high =
            |g: usize| (0..8).fold(0, |byte, p| byte | ((points[8 * g + p] >> 8) as u8) << p);
        Block {
            d: parts.d.to_le_bytes(),
            low: points.map(|point| point as u8),
            high: std::array::from_fn(high),
            signs: parts.signs,
            s: std::array::from_fn(|g| parts.s[4 * g] | parts.s[4 * g + 2] << 4),
        }
    }
}
