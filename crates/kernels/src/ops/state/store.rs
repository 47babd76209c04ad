//! The memory of recurrent layers.

use std::fmt;
use std::io;
use std::ops::Range;

use pelton_tensor::AlignedBuf;

use super::shape::Places;
use super::{CHUNK, StateLayer, StateShape};
use crate::simd::LANES;

/// The states of all recurrent layers, in lanes and snapshots.
///
/// A *lane* belongs to one running sequence. It holds the state at the border of the sequence's
/// open chunk, and the rows of the open chunk. A *snapshot* is a state at a border that never
/// changes, as a prefix cache keeps it.
pub struct StateStore {
    shape: StateShape,
    places: Vec<Places>,
    lane_floats: usize,
    snapshot_floats: usize,
    buffer: AlignedBuf,
}

impl fmt::Debug for StateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateStore").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl StateStore {
    /// Reserves zeroed lanes and snapshots.
    ///
    /// # Panics
    ///
    /// When the system refuses the memory (see [`StateStore::try_new`]), or the sizes of a layer do
    /// not fit together.
    pub fn new(shape: StateShape) -> Self {
        let n_bytes = shape.n_bytes();
        match Self::try_new(shape) {
            Ok(store) => store,
            Err(err) => panic!("cannot reserve {n_bytes} bytes of recurrent states: {err}"),
        }
    }

    /// Reserves zeroed lanes and snapshots, or says why the system refuses the memory.
    ///
    /// # Errors
    ///
    /// The system's own error.
    ///
    /// # Panics
    ///
    /// When the sizes of a layer do not fit together.
    pub fn try_new(shape: StateShape) -> io::Result<Self> {
        let buffer = AlignedBuf::try_zeroed(shape.n_bytes())?;
        let [lane_floats, snapshot_floats] = shape.floats();
        Ok(Self { places: shape.places(), lane_floats, snapshot_floats, buffer, shape })
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// Bytes reserved.
    pub fn n_bytes(&self) -> usize {
        self.buffer.n_bytes()
    }

    /// Bytes of address space reserved, alignment included.
    pub fn n_mapped_bytes(&self) -> usize {
        self.buffer.n_mapped_bytes()
    }

    /// Bytes of one lane over all layers.
    pub fn lane_bytes(shape: &StateShape) -> usize {
        shape.floats()[0] * size_of::<f32>()
    }

    /// Bytes of one snapshot over all layers.
    pub fn snapshot_bytes(shape: &StateShape) -> usize {
        shape.floats()[1] * size_of::<f32>()
    }

    /// Copies the state at the lane's border to a snapshot.
    ///
    /// The open chunk is not kept: a sequence that continues from the snapshot stands at the border.
    ///
    /// # Panics
    ///
    /// When there is no such lane or snapshot.
    pub fn save(&mut self, lane: usize, snapshot: u32) {
        self.each_kept(lane, snapshot, |floats, of_lane, of_snapshot| {
            floats.copy_within(of_lane, of_snapshot.start);
        });
    }

    /// Copies a snapshot to the state at the border of a lane, whose open chunk is then empty.
    ///
    /// # Panics
    ///
    /// When there is no such lane or snapshot.
    pub fn load(&mut self, snapshot: u32, lane: usize) {
        self.each_kept(lane, snapshot, |floats, of_lane, of_snapshot| {
            floats.copy_within(of_snapshot, of_lane.start);
        });
        let start = self.lane_start(lane);
        for layer in 0..self.shape.layers.len() {
            let (sizes, places) = (self.shape.layers[layer], self.places[layer].clone());
            keep_running(&sizes, &places, &mut self.floats_mut()[start..], 0);
        }
    }

    /// Copies a whole lane, open chunk included.
    ///
    /// # Panics
    ///
    /// When either lane does not exist.
    pub fn fork(&mut self, from_lane: usize, to_lane: usize) {
        let (from, to) = (self.lane_start(from_lane), self.lane_start(to_lane));
        let n = self.lane_floats;
        self.floats_mut().copy_within(from..from + n, to);
    }

    /// Copies one row of the open chunk of a lane to another place of it, in all layers.
    ///
    /// After a tree of drafts was verified, this moves the accepted rows to the places of an
    /// unbranched sequence.
    ///
    /// # Panics
    ///
    /// When there is no such lane, or a place is not within a chunk.
    pub fn copy_row(&mut self, lane: usize, from_offset: usize, to_offset: usize) {
        assert!(from_offset < CHUNK, "invariant: row {from_offset} of a chunk of {CHUNK}");
        assert!(to_offset < CHUNK, "invariant: row {to_offset} of a chunk of {CHUNK}");
        let start = self.lane_start(lane);
        for layer in 0..self.shape.layers.len() {
            let (sizes, places) = (self.shape.layers[layer], self.places[layer].clone());
            let lane = &mut self.floats_mut()[start..];
            move_row(&sizes, &places, lane, from_offset, to_offset);
        }
    }

    /// Calls `f` with the floats, and with the state of each layer in the lane and in the snapshot.
    fn each_kept(
        &mut self,
        lane: usize,
        snapshot: u32,
        f: impl Fn(&mut [f32], Range<usize>, Range<usize>),
    ) {
        let lane = self.lane_start(lane);
        for layer in 0..self.places.len() {
            let kept = self.places[layer].kept();
            let start = self.snapshot_start(snapshot, layer);
            let of_lane = lane + kept.start..lane + kept.end;
            f(self.floats_mut(), of_lane, start..start + kept.len());
        }
    }

    /// Sizes and places of one layer.
    pub(super) fn layer(&self, layer: usize) -> (StateLayer, Places) {
        let n_layers = self.places.len();
        assert!(layer < n_layers, "invariant: layer {layer} of {n_layers}");
        (self.shape.layers[layer], self.places[layer].clone())
    }

    /// First float of a lane.
    pub(super) fn lane_start(&self, lane: usize) -> usize {
        let n_lanes = self.shape.n_lanes;
        assert!(lane < n_lanes, "invariant: lane {lane} of {n_lanes}");
        lane * self.lane_floats
    }

    /// First float of a layer of a snapshot; its parts lie as at the beginning of the layer in a
    /// lane.
    pub(super) fn snapshot_start(&self, snapshot: u32, layer: usize) -> usize {
        self.snapshots(layer).start(snapshot as usize)
    }

    /// Where the snapshots of one layer are.
    pub(super) fn snapshots(&self, layer: usize) -> Snapshots {
        let before: usize = self.places[..layer].iter().map(|places| places.kept().len()).sum();
        let first = self.shape.n_lanes * self.lane_floats + before;
        Snapshots { first, stride: self.snapshot_floats, n: self.shape.n_snapshots }
    }

    /// Distance between lanes, in floats.
    pub(super) fn lane_stride(&self) -> usize {
        self.lane_floats
    }

    /// Everything that is stored.
    pub(super) fn floats_mut(&mut self) -> &mut [f32] {
        self.buffer.as_mut_slice_of()
    }
}

/// Where the snapshots of one layer are, in floats.
#[derive(Clone, Copy)]
pub(super) struct Snapshots {
    first: usize,
    stride: usize,
    n: usize,
}

impl Snapshots {
    /// First float of snapshot `snapshot`.
    pub(super) fn start(&self, snapshot: usize) -> usize {
        assert!(snapshot < self.n, "invariant: snapshot {snapshot} of {}", self.n);
        self.first + snapshot * self.stride
    }
}

/// Copies a row of the open chunk of one layer; `lane` begins where the lane does.
fn move_row(sizes: &StateLayer, places: &Places, lane: &mut [f32], from: usize, to: usize) {
    let n = sizes.channels;
    let raw = &mut lane[places.raw.clone()];
    raw.copy_within(from * n..(from + 1) * n, to * n);
    for by_key in [&places.keys, &places.sums] {
        let keys = &mut lane[by_key.clone()];
        let n_keys = keys.len() / CHUNK;
        let place = |slot: usize, key: usize| (slot / LANES * n_keys + key) * LANES + slot % LANES;
        for key in 0..n_keys {
            keys[place(to, key)] = keys[place(from, key)];
        }
    }
    let n = sizes.update_floats();
    let updates = &mut lane[places.updates.clone()];
    for head in updates.chunks_exact_mut((CHUNK * n).max(1)) {
        head.copy_within(from * n..(from + 1) * n, to * n);
    }
    if sizes.is_selective {
        lane[places.decays.clone()].copy_within(from * n..(from + 1) * n, to * n);
    }
    if sizes.is_selective || sizes.has_removal_keys {
        if from != to {
            keep_running(sizes, places, lane, to);
        }
        return;
    }
    for head in lane[places.decays.clone()].chunks_exact_mut(CHUNK) {
        head[to] = head[from];
    }
}

/// Forgets the running state of a layer where it has more than the first `n_rows` rows of the open
/// chunk; `lane` begins where the lane does.
fn keep_running(sizes: &StateLayer, places: &Places, lane: &mut [f32], n_rows: usize) {
    let n_vector = (sizes.key_dim() + 1) * LANES;
    for vector in lane[places.running.clone()].chunks_exact_mut(n_vector) {
        if vector[0] as usize > n_rows {
            vector[0] = 0.0;
        }
    }
}
