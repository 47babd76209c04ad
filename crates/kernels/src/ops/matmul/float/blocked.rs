//! Float weights times many rows on AVX-512: weights are widened once for all rows.
//!
//! ```text
//! for each four panels:
//!     for each chunk of 64 inputs:
//!         weights as f32, in the order in which they are summed up        once per chunk: 16 KiB
//!         for each 6 rows:
//!             acc[6][4] = the sums of the chunks before                   registers
//!             for each input: acc[row][nr] = fma(broadcast x, w[nr], acc[row][nr])
//!             the sums = acc                                              memory
//!     y = the sums, times the scale of the output where ROW_SCALE
//! ```
//!
//! Where a layout is summed up in halves (`IN_HALVES`), `acc` begins at 0 with each 16 inputs, and
//! every second time `sum += first + acc`. Values and their order are the parent's, so that the
//! bits are the same.
//!
//! The loop of the parent takes 8 rows by 2 panels and unpacks weights for them alone. Its 12 loads
//! for 16 multiply-adds, and the weights, which it reads from the second or third level of cache
//! for every 8 rows, take longer than the arithmetic; here there are 10 loads for 24, most from the
//! first level. Two threads of an Ice Lake, peak 390 GFLOP/s, `[896, 4864]` at M = 512, medians of
//! three runs in turn: bf16 172 and 227, fp8 164 and 281, nf4 158 and 264, f32 184 and 249, f16 263
//! and 280. Blocks of 24 and 192 rows are slower than of 48 and 96.
//!
//! Layouts that take no work to widen, and bytes by tables, come here only where that measures
//! faster than eight rows by one panel (`shells.rs`).
//!
//! The rows prefetch the next chunk of weights to the second level of cache. Two Zen 4 cores,
//! `[2048, 2048]`, in ms, without it and with it: at M = 32 f32 1.91 and 1.56, f16 1.52 and 1.39,
//! bf16 1.63 and 1.51, at M = 512 24.1 and 21.7, 21.7 and 21.0, 23.4 and 23.0; fp8 and nf4 are the
//! same.

use std::cell::RefCell;

use super::{FloatRows, Tile};
use crate::layout::PANEL;
use crate::layout::float::FloatLayout;
use crate::ops::matmul::coming::Coming;
use crate::ops::matmul::{Target, row_chunks};
use crate::simd::bytes::{Block, Bytes};
use crate::simd::products::{Rows, in_order, multiply};
use crate::simd::{Avx512, Simd as _};

/// Panels that are multiplied together.
const PANELS: usize = 4;
/// Inputs whose weights stay in the first-level cache.
const CHUNK: usize = 64;
/// Most rows that are multiplied at a time.
const MOST_ROWS: usize = 6;
/// Least rows of a tile for this kernel; its chunks of rows have 4 and more.
pub(super) const LEAST_ROWS: usize = 12;

/// Sixteen floats of each panel.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct OfPanels([[f32; PANEL]; PANELS]);

/// Memory of a thread.
struct Scratch {
    /// Weights of a chunk, by input.
    weights: [OfPanels; CHUNK],
    /// Sums of the chunks so far, by row; as many as were needed so far.
    sums: Vec<OfPanels>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        let weights = [OfPanels([[0.0; PANEL]; PANELS]); CHUNK];
        RefCell::new(Scratch { weights, sums: Vec::new() })
    };
}

/// Panels of a tile that this kernel multiplies; the first ones.
pub(super) fn n_panels(tile: &Tile<'_, FloatRows<'_>>) -> usize {
    match tile.m >= LEAST_ROWS && tile.k.is_multiple_of(CHUNK) {
        true => tile.n_panels / PANELS * PANELS,
        false => 0,
    }
}

/// The first `n` panels of a tile, and the others.
pub(super) fn split<'a>(
    tile: &Tile<'a, FloatRows<'a>>,
    n: usize,
) -> (Tile<'a, FloatRows<'a>>, Tile<'a, FloatRows<'a>>) {
    let (first, others) = tile.w.split_at(n * tile.panel_bytes);
    let y = Target {
        ptr: tile.y.ptr.wrapping_add(n * PANEL),
        n_columns: tile.y.n_columns.saturating_sub(n * PANEL),
        ..tile.y
    };
    let first = Tile { w: first, n_panels: n, ..*tile };
    (first, Tile { w: others, n_panels: tile.n_panels - n, y, ..*tile })
}

/// The kernel.
///
/// # Safety
///
/// This CPU has the features below; the tile has the rows, inputs and panels that [`n_panels`] asks
/// for.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn tile<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.sums.len() < tile.m {
            scratch.sums.resize(tile.m, OfPanels([[0.0; PANEL]; PANELS]));
        }
        for panel in (0..tile.n_panels).step_by(PANELS) {
            for start in (0..tile.k).step_by(CHUNK) {
                // SAFETY: the features of this function are those of the functions below; rows,
                // panels and inputs are inside the tile.
                unsafe {
                    widen::<L>(tile, panel, start, &mut scratch.weights);
                    let mut coming = coming::<L>(tile, panel, start + CHUNK);
                    for rows in row_chunks(tile.m, MOST_ROWS) {
                        coming.prefetch();
                        let multiply = match rows.len() {
                            4 => multiply_for::<L, 4>(),
                            5 => multiply_for::<L, 5>(),
                            6 => multiply_for::<L, 6>(),
                            n_rows => {
                                unreachable!("invariant: a chunk of {n_rows} rows has a kernel")
                            }
                        };
                        let terms = bytemuck::cast_slice(&scratch.weights);
                        let (x, sums) = (tile.x, &mut scratch.sums[rows.clone()]);
                        let rows = Rows {
                            factors: &x.data[rows.start * x.stride + start..],
                            stride: x.stride,
                            sums: bytemuck::cast_slice_mut(sums),
                            sum_stride: PANELS * PANEL,
                            // The first chunk replaces the sums of the panels before.
                            adds: start > 0,
                        };
                        multiply(rows, terms);
                    }
                }
            }
            // SAFETY: as above.
            unsafe { finish::<L>(tile, panel, &scratch.sums[..tile.m]) };
        }
    });
}

/// The weights of the chunk after this one, which the chunks of rows prefetch.
fn coming<L: FloatLayout>(
    tile: &Tile<'_, FloatRows<'_>>,
    panel: usize,
    start: usize,
) -> Coming<PANELS> {
    let offset = if start < tile.k {
        panel * tile.panel_bytes + start / 2 * L::PAIR_BYTES
    } else if panel + PANELS < tile.n_panels {
        (panel + PANELS) * tile.panel_bytes
    } else {
        tile.to_next
    };
    let at = |nr: usize| tile.w.as_ptr().wrapping_add(offset + nr * tile.panel_bytes);
    // An offset of 0 is that of no further tile.
    let n_lines = if offset == 0 { 0 } else { (CHUNK / 2 * L::PAIR_BYTES).div_ceil(64) };
    Coming::of([at(0), at(1), at(2), at(3)], n_lines, tile.m.div_ceil(MOST_ROWS))
}

/// The weights of a chunk of four panels, in the order in which they are summed up.
///
/// # Safety
///
/// The panels and the inputs are inside the tile; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn widen<L: FloatLayout>(
    tile: &Tile<'_, FloatRows<'_>>,
    panel: usize,
    start: usize,
    weights: &mut [OfPanels; CHUNK],
) {
    // SAFETY: the features of this function are those of the proof; the caller vouches for the
    // rest.
    unsafe {
        let s = Avx512::assume();
        for nr in 0..PANELS {
            let panel = Block::new(tile.w.as_ptr().add((panel + nr) * tile.panel_bytes));
            for pair in 0..CHUNK / 2 {
                let [first, second] = L::pair(s, panel, start / 2 + pair);
                s.store(first, &mut weights[in_order(2 * pair, L::IN_HALVES)].0[nr]);
                s.store(second, &mut weights[in_order(2 * pair + 1, L::IN_HALVES)].0[nr]);
            }
        }
    }
}

type Multiply = unsafe fn(Rows<'_>, &[[[f32; PANEL]; PANELS]]);

/// The product of `MR` rows for a layout.
const fn multiply_for<L: FloatLayout, const MR: usize>() -> Multiply {
    if L::IN_HALVES { multiply::<MR, PANELS, true> } else { multiply::<MR, PANELS, false> }
}

/// Writes the results of four panels.
///
/// # Safety
///
/// The panels are inside the tile and `sums` has its rows; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn finish<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>, panel: usize, sums: &[OfPanels]) {
    for (row, sums) in sums.iter().enumerate() {
        for (nr, sum) in sums.0.iter().enumerate() {
            // SAFETY: the panel and the row are inside the tile, and the features of this function
            // are those of the proof.
            unsafe {
                let s = Avx512::assume();
                let mut values = *sum;
                if L::ROW_SCALE {
                    let start = tile.w.as_ptr().add((panel + nr) * tile.panel_bytes);
                    let scales = s.floats(Block::new(start).at(0));
                    s.store(s.mul(s.load(sum), scales), &mut values);
                }
                tile.y.store(row, panel + nr, &values);
            }
        }
    }
}
