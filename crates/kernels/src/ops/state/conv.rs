//! Causal depthwise convolution over time.
//!
//! ```text
//! out[p][c] = act(bias[c] + Σ_j w[j][c] · x[p - taps + 1 + j][c])     fma, j ascending
//!
//! x before the step    raw rows of the open chunk    tail: taps - 1 rows before the border    0
//! ```
//!
//! Weights lie `[taps][channels]`, so lanes are channels. A tile is a stretch of channels of one
//! sequence: it computes all rows, then writes their inputs to the lane, so that nothing else reads
//! what it writes. With 4 taps a row moves 40 bytes and does 8 operations and an exponential per
//! channel.

use super::sequence::check;
use super::shape::{Places, StateLayer};
use super::store::Snapshots;
use super::{CHUNK, MAX_TAPS, StateSeq, StateStore, Table};
use crate::Cpu;
use crate::ops::kv::StridedRows;
use crate::simd::math::times_sigmoid;
use crate::simd::{LANES, Simd, shells};
use crate::team::Parts;

/// Channels of a tile.
const COLUMNS: usize = 256;

/// Inputs before position 0.
const ZEROS: [f32; COLUMNS] = [0.0; COLUMNS];

/// Weights of a convolution over time.
#[derive(Clone, Copy, Debug)]
pub struct ConvWeights<'a> {
    /// `[n_filters][taps][channels]`, the last tap being the row's own.
    pub weights: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// Taps; at most 16.
    pub taps: usize,
    /// Convolutions of the same inputs; one, unless a row is mixed with the one before it in
    /// several ways (the token shift of RWKV, with two taps).
    pub n_filters: usize,
}

impl ConvWeights<'_> {
    /// Channels.
    ///
    /// # Panics
    ///
    /// When there are no taps or more than 16, or the sizes disagree.
    fn channels(&self) -> usize {
        let Self { weights, bias, taps, n_filters } = *self;
        assert!((1..=MAX_TAPS).contains(&taps), "invariant: at most {MAX_TAPS} taps, not {taps}");
        assert!(n_filters > 0, "invariant: at least one convolution");
        assert!(weights.len().is_multiple_of(n_filters * taps), "invariant: whole channels");
        let channels = weights.len() / (n_filters * taps);
        let is_whole = bias.is_none_or(|bias| bias.len() == channels);
        assert!(is_whole, "invariant: a bias per channel");
        channels
    }
}

/// New rows of the convolution of one layer.
#[derive(Clone, Debug)]
pub struct ConvInput<'a> {
    /// Inputs `[m, channels]`.
    pub x: StridedRows<'a>,
    /// Weights of the layer.
    pub weights: ConvWeights<'a>,
    /// Whether SiLU follows.
    pub has_silu: bool,
    /// Sequences, by ascending rows that do not overlap.
    pub sequences: &'a [StateSeq<'a>],
}

/// A stretch of channels of one row.
pub(super) struct Row<'a> {
    /// The inputs of each tap, oldest first.
    inputs: &'a [&'a [f32]],
    /// The weights of each tap.
    weights: &'a [&'a [f32]],
    bias: Option<&'a [f32]>,
    has_silu: bool,
}

/// At most sixteen floats; the missing lanes are 0.
#[inline(always)]
pub(super) fn load<S: Simd>(s: S, x: &[f32]) -> S::F {
    match x.first_chunk() {
        Some(x) => s.load(x),
        None => s.load_part(x, 0.0),
    }
}

/// Writes the outputs of a stretch of channels.
#[inline(always)]
fn row<S: Simd>(s: S, task: &Row<'_>, out: &mut [f32]) {
    for at in (0..out.len()).step_by(LANES) {
        let end = out.len().min(at + LANES);
        let mut acc = match task.bias {
            Some(bias) => load(s, &bias[at..end]),
            None => s.splat(0.0),
        };
        for (input, weight) in task.inputs.iter().zip(task.weights) {
            acc = s.fma(load(s, &weight[at..end]), load(s, &input[at..end]), acc);
        }
        if task.has_silu {
            acc = times_sigmoid(s, acc, acc);
        }
        match out[at..end].first_chunk_mut() {
            Some(out) => s.store(acc, out),
            None => s.store_part(acc, &mut out[at..end]),
        }
    }
}

shells! { pub(super) mod row_shells = row(task: &Row<'_>, out: &mut [f32]) }

/// Everything the tiles of one call share.
struct Step<'a> {
    table: &'static Table,
    input: &'a ConvInput<'a>,
    /// Rows of the output of one convolution.
    n_out_rows: usize,
    layer: StateLayer,
    places: Places,
    lane_stride: usize,
    snapshots: Snapshots,
    store: Parts<'a, f32>,
    out: Parts<'a, f32>,
}

/// Where the input of a row is that comes before the rows of a step, or among them.
#[derive(Clone, Copy)]
enum Input {
    /// Row of the step.
    Step(usize),
    /// Slot of the open chunk.
    Open(usize),
    /// Row of the tail.
    Tail(usize),
    /// Before position 0.
    Zero,
}

impl Cpu {
    /// Causal depthwise convolution of new rows over time; the lanes keep what later rows need.
    ///
    /// Inputs before position 0 count as zeros. A row of a tree of drafts takes its ancestors' inputs.
    /// Rows of `out` that belong to no sequence are left as they are.
    ///
    /// # Shapes
    ///
    /// `input.x`: rows of `channels`; `out`: `[n_filters, m, channels]`.
    ///
    /// # Panics
    ///
    /// When shapes disagree, a lane or snapshot does not exist or is used twice, or a sequence does
    /// not continue its border.
    pub fn conv_rows(
        &self,
        store: &mut StateStore,
        layer: usize,
        input: &ConvInput<'_>,
        out: &mut [f32],
    ) {
        let (sizes, places) = store.layer(layer);
        let own = [sizes.channels, sizes.taps];
        let asked = [input.weights.channels(), input.weights.taps];
        assert_eq!(own, asked, "invariant: channels and taps are those of the layer");
        let channels = sizes.channels;
        assert!(channels > 0, "invariant: a convolution has channels");
        let n_filters = input.weights.n_filters;
        let is_whole = out.len().is_multiple_of(n_filters * channels);
        assert!(is_whole, "invariant: whole rows of out");
        let n_out_rows = out.len() / (n_filters * channels);
        check(input.sequences, store, n_out_rows);
        let step = Step {
            table: self.kernels.state,
            input,
            n_out_rows,
            layer: sizes,
            places,
            lane_stride: store.lane_stride(),
            snapshots: store.snapshots(layer),
            store: Parts::new(store.floats_mut()),
            out: Parts::new(out),
        };
        let per_sequence = channels.div_ceil(COLUMNS);
        let n_rows = input.sequences.last().map_or(0, |last| last.rows.end);
        let n_items = input.sequences.len() * per_sequence;
        // An exponential, a division and the taps weigh like about eight plain elements.
        let n_elements = 8 * n_rows.div_ceil(input.sequences.len().max(1)) * COLUMNS.min(channels);
        self.for_each_part(n_items, n_elements, |items| {
            for item in items {
                let first = item % per_sequence * COLUMNS;
                let columns = first..channels.min(first + COLUMNS);
                step.columns(&input.sequences[item / per_sequence], columns);
            }
        });
    }
}

impl Step<'_> {
    /// All rows of a stretch of channels of one sequence.
    fn columns(&self, sequence: &StateSeq<'_>, columns: std::ops::Range<usize>) {
        for filter in 0..self.input.weights.n_filters {
            self.filter(sequence, filter, columns.clone());
        }
        self.keep(sequence, &columns);
    }

    /// One convolution of all rows of a stretch of channels of one sequence.
    fn filter(&self, sequence: &StateSeq<'_>, filter: usize, columns: std::ops::Range<usize>) {
        let weights = self.input.weights;
        let (taps, channels) = (weights.taps, self.layer.channels);
        let mut of_taps: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
        for (j, of_tap) in of_taps[..taps].iter_mut().enumerate() {
            *of_tap = &weights.weights[(filter * taps + j) * channels..][columns.clone()];
        }
        for row in 0..sequence.rows.len() {
            let mut inputs: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
            self.walk(sequence, row, |back, input| {
                inputs[taps - 1 - back] = self.read(sequence, input, columns.clone());
            });
            let task = Row {
                inputs: &inputs[..taps],
                weights: &of_taps[..taps],
                bias: weights.bias.map(|bias| &bias[columns.clone()]),
                has_silu: self.input.has_silu,
            };
            let at = (filter * self.n_out_rows + sequence.rows.start + row) * channels;
            // SAFETY: a stretch of channels of a sequence belongs to one tile; the kernels of a
            // `Cpu` are available on this machine.
            unsafe {
                let out = self.out.part(at + columns.start..at + columns.end);
                (self.table.conv)(&task, out);
            }
        }
    }

    /// Calls `f` with the inputs of a row and of the `taps - 1` before it, and how far back each is.
    fn walk(&self, sequence: &StateSeq<'_>, row: usize, mut f: impl FnMut(usize, Input)) {
        let mut node = row as u32;
        let mut before = 0;
        for back in 0..self.layer.taps {
            if node == StateSeq::ROOT {
                before += 1;
                f(back, self.before(sequence, before));
            } else {
                f(back, Input::Step(sequence.rows.start + node as usize));
                node = sequence.parent(node as usize);
            }
        }
    }

    /// The input `back` (from 1) rows before the first of the step.
    fn before(&self, sequence: &StateSeq<'_>, back: usize) -> Input {
        let (open, n_tail) = (sequence.first_position - sequence.border, self.layer.taps - 1);
        match open.checked_sub(back) {
            Some(slot) => Input::Open(slot),
            None if sequence.border == 0 => Input::Zero,
            None => Input::Tail(n_tail + open - back),
        }
    }

    /// A stretch of channels of an input.
    fn read(
        &self,
        sequence: &StateSeq<'_>,
        input: Input,
        columns: std::ops::Range<usize>,
    ) -> &[f32] {
        let at = match input {
            Input::Step(row) => return &self.input.x.row(row, self.layer.channels)[columns],
            Input::Zero => return &ZEROS[..columns.len()],
            Input::Open(slot) => self.at(sequence, self.places.raw.start, slot, &columns),
            Input::Tail(row) => self.at(sequence, self.places.tail.start, row, &columns),
        };
        // SAFETY: a stretch of channels of a lane belongs to one tile, which writes it only when no
        // input is in use any more.
        unsafe { self.store.shared(at) }
    }

    /// Where a stretch of channels of a row of the lane is, in the part that begins at `part`.
    fn at(
        &self,
        sequence: &StateSeq<'_>,
        part: usize,
        row: usize,
        columns: &std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        let start = sequence.lane * self.lane_stride + part + row * self.layer.channels;
        start + columns.start..start + columns.end
    }

    /// Writes the inputs that later steps read: tails at borders, then the rows of the open chunk.
    fn keep(&self, sequence: &StateSeq<'_>, columns: &std::ops::Range<usize>) {
        let n_spans = sequence.n_spans();
        for chunk in 0..n_spans {
            let span = sequence.span(chunk);
            if let Some(snapshot) = span.save {
                // The tail lies in a snapshot as it lies in a lane, from the matrix on.
                let tail = self.places.tail.start - self.places.matrix.start;
                let start = self.snapshots.start(snapshot as usize) + tail;
                self.write_tail(sequence, chunk, start, columns);
            }
            if chunk + 2 == n_spans {
                let start = sequence.lane * self.lane_stride + self.places.tail.start;
                self.write_tail(sequence, chunk, start, columns);
            }
            if chunk + 1 == n_spans {
                for (i, row) in span.rows.enumerate() {
                    let to = self.at(sequence, self.places.raw.start, span.first_slot + i, columns);
                    self.copy(sequence, Input::Step(row), to, columns);
                }
            }
        }
    }

    /// Writes the tail after chunk `chunk` to the rows that begin at `start`.
    fn write_tail(
        &self,
        sequence: &StateSeq<'_>,
        chunk: usize,
        start: usize,
        columns: &std::ops::Range<usize>,
    ) {
        let (n_tail, channels) = (self.layer.taps - 1, self.layer.channels);
        let open = sequence.first_position - sequence.border;
        for row in 0..n_tail {
            // Slots count from the border before the step.
            let slot = (chunk + 1) * CHUNK - n_tail + row;
            let from = match slot.checked_sub(open) {
                Some(row) => Input::Step(sequence.rows.start + row),
                None => Input::Open(slot),
            };
            let to = start + row * channels;
            self.copy(sequence, from, to + columns.start..to + columns.end, columns);
        }
    }

    /// Copies a stretch of channels of an input to `to`.
    fn copy(
        &self,
        sequence: &StateSeq<'_>,
        from: Input,
        to: std::ops::Range<usize>,
        columns: &std::ops::Range<usize>,
    ) {
        let from = self.read(sequence, from, columns.clone());
        // SAFETY: a stretch of channels of a lane, and of a snapshot that one sequence saves to,
        // belongs to one tile; open rows go to tails, and rows of the step to open rows.
        let out = unsafe { self.store.part(to) };
        out.copy_from_slice(from);
    }
}
