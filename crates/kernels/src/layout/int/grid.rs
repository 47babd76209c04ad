//! Codes of 3 or 4 bits that name one of eight or sixteen signed bytes, with odd scales.
//!
//! ```text
//! 16 f16 d | 8 x ( 16 bytes of scales | lines )
//!   byte of scales   low nibble: s of inputs 0..16; high nibble: s of inputs 16..32, where SPLIT
//!   4 bits           4 lines of nibbles                                    4.3125 bits per weight
//!   3 bits           2 lines of pairs, 1 line of the upper bits            3.3125 bits per weight
//!
//! weight = ((d * UNIT) * (2 s + 1)) * TABLE[code]
//! ```
//! These hold the formats whose files name whole groups of 4 or 8 weights by their number in a
//! grid: GGUF `IQ1_S` and `IQ1_M` ([`Iq1`]), `IQ2_XXS`, `IQ2_XS` and `IQ2_S` ([`Iq2`]), `IQ3_XXS`
//! and `IQ3_S`. A grid of up to 2,048 points of 8 bytes is a gather per group and no arithmetic,
//! and sixteen outputs need sixteen gathers, so packing looks the weights up once and writes their
//! codes. That costs memory, unlike all other layouts: see the table of the parent.
//!
//! A source block is the part of one output in a packed block: `f16 d | 8 x (scales | 16 or 8 + 4
//! bytes)`.
//!
//! Every product is exact: 11 bits of `d`, 5 of the scale, 6 of the value. Zeros in a table belong
//! to codes that no weight has.
//!
//! Considered and not taken: 2.625 bits for the six values of `Iq2` and `Iq1` (two codes in base 6
//! want a division or a second lookup per byte); trits with a bias for `IQ1_S`, 1.94 bits (`IQ1_M`
//! changes its bias every 8 weights, which no kernel has).

use std::marker::PhantomData;

use super::codebook::stored;
use super::lines::{
    HALVES, bit_quad, half_at, nibble_quad, pair_quad, place_half, place_quads, read_bits,
    read_nibbles, read_pairs,
};
use super::{Block, Bytes, Group, HALF, IntLayout, Range};
use crate::layout::PANEL;
use crate::layout::codes;

/// Groups of a block.
const N_GROUPS: usize = 8;

/// Parameters of one of these layouts.
pub(crate) trait Levels {
    /// Bits of a code, 3 or 4.
    const BITS: usize;
    /// Value of each code.
    const TABLE: [i8; 16];
    /// A power of two that all weights have as a factor.
    const UNIT: f32;
    /// Whether scales belong to 16 inputs.
    const SPLIT: bool;
}

/// A table of eight values for codes of 3 bits, which reach no further.
const fn padded(values: [i8; 8]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 8 {
        table[i] = values[i];
        i += 1;
    }
    table
}

/// The layout of some levels; see the head of the file.
pub(crate) struct Grid<T>(PhantomData<T>);

impl<T: Levels> Grid<T> {
    /// Bytes of codes that one output has in a group.
    const CODE_BYTES: usize = 4 * T::BITS;
    const GROUP_BYTES: usize = PANEL * (1 + Self::CODE_BYTES);
    const STORED: [u8; 16] = stored(T::TABLE);

    /// How far the scale of a half lies from the end of its byte.
    #[inline(always)]
    fn shift(half: usize) -> usize {
        if T::SPLIT { half * 4 } else { 0 }
    }
}

// SAFETY: the head and 8 groups of a row of scales and `BITS` lines are the whole block.
unsafe impl<T: Levels> IntLayout for Grid<T> {
    const LEN: usize = 256;
    const SOURCE_BYTES: usize = 2 + N_GROUPS * (1 + Self::CODE_BYTES);
    const BLOCK_BYTES: usize = HALVES + N_GROUPS * Self::GROUP_BYTES;
    const RANGE: Range = Range::Signed;
    const SPLIT: bool = T::SPLIT;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(source, block, 0, lane);
        let groups = source[2..].chunks(1 + Self::CODE_BYTES);
        for (source, group) in groups.zip(block[HALVES..].chunks_mut(Self::GROUP_BYTES)) {
            group[lane] = source[0];
            place_quads(&source[1..], &mut group[PANEL..], lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let d = half_at(block, 0, lane) * T::UNIT;
        let (scales, lines) = block[HALVES + group * Self::GROUP_BYTES..].split_at(PANEL);
        let scale = |half| {
            let s = scales[lane] >> Self::shift(half) & 15;
            d * f32::from(2 * s + 1)
        };
        let codes = if T::BITS == 3 {
            let (low, high) = (read_pairs(lines, lane), read_bits(&lines[128..], lane));
            std::array::from_fn(|k| low[k] | high[k] << 2)
        } else {
            read_nibbles(lines, lane)
        };
        let q = codes.map(|code| T::TABLE[usize::from(code)]);
        Group { q, scale: [scale(0), scale(1)], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the head of the block.
        let d = s.halves(unsafe { block.at(0) });
        [s.mul(d, s.splat(T::UNIT)), s.splat(0.0)]
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, half: usize) -> S::F {
        // SAFETY: the scales of the group.
        let row: &[u8; 16] = unsafe { b.at(HALVES + group * Self::GROUP_BYTES) };
        let mut scales = *row;
        for scale in &mut scales {
            *scale = (*scale >> Self::shift(half) & 15) * 2 + 1;
        }
        s.mul(head[0], s.unsigned(&scales))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = HALVES + group * Self::GROUP_BYTES + PANEL;
        let mut quads = [s.bytes(&[0; 64]); 2];
        for (i, entries) in quads.iter_mut().enumerate() {
            let quad = 2 * pair + i;
            // SAFETY: the `BITS` lines of the group.
            let codes = unsafe {
                if T::BITS == 3 {
                    let low = pair_quad(s, block, [lines, 0], quad);
                    s.or(low, bit_quad(s, block, [lines + 128, 2], quad))
                } else {
                    nibble_quad(s, block, lines, quad)
                }
            };
            *entries = s.lookup(&Self::STORED, codes);
        }
        quads
    }
}

macro_rules! levels {
    ($(#[$doc:meta])* $name:ident: $levels:ident, $bits:literal bits, unit $unit:literal,
        split $split:literal, $table:expr
    ) => {
        /// See the layout of a similar name.
        pub(crate) struct $levels;

        impl Levels for $levels {
            const BITS: usize = $bits;
            const TABLE: [i8; 16] = $table;
            const UNIT: f32 = $unit;
            const SPLIT: bool = $split;
        }

        $(#[$doc])*
        pub(crate) type $name = Grid<$levels>;

        const _: () = assert!($name::BLOCK_BYTES == PANEL * $name::SOURCE_BYTES);
    };
}

levels! {
    /// GGUF `IQ1_S` and `IQ1_M`: -1, 0 or 1, and an eighth more or less, in eighths.
    Iq1: Iq1Levels, 3 bits, unit 0.125, split true, padded(codes::IQ1)
}
levels! {
    /// GGUF `IQ2_XXS`, `IQ2_XS` and `IQ2_S`.
    Iq2: Iq2Levels, 3 bits, unit 0.125, split true, padded(codes::IQ2)
}
levels! {
    /// GGUF `IQ3_XXS`.
    Iq3Xxs: Iq3XxsLevels, 4 bits, unit 0.25, split false, codes::IQ3_XXS
}
levels! {
    /// GGUF `IQ3_S`.
    Iq3S: Iq3SLevels, 4 bits, unit 1.0, split false, codes::IQ3_S
}

const _: () = assert!(HALF * 2 == crate::layout::GROUP);
