//! f32, f16 and bf16.

use half::{bf16, f16};

use super::FloatLayout;
use crate::layout::PANEL;
use crate::simd::bytes::{Block, Bytes};

/// `[k]` elements of `N` bytes to `[k][PANEL]`.
pub(super) fn place_elements<const N: usize>(row: &[u8], panel: &mut [u8], lane: usize) {
    let elements = row.as_chunks::<N>().0;
    for (element, lanes) in elements.iter().zip(panel.as_chunks_mut::<N>().0.chunks_mut(PANEL)) {
        lanes[lane] = *element;
    }
}

/// 32-bit floats.
pub(crate) struct F32;

// SAFETY: 64 bytes per input.
unsafe impl FloatLayout for F32 {
    const PAIR_BYTES: usize = 128;
    const IS_PLAIN: bool = true;

    fn row_bytes(k: usize) -> usize {
        k * 4
    }

    fn panel_bytes(k: usize) -> usize {
        k * 64
    }

    fn place(row: &[u8], panel: &mut [u8], lane: usize) {
        place_elements::<4>(row, panel, lane);
    }

    fn read(panel: &[u8], lane: usize, k: usize) -> f32 {
        bytemuck::pod_read_unaligned(&panel[(k * PANEL + lane) * 4..][..4])
    }

    #[inline(always)]
    unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2] {
        // SAFETY: two inputs of 64 bytes.
        unsafe { [s.floats(panel.at(pair * 128)), s.floats(panel.at(pair * 128 + 64))] }
    }

    #[inline(always)]
    unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F {
        // SAFETY: the caller vouches for the input.
        s.floats(unsafe { panel.at(pair * 128) })
    }
}

/// IEEE half precision.
pub(crate) struct F16;

// SAFETY: 32 bytes per input.
unsafe impl FloatLayout for F16 {
    const PAIR_BYTES: usize = 64;
    const IS_PLAIN: bool = true;

    fn row_bytes(k: usize) -> usize {
        k * 2
    }

    fn panel_bytes(k: usize) -> usize {
        k * 32
    }

    fn place(row: &[u8], panel: &mut [u8], lane: usize) {
        place_elements::<2>(row, panel, lane);
    }

    fn read(panel: &[u8], lane: usize, k: usize) -> f32 {
        let at = (k * PANEL + lane) * 2;
        f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
    }

    #[inline(always)]
    unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2] {
        // SAFETY: two inputs of 32 bytes.
        unsafe { [s.halves(panel.at(pair * 64)), s.halves(panel.at(pair * 64 + 32))] }
    }

    #[inline(always)]
    unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F {
        // SAFETY: the caller vouches for the input.
        s.halves(unsafe { panel.at(pair * 64) })
    }
}

/// bfloat16 in pairs.
pub(crate) struct Bf16;

impl Bf16 {
    fn at(lane: usize, k: usize) -> usize {
        (k / 2 * PANEL + lane) * 4 + k % 2 * 2
    }
}

// SAFETY: 64 bytes per pair, the last one padded.
unsafe impl FloatLayout for Bf16 {
    const PAIR_BYTES: usize = 64;
    const IN_HALVES: bool = true;

    fn row_bytes(k: usize) -> usize {
        k * 2
    }

    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(2) * 64
    }

    fn place(row: &[u8], panel: &mut [u8], lane: usize) {
        for (k, element) in row.as_chunks::<2>().0.iter().enumerate() {
            let at = Self::at(lane, k);
            panel[at..at + 2].copy_from_slice(element);
        }
    }

    fn read(panel: &[u8], lane: usize, k: usize) -> f32 {
        let at = Self::at(lane, k);
        bf16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
    }

    #[inline(always)]
    unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2] {
        // SAFETY: the pair is 64 bytes.
        s.bf16_pairs(unsafe { panel.at(pair * 64) })
    }

    #[inline(always)]
    unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F {
        // SAFETY: the last pair is padded.
        s.bf16_pairs(unsafe { panel.at(pair * 64) })[0]
    }
}
