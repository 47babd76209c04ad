//! Integer dot products on tile registers (Intel AMX): 16 rows by 16 outputs by a group of 32 inputs
//! in one instruction.
//!
//! ```text
//! scales of the rows, 16 rows side by side                         once per call
//! for each panel:
//!     weights of each group as signed bytes, scales, biases        once per block of rows
//!     for each 16 rows (or 8), for each group:
//!         C = A · B            tile: rows [16, 32] by weights [32, 16], exact, in 32 bits
//!         memory = C
//!         acc[row] = fma(C[row] as f32, sx[row] * sw, acc[row])                  registers
//!         acc[row] = fma(sx[row] * sum[row], bias, acc[row])                     where BIAS
//! ```
//!
//! The sums are exact and what is done with them is what the loop of the parent does, so the bits are
//! the same. Two groups are under way: while the sums of one are scaled, the tile of another is
//! multiplied and a third is on its way through memory, the only way out of a tile.
//!
//! While a panel is multiplied the next one is prefetched ([`Coming`]); without that, memory and
//! arithmetic take turns (GOP/s at 64 rows of two threads, Q8_0 [2048, 8192]: 909 in place of 1080).
//!
//! Blocks of fewer than 16 rows are left to `vpdpbusd`, which reads packed weights as they are: it is as
//! fast at 12 rows; at 32 rows tiles are 1.07 to 1.24 times as fast (Q8_0), 1.2 to 1.6 times with
//! weights of 4 bits.
//!
//! A group of 16 rows and 16 outputs takes 24 ns on a Granite Rapids, and 26 to 28 with all that is
//! done once per block, where `vpdpbusd` takes 40: 4.6 ns for the product, 4.3 to write it, 3.4 to read
//! rows and weights, 8 for the floats, one after the other. (While a product is under way, AVX-512
//! does one multiply-add per cycle and not two.) More groups under way, other orders and other places
//! of the sums changed nothing, and chunks of the inputs that stay in the first-level cache are slower
//! (27 to 32 ns, because each begins with nothing under way). Strips of 4 panels, which turn scales of
//! rows four times as often as strips of 16: 31 ns.
//!
//! Considered and not taken: bf16 tiles of the same integers (their sums would come out as floats,
//! for twice the bytes of rows and weights).

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{Kernel, Tile, avx512vnni, wide_tiles};
use crate::layout::int::{Block, Bytes, IntLayout, Range};
use crate::layout::{GROUP, PANEL};
use crate::ops::matmul::pairs_of_tiles::Coming;
use crate::ops::quantize::IntRows;
use crate::simd::tiles::{Form, ROW_BYTES, ROWS, Tiles};
use crate::simd::{Avx512, Simd};

/// Rows of the smaller kernel.
const FEW: usize = 8;
/// Groups whose sums have a place in memory.
const UNDER_WAY: usize = 4;

/// Sixteen floats: a scale, bias or sum of each output or row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Floats([f32; 16]);

/// The weights of a group of a panel in the order of a tile: `[8 quads][16 outputs][4 inputs]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Weights([u8; GROUP * PANEL]);

/// The integer sums of 16 rows by 16 outputs, by row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([[i32; PANEL]; ROWS]);

/// Memory of a thread: as much as the largest product needed so far.
#[derive(Default)]
struct Scratch {
    /// Of the panel, by group.
    weights: Vec<Weights>,
    scales: Vec<Floats>,
    biases: Vec<Floats>,
    /// Of the rows, by 16 rows and group.
    row_scales: Vec<Floats>,
    /// Scale times sum of the activations.
    row_sums: Vec<Floats>,
    /// Of the groups under way.
    sums: Vec<Sums>,
}

/// The scale of each output, where a layout has one.
#[derive(Clone, Copy)]
enum RowScale {
    None,
    Multiplies,
    Divides,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The kernel of a layout for many rows. Scales of 16 inputs would leave three quarters of a tile
/// unused, so such layouts keep `vpdpbusd`.
pub(in crate::ops::matmul) fn kernel<L: IntLayout>() -> Kernel {
    if L::SPLIT { avx512vnni::<L> } else { tile::<L> }
}

/// # Safety
///
/// This CPU has the features below, and tiles are supported.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tile<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    if L::SCALE_LEN > GROUP && tile.x.group > GROUP {
        // SAFETY: the caller vouches for the CPU.
        return unsafe { wide_tiles::tile::<L>(tile) };
    }
    let n_groups = tile.k / GROUP;
    SCRATCH.with_borrow_mut(|scratch| {
        grow(&mut scratch.weights, n_groups, Weights([0; GROUP * PANEL]));
        grow(&mut scratch.scales, n_groups, Floats([0.0; 16]));
        grow(&mut scratch.sums, UNDER_WAY, Sums([[0; PANEL]; ROWS]));
        grow(&mut scratch.row_scales, tile.m.div_ceil(ROWS) * n_groups, Floats([0.0; 16]));
        if L::BIAS {
            grow(&mut scratch.biases, n_groups, Floats([0.0; 16]));
            grow(&mut scratch.row_sums, tile.m.div_ceil(ROWS) * n_groups, Floats([0.0; 16]));
        }
        let row_scale = match (L::ROW_SCALE, L::ROW_DIVIDES) {
            (false, _) => RowScale::None,
            (true, false) => RowScale::Multiplies,
            (true, true) => RowScale::Divides,
        };
        // SAFETY: the caller vouches for tiles, and none are alive in this thread; the panels and
        // the rows are the tile's.
        unsafe {
            turn_rows::<L>(tile, scratch);
            let mut tiles = Tiles::of(form(ROWS.min(tile.m)));
            for panel in 0..tile.n_panels {
                unpack::<L>(tile, panel, scratch);
                let mut coming = coming(tile, panel);
                for row in (0..tile.m).step_by(ROWS) {
                    let n_rows = ROWS.min(tile.m - row);
                    if n_rows < ROWS && tile.m > ROWS {
                        tiles.set(form(n_rows));
                    }
                    let at = Place { row, n_rows, panel, row_scale };
                    match (L::BIAS, n_rows > FEW) {
                        (false, true) => {
                            multiply::<false, ROWS>(&mut tiles, tile, at, scratch, &mut coming)
                        }
                        (false, false) => {
                            multiply::<false, FEW>(&mut tiles, tile, at, scratch, &mut coming)
                        }
                        (true, true) => {
                            multiply::<true, ROWS>(&mut tiles, tile, at, scratch, &mut coming)
                        }
                        (true, false) => {
                            multiply::<true, FEW>(&mut tiles, tile, at, scratch, &mut coming)
                        }
                    }
                    if n_rows < ROWS && tile.m > ROWS {
                        tiles.set(form(ROWS));
                    }
                }
            }
        }
    });
}

/// Tiles 0 and 1 are sums, 4 and 5 rows, 6 and 7 weights.
fn form(n_rows: usize) -> Form {
    let (sums, rows) = ((n_rows, ROW_BYTES), (n_rows, GROUP));
    let weights = (GROUP / 4, ROW_BYTES);
    Form::new([sums, sums, (0, 0), (0, 0), rows, rows, weights, weights])
}

fn grow<T: Clone>(data: &mut Vec<T>, n: usize, value: T) {
    if data.len() < n {
        data.resize(n, value);
    }
}

/// Puts the scales of 16 rows side by side, and where there are biases the sums of their
/// activations.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn turn_rows<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>, scratch: &mut Scratch) {
    let n_groups = tile.k / GROUP;
    for (i, row) in (0..tile.m).step_by(ROWS).enumerate() {
        let n_rows = ROWS.min(tile.m - row);
        let mask = ((1_u32 << n_rows) - 1) as __mmask16;
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let index = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(n_groups as i32));
        let pairs = _mm512_slli_epi32::<1>(index);
        let at = row * n_groups;
        let (scales, sums) = (tile.x.scales[at..].as_ptr(), tile.x.sums[at..].as_ptr());
        for group in 0..n_groups {
            // SAFETY: the lanes of the mask are rows of the tile.
            unsafe {
                let zero = _mm512_setzero_si512();
                let from = scales.add(group);
                let scales =
                    _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), mask, index, from.cast());
                let out = scratch.row_scales[i * n_groups + group].0.as_mut_ptr();
                _mm512_store_ps(out, scales);
                if L::BIAS {
                    let from = sums.add(group).cast::<i32>();
                    let first = _mm512_mask_i32gather_epi32::<4>(zero, mask, pairs, from);
                    let last = _mm512_mask_i32gather_epi32::<4>(zero, mask, pairs, from.add(1));
                    let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, last));
                    let out = scratch.row_sums[i * n_groups + group].0.as_mut_ptr();
                    _mm512_store_ps(out, _mm512_mul_ps(scales, sum));
                }
            }
        }
    }
}

/// Writes the weights of a panel as signed bytes, and its scales and biases.
///
/// # Safety
///
/// The panel is inside the tile; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>, panel: usize, scratch: &mut Scratch) {
    let groups_per_block = L::LEN / GROUP;
    let zero = match L::RANGE {
        Range::Signed => -128,
        Range::Unsigned { zero, .. } => zero,
    };
    let zero = _mm512_set1_epi8(zero as i8);
    // SAFETY: the features of this function are those of the proof; blocks lie within their panel.
    unsafe {
        let s = Avx512::assume();
        let start = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let blocks = start.add(if L::ROW_SCALE { PANEL * 4 } else { 0 });
        for block_idx in 0..tile.k / L::LEN {
            let block = Block::new(blocks.add(block_idx * L::BLOCK_BYTES));
            let head = L::head(s, block);
            for line in 0..L::BLOCK_BYTES.div_ceil(64) {
                block.prefetch(line * 64 + super::PREFETCH);
            }
            for in_block in 0..groups_per_block {
                let group = block_idx * groups_per_block + in_block;
                let out = scratch.weights[group].0.as_mut_ptr();
                for pair in 0..GROUP / 8 {
                    for (quad, w) in L::weights(s, block, in_block, pair).into_iter().enumerate() {
                        let out = out.add((pair * 2 + quad) * 64);
                        _mm512_store_si512(out.cast(), _mm512_sub_epi8(w, zero));
                    }
                }
                s.store(L::scale(s, &head, block, in_block, 0), &mut scratch.scales[group].0);
                if L::BIAS {
                    let bias = L::bias(s, &head, block, in_block, 0);
                    s.store(bias, &mut scratch.biases[group].0);
                }
            }
        }
    }
}

/// The packed weights of the panel after this one, or of the tile after the last one.
fn coming(tile: &Tile<'_, IntRows<'_>>, panel: usize) -> Coming<1> {
    let is_last = panel + 1 == tile.n_panels;
    let offset = if is_last { tile.to_next } else { (panel + 1) * tile.panel_bytes };
    let n_lines = if offset == 0 { 0 } else { tile.panel_bytes.div_ceil(64) };
    let n_steps = tile.m.div_ceil(ROWS) * (tile.k / GROUP).div_ceil(2);
    Coming::of([tile.w.as_ptr().wrapping_add(offset)], n_lines, n_steps)
}

/// Rows and panel of a part of a product.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    n_rows: usize,
    panel: usize,
    row_scale: RowScale,
}

/// Up to `MR` rows by one panel.
///
/// # Safety
///
/// The rows and the panel are inside the tile, and `scratch` has what belongs to both; the tiles
/// have the form for these rows; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn multiply<const BIAS: bool, const MR: usize>(
    tiles: &mut Tiles,
    tile: &Tile<'_, IntRows<'_>>,
    Place { row, n_rows, panel, row_scale }: Place,
    scratch: &mut Scratch,
    coming: &mut Coming<1>,
) {
    let n_groups = tile.k / GROUP;
    let sums = scratch.sums.as_mut_ptr();
    // SAFETY: see above; sums have room for four groups, and groups past the last are the last.
    unsafe {
        let s = Avx512::assume();
        let x = tile.x.values.as_ptr().add(row * tile.x.stride).cast::<u8>();
        let at = row / ROWS * n_groups;
        let (row_scales, row_sums) =
            (scratch.row_scales.as_ptr().add(at), scratch.row_sums.as_ptr().wrapping_add(at));
        let mut acc = [s.splat(0.0); MR];
        macro_rules! dot {
            ($sums:literal, $rows:literal, $weights:literal, $group:expr) => {
                let group = ($group).min(n_groups - 1);
                tiles.load::<$rows>(x.add(group * GROUP), tile.x.stride);
                tiles.load::<$weights>(scratch.weights.as_ptr().add(group).cast(), ROW_BYTES);
                tiles.zero::<$sums>();
                tiles.dot_int8::<$sums, $rows, $weights>();
            };
        }
        macro_rules! write {
            ($sums:literal, $group:expr) => {
                tiles.store::<$sums>(sums.add($group % UNDER_WAY).cast(), PANEL * 4);
            };
        }
        macro_rules! scale {
            ($group:expr) => {
                let group = $group;
                let isums = (*sums.add(group % UNDER_WAY)).0.as_ptr();
                let sw = s.load(&scratch.scales[group].0);
                let sx = &(*row_scales.add(group)).0;
                for (mr, acc) in acc.iter_mut().enumerate() {
                    let isum = _mm512_cvtepi32_ps(_mm512_load_si512(isums.add(mr).cast()));
                    *acc = s.fma(isum, s.mul(s.splat(sx[mr]), sw), *acc);
                }
                if BIAS {
                    let bias = s.load(&scratch.biases[group].0);
                    let sums = &(*row_sums.add(group)).0;
                    for (mr, acc) in acc.iter_mut().enumerate() {
                        *acc = s.fma(s.splat(sums[mr]), bias, *acc);
                    }
                }
            };
        }
        dot!(0, 4, 6, 0);
        dot!(1, 5, 7, 1);
        write!(0, 0);
        write!(1, 1);
        dot!(0, 4, 6, 2);
        dot!(1, 5, 7, 3);
        for group in (0..n_groups).step_by(2) {
            coming.prefetch();
            write!(0, group + 2);
            write!(1, group + 3);
            dot!(0, 4, 6, group + 4);
            scale!(group);
            dot!(1, 5, 7, group + 5);
            if group + 1 < n_groups {
                scale!(group + 1);
            }
        }
        let scales = Block::new(tile.w.as_ptr().add(panel * tile.panel_bytes));
        for (mr, acc) in acc.into_iter().enumerate().take(n_rows) {
            let acc = match row_scale {
                RowScale::None => acc,
                RowScale::Multiplies => s.mul(acc, s.floats(scales.at(0))),
                RowScale::Divides => s.div(acc, s.floats(scales.at(0))),
            };
            let mut values = [0.0; PANEL];
            s.store(acc, &mut values);
            tile.y.store(row + mr, panel, &values);
        }
    }
}
