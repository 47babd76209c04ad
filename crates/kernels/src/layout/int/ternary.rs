//! Ternary weights: -1, 0 and 1 times one scale per 256.
//!
//! ```text
//! Tq2   16 f16 d | 8 x 2 lines of pairs                   2.06 bits per weight
//! Tq1   16 f16 d | 13 lines of trits                      1.69 bits per weight
//!       line v holds the quads 5v .. 5v + 5, five trits to a byte: ceil(t * 256 / 243) where t is
//!       the number with the digits (first is highest), so that a multiplication by 3ⁿ and the
//!       upper byte of three times that give trit n
//! ```

use super::lines::{HALVES, half_at, pair_quads, place_half, place_pairs, read_pairs};
use super::{Block, Bytes, Group, IntLayout, Range};
use crate::layout::GROUP;

/// Powers of three: what makes each trit of a byte the first.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Trit `n` of a byte.
fn trit(byte: u8, n: usize) -> u8 {
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}

/// GGUF `TQ2_0`: 66 bytes for 256 weights.
pub(crate) struct Tq2;

// SAFETY: the head and 16 lines are the whole block.
unsafe impl IntLayout for Tq2 {
    const LEN: usize = 256;
    const SOURCE_BYTES: usize = 66;
    const BLOCK_BYTES: usize = HALVES + 8 * 128;
    const RANGE: Range = Range::Unsigned { zero: 1, most: 2 };
    const SCALE_LEN: usize = Self::LEN;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(&source[64..], block, 0, lane);
        for (g, lines) in block[HALVES..].chunks_mut(128).enumerate() {
            let q = std::array::from_fn(|k| source[g / 4 * 32 + k] >> (g % 4 * 2) & 3);
            place_pairs(&q, lines, lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let q = read_pairs(&block[HALVES + group * 128..], lane).map(|q| q.cast_signed() - 1);
        Group { q, scale: [half_at(block, 0, lane); 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the head of the block.
        [s.halves(unsafe { block.at(0) }), s.splat(0.0)]
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(_: S, head: &[S::F; 2], _: Block, _: usize, _: usize) -> S::F {
        head[0]
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: the 2 lines of the group.
        unsafe { pair_quads(s, block, HALVES + group * 128, pair) }
    }
}

/// GGUF `TQ1_0`: 54 bytes for 256 weights.
pub(crate) struct Tq1;

impl Tq1 {
    /// Weight `k` of a source block, as stored: 32 bytes of five trits 32 apart, 16 of five trits
    /// 16 apart, 4 of four trits 4 apart.
    fn source_trit(source: &[u8], k: usize) -> u8 {
        match k {
            0..160 => trit(source[k % 32], k / 32),
            160..240 => trit(source[32 + (k - 160) % 16], (k - 160) / 16),
            _ => trit(source[48 + (k - 240) % 4], (k - 240) / 4),
        }
    }
}

// SAFETY: the head and 13 lines are the whole block; quad 63 is in line 12.
unsafe impl IntLayout for Tq1 {
    const LEN: usize = 256;
    const SOURCE_BYTES: usize = 54;
    const BLOCK_BYTES: usize = HALVES + 13 * 64;
    const RANGE: Range = Range::Unsigned { zero: 1, most: 2 };
    const SCALE_LEN: usize = Self::LEN;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(&source[52..], block, 0, lane);
        for (line, bytes) in block[HALVES..].chunks_mut(64).enumerate() {
            for j in 0..4 {
                let digits = (0..5).map(|n| {
                    let k = (5 * line + n) * 4 + j;
                    if k < Self::LEN { u32::from(Self::source_trit(source, k)) } else { 0 }
                });
                let number = digits.fold(0, |number, digit| number * 3 + digit);
                bytes[lane * 4 + j] = (number * 256).div_ceil(243) as u8;
            }
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let q = std::array::from_fn(|k| {
            let quad = group * (GROUP / 4) + k / 4;
            let byte = block[HALVES + quad / 5 * 64 + lane * 4 + k % 4];
            trit(byte, quad % 5).cast_signed() - 1
        });
        Group { q, scale: [half_at(block, 0, lane); 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the head of the block.
        [s.halves(unsafe { block.at(0) }), s.splat(0.0)]
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(_: S, head: &[S::F; 2], _: Block, _: usize, _: usize) -> S::F {
        head[0]
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let mut quads = [s.bytes(&[0; 64]); 2];
        for (i, quads) in quads.iter_mut().enumerate() {
            let quad = group * (GROUP / 4) + pair * 2 + i;
            // SAFETY: `quad / 5` is at most 12.
            let line = s.bytes(unsafe { block.at(HALVES + quad / 5 * 64) });
            *quads = s.trit(line, POWERS[quad % 5]);
        }
        quads
    }
}
