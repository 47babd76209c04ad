//! The input of a scan, and the promises that are checked before any state is touched.

use super::sequence::check;
use super::shape::StateLayer;
use super::{StateSeq, StateStore};
use crate::ops::kv::StridedRows;

/// Which key head each value head reads, for `r` value heads of each of `n` key heads.
///
/// ```text
/// Grouped   value head h reads key head h / r      0 0 1 1 2 2 ..
/// Tiled     value head h reads key head h % n      0 1 2 .. 0 1 2 ..
/// ```
///
/// The order changes no bit of what a value head computes from its key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// The value heads of a key head are neighbours.
    Grouped,
    /// First one value head of every key head, then the next of every key head.
    Tiled,
}

/// The parts of a state that fade together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decays {
    /// The whole matrix of a value head.
    PerHead,
    /// Each row of it, which belongs to an element of the key; there are as many value heads as key
    /// heads.
    PerChannel,
}

/// Heads of a gated linear recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanShape {
    /// Heads of keys and queries.
    pub n_key_heads: usize,
    /// Heads of values, a multiple of the key heads.
    pub n_value_heads: usize,
    /// Which key head each value head reads.
    pub order: HeadOrder,
    /// Elements of a key and of a query.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether an update is the value less what the state answers to its key already (the delta
    /// rule). Without it, an update is `beta` times the value.
    pub is_delta: bool,
    /// The parts of a state that fade together.
    pub decays: Decays,
}

/// New rows of one layer. Every row is an input of the operation as it is: keys and queries are
/// normalized and scaled before.
#[derive(Clone, Debug)]
pub struct ScanInput<'a> {
    /// Heads and their sizes; those of the layer.
    pub shape: ScanShape,
    /// Queries `[m, n_key_heads * key_dim]` (C in Mamba 2).
    pub q: StridedRows<'a>,
    /// Keys `[m, n_key_heads * key_dim]` (B in Mamba 2).
    pub k: StridedRows<'a>,
    /// Values `[m, n_value_heads * value_dim]` (x in Mamba 2).
    pub v: StridedRows<'a>,
    /// Log decays, at most 0: `[m, n_value_heads]`, or `[m, n_key_heads * key_dim]` by channel.
    pub decay: &'a [f32],
    /// Factors of updates `[m, n_value_heads]` (the time step in Mamba 2).
    pub beta: &'a [f32],
    /// Sequences, by ascending rows that do not overlap.
    pub sequences: &'a [StateSeq<'a>],
}

impl ScanShape {
    /// Elements of the keys of a row.
    pub fn key_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Elements of the values of a row.
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Decays of a row.
    pub(super) fn decay_width(&self) -> usize {
        match self.decays {
            Decays::PerHead => self.n_value_heads,
            Decays::PerChannel => self.key_width(),
        }
    }

    /// Whether each element of a key has a decay of its own.
    pub(super) fn fades_by_channel(&self) -> bool {
        self.decays == Decays::PerChannel
    }

    /// Value heads of a key head.
    pub(super) fn group(&self) -> usize {
        self.n_value_heads / self.n_key_heads
    }

    /// The key head that a value head reads.
    pub(super) fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / self.group(),
            HeadOrder::Tiled => value_head % self.n_key_heads,
        }
    }

    /// The `i`th value head of a key head.
    pub(super) fn value_head(&self, key_head: usize, i: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => key_head * self.group() + i,
            HeadOrder::Tiled => i * self.n_key_heads + key_head,
        }
    }
}

impl ScanInput<'_> {
    /// Asserts every promise that the kernels rely on.
    pub(super) fn check(&self, store: &StateStore, layer: &StateLayer, n_out: usize) {
        let ScanShape { n_key_heads, n_value_heads, key_dim, value_dim, .. } = self.shape;
        let is_whole = n_key_heads > 0 && n_value_heads.is_multiple_of(n_key_heads);
        assert!(is_whole && n_value_heads > 0, "invariant: heads are whole groups");
        assert!(key_dim > 0 && value_dim > 0, "invariant: heads are not empty");
        let own = [layer.n_heads, layer.key_width, layer.update_width, layer.matrix];
        let width = self.shape.value_width();
        let asked = [n_value_heads, self.shape.key_width(), width, width * key_dim];
        assert_eq!(own, asked, "invariant: the heads are those of the layer");
        let by_channel = self.shape.fades_by_channel();
        assert_eq!(layer.has_channel_decays, by_channel, "invariant: the decays of the layer");
        assert!(n_out.is_multiple_of(width), "invariant: whole rows of out");
        let m = n_out / width;
        check(self.sequences, store, m);
        let n = self.sequences.last().map_or(0, |last| last.rows.end);
        let has_gates = self.decay.len() / self.shape.decay_width() >= n
            && self.beta.len() >= n * n_value_heads;
        assert!(has_gates, "invariant: a decay and a beta per row and head");
    }
}
