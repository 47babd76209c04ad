//! One chunk of 256 positions for the query rows of one item.
//!
//! ```text
//! flat rows    row 0 head 0 | row 0 head 1 | .. | row 1 head 0 | ..       q: [n_flat][key_dim]
//! scores       |16 spare|256 positions of the chunk|16 spare|             one such line per flat row
//!
//! 1. scores    of every position that a row sees; its slope, if any          (score.rs)
//! 2. softmax   per flat row, over its visible positions [low, high)         (softmax.rs)
//! 3. values    weighted and added, in blocks of positions    (weigh.rs, weigh_keys.rs)
//! ```
//!
//! The columns of a line are the positions that keys *count as*. Without a tree of drafts these are
//! their positions in the cache. With a tree, the same holds below the sequence's first row
//! (`dense` columns); above, each row has the keys of its own path there.
//!
//! ```text
//! column    0 ............... dense ........ high
//!           shared by all rows | the row's path         both in the same line and order
//! ```
//!
//! The spare ends take the lanes of a group that begins before the chunk or ends after it, which
//! happens only when the block size is no multiple of 16. Groups ascend, so the padding lanes of a
//! short block are overwritten by the next block; what stays outside `[low, high)` is masked.
//!
//! Per position and KV head: a key and a value loaded once per 16 flat rows, two operations for
//! each of their elements and flat row; 8 loads for 16 fused operations in the inner loops
//! (AVX-512), and 1 to 4 prefetches (`coming.rs`). Further operations per sixteen loaded elements:
//! none for f32, 1 for f16 and bf16 (2 in AVX2), 2 for int8, 8 for fp8. int8 takes two more
//! products per position and flat row, for its scales.
//!
//! The steps are functions of their own ([`Simd::apart`]) where several places use them or where
//! they do not depend on the element type, so that each is compiled once.

use std::ops::Range;

use bytemuck::cast_slice;
use half::{bf16, f16};

use super::coming::{Coming, Prefetches};
use super::input::{DistanceBias, first_seen};
use super::merge::{State, States};
use super::score::{KeyGroup, add_bias, add_slope, score, score_path};
use super::softmax::{BeforeScales, Largest, Rounded, Weights, Whole};
use super::tree::{Path, Tree};
use super::weigh::{scale_weights, weigh};
use super::weigh_keys::weigh_keys;
use super::{BLOCK, CHUNK};
use crate::ops::kv::{KvElement, KvShape};
use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Floats of one line of scores.
pub(super) const SCORE_LINE: usize = LANES + CHUNK + LANES;

/// Lines of scores whose maxima are taken together, while they are in the first-level cache.
pub(super) const LINES: usize = 8;

/// One chunk of one item.
pub(super) struct Chunk<'a, T> {
    /// Queries `[n_flat, key_dim]`, flat rows being (row, head of the item); times the scale and
    /// rounded to bf16, where products are those of bf16.
    pub(super) q: &'a [f32],
    /// Heads of the item, which share the KV head.
    pub(super) group: usize,
    /// Position of row 0; without a tree, row `i` is at `position + i`.
    pub(super) position: usize,
    /// The tree that the rows belong to.
    pub(super) tree: Option<Tree<'a>>,
    /// First position of the chunk, a multiple of [`CHUNK`].
    pub(super) start: usize,
    /// Most positions that a row sees up to itself.
    pub(super) window: Option<usize>,
    /// Most positions after itself that a row sees.
    pub(super) ahead: usize,
    /// The first position after the sequence.
    pub(super) seq_end: usize,
    /// Length of a segment; a row sees only positions of its own segment.
    pub(super) segment: Option<usize>,
    /// Factor of the scores, unless the queries have it.
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    /// Slopes of the heads of the item.
    pub(super) slopes: Option<&'a [f32]>,
    /// Biases of the heads of the item.
    pub(super) bias: Option<DistanceBias<'a>>,
    /// The layer's pages.
    pub(super) pages: &'a [T],
    pub(super) shape: &'a KvShape,
    pub(super) block_table: &'a [u32],
    pub(super) kv_head: usize,
    pub(super) prefetches: Prefetches<'a>,
}

impl<'a, T: KvElement> Chunk<'a, T> {
    pub(super) fn n_flat(&self) -> usize {
        self.q.len() / self.shape.key_dim
    }

    /// Columns that flat row `flat` sees; `low <= high`.
    #[inline(always)]
    pub(super) fn visible(&self, flat: usize) -> (usize, usize) {
        let row = flat / self.group;
        let own_end = self.tree.map_or(self.position + row + 1, |tree| tree.end(row));
        let first = first_seen(self.window, self.segment, own_end);
        let end = own_end.saturating_add(self.ahead).min(self.seq_end);
        let high = end.saturating_sub(self.start).min(CHUNK);
        (first.saturating_sub(self.start).min(high), high)
    }

    /// The columns from the first to the last that any of these flat rows sees; none where
    /// `low >= high`.
    pub(super) fn seen(&self, flats: Range<usize>) -> (usize, usize) {
        let (mut low, mut high) = (CHUNK, 0);
        for row in flats.start / self.group..flats.end.div_ceil(self.group) {
            let (row_low, row_high) = self.visible(row * self.group);
            if row_low < row_high {
                low = low.min(row_low);
                high = high.max(row_high);
            }
        }
        (low, high)
    }

    /// Number of leading columns whose keys lie at the positions that they count as.
    #[inline(always)]
    pub(super) fn dense(&self) -> usize {
        self.tree.map_or(CHUNK, |tree| tree.first_position.saturating_sub(self.start).min(CHUNK))
    }

    /// Whether a kernel can compute the chunk that needs `least` flat rows, and keys and values in whole
    /// blocks which all rows share. Rows see the first `high` columns.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_blocks_for(&self, least: usize, high: usize) -> bool {
        self.n_flat() >= least && has_blocks(self.shape) && high <= self.dense()
    }

    /// First column from which on a row with a path takes its values alone: that of the block in
    /// which paths begin.
    #[inline(always)]
    fn first_of_paths(&self) -> usize {
        if self.tree.is_some() { self.dense() / BLOCK * BLOCK } else { CHUNK }
    }

    /// Columns that flat row `flat` sees and whose values other rows may share.
    #[inline(always)]
    pub(super) fn shared_columns(&self, flat: usize) -> Range<usize> {
        let (low, high) = self.visible(flat);
        let has_path = high > self.dense();
        let end = if has_path { high.min(self.first_of_paths()) } else { high };
        low.min(end)..end
    }

    /// Columns of the blocks that hold the path of flat row `flat`, which has one.
    #[inline(always)]
    pub(super) fn path_blocks(&self, flat: usize) -> Range<usize> {
        let (low, high) = self.visible(flat);
        low.max(self.first_of_paths())..high
    }

    /// Position in the cache of the value of `column`, for a row with this path.
    #[inline(always)]
    pub(super) fn position_of(&self, path: Option<&Path>, column: usize) -> usize {
        match (path, &self.tree) {
            (Some(path), Some(tree)) if column >= path.columns.start => {
                tree.first_position + path.rows()[column - path.columns.start] as usize
            }
            _ => self.start + column,
        }
    }

    /// The path of `row` in this chunk, if there is any of it.
    pub(super) fn path(&self, row: usize) -> Option<Path> {
        let tree = self.tree?;
        let (low, high) = self.visible(row * self.group);
        let low = low.max(self.dense());
        (low < high).then(|| tree.path(row, self.start, low..high))
    }

    /// Block of the cache that holds `position`, and its place in there.
    #[inline(always)]
    fn place(&self, position: usize) -> (usize, usize) {
        let block_size = self.shape.block_size;
        (self.block_table[position / block_size] as usize, position % block_size)
    }

    /// The key group that holds the key at `position` of the cache.
    #[inline(always)]
    pub(super) fn key_group(&self, position: usize) -> KeyGroup<'a, T> {
        let shape = self.shape;
        let (block, place) = self.place(position);
        let first = place / LANES * LANES;
        let keys = &self.pages[shape.key_group(block, self.kv_head, place)];
        let scales = T::HAS_SCALES.then(|| {
            let scales = shape.key_scales(block, self.kv_head, first..first + LANES);
            let scales = cast_slice(&self.pages[scales]).first_chunk();
            scales.expect("invariant: scales are padded to whole groups")
        });
        KeyGroup {
            keys: keys.as_chunks().0,
            scales,
            first: position - (place - first),
            next: position - place + (first + LANES).min(shape.block_size),
        }
    }

    /// Bytes from the keys of `group` to the next data read for its tokens: their values, or the
    /// coming keys where values are in the keys.
    #[inline(always)]
    pub(super) fn after_keys(&self, group: &KeyGroup<'_, T>) -> usize {
        let keys = group.keys.as_ptr().cast();
        if self.shape.values_in_keys {
            return self.to_coming(keys, group.first.max(self.start));
        }
        match self.prefetches {
            Prefetches::Columns(_) => self.to_values(keys, group.first),
            Prefetches::Values => {
                let last_block = (self.end() - 1) / BLOCK * BLOCK;
                let place = group.first.checked_sub(last_block);
                place.map_or(0, |place| self.to_values(keys, self.start + place))
            }
        }
    }

    /// First position after the chunk or the sequence.
    #[inline(always)]
    fn end(&self) -> usize {
        self.seq_end.min(self.start + CHUNK)
    }

    /// Bytes from `address` to the value at `position` of the cache.
    #[inline(always)]
    fn to_values(&self, address: *const u8, position: usize) -> usize {
        let (block, place) = self.place(position);
        self.bytes_from(address, self.shape.values(block, self.kv_head, place..place).start)
    }

    /// Bytes from `address`, a value at `position` or what is read for it last, to what is
    /// prefetched beside it; 0 where that is nothing.
    #[inline(always)]
    pub(super) fn to_coming(&self, address: *const u8, position: usize) -> usize {
        match &self.prefetches {
            Prefetches::Columns(None) => 0,
            Prefetches::Columns(Some(coming)) => coming
                .key(self.shape, position - self.start)
                .map_or(0, |element| self.bytes_from(address, element)),
            Prefetches::Values if position + BLOCK < self.end() => {
                self.to_values(address, position + BLOCK)
            }
            Prefetches::Values => 0,
        }
    }

    /// Prefetches the scales of the values at `position` of the cache and after it, where the type
    /// has any.
    #[inline(always)]
    pub(super) fn prefetch_value_scales<S: Simd>(&self, s: S, position: usize) {
        if T::HAS_SCALES {
            let (block, place) = self.place(position);
            self.prefetch(s, self.shape.value_scales(block, self.kv_head, place..place).start);
        }
    }

    /// Prefetches the scales of the coming keys of the column of `position`, where the type has
    /// any.
    #[inline(always)]
    pub(super) fn prefetch_coming_scales<S: Simd>(&self, s: S, position: usize) {
        self.prefetch_coming(s, position, Coming::key_scales);
    }

    /// Prefetches the scales of the coming values, likewise.
    #[inline(always)]
    pub(super) fn prefetch_coming_value_scales<S: Simd>(&self, s: S, position: usize) {
        self.prefetch_coming(s, position, Coming::value_scales);
    }

    #[inline(always)]
    fn prefetch_coming<S: Simd>(
        &self,
        s: S,
        position: usize,
        find: fn(&Coming<'a>, &KvShape, usize) -> Option<usize>,
    ) {
        if T::HAS_SCALES
            && let Prefetches::Columns(Some(coming)) = &self.prefetches
            && let Some(element) = find(coming, self.shape, position - self.start)
        {
            self.prefetch(s, element);
        }
    }

    /// Prefetches the line of an element of the pages.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, element: usize) {
        s.prefetch(self.pages.as_ptr().wrapping_add(element).cast());
    }

    /// Bytes from `address` to an element of the pages, modulo the size of the address space.
    #[inline(always)]
    fn bytes_from(&self, address: *const u8, element: usize) -> usize {
        self.pages.as_ptr().wrapping_add(element).addr().wrapping_sub(address.addr())
    }

    /// The values at the positions of the cache from `position` to the end of its block or to
    /// `end`, and the first position after them.
    #[inline(always)]
    pub(super) fn values(&self, position: usize, end: usize) -> (&'a [[T; LANES]], usize) {
        let (block, place) = self.place(position);
        let n = (self.shape.block_size - place).min(end - position);
        let values = &self.pages[self.shape.values(block, self.kv_head, place..place + n)];
        (values.as_chunks().0, position + n)
    }

    /// The scales of [`values`](Self::values), and the first position after them.
    #[inline(always)]
    pub(super) fn value_scales(&self, position: usize, end: usize) -> (&'a [f32], usize) {
        let (block, place) = self.place(position);
        let n = (self.shape.block_size - place).min(end - position);
        let scales = self.shape.value_scales(block, self.kv_head, place..place + n);
        (cast_slice(&self.pages[scales]), position + n)
    }
}

/// Whether keys and values lie in whole blocks.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_blocks(shape: &KvShape) -> bool {
    shape.key_dim.is_multiple_of(BLOCK)
        && shape.block_size.is_multiple_of(LANES)
        && !shape.values_in_keys
}

/// Computes the chunk into `out`; `scratch` holds `n_flat` lines of scores, then the memory that
/// values are transposed in.
#[inline(always)]
fn chunk<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    out.clear();
    let n_flat = chunk.n_flat();
    let (scores, turned) = scratch.split_at_mut(n_flat * SCORE_LINE);
    let (low, high) = chunk.seen(0..n_flat);
    if low >= high {
        return;
    }
    let dense = chunk.dense();
    score(s, chunk, scores, chunk.start + low..chunk.start + high.min(dense));
    for row in 0..n_flat / chunk.group {
        if let Some(path) = chunk.path(row) {
            score_path(s, chunk, scores, &path);
        }
    }
    weights(s, chunk, 0..n_flat, scores, out);
    if T::HAS_SCALES {
        scale_weights(chunk, scores);
    }
    if chunk.shape.values_in_keys {
        weigh_keys(s, chunk, scores, turned, out.acc);
    } else {
        weigh(s, chunk, scores, out.acc);
    }
}

/// Adds slopes and biases to the scores of these flat rows, masks and caps them, and sets `max` to
/// the largest of each row.
#[inline(always)]
pub(super) fn largest<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    lines: &mut [f32],
    max: &mut [f32],
) {
    for (flat, line) in flats.zip(lines.chunks_exact_mut(SCORE_LINE)) {
        let (low, high) = chunk.visible(flat);
        let row = flat / chunk.group;
        let position = chunk.tree.map_or(chunk.position + row, |tree| tree.end(row) - 1);
        if let Some(slopes) = chunk.slopes {
            let distance = position as f32 - chunk.start as f32;
            add_slope(slopes[flat % chunk.group], distance, &mut line[LANES..], low..high);
        }
        if let Some(bias) = &chunk.bias {
            let head = flat % chunk.group;
            let bias = bias.of_heads(head..head + 1);
            add_bias(&bias, position, chunk.start, &mut line[LANES..], low..high);
        }
        max[flat] = s.apart(Largest { softcap: chunk.softcap, line, low, high });
    }
}

/// Turns the scores of these flat rows into weights without the scales of values, and sets their maxima
/// and sums.
#[inline(always)]
pub(super) fn weights<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    scores: &mut [f32],
    out: &mut State<'_>,
) {
    let lines = scores.chunks_mut(LINES * SCORE_LINE);
    for (first, lines) in flats.clone().step_by(LINES).zip(lines) {
        let flats = first..(first + LINES).min(flats.end);
        largest(s, chunk, flats.clone(), lines, out.max);
        for (flat, line) in flats.zip(lines.chunks_exact_mut(SCORE_LINE)) {
            let (low, high) = chunk.visible(flat);
            let max = out.max[flat];
            out.sum[flat] = match (T::BF16_PRODUCTS, T::HAS_SCALES) {
                (false, _) => s.apart(Weights { line, low, high, max, precision: Whole }),
                (true, false) => s.apart(Weights { line, low, high, max, precision: Rounded }),
                (true, true) => s.apart(Weights { line, low, high, max, precision: BeforeScales }),
            };
        }
    }
}

/// Scales of the keys, and of the values, of the columns of a chunk.
#[cfg(target_arch = "x86_64")]
pub(super) type Scales = [[f32; CHUNK]; 2];

/// Puts the scales of the keys and of the values of these columns side by side, as far as they exist.
#[cfg(target_arch = "x86_64")]
pub(super) fn gather_scales<T: KvElement>(
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    [of_keys, of_values]: &mut Scales,
) {
    for column in columns.step_by(LANES) {
        let position = chunk.start + column;
        if let Some(scales) = chunk.key_group(position).scales {
            of_keys[column..column + LANES].copy_from_slice(scales);
        }
        let (scales, _) = chunk.value_scales(position, position + LANES);
        of_values[column..column + LANES].copy_from_slice(scales);
    }
}

/// A kernel of [`chunk`].
pub(super) type Kernel<T> = unsafe fn(&Chunk<'_, T>, &mut [f32], &mut State<'_>);

/// The kernels of an element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels<T> {
    pub(super) chunk: Kernel<T>,
    pub(super) in_turn: Option<InTurn<T>>,
}

impl<T> Kernels<T> {
    /// One kernel for everything.
    pub(super) const fn of(chunk: Kernel<T>) -> Self {
        Self { chunk, in_turn: None }
    }
}

/// A kernel for chunks of one decoded token, of several KV heads or parts of them, which take turns at
/// the blocks of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct InTurn<T> {
    /// Whether it is faster than one part of the heads after the other.
    pub(super) pays: fn(&KvShape) -> bool,
    /// Computes the chunks. The memory is as for the other kernels, for each chunk as much as for the
    /// largest.
    pub(super) chunks: unsafe fn(&[Chunk<'_, T>], &mut [f32], States<'_>),
}

/// An element type, and its kernel for chunks that are computed by no other one.
#[cfg(target_arch = "x86_64")]
pub(super) trait Vectors: KvElement {
    /// On AVX-512.
    const ON_AVX512: Kernel<Self>;
}

/// Writes the shells of [`chunk`] for one element type.
macro_rules! chunk_shells {
    ($generic:ident, $shells:ident, $type:ty) => {
        #[inline(always)]
        fn $generic<S: Simd>(s: S, c: &Chunk<'_, $type>, scores: &mut [f32], out: &mut State<'_>) {
            chunk(s, c, scores, out);
        }
        shells! {
            pub(super) mod $shells =
                $generic(c: &Chunk<'_, $type>, scores: &mut [f32], out: &mut State<'_>)
        }
        #[cfg(target_arch = "x86_64")]
        impl Vectors for $type {
            const ON_AVX512: Kernel<Self> = $shells::avx512;
        }
    };
}
chunk_shells!(chunk_f32, f32_shells, f32);
chunk_shells!(chunk_bf16, bf16_shells, bf16);
chunk_shells!(chunk_f16, f16_shells, f16);
chunk_shells!(chunk_fp8, fp8_shells, u8);
chunk_shells!(chunk_int8, int8_shells, i8);
