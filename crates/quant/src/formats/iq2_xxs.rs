//! `IQ2_XXS`: blocks of 256 weights in 32 points of 8 out of 256, a scale per 32; 2.0625 bits per
//! weight.
//!
//! ```text
//! byte 0..2      d     f16
//! byte 2..66     8 x ( 4 bytes: the points of 8 weights each
//!                      word:    bits 7 j..: seven signs of point j, the eighth makes them even
//!                               bits 28..: s )
//! w[i] = (d / 8 * (2 s + 1)) * value[i]          value: 8, 25 or 43, with its sign
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{
    BLOCK_LEN, IQ2, Lattice, LatticeFormat, Levels, POINTS_IQ2_XXS, Parts, Signs, even_signs,
};

/// The format.
pub(super) struct Iq2Xxs;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    groups: [Group; BLOCK_LEN / 32],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Group {
    points: [u8; 4],
    signs_and_s: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 66 && align_of::<Block>() == 1);

impl LatticeFormat for Iq2Xxs {
    const DTYPE: DType = DType::Iq2Xxs;
    const LEVELS: &'static Levels = &IQ2;
    const LATTICE: &'static Lattice = &POINTS_IQ2_XXS;
    const SIGNS: Signs = Signs::Even;
    const SCALE_LEN: usize = 32;
    const S_MAX: u8 = 15;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        for (g, group) in block.groups.iter().enumerate() {
            let word = u32::from_le_bytes(group.signs_and_s);
            parts.set_scales(2 * g..2 * g + 2, (word >> 28) as u8);
            for (j, &point) in group.points.iter().enumerate() {
                let signs = even_signs((word >> (7 * j)) as u8);
                parts.set_eight::<Self>(4 * g + j, usize::from(point), signs);
            }
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let group = |g: usize| {
            let signs = (0..4).map(|j| u32::from(parts.signs[4 * g + j] & 127) << (7 * j));
            let word = signs.fold(u32::from(parts.s[2 * g]) << 28, |word, signs| word | signs);
            Group {
                points: std::array::from_fn(|j| parts.index_of_eight::<Self>(4 * g + j) as u8),
                signs_and_s: word.to_le_bytes(),
            }
        };
        Block { d: parts.d.to_le_bytes(), groups: std::array::from_fn(group) }
    }
}
