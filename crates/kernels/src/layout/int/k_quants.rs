//! GGUF super-blocks of 256: half-precision scales for all, small integer scales for 16 or 32.
//!
//! ```text
//! Q2K   16 d | 16 dmin | 8 x ( 2 x 16 scales (low nibble) and minima (high)  | 2 lines of pairs )
//! Q3K   16 d           | 8 x ( 16 low nibbles | 8 high pairs of the scales   | 2 lines of pairs | 1 of bits )
//! Q4K   16 d | 16 dmin | 8 x ( 16 scales | 16 minima                         | 4 lines of nibbles )
//! Q5K   16 d | 16 dmin | 8 x ( 16 scales | 16 minima                         | 4 of nibbles | 1 of bits )
//! Q6K   16 d           | 8 x ( 2 x 16 scales                                 | 4 of nibbles | 2 of pairs )
//!
//! weight = d sc q - dmin m     Q2K per 16; Q4K, Q5K per 32
//!        = d sc (q - zero)     Q3K (zero 4, scale - 32), Q6K (zero 32), per 16
//! ```
//!
//! `d sc` and `dmin m` are exact in single precision: 11 bits times at most 8.
//!
//! Q4K and Q5K keep their 6-bit scales and minima in bytes: 64 bytes more per 2,304 or 2,816, for
//! a plain load instead of a dozen operations per group.

use super::lines::{
    HALVES, bit_quad, half_at, pair_quad, pair_quads, place_bits, place_half, place_nibbles,
    place_pairs, read_bits, read_nibbles, read_pairs,
};
use super::plain::{five_bit_quads, nibble_quads};
use super::{Block, Bytes, Group, HALF, IntLayout, Range};
use crate::layout::GROUP;
use crate::layout::PANEL;

/// Inputs per super-block.
const LEN: usize = 256;

/// Both half-precision numbers at the head of a block.
///
/// # Safety
///
/// The block begins with two rows of sixteen.
#[inline(always)]
unsafe fn two_halves<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
    // SAFETY: the caller vouches for them.
    unsafe { [s.halves(block.at(0)), s.halves(block.at(HALVES))] }
}

/// The half-precision number at the head of a block.
///
/// # Safety
///
/// The block begins with a row of sixteen.
#[inline(always)]
unsafe fn one_half<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
    // SAFETY: the caller vouches for it.
    [s.halves(unsafe { block.at(0) }), s.splat(0.0)]
}

/// `-(d · m)`.
#[inline(always)]
fn negative<S: Bytes>(s: S, d: S::F, m: S::F) -> S::F {
    s.mul(s.mul(d, m), s.splat(-1.0))
}

/// GGUF `Q2_K`: 84 bytes for 256 weights.
pub(crate) struct Q2K;

impl Q2K {
    const HEAD: usize = 2 * HALVES;
    const GROUP_BYTES: usize = 2 * PANEL + 128;
}

// SAFETY: the head and 8 groups of 2 rows of scales and 2 lines are the whole block.
unsafe impl IntLayout for Q2K {
    const LEN: usize = LEN;
    const SOURCE_BYTES: usize = 84;
    const BLOCK_BYTES: usize = Self::HEAD + 8 * Self::GROUP_BYTES;
    const RANGE: Range = Range::Unsigned { zero: 0, most: 3 };
    const SPLIT: bool = true;
    const BIAS: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(&source[80..], block, 0, lane);
        place_half(&source[82..], block, HALVES, lane);
        for (g, group) in block[Self::HEAD..].chunks_mut(Self::GROUP_BYTES).enumerate() {
            group[lane] = source[2 * g];
            group[PANEL + lane] = source[2 * g + 1];
            place_pairs(&two_bits(&source[16..80], g), &mut group[2 * PANEL..], lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let (d, dmin) = (half_at(block, 0, lane), half_at(block, HALVES, lane));
        let group = &block[Self::HEAD + group * Self::GROUP_BYTES..];
        let scales = [group[lane], group[PANEL + lane]];
        Group {
            q: read_pairs(&group[2 * PANEL..], lane).map(u8::cast_signed),
            scale: scales.map(|scale| d * f32::from(scale & 15)),
            bias: scales.map(|scale| -(dmin * f32::from(scale >> 4))),
        }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the block begins with two rows.
        unsafe { two_halves(s, block) }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, half: usize) -> S::F {
        // SAFETY: a row of scales of the group.
        let row: &[u8; 16] = unsafe { b.at(Self::HEAD + group * Self::GROUP_BYTES + half * PANEL) };
        let mut scales = *row;
        for scale in &mut scales {
            *scale &= 15;
        }
        s.mul(head[0], s.unsigned(&scales))
    }

    #[inline(always)]
    unsafe fn bias<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, half: usize) -> S::F {
        // SAFETY: a row of scales of the group.
        let row: &[u8; 16] = unsafe { b.at(Self::HEAD + group * Self::GROUP_BYTES + half * PANEL) };
        let mut minima = *row;
        for minimum in &mut minima {
            *minimum >>= 4;
        }
        negative(s, head[1], s.unsigned(&minima))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = Self::HEAD + group * Self::GROUP_BYTES + 2 * PANEL;
        // SAFETY: the 2 lines of the group.
        unsafe { pair_quads(s, block, lines, pair) }
    }
}

/// Group `g` of the 64 bytes of pairs of `Q2_K` and `Q3_K`: 32 bytes for four groups.
fn two_bits(pairs: &[u8], g: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| pairs[g / 4 * 32 + k] >> (g % 4 * 2) & 3)
}

/// GGUF `Q3_K`: 110 bytes for 256 weights.
pub(crate) struct Q3K;

impl Q3K {
    const HEAD: usize = HALVES;
    /// Nibbles and upper pairs of the scales, lines.
    const SCALES: usize = PANEL + PANEL / 2;
    const GROUP_BYTES: usize = Self::SCALES + 128 + 64;

    /// Scale `i` of 16 of a source block, with its offset of 32.
    fn source_scale(source: &[u8], i: usize) -> u8 {
        let scales = &source[96..108];
        let low = scales[i % 8] >> (i / 8 * 4) & 15;
        let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        low | high << 4
    }
}

// SAFETY: the head and 8 groups of 24 bytes of scales and 3 lines are the whole block.
unsafe impl IntLayout for Q3K {
    const LEN: usize = LEN;
    const SOURCE_BYTES: usize = 110;
    const BLOCK_BYTES: usize = Self::HEAD + 8 * Self::GROUP_BYTES;
    const RANGE: Range = Range::Unsigned { zero: 4, most: 7 };
    const SPLIT: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(&source[108..], block, 0, lane);
        for (g, group) in block[Self::HEAD..].chunks_mut(Self::GROUP_BYTES).enumerate() {
            for half in 0..2 {
                let scale = Self::source_scale(source, 2 * g + half);
                group[lane] |= (scale & 15) << (half * 4);
                // The pairs of lanes j and j + 8 share a byte.
                group[PANEL + lane % 8] |= (scale >> 4) << (lane / 8 * 4 + half * 2);
            }
            let lines = &mut group[Self::SCALES..];
            place_pairs(&two_bits(&source[32..96], g), lines, lane);
            let high = std::array::from_fn(|k| source[k] >> g & 1);
            place_bits(&high, &mut lines[128..], lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let d = half_at(block, 0, lane);
        let group = &block[Self::HEAD + group * Self::GROUP_BYTES..];
        let scale = |half: usize| {
            let low = group[lane] >> (half * 4) & 15;
            let high = group[PANEL + lane % 8] >> (lane / 8 * 4 + half * 2) & 3;
            d * (f32::from(low | high << 4) - 32.0)
        };
        let lines = &group[Self::SCALES..];
        let (low, high) = (read_pairs(lines, lane), read_bits(&lines[128..], lane));
        let q = std::array::from_fn(|k| (low[k] | high[k] << 2).cast_signed() - 4);
        Group { q, scale: [scale(0), scale(1)], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the block begins with a row.
        unsafe { one_half(s, block) }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, half: usize) -> S::F {
        let at = Self::HEAD + group * Self::GROUP_BYTES;
        // SAFETY: the scales of the group.
        let (low, high): (&[u8; 16], &[u8; 8]) = unsafe { (b.at(at), b.at(at + PANEL)) };
        let mut scales = [0; 16];
        for lane in 0..16 {
            let high = high[lane % 8] >> (lane / 8 * 4) >> (half * 2) & 3;
            scales[lane] = (low[lane] >> (half * 4) & 15) | high << 4;
        }
        s.mul(head[0], s.sub(s.unsigned(&scales), s.splat(32.0)))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = Self::HEAD + group * Self::GROUP_BYTES + Self::SCALES;
        let quads = [2 * pair, 2 * pair + 1];
        // SAFETY: the 3 lines of the group.
        unsafe {
            let first = pair_quad(s, block, [lines, 0], quads[0]);
            let second = pair_quad(s, block, [lines, 0], quads[1]);
            [
                s.or(first, bit_quad(s, block, [lines + 128, 2], quads[0])),
                s.or(second, bit_quad(s, block, [lines + 128, 2], quads[1])),
            ]
        }
    }
}

/// Scale and minimum of group `g` from the 12 bytes of `Q4_K` and `Q5_K`.
fn six_bit_scales(scales: &[u8], g: usize) -> [u8; 2] {
    if g < 4 {
        [scales[g] & 63, scales[g + 4] & 63]
    } else {
        [scales[g + 4] & 15 | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4]
    }
}

/// Group `g` of the 128 bytes of nibbles of `Q4_K` and `Q5_K`: 32 bytes for two groups.
fn four_bits(nibbles: &[u8], g: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| nibbles[g / 2 * 32 + k] >> (g % 2 * 4) & 15)
}

/// `Q4K` and `Q5K` differ by the line of fifth bits alone.
macro_rules! with_minima {
    ($(#[$doc:meta])* $name:ident, source $source:literal, high $high:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            const HEAD: usize = 2 * HALVES;
            const SCALES: usize = 2 * PANEL;
            const GROUP_BYTES: usize = Self::SCALES + 256 + if $high { 64 } else { 0 };
        }

        // SAFETY: the head and 8 groups of 2 rows of scales and their lines are the whole block.
        unsafe impl IntLayout for $name {
            const LEN: usize = LEN;
            const SOURCE_BYTES: usize = $source;
            const BLOCK_BYTES: usize = Self::HEAD + 8 * Self::GROUP_BYTES;
            const RANGE: Range = Range::Unsigned { zero: 0, most: if $high { 31 } else { 15 } };
            const BIAS: bool = true;

            fn place(source: &[u8], block: &mut [u8], lane: usize) {
                place_half(source, block, 0, lane);
                place_half(&source[2..], block, HALVES, lane);
                let (high, nibbles) = source[16..].split_at(if $high { 32 } else { 0 });
                for (g, group) in block[Self::HEAD..].chunks_mut(Self::GROUP_BYTES).enumerate() {
                    [group[lane], group[PANEL + lane]] = six_bit_scales(&source[4..16], g);
                    let lines = &mut group[Self::SCALES..];
                    place_nibbles(&four_bits(nibbles, g), lines, lane);
                    if $high {
                        let bits = std::array::from_fn(|k| high[k] >> g & 1);
                        place_bits(&bits, &mut lines[256..], lane);
                    }
                }
            }

            fn read(block: &[u8], lane: usize, group: usize) -> Group {
                let (d, dmin) = (half_at(block, 0, lane), half_at(block, HALVES, lane));
                let group = &block[Self::HEAD + group * Self::GROUP_BYTES..];
                let lines = &group[Self::SCALES..];
                let mut q = read_nibbles(lines, lane);
                if $high {
                    let high = read_bits(&lines[256..], lane);
                    q.iter_mut().zip(high).for_each(|(q, high)| *q |= high << 4);
                }
                Group {
                    q: q.map(u8::cast_signed),
                    scale: [d * f32::from(group[lane]); 2],
                    bias: [-(dmin * f32::from(group[PANEL + lane])); 2],
                }
            }

            #[inline(always)]
            unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
                // SAFETY: the block begins with two rows.
                unsafe { two_halves(s, block) }
            }

            #[inline(always)]
            unsafe fn scale<S: Bytes>(
                s: S, head: &[S::F; 2], block: Block, group: usize, _half: usize,
            ) -> S::F {
                let at = Self::HEAD + group * Self::GROUP_BYTES;
                // SAFETY: the first row of the group.
                s.mul(head[0], s.unsigned(unsafe { block.at(at) }))
            }

            #[inline(always)]
            unsafe fn bias<S: Bytes>(
                s: S, head: &[S::F; 2], block: Block, group: usize, _half: usize,
            ) -> S::F {
                let at = Self::HEAD + group * Self::GROUP_BYTES + PANEL;
                // SAFETY: the second row of the group.
                negative(s, head[1], s.unsigned(unsafe { block.at(at) }))
            }

            #[inline(always)]
            unsafe fn weights<S: Bytes>(
                s: S, block: Block, group: usize, pair: usize,
            ) -> [S::B; 2] {
                let lines = Self::HEAD + group * Self::GROUP_BYTES + Self::SCALES;
                // SAFETY: the lines of the group.
                unsafe {
                    if $high {
                        five_bit_quads(s, block, [lines, lines + 256], pair)
                    } else {
                        nibble_quads(s, block, lines, pair)
                    }
                }
            }
        }
    };
}

with_minima! {
    /// GGUF `Q4_K`: 144 bytes for 256 weights.
    Q4K, source 144, high false
}
with_minima! {
    /// GGUF `Q5_K`: 176 bytes for 256 weights.
    Q5K, source 176, high true
}

/// GGUF `Q6_K`: 210 bytes for 256 weights.
pub(crate) struct Q6K;

impl Q6K {
    const HEAD: usize = HALVES;
    const SCALES: usize = 2 * PANEL;
    const GROUP_BYTES: usize = Self::SCALES + 256 + 128;

    /// Group `g` of a source block: half a block is 64 bytes of nibbles and 32 of upper pairs.
    fn source_group(source: &[u8], g: usize) -> [u8; GROUP] {
        let (part, g) = (g / 4, g % 4);
        let (low, high) = (&source[part * 64..], &source[128 + part * 32..]);
        std::array::from_fn(|k| {
            low[g % 2 * 32 + k] >> (g / 2 * 4) & 15 | (high[k] >> (g * 2) & 3) << 4
        })
    }
}

// SAFETY: the head and 8 groups of 2 rows of scales and 6 lines are the whole block.
unsafe impl IntLayout for Q6K {
    const LEN: usize = LEN;
    const SOURCE_BYTES: usize = 210;
    const BLOCK_BYTES: usize = Self::HEAD + 8 * Self::GROUP_BYTES;
    const RANGE: Range = Range::Unsigned { zero: 32, most: 63 };
    const SPLIT: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(&source[208..], block, 0, lane);
        for (g, group) in block[Self::HEAD..].chunks_mut(Self::GROUP_BYTES).enumerate() {
            group[lane] = source[192 + 2 * g];
            group[PANEL + lane] = source[192 + 2 * g + 1];
            let q = Self::source_group(source, g);
            let lines = &mut group[Self::SCALES..];
            place_nibbles(&q, lines, lane);
            place_pairs(&q.map(|q| q >> 4), &mut lines[256..], lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let d = half_at(block, 0, lane);
        let group = &block[Self::HEAD + group * Self::GROUP_BYTES..];
        let lines = &group[Self::SCALES..];
        let (low, high) = (read_nibbles(lines, lane), read_pairs(&lines[256..], lane));
        Group {
            q: std::array::from_fn(|k| (low[k] | high[k] << 4).cast_signed() - 32),
            scale: [group[lane], group[PANEL + lane]].map(|sc| d * f32::from(sc.cast_signed())),
            bias: [0.0; 2],
        }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the block begins with a row.
        unsafe { one_half(s, block) }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, half: usize) -> S::F {
        let at = Self::HEAD + group * Self::GROUP_BYTES + half * PANEL;
        // SAFETY: a row of scales of the group.
        s.mul(head[0], s.signed(unsafe { b.at(at) }))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = Self::HEAD + group * Self::GROUP_BYTES + Self::SCALES;
        // SAFETY: the 6 lines of the group.
        unsafe {
            let [first, second] = nibble_quads(s, block, lines, pair);
            [
                s.or(first, pair_quad(s, block, [lines + 256, 4], 2 * pair)),
                s.or(second, pair_quad(s, block, [lines + 256, 4], 2 * pair + 1)),
            ]
        }
    }
}

const _: () = assert!(Q2K::BLOCK_BYTES == 16 * Q2K::SOURCE_BYTES);
const _: () = assert!(Q3K::BLOCK_BYTES == 16 * Q3K::SOURCE_BYTES);
const _: () = assert!(Q4K::BLOCK_BYTES == 16 * Q4K::SOURCE_BYTES + 64);
const _: () = assert!(Q5K::BLOCK_BYTES == 16 * Q5K::SOURCE_BYTES + 64);
const _: () = assert!(Q6K::BLOCK_BYTES == 16 * Q6K::SOURCE_BYTES);
const _: () = assert!(HALF * 2 == GROUP);
