//! The public operation: cuts a step into heads and chunks and hands them to the team.
//!
//! ```text
//! many key heads     tile = (sequence, key head)      all its chunks:  dots, then each value head
//! few, in groups     for each chunk:  tile = (sequence, key head)      dots
//!                                     tile = (sequence, value head)    projection, updates, fold
//! ```
//!
//! The rows of each chunk are written to the lane's open chunk, used there, folded into the state
//! where the step goes on, and overwritten by the next chunk: after the step the lane holds the
//! rows that the next step needs.
//!
//! Scratch belongs to the threads and grows to the largest step seen.

use std::cell::RefCell;
use std::thread::LocalKey;

use pelton_tensor::StateDtype;

use super::dots::{Dots, Fading, GROUPS, RowDots};
use super::element::{Stored, StoredMut};
use super::input::{ScanInput, ScanShape};
use super::project::{Fold, Project};
use super::sequence::Span;
use super::shape::{Places, StateLayer, floats_of};
use super::solve::Solve;
use super::store::Snapshots;
use super::{CHUNK, StateSeq, StateStore, Table};
use crate::Cpu;
use crate::simd::LANES;
use crate::team::Parts;

/// Tiles per thread from which on a tile takes all chunks of a key head.
const TILES_PER_THREAD: usize = 2;

thread_local! {
    /// Projections and scaled updates of the value head at hand.
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Running sums of the decays of the rows of the key head at hand, and its faded queries and
    /// keys.
    static FADED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Inner products of the key head at hand.
    static DOTS: RefCell<Vec<RowDots>> = const { RefCell::new(Vec::new()) };
    /// Inner products of a chunk of all sequences and key heads, owned by the calling thread.
    static ALL_DOTS: RefCell<Vec<RowDots>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `n` elements of this thread's memory, whose contents are arbitrary.
pub(super) fn with_memory<T: Clone>(
    memory: &'static LocalKey<RefCell<Vec<T>>>,
    n: usize,
    zero: T,
    f: impl FnOnce(&mut [T]),
) {
    memory.with_borrow_mut(|memory| {
        if memory.len() < n {
            memory.resize(n, zero);
        }
        f(&mut memory[..n]);
    });
}

/// Inner products that are not computed yet.
const NO_DOTS: RowDots = [[0.0; CHUNK]; 2];

/// The memory of one value head of a lane.
struct Head<'a> {
    /// Value head.
    idx: usize,
    /// As it is stored.
    state: &'a mut [f32],
    updates: &'a mut [f32],
    decays: &'a mut [f32],
}

/// Everything the tiles of one call share.
struct Step<'a> {
    table: &'static Table,
    input: &'a ScanInput<'a>,
    shape: ScanShape,
    layer: StateLayer,
    dtype: StateDtype,
    places: Places,
    lane_stride: usize,
    snapshots: Snapshots,
    /// All lanes and snapshots.
    store: Parts<'a, f32>,
    out: Parts<'a, f32>,
}

impl Cpu {
    /// The gated linear recurrence of new rows, in chunked form; states advance in the store.
    ///
    /// With `S` the state at the border of a row's chunk, `G[t]` the sum of the log decays from the
    /// border to row `t`, and `i` over the rows of the chunk that row `t` sees:
    ///
    /// ```text
    /// u[t] = beta[t] · (v[t] - (exp(G[t]) · Sᵀk[t] + Σ_{i<t} exp(G[t] - G[i]) (k[i]·k[t]) u[i]))
    /// o[t] =                    exp(G[t]) · Sᵀq[t] + Σ_{i<=t} exp(G[t] - G[i]) (k[i]·q[t]) u[i]
    /// S'   =                    exp(G[63]) · S     + Σ_i exp(G[63] - G[i]) k[i] u[i]ᵀ
    /// ```
    ///
    /// That is Gated DeltaNet; where `shape.is_delta` is false the subtraction is left out, which
    /// is Mamba 2 and lightning attention. Rows of `out` that belong to no sequence are left as
    /// they are.
    ///
    /// Where each element of a key has a decay of its own (Kimi Delta Attention), `G` has an entry for
    /// each, and the factors lie within the products:
    ///
    /// ```text
    /// exp(G[t]) · Sᵀk[t]           becomes  Sᵀ(exp(G[t]) ∘ k[t])
    /// exp(G[t] - G[i]) (k[i]·k[t]) becomes  Σ_d exp(G[t,d] - G[i,d]) k[i,d] k[t,d]
    /// exp(G[63] - G[i]) k[i]       becomes  exp(G[63] - G[i]) ∘ k[i]
    /// ```
    ///
    /// Each `exp` is 0 where it is below 2⁻⁶⁴; the papers have no such limit. So neither decays nor what
    /// one of them fades become subnormal numbers, with which some processors multiply very slowly.
    ///
    /// Rows that may be taken back (drafts) must lie in the chunk of the last row before them that
    /// is not, or in the chunk after it where that row was a chunk's last: a row in a later chunk
    /// folds them.
    ///
    /// # Shapes
    ///
    /// `out`: `[m, n_value_heads * value_dim]`; those of `input` are at its fields.
    ///
    /// # Panics
    ///
    /// When shapes disagree, a lane or snapshot does not exist or is used twice, or a sequence does
    /// not continue its border.
    ///
    /// # Papers
    ///
    /// Yang, Kautz and Hatamizadeh, *Gated Delta Networks*, 2024; Dao and Gu, *Transformers are
    /// SSMs*, 2024; Qin et al., *Lightning Attention-2*, 2024; Kimi Team, *Kimi Linear*, 2025. Ours
    /// counts chunks from position 0, and solves the triangular system row by row instead of by
    /// inversion.
    pub fn scan(
        &self,
        store: &mut StateStore,
        layer: usize,
        input: &ScanInput<'_>,
        out: &mut [f32],
    ) {
        let (sizes, places) = store.layer(layer);
        input.check(store, &sizes, out.len());
        let step = Step {
            table: self.kernels.state,
            input,
            shape: input.shape,
            layer: sizes,
            dtype: store.shape().dtype,
            places,
            lane_stride: store.lane_stride(),
            snapshots: store.snapshots(layer),
            store: Parts::new(store.floats_mut()),
            out: Parts::new(out),
        };
        let n_key_heads = step.shape.n_key_heads;
        let n_tiles = input.sequences.len() * n_key_heads;
        let n_threads = self.team.n_threads();
        let is_many = n_tiles >= TILES_PER_THREAD * n_threads;
        if n_threads == 1 || step.shape.group() == 1 || is_many {
            return self.team.for_each_tile_of_table(1, n_tiles, |tile| {
                step.key_head(&input.sequences[tile / n_key_heads], tile % n_key_heads);
            });
        }
        let n_chunks = input.sequences.iter().map(StateSeq::n_spans).max().unwrap_or(0);
        for chunk in 0..n_chunks {
            self.scan_chunk(&step, chunk);
        }
    }

    /// One chunk of every sequence that has it, first its key heads, then its value heads.
    fn scan_chunk(&self, step: &Step<'_>, chunk: usize) {
        let (sequences, shape) = (step.input.sequences, step.shape);
        // The longest part of a sequence in a chunk.
        let n_rows = |sequence: &StateSeq<'_>| sequence.rows.len().min(CHUNK);
        let per_tile = sequences.iter().map(n_rows).max().unwrap_or(0);
        let (n_keys, n_values) = (shape.n_key_heads, shape.n_value_heads);
        with_memory(&ALL_DOTS, sequences.len() * n_keys * per_tile, NO_DOTS, |memory| {
            let dots = Parts::new(memory);
            self.team.for_each_tile_of_table(1, sequences.len() * n_keys, |tile| {
                let sequence = &sequences[tile / n_keys];
                if chunk < sequence.n_spans() {
                    let span = sequence.span(chunk);
                    let first = tile * per_tile;
                    // SAFETY: each stretch of dots belongs to one tile.
                    let out = unsafe { dots.part(first..first + span.rows.len()) };
                    step.dots(sequence, &span, tile % n_keys, &mut [], out);
                }
            });
            self.team.for_each_tile_of_table(1, sequences.len() * n_values, |tile| {
                let (sequence, head) = (&sequences[tile / n_values], tile % n_values);
                if chunk < sequence.n_spans() {
                    let span = sequence.span(chunk);
                    let key_head = tile / n_values * n_keys + shape.key_head(head);
                    let first = key_head * per_tile;
                    // SAFETY: the tiles that wrote dots are done, and nothing writes them now.
                    let dots = unsafe { dots.shared(first..first + span.rows.len()) };
                    step.value_head(sequence, &span, head, &[], dots);
                }
            });
        });
    }
}

impl Step<'_> {
    /// All chunks of a key head and of its value heads.
    fn key_head(&self, sequence: &StateSeq<'_>, key_head: usize) {
        for chunk in 0..sequence.n_spans() {
            let span = sequence.span(chunk);
            let n = span.rows.len();
            let n_faded =
                if self.shape.fades_by_channel() { 3 * n * self.shape.key_dim } else { 0 };
            with_memory(&FADED, n_faded, 0.0, |faded| {
                with_memory(&DOTS, n, NO_DOTS, |dots| {
                    self.dots(sequence, &span, key_head, faded, dots);
                    let faded = &faded[n_faded / 3..];
                    for i in 0..self.shape.group() {
                        let head = self.shape.value_head(key_head, i);
                        self.value_head(sequence, &span, head, faded, dots);
                    }
                });
            });
        }
    }

    /// Where a part of a lane is that begins `at` floats into it and has `n`.
    fn place(&self, sequence: &StateSeq<'_>, at: usize, n: usize) -> std::ops::Range<usize> {
        let start = sequence.lane * self.lane_stride + at;
        start..start + n
    }

    /// Where the keys of a group of slots of a key head are, or their sums: what begins at `start` of
    /// a lane.
    fn keys(
        &self,
        sequence: &StateSeq<'_>,
        start: usize,
        key_head: usize,
        group: usize,
    ) -> std::ops::Range<usize> {
        let dim = self.shape.key_dim;
        let at = (group * self.layer.key_width + key_head * dim) * LANES;
        self.place(sequence, start + at, dim * LANES)
    }

    /// Keys of the rows of a chunk into the lane, and their inner products. Where keys fade by channel,
    /// `faded` becomes `[3 rows][key_dim]`: sums of log decays, faded queries, faded keys.
    fn dots(
        &self,
        sequence: &StateSeq<'_>,
        span: &Span,
        key_head: usize,
        faded: &mut [f32],
        out: &mut [RowDots],
    ) {
        if span.rows.is_empty() {
            return;
        }
        let dim = self.shape.key_dim;
        let slots = |start: usize| -> [&mut [[f32; LANES]]; GROUPS] {
            std::array::from_fn(|group| {
                // SAFETY: a key head of a lane belongs to one tile, which asks for its keys and for its
                // sums once each.
                let slots = unsafe { self.store.part(self.keys(sequence, start, key_head, group)) };
                slots.as_chunks_mut().0
            })
        };
        let keys = slots(self.places.keys.start);
        let fading = self.shape.fades_by_channel().then(|| {
            let slots = slots(self.places.sums.start);
            let (rows, faded) = faded.split_at_mut(span.rows.len() * dim);
            self.sum_decays(sequence, span, key_head, &slots, rows);
            Fading { rows, slots, faded }
        });
        let task = Dots {
            k: self.input.k,
            q: self.input.q,
            rows: span.rows.clone(),
            columns: key_head * dim..(key_head + 1) * dim,
            first_slot: span.first_slot,
            is_delta: self.shape.is_delta,
            keys,
            fading,
            out,
        };
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (self.table.dots)(task) };
    }

    /// Running sums of the log decays of each element of a key, from the border to each row.
    fn sum_decays(
        &self,
        sequence: &StateSeq<'_>,
        span: &Span,
        key_head: usize,
        slots: &[&mut [[f32; LANES]]; GROUPS],
        sums: &mut [f32],
    ) {
        let (dim, width) = (self.shape.key_dim, self.shape.key_width());
        for (i, row) in span.rows.clone().enumerate() {
            let (done, own) = sums.split_at_mut(i * dim);
            let own = &mut own[..dim];
            match Self::slot_before(sequence, span, i) {
                None => own.fill(0.0),
                Some(slot) if slot < span.first_slot => {
                    let group = &slots[slot / LANES];
                    own.iter_mut().zip(&**group).for_each(|(own, at)| *own = at[slot % LANES]);
                }
                Some(slot) => own.copy_from_slice(&done[(slot - span.first_slot) * dim..][..dim]),
            }
            let decays = &self.input.decay[row * width + key_head * dim..][..dim];
            own.iter_mut().zip(decays).for_each(|(own, decay)| *own += decay);
        }
    }

    /// The slot before that of the `i`th row of a chunk along its path; `None` at the border.
    fn slot_before(sequence: &StateSeq<'_>, span: &Span, i: usize) -> Option<usize> {
        let row = span.rows.start + i - sequence.rows.start;
        match sequence.parent(row) {
            _ if sequence.tree.is_none() => (span.first_slot + i).checked_sub(1),
            StateSeq::ROOT => span.first_slot.checked_sub(1),
            parent => Some(span.first_slot + parent as usize),
        }
    }

    /// Updates and outputs of the rows of a chunk, and the fold after it. `faded`: queries and keys
    /// that fade by channel, as they read the state.
    fn value_head(
        &self,
        sequence: &StateSeq<'_>,
        span: &Span,
        head: usize,
        faded: &[f32],
        dots: &[RowDots],
    ) {
        let padded = self.layer.padded_dim();
        let n_state = self.shape.key_dim * floats_of(self.dtype, padded);
        let at = self.places.matrix.start + head * n_state;
        let updates = self.places.updates.start + head * CHUNK * padded;
        let decays = self.places.decays.start + head * CHUNK;
        // SAFETY: a value head of a lane belongs to one tile.
        let mut own = unsafe {
            Head {
                idx: head,
                state: self.store.part(self.place(sequence, at, n_state)),
                updates: self.store.part(self.place(sequence, updates, CHUNK * padded)),
                decays: self.store.part(self.place(sequence, decays, CHUNK)),
            }
        };
        if !span.rows.is_empty() {
            self.outputs(sequence, span, &mut own, faded, dots);
        }
        if span.is_folded {
            self.fold(sequence, span, &mut own);
        }
    }

    /// Updates and outputs of the rows of a chunk.
    fn outputs(
        &self,
        sequence: &StateSeq<'_>,
        span: &Span,
        own: &mut Head<'_>,
        faded: &[f32],
        dots: &[RowDots],
    ) {
        let (padded, n) = (self.layer.padded_dim(), span.rows.len());
        let ScanShape { value_dim, n_value_heads, is_delta, .. } = self.shape;
        let mut beta = [0.0; CHUNK];
        self.place_rows(sequence, span, own, &mut beta);
        let n_projected = if is_delta { 2 * n } else { n };
        with_memory(&FLOATS, n_projected * padded, 0.0, |projected| {
            let coming = &own.updates[..span.first_slot * padded];
            self.project(span, own, (faded, coming), projected);
            let (out, keys) = projected.split_at_mut(n * padded);
            let task = Solve {
                is_delta,
                n_vectors: padded / LANES,
                first_slot: span.first_slot,
                tree: sequence.tree,
                dots,
                beta: &beta[..n],
                decays: own.decays,
                updates: own.updates,
                keys,
                out,
            };
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { (self.table.solve)(task) };
            for (row, from) in span.rows.clone().zip(projected.chunks_exact(padded)) {
                let at = (row * n_value_heads + own.idx) * value_dim;
                // SAFETY: a row and value head belong to one tile.
                let out = unsafe { self.out.part(at..at + value_dim) };
                out.copy_from_slice(&from[..value_dim]);
            }
        });
    }

    /// Values of the rows to their slots, running sums of decays, and factors.
    fn place_rows(
        &self,
        sequence: &StateSeq<'_>,
        span: &Span,
        own: &mut Head<'_>,
        beta: &mut [f32; CHUNK],
    ) {
        let ScanShape { value_dim, n_value_heads, .. } = self.shape;
        let padded = self.layer.padded_dim();
        for (i, row) in span.rows.clone().enumerate() {
            let slot = span.first_slot + i;
            let gate = row * n_value_heads + own.idx;
            own.decays[slot] = if self.shape.fades_by_channel() {
                // All decays lie within the products.
                0.0
            } else {
                let before = Self::slot_before(sequence, span, i);
                before.map_or(0.0, |slot| own.decays[slot]) + self.input.decay[gate]
            };
            beta[i] = self.input.beta[gate];
            let values = self.input.v.row(row, self.shape.value_width());
            let update = &mut own.updates[slot * padded..(slot + 1) * padded];
            update[..value_dim].copy_from_slice(&values[own.idx * value_dim..][..value_dim]);
            update[value_dim..].fill(0.0);
        }
    }

    /// Queries and then keys of the rows through the state at the border.
    fn project(
        &self,
        span: &Span,
        own: &Head<'_>,
        (faded, coming): (&[f32], &[f32]),
        projected: &mut [f32],
    ) {
        if span.is_first {
            return projected.fill(0.0);
        }
        let (dim, width) = (self.shape.key_dim, self.shape.key_width());
        let key_head = self.shape.key_head(own.idx);
        let n = span.rows.len();
        let mut rows: [&[f32]; 2 * CHUNK] = [&[]; 2 * CHUNK];
        for (i, row) in span.rows.clone().enumerate() {
            rows[i] = &self.input.q.row(row, width)[key_head * dim..][..dim];
            rows[n + i] = &self.input.k.row(row, width)[key_head * dim..][..dim];
        }
        for (row, faded) in rows.iter_mut().zip(faded.chunks_exact(dim)) {
            *row = faded;
        }
        let n_vectors = self.layer.padded_dim() / LANES;
        let n_rows = if self.shape.is_delta { 2 * n } else { n };
        let state = Stored::new(self.dtype, own.state);
        let task = Project { state, n_vectors, rows: &rows[..n_rows], coming, out: projected };
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (self.table.project)(task) };
    }

    /// Folds the full chunk of a value head into its state, and into the snapshot of the border.
    fn fold(&self, sequence: &StateSeq<'_>, span: &Span, own: &mut Head<'_>) {
        let Head { idx, state, updates, decays } = own;
        let key_head = self.shape.key_head(*idx);
        let slots = |start: usize| -> [&[[f32; LANES]]; GROUPS] {
            std::array::from_fn(|group| {
                // SAFETY: the keys and sums of a chunk are written before its value heads are computed,
                // by this tile or by a run before.
                let slots =
                    unsafe { self.store.shared(self.keys(sequence, start, key_head, group)) };
                slots.as_chunks().0
            })
        };
        let keys = slots(self.places.keys.start);
        let by_channel = self.shape.fades_by_channel();
        let sums = by_channel.then(|| slots(self.places.sums.start));
        let (n_vectors, is_first) = (self.layer.padded_dim() / LANES, span.is_first);
        let dim = self.shape.key_dim;
        let n_faded = dim.next_multiple_of(LANES) + if by_channel { CHUNK * dim } else { 0 };
        with_memory(&FLOATS, updates.len() + n_faded, 0.0, |scratch| {
            let (scaled, faded) = scratch.split_at_mut(updates.len());
            let state = StoredMut::new(self.dtype, state);
            let fold =
                Fold { state, is_first, n_vectors, keys, updates, decays, sums, scaled, faded };
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { (self.table.fold)(fold) };
        });
        if let Some(snapshot) = span.save {
            // The matrix is the first part of a layer in a snapshot.
            let at = self.snapshots.start(snapshot as usize) + *idx * state.len();
            // SAFETY: no two sequences of a step save to one snapshot, and a value head belongs to
            // one tile.
            let out = unsafe { self.store.part(at..at + state.len()) };
            out.copy_from_slice(state);
        }
    }
}
