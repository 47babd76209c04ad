//! bf16 weights and activations on tile registers (Intel AMX): 16 rows by 16 outputs by 32 inputs
//! in one instruction.
//!
//! ```text
//! for each two panels:                                            from 160 rows on the other way round:
//!     for each chunk of 8 blocks of 32 inputs:                      for each chunk: for each two panels
//!         their weights in the order that tiles read                16 KiB, once per block of rows
//!         for each 32 rows (two tiles of 16, or one and a rest):
//!             C[2][2] = 0, or the sums of the chunks before
//!             for each block of the chunk:
//!                 A[2] = rows, B[2] = weights                        4 loads of 1 KiB
//!                 C[i][j] += A[i] B[j]                               4 products
//!             the sums, or y, = C
//!
//! of 32 inputs        row j of B, the pair of output n       chain of the canonical order
//!   first half  0-15  .0 is input j ^ 1                      even sums: 1, 0, 3, 2, ..
//!   last half  16-31  .1 is input 16 + (j ^ 1)               odd sums: 17, 16, 19, 18, ..
//! ```
//!
//! The product adds its even inputs and its odd ones apart ([`crate::simd::tiles`]), so the halves
//! of 32 inputs take these places, and the result has the bits of every other kernel. [`arrange`]
//! puts activations in that order once; the packed weights keep theirs and are put in order here.
//!
//! While a chunk is multiplied the next one is prefetched ([`Coming`]), and while the last chunk is, the
//! lines of the outputs ([`Written`]; narrow matrices take 6 to 10 % less). Up to four rows are
//! multiplied as floats ([`few_rows`]), at the speed of memory: putting weights in order and
//! multiplying tiles take turns, and memory waits meanwhile.
//!
//! Many rows of many inputs do not fit into the second-level cache, and a chunk of them does, beside
//! the sums of 16 panels: hence the other order of the loops. 512 rows of `[896, 4864]` on two threads
//! reach 1,810 GFLOP/s instead of 1,400; 64 to 128 rows lose 3 %.
//!
//! One thread of a Granite Rapids, GFLOP/s of `[8192, 2048]` at M = 1, 8, 64, 256: 29, 182, 991,
//! 1339 (tiles alone: 3400; multiply-adds alone: 240; `vdpbf16ps` alone: 121). Tried: one row by
//! tiles 25; no prefetch of the next chunk 152, 739, 1209 at 8, 64, 256; another one within the
//! panel while weights are put in order 182, 847, 1248; the next chunk to the first level 197, 899,
//! 1216; twice as fast, or two chunks ahead: slower. All inputs in one chunk: 1050 at 256, because
//! weights and rows both come from the second level; chunks of 12 and 16 blocks are slower at every
//! M. Prefetching rows: no gain.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::Tile;
use crate::layout::PANEL;
use crate::ops::activations::HalfRows;
use crate::ops::matmul::coming::Coming;
use crate::ops::matmul::pairs_of_tiles::{PANELS, Written, form};
use crate::simd::tiles::{INPUTS, ROW_BYTES, ROWS, Stored, Tiles};

/// Bytes ahead of the loads that packed weights are prefetched.
const PREFETCH: usize = 2048;

/// Blocks of inputs whose weights are put in order together: 16 KiB, a third of the first-level cache.
const CHUNK: usize = 8;

/// Rows from which all panels of a chunk are multiplied before the next chunk.
const BY_CHUNK: usize = 160;

/// Memory of a thread.
struct Scratch {
    /// Weights of a chunk in the order that the product reads, by block and panel.
    weights: [[Stored; PANELS]; CHUNK],
    /// Sums of the chunks before, by pair of panels, 16 rows and panel; as many as were needed so far.
    sums: Vec<[Stored; PANELS]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { weights: [[Stored::ZERO; PANELS]; CHUNK], sums: Vec::new() })
    };
}

/// The kernel.
///
/// # Safety
///
/// This CPU has the features below, and tiles are supported.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::ops::matmul) unsafe fn tile(tile: &Tile<'_, HalfRows<'_>>) {
    // SAFETY: this function has the features that the kernel of few rows needs.
    unsafe {
        match tile.m {
            0 => return,
            1 => return few_rows::<1, 4>(tile),
            2 => return few_rows::<2, 4>(tile),
            3 => return few_rows::<3, 2>(tile),
            4 => return few_rows::<4, 2>(tile),
            _ => {}
        }
    }
    let order = Order::new(tile);
    SCRATCH.with_borrow_mut(|Scratch { weights, sums }| {
        let n_sums = order.n_kept() * tile.m.div_ceil(ROWS);
        if sums.len() < n_sums {
            sums.resize(n_sums, [Stored::ZERO; PANELS]);
        }
        let most_rows = tile.m.min(2 * ROWS);
        // SAFETY: the caller vouches for tiles; none are alive in this thread.
        let mut tiles = unsafe { Tiles::of(form(most_rows)) };
        for i in 0..order.len() {
            let Piece { panels, blocks, kept } = order.piece(i);
            for panel in panels.clone() {
                // SAFETY: the panel is one of the tile's.
                unsafe {
                    arrange_panel(tile, panel, panel - panels.start, blocks.clone(), weights);
                }
            }
            let mut coming = order.coming(tile, i);
            let kept = kept * tile.m.div_ceil(ROWS);
            for row in (0..tile.m).step_by(2 * ROWS) {
                let n_rows = (tile.m - row).min(2 * ROWS);
                if n_rows < most_rows {
                    tiles.set(form(n_rows));
                }
                let part = Part { row, n_rows, panels: panels.clone(), blocks: blocks.clone() };
                let sums = &mut sums[n_sums.min(kept + row / ROWS)..];
                // SAFETY: these rows and panels are inside the tile.
                unsafe {
                    if n_rows > ROWS {
                        micro::<true>(&mut tiles, tile, &part, weights, sums, &mut coming);
                    } else {
                        micro::<false>(&mut tiles, tile, &part, weights, sums, &mut coming);
                    }
                }
                if n_rows < most_rows {
                    tiles.set(form(most_rows));
                }
            }
        }
    });
}

/// The order of the pieces of a tile.
struct Order {
    n_panels: usize,
    n_blocks: usize,
    /// Whether all panels of a chunk are multiplied before the next chunk.
    by_chunk: bool,
}

/// Two panels by a chunk.
struct Piece {
    panels: Range<usize>,
    blocks: Range<usize>,
    /// Which of the panels whose sums are kept these are.
    kept: usize,
}

impl Order {
    fn new(tile: &Tile<'_, HalfRows<'_>>) -> Self {
        let n_blocks = tile.k.div_ceil(INPUTS);
        Self { n_panels: tile.n_panels, n_blocks, by_chunk: tile.m >= BY_CHUNK }
    }

    fn n_pairs(&self) -> usize {
        self.n_panels.div_ceil(PANELS)
    }

    /// Without inputs there is a chunk of no blocks, which writes zeros.
    fn n_chunks(&self) -> usize {
        self.n_blocks.div_ceil(CHUNK).max(1)
    }

    fn len(&self) -> usize {
        self.n_pairs() * self.n_chunks()
    }

    /// Pairs of panels whose sums are kept at the same time.
    fn n_kept(&self) -> usize {
        match self.n_chunks() {
            1 => 0,
            _ if self.by_chunk => self.n_pairs(),
            _ => 1,
        }
    }

    fn piece(&self, i: usize) -> Piece {
        let (pair, chunk) = match self.by_chunk {
            true => (i % self.n_pairs(), i / self.n_pairs()),
            false => (i / self.n_chunks(), i % self.n_chunks()),
        };
        let (first, start) = (pair * PANELS, chunk * CHUNK);
        Piece {
            panels: first..self.n_panels.min(first + PANELS),
            blocks: start..self.n_blocks.min(start + CHUNK),
            kept: if self.by_chunk { pair } else { 0 },
        }
    }

    /// The packed weights of the piece after piece `i`.
    fn coming(&self, tile: &Tile<'_, HalfRows<'_>>, i: usize) -> Coming<PANELS> {
        let n_steps = tile.m.div_ceil(2 * ROWS) * self.piece(i).blocks.len();
        let (first, blocks) = if i + 1 < self.len() {
            let next = self.piece(i + 1);
            (next.panels.start, next.blocks)
        } else {
            (self.n_panels, 0..self.n_blocks.min(CHUNK))
        };
        let bytes = [blocks.start, blocks.end].map(|block| block * INPUTS * PANEL * 2);
        Coming::new(tile, first, bytes[0]..bytes[1], n_steps)
    }
}

/// Part of a product: rows by panels by blocks of inputs.
struct Part {
    row: usize,
    n_rows: usize,
    panels: Range<usize>,
    blocks: Range<usize>,
}

/// Up to 32 rows, more than 16 where `IS_TALL`, by one or two panels.
///
/// # Safety
///
/// The part is inside the tile; `weights` are those of its panels and blocks, and `sums` those of
/// the blocks before.
#[inline(always)]
unsafe fn micro<const IS_TALL: bool>(
    tiles: &mut Tiles,
    tile: &Tile<'_, HalfRows<'_>>,
    part: &Part,
    weights: &[[Stored; PANELS]],
    sums: &mut [[Stored; PANELS]],
    coming: &mut Coming<PANELS>,
) {
    let Part { row, n_rows, panels, blocks } = part;
    let row = *row;
    let stride = tile.x.stride * 2;
    // SAFETY: rows are padded to whole blocks; the caller vouches for the rest.
    unsafe {
        macro_rules! each_sum {
            ($do:ident) => {
                $do!(0, 0, 0);
                $do!(1, 0, 1);
                if IS_TALL {
                    $do!(2, 1, 0);
                    $do!(3, 1, 1);
                }
            };
        }
        macro_rules! begin {
            ($tile:literal, $below:literal, $panel:literal) => {
                if blocks.start == 0 {
                    tiles.zero::<$tile>();
                } else {
                    let sums = &sums[$below][$panel];
                    tiles.load::<$tile>(sums.0.as_ptr(), ROW_BYTES);
                }
            };
        }
        each_sum!(begin);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride).cast::<u8>();
        let x = x.wrapping_add(blocks.start * INPUTS * 2);
        let below = x.wrapping_add(ROWS * stride);
        let is_last = blocks.end * INPUTS >= tile.k;
        let mut written =
            [0, 1].map(|panel| Written::new(&tile.y, row, panels.start + panel, *n_rows));
        let lines_per_block = if is_last { n_rows.div_ceil(2 * blocks.len().max(1)) } else { 0 };
        for (block, weights) in weights[..blocks.len()].iter().enumerate() {
            coming.prefetch();
            for _ in 0..lines_per_block {
                written[0].prefetch();
                written[1].prefetch();
            }
            let at = block * INPUTS * 2;
            tiles.load::<6>(weights[0].0.as_ptr(), ROW_BYTES);
            tiles.load::<4>(x.add(at), stride);
            tiles.dot_bf16::<0, 4, 6>();
            tiles.load::<7>(weights[1].0.as_ptr(), ROW_BYTES);
            tiles.dot_bf16::<1, 4, 7>();
            if IS_TALL {
                tiles.load::<5>(below.add(at), stride);
                tiles.dot_bf16::<2, 5, 6>();
                tiles.dot_bf16::<3, 5, 7>();
            }
        }
        macro_rules! end {
            ($tile:literal, $below:literal, $panel:literal) => {
                if !is_last {
                    let sums = &mut sums[$below][$panel];
                    tiles.store::<$tile>(sums.0.as_mut_ptr(), ROW_BYTES);
                } else if $panel < panels.len() {
                    let n_rows = if $below == 0 { (*n_rows).min(ROWS) } else { n_rows - ROWS };
                    let (row, panel) = (row + $below * ROWS, panels.start + $panel);
                    store::<$tile>(tiles, tile, row, n_rows, panel);
                }
            };
        }
        each_sum!(end);
    }
}

/// Writes the sums of tile `T`, which are `n_rows` rows of one panel.
///
/// # Safety
///
/// The rows and the panel are inside the tile.
#[inline(always)]
unsafe fn store<const T: u8>(
    tiles: &Tiles,
    tile: &Tile<'_, HalfRows<'_>>,
    row: usize,
    n_rows: usize,
    panel: usize,
) {
    // SAFETY: the caller vouches for the rows, and the last panel may have columns too many.
    unsafe {
        if let Some(to) = tile.y.whole_panel(row, panel) {
            tiles.store::<T>(to.cast(), tile.y.stride * 4);
            return;
        }
        let mut sums = [[0.0; PANEL]; ROWS];
        tiles.store::<T>(sums.as_mut_ptr().cast(), PANEL * 4);
        for (i, sums) in sums[..n_rows].iter().enumerate() {
            tile.y.store(row + i, panel, sums);
        }
    }
}

/// Puts the weights of some blocks of panel `panel` in order, as panel `at` of each block of `out`.
///
/// # Safety
///
/// The panel is inside the tile; this CPU has the features below.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn arrange_panel(
    tile: &Tile<'_, HalfRows<'_>>,
    panel: usize,
    at: usize,
    blocks: Range<usize>,
    out: &mut [[Stored; PANELS]],
) {
    const LAST_OF_PAIRS: __mmask32 = 0xAAAA_AAAA;
    let n_pairs = tile.k.div_ceil(2);
    // SAFETY: pairs are lines of 64 bytes, and those past the end are not read.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let line = |pair: usize| {
            if pair < n_pairs {
                _mm512_loadu_si512(w.add(pair * 64).cast())
            } else {
                _mm512_setzero_si512()
            }
        };
        for (block, out) in blocks.zip(out) {
            let rows = out[at].0.as_mut_ptr();
            for i in 0..INPUTS / 4 {
                let pair = block * INPUTS / 2 + i;
                let (first, last) = (line(pair), line(pair + INPUTS / 4));
                let seconds =
                    _mm512_mask_blend_epi16(LAST_OF_PAIRS, _mm512_srli_epi32::<16>(first), last);
                let firsts =
                    _mm512_mask_blend_epi16(LAST_OF_PAIRS, first, _mm512_slli_epi32::<16>(last));
                _mm512_store_si512(rows.add(2 * i * ROW_BYTES).cast(), seconds);
                _mm512_store_si512(rows.add((2 * i + 1) * ROW_BYTES).cast(), firsts);
            }
        }
    }
}

/// All of a tile of `MR` rows, `NR` panels at a time: floats and no tiles, the same sums.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn few_rows<const MR: usize, const NR: usize>(tile: &Tile<'_, HalfRows<'_>>) {
    let whole = tile.n_panels / NR * NR;
    // SAFETY: these panels are inside the tile.
    unsafe {
        for panel in (0..whole).step_by(NR) {
            few_rows_of::<MR, NR>(tile, panel);
        }
        for panel in whole..tile.n_panels {
            few_rows_of::<MR, 1>(tile, panel);
        }
    }
}

/// `MR` rows by `NR` panels.
///
/// # Safety
///
/// The tile has these rows and panels; this CPU has the features below.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn few_rows_of<const MR: usize, const NR: usize>(
    tile: &Tile<'_, HalfRows<'_>>,
    panel: usize,
) {
    let zero = [[_mm512_setzero_ps(); NR]; MR];
    let mut total = zero;
    let n_pairs = tile.k.div_ceil(2);
    // SAFETY: as in `arrange_panel`; rows are padded to whole blocks.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().cast::<u32>();
        for block in 0..tile.k.div_ceil(INPUTS) {
            let mut sums = [zero, zero];
            for half in 0..2 {
                // The bits of a float that a place of this half holds.
                let float = |places: u32| {
                    let bits = if half == 0 { places << 16 } else { places & 0xffff_0000 };
                    _mm512_set1_ps(f32::from_bits(bits))
                };
                let pairs = (block * 2 + half) * INPUTS / 4;
                for pair in pairs..n_pairs.min(pairs + INPUTS / 4) {
                    let mut weights = [[_mm512_setzero_ps(); 2]; NR];
                    for (nr, weights) in weights.iter_mut().enumerate() {
                        let at = w.add(nr * tile.panel_bytes + pair * 64);
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast());
                        let both = _mm512_loadu_si512(at.cast());
                        let seconds = _mm512_and_si512(both, _mm512_set1_epi32(-0x1_0000));
                        weights[0] = _mm512_castsi512_ps(seconds);
                        weights[1] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                    }
                    for (mr, sums) in sums[half].iter_mut().enumerate() {
                        let row = x.add(mr * tile.x.stride / 2 + block * INPUTS / 2);
                        for i in 0..2 {
                            let x = float(*row.add((pair - pairs) * 2 + i));
                            for (sum, weights) in sums.iter_mut().zip(&weights) {
                                *sum = _mm512_fmadd_ps(x, weights[i], *sum);
                            }
                        }
                    }
                }
            }
            for ((total, first), last) in total.iter_mut().zip(&sums[0]).zip(&sums[1]) {
                for ((total, first), last) in total.iter_mut().zip(first).zip(last) {
                    *total = _mm512_add_ps(*total, _mm512_add_ps(*first, *last));
                }
            }
        }
        for (mr, total) in total.iter().enumerate() {
            for (nr, total) in total.iter().enumerate() {
                let mut values = [0.0; PANEL];
                _mm512_storeu_ps(values.as_mut_ptr(), *total);
                tile.y.store(mr, panel + nr, &values);
            }
        }
    }
}

/// Puts each 32 activations in the order that the product reads.
///
/// # Safety
///
/// This CPU has the features below.
///
/// # Panics
///
/// When `x` is not whole blocks of 32.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::ops) unsafe fn arrange(x: &mut [u16]) {
    /// Input of each place.
    const ORDER: [u16; INPUTS] = {
        let mut order = [0; INPUTS];
        let mut place = 0;
        while place < INPUTS {
            order[place] = ((place / 2) ^ 1) as u16 + (place % 2 * INPUTS / 2) as u16;
            place += 1;
        }
        order
    };
    let (blocks, rest) = x.as_chunks_mut::<INPUTS>();
    assert!(rest.is_empty(), "invariant: rows are padded to whole blocks");
    for block in blocks {
        // SAFETY: a block and the order are 64 bytes each.
        unsafe {
            let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
            let ordered =
                _mm512_permutexvar_epi16(order, _mm512_loadu_si512(block.as_ptr().cast()));
            _mm512_storeu_si512(block.as_mut_ptr().cast(), ordered);
        }
    }
}
