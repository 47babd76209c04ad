//! Integer layouts: blocks of small integers with scales, sixteen outputs side by side.
//!
//! ```text
//! panel  = [f32 scale or divisor of each output, where ROW_SCALE] block block block ...
//! block  = head | group 0 | group 1 | ...            LEN inputs of 16 outputs
//! group  = [scales of the group] | integers          32 inputs of 16 outputs
//!
//! integers of a group, each a 64-byte line [16 outputs][4 k] per quad of inputs:
//!   8 bits    8 lines: line q is quad q
//!   4 bits    4 lines: low nibbles quads 0-3, high nibbles quads 4-7
//!   2 bits    2 lines: bits 2s..2s+2 of line v are quad v + 2s
//!   1 bit     1 line:  bit q is quad q
//!   trits    13 lines per 256 inputs: trit n of line v is quad 5v + n
//! ```
//!
//! A weight is `scale * (q - zero)`, or `scale * q + bias` where a format has minima; scales and
//! biases belong to 32 inputs, or to 16 where `SPLIT`. A layout says how a source block is placed
//! ([`IntLayout::place`]), what the placed block means ([`IntLayout::read`], the specification) and
//! how a register reads it ([`IntLayout::weights`] and its neighbours).
//!
//! | layout | source | packed bytes / source bytes of a block |
//! |---|---|---|
//! | `Q8G32` `Q4G32` `Q5G32` and their `Min` forms | GGUF `Q8_0` `Q4_0` `Q5_0` `Q4_1` `Q5_1` | 1 |
//! | `Q2K` `Q3K` `Q6K` | GGUF `Q2_K` `Q3_K` `Q6_K` | 1 |
//! | `Q4K` `Q5K` | GGUF `Q4_K` `Q5_K`; 6-bit scales widened to bytes | 1.028, 1.023 |
//! | `Iq4Nl` `Mxfp4` `Iq4Xs` | GGUF `IQ4_NL` `MXFP4` `IQ4_XS` | 1, 1, 1.015 |
//! | `Tq1` `Tq2` | GGUF `TQ1_0` `TQ2_0` | 1 |
//! | `Iq3Xxs` `Iq3S` | GGUF `IQ3_XXS` `IQ3_S`, each weight by a code of its own | 1.41, 1.25 |
//! | `Iq2` | GGUF `IQ2_S` `IQ2_XS` `IQ2_XXS`, the same | 1.29, 1.43, 1.61 |
//! | `Iq1` | GGUF `IQ1_M` `IQ1_S`, the same | 1.89, 2.12 |
//! | `Int4G32` `Int4G64` `Int4G128` | scale, zero point and nibbles per group: GPTQ, AWQ | 1 |
//! | `Affine*` | scale, zero point and codes per group: HQQ (see the table in its file) | 1 |
//! | `Nvfp4` | a divisor per output, an E4M3 scale per 16 and nibbles: NVFP4 | 1 |
//! | `Int8Row` | one f32 scale per output and its bytes | 1 |

pub(crate) mod affine;
pub(crate) mod codebook;
pub(crate) mod grid;
pub(crate) mod k_quants;
mod lines;
pub(crate) mod plain;
pub(crate) mod ternary;

use super::{GROUP, PANEL};
pub(crate) use crate::simd::bytes::{Block, Bytes};

/// Inputs that share a scale where a layout is `SPLIT`.
pub(crate) const HALF: usize = GROUP / 2;

/// How the integers of a layout relate to zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Range {
    /// Stored as 0 to `most`, which is at most 63; the stored number `zero` means 0.
    Unsigned { zero: i32, most: i32 },
    /// Eight bits with a sign, stored with 128 added, because `vpdpbusd` takes one unsigned side.
    Signed,
}

/// One group of one output, as the specification reads it: weight `i` is
/// `scale[i / 16] * q[i] + bias[i / 16]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// Integers after the zero is subtracted.
    pub(crate) q: [i8; GROUP],
    pub(crate) scale: [f32; 2],
    pub(crate) bias: [f32; 2],
}

/// One way to lay small integers with scales in memory.
///
/// # Safety
///
/// Every offset that the reading functions hand to [`Block::at`] is inside `BLOCK_BYTES`, for
/// `group < LEN / 32`, `half < 2` and `pair < 4`.
pub(crate) unsafe trait IntLayout {
    /// Inputs per block.
    const LEN: usize;
    /// Bytes of a source block of one output.
    const SOURCE_BYTES: usize;
    /// Bytes of a packed block of sixteen outputs.
    const BLOCK_BYTES: usize;
    /// Range of the stored integers.
    const RANGE: Range;
    /// Whether scales and biases belong to 16 inputs each.
    const SPLIT: bool = false;
    /// Inputs of an output that share a scale and a bias, a group or more; `usize::MAX` where all do.
    const SCALE_LEN: usize = GROUP;
    /// Whether weights have a bias.
    const BIAS: bool = false;
    /// Whether each output has one f32 scale: at the head of the source row and of the panel.
    const ROW_SCALE: bool = false;
    /// Whether the scale of an output divides its weights instead of multiplying them.
    const ROW_DIVIDES: bool = false;

    /// Writes the source block of output `lane` to its places in a packed block of zeros.
    fn place(source: &[u8], block: &mut [u8], lane: usize);

    /// Group `group` of output `lane`: the specification.
    fn read(block: &[u8], lane: usize, group: usize) -> Group;

    /// The weights of group `group` of output `lane`, whose scale is `row_scale` where there is
    /// one.
    ///
    /// A layout overrides it only where its format rounds in another order than a product does.
    fn unpack(block: &[u8], lane: usize, group: usize, row_scale: f32) -> [f32; GROUP] {
        let group = Self::read(block, lane, group);
        std::array::from_fn(|i| {
            let weight = group.scale[i / HALF] * f32::from(group.q[i]);
            let weight = if Self::BIAS { weight + group.bias[i / HALF] } else { weight };
            if Self::ROW_SCALE { row_scale * weight } else { weight }
        })
    }

    /// Numbers that all groups of a block share; `scale` and `bias` take them.
    ///
    /// # Safety
    ///
    /// `block` is a block of this layout, here and below.
    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, _block: Block) -> [S::F; 2] {
        [s.splat(0.0); 2]
    }

    /// Scales of a group, or of half of it.
    ///
    /// # Safety
    ///
    /// See [`head`](Self::head).
    unsafe fn scale<S: Bytes>(
        s: S,
        head: &[S::F; 2],
        block: Block,
        group: usize,
        half: usize,
    ) -> S::F;

    /// Biases of a group, or of half of it; not called unless `BIAS`.
    ///
    /// # Safety
    ///
    /// See [`head`](Self::head).
    #[inline(always)]
    unsafe fn bias<S: Bytes>(
        s: S,
        _head: &[S::F; 2],
        _block: Block,
        _group: usize,
        _half: usize,
    ) -> S::F {
        s.splat(0.0)
    }

    /// The integers of two quads: inputs `8 pair .. 8 pair + 8` of the group, as stored.
    ///
    /// # Safety
    ///
    /// See [`head`](Self::head); `pair < 4`.
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2];
}

/// Bytes of a panel of `k` inputs.
pub(crate) fn panel_bytes<L: IntLayout>(k: usize) -> usize {
    let head = if L::ROW_SCALE { PANEL * 4 } else { 0 };
    head + k / L::LEN * L::BLOCK_BYTES
}

/// Bytes of a source row of `k` inputs.
pub(crate) fn row_bytes<L: IntLayout>(k: usize) -> usize {
    let head = if L::ROW_SCALE { 4 } else { 0 };
    head + k / L::LEN * L::SOURCE_BYTES
}

/// Writes a source row to its lane of a panel of zeros.
pub(crate) fn place_row<L: IntLayout>(row: &[u8], panel: &mut [u8], lane: usize) {
    let (row, panel) = if L::ROW_SCALE {
        let ((scale, row), (scales, panel)) = (row.split_at(4), panel.split_at_mut(PANEL * 4));
        scales[lane * 4..lane * 4 + 4].copy_from_slice(scale);
        (row, panel)
    } else {
        (row, panel)
    };
    for (source, block) in row.chunks(L::SOURCE_BYTES).zip(panel.chunks_mut(L::BLOCK_BYTES)) {
        L::place(source, block, lane);
    }
}

/// The scale of output `lane`, 1 where the layout has none, and the blocks of a panel.
pub(crate) fn split_panel<L: IntLayout>(panel: &[u8], lane: usize) -> (f32, &[u8]) {
    if L::ROW_SCALE {
        let (scales, blocks) = panel.split_at(PANEL * 4);
        (bytemuck::pod_read_unaligned(&scales[lane * 4..lane * 4 + 4]), blocks)
    } else {
        (1.0, panel)
    }
}

/// The weights of one lane of a panel.
pub(crate) fn unpack_lane<L: IntLayout>(panel: &[u8], lane: usize, out: &mut [f32]) {
    let (row_scale, blocks) = split_panel::<L>(panel, lane);
    for (block, out) in blocks.chunks(L::BLOCK_BYTES).zip(out.chunks_mut(L::LEN)) {
        for (group_idx, out) in out.chunks_mut(GROUP).enumerate() {
            out.copy_from_slice(&L::unpack(block, lane, group_idx, row_scale));
        }
    }
}
