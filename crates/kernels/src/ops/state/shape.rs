//! Sizes of the states of recurrent layers, and where things lie in a lane.

use std::ops::Range;

use pelton_tensor::StateDtype;

use super::CHUNK;
use super::wkv_row::PARTS;
use crate::simd::LANES;

/// Sizes of the state of one recurrent layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayer {
    /// Elements of the state matrices: value heads times key dimension times value dimension; 0 for
    /// a layer that has a convolution only.
    pub matrix: usize,
    /// Channels of the convolution over time; 0 for none.
    pub channels: usize,
    /// Taps of the convolution; a lane keeps the inputs of the `taps - 1` rows before its border.
    pub taps: usize,
    /// Elements of the keys of a row: key heads times key dimension.
    pub key_width: usize,
    /// Elements of the updates of a row: value heads times value dimension.
    pub update_width: usize,
    /// Value heads; each has a decay per row.
    pub n_heads: usize,
    /// Whether every element of the matrix has a decay of its own (Mamba 1): the one head of values
    /// is the channels, and a lane keeps a running state beside that of its border.
    pub is_selective: bool,
    /// Whether what is taken out of the state has a key of its own (RWKV-7), so that rows are
    /// computed one after the other: the value heads are as many as the key heads, and a lane keeps
    /// a running state.
    pub has_removal_keys: bool,
    /// Whether each element of a key has a decay of its own instead; the value heads are then as many
    /// as the key heads.
    pub has_channel_decays: bool,
}

/// Sizes of a [`StateStore`](super::StateStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// The recurrent layers, in the order in which the operations number them.
    pub layers: Vec<StateLayer>,
    /// How state matrices are stored at borders; everything else is f32.
    pub dtype: StateDtype,
    /// Lanes: sequences that can run at once.
    pub n_lanes: usize,
    /// Snapshots: states at a border that can be kept.
    pub n_snapshots: usize,
}

/// Where the parts of one layer lie, in floats from the start of a lane.
///
/// ```text
/// |-- matrix --|-- tail --|-- raw --|-- keys --|-- sums --|-- updates --|-- decays --|-- running --|
/// |--- in a snapshot too --|------------- the open chunk -----------------------------------------|
/// ```
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// `[value head][strip of 4 vectors][key_dim][strip]`, values in whole vectors, in the type of
    /// the store: two elements of bf16 take the place of a float.
    pub(super) matrix: Range<usize>,
    /// `[taps - 1][channels]`.
    pub(super) tail: Range<usize>,
    /// `[CHUNK][channels]`.
    pub(super) raw: Range<usize>,
    /// `[CHUNK / 16][key_width][16 slots]`.
    pub(super) keys: Range<usize>,
    /// As `keys`: running sums of the log decays of each element of a key; empty where a head has
    /// one decay.
    pub(super) sums: Range<usize>,
    /// `[value head][CHUNK][value_dim in whole vectors]`; with removal keys the prepared rows,
    /// `[head][CHUNK][5][value_dim in whole vectors]`.
    pub(super) updates: Range<usize>,
    /// `[value head][CHUNK]`, or the steps of channels, `[CHUNK][channels in whole vectors]`.
    pub(super) decays: Range<usize>,
    /// Of layers that go row by row alone: of each vector of values how many rows of the open chunk
    /// are in its running state, and that state. `[head][vector][1 + key_dim][16]`.
    pub(super) running: Range<usize>,
}

impl StateLayer {
    /// Elements of a value; 0 without a matrix.
    pub(super) fn value_dim(&self) -> usize {
        if self.matrix == 0 { 0 } else { self.update_width / self.n_heads }
    }

    /// Elements of a key; 0 without a matrix.
    pub(super) fn key_dim(&self) -> usize {
        if self.matrix == 0 { 0 } else { self.matrix / self.update_width }
    }

    /// Elements of a value in whole vectors, as they lie in memory.
    pub(super) fn padded_dim(&self) -> usize {
        self.value_dim().next_multiple_of(LANES)
    }

    /// Floats of a row of a head in `updates`.
    pub(super) fn update_floats(&self) -> usize {
        self.padded_dim() * if self.has_removal_keys { PARTS } else { 1 }
    }

    /// Asserts that heads, keys and values divide each other as they must.
    fn check(&self) {
        assert!(self.channels == 0 || self.taps > 0, "invariant: a convolution has taps");
        assert!(self.taps <= super::MAX_TAPS, "invariant: at most {} taps", super::MAX_TAPS);
        if self.matrix == 0 {
            return;
        }
        let (n_heads, width) = (self.n_heads, self.update_width);
        assert!(n_heads > 0 && width > 0, "invariant: a state matrix has heads and values");
        assert!(width.is_multiple_of(n_heads), "invariant: heads of one size");
        assert!(self.matrix.is_multiple_of(width), "invariant: keys of one size");
        assert!(!self.is_selective || n_heads == 1, "invariant: a selective layer has one head");
        let is_whole = self.key_width > 0 && self.key_width.is_multiple_of(self.key_dim());
        assert!(is_whole, "invariant: keys are whole heads");
        let is_paired = self.key_width == n_heads * self.key_dim();
        let may_fade = is_paired || !(self.has_channel_decays || self.has_removal_keys);
        assert!(may_fade, "invariant: a key head for each value head with decays by channel");
    }

    /// The places of this layer, which begin at `start`.
    fn places(&self, dtype: StateDtype, start: usize) -> Places {
        let mut end = start;
        let mut place = |sizes: [usize; 3]| {
            let n = sizes.into_iter().try_fold(1_usize, |product, n| product.checked_mul(n));
            let from = end;
            let next = n.and_then(|n| from.checked_add(n)?.checked_next_multiple_of(LANES));
            end = next.expect("invariant: a lane fits in the address space");
            from..from + n.unwrap_or(0)
        };
        let n_heads = if self.matrix == 0 { 0 } else { self.n_heads };
        let has_keys = self.matrix > 0 && !self.has_removal_keys;
        let key_width = if has_keys { self.key_width } else { 0 };
        let padded = self.padded_dim();
        let is_selective = self.is_selective && self.matrix > 0;
        let goes_by_row = self.matrix > 0 && (self.is_selective || self.has_removal_keys);
        let n_decays = match self.has_removal_keys {
            true => 0,
            false if is_selective => padded,
            false => 1,
        };
        let sum_width = if self.has_channel_decays { key_width } else { 0 };
        Places {
            matrix: place([n_heads, self.key_dim(), floats_of(dtype, padded)]),
            tail: place([self.taps.saturating_sub(1), self.channels, 1]),
            raw: place([CHUNK, self.channels, 1]),
            keys: place([CHUNK, key_width, 1]),
            sums: place([CHUNK, sum_width, 1]),
            updates: place([n_heads, CHUNK, self.update_floats()]),
            decays: place([n_heads, CHUNK, n_decays]),
            running: place([if goes_by_row { n_heads * padded } else { 0 }, self.key_dim() + 1, 1]),
        }
    }
}

/// Floats in whose place `n_elements` elements of this type lie; whole for whole vectors.
pub(super) fn floats_of(dtype: StateDtype, n_elements: usize) -> usize {
    n_elements * dtype.n_bytes() / size_of::<f32>()
}

impl Places {
    /// The part that a snapshot has as well.
    pub(super) fn kept(&self) -> Range<usize> {
        self.matrix.start..self.raw.start
    }
}

impl StateShape {
    /// The places of every layer.
    pub(super) fn places(&self) -> Vec<Places> {
        let mut start = 0;
        let mut place = |layer: &StateLayer| {
            layer.check();
            let places = layer.places(self.dtype, start);
            start = places.running.end.next_multiple_of(LANES);
            places
        };
        self.layers.iter().map(&mut place).collect()
    }

    /// Floats of a lane and of a snapshot.
    pub(super) fn floats(&self) -> [usize; 2] {
        let places = self.places();
        let lane = places.last().map_or(0, |last| last.running.end.next_multiple_of(LANES));
        [lane, places.iter().map(|places| places.kept().len()).sum()]
    }

    /// Bytes of all lanes and snapshots.
    ///
    /// # Panics
    ///
    /// When they are more than an address space holds, or the sizes of a layer do not fit.
    pub fn n_bytes(&self) -> usize {
        let [lane, snapshot] = self.floats();
        let lanes = lane.checked_mul(self.n_lanes);
        let snapshots = snapshot.checked_mul(self.n_snapshots);
        let floats = lanes.zip(snapshots).and_then(|(a, b)| a.checked_add(b));
        let bytes = floats.and_then(|n| n.checked_mul(size_of::<f32>()));
        bytes.expect("invariant: the states fit in the address space")
    }
}
