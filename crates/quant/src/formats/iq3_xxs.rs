//! `IQ3_XXS`: blocks of 256 weights in 64 points of 4 out of 256, a scale per 32; 3.0625 bits per
//! weight.
//!
//! ```text
//! byte 0..2      d     f16
//! byte 2..66     point j of 4 weights
//! byte 66..98    8 words: bits 7 j..: seven signs of 8 weights, the eighth makes them even
//!                         bits 28..: s
//! w[i] = (d / 4 * (2 s + 1)) * value[i]          value: 4, 12, 20, 28, 36, 44, 52 or 62, with its sign
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{
    BLOCK_LEN, IQ3_XXS, Lattice, LatticeFormat, Levels, POINTS_IQ3_XXS, Parts, Signs, even_signs,
};

/// The format.
pub(super) struct Iq3Xxs;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    points: [u8; BLOCK_LEN / 4],
    signs_and_s: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<Block>() == 98 && align_of::<Block>() == 1);

impl LatticeFormat for Iq3Xxs {
    const DTYPE: DType = DType::Iq3Xxs;
    const LEVELS: &'static Levels = &IQ3_XXS;
    const LATTICE: &'static Lattice = &POINTS_IQ3_XXS;
    const SIGNS: Signs = Signs::Even;
    const SCALE_LEN: usize = 32;
    const S_MAX: u8 = 15;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        for (g, &word) in block.signs_and_s.iter().enumerate() {
            let word = u32::from_le_bytes(word);
            parts.set_scales(2 * g..2 * g + 2, (word >> 28) as u8);
            for j in 0..4 {
                let at = 4 * g + j;
                let points = [block.points[2 * at], block.points[2 * at + 1]].map(usize::from);
                parts.set_two_fours::<Self>(at, points, even_signs((word >> (7 * j)) as u8));
            }
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let word = |g: usize| {
            let signs = (0..4).map(|j| u32::from(parts.signs[4 * g + j] & 127) << (7 * j));
            let word = signs.fold(u32::from(parts.s[2 * g]) << 28, |word, signs| word | signs);
            word.to_le_bytes()
        };
        Block {
            d: parts.d.to_le_bytes(),
            points: std::array::from_fn(|j| parts.index_of_four::<Self>(j) as u8),
            signs_and_s: std::array::from_fn(word),
        }
    }
}
