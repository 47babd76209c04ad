//! Quantized weights: integer dot products of groups of 32, one accumulator per output.
//!
//! ```text
//! for each block of the panels, for each group of 32 inputs (or half of it, where SPLIT):
//!     isum[MR] = -zero * sum(x)
//!     for each of 4 (2) pairs of quads:
//!         w[2] = the layout's 64 bytes, twice      unpacked once for all MR rows
//!         for each of MR rows: isum += w · x quads                       exact, in 32 bits
//!                              or part += w · x quads, isum += part      exact, in 16 bits first
//!     acc[MR] = fma(isum as f32, sx * sw, acc)
//!     acc[MR] = fma(sx * sum(x), bias, acc)                              where the layout has biases
//! y = acc, times the scale of the output where ROW_SCALE, or by it where ROW_DIVIDES
//! ```
//!
//! Where a scale of the activations belongs to more than 32 inputs and one of the weights does, too
//! (`SCALE_LEN`), `isum` goes on through all groups of 32 that share both.
//!
//! The loop is written once, over a layout ([`IntLayout`]), an instruction set ([`Bytes`]) and a
//! way to multiply ([`Dot`]); `shells.rs` compiles it for the target features of each table entry.
//!
//! No partial sum leaves 32 bits: `32 * 255 * 127 < 2^21`, and every isum of up to 128 inputs is
//! exact in f32 (of a whole row: in 32 bits up to [`MOST_INPUTS`], then rounded once).
//!
//! Per group, panel and row: 8 dot products and 3 float operations (conversion, product of the
//! scales, fused multiply-add), so 80 % of the multiplier is the limit of the 32-wide layouts
//! without bias; biases cost one more, halves double them.
//!
//! Without VNNI a quad of signed weights takes four operations (sign, two multiplications, addition)
//! and one of unsigned weights two, and a fraction for the part that enters a sum.
//!
//! Registers on AVX-512 at MR = 8: 8 accumulators, 8 integer sums, 2 weights, a broadcast: nothing
//! rests on the stack, and each panel is one sequential stream that can be prefetched across the
//! ends of panels. Few rows read the weights from memory and compute at the same time: without the
//! prefetch one waits for the other (Q4G32 at M = 8: 444 instead of 600 GOP/s on Zen 4). One and two
//! rows wait for memory alone, and prefetch 4 KiB ahead to the first-level cache. From three rows on
//! a group takes longer, and the first-level cache allows too few misses at a time: the first rows of
//! a block prefetch 16 KiB ahead to the second level, and all rows 2 KiB ahead to the first. Two Zen 4
//! cores with `vpdpbusd`, weights of 4 MiB from memory, in µs, before (8 KiB ahead, to the first level
//! alone) and now, medians of three runs in turn: Q8G32 145 and 103 at 5 rows, 185 and 104 at 8;
//! Q4G32 80 and 68, 104 and 98; one row takes 90 and 72. With `maddubs` Q8G32 165 and 141 at 5. To the
//! second level alone 88 and 117 where both take 83 and 106; 1 to 4 KiB and 8 to 64 KiB ahead are all
//! the same. At one row any prefetch to the second level is 15 % slower, and none at all 5 % faster
//! while memory gives 60 GB/s (as fast at 35).
//!
//! On AVX-512 with VNNI many rows are multiplied with two panels at a time ([`pairs`]).
//!
//! Tried and dropped (GOP/s of two threads on Zen 4, weights in cache, peak 940): two panels at a
//! time with 8 rows (Q8G32 650, Q4K 557, against 690 and 588) or 6 rows (620, 600), their float
//! accumulators on the stack; 12 rows by one panel (650, 576); 12 rows by two panels; four quads of
//! weights in registers at a time (Q8G32 412, everything spilled); prefetching at M = 1 and 2
//! alone. On a Granite Rapids: prefetching the next strip evenly in all walks through a strip,
//! where more than 8 rows need several (a 0.5B model in Q8_0 decodes batches of 16 to 40 by 3 to
//! 6 % faster, and one row 4 % slower, because the loop gets longer; [`pairs`] does it, which has no
//! such rows). On Zen 5: a prefetch of 1 KiB for rows whose weights are in the cache already (no
//! difference); sums that begin with the float 1.5 * 2^23 and become floats by a subtraction, which has
//! ports of its own (1 % faster).
//!
//! Half of the code that the compiler makes of this crate are the 704 functions of `micro`, so `micro`
//! is written for it: what a layout leaves out depends on constants of a type ([`Loop`]), which the
//! compiler knows before it optimizes anything, and loops over rows are plain ones (`each_row`). Local
//! constants and iterators took 91 s in place of 71 s for the crate; the constants alone 82 s. Rows
//! written out by a macro cost 30 % more, quads written out 5 %, and made signed weights 30 % slower on
//! AVX-512 without VNNI. Unpacking 8 groups of a panel to memory once for all rows, then
//! multiplying bytes with 3 rows and more (one loop for all layouts instead of one each) saved 20 % of
//! the crate's time and took 10 to 40 % longer at 3 to 8 rows (Q4K at M = 8 on `vpdpbusd`, weights in
//! cache: 32 in place of 25 ns per group); only layouts that take long to unpack gained, from 5 rows on
//! by AVX2 (Iq2 5 to 20 %).
//!
//! Considered and not taken: broadcasting `x + 128` as the unsigned side (needs the sums of the
//! weights in the file).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod reference;
#[cfg(target_arch = "x86_64")]
mod shells;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod wide_tiles;

pub(super) use reference::kernel as scalar;
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use shells::avxvnni_by_avx512;
#[cfg(target_arch = "x86_64")]
pub(super) use shells::{avx2, avx512, avx512vnni, avxvnni};
#[cfg(target_arch = "x86_64")]
pub(super) use tiles::kernel as tiles;

use std::marker::PhantomData;

use super::Tile;
use crate::layout::GROUP;
use crate::layout::PANEL;
use crate::layout::int::{Block, Bytes, IntLayout, Range};
use crate::ops::quantize::IntRows;

/// The kernel of one layout on one instruction set.
pub(super) type Kernel = unsafe fn(&Tile<'_, IntRows<'_>>);

/// Bytes ahead of the loads that each panel is prefetched to the first level of cache.
const PREFETCH: usize = 4096;
/// The same where more than [`FEW_ROWS`] rows are multiplied with each group.
const PREFETCH_MORE: usize = 2048;
/// Bytes ahead of the loads that a panel is then prefetched to the second level, by the first rows.
const PREFETCH_FAR: usize = 16384;
/// As many rows let memory be the limit.
const FEW_ROWS: usize = 2;

/// One way to multiply 4 bytes of 16 outputs with 4 activations.
pub(crate) trait Dot<S: Bytes>: Copy {
    /// Sixteen `i32`.
    type I: Copy;
    /// Offset that signed weights still contain after [`signed`](Self::signed).
    const OFFSET: i32;
    /// Whether products with unsigned weights are added up in a [`Part`](Self::Part) before they enter
    /// a sum.
    const HAS_PARTS: bool = false;
    /// Whether [`pin`](Self::pin) and [`pin_part`](Self::pin_part) do anything.
    const HAS_PINS: bool = false;
    /// Whether bytes that hold the weights of several pairs of quads are read for each of these pairs,
    /// because there are too few registers to keep them.
    const READS_AGAIN: bool = false;
    /// Most rows for which panels are prefetched to the second level of cache, too.
    const MOST_ROWS_FAR: usize = 8;

    /// All sums equal to `x`.
    fn splat(self, s: S, x: i32) -> Self::I;
    /// The sums as floats.
    fn to_float(self, s: S, x: Self::I) -> S::F;
    /// Signed bytes, stored with 128 added, in the form that [`dot`](Self::dot) reads.
    fn signed(self, s: S, w: S::B) -> S::B;
    /// `sum + Σ w x` over a quad; `w` is unsigned and at most 63, or, where `SIGNED`, a result of
    /// [`signed`](Self::signed).
    fn dot<const SIGNED: bool>(self, s: S, sum: Self::I, w: S::B, x: &[i8; 4]) -> Self::I;
    /// The same sums, which are computed before anything that follows. Otherwise the compiler takes
    /// one row after the other, and keeps the weights of all quads, for which there may be too few
    /// registers.
    fn pin(self, s: S, sum: Self::I) -> Self::I {
        let _ = s;
        sum
    }

    /// Thirty-two sums of 16 bits, two for each output.
    type Part: Copy;
    /// All of them zero.
    fn no_part(self, s: S) -> Self::Part;
    /// `part + Σ w x` over a quad; `w` is unsigned.
    fn dot_part(self, s: S, part: Self::Part, w: S::B, x: &[i8; 4]) -> Self::Part {
        let _ = (s, w, x);
        part
    }
    /// As [`pin`](Self::pin).
    fn pin_part(self, s: S, part: Self::Part) -> Self::Part {
        let _ = s;
        part
    }
    /// `sum + part`.
    fn add_part(self, s: S, sum: Self::I, part: Self::Part) -> Self::I {
        let _ = (s, part);
        sum
    }
}

/// Inputs whose products have a sum within 32 bits.
pub(crate) const MOST_INPUTS: usize = (1 << 31) / (128 * 127) - 1;

/// Pairs of quads whose products fit into 16 bits: each adds four products of a weight of at most
/// `most` with an activation of at most 127.
const fn pairs_in_16_bits(most: i32) -> usize {
    (i16::MAX as i32 / (4 * 127 * most)) as usize
}

/// Whether weights have a byte each.
const fn is_bytes<L: IntLayout>() -> bool {
    L::BLOCK_BYTES >= L::LEN * PANEL
}

/// Constants of the loop over one layout with one way to multiply. The compiler leaves out a branch
/// that depends on constants of a type before it optimizes the rest.
struct Loop<S, D, L>(PhantomData<(S, D, L)>);

impl<S: Bytes, D: Dot<S>, L: IntLayout> Loop<S, D, L> {
    const IS_SIGNED: bool = matches!(L::RANGE, Range::Signed);
    /// The number that is subtracted from each weight.
    const ZERO: i32 = match L::RANGE {
        Range::Signed => D::OFFSET,
        Range::Unsigned { zero, .. } => zero,
    };
    /// Pairs of quads that have the same scale.
    const PAIRS: usize = if L::SPLIT { 2 } else { 4 };
    /// Pairs of quads whose products are a part of the sum; 0 where every product enters it at once.
    const PART_PAIRS: usize = match L::RANGE {
        Range::Unsigned { most, .. } if D::HAS_PARTS => {
            let pairs = pairs_in_16_bits(most);
            if pairs < Self::PAIRS { pairs } else { Self::PAIRS }
        }
        _ => 0,
    };
    const HAS_PARTS: bool = Self::PART_PAIRS > 0;
    /// Whether groups of 32 can share a scale of the activations; their sum goes on through all of
    /// them.
    const IS_WIDE: bool = L::SCALE_LEN > GROUP;

    /// Whether a sum begins with the products of this pair.
    const fn begins(pair: usize) -> bool {
        let part = if Self::HAS_PARTS { Self::PART_PAIRS } else { 1 };
        pair % Self::PAIRS + 1 == part
    }

    /// Whether a part of the sum ends with the products of this pair.
    const fn ends_part(pair: usize) -> bool {
        Self::HAS_PARTS && (pair % Self::PAIRS + 1).is_multiple_of(Self::PART_PAIRS)
    }

    /// Whether a sum ends with the products of this pair.
    const fn ends(pair: usize) -> bool {
        pair % Self::PAIRS + 1 == Self::PAIRS
    }
}

/// Runs the body for each of `MR` rows. Iterators are functions that the compiler has to see through
/// first, in each of the functions made of [`micro`].
macro_rules! each_row {
    ($mr:ident => $body:expr) => {
        let mut $mr = 0;
        while $mr < MR {
            $body;
            $mr += 1;
        }
    };
}

/// The sum of the activations of a group, or of half of it where scales belong to halves.
#[inline(always)]
fn sum_of<L: IntLayout>(sums: [i32; 2], half: usize) -> i32 {
    if L::SPLIT { sums[half] } else { sums[0] + sums[1] }
}

/// `MR` rows by one panel, from row `row` of the tile.
///
/// # Safety
///
/// The rows and the panel are inside the tile; see its invariants.
#[inline(always)]
unsafe fn micro<S: Bytes, D: Dot<S>, L: IntLayout, const MR: usize>(
    (s, d): (S, D),
    tile: &Tile<'_, IntRows<'_>>,
    row: usize,
    panel: usize,
) {
    let n_groups = tile.x.n_groups;
    let groups_per_block = const { L::LEN / GROUP };
    let group_bytes = const { L::BLOCK_BYTES / (L::LEN / GROUP) };
    let ahead = const { if MR > FEW_ROWS { PREFETCH_MORE } else { PREFETCH } };
    let per_scale = if Loop::<S, D, L>::IS_WIDE { tile.x.group / GROUP } else { 1 };
    let (mut behind, mut scale_idx) = (0, 0);
    let mut isum = [d.splat(s, 0); MR];
    let mut acc = [s.splat(0.0); MR];
    // SAFETY: the caller vouches for the rows and the panel; blocks lie within their panel.
    unsafe {
        let x = tile.x.values.as_ptr().add(row * tile.x.stride);
        let scales = tile.x.scales.as_ptr().add(row * n_groups);
        let sums = tile.x.sums.as_ptr().add(row * n_groups);
        let start = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let blocks = start.add(if L::ROW_SCALE { PANEL * 4 } else { 0 });
        for block_idx in 0..tile.k / L::LEN {
            let block = Block::new(blocks.add(block_idx * L::BLOCK_BYTES));
            let head = L::head(s, block);
            for in_block in 0..groups_per_block {
                let group = block_idx * groups_per_block + in_block;
                let (mut begins, mut ends, mut at_scale) = (true, true, group);
                if Loop::<S, D, L>::IS_WIDE {
                    begins = behind == 0;
                    ends = behind + 1 == per_scale || group + 1 == tile.k / GROUP;
                    at_scale = scale_idx;
                }
                for line in 0..group_bytes.div_ceil(64) {
                    block.prefetch(in_block * group_bytes + line * 64 + ahead);
                }
                if const { MR > FEW_ROWS && MR <= D::MOST_ROWS_FAR } && row == 0 {
                    for line in 0..group_bytes.div_ceil(64) {
                        block.prefetch_far(s, in_block * group_bytes + line * 64 + PREFETCH_FAR);
                    }
                }
                let mut part = [d.no_part(s); MR];
                macro_rules! pair {
                    ($pair:literal) => {
                        // A sum that begins with its first part takes no register until then.
                        if const { Loop::<S, D, L>::begins($pair) } && begins {
                            each_row!(mr => {
                                let sums = *sums.add(mr * n_groups + at_scale);
                                let sum = sum_of::<L>(sums, $pair / 2);
                                isum[mr] = d.splat(s, -Loop::<S, D, L>::ZERO * sum);
                            });
                        }
                        let mut block = block;
                        if const { D::READS_AGAIN && MR > 1 } {
                            block = block.again();
                        }
                        let mut w = L::weights(s, block, in_block, $pair);
                        if Loop::<S, D, L>::IS_SIGNED {
                            w = [d.signed(s, w[0]), d.signed(s, w[1])];
                        }
                        let mut quad = 0;
                        while quad < 2 {
                            let w = w[quad];
                            let x = x.add(group * GROUP + $pair * 8 + quad * 4);
                            each_row!(mr => {
                                let x = &*x.add(mr * tile.x.stride).cast::<[i8; 4]>();
                                if Loop::<S, D, L>::HAS_PARTS {
                                    part[mr] = d.dot_part(s, part[mr], w, x);
                                } else if Loop::<S, D, L>::IS_SIGNED {
                                    isum[mr] = d.dot::<true>(s, isum[mr], w, x);
                                } else {
                                    isum[mr] = d.dot::<false>(s, isum[mr], w, x);
                                }
                            });
                            if D::HAS_PINS {
                                each_row!(mr => {
                                    if Loop::<S, D, L>::HAS_PARTS {
                                        part[mr] = d.pin_part(s, part[mr]);
                                    } else {
                                        isum[mr] = d.pin(s, isum[mr]);
                                    }
                                });
                            }
                            quad += 1;
                        }
                        if const { Loop::<S, D, L>::ends_part($pair) } {
                            each_row!(mr => {
                                isum[mr] = d.add_part(s, isum[mr], part[mr]);
                                part[mr] = d.no_part(s);
                            });
                        }
                        if const { Loop::<S, D, L>::ends($pair) } && ends {
                            let sw = L::scale(s, &head, block, in_block, $pair / 2);
                            let mut bias = s.splat(0.0);
                            if L::BIAS {
                                bias = L::bias(s, &head, block, in_block, $pair / 2);
                            }
                            each_row!(mr => {
                                let sx = *scales.add(mr * n_groups + at_scale);
                                let scale = s.mul(s.splat(sx), sw);
                                acc[mr] = s.fma(d.to_float(s, isum[mr]), scale, acc[mr]);
                                if L::BIAS {
                                    let sums = *sums.add(mr * n_groups + at_scale);
                                    let sum = sx * sum_of::<L>(sums, $pair / 2) as f32;
                                    acc[mr] = s.fma(s.splat(sum), bias, acc[mr]);
                                }
                            });
                        }
                    };
                }
                // Unrolled by hand: if the compiler keeps a loop, the sums rest on the stack.
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
                if Loop::<S, D, L>::IS_WIDE {
                    (behind, scale_idx) =
                        if ends { (0, scale_idx + 1) } else { (behind + 1, scale_idx) };
                }
            }
        }
        each_row!(mr => {
            let y = finished::<S, L>(s, acc[mr], Block::new(start));
            tile.y.store(row + mr, panel, &y);
        });
    }
}

/// Outputs of a panel that begins at `panel`, times or by their scales where they have such.
///
/// # Safety
///
/// The scales of the outputs are there.
#[inline(always)]
unsafe fn finished<S: Bytes, L: IntLayout>(s: S, acc: S::F, panel: Block) -> [f32; PANEL] {
    // SAFETY: the caller vouches for the scales.
    let y = unsafe {
        match (L::ROW_SCALE, L::ROW_DIVIDES) {
            (false, _) => acc,
            (true, false) => s.mul(acc, s.floats(panel.at(0))),
            (true, true) => s.div(acc, s.floats(panel.at(0))),
        }
    };
    let mut values = [0.0; PANEL];
    s.store(y, &mut values);
    values
}
