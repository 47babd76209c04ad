//! Two panels at a time, for AVX-512 with VNNI.
//!
//! ```text
//!                  x of a row, broadcast once
//!                    │
//!          ┌─────────┴─────────┐
//! panel    │ p                 │ p + 1
//! isum[MR] += w · x    isum[MR] += w · x          MR = 5 or 6: 12 sums and 12 accumulators
//! ```
//!
//! The loop of the parent multiplies one panel and loads the activations of every row for each
//! product. A core that does two products and two loads in a cycle then waits for the loads; here
//! two products share one. Values and their order are the parent's, so that the bits are the same.
//!
//! It pays for the rows after those of the first chunk, which bring the weights to the cache. Two
//! Ice Lake cores, medians of the best call of four runs, in GOP/s at M = 32 and 512, single panels
//! before: Q4G32 641 and 613, 829 and 777 by pairs; Iq4Nl 558 and 572, 751 and 756; Q5G32 451 and 433,
//! 643 and 560; Int4G128 602 and 540, 703 and 683; Q4K 597 and 580, 678 and 664. Two Zen 5 cores, peak
//! 2200, at M = 32, 64 and 512: Q8G32 1100, 1250 and 1345, by pairs 1290, 1430 and 1510; smaller weights
//! up to 4 % faster.
//!
//! Weights of a byte each take as long from memory as some ten rows take to multiply, so the chunks of
//! rows prefetch the weights that this thread multiplies next, to the second-level cache, while they
//! multiply those of now ([`coming`]). Two Zen 4 cores, Q8G32 of 4 MiB, in µs, without it and with it:
//! 462 and 380 at M = 32, 824 and 776 at 64, 6100 and 6080 at 512; a 0.5B model in Q8_0 decodes 16
//! sequences 1.3 to 1.4 times as fast, 32 sequences 1.0 to 1.25 times. Smaller weights lost 2 to 5 %.
//!
//! Weights whose halves of a group have scales of their own ([`IntLayout::SPLIT`]) are left out: they
//! take long to unpack, here for 6 rows in place of 8 (Q3K 25 % slower on Zen 5). Tried and dropped: 4
//! rows by 2 or 3 by 4 panels (no faster); a parent that takes one panel or two (single panels of some
//! layouts 5 to 15 % slower, because the compiler arranges the loop in another way); prefetching further
//! groups of the same panels; scales and biases of both panels at once for each row (Q8G32 on the Ice
//! Lake 2 to 5 % slower at M = 32).

use super::avx512::Vnni;
use super::{Dot, Loop};
use crate::layout::int::{Block, IntLayout};
use crate::layout::{GROUP, PANEL};
use crate::ops::matmul::Tile;
use crate::ops::matmul::coming::Coming;
use crate::ops::quantize::IntRows;
use crate::simd::{Avx512, Simd};

/// Most rows of a chunk.
pub(super) const MOST_ROWS: usize = 6;
/// Least rows of a chunk.
const LEAST_ROWS: usize = 5;

/// Whether this kernel multiplies rows of a layout.
pub(super) const fn pays<L: IntLayout>() -> bool {
    !L::SPLIT
}

/// Rows of a block of `m` that are multiplied by single panels: so many that the rows after them
/// are chunks of 5 and 6.
pub(super) fn rows_before(m: usize) -> usize {
    let leaves_chunks = |n: &usize| (m - n).div_ceil(MOST_ROWS) * LEAST_ROWS <= m - n;
    if m < 14 { m } else { (5..=8).rev().find(leaves_chunks).unwrap_or(m) }
}

/// The weights that this thread multiplies next, which the chunks of `n_rows` rows prefetch.
pub(super) fn coming(tile: &Tile<'_, IntRows<'_>>, n_rows: usize) -> Coming<1> {
    let n_lines = if tile.to_next == 0 { 0 } else { tile.w.len().div_ceil(64) };
    let n_steps = n_rows.div_ceil(MOST_ROWS) * (tile.n_panels / 2) * (tile.k / GROUP);
    Coming::of([tile.w.as_ptr().wrapping_add(tile.to_next)], n_lines, n_steps)
}

/// `MR` rows by two panels, from row `row` and panel `panel` of the tile.
///
/// # Safety
///
/// The rows and the panels are inside the tile; see its invariants.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "a row has a sum in each of two arrays")]
pub(super) unsafe fn micro<L: IntLayout, const MR: usize>(
    (s, d): (Avx512, Vnni),
    tile: &Tile<'_, IntRows<'_>>,
    [row, panel]: [usize; 2],
    coming: &mut Coming<1>,
) {
    let n_groups = tile.x.n_groups;
    let groups_per_block = const { L::LEN / GROUP };
    let is_wide = const { Loop::<Avx512, Vnni, L>::IS_WIDE };
    let per_scale = if is_wide { tile.x.group / GROUP } else { 1 };
    let (mut behind, mut scale_idx) = (0, 0);
    let mut isum = [[d.splat(s, 0); MR]; 2];
    let mut acc = [[s.splat(0.0); MR]; 2];
    // SAFETY: the caller vouches for the rows and the panels; blocks lie within their panel.
    unsafe {
        let x = tile.x.values.as_ptr().add(row * tile.x.stride);
        let scales = tile.x.scales.as_ptr().add(row * n_groups);
        let sums = tile.x.sums.as_ptr().add(row * n_groups);
        let start = [0, 1].map(|nr| tile.w.as_ptr().add((panel + nr) * tile.panel_bytes));
        let head_bytes = if L::ROW_SCALE { PANEL * 4 } else { 0 };
        for block_idx in 0..tile.k / L::LEN {
            let offset = head_bytes + block_idx * L::BLOCK_BYTES;
            let block = [Block::new(start[0].add(offset)), Block::new(start[1].add(offset))];
            let head = [L::head(s, block[0]), L::head(s, block[1])];
            for in_block in 0..groups_per_block {
                let group = block_idx * groups_per_block + in_block;
                let (mut begins, mut ends, mut at_scale) = (true, true, group);
                if is_wide {
                    begins = behind == 0;
                    ends = behind + 1 == per_scale || group + 1 == tile.k / GROUP;
                    at_scale = scale_idx;
                }
                if const { super::is_bytes::<L>() } {
                    coming.prefetch();
                }
                if begins {
                    for mr in 0..MR {
                        let [first, last] = *sums.add(mr * n_groups + at_scale);
                        let zero = const { -Loop::<Avx512, Vnni, L>::ZERO };
                        let begin = d.splat(s, zero * (first + last));
                        (isum[0][mr], isum[1][mr]) = (begin, begin);
                    }
                }
                macro_rules! pair {
                    ($pair:literal) => {
                        let w = L::weights(s, block[0], in_block, $pair);
                        let v = L::weights(s, block[1], in_block, $pair);
                        // VNNI takes weights with and without a sign in the same form.
                        for quad in 0..2 {
                            let x = x.add(group * GROUP + $pair * 8 + quad * 4);
                            for mr in 0..MR {
                                let x = &*x.add(mr * tile.x.stride).cast::<[i8; 4]>();
                                isum[0][mr] = d.dot::<true>(s, isum[0][mr], w[quad], x);
                                isum[1][mr] = d.dot::<true>(s, isum[1][mr], v[quad], x);
                            }
                        }
                    };
                }
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
                if ends {
                    for nr in 0..2 {
                        let sw = L::scale(s, &head[nr], block[nr], in_block, 0);
                        let mut bias = s.splat(0.0);
                        if L::BIAS {
                            bias = L::bias(s, &head[nr], block[nr], in_block, 0);
                        }
                        for mr in 0..MR {
                            let sx = *scales.add(mr * n_groups + at_scale);
                            let scale = s.mul(s.splat(sx), sw);
                            acc[nr][mr] = s.fma(d.to_float(s, isum[nr][mr]), scale, acc[nr][mr]);
                            if L::BIAS {
                                let [first, last] = *sums.add(mr * n_groups + at_scale);
                                let sum = sx * (first + last) as f32;
                                acc[nr][mr] = s.fma(s.splat(sum), bias, acc[nr][mr]);
                            }
                        }
                    }
                }
                if is_wide {
                    (behind, scale_idx) =
                        if ends { (0, scale_idx + 1) } else { (behind + 1, scale_idx) };
                }
            }
        }
        for nr in 0..2 {
            for mr in 0..MR {
                let y = super::finished::<_, L>(s, acc[nr][mr], Block::new(start[nr]));
                tile.y.store(row + mr, panel + nr, &y);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_single_ones_and_chunks_of_five_and_six() {
        for m in 0..200 {
            let n_single = rows_before(m);
            assert!(n_single <= m && (m < 14 || (5..=8).contains(&n_single)), "{n_single} of {m}");
            for rows in crate::ops::matmul::row_chunks(m - n_single, MOST_ROWS) {
                assert!((LEAST_ROWS..=MOST_ROWS).contains(&rows.len()), "{rows:?} of {m}");
            }
        }
    }
}
