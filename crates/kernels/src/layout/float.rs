//! Float layouts: one element per weight.
//!
//! ```text
//! F32    [k][16]            x 4 bytes
//! F16    [k][16]            x 2 bytes
//! Bf16   [k/2][16][2]       x 2 bytes     a 32-bit lane holds k (low half) and k+1 (high half):
//!                                         one shift or mask makes an f32; odd k: padded with 0
//! ```

use half::{bf16, f16};

use super::{PANEL, WeightLayout};

/// Bytes of a source row.
pub(super) fn row_bytes(layout: WeightLayout, k: usize) -> usize {
    if layout == WeightLayout::F32 { k * 4 } else { k * 2 }
}

/// Bytes of a panel.
pub(super) fn panel_bytes(layout: WeightLayout, k: usize) -> usize {
    match layout {
        WeightLayout::Bf16 => k.div_ceil(2) * PANEL * 4,
        _ => row_bytes(layout, k) * PANEL,
    }
}

/// Writes one source row to its lane of a panel.
pub(super) fn place_row(layout: WeightLayout, row: &[u8], panel: &mut [u8], lane: usize) {
    match layout {
        WeightLayout::F32 => place_elements::<4>(row, panel, lane),
        WeightLayout::Bf16 => {
            for (k, element) in row.as_chunks::<2>().0.iter().enumerate() {
                let at = bf16_at(lane, k);
                panel[at..at + 2].copy_from_slice(element);
            }
        }
        _ => place_elements::<2>(row, panel, lane),
    }
}

/// Byte offset of a bf16 weight in its panel.
fn bf16_at(lane: usize, k: usize) -> usize {
    (k / 2 * PANEL + lane) * 4 + k % 2 * 2
}

/// `[k]` elements of `N` bytes to `[k][PANEL]`.
fn place_elements<const N: usize>(row: &[u8], panel: &mut [u8], lane: usize) {
    let elements = row.as_chunks::<N>().0;
    for (element, lanes) in elements.iter().zip(panel.as_chunks_mut::<N>().0.chunks_mut(PANEL)) {
        lanes[lane] = *element;
    }
}

/// The weights of one lane of a panel.
pub(super) fn unpack_lane(layout: WeightLayout, panel: &[u8], lane: usize, out: &mut [f32]) {
    let half_at = |at: usize| [panel[at], panel[at + 1]];
    for (k, value) in out.iter_mut().enumerate() {
        *value = match layout {
            WeightLayout::F32 => {
                bytemuck::pod_read_unaligned(&panel[(k * PANEL + lane) * 4..][..4])
            }
            WeightLayout::Bf16 => bf16::from_le_bytes(half_at(bf16_at(lane, k))).to_f32(),
            _ => f16::from_le_bytes(half_at((k * PANEL + lane) * 2)).to_f32(),
        };
    }
}
