//! Recurrences whose rows are computed one after the other: where a step begins, and what it keeps.
//!
//! ```text
//! positions   border ..................... first_position ...
//!             |-- the open chunk ---------------|- new rows
//! states      ^ at the border      ^ running: the rows before this are in it
//! ```
//!
//! A step begins with the running state, takes in the rows that it lacks, and keeps it anew after
//! its first row, which is a token that was sampled. Drafts after that row are in no state, so
//! rejecting them is overwriting their rows. Where rows that the running state has are overwritten
//! it is void, and the step begins at the border.
//!
//! The running state is f32 whatever type the store has. A chunk begins with the state at its border as
//! it is stored, rounded or not, whether the step went over the border or begins behind it.

use std::ops::Range;

use pelton_tensor::StateDtype;

use super::element::{Stored, StoredMut};
use super::sequence::{Span, ancestors};
use super::store::Snapshots;
use super::{CHUNK, StateSeq};
use crate::simd::LANES;
use crate::team::Parts;

/// The rows of a tile: a stretch of the states of one sequence that depends on no other stretch.
pub(super) trait Recurrence {
    /// Moves the state over a row of the open chunk, which is the row `new` of the step where it is
    /// one.
    fn take_in(&mut self, slot: usize, new: Option<usize>, state: &mut [f32]);

    /// Computes a row of the step, moves the state over it, and writes it to its slot of the open
    /// chunk if it has one.
    fn compute(&mut self, row: usize, slot: Option<usize>, state: &mut [f32]);
}

/// The states of a tile.
///
/// ```text
/// running   of each vector of values:  | rows of the open chunk in it, 16 times | its state |
/// ```
pub(super) struct Replay<'a> {
    /// All lanes and snapshots.
    pub(super) store: &'a Parts<'a, f32>,
    pub(super) snapshots: Snapshots,
    pub(super) sequence: &'a StateSeq<'a>,
    /// Type of the state at the border.
    pub(super) dtype: StateDtype,
    /// The state at the border of the lane, as it is stored.
    pub(super) state: Range<usize>,
    /// The running state of the lane.
    pub(super) running: Range<usize>,
    /// First float of the tile within the states of a layer.
    pub(super) first: usize,
    /// Floats of the state of a vector of values.
    pub(super) n_vector: usize,
}

impl Replay<'_> {
    /// All rows of the step; `now` becomes the state behind the last one, `base` is scratch, both
    /// as long as the state.
    pub(super) fn run(&self, rows: &mut impl Recurrence, now: &mut [f32], base: &mut [f32]) {
        self.begin(rows, now);
        for chunk in 0..self.sequence.n_spans() {
            self.chunk(chunk, rows, now, base);
        }
    }

    /// Begins behind the last row before the step.
    fn begin(&self, rows: &mut impl Recurrence, now: &mut [f32]) {
        let open = self.sequence.first_position - self.sequence.border;
        // SAFETY: the states of a tile belong to it.
        let (running, state) = unsafe {
            (self.store.shared(self.running.clone()), self.store.shared(self.state.clone()))
        };
        // One number for all vectors of a tile: they are kept together.
        let n_rows = running[0] as usize;
        let n_done = if n_rows > open { 0 } else { n_rows };
        if n_done > 0 {
            let kept = running.chunks_exact(self.n_vector + LANES);
            for (now, kept) in now.chunks_exact_mut(self.n_vector).zip(kept) {
                now.copy_from_slice(&kept[LANES..]);
            }
        } else if self.sequence.border == 0 {
            now.fill(0.0);
        } else {
            Stored::new(self.dtype, state).widen(now);
        }
        for slot in n_done..open {
            rows.take_in(slot, None, now);
        }
    }

    /// The rows of a chunk, and the state behind it where the step goes on.
    fn chunk(&self, chunk: usize, rows: &mut impl Recurrence, now: &mut [f32], base: &mut [f32]) {
        let span = self.sequence.span(chunk);
        let is_open = !span.is_folded;
        if is_open && span.rows.start > self.sequence.rows.start {
            // The rows behind the border are taken in by the next step.
            self.keep(0, now);
        }
        if self.sequence.tree.is_some() {
            base.copy_from_slice(now);
        }
        for (i, row) in span.rows.clone().enumerate() {
            self.branch(&span, i, rows, now, base);
            rows.compute(row, is_open.then_some(span.first_slot + i), now);
            if is_open && row == self.sequence.rows.start {
                self.keep(span.first_slot + i + 1, now);
            }
        }
        if span.is_folded {
            // SAFETY: the states of a tile belong to it.
            let kept = unsafe { self.store.part(self.state.clone()) };
            StoredMut::new(self.dtype, kept).narrow(now);
            // The next chunk begins as it does where a later step begins at the border.
            Stored::new(self.dtype, kept).widen(now);
            if let Some(snapshot) = span.save {
                // The matrix is the first part of a layer in a snapshot.
                let at = self.snapshots.start(snapshot as usize) + self.first;
                // SAFETY: no two sequences of a step save to one snapshot, and a stretch of it
                // belongs to one tile.
                let out = unsafe { self.store.part(at..at + kept.len()) };
                out.copy_from_slice(kept);
            }
        }
    }

    /// Goes back to the parent of row `i` of a tree, where that is not the row before it.
    fn branch(
        &self,
        span: &Span,
        i: usize,
        rows: &mut impl Recurrence,
        now: &mut [f32],
        base: &[f32],
    ) {
        let Some(parents) = self.sequence.tree else { return };
        if parents[i] == (i as u32).wrapping_sub(1) {
            return;
        }
        now.copy_from_slice(base);
        let mut path = [0; CHUNK];
        for node in ancestors(parents, i, &mut path) {
            let node = usize::from(*node);
            rows.take_in(span.first_slot + node, Some(span.rows.start + node), now);
        }
    }

    /// Keeps the state at hand as the running one, with the first `n_rows` rows of the open chunk.
    fn keep(&self, n_rows: usize, now: &[f32]) {
        // SAFETY: the states of a tile belong to it.
        let kept = unsafe { self.store.part(self.running.clone()) };
        let kept = kept.chunks_exact_mut(self.n_vector + LANES);
        for (now, kept) in now.chunks_exact(self.n_vector).zip(kept) {
            kept[0] = n_rows as f32;
            kept[LANES..].copy_from_slice(now);
        }
    }
}
