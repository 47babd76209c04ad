//! Nibbles that name one of sixteen floats, with one f32 scale per 64 weights: bitsandbytes' NF4
//! and FP4.
//!
//! A weight is the rounded product of its float and its scale, as the library dequantizes it. The
//! eight nibbles of a 32-bit word are eight consecutive inputs of one output.
//!
//! # Paper
//!
//! Dettmers et al., *QLoRA*, 2023.

use super::FloatLayout;
use crate::layout::PANEL;
use crate::layout::codes::{FP4, NF4};
use crate::simd::bytes::{Block, Bytes};

/// Weights that share a scale.
const LEN: usize = 64;
/// Bytes of a source block: the scale and the nibbles, the first of each byte high.
const SOURCE_BYTES: usize = 4 + LEN / 2;
/// Bytes of the scales of a packed block.
const HEAD: usize = PANEL * 4;
/// Bytes of a packed block.
const BLOCK_BYTES: usize = HEAD + LEN / 8 * 64;

fn place(row: &[u8], panel: &mut [u8], lane: usize) {
    for (source, block) in row.chunks(SOURCE_BYTES).zip(panel.chunks_mut(BLOCK_BYTES)) {
        let (scale, nibbles) = source.split_at(4);
        block[lane * 4..lane * 4 + 4].copy_from_slice(scale);
        for (word, bytes) in nibbles.as_chunks::<4>().0.iter().enumerate() {
            let at = HEAD + word * 64 + lane * 4;
            // The first weight of a byte is its high nibble, and goes low.
            for (to, byte) in block[at..at + 4].iter_mut().zip(bytes) {
                *to = byte.rotate_left(4);
            }
        }
    }
}

fn read(table: &[f32; 16], panel: &[u8], lane: usize, k: usize) -> f32 {
    let block = &panel[k / LEN * BLOCK_BYTES..];
    let scale: f32 = bytemuck::pod_read_unaligned(&block[lane * 4..lane * 4 + 4]);
    let byte = block[HEAD + k % LEN / 8 * 64 + lane * 4 + k % 8 / 2];
    table[usize::from(byte >> (k % 2 * 4) & 15)] * scale
}

/// # Safety
///
/// The panel has the pair.
#[inline(always)]
unsafe fn load<S: Bytes>(s: S, table: &[f32; 16], panel: Block, pair: usize) -> [S::F; 2] {
    let (block, pair) = (pair / (LEN / 2) * BLOCK_BYTES, pair % (LEN / 2));
    // SAFETY: the scales and the words of the block.
    unsafe {
        let scale = s.floats(panel.at(block));
        let words = panel.at(block + HEAD + pair / 4 * 64);
        let shift = pair % 4 * 8;
        [s.mul(s.codes(table, words, shift), scale), s.mul(s.codes(table, words, shift + 4), scale)]
    }
}

macro_rules! code4 {
    ($(#[$doc:meta])* $name:ident, $table:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;

        // SAFETY: blocks of 64 inputs, each 32 pairs.
        unsafe impl FloatLayout for $name {
            const LEN: usize = LEN;
            const PAIR_BYTES: usize = 16;

            fn row_bytes(k: usize) -> usize {
                k / LEN * SOURCE_BYTES
            }

            fn panel_bytes(k: usize) -> usize {
                k / LEN * BLOCK_BYTES
            }

            fn place(row: &[u8], panel: &mut [u8], lane: usize) {
                place(row, panel, lane);
            }

            fn read(panel: &[u8], lane: usize, k: usize) -> f32 {
                read(&$table, panel, lane, k)
            }

            #[inline(always)]
            unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2] {
                // SAFETY: the caller vouches for the pair.
                unsafe { load(s, &$table, panel, pair) }
            }

            #[inline(always)]
            unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F {
                // SAFETY: as above.
                unsafe { load(s, &$table, panel, pair)[0] }
            }
        }
    };
}

code4! {
    /// 4-bit normal floats.
    Nf4, NF4
}
code4! {
    /// 4-bit floats as bitsandbytes has them.
    Fp4, FP4
}

const _: () = assert!(BLOCK_BYTES == PANEL * SOURCE_BYTES);
