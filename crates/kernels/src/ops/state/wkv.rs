//! The generalised delta rule of RWKV-7 (Peng et al., 2025): what a state forgets of a key has a
//! rate of its own for each element, and the key that is taken out is not the key that is put in.
//!
//! ```text
//! decay[t][d]   = exp(-exp(-1/2) · sigmoid(w[t][d]))
//! rate[t][d]    = sigmoid(a[t][d])
//! unit[t]       = k[t] ∘ removal_scale / |k[t] ∘ removal_scale|    per head; lane d % 16, halving
//! key[t]        = k[t] ∘ (1 + (rate[t] - 1) ∘ rate_scale)
//! value[t]      = v[t] + (first[t] - v[t]) ∘ sigmoid(mix[t])          behind the first layer
//!
//! known[e]      = Σ_d S[e][d] · -unit[t][d]                           fma from 0, d ascending
//! added[e][d]   = fma(known[e], unit[t][d] · rate[t][d], value[t][e] · key[t][d])
//! S[e][d]       = fma(S[e][d], decay[t][d], added[e][d])
//! y[t][e]       = Σ_d S[e][d] · r[t][d]                               fma from 0, d ascending
//! out[t]        = (norm(y[t]) + (Σ_d r[t][d] · key[t][d] · bonus[d]) · value[t]) ∘ gate[t]
//! ```
//!
//! A head of 64 x 64 is 16 KiB, which stays in the first-level cache while the rows of a step go over
//! it: five operations per element and row, where the matrices of a layer of width 2,048 take about
//! 80 times as many. So rows are computed one after the other, and this recurrence is the canonical
//! order. Lanes are values. A lane of a sequence keeps the prepared rows of its open chunk, and a
//! running state, see [`replay`](super::replay).
//!
//! Tried on paper and dropped: chunks by products of matrices. The removal key is no multiple of
//! the written one, so the triangular system has two kinds of products, and their factors are
//! quotients of decays down to `0.545^64`.

use std::cell::RefCell;
use std::ops::Range;

use pelton_tensor::StateDtype;

use super::replay::{Recurrence, Replay};
use super::scan::with_memory;
use super::sequence::check;
use super::shape::{Places, StateLayer, floats_of};
use super::store::Snapshots;
use super::wkv_row::{Advance, Finish, PARTS, Raw};
use super::{CHUNK, StateSeq, StateStore, Table};
use crate::Cpu;
use crate::ops::kv::StridedRows;
use crate::simd::LANES;
use crate::team::Parts;

thread_local! {
    /// States of the head at hand, a prepared row, and what is read from the state.
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// New rows of one layer; each of `[m, n_heads * dim]`.
#[derive(Clone, Debug)]
pub struct WkvInput<'a> {
    /// Elements of a key and of a value of a head.
    pub dim: usize,
    /// Receptances, which read the state (r).
    pub receptance: StridedRows<'a>,
    /// Decays before their sigmoid (w).
    pub decay: StridedRows<'a>,
    /// Keys (k).
    pub key: StridedRows<'a>,
    /// Values (v).
    pub value: StridedRows<'a>,
    /// In-context learning rates before their sigmoid (a).
    pub rate: StridedRows<'a>,
    /// Factors of the outputs (g).
    pub gate: StridedRows<'a>,
    /// Values of the first layer, and how much of them is mixed in, before its sigmoid; `None` in
    /// the first layer.
    pub residual: Option<[StridedRows<'a>; 2]>,
    /// Vectors of the layer.
    pub weights: WkvWeights<'a>,
    /// Sequences, by ascending rows that do not overlap.
    pub sequences: &'a [StateSeq<'a>],
}

/// Vectors of one layer, `[n_heads * dim]` each.
#[derive(Clone, Copy, Debug)]
pub struct WkvWeights<'a> {
    /// Factors of keys in removal keys (k_k).
    pub removal_scale: &'a [f32],
    /// How much of its rate a key is multiplied with (k_a).
    pub rate_scale: &'a [f32],
    /// Weight of a row's own value in its output (r_k).
    pub bonus: &'a [f32],
    /// Weight and bias of the norm of each head's output (ln_x).
    pub norm: [&'a [f32]; 2],
    /// Added to the variance in that norm.
    pub norm_eps: f32,
}

/// Everything the tiles of one call share.
struct Step<'a> {
    table: &'static Table,
    input: &'a WkvInput<'a>,
    /// Elements of a row.
    width: usize,
    /// Elements of a head in whole vectors.
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
    /// The recurrence of RWKV-7 over new rows, its output normed and gated; states advance in the
    /// store.
    ///
    /// Rows that may be taken back (drafts) must lie where [`scan`](Self::scan) says. Rows of `out`
    /// that belong to no sequence are left as they are.
    ///
    /// # Shapes
    ///
    /// `out`: `[m, n_heads * dim]`; those of `input` are at its fields.
    ///
    /// # Panics
    ///
    /// When shapes disagree, a lane or snapshot does not exist or is used twice, or a sequence does
    /// not continue its border.
    ///
    /// # Papers
    ///
    /// Peng et al., *RWKV-7 "Goose" with Expressive Dynamic State Evolution*, 2025. Ours keeps the
    /// state of a border and the rows behind it, so that rows can be taken back.
    pub fn wkv(&self, store: &mut StateStore, layer: usize, input: &WkvInput<'_>, out: &mut [f32]) {
        let (sizes, places) = store.layer(layer);
        input.check(&sizes);
        let width = sizes.update_width;
        assert!(out.len().is_multiple_of(width), "invariant: whole rows of out");
        check(input.sequences, store, out.len() / width);
        let step = Step {
            table: self.kernels.state,
            input,
            width,
            padded: sizes.padded_dim(),
            dtype: store.shape().dtype,
            places,
            lane_stride: store.lane_stride(),
            snapshots: store.snapshots(layer),
            store: Parts::new(store.floats_mut()),
            out: Parts::new(out),
        };
        self.team.for_each_tile_of_table(1, input.sequences.len() * sizes.n_heads, |tile| {
            step.head(&input.sequences[tile / sizes.n_heads], tile % sizes.n_heads);
        });
    }
}

impl WkvInput<'_> {
    /// Asserts that the sizes are those of the layer.
    fn check(&self, layer: &StateLayer) {
        let (n, width) = (self.dim, layer.update_width);
        assert!(layer.has_removal_keys, "invariant: the layer has removal keys");
        assert!(n > 0 && width > 0, "invariant: a state is not empty");
        let own = [layer.n_heads * n, layer.key_width, layer.matrix];
        assert_eq!(own, [width, width, n * width], "invariant: the sizes are those of the layer");
        let WkvWeights { removal_scale, rate_scale, bonus, norm: [weight, bias], .. } =
            self.weights;
        let is_whole =
            [removal_scale, rate_scale, bonus, weight, bias].iter().all(|x| x.len() == width);
        assert!(is_whole, "invariant: a weight per element of a row");
    }
}

impl<'a> Step<'a> {
    /// Elements of a row of the step.
    fn part(&self, rows: &StridedRows<'a>, row: usize, own: &Range<usize>) -> &'a [f32] {
        &rows.row(row, self.width)[own.clone()]
    }

    /// All rows of one head of one sequence.
    fn head(&self, sequence: &StateSeq<'_>, head: usize) {
        if sequence.rows.is_empty() {
            return;
        }
        let (n, padded) = (self.input.dim, self.padded);
        let n_state = padded * n;
        let n_running = padded / LANES * (n + 1) * LANES;
        let lane = sequence.lane * self.lane_stride;
        let n_kept = floats_of(self.dtype, n_state);
        let state = lane + self.places.matrix.start + head * n_kept;
        let running = lane + self.places.running.start + head * n_running;
        let replay = Replay {
            store: &self.store,
            snapshots: self.snapshots,
            sequence,
            dtype: self.dtype,
            state: state..state + n_kept,
            running: running..running + n_running,
            first: head * n_kept,
            n_vector: n * LANES,
        };
        with_memory(&FLOATS, 2 * n_state + (PARTS + 1) * padded, 0.0, |memory| {
            let (now, rest) = memory.split_at_mut(n_state);
            let (base, rest) = rest.split_at_mut(n_state);
            let (prepared, read) = rest.split_at_mut(PARTS * padded);
            replay.run(&mut Head { step: self, sequence, head, prepared, read }, now, base);
        });
    }
}

/// One head of one sequence.
struct Head<'a, 's> {
    step: &'a Step<'a>,
    sequence: &'a StateSeq<'a>,
    head: usize,
    /// The prepared row at hand.
    prepared: &'s mut [f32],
    /// The sums that the receptance reads from the state, `[dim in whole vectors]`.
    read: &'s mut [f32],
}

impl Head<'_, '_> {
    /// Where the prepared row of a slot is.
    fn slot(&self, slot: usize) -> Range<usize> {
        let Step { lane_stride, padded, ref places, .. } = *self.step;
        let n = PARTS * padded;
        let row = self.head * CHUNK + slot;
        let at = self.sequence.lane * lane_stride + places.updates.start + row * n;
        at..at + n
    }
}

impl<'a> Recurrence for Head<'a, '_> {
    fn take_in(&mut self, slot: usize, _new: Option<usize>, state: &mut [f32]) {
        let Step { input, table, ref store, .. } = *self.step;
        // SAFETY: the rows of a head of a lane belong to one tile, which writes none meanwhile.
        let row = unsafe { store.shared(self.slot(slot)) };
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe {
            (table.wkv_advance)(&Advance { row, dim: input.dim, read: None }, state, &mut [])
        };
    }

    fn compute(&mut self, row: usize, slot: Option<usize>, state: &mut [f32]) {
        let step = self.step;
        let Step { input, table, width, padded, .. } = *step;
        let own = self.head * input.dim..(self.head + 1) * input.dim;
        let of = |rows: &StridedRows<'a>| step.part(rows, row, &own);
        let WkvWeights { removal_scale, rate_scale, bonus, norm, norm_eps } = input.weights;
        let raw = Raw {
            decay: of(&input.decay),
            key: of(&input.key),
            value: of(&input.value),
            rate: of(&input.rate),
            residual: input.residual.as_ref().map(|[first, mix]| [of(first), of(mix)]),
            removal_scale: &removal_scale[own.clone()],
            rate_scale: &rate_scale[own.clone()],
        };
        let receptance = of(&input.receptance);
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe {
            (table.wkv_prepare)(&raw, self.prepared);
            let task = Advance { row: self.prepared, dim: input.dim, read: Some(receptance) };
            (table.wkv_advance)(&task, state, self.read);
        }
        if let Some(slot) = slot {
            // SAFETY: the rows of a head of a lane belong to one tile.
            unsafe { self.step.store.part(self.slot(slot)) }.copy_from_slice(self.prepared);
        }
        let part = |i: usize| &self.prepared[i * padded..][..input.dim];
        let task = Finish {
            read: &self.read[..input.dim],
            receptance,
            key: part(3),
            value: part(4),
            gate: of(&input.gate),
            bonus: &bonus[own.clone()],
            norm: norm.map(|x| &x[own.clone()]),
            eps: norm_eps,
        };
        let at = row * width;
        // SAFETY: a head of a row belongs to one tile; the kernels of a `Cpu` are available on this
        // machine.
        unsafe {
            let out = self.step.out.part(at + own.start..at + own.end);
            (table.wkv_finish)(&task, out);
        }
    }
}
