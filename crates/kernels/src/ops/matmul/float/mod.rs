//! Float weights: widened to single precision in registers, one accumulator per output.
//!
//! ```text
//! for k in steps of 2:
//!     w[NR][2] = the layout's two inputs of 16 outputs
//!     for each of the two, for each of MR rows: acc[row][NR] = fma(broadcast x[k], w, acc)
//!     every 16 inputs, where IN_HALVES: a half ends, and after two of them total += first + acc
//! y = acc, times the scale of the output where ROW_SCALE
//! ```
//!
//! The loop is written once, over a layout ([`FloatLayout`]) and an instruction set ([`Bytes`]);
//! `shells.rs` compiles it for the target features of each table entry and chooses among the
//! kernels of AVX-512. There, weights of one byte have a kernel of their own (`bytes.rs`), and so
//! have many rows (`blocked.rs`); bf16 has two more, for CPUs that multiply pairs of bf16 fast
//! (`bf16.rs`) and for tile registers (`tiles.rs`). All have the same bits.
//!
//! Eight rows by one panel read each activation as the operand of a multiply-add in memory. On a
//! Zen 4 that is faster than two panels, which share a broadcast, and than blocks: f16 and f32
//! reach 97 and 94 % of the peak with 512 rows in place of 83 (`[2048, 2048]`), and 32 rows take 18
//! to 22 % less time. Whether it is so on other processors is measured at the first such product;
//! bf16, whose halves need 24 accumulators, and nf4, whose weights take long to widen, do not gain.
//!
//! Registers on AVX-512 at MR = 8, NR = 2: 16 accumulators, 4 weights, a broadcast. On AVX2 at
//! MR = 6, NR = 1: 12 accumulators, 2 weights, a broadcast of 16. At M = 1 four panels make four
//! (eight) chains of multiply-adds, 128 bytes of bf16 per 4 cycles of latency, above the speed of
//! memory; each panel is then a stream of its own, and is prefetched because hardware stops at page
//! ends.
//!
//! Where more rows take longer than memory, the first of them prefetch to the second level of
//! cache; otherwise memory and arithmetic take turns. Two Zen 4 cores, `[2048, 2048]` from memory,
//! in µs, without it and with it: on AVX2 at 5 and 8 rows f16 430 and 215, 524 and 362, bf16 474
//! and 246, 557 and 378, nf4 555 and 385, 667 and 655; on AVX-512 at 8 rows f16 400 and 350, bf16
//! (by multiply-adds) 430 and 345. Five rows by two panels on AVX-512, and `vdpbf16ps`, wait for
//! memory alone: f32 380 in place of 321, bf16 191 in place of 170. With smaller weights by two
//! panels it costs more than it saves (fp8 at 8 rows 505 in place of 461).
//!
//! Tried and dropped: pairs of bf16 (`vdpbf16ps`), eight rows by one panel (67 % of their peak in
//! place of 84 with 512 rows); bf16 and f32 without any prefetch at one and two rows (Zen 4, 3 to
//! 10 % faster, not measured elsewhere); f32 of five rows by one panel without a prefetch (470 us
//! in place of 300); 12 rows on AVX-512 (as a rule they are a power of two apart and fill all ways
//! of one cache set: 62 instead of 95 % of the multiplier at M = 64).

#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod blocked;
#[cfg(target_arch = "x86_64")]
mod bytes;
mod reference;
#[cfg(target_arch = "x86_64")]
mod shells;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use bf16::is_supported as has_bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) use bf16::pays as bf16_pays;
#[cfg(target_arch = "x86_64")]
pub(super) use bf16::tile as bf16;
pub(super) use reference::kernel as scalar;
#[cfg(target_arch = "x86_64")]
pub(super) use shells::{avx2, avx512, avx512_fastest};
#[cfg(target_arch = "x86_64")]
pub(super) use tiles::{arrange as arrange_for_tiles, tile as tiles};

use super::{FloatRows, Tile};
use crate::layout::PANEL;
use crate::layout::float::FloatLayout;
use crate::simd::bytes::{Block, Bytes};

/// The kernel of one layout on one instruction set.
pub(super) type Kernel = unsafe fn(&Tile<'_, FloatRows<'_>>);

/// Inputs that have a sum of their own where a layout is summed up in halves.
const HALF: usize = 16;
/// Bytes ahead of the loads that each panel is prefetched while few rows share it.
const PREFETCH: usize = 1024;
/// The same to the second level of cache, by the first of more rows ([`is_far`]).
const PREFETCH_FAR: usize = 8192;

/// Whether `mr` rows by `nr` panels prefetch to the first level of cache: few rows, whose
/// arithmetic takes no longer than memory.
const fn is_near<L: FloatLayout>(mr: usize, nr: usize) -> bool {
    mr <= 2 || mr <= 4 && nr > 1 && L::PAIR_BYTES < 64
}

/// Whether `mr` rows by `nr` panels take so long that memory must work ahead of them. Six rows of
/// halves leave no register for it (bf16 on AVX2: 30 % slower).
const fn is_far<L: FloatLayout>(mr: usize, nr: usize) -> bool {
    match nr {
        1 => mr > 2 && (mr < 6 || !L::IN_HALVES),
        _ => mr > 5 && L::PAIR_BYTES >= 64,
    }
}

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
///
/// # Safety
///
/// The rows and panels are inside the tile; see its invariants.
#[inline(always)]
unsafe fn micro<S: Bytes, L: FloatLayout, const MR: usize, const NR: usize>(
    s: S,
    tile: &Tile<'_, FloatRows<'_>>,
    row: usize,
    panel: usize,
) {
    let mut acc = [[s.splat(0.0); NR]; MR];
    let (mut total, mut first) = (acc, acc);
    // SAFETY: the caller vouches that the rows and panels are inside the tile.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride);
        let mut panels = [Block::new(w); NR];
        for (nr, panel) in panels.iter_mut().enumerate() {
            *panel = Block::new(w.add(nr * tile.panel_bytes));
        }
        let n_pairs = tile.k / 2;
        let has_last = L::LEN == 1 && tile.k % 2 == 1;
        let stretch = if L::IN_HALVES { HALF / 2 } else { usize::MAX };
        for start in (0..n_pairs + usize::from(has_last)).step_by(stretch) {
            let end = start.saturating_add(stretch);
            for pair in start..end.min(n_pairs) {
                let mut weights = [[s.splat(0.0); 2]; NR];
                for (weights, panel) in weights.iter_mut().zip(panels) {
                    *weights = L::pair(s, panel, pair);
                    let reads_line = L::PAIR_BYTES > 16 || pair.is_multiple_of(64 / L::PAIR_BYTES);
                    for line in 0..L::PAIR_BYTES.div_ceil(64) {
                        let offset = pair * L::PAIR_BYTES + line * 64;
                        if is_near::<L>(MR, NR) && reads_line {
                            panel.prefetch(offset + PREFETCH);
                        } else if is_far::<L>(MR, NR) && row == 0 && reads_line {
                            panel.prefetch_far(s, offset + PREFETCH_FAR);
                        }
                    }
                }
                for k in if L::IN_HALVES { [1, 0] } else { [0, 1] } {
                    for (mr, acc) in acc.iter_mut().enumerate() {
                        let x = s.splat(*x.add(mr * tile.x.stride + pair * 2 + k));
                        for (acc, weights) in acc.iter_mut().zip(&weights) {
                            *acc = s.fma(x, weights[k], *acc);
                        }
                    }
                }
            }
            if has_last && end > n_pairs {
                for (nr, panel) in panels.into_iter().enumerate() {
                    let weights = L::last(s, panel, n_pairs);
                    for (mr, acc) in acc.iter_mut().enumerate() {
                        let x = s.splat(*x.add(mr * tile.x.stride + tile.k - 1));
                        acc[nr] = s.fma(x, weights, acc[nr]);
                    }
                }
            }
            if L::IN_HALVES {
                let is_first = start / stretch % 2 == 0 && end < n_pairs + usize::from(has_last);
                if is_first {
                    first = acc;
                } else {
                    for ((total, first), acc) in total.iter_mut().zip(&first).zip(&acc) {
                        for ((total, first), acc) in total.iter_mut().zip(first).zip(acc) {
                            *total = s.add(*total, s.add(*first, *acc));
                        }
                    }
                    first = [[s.splat(0.0); NR]; MR];
                }
                acc = [[s.splat(0.0); NR]; MR];
            }
        }
        let acc = if L::IN_HALVES { total } else { acc };
        for (mr, acc) in acc.iter().enumerate() {
            for (nr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                let acc = if L::ROW_SCALE { s.mul(*acc, s.floats(panels[nr].at(0))) } else { *acc };
                s.store(acc, &mut values);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}
