//! Common code of `IQ1_*`, `IQ2_*` and `IQ3_*`, whose groups of weights are points of a lattice.
//!
//! ```text
//! block       d | scales, 2 s + 1 per 16 or 32 weights | indices of points | signs
//! point       4 or 8 levels at once; only 256 to 2,048 of the 3^8 or 8^4 combinations exist
//! level       with its sign one of 6 or 16 values
//! w[i] = ((d * unit) * (2 s + 1)) * value(level[i], sign[i])
//! ```
//! A file of each format says how it stores the numbers of a block ([`Parts`]), and which
//! [`Levels`] and [`Lattice`] it means; everything else is here. Every product is exact: 11 bits of
//! `d`, 5 of `2 s + 1`, at most 6 of the value.
//!
//! No kernel looks points up while it multiplies (sixteen outputs would gather from as many
//! places). Packing does, once, and writes a code of 3 or 4 bits per weight: nothing is lost, but
//! in memory these formats take 3.31 (`IQ1_*`, `IQ2_*`) and 4.31 (`IQ3_*`) bits per weight, which
//! is 1.25 (`IQ3_S`) to 2.1 times (`IQ1_S`) what the file takes.

mod levels;
mod points;
mod round;
mod sets;

use std::ops::Range;

use bytemuck::Pod;
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{BlockFormat, Rewrite};

pub(super) use levels::{IQ1, IQ2, IQ3_S, IQ3_XXS, Levels};
pub(super) use points::{
    Lattice, POINTS_IQ1, POINTS_IQ2_S, POINTS_IQ2_XS, POINTS_IQ2_XXS, POINTS_IQ3_S, POINTS_IQ3_XXS,
};

/// Weights per block.
pub(super) const BLOCK_LEN: usize = 256;

/// A block as numbers.
pub(super) struct Parts {
    pub(super) d: f16,
    /// `s` of each 16 weights; the scale is `2 s + 1`.
    pub(super) s: [u8; 16],
    pub(super) levels: [u8; BLOCK_LEN],
    /// Bit `i` of byte `j` belongs to weight `8 j + i`.
    pub(super) signs: [u8; BLOCK_LEN / 8],
}

/// Signs that a block can hold.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Signs {
    /// Any signs.
    Free,
    /// An even number of negative weights in each 8.
    Even,
    /// One sign for this number of weights; it says on which side of a level the value lies.
    Shared(usize),
}

/// A format whose blocks are points of a lattice.
pub(super) trait LatticeFormat: Sync {
    /// Its type in files.
    const DTYPE: DType;
    /// Values of its levels.
    const LEVELS: &'static Levels;
    /// The points that it has.
    const LATTICE: &'static Lattice;
    /// The signs that it can hold.
    const SIGNS: Signs;
    /// Weights that share a scale, 16 or 32.
    const SCALE_LEN: usize;
    /// Largest `s` of a scale `2 s + 1`.
    const S_MAX: u8;
    /// A block as it lies in the file; alignment 1.
    type Block: Pod;

    /// The numbers of a block.
    fn load(block: &Self::Block) -> Parts;

    /// The inverse of [`load`](Self::load), for points that exist.
    fn store(parts: &Parts) -> Self::Block;
}

impl<F: LatticeFormat> BlockFormat for F {
    const DTYPE: DType = F::DTYPE;
    const LAYOUT: WeightLayout = F::LEVELS.layout;
    const REWRITE: Option<Rewrite> = Some(rewrite::<F>);
    type Block = F::Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut F::Block) {
        *block = F::store(&round::fit::<F>(weights));
    }

    fn dequantize(block: &F::Block, weights: &mut Self::Weights) {
        let parts = F::load(block);
        let d = parts.d.to_f32() * F::LEVELS.unit;
        for (i, weight) in weights.iter_mut().enumerate() {
            let scale = d * f32::from(2 * parts.s[i / 16] + 1);
            *weight = scale * F::LEVELS.value(parts.levels[i], parts.sign(i));
        }
    }

    fn relative_error() -> f32 {
        // No weight is rounded for itself: the nearest point may leave one of eight at the other
        // end of the range, or with the other sign.
        2.0
    }
}

impl Parts {
    /// A block with this `d`; all other numbers are still 0.
    pub(super) fn new(d: f16) -> Self {
        Self { d, s: [0; 16], levels: [0; BLOCK_LEN], signs: [0; BLOCK_LEN / 8] }
    }

    /// The scales of some groups of 16.
    pub(super) fn set_scales(&mut self, groups: Range<usize>, s: u8) {
        self.s[groups].fill(s);
    }

    /// A scale per 16 in nibbles, low ones first.
    pub(super) fn set_nibble_scales(&mut self, nibbles: &[u8; 8]) {
        self.s = std::array::from_fn(|i| nibbles[i / 2] >> (i % 2 * 4) & 15);
    }

    /// The inverse of [`set_nibble_scales`](Self::set_nibble_scales).
    pub(super) fn nibble_scales(&self) -> [u8; 8] {
        std::array::from_fn(|g| self.s[2 * g] | self.s[2 * g + 1] << 4)
    }

    /// Weights `8 j ..` as a point of eight.
    pub(super) fn set_eight<F: LatticeFormat>(&mut self, j: usize, point: usize, signs: u8) {
        self.levels[8 * j..8 * j + 8].copy_from_slice(F::LATTICE.point(point));
        self.signs[j] = signs;
    }

    /// Weights `8 j ..` as two points of four.
    pub(super) fn set_two_fours<F: LatticeFormat>(
        &mut self,
        j: usize,
        [a, b]: [usize; 2],
        signs: u8,
    ) {
        self.levels[8 * j..8 * j + 4].copy_from_slice(F::LATTICE.point(a));
        self.levels[8 * j + 4..8 * j + 8].copy_from_slice(F::LATTICE.point(b));
        self.signs[j] = signs;
    }

    /// The point of weights `8 j ..`.
    pub(super) fn index_of_eight<F: LatticeFormat>(&self, j: usize) -> usize {
        F::LATTICE.index_of(&self.levels[8 * j..8 * j + 8])
    }

    /// The point of weights `4 j ..`.
    pub(super) fn index_of_four<F: LatticeFormat>(&self, j: usize) -> usize {
        F::LATTICE.index_of(&self.levels[4 * j..4 * j + 4])
    }

    fn sign(&self, i: usize) -> u8 {
        self.signs[i / 8] >> (i % 8) & 1
    }
}

/// Source rows of the layouts, see `WeightLayout::Iq1`.
fn rewrite<F: LatticeFormat>(blocks: &[u8], out: &mut [u8]) {
    let blocks: &[F::Block] = bytemuck::cast_slice(blocks);
    let group_bytes = 1 + 4 * F::LEVELS.n_bits;
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(2 + 8 * group_bytes)) {
        let parts = F::load(block);
        let (d, groups) = out.split_at_mut(2);
        d.copy_from_slice(&parts.d.to_le_bytes());
        for (g, out) in groups.chunks_exact_mut(group_bytes).enumerate() {
            let codes: [u8; 32] = std::array::from_fn(|k| {
                let i = 32 * g + k;
                F::LEVELS.code(parts.levels[i], parts.sign(i))
            });
            out[0] = parts.s[2 * g] | parts.s[2 * g + 1] << 4;
            if F::LEVELS.n_bits == 4 {
                for k in 0..16 {
                    out[1 + k] = codes[k] | codes[k + 16] << 4;
                }
            } else {
                for k in 0..8 {
                    out[1 + k] = (0..4).fold(0, |byte, p| byte | (codes[k + 8 * p] & 3) << (2 * p));
                }
                for k in 0..4 {
                    out[9 + k] = (0..8).fold(0, |byte, b| byte | codes[4 * b + k] >> 2 << b);
                }
            }
        }
    }
}

/// Eight signs of which an even number is set, from the first seven.
pub(super) fn even_signs(seven: u8) -> u8 {
    let seven = seven & 127;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_signs_make_eight_with_an_even_number_set() {
        for seven in 0..=255 {
            let eight = even_signs(seven);
            assert_eq!(eight & 127, seven & 127);
            assert_eq!(eight.count_ones() % 2, 0);
        }
    }
}
