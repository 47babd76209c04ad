//! Integer dot products on tile registers (Intel AMX): 16 rows by 16 outputs by a group of 32 inputs
//! in one instruction.
//!
//! ```text
//! scales of the rows, 16 rows side by side                         once per call
//! for each panel, for each chunk of 16 rows, for each group g:     one walk, without a break
//!     group g + 8   weights as signed bytes, scales, biases        by the first chunk, for all of them
//!     group g + 4   C = A · B     tile: rows [16, 32] by weights [32, 16], exact, in 32 bits
//!     group g + 2   memory = C
//!     group g       acc[row] = fma(C[row] as f32, sx[row] * sw, acc[row])        registers
//!                   acc[row] = fma(sx[row] * sum[row], bias, acc[row])           where BIAS
//! ```
//!
//! The sums are exact and what is done with them is what the loop of the parent does, so the bits are
//! the same. Memory is the only way out of a tile, so several groups are under way; the walk goes on
//! from chunk to chunk and from panel to panel, so it starts once per call. Unpacked groups stay in
//! the first-level cache until the last chunk is past them. A last chunk of fewer than 16 rows begins
//! in the one before it, whose rows get the same bits again.
//!
//! While a panel is multiplied the next one is prefetched ([`Coming`]); without that, memory and
//! arithmetic take turns (GOP/s at 64 rows of two threads, Q8_0 [2048, 8192]: 909 in place of 1080).
//! The lines of the outputs are, too ([`Written`]): the 16 stores of a chunk go to as many rows, whose
//! lines another thread may have read last.
//!
//! A group of 16 rows and 16 outputs, in ns, on one of two threads of a Granite Rapids, Q8_0, in a
//! program of its own. From memory at 16 rows: 60 (28 groups of inputs) and 59 (152), where unpacking a
//! whole panel, then multiplying it, takes 75 and 78; memory alone takes 43, all else 33. At 320 rows:
//! 28 and 23, where a start for each chunk takes 34 and 27; the product takes 4.6 of these, to write it
//! 4.3, to read rows and weights 3.4, the floats 8. (While a product is under way, AVX-512 does one
//! multiply-add per cycle and not two.)
//!
//! Tried and dropped: unpacking right before the product (38 in place of 33: a tile that is read after
//! its bytes were written waits for them); more places for unpacked groups than needed at 16 rows
//! (4 to 10 % slower: rows leave the first-level cache); prefetching 1 to 64 KiB ahead, to the first
//! or the second level (59 to 65 from memory; a panel ahead 60); state of the walk in memory and not
//! in registers (prompts 8 % slower); turning scales by shuffles and not by gathers (no difference);
//! chunks of the inputs that stay in the first-level cache.
//!
//! Considered and not taken: bf16 tiles of the same integers (their sums would come out as floats,
//! for twice the bytes of rows and weights).

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::marker::PhantomData;

use super::{Kernel, Tile, avx512vnni, is_bytes, wide_tiles};
use crate::layout::int::{Block, Bytes, IntLayout, Range};
use crate::layout::{GROUP, PANEL};
use crate::ops::matmul::coming::Coming;
use crate::ops::matmul::pairs_of_tiles::Written;
use crate::ops::quantize::IntRows;
use crate::simd::tiles::{Form, ROW_BYTES, ROWS, Tiles};
use crate::simd::{Avx512, Simd};

/// Rows of the smaller kernel.
const FEW: usize = 8;
/// Groups whose sums have a place in memory.
const UNDER_WAY: usize = 4;
/// Groups whose weights are unpacked before the one that is scaled. A tile that is read right after
/// its bytes were written waits for them.
const LEAD: usize = 8;

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
    /// Of groups in the order in which they are multiplied; the place after the last is the first.
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

/// The kernel of a layout for many rows, and the rows from which it is faster. Scales of 16 inputs
/// would leave three quarters of a tile unused, so such layouts keep `vpdpbusd`. Weights of a byte
/// each are read for so long that tiles take no time beside it at a few rows; smaller ones are
/// multiplied faster by `vpdpbusd`.
pub(in crate::ops::matmul) fn kernel<L: IntLayout>() -> (usize, Kernel) {
    if L::SPLIT {
        return (0, avx512vnni::<L>);
    }
    (if is_bytes::<L>() { FEW / 2 } else { FEW + 1 }, tile::<L>)
}

/// # Safety
///
/// This CPU has the features below, and tiles are supported.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tile<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    if L::SCALE_LEN > GROUP && tile.x.group > GROUP {
        // SAFETY: the caller vouches for the CPU.
        return unsafe {
            match tile.m {
                ..ROWS => avx512vnni::<L>(tile),
                _ => wide_tiles::tile::<L>(tile),
            }
        };
    }
    let n_groups = tile.k / GROUP;
    let n_chunks = tile.m.div_ceil(ROWS);
    SCRATCH.with_borrow_mut(|scratch| {
        // Places of the groups ahead, some of which may be the one that makes a panel's even. One
        // chunk of rows needs a group once.
        let n_ahead = even(LEAD + LEAD.div_ceil(n_groups) + 2);
        let n_kept = n_ahead + if n_chunks == 1 { LEAD } else { even(n_groups) };
        let zeros = Floats([0.0; 16]);
        grow(&mut scratch.weights, n_kept, Weights([0; GROUP * PANEL]));
        grow(&mut scratch.scales, n_kept, zeros);
        grow(&mut scratch.sums, UNDER_WAY, Sums([[0; PANEL]; ROWS]));
        grow(&mut scratch.row_scales, n_chunks * n_groups, zeros);
        if L::BIAS {
            grow(&mut scratch.biases, n_kept, zeros);
            grow(&mut scratch.row_sums, n_chunks * n_groups, zeros);
        }
        let row_scale = match (L::ROW_SCALE, L::ROW_DIVIDES) {
            (false, _) => RowScale::None,
            (true, false) => RowScale::Multiplies,
            (true, true) => RowScale::Divides,
        };
        // SAFETY: the caller vouches for tiles, and none are alive in this thread; the panels and
        // the rows are the tile's, and `scratch` has room for both.
        unsafe {
            turn_rows::<L>(tile, scratch);
            let groups = Groups {
                n_kept,
                weights: scratch.weights.as_mut_ptr(),
                scales: scratch.scales.as_mut_ptr(),
                biases: scratch.biases.as_mut_ptr(),
            };
            let sums = scratch.sums.as_mut_ptr();
            let mut unpacker = Unpacker::new::<L>(tile, groups);
            unpack::<L>(&mut unpacker, LEAD);
            let mut walk = Walk::begin(tile, scratch, groups, sums);
            for panel in 0..tile.n_panels {
                let mut coming = coming(tile, panel);
                let at = |chunk| Place { chunk, panel, row_scale };
                if is_bytes::<L>() && tile.m <= FEW {
                    first_chunk::<L, FEW>(&mut walk, &mut unpacker, at(0), &mut coming);
                } else {
                    first_chunk::<L, ROWS>(&mut walk, &mut unpacker, at(0), &mut coming);
                }
                for chunk in 1..n_chunks {
                    let is_last = chunk + 1 == n_chunks;
                    if is_last {
                        unpack::<L>(&mut unpacker, LEAD.min(n_groups));
                    }
                    let is_few = is_last && tile.m - chunk * ROWS <= FEW;
                    let run = match (L::BIAS, is_few) {
                        (false, false) => other_chunk::<false, ROWS, 0>,
                        (false, true) => other_chunk::<false, FEW, { ROWS - FEW }>,
                        (true, false) => other_chunk::<true, ROWS, 0>,
                        (true, true) => other_chunk::<true, FEW, { ROWS - FEW }>,
                    };
                    run(&mut walk, at(chunk), &mut coming);
                }
            }
        }
    });
}

fn grow<T: Clone>(data: &mut Vec<T>, n: usize, value: T) {
    if data.len() < n {
        data.resize(n, value);
    }
}

/// Groups of a chunk or panel with the one that may make them pairs.
fn even(n_groups: usize) -> usize {
    n_groups.next_multiple_of(2)
}

/// The first row of a chunk: the last one begins before the end of the one before it, if need be.
fn first_row(m: usize, chunk: usize) -> usize {
    (chunk * ROWS).min(m.saturating_sub(ROWS))
}

/// Puts the scales of 16 rows side by side, and where there are biases the sums of their
/// activations.
///
/// # Safety
///
/// `scratch` has room for them; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn turn_rows<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>, scratch: &mut Scratch) {
    let n_groups = tile.k / GROUP;
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let index = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(n_groups as i32));
    let pairs = _mm512_slli_epi32::<1>(index);
    let mask = ((1_u32 << ROWS.min(tile.m)) - 1) as __mmask16;
    // Gathers with a mask of all lanes are slower (a narrow product of 320 rows by a tenth).
    let is_whole = tile.m >= ROWS;
    for chunk in 0..tile.m.div_ceil(ROWS) {
        let at = first_row(tile.m, chunk) * n_groups;
        let (scales, sums) = (tile.x.scales[at..].as_ptr(), tile.x.sums[at..].as_ptr());
        for group in 0..n_groups {
            // SAFETY: the lanes of the mask, or all, are rows of the tile.
            unsafe {
                let from = scales.add(group).cast();
                let scales = match is_whole {
                    true => _mm512_i32gather_ps::<4>(index, from),
                    false => _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), mask, index, from),
                };
                let out = scratch.row_scales[chunk * n_groups + group].0.as_mut_ptr();
                _mm512_store_ps(out, scales);
                if L::BIAS {
                    let zero = _mm512_setzero_si512();
                    let halves = [0, 1].map(|half| {
                        let from = sums.add(group).cast::<i32>().add(half);
                        match is_whole {
                            true => _mm512_i32gather_epi32::<4>(pairs, from),
                            false => _mm512_mask_i32gather_epi32::<4>(zero, mask, pairs, from),
                        }
                    });
                    let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(halves[0], halves[1]));
                    let out = scratch.row_sums[chunk * n_groups + group].0.as_mut_ptr();
                    _mm512_store_ps(out, _mm512_mul_ps(scales, sum));
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

/// The places of unpacked groups. A panel takes an even number of them.
#[derive(Clone, Copy)]
struct Groups {
    /// An even number.
    n_kept: usize,
    weights: *mut Weights,
    scales: *mut Floats,
    biases: *mut Floats,
}

impl Groups {
    /// The place after some more groups.
    fn after(&self, place: usize, n_groups: usize) -> usize {
        (place + n_groups) % self.n_kept
    }
}

/// Takes the groups of all panels, one after the other, to the places where they are multiplied.
struct Unpacker {
    groups: Groups,
    /// Place of the next group.
    next: usize,
    /// The block of the next group, and its place in it.
    block: *const u8,
    in_block: usize,
    /// The head of the block, as the layout reads it.
    head: [__m512; 2],
    /// Groups left of the panel, and panels.
    n_left: usize,
    n_panels: usize,
    n_groups: usize,
    /// Bytes from the end of the blocks of a panel to those of the next one.
    gap: usize,
}

impl Unpacker {
    /// Begins at the first panel.
    ///
    /// # Safety
    ///
    /// This CPU has the features below.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn new<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>, groups: Groups) -> Self {
        let n_groups = tile.k / GROUP;
        let before = if L::ROW_SCALE { PANEL * 4 } else { 0 };
        Self {
            groups,
            next: 0,
            block: tile.w.as_ptr().wrapping_add(before),
            in_block: 0,
            head: [_mm512_setzero_ps(); 2],
            n_left: n_groups,
            n_panels: tile.n_panels,
            n_groups,
            gap: tile.panel_bytes - tile.k / L::LEN * L::BLOCK_BYTES,
        }
    }

    /// Unpacks the next group, if there is one.
    ///
    /// # Safety
    ///
    /// The place of the group is free; the CPU has AVX-512.
    #[inline(always)]
    unsafe fn unpack<L: IntLayout>(&mut self) {
        if self.n_panels == 0 {
            return;
        }
        let zero = match L::RANGE {
            Range::Signed => -128,
            Range::Unsigned { zero, .. } => zero,
        };
        // SAFETY: the caller vouches for the CPU; blocks lie within their panel, and places within
        // those kept.
        unsafe {
            let s = Avx512::assume();
            let zero = _mm512_set1_epi8(zero as i8);
            let block = Block::new(self.block);
            if self.in_block == 0 {
                self.head = L::head(s, block);
            }
            let out = self.groups.weights.add(self.next).cast::<u8>();
            for pair in 0..GROUP / 8 {
                for (quad, w) in L::weights(s, block, self.in_block, pair).into_iter().enumerate() {
                    let out = out.add((pair * 2 + quad) * 64);
                    _mm512_store_si512(out.cast(), _mm512_sub_epi8(w, zero));
                }
            }
            let scale = L::scale(s, &self.head, block, self.in_block, 0);
            _mm512_store_ps(self.groups.scales.add(self.next).cast(), scale);
            if L::BIAS {
                let bias = L::bias(s, &self.head, block, self.in_block, 0);
                _mm512_store_ps(self.groups.biases.add(self.next).cast(), bias);
            }
        }
        self.next = if self.next + 1 == self.groups.n_kept { 0 } else { self.next + 1 };
        self.in_block += 1;
        if self.in_block == L::LEN / GROUP {
            (self.block, self.in_block) = (self.block.wrapping_add(L::BLOCK_BYTES), 0);
        }
        self.n_left -= 1;
        if self.n_left == 0 {
            self.next = self.groups.after(self.next, self.n_groups % 2);
            self.block = self.block.wrapping_add(self.gap);
            (self.n_left, self.n_panels) = (self.n_groups, self.n_panels - 1);
        }
    }
}

/// Unpacks the next `n` groups.
///
/// # Safety
///
/// Their places are free; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<L: IntLayout>(unpacker: &mut Unpacker, n: usize) {
    for _ in 0..n {
        // SAFETY: as above.
        unsafe { unpacker.unpack::<L>() };
    }
}

/// The path of the groups of all chunks and panels through the tiles. It does not end with a chunk:
/// while its last groups are scaled, the first of the next chunk are multiplied.
///
/// A chunk has an even number of groups here; the sums of one too many are not read.
struct Walk<'a> {
    tiles: Tiles,
    tile: &'a Tile<'a, IntRows<'a>>,
    scratch: &'a Scratch,
    groups: Groups,
    sums: *mut Sums,
    /// Place of the sums of the next group to be scaled: 0 or 2.
    turn: usize,
    /// Place of the first group of the panel that is scaled.
    first: usize,
    /// The next groups to be multiplied, their chunk, and the place of the first group of its panel.
    next: Next,
    chunk: usize,
    first_next: usize,
}

/// Groups of rows and of weights that are multiplied one after the other.
#[derive(Clone, Copy)]
struct Next {
    x: *const u8,
    place: usize,
    /// How many are left of the chunk, an even number.
    n_left: usize,
}

/// A chunk of rows by one panel.
#[derive(Clone, Copy)]
struct Place {
    chunk: usize,
    panel: usize,
    row_scale: RowScale,
}

impl<'a> Walk<'a> {
    /// Multiplies the first four groups.
    ///
    /// # Safety
    ///
    /// As [`tile`]; the first groups are unpacked, and scales of rows turned.
    unsafe fn begin(
        tile: &'a Tile<'a, IntRows<'a>>,
        scratch: &'a Scratch,
        groups: Groups,
        sums: *mut Sums,
    ) -> Self {
        // Tiles 0 and 1 are sums, 4 and 5 rows, 6 and 7 weights.
        let n_rows = ROWS.min(tile.m);
        let (results, rows) = ((n_rows, ROW_BYTES), (n_rows, GROUP));
        let weights = (GROUP / 4, ROW_BYTES);
        let form = Form::new([results, results, (0, 0), (0, 0), rows, rows, weights, weights]);
        let n_left = even(tile.k / GROUP);
        let mut walk = Self {
            // SAFETY: the caller vouches for tiles; none are alive.
            tiles: unsafe { Tiles::of(form) },
            tile,
            scratch,
            groups,
            sums,
            turn: 2,
            first: 0,
            next: Next { x: tile.x.values.as_ptr().cast(), place: 0, n_left },
            chunk: 0,
            first_next: 0,
        };
        // SAFETY: as above.
        unsafe {
            walk.two();
            walk.tiles.store::<0>(sums.cast(), PANEL * 4);
            walk.tiles.store::<1>(sums.add(1).cast(), PANEL * 4);
            walk.two();
        }
        walk.turn = 0;
        walk
    }

    /// Multiplies two groups.
    ///
    /// # Safety
    ///
    /// They are unpacked.
    unsafe fn two(&mut self) {
        let (stride, Next { x, place, n_left }) = (self.tile.x.stride, self.next);
        // SAFETY: rows are the tile's, padded to pairs of groups; the places are two of those kept.
        unsafe {
            let weights = self.groups.weights.add(place);
            self.dot::<0, 4, 6>(x, stride, weights);
            self.dot::<1, 5, 7>(x.add(GROUP), stride, weights.add(1));
        }
        self.advance(Next { x: x.wrapping_add(2 * GROUP), place: place + 2, n_left: n_left - 2 });
    }

    /// Multiplies a group.
    ///
    /// # Safety
    ///
    /// Both are there.
    #[inline(always)]
    unsafe fn dot<const SUMS: u8, const OF_ROWS: u8, const OF_WEIGHTS: u8>(
        &mut self,
        x: *const u8,
        stride: usize,
        weights: *const Weights,
    ) {
        // SAFETY: the caller vouches for both.
        unsafe {
            self.tiles.load::<OF_ROWS>(x, stride);
            self.tiles.load::<OF_WEIGHTS>(weights.cast(), ROW_BYTES);
        }
        self.tiles.zero::<SUMS>();
        self.tiles.dot_int8::<SUMS, OF_ROWS, OF_WEIGHTS>();
    }

    /// Sets the next groups: these, or if they are behind the end of the places or the chunk, what
    /// comes then. After the last chunk it is one that is there.
    fn advance(&mut self, next: Next) {
        self.next = next;
        if next.n_left == 0 {
            let n_groups = even(self.tile.k / GROUP);
            self.chunk += 1;
            if self.chunk * ROWS >= self.tile.m {
                self.chunk = 0;
                self.first_next = self.groups.after(self.first_next, n_groups);
            }
            let row = first_row(self.tile.m, self.chunk);
            let x = self.tile.x.values.as_ptr().wrapping_add(row * self.tile.x.stride).cast();
            self.next = Next { x, place: self.first_next, n_left: n_groups };
        } else if next.place == self.groups.n_kept {
            self.next.place = 0;
        }
    }

    /// `MR` rows of a chunk after the first `SKIPPED` by one panel, while `ahead` unpacks a group for each
    /// of its groups.
    ///
    /// # Safety
    ///
    /// The chunk and the panel come next; the CPU has AVX-512.
    #[inline(always)]
    unsafe fn chunk<const BIAS: bool, const MR: usize, const SKIPPED: usize>(
        &mut self,
        Place { chunk, panel, row_scale }: Place,
        coming: &mut Coming<1>,
        mut ahead: impl Ahead,
    ) {
        let n_groups = self.tile.k / GROUP;
        let (stride, sums, groups) = (self.tile.x.stride, self.sums, self.groups);
        // SAFETY: the chunk and the panel are inside the tile, and `scratch` has what belongs to both.
        unsafe {
            let s = Avx512::assume();
            let of_chunk = chunk * n_groups;
            let mut row_scales = self.scratch.row_scales.as_ptr().add(of_chunk);
            let mut row_sums = self.scratch.row_sums.as_ptr().wrapping_add(of_chunk);
            let (mut turn, mut place) = (self.turn, self.first);
            let mut acc = [s.splat(0.0); MR];
            let mut n_left = n_groups;
            let row = first_row(self.tile.m, chunk) + SKIPPED;
            let mut written = Written::new(&self.tile.y, row, panel, MR);
            while n_left > 0 {
                // Pairs until the places or a chunk end, and the last group of an odd number alone.
                let Next { mut x, place: next, n_left: n_next } = self.next;
                let until_end = n_next.min(groups.n_kept - next).min(groups.n_kept - place);
                let is_pair = n_left > 1;
                let n_pairs = if is_pair { until_end.min(n_left) / 2 } else { 1 };
                let mut weights = groups.weights.add(next);
                let mut scales = groups.scales.add(place);
                let mut biases = groups.biases.wrapping_add(place);
                macro_rules! scale {
                    ($turn:expr) => {
                        let isums = sums.add($turn).cast::<i32>().add(SKIPPED * PANEL);
                        let sw = _mm512_load_ps(scales.cast());
                        let sx = row_scales.cast::<f32>().add(SKIPPED);
                        for (mr, acc) in acc.iter_mut().enumerate() {
                            let isum = _mm512_load_si512(isums.add(mr * PANEL).cast());
                            let scale = s.mul(s.splat(*sx.add(mr)), sw);
                            *acc = s.fma(_mm512_cvtepi32_ps(isum), scale, *acc);
                        }
                        scales = scales.wrapping_add(1);
                        row_scales = row_scales.wrapping_add(1);
                        if BIAS {
                            let bias = _mm512_load_ps(biases.cast());
                            let sums = row_sums.cast::<f32>().add(SKIPPED);
                            for (mr, acc) in acc.iter_mut().enumerate() {
                                *acc = s.fma(s.splat(*sums.add(mr)), bias, *acc);
                            }
                            biases = biases.wrapping_add(1);
                            row_sums = row_sums.wrapping_add(1);
                        }
                    };
                }
                for _ in 0..n_pairs {
                    coming.prefetch();
                    written.prefetch();
                    let to = sums.add(turn ^ 2);
                    self.tiles.store::<0>(to.cast(), PANEL * 4);
                    self.tiles.store::<1>(to.add(1).cast(), PANEL * 4);
                    ahead.unpack();
                    self.dot::<0, 4, 6>(x, stride, weights);
                    scale!(turn);
                    if is_pair {
                        ahead.unpack();
                    }
                    self.dot::<1, 5, 7>(x.wrapping_add(GROUP), stride, weights.wrapping_add(1));
                    if is_pair {
                        scale!(turn + 1);
                    }
                    turn ^= 2;
                    x = x.wrapping_add(2 * GROUP);
                    weights = weights.wrapping_add(2);
                }
                let n = 2 * n_pairs;
                n_left = n_left.saturating_sub(n);
                place = groups.after(place, n);
                self.advance(Next { x, place: next + n, n_left: n_next - n });
            }
            self.turn = turn;
            if (chunk + 1) * ROWS >= self.tile.m {
                self.first = place;
            }
            let scales = Block::new(self.tile.w.as_ptr().add(panel * self.tile.panel_bytes));
            // Tiles of fewer rows leave old numbers in the sums of the others.
            for (mr, acc) in acc.into_iter().enumerate() {
                if mr >= self.tile.m {
                    break;
                }
                let acc = match row_scale {
                    RowScale::None => acc,
                    RowScale::Multiplies => s.mul(acc, s.floats(scales.at(0))),
                    RowScale::Divides => s.div(acc, s.floats(scales.at(0))),
                };
                let mut values = [0.0; PANEL];
                s.store(acc, &mut values);
                self.tile.y.store(row + mr, panel, &values);
            }
        }
    }
}

/// The first `MR` rows by one panel, whose groups are unpacked on the way, and where it is the only
/// one, those of the next panel after them.
///
/// # Safety
///
/// The chunk comes next, and its first groups are unpacked; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn first_chunk<L: IntLayout, const MR: usize>(
    walk: &mut Walk<'_>,
    unpacker: &mut Unpacker,
    at: Place,
    coming: &mut Coming<1>,
) {
    let is_only = walk.tile.m <= ROWS;
    let last_panels = if is_only { 0 } else { walk.tile.n_panels - at.panel };
    // SAFETY: the caller vouches for the CPU and the order; the places of groups that are scaled are
    // free, and while there are more chunks, there is a place for each group of the panel.
    unsafe {
        let ahead = Unpacking { unpacker, last_panels, layout: PhantomData::<L> };
        match L::BIAS {
            false => walk.chunk::<false, MR, 0>(at, coming, ahead),
            true => walk.chunk::<true, MR, 0>(at, coming, ahead),
        }
    }
}

/// Work beside a chunk. (A trait and not a closure, which would be called and not inlined.)
trait Ahead {
    /// Unpacks the next group, if it is time.
    ///
    /// # Safety
    ///
    /// A place for it is free; the CPU has AVX-512.
    unsafe fn unpack(&mut self);
}

/// All groups are unpacked.
struct Nothing;

impl Ahead for Nothing {
    #[inline(always)]
    unsafe fn unpack(&mut self) {}
}

/// Groups of a layout are unpacked while no fewer panels than these are left.
struct Unpacking<'a, L> {
    unpacker: &'a mut Unpacker,
    last_panels: usize,
    layout: PhantomData<L>,
}

impl<L: IntLayout> Ahead for Unpacking<'_, L> {
    #[inline(always)]
    unsafe fn unpack(&mut self) {
        if self.unpacker.n_panels >= self.last_panels {
            // SAFETY: as above.
            unsafe { self.unpacker.unpack::<L>() };
        }
    }
}

/// `MR` rows of another chunk after the first `SKIPPED` by one panel.
///
/// # Safety
///
/// The chunk comes next; this CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn other_chunk<const BIAS: bool, const MR: usize, const SKIPPED: usize>(
    walk: &mut Walk<'_>,
    at: Place,
    coming: &mut Coming<1>,
) {
    // SAFETY: as above.
    unsafe { walk.chunk::<BIAS, MR, SKIPPED>(at, coming, Nothing) }
}
