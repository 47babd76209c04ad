//! Integer dot products on tile registers (Intel AMX) where 64 inputs and more share both scales: 16
//! rows by 16 outputs by 64 inputs in one instruction.
//!
//! ```text
//! scales and sums of the activations of 16 rows side by side               once per call
//! for each two panels:
//!     for each chunk of 8 blocks of 64 inputs:
//!         weights as bytes, scales, biases                  once per chunk; bytes stay where they are
//!         for each 32 rows (two tiles of 16, or one and a rest):
//!             for each group of the chunk:
//!                 C[2][2] = 0
//!                 for each block of the group:
//!                     A[2] = rows, B[2] = weights                       4 loads of 1 KiB
//!                     C[i][j] += A[i] B[j]                              4 products, exact
//!                 memory = C
//!             for each C:                                               registers
//!                 acc = the sums of the chunks before
//!                 for each group: acc[row] = fma((C[row] - zero) as f32, sx[row] * sw, acc[row])
//!                 the sums, or y, = acc
//!
//! One group that is the whole row: C is kept from chunk to chunk, and scaled after the last.
//! ```
//!
//! Rows have a sign and weights are as they are stored, without one, so bytes need no conversion:
//! their tiles are read from the packed panel. The sums are exact and what is done with them is what
//! the loop of the parent does, so the bits are the same.
//!
//! In a program of its own, one thread of a Granite Rapids, GOP/s at M = 512 of a byte per weight,
//! weights in the second level of cache, by inputs of a group 64, 128, 256, all: 890, 1610, 2330, 2970
//! (products and loads alone 6090; `tiles.rs` at 32: 680; `vpdpbusd` 420). Tried there at 128 and all:
//! weights put in order first (1120, 2230: 1.4 us for 16 KiB); results of 16 rows by 16 outputs in
//! memory and not in registers (1260, all the same); rows that begin anywhere and not at a cache line
//! (1245, 1860); prefetching the next rows to the first level (1260, 2300), and chunks of 6 blocks
//! beside that (1270, 2420). Scales of rows by row and not side by side: 870 in place of 1180 in the
//! engine, whose weights come from memory. Fewer than 16 rows are faster by `vpdpbusd`.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::Tile;
use crate::layout::int::{Block, Bytes, IntLayout, Range};
use crate::layout::{GROUP, PANEL};
use crate::ops::matmul::coming::Coming;
use crate::ops::matmul::pairs_of_tiles::{PANELS, form};
use crate::ops::quantize::IntRows;
use crate::simd::tiles::{ROW_BYTES, ROWS, Stored, TILE_BYTES, Tiles};
use crate::simd::{Avx512, Simd};

/// Inputs that one product takes.
const BLOCK: usize = 64;
/// Blocks of inputs that are multiplied with all rows before the next ones: two panels of them are
/// a third of the first-level cache.
const CHUNK: usize = 8;

/// A scale or bias of each output.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Floats([f32; PANEL]);

/// The scale of a group of activations, and products with their sum, of each of 16 rows.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct OfRows {
    scale: [f32; ROWS],
    /// The zero point of the weights times the sum of the activations.
    zero: [i32; ROWS],
    /// The scale times the sum of the activations.
    sum: [f32; ROWS],
}

/// Memory of a thread.
struct Scratch {
    /// Weights of a chunk, by block and panel, where they are not read from the panel.
    weights: [[Stored; PANELS]; CHUNK],
    /// Their scales and biases, by group of the chunk and panel.
    scales: [[Floats; PANELS]; CHUNK],
    biases: [[Floats; PANELS]; CHUNK],
    /// Integer sums of a chunk, by its group: two panels of the first 16 rows, two of the others.
    sums: [[Stored; 2 * PANELS]; CHUNK],
    /// Results of the chunks before, by 16 rows and panel: floats, or integers where a group is a
    /// whole row. As many as were needed so far, like what follows.
    before: Vec<[Stored; PANELS]>,
    /// By 16 rows and group.
    rows: Vec<OfRows>,
}

impl Scratch {
    const fn new() -> Self {
        const FLOATS: [[Floats; PANELS]; CHUNK] = [[Floats([0.0; PANEL]); PANELS]; CHUNK];
        Self {
            weights: [[Stored::ZERO; PANELS]; CHUNK],
            scales: FLOATS,
            biases: FLOATS,
            sums: [[Stored::ZERO; 2 * PANELS]; CHUNK],
            before: Vec::new(),
            rows: Vec::new(),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Where the tiles of weights of a chunk are, by block and panel.
type Places = [[*const u8; PANELS]; CHUNK];

/// The number that a stored weight of 0 is, of a layout.
const fn zero<L: IntLayout>() -> i32 {
    match L::RANGE {
        Range::Signed => 128,
        Range::Unsigned { zero, .. } => zero,
    }
}

/// Part of a product: up to 32 rows by one or two panels by blocks of inputs.
#[derive(Clone, Copy)]
struct Part {
    row: usize,
    n_rows: usize,
    panel: usize,
    n_panels: usize,
    start: usize,
    end: usize,
}

/// The kernel.
///
/// # Safety
///
/// This CPU has the features below, and tiles are supported. Groups of activations are of 64 inputs
/// or more, and no larger than those of the weights.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn tile<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    let n_blocks = tile.k.div_ceil(BLOCK);
    let is_row = tile.x.n_groups == 1;
    SCRATCH.with_borrow_mut(|scratch| {
        prepare_rows::<L>(tile, scratch);
        if n_blocks > CHUNK && scratch.before.len() < tile.m.div_ceil(ROWS) {
            scratch.before.resize(tile.m.div_ceil(ROWS), [Stored::ZERO; PANELS]);
        }
        let most_rows = tile.m.min(2 * ROWS);
        // SAFETY: the caller vouches for tiles; none are alive in this thread.
        let mut tiles = unsafe { Tiles::of(form(most_rows)) };
        for panel in (0..tile.n_panels).step_by(PANELS) {
            let n_panels = PANELS.min(tile.n_panels - panel);
            for start in (0..n_blocks).step_by(CHUNK) {
                let end = n_blocks.min(start + CHUNK);
                // SAFETY: the panels are the tile's.
                let places =
                    unsafe { prepare_weights::<L>(tile, panel, n_panels, start..end, scratch) };
                let mut coming = coming(tile, panel, n_panels, end);
                for row in (0..tile.m).step_by(2 * ROWS) {
                    let n_rows = (tile.m - row).min(2 * ROWS);
                    if n_rows < most_rows {
                        tiles.set(form(n_rows));
                    }
                    coming.prefetch();
                    let part = Part { row, n_rows, panel, n_panels, start, end };
                    // SAFETY: these rows and panels are inside the tile, and `scratch` is theirs.
                    unsafe {
                        match (n_rows > ROWS, is_row) {
                            (true, true) => {
                                multiply::<true, true>(&mut tiles, tile, part, &places, scratch)
                            }
                            (true, false) => {
                                multiply::<true, false>(&mut tiles, tile, part, &places, scratch)
                            }
                            (false, true) => {
                                multiply::<false, true>(&mut tiles, tile, part, &places, scratch)
                            }
                            (false, false) => {
                                multiply::<false, false>(&mut tiles, tile, part, &places, scratch)
                            }
                        }
                        if !is_row || end == n_blocks {
                            finish::<L>(tile, part, is_row, scratch);
                        }
                    }
                    if n_rows < most_rows {
                        tiles.set(form(most_rows));
                    }
                }
            }
        }
    });
}

/// Puts the scales and sums of 16 rows side by side.
fn prepare_rows<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>, scratch: &mut Scratch) {
    let n_groups = tile.x.n_groups;
    scratch.rows.resize(tile.m.div_ceil(ROWS) * n_groups, OfRows::default());
    for (row, lane) in (0..tile.m).map(|row| (row, row % ROWS)) {
        let of_rows = &mut scratch.rows[row / ROWS * n_groups..][..n_groups];
        let own = row * n_groups..(row + 1) * n_groups;
        let groups = tile.x.scales[own.clone()].iter().zip(&tile.x.sums[own]);
        for (of_rows, (&scale, [first, last])) in of_rows.iter_mut().zip(groups) {
            let sum = first + last;
            of_rows.scale[lane] = scale;
            of_rows.zero[lane] = zero::<L>() * sum;
            of_rows.sum[lane] = scale * sum as f32;
        }
    }
}

/// The weights of some blocks of one or two panels, their scales and biases.
///
/// # Safety
///
/// The panels are inside the tile; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn prepare_weights<L: IntLayout>(
    tile: &Tile<'_, IntRows<'_>>,
    panel: usize,
    n_panels: usize,
    blocks: std::ops::Range<usize>,
    scratch: &mut Scratch,
) -> Places {
    let in_order = L::BLOCK_BYTES == GROUP * PANEL && L::LEN == GROUP;
    let groups_per_block = L::LEN / GROUP;
    let (first, end) = (blocks.start * 2, (blocks.end * 2).min(tile.k / GROUP));
    let per_scale = tile.x.group.div_ceil(GROUP);
    let mut places = [[std::ptr::null(); PANELS]; CHUNK];
    // SAFETY: the features of this function are those of the proof; blocks lie within their panel.
    unsafe {
        let s = Avx512::assume();
        for at in 0..PANELS {
            // Without a second panel the first one is multiplied twice.
            let start = tile.w.as_ptr().add((panel + at.min(n_panels - 1)) * tile.panel_bytes);
            let data = start.add(if L::ROW_SCALE { PANEL * 4 } else { 0 });
            for (i, places) in places[..blocks.len()].iter_mut().enumerate() {
                let is_whole = first + 2 * i + 2 <= end;
                places[at] = match in_order && is_whole {
                    true => data.add((first + 2 * i) * L::BLOCK_BYTES),
                    false => scratch.weights[i][at].0.as_ptr(),
                };
            }
            for group in first..end {
                let block = Block::new(data.add(group / groups_per_block * L::BLOCK_BYTES));
                let in_block = group % groups_per_block;
                if (group - first).is_multiple_of(per_scale) {
                    let head = L::head(s, block);
                    let idx = (group - first) / per_scale;
                    let scale = L::scale(s, &head, block, in_block, 0);
                    s.store(scale, &mut scratch.scales[idx][at].0);
                    if L::BIAS {
                        let bias = L::bias(s, &head, block, in_block, 0);
                        s.store(bias, &mut scratch.biases[idx][at].0);
                    }
                }
                if in_order && group - first < (end - first) / 2 * 2 {
                    continue;
                }
                let weights = &mut scratch.weights[(group - first) / 2][at].0;
                let out = weights.as_mut_ptr().add((group - first) % 2 * (TILE_BYTES / 2));
                for pair in 0..GROUP / 8 {
                    for (quad, w) in L::weights(s, block, in_block, pair).into_iter().enumerate() {
                        _mm512_store_si512(out.add((pair * 2 + quad) * 64).cast(), w);
                    }
                }
            }
        }
    }
    places
}

/// The packed weights of the chunk after block `end` of these panels.
fn coming(
    tile: &Tile<'_, IntRows<'_>>,
    panel: usize,
    n_panels: usize,
    end: usize,
) -> Coming<PANELS> {
    let n_blocks = tile.k.div_ceil(BLOCK);
    let (first, block) = if end < n_blocks { (panel, end) } else { (panel + n_panels, 0) };
    let bytes = [block, n_blocks.min(block + CHUNK)].map(|end| tile.panel_bytes * end / n_blocks);
    Coming::new(tile, first, bytes[0]..bytes[1], tile.m.div_ceil(2 * ROWS))
}

/// The integer sums of a part, more than 16 rows where `IS_TALL`: of each group, or of the whole row
/// so far where `IS_ROW`.
///
/// # Safety
///
/// The part is inside the tile; `places` are those of its blocks and `scratch` has what belongs to it;
/// the tiles have the form for its rows.
#[inline(never)]
unsafe fn multiply<const IS_TALL: bool, const IS_ROW: bool>(
    tiles: &mut Tiles,
    tile: &Tile<'_, IntRows<'_>>,
    part: Part,
    places: &Places,
    scratch: &mut Scratch,
) {
    let Part { row, start, end, .. } = part;
    let stride = tile.x.stride;
    let is_last = end * BLOCK >= tile.k;
    let per_group = if IS_ROW { end - start } else { tile.x.group / BLOCK };
    // SAFETY: rows are padded to whole blocks; the caller vouches for the rest.
    unsafe {
        macro_rules! each_sum {
            ($do:ident, $group:expr) => {
                $do!(0, 0, 0, $group);
                $do!(1, 0, 1, $group);
                if IS_TALL {
                    $do!(2, 1, 0, $group);
                    $do!(3, 1, 1, $group);
                }
            };
        }
        macro_rules! begin {
            ($tile:literal, $below:literal, $panel:literal, $group:expr) => {
                if IS_ROW && start > 0 {
                    let sums = &scratch.before[row / ROWS + $below][$panel];
                    tiles.load::<$tile>(sums.0.as_ptr(), ROW_BYTES);
                } else {
                    tiles.zero::<$tile>();
                }
            };
        }
        macro_rules! end {
            ($tile:literal, $below:literal, $panel:literal, $group:expr) => {
                let sums = if IS_ROW && !is_last {
                    &mut scratch.before[row / ROWS + $below][$panel]
                } else {
                    &mut scratch.sums[$group][$tile]
                };
                tiles.store::<$tile>(sums.0.as_mut_ptr(), ROW_BYTES);
            };
        }
        let x = tile.x.values.as_ptr().add(row * stride + start * BLOCK).cast::<u8>();
        let below = x.wrapping_add(ROWS * stride);
        for (group, first) in (0..end - start).step_by(per_group).enumerate() {
            each_sum!(begin, group);
            let blocks = first..(first + per_group).min(end - start);
            for (block, weights) in blocks.clone().zip(&places[blocks]) {
                let at = block * BLOCK;
                tiles.load::<6>(weights[0], ROW_BYTES);
                tiles.load::<4>(x.add(at), stride);
                tiles.dot_signed_unsigned::<0, 4, 6>();
                tiles.load::<7>(weights[1], ROW_BYTES);
                tiles.dot_signed_unsigned::<1, 4, 7>();
                if IS_TALL {
                    tiles.load::<5>(below.add(at), stride);
                    tiles.dot_signed_unsigned::<2, 5, 6>();
                    tiles.dot_signed_unsigned::<3, 5, 7>();
                }
            }
            each_sum!(end, group);
        }
    }
}

/// Scales the integer sums of a part and adds them to those of the chunks before; the last chunk
/// writes the results.
///
/// # Safety
///
/// As [`multiply`]; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn finish<L: IntLayout>(
    tile: &Tile<'_, IntRows<'_>>,
    part: Part,
    is_row: bool,
    scratch: &mut Scratch,
) {
    let n_groups = tile.x.n_groups;
    let (first, end) = match is_row {
        true => (0, 1),
        false => (part.start * BLOCK / tile.x.group, (part.end * BLOCK).div_ceil(tile.x.group)),
    };
    let is_last = part.end * BLOCK >= tile.k;
    let continues = !is_row && part.start > 0;
    for half in 0..part.n_rows.div_ceil(ROWS) {
        let row = part.row + half * ROWS;
        let n_rows = ROWS.min(part.row + part.n_rows - row);
        for at in 0..part.n_panels {
            // SAFETY: groups `first..end` of these rows are the tile's, and `scratch` has theirs,
            // numbers without meaning for rows past the last.
            unsafe {
                let s = Avx512::assume();
                let mut acc = [s.splat(0.0); ROWS];
                let before = continues.then(|| scratch.before[row / ROWS][at].0.as_ptr());
                if let Some(before) = before {
                    for (r, acc) in acc.iter_mut().enumerate() {
                        *acc = _mm512_load_ps(before.add(r * ROW_BYTES).cast());
                    }
                }
                for group in first..end {
                    let sums = scratch.sums[group - first][half * PANELS + at].0.as_ptr();
                    let sw = s.load(&scratch.scales[group - first][at].0);
                    let bias = s.load(&scratch.biases[group - first][at].0);
                    let rows = &scratch.rows[row / ROWS * n_groups + group];
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let mut sum = _mm512_load_si512(sums.add(r * ROW_BYTES).cast());
                        if zero::<L>() != 0 {
                            sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(rows.zero[r]));
                        }
                        let scale = s.mul(s.splat(rows.scale[r]), sw);
                        *acc = s.fma(_mm512_cvtepi32_ps(sum), scale, *acc);
                        if L::BIAS {
                            *acc = s.fma(s.splat(rows.sum[r]), bias, *acc);
                        }
                    }
                }
                if !is_last {
                    let before = scratch.before[row / ROWS][at].0.as_mut_ptr();
                    for (r, acc) in acc.into_iter().enumerate() {
                        _mm512_store_ps(before.add(r * ROW_BYTES).cast(), acc);
                    }
                    continue;
                }
                let panel = part.panel + at;
                let scales = Block::new(tile.w.as_ptr().add(panel * tile.panel_bytes));
                for (r, acc) in acc.into_iter().enumerate().take(n_rows) {
                    let acc = match (L::ROW_SCALE, L::ROW_DIVIDES) {
                        (false, _) => acc,
                        (true, false) => s.mul(acc, s.floats(scales.at(0))),
                        (true, true) => s.div(acc, s.floats(scales.at(0))),
                    };
                    let mut values = [0.0; PANEL];
                    s.store(acc, &mut values);
                    tile.y.store(row + r, panel, &values);
                }
            }
        }
    }
}
