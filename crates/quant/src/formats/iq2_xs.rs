//! `IQ2_XS`: blocks of 256 weights in 32 points of 8 out of 512, a scale per 16; 2.3125 bits per
//! weight.
//!
//! ```text
//! byte 0..2      d     f16
//! byte 2..66     32 words of 16 bits: bits 0..9 point j; bits 9..16 seven of its signs, the eighth
//!                                     makes them even
//! byte 66..74    low nibble of byte g: s of weights 32 g ..; high nibble: s of weights 32 g + 16 ..
//! w[i] = (d / 8 * (2 s + 1)) * value[i]          value: 8, 25 or 43, with its sign
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_tensor::DType;

use super::lattice::{
    BLOCK_LEN, IQ2, Lattice, LatticeFormat, Levels, POINTS_IQ2_XS, Parts, Signs, even_signs,
};

/// The format.
pub(super) struct Iq2Xs;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    points: [[u8; 2]; BLOCK_LEN / 8],
    s: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 74 && align_of::<Block>() == 1);

impl LatticeFormat for Iq2Xs {
    const DTYPE: DType = DType::Iq2Xs;
    const LEVELS: &'static Levels = &IQ2;
    const LATTICE: &'static Lattice = &POINTS_IQ2_XS;
    const SIGNS: Signs = Signs::Even;
    const SCALE_LEN: usize = 16;
    const S_MAX: u8 = 15;
    type Block = Block;

    fn load(block: &Block) -> Parts {
        let mut parts = Parts::new(f16::from_le_bytes(block.d));
        parts.set_nibble_scales(&block.s);
        for (j, &word) in block.points.iter().enumerate() {
            let word = u16::from_le_bytes(word);
            parts.set_eight::<Self>(j, usize::from(word & 511), even_signs((word >> 9) as u8));
        }
        parts
    }

    fn store(parts: &Parts) -> Block {
        let point = |j: usize| {
            let signs = u16::from(parts.signs[j] & 127);
            (parts.index_of_eight::<Self>(j) as u16 | signs << 9).to_le_bytes()
        };
        Block {
            d: parts.d.to_le_bytes(),
            points: std::array::from_fn(point),
            s: parts.nibble_scales(),
        }
    }
}
