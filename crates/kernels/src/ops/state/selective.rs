//! The selective scan (Gu and Dao, 2023: Mamba 1), in which every element of a channel's state decays
//! at a rate of its own.
//!
//! ```text
//! step[t][c] = softplus(steps[t][c])
//! h[n][c]    = exp(step · rate[n][c]) · h[n][c] + (step · x[t][c]) · key[t][n]     one fma
//! y[t][c]    = Σ_n h[n][c] · query[t][n]                       fma from 0, n ascending
//! out[t][c]  = (skip[c] · x[t][c] + y[t][c]) · silu(gate[t][c])
//! ```
//!
//! The decay is 0 where it is below 2⁻⁶⁴, so that neither it nor what it fades become subnormal numbers,
//! with which some processors multiply very slowly.
//!
//! No product of matrices covers a chunk of such rows, so rows are computed one after the other,
//! and this recurrence is the canonical order. Lanes are channels. A lane of a sequence keeps x,
//! step and key of each row of its open chunk, and a running state, see [`replay`](super::replay).
//!
//! A decoding row reads and writes the running state once; it is `state_dim` exponentials per channel.

use std::cell::RefCell;
use std::ops::Range;

use pelton_tensor::StateDtype;

use super::conv::load;
use super::replay::{Recurrence, Replay};
use super::scan::with_memory;
use super::sequence::check;
use super::shape::{Places, StateLayer, floats_of};
use super::store::Snapshots;
use super::{StateSeq, StateStore, Table};
use crate::Cpu;
use crate::ops::kv::StridedRows;
use crate::simd::math::{decay, softplus, times_sigmoid};
use crate::simd::{LANES, Simd, shells};
use crate::team::Parts;

/// Channels of a tile.
const COLUMNS: usize = 64;

thread_local! {
    /// States and rates of the tile at hand.
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// New rows of one layer.
#[derive(Clone, Debug)]
pub struct SelectiveInput<'a> {
    /// Elements of the state of a channel.
    pub state_dim: usize,
    /// Inputs, convolved: `[m, channels]`.
    pub x: StridedRows<'a>,
    /// Time steps before their softplus, `[m, channels]`.
    pub steps: StridedRows<'a>,
    /// Factors with which the input of a row enters the elements of a state (B): `[m, state_dim]`.
    pub keys: StridedRows<'a>,
    /// Weights of the elements of a state in the output of a row (C): `[m, state_dim]`.
    pub queries: StridedRows<'a>,
    /// Gates before their SiLU, `[m, channels]`.
    pub gates: StridedRows<'a>,
    /// Rates of the decays (A), negative: `[state_dim, channels]`.
    pub rates: &'a [f32],
    /// Factors of the inputs that are added to the outputs (D): `[channels]`.
    pub skip: &'a [f32],
    /// Sequences, by ascending rows that do not overlap.
    pub sequences: &'a [StateSeq<'a>],
}

/// A stretch of channels of one row.
pub(super) struct Row<'a> {
    x: &'a [f32],
    /// Time steps.
    steps: &'a [f32],
    keys: &'a [f32],
    /// `[vector][state_dim][16]`.
    rates: &'a [f32],
    /// Inputs of the output of the row; `None` where only the state moves on.
    read: Option<Read<'a>>,
}

/// Inputs of the output of a row, beside the state.
struct Read<'a> {
    queries: &'a [f32],
    skip: &'a [f32],
    gates: &'a [f32],
}

/// Moves a state, `[vector][state_dim][16]`, over a row, and writes the output where one is wanted.
#[inline(always)]
fn row<S: Simd>(s: S, task: &Row<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = task.keys.len();
    let vectors = state.as_chunks_mut::<LANES>().0.chunks_exact_mut(n);
    let rates = task.rates.as_chunks::<LANES>().0.chunks_exact(n);
    for (i, (state, rates)) in vectors.zip(rates).enumerate() {
        let own = i * LANES..task.x.len().min((i + 1) * LANES);
        let (x, step) = (load(s, &task.x[own.clone()]), load(s, &task.steps[own.clone()]));
        let input = s.mul(step, x);
        let mut sum = s.splat(0.0);
        for j in 0..n {
            let decay = decay(s, s.mul(step, s.load(&rates[j])));
            let added = s.mul(input, s.splat(task.keys[j]));
            let moved = s.fma(decay, s.load(&state[j]), added);
            s.store(moved, &mut state[j]);
            if let Some(read) = &task.read {
                sum = s.fma(moved, s.splat(read.queries[j]), sum);
            }
        }
        if let Some(read) = &task.read {
            let gate = load(s, &read.gates[own.clone()]);
            let sum = s.fma(load(s, &read.skip[own.clone()]), x, sum);
            let gated = s.mul(sum, times_sigmoid(s, gate, gate));
            match out[own.clone()].first_chunk_mut() {
                Some(out) => s.store(gated, out),
                None => s.store_part(gated, &mut out[own]),
            }
        }
    }
}

/// `out = softplus(x)`.
#[inline(always)]
fn softplus_all<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    for at in (0..x.len()).step_by(LANES) {
        let own = at..x.len().min(at + LANES);
        let y = softplus(s, load(s, &x[own.clone()]));
        match out[own.clone()].first_chunk_mut() {
            Some(out) => s.store(y, out),
            None => s.store_part(y, &mut out[own]),
        }
    }
}

shells! { pub(super) mod row_shells = row(task: &Row<'_>, state: &mut [f32], out: &mut [f32]) }
shells! { pub(super) mod softplus_shells = softplus_all(x: &[f32], out: &mut [f32]) }

/// Everything the tiles of one call share.
struct Step<'a> {
    table: &'static Table,
    input: &'a SelectiveInput<'a>,
    channels: usize,
    /// Channels in whole vectors.
    padded: usize,
    dtype: StateDtype,
    places: Places,
    lane_stride: usize,
    snapshots: Snapshots,
    /// All lanes and snapshots.
    store: Parts<'a, f32>,
    out: Parts<'a, f32>,
}

impl Cpu {
    /// The selective scan of new rows, its output gated; states advance in the store.
    ///
    /// Rows that may be taken back (drafts) must lie where [`scan`](Self::scan) says. Rows of `out`
    /// that belong to no sequence are left as they are.
    ///
    /// # Shapes
    ///
    /// `out`: `[m, channels]`; those of `input` are at its fields.
    ///
    /// # Panics
    ///
    /// When shapes disagree, a lane or snapshot does not exist or is used twice, or a sequence does
    /// not continue its border.
    ///
    /// # Papers
    ///
    /// Gu and Dao, *Mamba: Linear-Time Sequence Modeling with Selective State Spaces*, 2023. Ours
    /// keeps the state of a border and the rows behind it, so that rows can be taken back.
    pub fn selective_scan(
        &self,
        store: &mut StateStore,
        layer: usize,
        input: &SelectiveInput<'_>,
        out: &mut [f32],
    ) {
        let (sizes, places) = store.layer(layer);
        let channels = sizes.update_width;
        input.check(&sizes);
        assert!(out.len().is_multiple_of(channels), "invariant: whole rows of out");
        check(input.sequences, store, out.len() / channels);
        let lane_stride = store.lane_stride();
        let step = Step {
            table: self.kernels.state,
            input,
            channels,
            padded: sizes.padded_dim(),
            dtype: store.shape().dtype,
            places: places.clone(),
            lane_stride,
            snapshots: store.snapshots(layer),
            store: Parts::new(store.floats_mut()),
            out: Parts::new(out),
        };
        let per_sequence = channels.div_ceil(COLUMNS);
        self.team.for_each_tile_of_table(1, input.sequences.len() * per_sequence, |tile| {
            let first = tile % per_sequence * COLUMNS;
            step.columns(
                &input.sequences[tile / per_sequence],
                first..channels.min(first + COLUMNS),
            );
        });
        // All tiles of a sequence read the keys of its open chunk, so they are written last.
        for sequence in input.sequences.iter().filter(|sequence| !sequence.rows.is_empty()) {
            let span = sequence.span(sequence.n_spans() - 1);
            let lane = &mut store.floats_mut()[sequence.lane * lane_stride..];
            let keys = &mut lane[places.keys.clone()];
            for (i, row) in span.rows.enumerate() {
                for (n, key) in input.keys.row(row, input.state_dim).iter().enumerate() {
                    keys[key_place(span.first_slot + i, n, input.state_dim)] = *key;
                }
            }
        }
    }
}

/// Where element `n` of the key of a slot is.
fn key_place(slot: usize, n: usize, state_dim: usize) -> usize {
    (slot / LANES * state_dim + n) * LANES + slot % LANES
}

impl SelectiveInput<'_> {
    /// Asserts that the sizes are those of the layer.
    fn check(&self, layer: &StateLayer) {
        let (n, channels) = (self.state_dim, layer.update_width);
        assert!(layer.is_selective, "invariant: the layer is selective");
        assert!(n > 0 && channels > 0, "invariant: a state is not empty");
        let own = [layer.key_width, layer.matrix];
        assert_eq!([n, n * channels], own, "invariant: the sizes are those of the layer");
        let is_whole = self.rates.len() == n * channels && self.skip.len() == channels;
        assert!(is_whole, "invariant: a rate per element and a factor per channel");
    }
}

/// A stretch of channels of one sequence.
struct Tile<'a, 's> {
    step: &'a Step<'a>,
    sequence: &'a StateSeq<'a>,
    columns: Range<usize>,
    /// As the states lie.
    rates: &'s [f32],
    /// Key of a row of the open chunk.
    key: &'s mut [f32],
}

impl Step<'_> {
    /// All rows of a stretch of channels of one sequence.
    fn columns(&self, sequence: &StateSeq<'_>, columns: Range<usize>) {
        if sequence.rows.is_empty() {
            return;
        }
        let n = self.input.state_dim;
        let n_vectors = columns.len().div_ceil(LANES);
        let n_state = n_vectors * LANES * n;
        let lane = sequence.lane * self.lane_stride;
        let n_running = n_vectors * (n + 1) * LANES;
        let [first, n_kept] = [columns.start * n, n_state].map(|n| floats_of(self.dtype, n));
        let state = lane + self.places.matrix.start + first;
        let running = lane + self.places.running.start + columns.start * (n + 1);
        let replay = Replay {
            store: &self.store,
            snapshots: self.snapshots,
            sequence,
            dtype: self.dtype,
            state: state..state + n_kept,
            running: running..running + n_running,
            first,
            n_vector: n * LANES,
        };
        with_memory(&FLOATS, 3 * n_state + n, 0.0, |memory| {
            let (now, rest) = memory.split_at_mut(n_state);
            let (base, rest) = rest.split_at_mut(n_state);
            let (rates, key) = rest.split_at_mut(n_state);
            self.read_rates(&columns, rates);
            let mut tile = Tile { step: self, sequence, columns, rates, key };
            replay.run(&mut tile, now, base);
        });
    }

    /// The rates of a stretch of channels as the states lie; those of missing channels are 0.
    fn read_rates(&self, columns: &Range<usize>, out: &mut [f32]) {
        let n = self.input.state_dim;
        for (i, vector) in out.chunks_exact_mut(n * LANES).enumerate() {
            let first = columns.start + i * LANES;
            let own = first..columns.end.min(first + LANES);
            for (j, out) in vector.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let rates = &self.input.rates[j * self.channels..][own.clone()];
                out[..rates.len()].copy_from_slice(rates);
                out[rates.len()..].fill(0.0);
            }
        }
    }
}

impl Recurrence for Tile<'_, '_> {
    fn take_in(&mut self, slot: usize, new: Option<usize>, state: &mut [f32]) {
        let Step { input, table, lane_stride, ref places, ref store, .. } = *self.step;
        // SAFETY: a stretch of channels of a lane belongs to one tile, which writes no row
        // meanwhile; keys are written when all tiles are done.
        let (x, steps, keys) = unsafe {
            let start = self.sequence.lane * lane_stride + places.keys.start;
            let keys = store.shared(start..start + places.keys.len());
            (store.shared(self.slot_of_x(slot)), store.shared(self.slot_of_step(slot)), keys)
        };
        match new {
            Some(row) => self.key.copy_from_slice(input.keys.row(row, input.state_dim)),
            None => (self.key.iter_mut().enumerate())
                .for_each(|(n, key)| *key = keys[key_place(slot, n, input.state_dim)]),
        }
        let task = Row { x, steps, keys: self.key, rates: self.rates, read: None };
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (table.selective)(&task, state, &mut []) };
    }

    fn compute(&mut self, row: usize, slot: Option<usize>, state: &mut [f32]) {
        let Step { input, table, channels, .. } = *self.step;
        let own = self.columns.clone();
        let x = &input.x.row(row, channels)[own.clone()];
        let mut steps = [0.0; COLUMNS];
        let steps = &mut steps[..own.len()];
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (table.softplus)(&input.steps.row(row, channels)[own.clone()], steps) };
        if let Some(slot) = slot {
            // SAFETY: a stretch of channels of a lane belongs to one tile.
            unsafe {
                self.step.store.part(self.slot_of_x(slot)).copy_from_slice(x);
                self.step.store.part(self.slot_of_step(slot)).copy_from_slice(steps);
            }
        }
        let read = Read {
            queries: input.queries.row(row, input.state_dim),
            skip: &input.skip[own.clone()],
            gates: &input.gates.row(row, channels)[own.clone()],
        };
        let keys = input.keys.row(row, input.state_dim);
        let task = Row { x, steps, keys, rates: self.rates, read: Some(read) };
        let at = row * channels;
        // SAFETY: a stretch of channels of a row belongs to one tile; the kernels of a `Cpu` are
        // available on this machine.
        unsafe {
            let out = self.step.out.part(at + own.start..at + own.end);
            (table.selective)(&task, state, out);
        }
    }
}

impl Tile<'_, '_> {
    fn slot_of_x(&self, slot: usize) -> Range<usize> {
        self.in_slot(self.step.places.updates.start, slot)
    }

    fn slot_of_step(&self, slot: usize) -> Range<usize> {
        self.in_slot(self.step.places.decays.start, slot)
    }

    /// The tile's channels of a slot, in the part that begins at `part`.
    fn in_slot(&self, part: usize, slot: usize) -> Range<usize> {
        let start = self.sequence.lane * self.step.lane_stride + part + slot * self.step.padded;
        start + self.columns.start..start + self.columns.end
    }
}
