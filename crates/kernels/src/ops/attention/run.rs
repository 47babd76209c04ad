//! The public operation: cuts a step into items, hands them to the team, merges.
//!
//! ```text
//! sequences -> row blocks x parts of the heads = items, of up to `Table::flat_rows` flat rows each
//!
//! decoding, long:          tile = (row block, stretch) -> partial[stretch][item] of all heads in turn
//!                          tile = item                 merges its partials, ascending
//! items >= 4 per thread:   tile = item                 all its chunks in one go
//! else:                    tile = (item, stretch)      -> partial[item][stretch]
//!                          tile = item                 merges its partials, ascending
//! ```
//!
//! A stretch is a span of chunks or a single chunk (`cut.rs`). A thread merges the chunks of a span while
//! they are in its cache, so that the memory of partial results grows an eighth as fast with the context.
//! Behind 32,768 tokens, decoding takes 0.98 of the time that it takes with a partial result for each
//! chunk, with bf16, fp8 and int8 (16 heads of 256 on 4, 32 of 128 on 8; medians of pairs in turn on two
//! threads of a Zen 4, whose memory gave 20 to 60 GB/s meanwhile; by the fastest of 15 runs 0.92 and 0.98).
//!
//! The heads of a block lie side by side in memory, in runs of a few KiB. A thread that computes them in
//! turn finds what the processor fetched beyond the end of a run. On two cores of an Ice Lake, decoding
//! behind 4,096 tokens is 8 % faster with bf16 and 32 heads of 64 elements on 8 (12 % on one thread), and
//! behind 32,768 tokens 4 % with bf16 and 9 % with int8 and 16 heads of 256 on 4 (medians of three or four
//! runs in turn). With f32, whose runs are longer, it is 3 to 8 % slower, so f32 is not computed so.
//! Where a kernel has [`InTurn`] and the row sees [`CHUNKS_IN_TURN`], heads take turns not after each
//! chunk but after each block of the cache.
//!
//! Scratch belongs to the threads and grows to the largest step seen; a step in steady state
//! allocates nothing.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use pelton_tensor::ALIGNMENT;

use super::chunk::{Chunk, InTurn, Kernel, Kernels, SCORE_LINE};
use super::coming::{Coming, Prefetches};
use super::cut::{Cut, FLAT_ROWS, HeadParts, Heads, RowBlock};
use super::input::AttentionInput;
use super::merge::{State, States};
use super::tree::Tree;
use super::weigh_keys::n_turned;
use super::{CHUNK, Table};
use crate::Cpu;
use crate::ops::kv::{KvCache, KvDtype, KvElement, KvLayer, KvShape};
use crate::simd::LANES;
use crate::team::Parts;

/// Items per thread from which on they are not cut by chunks.
const ITEMS_PER_THREAD: usize = 4;

/// Items per thread that larger items must leave, so that threads end at about the same time.
const ITEMS_OF_A_CUT: usize = 2 * ITEMS_PER_THREAD;

/// Fewest chunks of a row whose heads take turns after each block. With fewer, a batch of 8 or 32
/// sequences of 70 tokens takes 1 % longer (a model of 1B in bf16, Zen 4).
const CHUNKS_IN_TURN: usize = 4;

/// Most parts of the heads that take turns.
const MOST_IN_TURN: usize = 8;

/// Most floats of partial results (16 MiB); a step that needs more is not cut by chunks.
const PARTIAL_FLOATS: usize = 4 << 20;

/// The work of a thread at a time: a stretch of chunks (counted from the block's first) for some parts
/// of the heads.
struct Tile<'a> {
    block: &'a RowBlock,
    heads: Range<usize>,
    chunks: Range<usize>,
}

/// Everything the tiles of one call share.
struct Step<'a, T> {
    cpu: &'a Cpu,
    input: &'a AttentionInput<'a>,
    shape: &'a KvShape,
    pages: &'a [T],
    heads: HeadParts,
    cut: &'a Cut,
    out: Parts<'a, f32>,
}

thread_local! {
    /// Queries, score lines and states of the item at hand.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// States of the chunk at hand, before they join those of its stretch.
    static OF_CHUNK: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Partial results of a call, owned by its calling thread.
    static PARTIALS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// The cut of a call, owned by its calling thread.
    static CUT: Cell<Option<Cut>> = const { Cell::new(None) };
}

/// Calls `f` with `n` floats of this thread's memory, whose contents are arbitrary; they begin a
/// line of memory, so that lines of scores and sums, which are whole vectors, do too.
pub(super) fn with_floats<R>(
    memory: &'static std::thread::LocalKey<RefCell<Vec<f32>>>,
    n: usize,
    f: impl FnOnce(&mut [f32]) -> R,
) -> R {
    memory.with_borrow_mut(|memory| {
        if memory.len() < n + LANES {
            memory.resize(n + LANES, 0.0);
        }
        let first = memory.as_ptr().align_offset(ALIGNMENT);
        f(&mut memory[first..first + n])
    })
}

impl Cpu {
    /// Softmax attention of new rows over the pages of their sequences.
    ///
    /// The keys and values of the new rows are already stored. Rows of `out` that belong to no
    /// sequence are left as they are; a row that sees no position gets zeros.
    ///
    /// # Shapes
    ///
    /// `input.q`: rows of `n_heads * key_dim`; `out`: `[m, n_heads * value_dim]`.
    ///
    /// # Panics
    ///
    /// When shapes disagree, a block table is too short for its sequence or names a block that
    /// does not exist, or rows of sequences overlap.
    pub fn paged_attention(
        &self,
        kv: &KvCache,
        layer: impl Into<KvLayer>,
        input: &AttentionInput<'_>,
        out: &mut [f32],
    ) {
        let layer = layer.into();
        let kernels = self.kernels.attention;
        match kv.shape().dtype {
            KvDtype::F32 => self.attend(kernels.of_f32, kv.layer(layer), input, out),
            KvDtype::Bf16 => self.attend(kernels.of_bf16, kv.layer(layer), input, out),
            KvDtype::F16 => self.attend(kernels.of_f16, kv.layer(layer), input, out),
            KvDtype::Fp8 => self.attend(kernels.of_fp8, kv.layer(layer), input, out),
            KvDtype::Int8 => self.attend(kernels.of_int8, kv.layer(layer), input, out),
        }
    }

    fn attend<T: KvElement>(
        &self,
        kernels: Kernels<T>,
        (shape, pages): (KvShape, &[T]),
        input: &AttentionInput<'_>,
        out: &mut [f32],
    ) {
        input.check(&shape, out.len());
        let shape = &shape;
        let heads = HeadParts::new(input.n_heads / shape.n_kv_heads, shape.n_kv_heads);
        let mut cut = CUT.take().unwrap_or_default();
        cut.rows(input, &heads, (self.flat_rows(input, &heads), self.team.n_threads()));
        let step = Step { cpu: self, input, shape, pages, heads, cut: &cut, out: Parts::new(out) };
        self.run_step(kernels, &step);
        CUT.set(Some(cut));
    }

    /// Flat rows of an item: the more of them, the fewer times keys and values are read.
    fn flat_rows(&self, input: &AttentionInput<'_>, heads: &HeadParts) -> usize {
        let n_rows: usize = input.sequences.iter().map(|sequence| sequence.rows.len()).sum();
        let n_items = ITEMS_OF_A_CUT * self.team.n_threads();
        let even = n_rows * heads.most * heads.n / n_items;
        (even / FLAT_ROWS * FLAT_ROWS).clamp(FLAT_ROWS, self.kernels.attention.flat_rows)
    }

    fn run_step<T: KvElement>(&self, kernels: Kernels<T>, step: &Step<'_, T>) {
        let Step { shape, heads, cut: &Cut { ref blocks, n_chunks, n_partials, .. }, .. } = *step;
        let n_items = blocks.len() * heads.n;
        let n_threads = self.team.n_threads();
        let most_rows = blocks.iter().map(|block| block.n_rows).max().unwrap_or(0);
        let n_flat = heads.most * most_rows;
        let per_partial = State::n_floats(n_flat, shape.padded_dim());
        // Decoding rows, whose reads are all that counts.
        let by_chunks = most_rows == 1
            && size_of::<T>() < size_of::<f32>()
            && n_chunks >= heads.n * ITEMS_PER_THREAD * n_threads;
        let has_items = n_threads == 1 || n_items >= ITEMS_PER_THREAD * n_threads;
        if has_items && !by_chunks
            || n_chunks <= n_items
            || n_partials * per_partial > PARTIAL_FLOATS
        {
            self.team.for_each_tile(n_items, |item| {
                let (block, heads) = step.item(item);
                // Threads take turns, as a rule.
                let coming = step.first_of(item + n_threads);
                step.whole(kernels.chunk, block, step.heads.part(heads), coming);
            });
            return;
        }
        let in_turn = kernels.in_turn.filter(|kernel| (kernel.pays)(shape));
        with_floats(&PARTIALS, n_partials * per_partial, |memory| {
            let partials = Parts::new(memory);
            let per_tile = if by_chunks { heads.n } else { 1 };
            self.team.for_each_tile(n_partials / per_tile, |tile| {
                let first = tile * per_tile;
                // SAFETY: the partials of a tile belong to it.
                let memory =
                    unsafe { partials.part(first * per_partial..(first + per_tile) * per_partial) };
                let states = States { memory, stride: per_partial };
                let tile = step.tile(first, by_chunks);
                if by_chunks
                    && tile.block.n_chunks >= CHUNKS_IN_TURN
                    && let Some(in_turn) = &in_turn
                {
                    return step.in_turn(in_turn, &tile, states);
                }
                // Threads take turns, as a rule.
                let next = first + n_threads * per_tile;
                let next = (next < n_partials).then(|| step.tile(next, by_chunks));
                step.stretch(kernels.chunk, &tile, next.as_ref(), states);
            });
            self.team.for_each_tile(n_items, |item| {
                let (block, heads) = step.item(item);
                let partials = (0..block.n_stretches()).map(|stretch| {
                    let at = step.number_of(block, heads, stretch, by_chunks) * per_partial;
                    // SAFETY: each partial belongs to one item, and the tiles of the first wave are
                    // done with theirs.
                    unsafe { partials.part(at..at + per_partial) }
                });
                step.merge(block, step.heads.part(heads), partials);
            });
        });
    }
}

impl<T: KvElement> Step<'_, T> {
    /// The row block and the part of the heads of an item.
    fn item(&self, item: usize) -> (&RowBlock, usize) {
        (&self.cut.blocks[item / self.heads.n], item % self.heads.n)
    }

    /// The tile whose first partial result is number `idx` in the order in which they are computed: of
    /// each row block, all heads of a stretch `by_chunks`, or else all stretches of a part of the heads.
    fn tile(&self, idx: usize, by_chunks: bool) -> Tile<'_> {
        let blocks = &self.cut.blocks;
        let after = blocks.partition_point(|block| block.first_partial <= idx);
        let block = &blocks[after - 1];
        let within = idx - block.first_partial;
        if by_chunks {
            let chunks = block.stretch(within / self.heads.n);
            return Tile { block, heads: 0..self.heads.n, chunks };
        }
        let heads = within / block.n_stretches();
        let chunks = block.stretch(within % block.n_stretches());
        Tile { block, heads: heads..heads + 1, chunks }
    }

    /// The number of a partial result, in the same order.
    fn number_of(&self, block: &RowBlock, heads: usize, stretch: usize, by_chunks: bool) -> usize {
        block.first_partial
            + match by_chunks {
                true => stretch * self.heads.n + heads,
                false => heads * block.n_stretches() + stretch,
            }
    }

    /// Copies the queries of an item side by side.
    fn gather(&self, block: &RowBlock, heads: Heads, q: &mut [f32]) {
        let dim = self.shape.key_dim;
        for (row, q) in (block.row..).zip(q.chunks_exact_mut(heads.n * dim)) {
            let all = self.input.q.row(row, self.input.n_heads * dim);
            q.copy_from_slice(&all[heads.first * dim..(heads.first + heads.n) * dim]);
        }
        if T::BF16_PRODUCTS {
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { (self.kernels().kv.round_to_factors)(q, self.input.scale) };
        }
    }

    /// The keys of chunk `chunk` (counted from the block's first), to be prefetched.
    fn coming(&self, block: &RowBlock, heads: Heads, chunk: usize) -> Coming<'_> {
        let sequence = &self.input.sequences[block.seq];
        Coming {
            block_table: sequence.block_table,
            kv_head: heads.kv_head,
            start: (block.first_chunk + chunk) * CHUNK,
            end: sequence.first_position + sequence.rows.len(),
        }
    }

    /// The first chunk of an item, or nothing after the last.
    fn first_of(&self, item: usize) -> Option<Coming<'_>> {
        if item >= self.cut.blocks.len() * self.heads.n {
            return None;
        }
        let (block, heads) = self.item(item);
        Some(self.coming(block, self.heads.part(heads), 0))
    }

    /// Chunk `chunk` (counted from the block's first) of an item.
    fn chunk<'a>(
        &'a self,
        block: &RowBlock,
        heads: Heads,
        chunk: usize,
        prefetches: Prefetches<'a>,
        q: &'a [f32],
    ) -> Chunk<'a, T> {
        let sequence = &self.input.sequences[block.seq];
        Chunk {
            q,
            group: heads.n,
            position: block.position,
            tree: sequence.tree.map(|parents| Tree {
                parents,
                depths: &self.cut.depths[block.first_depth..][..parents.len()],
                first_position: sequence.first_position,
                row: block.row - sequence.rows.start,
            }),
            start: (block.first_chunk + chunk) * CHUNK,
            window: self.input.window,
            ahead: self.input.ahead,
            seq_end: sequence.first_position + sequence.rows.len(),
            segment: self.input.segment,
            scale: self.input.scale,
            softcap: self.input.softcap,
            slopes: self.input.slopes.map(|slopes| &slopes[heads.first..heads.first + heads.n]),
            bias: self.input.bias.map(|bias| bias.of_heads(heads.first..heads.first + heads.n)),
            pages: self.pages,
            shape: self.shape,
            block_table: sequence.block_table,
            kv_head: heads.kv_head,
            prefetches,
        }
    }

    /// Sets `total` to the state that chunks merge into: empty, or the sinks of the heads.
    fn begin(&self, heads: Heads, total: &mut State<'_>) {
        total.clear();
        if let Some(sinks) = self.input.sinks {
            let sinks = &sinks[heads.first..heads.first + heads.n];
            for (max, &sink) in total.max.iter_mut().zip(sinks.iter().cycle()) {
                *max = sink;
            }
            total.sum.fill(1.0);
        }
    }

    /// All chunks of an item, merged as they come, into `out`.
    fn whole(&self, kernel: Kernel<T>, block: &RowBlock, heads: Heads, coming: Option<Coming<'_>>) {
        let n_flat = block.n_rows * heads.n;
        let n_q = n_flat * self.shape.key_dim;
        let n_scores = n_flat * SCORE_LINE + n_turned(self.shape);
        let n_state = State::n_floats(n_flat, self.shape.padded_dim());
        with_floats(&SCRATCH, n_q + n_scores + 3 * n_state, |memory| {
            let (scores, memory) = memory.split_at_mut(n_scores);
            let (states, q) = memory.split_at_mut(3 * n_state);
            let mut states =
                states.chunks_exact_mut(n_state).map(|state| self.state(n_flat, state));
            let [mut total, mut span, mut part] =
                std::array::from_fn(|_| states.next().expect("invariant: there are three"));
            self.gather(block, heads, q);
            self.begin(heads, &mut total);
            for idx in 0..block.n_chunks {
                let is_last = idx + 1 == block.n_chunks;
                let coming =
                    if is_last { coming } else { Some(self.coming(block, heads, idx + 1)) };
                let chunk = self.chunk(block, heads, idx, Prefetches::Columns(coming), q);
                let begins = block.begins_span(idx);
                let into = if begins { &mut span } else { &mut part };
                // SAFETY: the kernels of a `Cpu` are available on this machine.
                unsafe { kernel(&chunk, scores, into) };
                if !begins {
                    self.add(&mut span, &part);
                }
                if is_last || block.begins_span(idx + 1) {
                    self.add(&mut total, &span);
                }
            }
            self.finish(block, heads, &total);
        });
    }

    /// The chunks of a tile, merged as they come, into the states of its heads; `next` is the tile after
    /// it.
    fn stretch(
        &self,
        kernel: Kernel<T>,
        tile: &Tile<'_>,
        next: Option<&Tile<'_>>,
        mut states: States<'_>,
    ) {
        let Tile { block, heads, chunks } = tile;
        let stride = states.stride;
        with_floats(&OF_CHUNK, stride, |of_chunk| {
            for chunk in chunks.clone() {
                for (idx, memory) in heads.clone().zip(states.each()) {
                    let coming = if idx + 1 < heads.end {
                        Some((*block, idx + 1, chunk))
                    } else if chunk + 1 < chunks.end {
                        Some((*block, heads.start, chunk + 1))
                    } else {
                        next.map(|next| (next.block, next.heads.start, next.chunks.start))
                    };
                    let coming = coming
                        .map(|(block, idx, chunk)| self.coming(block, self.heads.part(idx), chunk));
                    let part = self.heads.part(idx);
                    let work = self.chunk(block, part, chunk, Prefetches::Columns(coming), &[]);
                    if chunk == chunks.start {
                        self.part(kernel, block, part, work, memory);
                    } else {
                        self.part(kernel, block, part, work, of_chunk);
                        self.add_part(block, part, memory, of_chunk);
                    }
                }
            }
        });
    }

    /// One chunk of an item, into `memory`.
    fn part(
        &self,
        kernel: Kernel<T>,
        block: &RowBlock,
        heads: Heads,
        chunk: Chunk<'_, T>,
        memory: &mut [f32],
    ) {
        let n_flat = block.n_rows * heads.n;
        let n_q = n_flat * self.shape.key_dim;
        let n_scores = n_flat * SCORE_LINE + n_turned(self.shape);
        with_floats(&SCRATCH, n_q + n_scores, |scratch| {
            let (scores, q) = scratch.split_at_mut(n_scores);
            self.gather(block, heads, q);
            let chunk = Chunk { q, ..chunk };
            let mut state = self.state(n_flat, memory);
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(&chunk, scores, &mut state) };
        });
    }

    /// As [`stretch`](Self::stretch), for a decoded token: a few parts of the heads at a time take turns.
    fn in_turn(&self, kernel: &InTurn<T>, tile: &Tile<'_>, states: States<'_>) {
        let States { memory, stride } = states;
        let (n_rows, dim) = (self.heads.most, self.shape.key_dim);
        let n_scores = n_rows * SCORE_LINE;
        let each = tile.chunks.clone().flat_map(|chunk| {
            tile.heads.clone().step_by(MOST_IN_TURN).map(move |first| (chunk, first))
        });
        with_floats(&OF_CHUNK, MOST_IN_TURN * stride, |of_chunk| {
            for (chunk, first) in each {
                let n = MOST_IN_TURN.min(tile.heads.end - first);
                let memory = &mut memory[(first - tile.heads.start) * stride..][..n * stride];
                let begins = chunk == tile.chunks.start;
                let into = if begins { &mut *memory } else { &mut of_chunk[..n * stride] };
                with_floats(&SCRATCH, n * (n_scores + n_rows * dim), |scratch| {
                    let (scores, queries) = scratch.split_at_mut(n * n_scores);
                    for (idx, q) in queries.chunks_exact_mut(n_rows * dim).enumerate() {
                        let heads = self.heads.part(first + idx);
                        self.gather(tile.block, heads, &mut q[..heads.n * dim]);
                    }
                    let chunks: [_; MOST_IN_TURN] = std::array::from_fn(|idx| {
                        let idx = idx.min(n - 1);
                        let heads = self.heads.part(first + idx);
                        let q = &queries[idx * n_rows * dim..][..heads.n * dim];
                        self.chunk(tile.block, heads, chunk, Prefetches::Values, q)
                    });
                    let states = States { memory: into, stride };
                    // SAFETY: the kernels of a `Cpu` are available on this machine.
                    unsafe { (kernel.chunks)(&chunks[..n], scores, states) };
                });
                if begins {
                    continue;
                }
                let states = memory.chunks_exact_mut(stride).zip(of_chunk.chunks_exact_mut(stride));
                for (idx, (memory, of_chunk)) in states.enumerate() {
                    self.add_part(tile.block, self.heads.part(first + idx), memory, of_chunk);
                }
            }
        });
    }

    /// Merges the partials of an item, which ascend, into `out`.
    fn merge<'m>(
        &self,
        block: &RowBlock,
        heads: Heads,
        partials: impl Iterator<Item = &'m mut [f32]>,
    ) {
        let n_flat = block.n_rows * heads.n;
        let n_state = State::n_floats(n_flat, self.shape.padded_dim());
        with_floats(&SCRATCH, n_state, |memory| {
            let mut total = State::over(memory, n_flat, self.shape.padded_dim());
            self.begin(heads, &mut total);
            let mut span: Option<State<'_>> = None;
            for (stretch, partial) in partials.enumerate() {
                let part = self.state(n_flat, partial);
                let begins = block.begins_span(block.stretch(stretch).start);
                if let Some(span) = &mut span
                    && !begins
                {
                    self.add(span, &part);
                } else if let Some(before) = span.replace(part) {
                    self.add(&mut total, &before);
                }
            }
            if let Some(span) = span {
                self.add(&mut total, &span);
            }
            self.finish(block, heads, &total);
        });
    }

    /// Merges the state of a part of the heads in `of_chunk` into the one in `memory`.
    fn add_part(&self, block: &RowBlock, heads: Heads, memory: &mut [f32], of_chunk: &mut [f32]) {
        let n_flat = block.n_rows * heads.n;
        self.add(&mut self.state(n_flat, memory), &self.state(n_flat, of_chunk));
    }

    /// Merges a state into another.
    fn add(&self, into: &mut State<'_>, part: &State<'_>) {
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (self.kernels().merge)(into, part) };
    }

    /// The state of `n_flat` rows at the start of `memory`, which may be longer.
    fn state<'a>(&self, n_flat: usize, memory: &'a mut [f32]) -> State<'a> {
        State::over(memory, n_flat, self.shape.padded_dim())
    }

    fn finish(&self, block: &RowBlock, heads: Heads, total: &State<'_>) {
        let dim = self.shape.value_dim;
        let accs = total.acc.chunks_exact(self.shape.padded_dim());
        for (flat, (acc, &sum)) in accs.zip(total.sum.iter()).enumerate() {
            let row = block.row + flat / heads.n;
            let head = heads.first + flat % heads.n;
            let at = (row * self.input.n_heads + head) * dim;
            // SAFETY: a row and head belong to one item; the kernels of a `Cpu` are available.
            unsafe { (self.kernels().finish)(acc, sum, self.out.part(at..at + dim)) };
        }
    }

    fn kernels(&self) -> &'static Table {
        self.cpu.kernels.attention
    }
}
