//! `PackedMatrix`: a weight matrix in the order in which the kernels read it.
//!
//! `W [n, k]` is cut into panels of [`PANEL`] = 16 output rows (the last one padded with zeros);
//! panels follow each other without gaps. Within a panel `k` runs slowest and the outputs are the
//! lanes of a register, so no kernel ever adds across lanes:
//!
//! ```text
//! F32    [k][16]            x 4 bytes
//! F16    [k][16]            x 2 bytes
//! Bf16   [k/2][16][2]       x 2 bytes     a 32-bit lane holds k (low half) and k+1 (high half):
//!                                         one shift or mask makes an f32; odd k: padded with 0
//! Q8G32  [k/32] blocks of 544 bytes       16 f16 scales | [8 quads][16 outputs][4 k] i8
//! Q4G32  [k/32] blocks of 288 bytes       16 f16 scales | [4 quads][16 outputs][4 k] nibble pairs
//!                                         low nibble = quad j, high nibble = quad j + 4, value - 8
//! ```
//!
//! Nothing is lost and nothing grows (but for the padding): 34 bytes per 32 weights are
//! 34 bytes still. Packing moves `2 * n_bytes` once per load, in parallel over panels.
//!
//! Considered and not taken (reasoned, not measured): scales of a panel in a stream of their own
//! (aligned 64-byte weight loads, but a second stream per panel for the prefetcher); 32-output
//! panels (half the broadcasts, but AVX2 runs out of registers).

use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use pelton_tensor::AlignedBuf;

use super::storage::Storage;
use crate::cpu::Cpu;
use crate::quantize::GROUP;

/// Output rows per panel: the 32-bit lanes of the widest register.
pub const PANEL: usize = 16;

/// Bytes of the scales at the head of a quantized block.
pub(crate) const SCALE_BYTES: usize = PANEL * 2;
/// Bytes of one [`WeightLayout::Q8G32`] block: one group of one panel.
pub(crate) const Q8_BLOCK: usize = SCALE_BYTES + PANEL * GROUP;
/// Bytes of one [`WeightLayout::Q4G32`] block: one group of one panel.
pub(crate) const Q4_BLOCK: usize = SCALE_BYTES + PANEL * GROUP / 2;

/// The packed layouts that kernels exist for. Many file formats decode into these few.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WeightLayout {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16, interleaved in pairs.
    Bf16,
    /// 8-bit integers with one f16 scale per 32 weights; packed from GGUF `Q8_0` rows.
    Q8G32,
    /// 4-bit integers (offset 8) with one f16 scale per 32 weights; packed from GGUF `Q4_0` rows.
    Q4G32,
}

impl WeightLayout {
    /// Every layout, for tests and benches that iterate.
    pub const ALL: &'static [Self] = &[Self::F32, Self::F16, Self::Bf16, Self::Q8G32, Self::Q4G32];

    /// Short name, for logs and benches.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8G32 => "q8",
            Self::Q4G32 => "q4",
        }
    }

    /// Bytes of one source row of `k` weights.
    ///
    /// # Panics
    ///
    /// When the layout is quantized and `k` is not a multiple of 32.
    pub fn row_bytes(self, k: usize) -> usize {
        match self {
            Self::F32 => k * 4,
            Self::F16 | Self::Bf16 => k * 2,
            Self::Q8G32 => n_groups(k) * (2 + GROUP),
            Self::Q4G32 => n_groups(k) * (2 + GROUP / 2),
        }
    }

    /// Whether activations must be quantized for this layout.
    pub fn needs_quantized_input(self) -> bool {
        matches!(self, Self::Q8G32 | Self::Q4G32)
    }

    /// Bytes of one panel of `k` inputs.
    fn panel_bytes(self, k: usize) -> usize {
        match self {
            Self::F32 => k * PANEL * 4,
            Self::F16 => k * PANEL * 2,
            Self::Bf16 => k.div_ceil(2) * PANEL * 4,
            Self::Q8G32 => n_groups(k) * Q8_BLOCK,
            Self::Q4G32 => n_groups(k) * Q4_BLOCK,
        }
    }
}

/// `with_row(scratch, row, place)` calls `place` with the bytes of source row `row`, which it may
/// make in `scratch`.
type WithRow<'a> = dyn Fn(&mut Vec<u8>, usize, &mut dyn FnMut(&[u8])) + Sync + 'a;

fn n_groups(k: usize) -> usize {
    assert!(k.is_multiple_of(GROUP), "k = {k} is not a multiple of the group of {GROUP}");
    k / GROUP
}

/// A weight matrix `W [n, k]` packed for the kernels; see the drawing at the head of the file.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    layout: WeightLayout,
    n: usize,
    k: usize,
    panel_bytes: usize,
    buf: Storage,
}

impl PackedMatrix {
    /// Packs `n` rows of `k` weights, in parallel over panels.
    ///
    /// `rows(i)` gives the bytes of source row `i` in the layout's source encoding: little-endian
    /// elements for the float layouts, GGUF `Q8_0` or `Q4_0` blocks for the quantized ones.
    ///
    /// # Panics
    ///
    /// When a row has not [`WeightLayout::row_bytes`] bytes, or the layout is quantized and `k` is
    /// not a multiple of 32.
    pub fn pack<'a>(
        cpu: &Cpu,
        layout: WeightLayout,
        n: usize,
        k: usize,
        rows: &(dyn Fn(usize) -> &'a [u8] + Sync),
    ) -> Self {
        Self::pack_panels(cpu, layout, [n, k], &|_scratch, row, place| place(rows(row)))
    }

    /// As [`pack`](Self::pack), but `fill(i, bytes)` writes source row `i` into a scratch row.
    ///
    /// For rows that are made on the fly, such as dequantized ones.
    ///
    /// # Panics
    ///
    /// When the layout is quantized and `k` is not a multiple of 32.
    pub fn pack_with(
        cpu: &Cpu,
        layout: WeightLayout,
        n: usize,
        k: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Self {
        let row_bytes = layout.row_bytes(k);
        Self::pack_panels(cpu, layout, [n, k], &|scratch, row, place| {
            scratch.resize(row_bytes, 0);
            fill(row, scratch);
            place(scratch);
        })
    }

    fn pack_panels(
        cpu: &Cpu,
        layout: WeightLayout,
        [n, k]: [usize; 2],
        with_row: &WithRow<'_>,
    ) -> Self {
        let panel_bytes = layout.panel_bytes(k);
        let row_bytes = layout.row_bytes(k);
        let n_bytes = n.div_ceil(PANEL).checked_mul(panel_bytes);
        let mut buf = AlignedBuf::zeroed(n_bytes.expect("a matrix that fits in the address space"));
        if panel_bytes > 0 {
            let panels = Mutex::new(buf.bytes_mut().chunks_exact_mut(panel_bytes).enumerate());
            cpu.team.run_on_whoever_comes(|_| {
                let mut scratch = Vec::new();
                loop {
                    let next = panels.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((panel_idx, panel)) = next else { break };
                    for lane in 0..PANEL.min(n - panel_idx * PANEL) {
                        let row_idx = panel_idx * PANEL + lane;
                        with_row(&mut scratch, row_idx, &mut |row| {
                            assert_eq!(row.len(), row_bytes, "bytes of row {row_idx}");
                            place_row(layout, row, panel, lane);
                        });
                    }
                }
            });
        }
        Self { layout, n, k, panel_bytes, buf: buf.into() }
    }

    /// A matrix that was packed before: `storage` holds its
    /// [`storage_bytes`](Self::storage_bytes). `None` when no matrix of this shape has that many.
    pub fn from_storage(
        layout: WeightLayout,
        n: usize,
        k: usize,
        storage: Storage,
    ) -> Option<Self> {
        // No shape of a real matrix comes near this, and no size below it overflows.
        const MOST: usize = 1 << 31;
        let is_whole = !layout.needs_quantized_input() || k.is_multiple_of(GROUP);
        if n > MOST || k > MOST || !is_whole {
            return None;
        }
        let panel_bytes = layout.panel_bytes(k);
        let n_bytes = n.div_ceil(PANEL).checked_mul(panel_bytes)?;
        (n_bytes == storage.n_bytes()).then_some(Self { layout, n, k, panel_bytes, buf: storage })
    }

    /// All panels, as packed.
    pub fn storage_bytes(&self) -> &[u8] {
        self.buf.bytes()
    }

    /// Writes row `row` (`k` weights) to `out`, dequantized exactly as its format specifies.
    ///
    /// # Panics
    ///
    /// When `row` is not below `n` or `out` is not `k` long.
    pub fn unpack_row_f32(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of {}", self.n);
        assert_eq!(out.len(), self.k, "width of a row");
        let panel = self.panels(row / PANEL..row / PANEL + 1);
        unpack_lane(self.layout, panel, row % PANEL, out);
    }

    /// Layout of the panels.
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// Output rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs per row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Size in bytes, padding included: what one M = 1 product reads.
    pub fn n_bytes(&self) -> usize {
        self.buf.n_bytes()
    }

    /// Whether [`Cpu::matmul`] reads quantized activations for this matrix.
    pub fn needs_quantized_input(&self) -> bool {
        self.layout.needs_quantized_input()
    }

    pub(crate) fn n_panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// The bytes of consecutive panels.
    pub(crate) fn panels(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.buf.bytes()[range.start * self.panel_bytes..range.end * self.panel_bytes]
    }
}

/// Writes one source row to its lane of a panel.
fn place_row(layout: WeightLayout, row: &[u8], panel: &mut [u8], lane: usize) {
    match layout {
        WeightLayout::F32 => place_elements::<4>(row, panel, lane),
        WeightLayout::F16 => place_elements::<2>(row, panel, lane),
        WeightLayout::Bf16 => {
            for (k, element) in row.as_chunks::<2>().0.iter().enumerate() {
                let at = bf16_at(lane, k);
                panel[at..at + 2].copy_from_slice(element);
            }
        }
        WeightLayout::Q8G32 => place_blocks::<{ 2 + GROUP }, Q8_BLOCK>(row, panel, lane),
        WeightLayout::Q4G32 => place_blocks::<{ 2 + GROUP / 2 }, Q4_BLOCK>(row, panel, lane),
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

/// GGUF blocks (f16 scale, then bytes) to the head and the quads of the packed blocks.
fn place_blocks<const SOURCE: usize, const BLOCK: usize>(
    row: &[u8],
    panel: &mut [u8],
    lane: usize,
) {
    let sources = row.as_chunks::<SOURCE>().0;
    for (source, block) in sources.iter().zip(panel.as_chunks_mut::<BLOCK>().0) {
        let (scale, quads) = source.split_at(2);
        block[lane * 2..lane * 2 + 2].copy_from_slice(scale);
        let lanes = block[SCALE_BYTES..].as_chunks_mut::<4>().0;
        for (quad, lanes) in quads.as_chunks::<4>().0.iter().zip(lanes.chunks_mut(PANEL)) {
            lanes[lane] = *quad;
        }
    }
}

/// The weights of one lane of a panel, dequantized.
fn unpack_lane(layout: WeightLayout, panel: &[u8], lane: usize, out: &mut [f32]) {
    let half_at = |at: usize| [panel[at], panel[at + 1]];
    match layout {
        WeightLayout::F32 => {
            for (value, lanes) in out.iter_mut().zip(panel.as_chunks::<4>().0.chunks(PANEL)) {
                *value = f32::from_le_bytes(lanes[lane]);
            }
        }
        WeightLayout::F16 => {
            for (k, value) in out.iter_mut().enumerate() {
                *value = f16::from_le_bytes(half_at((k * PANEL + lane) * 2)).to_f32();
            }
        }
        WeightLayout::Bf16 => {
            for (k, value) in out.iter_mut().enumerate() {
                *value = bf16::from_le_bytes(half_at(bf16_at(lane, k))).to_f32();
            }
        }
        WeightLayout::Q8G32 => unpack_blocks::<Q8_BLOCK>(panel, lane, out, q8_at),
        WeightLayout::Q4G32 => unpack_blocks::<Q4_BLOCK>(panel, lane, out, q4_at),
    }
}

/// The lane of each block: its scale times its integers, which `weight(block, lane, k)` reads.
fn unpack_blocks<const BLOCK: usize>(
    panel: &[u8],
    lane: usize,
    out: &mut [f32],
    weight: impl Fn(&[u8], usize, usize) -> i8,
) {
    for (block, out) in panel.as_chunks::<BLOCK>().0.iter().zip(out.chunks_mut(GROUP)) {
        let scale = f16::from_le_bytes([block[lane * 2], block[lane * 2 + 1]]).to_f32();
        for (k, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(weight(block, lane, k));
        }
    }
}

/// Integer weight `k` (of 32) of `lane` in a `Q8G32` block.
pub(crate) fn q8_at(block: &[u8], lane: usize, k: usize) -> i8 {
    block[SCALE_BYTES + (k / 4 * PANEL + lane) * 4 + k % 4].cast_signed()
}

/// Integer weight `k` (of 32) of `lane` in a `Q4G32` block, in `-8..8`.
pub(crate) fn q4_at(block: &[u8], lane: usize, k: usize) -> i8 {
    let byte = block[SCALE_BYTES + (k / 4 % 4 * PANEL + lane) * 4 + k % 4];
    let nibble = if k < GROUP / 2 { byte & 15 } else { byte >> 4 };
    nibble.cast_signed() - 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernels;

    /// Row `r`, weight `i` of a matrix, straight from the source bytes as the formats define them.
    fn source_weight(layout: WeightLayout, row: &[u8], i: usize) -> f32 {
        let f16_at = |at: usize| f16::from_le_bytes([row[at], row[at + 1]]).to_f32();
        match layout {
            WeightLayout::F32 => bytemuck::pod_read_unaligned(&row[i * 4..i * 4 + 4]),
            WeightLayout::F16 => f16_at(i * 2),
            WeightLayout::Bf16 => bf16::from_le_bytes([row[i * 2], row[i * 2 + 1]]).to_f32(),
            WeightLayout::Q8G32 => {
                let base = i / 32 * 34;
                f16_at(base) * f32::from(row[base + 2 + i % 32] as i8)
            }
            WeightLayout::Q4G32 => {
                let base = i / 32 * 18;
                let byte = row[base + 2 + i % 16];
                let nibble = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
                f16_at(base) * (f32::from(nibble) - 8.0)
            }
        }
    }

    #[test]
    fn unpacking_a_packed_row_gives_its_source_exactly() {
        let cpu = Cpu::with(Kernels::best(), 3);
        for &layout in WeightLayout::ALL {
            for (n, k) in [(1, 32), (16, 64), (17, 96), (40, 33), (5, 1), (3, 0), (0, 32)] {
                if layout.needs_quantized_input() && k % GROUP != 0 {
                    continue;
                }
                let row_bytes = layout.row_bytes(k);
                let mut state = 7_u32;
                let source: Vec<u8> = (0..n * row_bytes)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 24) as u8
                    })
                    .collect();
                let row = |i: usize| &source[i * row_bytes..(i + 1) * row_bytes];
                let packed = PackedMatrix::pack(&cpu, layout, n, k, &row);
                let fill = |i: usize, out: &mut [u8]| out.copy_from_slice(row(i));
                let filled = PackedMatrix::pack_with(&cpu, layout, n, k, &fill);
                assert_eq!(packed.buf.bytes(), filled.buf.bytes());
                assert_eq!((packed.n(), packed.k(), packed.layout()), (n, k, layout));
                let mut out = vec![0.0; k];
                for r in 0..n {
                    packed.unpack_row_f32(r, &mut out);
                    for (i, got) in out.iter().enumerate() {
                        let expected = source_weight(layout, row(r), i);
                        let same = got.to_bits() == expected.to_bits();
                        assert!(same || (got.is_nan() && expected.is_nan()), "{layout:?} {r} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn packing_grows_only_by_padding() {
        let cpu = Cpu::with(Kernels::best(), 1);
        for &layout in WeightLayout::ALL {
            let (n, k) = (48, 64);
            let row = vec![0; layout.row_bytes(k)];
            let packed = PackedMatrix::pack(&cpu, layout, n, k, &|_| &row);
            assert_eq!(packed.n_bytes(), n * layout.row_bytes(k), "{layout:?}");
        }
    }

    #[test]
    #[should_panic(expected = "bytes of row 0")]
    fn a_row_of_the_wrong_size_is_refused() {
        let cpu = Cpu::with(Kernels::best(), 2);
        let _ = PackedMatrix::pack(&cpu, WeightLayout::F32, 1, 8, &|_| &[0; 31]);
    }
}
