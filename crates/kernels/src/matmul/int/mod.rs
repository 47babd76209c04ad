//! Quantized weights: integer dot products of groups of 32, one accumulator per output.
//!
//! ```text
//! for each block of the panels, for each group of 32 inputs (or half of it, where SPLIT):
//!     isum[MR][NR] = -zero * sum(x)
//!     for each of 8 (4) quads:
//!         w[NR] = the layout's 64 bytes            unpacked once for all MR rows
//!         for each of MR rows: isum += w · x quad                        exact, in 32 bits
//!     acc[MR][NR] = fma(isum as f32, sx * sw[NR], acc)
//!     acc[MR][NR] = fma(sx * sum(x), bias[NR], acc)                      where the layout has biases
//! y = acc, times the scale of the output where ROW_SCALE
//! ```
//!
//! The loop is written once, over a layout ([`IntLayout`]), an instruction set ([`Bytes`]) and a way
//! to multiply ([`Dot`]); `shells!` compiles it for the target features of each table entry.
//!
//! No partial sum leaves 32 bits: `32 * 255 * 127 < 2^21`, and every isum is exact in f32.
//!
//! Per group, panel and row: 8 dot products and 3 float operations (conversion, product of the
//! scales, fused multiply-add), so 80 % of the multiplier is the limit of the 32-wide layouts
//! without bias; biases cost one more, halves double them.
//!
//! Registers on AVX-512 at MR = 8, NR = 2: 16 integer sums, 8 weights, a broadcast; the 16 float
//! accumulators rest on the stack and are touched once per group. At M = 1 and 2 one panel is read
//! at a time: the groups are independent chains already, and one sequential stream can be
//! prefetched across the ends of panels.
//!
//! Tried and dropped: 12 rows by 2 panels (58 instead of 71 % of the multiplier at M = 64); two
//! panels at M = 1 (the same speed within the noise); one register of weights at a time instead of
//! four (the same speed, and it ties the layouts to the order of the quads).
//!
//! Considered and not taken: broadcasting `x + 128` as the unsigned side (saves an xor, needs the
//! sums of the weights in the file); activation scales per row instead of per 32 (saves the product
//! of the scales, and with it much of the accuracy of activations with outliers).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod reference;
#[cfg(target_arch = "x86_64")]
mod shells;

pub(super) use reference::kernel as scalar;
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use shells::avxvnni_by_avx512;
#[cfg(target_arch = "x86_64")]
pub(super) use shells::{avx2, avx512, avxvnni};

use super::Tile;
use crate::layout::PANEL;
use crate::layout::int::{Block, Bytes, IntLayout, Range};
use crate::quantize::{GROUP, IntRows};

/// The kernel of one layout on one instruction set.
pub(super) type Kernel = unsafe fn(&Tile<'_, IntRows<'_>>);

/// Bytes ahead of the loads that each panel is prefetched while few rows share it.
const PREFETCH: usize = 2048;

/// One way to multiply 4 bytes of 16 outputs with 4 activations.
pub(crate) trait Dot<S: Bytes>: Copy {
    /// Sixteen `i32`.
    type I: Copy;
    /// What signed weights have added to them by [`signed`](Self::signed).
    const OFFSET: i32;

    /// All sums equal to `x`.
    fn splat(self, s: S, x: i32) -> Self::I;
    /// The sums as floats.
    fn to_float(self, s: S, x: Self::I) -> S::F;
    /// Signed bytes in the form that [`dot`](Self::dot) wants them: plus `OFFSET`.
    fn signed(self, s: S, w: S::B) -> S::B;
    /// `sum + Σ w x` over two quads; `w` is unsigned and at most 63, or, where `SIGNED`, what
    /// [`signed`](Self::signed) made.
    fn dot<const SIGNED: bool>(self, s: S, sum: Self::I, w: &[S::B; 2], x: &[i8; 8]) -> Self::I;
}

/// The sum of the activations of a group, or of half of it where scales belong to halves.
#[inline(always)]
fn sum_of<L: IntLayout>(sums: [i32; 2], half: usize) -> i32 {
    if L::SPLIT { sums[half] } else { sums[0] + sums[1] }
}

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
///
/// # Safety
///
/// The rows and panels are inside the tile; see its invariants.
#[inline(always)]
unsafe fn micro<S: Bytes, D: Dot<S>, L: IntLayout, const MR: usize, const NR: usize>(
    (s, d): (S, D),
    tile: &Tile<'_, IntRows<'_>>,
    row: usize,
    panel: usize,
) {
    let n_groups = tile.k / GROUP;
    let groups_per_block = L::LEN / GROUP;
    let group_bytes = L::BLOCK_BYTES / groups_per_block;
    let is_signed = matches!(L::RANGE, Range::Signed);
    let zero = match L::RANGE {
        Range::Signed => D::OFFSET,
        Range::Unsigned { zero } => zero,
    };
    let mut acc = [[s.splat(0.0); NR]; MR];
    // SAFETY: the caller vouches for the rows and panels; blocks lie within their panel.
    unsafe {
        let x = tile.x.values.as_ptr().add(row * tile.x.stride);
        let scales = tile.x.scales.as_ptr().add(row * n_groups);
        let sums = tile.x.sums.as_ptr().add(row * n_groups);
        let panels = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let blocks = panels.add(if L::ROW_SCALE { PANEL * 4 } else { 0 });
        for block_idx in 0..tile.k / L::LEN {
            let mut block = [Block::new(blocks); NR];
            let mut head = [[s.splat(0.0); 2]; NR];
            for nr in 0..NR {
                let start = blocks.add(nr * tile.panel_bytes + block_idx * L::BLOCK_BYTES);
                block[nr] = Block::new(start);
                head[nr] = L::head(s, block[nr]);
            }
            for in_block in 0..groups_per_block {
                let group = block_idx * groups_per_block + in_block;
                if MR <= 2 {
                    for block in block {
                        for line in 0..group_bytes.div_ceil(64) {
                            block.prefetch(in_block * group_bytes + line * 64 + PREFETCH);
                        }
                    }
                }
                let mut isum = [[d.splat(s, 0); NR]; MR];
                macro_rules! pair {
                    ($pair:literal) => {
                        if $pair == 0 || (L::SPLIT && $pair == 2) {
                            for (mr, isum) in isum.iter_mut().enumerate() {
                                let sum = sum_of::<L>(*sums.add(mr * n_groups + group), $pair / 2);
                                *isum = [d.splat(s, -zero * sum); NR];
                            }
                        }
                        let mut w = [L::weights(s, block[0], in_block, $pair); NR];
                        for nr in 1..NR {
                            w[nr] = L::weights(s, block[nr], in_block, $pair);
                        }
                        if is_signed {
                            for [first, second] in &mut w {
                                (*first, *second) = (d.signed(s, *first), d.signed(s, *second));
                            }
                        }
                        for (mr, isum) in isum.iter_mut().enumerate() {
                            let at = mr * tile.x.stride + group * GROUP + $pair * 8;
                            let x = &*x.add(at).cast::<[i8; 8]>();
                            for (isum, w) in isum.iter_mut().zip(&w) {
                                *isum = if is_signed {
                                    d.dot::<true>(s, *isum, w, x)
                                } else {
                                    d.dot::<false>(s, *isum, w, x)
                                };
                            }
                        }
                        if $pair == 3 || (L::SPLIT && $pair == 1) {
                            let mut sw = [s.splat(0.0); NR];
                            let mut bias = [s.splat(0.0); NR];
                            for nr in 0..NR {
                                sw[nr] = L::scale(s, &head[nr], block[nr], in_block, $pair / 2);
                                if L::BIAS {
                                    bias[nr] =
                                        L::bias(s, &head[nr], block[nr], in_block, $pair / 2);
                                }
                            }
                            for (mr, (acc, isum)) in acc.iter_mut().zip(&isum).enumerate() {
                                let sx = *scales.add(mr * n_groups + group);
                                let sum = sum_of::<L>(*sums.add(mr * n_groups + group), $pair / 2);
                                let (sx, x_sum) = (s.splat(sx), s.splat(sx * sum as f32));
                                for nr in 0..NR {
                                    let isum = d.to_float(s, isum[nr]);
                                    acc[nr] = s.fma(isum, s.mul(sx, sw[nr]), acc[nr]);
                                    if L::BIAS {
                                        acc[nr] = s.fma(x_sum, bias[nr], acc[nr]);
                                    }
                                }
                            }
                        }
                    };
                }
                // Written out: as a loop it may stay one, and the sums then rest on the stack.
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
            }
        }
        for (mr, acc) in acc.iter().enumerate() {
            for (nr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                let acc = if L::ROW_SCALE {
                    let scales = Block::new(panels.add(nr * tile.panel_bytes));
                    s.mul(*acc, s.floats(scales.at(0)))
                } else {
                    *acc
                };
                s.store(acc, &mut values);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}
