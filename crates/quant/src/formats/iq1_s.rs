//! `IQ1_S`: blocks of 256 weights in 32 points of 8 out of 2,048, a scale and a shift per 32;
//! 1.5625 bits per weight.
//!
//! ```text
//! byte 0..2      d     f16
//! byte 2..34     lower 8 bits of point j
//! byte 34..50    8 words of 16 bits: bits 3 p..: upper three bits of point 4 g + p
//!                                    bits 12..15: s;  bit 15: the shift is down
//! w[i] = (d / 8 * (2 s + 1)) * (8 t[i] + shift)          t: -1, 0 or 1; shift: 1 or -1
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{BLOCK_LEN, IQ1, Lattice, LatticeFormat, Levels, POINTS_IQ1, Parts, Signs};

/// The format.
pub(super) struct Iq1S;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    low: [u8; BLOCK_LEN / 8],
    high: [[u8; 2]; 8],
}

const _: () = assert!(size_of::<Block>() == 50 && align_of::<Block>() == 1);

impl LatticeFormat for Iq1S {
    const DTYPE: DType = DType::Iq1S;
    const LEVELS: &'static Levels = &IQ1;
    const LATTICE: &'static Lattice = &POINTS_IQ1;
    const SIGNS: Signs = Signs::Shared(32);
    const SCALE_LEN: usize = 32;
    const S_MAX: u8 = 7;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        for (g, &word) in block.high.iter().enumerate() {
            let word = u16::from_le_bytes(word);
            parts.set_scales(2 * g..2 * g + 2, (word >> 12 & 7) as u8);
            let signs = 255 * (word >> 15) as u8;
            for p in 0..4 {
                let j = 4 * g + p;
                let point = usize::from(block.low[j]) | usize::from(word >> (3 * p) & 7) << 8;
                parts.set_eight::<Self>(j, point, signs);
            }
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let points: [usize; BLOCK_LEN / 8] =
            std::array::from_fn(|j| parts.index_of_eight::<Self>(j));
        let word = |g: usize| {
            let s = u16::from(parts.s[2 * g]) << 12 | u16::from(parts.signs[4 * g] & 1) << 15;
            let high = (0..4).map(|p| ((points[4 * g + p] >> 8) as u16) << (3 * p));
            high.fold(s, |word, high| word | high).to_le_bytes()
        };
        Block {
            d: parts.d.to_le_bytes(),
            low: points.map(|point| point as u8),
            high: std::array::from_fn(word),
        }
    }
}
