//! `PackedMatrix`: a weight matrix in the order in which the kernels read it.
//!
//! `W [n, k]` is cut into panels of [`PANEL`] = 16 output rows (the last one padded with zeros);
//! panels follow each other without gaps. Within a panel `k` runs slowest and the outputs are the
//! lanes of a register, so no kernel ever adds across lanes. The drawings of the layouts stand in
//! [`float`](super::float) and [`int`](super::int).
//!
//! Nothing is lost, and nothing grows over its source rows but for the padding and the scales of
//! two super-block layouts (2.8 and 2.3 %). Packing moves `2 * n_bytes` once per load, in parallel
//! over panels.
//!
//! Panels are packed in bands of [`BAND_BYTES`], and a callback reports each band when its rows
//! have been read for the last time:
//!
//! ```text
//! source   [ rows of band 0 ][ rows of band 1 ][ .. ]      a finished band may be given back, so the
//! packed   [ panels ........][ ...............][ .. ]      source is never in memory as a whole
//! ```
//!
//! Considered and not taken (reasoned, not measured): scales of a panel in a stream of their own
//! (aligned 64-byte weight loads, but a second stream per panel for the prefetcher); 32-output
//! panels (half the broadcasts, but AVX2 runs out of registers).

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pelton_tensor::MemoryRefused;

use super::storage::Storage;
use super::{PANEL, WeightLayout};
use crate::cpu::Cpu;

/// `with_row(scratch, row, place)` calls `place` with the bytes of source row `row`, which it may
/// compute in `scratch`.
type WithRow<'a> = dyn Fn(&mut Vec<u8>, usize, &mut dyn FnMut(&[u8])) + Sync + 'a;

/// Rows in the layout's source encoding, and the stored bytes that one is made of where these may be
/// more than it has packed, else 0.
struct Source<'a> {
    with_row: &'a WithRow<'a>,
    stored_bytes: usize,
}

/// Packed bytes between two reports of progress: enough work for every thread, and little beside
/// any model that is short of memory.
pub const BAND_BYTES: usize = 16 << 20;

/// Source of the rows of a matrix.
#[derive(Clone, Copy)]
pub enum Rows<'r, 'a> {
    /// Returns row `i`, in the layout's source encoding.
    Stored(&'r (dyn Fn(usize) -> &'a [u8] + Sync)),
    /// Writes row `i`, in the layout's source encoding, to a scratch row.
    Made(&'r (dyn Fn(usize, &mut [u8]) + Sync)),
    /// The same from this many stored bytes each, which may be more than the row has packed: a band
    /// ends where either are enough.
    MadeOf(usize, &'r (dyn Fn(usize, &mut [u8]) + Sync)),
}

/// Most outputs and inputs of a matrix: more than any real matrix has, and no size below it
/// overflows.
const MOST: usize = 1 << 31;

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
    /// elements for the float layouts, blocks as [`WeightLayout`] names them for the quantized
    /// ones.
    ///
    /// # Panics
    ///
    /// When a row does not have [`WeightLayout::row_bytes`] bytes, `k` is not a whole number of the
    /// layout's blocks, the matrix is larger than the address space, or the system refuses its
    /// memory.
    pub fn pack<'a>(
        cpu: &Cpu,
        layout: WeightLayout,
        n: usize,
        k: usize,
        rows: &(dyn Fn(usize) -> &'a [u8] + Sync),
    ) -> Self {
        let packed = Self::pack_bands(cpu, layout, [n, k], Rows::Stored(rows), &mut |_| {});
        packed.unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// As [`pack`](Self::pack), but `fill(i, bytes)` writes source row `i` into a scratch row.
    ///
    /// For rows that are computed on the fly, such as dequantized ones.
    ///
    /// # Panics
    ///
    /// When `k` is not a whole number of the layout's blocks, the matrix is larger than the address
    /// space, or the system refuses its memory.
    pub fn pack_with(
        cpu: &Cpu,
        layout: WeightLayout,
        n: usize,
        k: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Self {
        let packed = Self::pack_bands(cpu, layout, [n, k], Rows::Made(fill), &mut |_| {});
        packed.unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// As [`pack`](Self::pack) and [`pack_with`](Self::pack_with); `done` is called after each
    /// band, ascending, with the rows that will not be read again.
    ///
    /// # Errors
    ///
    /// When the system refuses the memory of the matrix.
    ///
    /// # Panics
    ///
    /// As [`pack`](Self::pack), but for the memory.
    pub fn pack_bands(
        cpu: &Cpu,
        layout: WeightLayout,
        [n, k]: [usize; 2],
        rows: Rows<'_, '_>,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<Self, MemoryRefused> {
        assert!(n <= MOST && k <= MOST, "a matrix that fits in the address space: {n} x {k}");
        let row_bytes = layout.row_bytes(k);
        let (stored_bytes, fill) = match rows {
            Rows::Stored(rows) => {
                let source =
                    Source { with_row: &|_, row, place| place(rows(row)), stored_bytes: 0 };
                return Self::pack_panels(cpu, layout, [n, k], &source, done);
            }
            Rows::Made(fill) => (0, fill),
            Rows::MadeOf(stored_bytes, fill) => (stored_bytes, fill),
        };
        let with_row = |scratch: &mut Vec<u8>, row, place: &mut dyn FnMut(&[u8])| {
            scratch.resize(row_bytes, 0);
            fill(row, scratch);
            place(scratch);
        };
        let source = Source { with_row: &with_row, stored_bytes };
        Self::pack_panels(cpu, layout, [n, k], &source, done)
    }

    /// Bytes of a matrix of this shape once packed, the padding of its last panel included.
    ///
    /// # Panics
    ///
    /// When `k` is not a whole number of the layout's blocks.
    pub fn bytes_for(layout: WeightLayout, [n, k]: [usize; 2]) -> u64 {
        n.div_ceil(PANEL) as u64 * layout.panel_bytes(k) as u64
    }

    fn pack_panels(
        cpu: &Cpu,
        layout: WeightLayout,
        [n, k]: [usize; 2],
        &Source { with_row, stored_bytes }: &Source<'_>,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<Self, MemoryRefused> {
        let panel_bytes = layout.panel_bytes(k);
        let row_bytes = layout.row_bytes(k);
        let n_bytes = n.div_ceil(PANEL).checked_mul(panel_bytes);
        let n_bytes = n_bytes.expect("a matrix that fits in the address space");
        let mut buf = cpu.pages.0.take(n_bytes, |chunk| cpu.place(chunk))?;
        let most_bytes = panel_bytes.max(stored_bytes.saturating_mul(PANEL));
        if let Some(band_panels) = BAND_BYTES.checked_div(most_bytes).filter(|_| panel_bytes > 0) {
            let band_panels = band_panels.max(1);
            for (band_idx, band) in
                buf.bytes_mut().chunks_mut(band_panels * panel_bytes).enumerate()
            {
                let first = band_idx * band_panels;
                let panels = Mutex::new((first..).zip(band.chunks_exact_mut(panel_bytes)));
                cpu.team.run_on_whoever_comes(|_| {
                    let mut scratch = Vec::new();
                    loop {
                        let next = panels.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((panel_idx, panel)) = next else { break };
                        for lane in 0..PANEL.min(n - panel_idx * PANEL) {
                            let row_idx = panel_idx * PANEL + lane;
                            with_row(&mut scratch, row_idx, &mut |row| {
                                assert_eq!(row.len(), row_bytes, "bytes of row {row_idx}");
                                layout.place_row(row, panel, lane);
                            });
                        }
                    }
                });
                done(first * PANEL..n.min((first + band_panels) * PANEL));
            }
        }
        Ok(Self { layout, n, k, panel_bytes, buf: buf.into() })
    }

    /// A matrix that was packed before, from `storage` with its
    /// [`storage_bytes`](Self::storage_bytes). `None` when a matrix of this shape has another
    /// number of bytes.
    pub fn from_storage(
        layout: WeightLayout,
        n: usize,
        k: usize,
        storage: Storage,
    ) -> Option<Self> {
        let is_whole = k.is_multiple_of(layout.block_len());
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
        self.layout.unpack_lane(panel, row % PANEL, out);
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

    /// Size in bytes, padding included; a product with one row reads all of them.
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

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::Kernels;
    use crate::layout::codes::e4m3;

    /// Weight `i` of a row, straight from the source bytes as the layouts name them. The block
    /// formats of GGUF files are compared with their own decoders in `pelton-quant`.
    fn source_weight(layout: WeightLayout, row: &[u8], i: usize) -> Option<f32> {
        let f16_at = |at: usize| f16::from_le_bytes([row[at], row[at + 1]]).to_f32();
        let int4 = |group: usize| {
            let base = i / group * (3 + group / 2);
            let byte = row[base + 3 + i % group / 32 * 16 + i % 16];
            let nibble = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
            f16_at(base) * (f32::from(nibble) - f32::from(row[base + 2]))
        };
        let f32_at = |at: usize| -> f32 { bytemuck::pod_read_unaligned(&row[at..at + 4]) };
        let affine = |bits: usize, share: usize, number_bytes: usize| {
            let (len, n_scales) = (share.max(32), (32 / share).max(1));
            let head = 2 * n_scales * number_bytes;
            let base = i / len * (head + len * bits / 8);
            let number = |index: usize| match number_bytes {
                2 => f16_at(base + index * 2),
                _ => f32_at(base + index * 4),
            };
            // Every 32, 16 or 8 weights further the bits above.
            let apart = bits * 4;
            let byte = row[base + head + i % len / 32 * apart + i % apart];
            let code = byte >> (i % 32 / apart * bits) & (0xff >> (8 - bits));
            let half = if n_scales == 2 { i % 32 / 16 } else { 0 };
            number(half) * (f32::from(code) - number(n_scales + half))
        };
        Some(match layout {
            WeightLayout::F32 => bytemuck::pod_read_unaligned(&row[i * 4..i * 4 + 4]),
            WeightLayout::F16 => f16_at(i * 2),
            WeightLayout::Bf16 => bf16::from_le_bytes([row[i * 2], row[i * 2 + 1]]).to_f32(),
            WeightLayout::Q8G32 => {
                let base = i / 32 * 34;
                f16_at(base) * f32::from(row[base + 2 + i % 32].cast_signed())
            }
            WeightLayout::Int8Row => {
                let scale: f32 = bytemuck::pod_read_unaligned(&row[..4]);
                scale * f32::from(row[4 + i].cast_signed())
            }
            WeightLayout::Q4G32 => {
                let base = i / 32 * 18;
                let byte = row[base + 2 + i % 16];
                let nibble = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
                f16_at(base) * (f32::from(nibble) - 8.0)
            }
            WeightLayout::Int4G32 => int4(32),
            WeightLayout::Int4G64 => int4(64),
            WeightLayout::Int4G128 => int4(128),
            WeightLayout::Affine2G16 => affine(2, 16, 2),
            WeightLayout::Affine2G64 => affine(2, 64, 2),
            WeightLayout::Affine4G16 => affine(4, 16, 2),
            WeightLayout::Affine4G32 => affine(4, 32, 2),
            WeightLayout::Affine4G64 => affine(4, 64, 2),
            WeightLayout::Affine8G32 => affine(8, 32, 2),
            WeightLayout::Affine4G32Wide => affine(4, 32, 4),
            WeightLayout::Affine8G32Wide => affine(8, 32, 4),
            WeightLayout::Nvfp4 => {
                let block = &row[4 + i / 32 * 18..];
                let byte = block[2 + i % 16];
                let nibble = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
                let float = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
                let scale = e4m3(block[i % 32 / 16]) / f32_at(0);
                if nibble < 8 { scale * float } else { scale * -float }
            }
            _ => return None,
        })
    }

    #[test]
    fn unpacking_a_packed_row_gives_its_source_exactly() {
        let cpu = Cpu::with(Kernels::best(), 3);
        for &layout in WeightLayout::ALL {
            for (n, blocks) in [(1, 1), (16, 2), (17, 3), (40, 33), (5, 1), (3, 0), (0, 32)] {
                let k = blocks * layout.block_len();
                let row_bytes = layout.row_bytes(k);
                let mut state = 7_u32;
                let source: Vec<u8> = (0..n * row_bytes)
                    .map(|i| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // A zero point is at most 16: the third byte of a block.
                        let is_zero_point = layout.name().starts_with("int4")
                            && i % row_bytes % layout.row_bytes(layout.block_len()) == 2;
                        if is_zero_point { (state >> 28) as u8 } else { (state >> 24) as u8 }
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
                        let Some(expected) = source_weight(layout, row(r), i) else { continue };
                        let same = got.to_bits() == expected.to_bits();
                        let same = same || (*got == 0.0 && expected == 0.0);
                        assert!(same || (got.is_nan() && expected.is_nan()), "{layout:?} {r} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_packed_matrix_is_at_most_three_hundredths_larger_than_its_source() {
        let cpu = Cpu::with(Kernels::best(), 1);
        for &layout in WeightLayout::ALL {
            let (n, k) = (48, 512);
            let source_bytes = layout.row_bytes(k);
            let row = vec![0; source_bytes];
            let packed = PackedMatrix::pack(&cpu, layout, n, k, &|_| &row);
            assert!(packed.n_bytes() >= n * source_bytes, "{layout:?} lost something");
            assert!(packed.n_bytes() * 100 <= n * source_bytes * 103, "{layout:?}");
        }
    }

    #[test]
    fn every_band_is_told_once_in_order_and_only_when_its_rows_were_read() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let cpu = Cpu::with(Kernels::best(), 2);
        // 1.5 MiB per panel: bands of ten panels, the last one of three and a half.
        let (n, k) = (16 * 23 + 8, 24 << 10);
        let row = vec![0; WeightLayout::F32.row_bytes(k)];
        let n_read = AtomicUsize::new(0);
        let rows = |_| {
            n_read.fetch_add(1, Ordering::Relaxed);
            row.as_slice()
        };
        let mut told = Vec::new();
        let packed = PackedMatrix::pack_bands(
            &cpu,
            WeightLayout::F32,
            [n, k],
            Rows::Stored(&rows),
            &mut |band| {
                assert_eq!(n_read.load(Ordering::Relaxed), band.end);
                told.push(band);
            },
        )
        .expect("memory");
        assert_eq!(told, [0..160, 160..320, 320..n]);

        // Rows of twice as many stored bytes: bands of half as many panels.
        let (mut told, made) = (Vec::new(), |_: usize, out: &mut [u8]| out.fill(0));
        let rows = Rows::MadeOf(2 * row.len(), &made);
        let pack = PackedMatrix::pack_bands(&cpu, WeightLayout::F32, [n, k], rows, &mut |band| {
            told.push(band);
        });
        assert_eq!(pack.expect("memory").n_bytes(), packed.n_bytes());
        assert_eq!(told, [0..80, 80..160, 160..240, 240..320, 320..n]);
        assert_eq!(packed.n_bytes() as u64, PackedMatrix::bytes_for(WeightLayout::F32, [n, k]));
    }

    #[test]
    #[should_panic(expected = "fits in the address space")]
    fn a_matrix_whose_size_would_wrap_around_is_refused() {
        let cpu = Cpu::with(Kernels::best(), 1);
        let _ = PackedMatrix::pack(&cpu, WeightLayout::F32, 16, 1 << 62, &|_| &[]);
    }

    #[test]
    fn a_matrix_for_which_there_is_no_memory_is_an_error() {
        let cpu = Cpu::with(Kernels::best(), 1);
        // An exabyte: within the limits of a matrix, and more than any system gives.
        let (rows, shape) = (Rows::Stored(&|_| &[]), [1 << 29, 1 << 29]);
        let packed = PackedMatrix::pack_bands(&cpu, WeightLayout::F32, shape, rows, &mut |_| {});
        let refused = packed.expect_err("no memory");
        assert_eq!(refused.n_bytes, 1 << 60);
    }

    #[test]
    #[should_panic(expected = "bytes of row 0")]
    fn a_row_of_the_wrong_size_is_refused() {
        let cpu = Cpu::with(Kernels::best(), 2);
        let _ = PackedMatrix::pack(&cpu, WeightLayout::F32, 1, 8, &|_| &[0; 31]);
    }
}
