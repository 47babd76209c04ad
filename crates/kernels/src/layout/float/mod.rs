//! Float layouts: weights that are widened to single precision and multiplied with floats.
//!
//! ```text
//! F32    [k][16]            x 4 bytes
//! F16    [k][16]            x 2 bytes
//! Bf16   [k/2][16][2]       x 2 bytes     a 32-bit lane holds k (low half) and k+1 (high half):
//!                                         one shift or mask makes an f32; odd k: padded with 0
//! Fp8*   16 f32 scales | [k][16] bytes                       one scale per output
//! Code4* [k/64] blocks of 576 bytes:      16 f32 scales | [8][16] words of 8 nibbles
//! ```
//!
//! Nothing grows but by the padding; the packed bytes are those of the source rows.

pub(crate) mod code4;
pub(crate) mod fp8;
pub(crate) mod plain;

#[cfg(target_arch = "x86_64")]
use crate::simd::byte_floats::Table;
use crate::simd::bytes::{Block, Bytes};

/// One way to lay floats in memory.
///
/// # Safety
///
/// Every offset that the reading functions hand to [`Block::at`] is inside `panel_bytes(k)`, for
/// `pair < k / 2` and, where `k` is odd, for [`last`](Self::last) with `pair = k / 2`.
pub(crate) unsafe trait FloatLayout {
    /// Weights per block: a row is a whole number of blocks.
    const LEN: usize = 1;
    /// Bytes of a panel per pair of inputs, about.
    const PAIR_BYTES: usize;
    /// Whether sums follow the order of bf16 (see [`matmul`](crate::ops::matmul)): in halves of 32
    /// inputs, of each pair the second before the first.
    const IN_HALVES: bool = false;
    /// Whether each output has one f32 scale: at the head of the panel.
    const ROW_SCALE: bool = false;
    /// Whether weights are IEEE floats without any scale, summed up in the order of their inputs.
    const IS_PLAIN: bool = false;
    /// Whether a panel is scales, and then a byte for each weight.
    const IS_BYTES: bool = false;

    /// The values of the codes, where `IS_BYTES`.
    #[cfg(target_arch = "x86_64")]
    fn byte_table() -> &'static Table {
        unreachable!("invariant: asked where a weight is a byte")
    }

    /// Bytes of a source row.
    fn row_bytes(k: usize) -> usize;

    /// Bytes of a panel.
    fn panel_bytes(k: usize) -> usize;

    /// Writes a source row to its lane of a panel of zeros.
    fn place(row: &[u8], panel: &mut [u8], lane: usize);

    /// Weight `k` of output `lane`, before the scale of the output: the specification.
    fn read(panel: &[u8], lane: usize, k: usize) -> f32;

    /// The weights of sixteen outputs for inputs `2 pair` and `2 pair + 1`.
    ///
    /// # Safety
    ///
    /// `panel` is a panel of this layout that has these inputs.
    unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2];

    /// The weights of sixteen outputs for the last input of an odd number; not called where `LEN`
    /// is even.
    ///
    /// # Safety
    ///
    /// `panel` is a panel of this layout that has the input `2 pair`.
    unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F;
}

/// The scale of output `lane`: 1 where the layout has none.
pub(crate) fn row_scale<L: FloatLayout>(panel: &[u8], lane: usize) -> f32 {
    if L::ROW_SCALE { bytemuck::pod_read_unaligned(&panel[lane * 4..lane * 4 + 4]) } else { 1.0 }
}

/// The weights of one lane of a panel.
pub(crate) fn unpack_lane<L: FloatLayout>(panel: &[u8], lane: usize, out: &mut [f32]) {
    let scale = row_scale::<L>(panel, lane);
    for (k, out) in out.iter_mut().enumerate() {
        let weight = L::read(panel, lane, k);
        *out = if L::ROW_SCALE { weight * scale } else { weight };
    }
}
