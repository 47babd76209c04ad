//! Memory of recurrent layers: states of a fixed size per sequence, known before they are allocated.
//!
//! ```text
//! position   0 ........ 63 | 64 ....... 127 | 128 .. 140            chunks of 64 positions
//!                          ^                ^        ^ next row
//!                          border           border of the open chunk
//! lane       state at the border of the open chunk, and the rows of the open chunk
//! snapshot   state at some border, which never changes: what a prefix cache keeps
//! ```
//!
//! A row reads the state at the border of its chunk, and the rows of its chunk before it. The state
//! moves on once per chunk, when the first row of the next chunk is computed (a *fold*). So the bits of
//! a row do not depend on how a prompt was cut into steps, and rejected drafts, which lie in the open
//! chunk alone, are simply overwritten. Where states are stored in bf16 they are rounded at these borders
//! and nowhere else, so the same holds for them.
//!
//! Tried on paper and dropped: states shared by reference count among running sequences. Sequences
//! with a common prefix part within a chunk, and then each has a state of its own anyway; so a running
//! sequence owns its lane, and takes a copy of a snapshot, which costs what one decoded token costs.

use pelton_tensor::StateDtype;

use crate::arch::ArchSpec;
use crate::device::Device;

/// Positions of a chunk. It is part of the definition of a result: another length gives other bits.
pub const CHUNK_TOKENS: usize = 64;

/// Sizes of the state of one recurrent layer, in elements.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StateLayer {
    /// Heads of keys and queries; 0 for a layer that is a convolution alone.
    pub n_key_heads: usize,
    /// Heads of values; a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether each element of a key has a decay of its own, and not each value head.
    pub has_channel_decays: bool,
    /// Channels of the convolution over time.
    pub channels: usize,
    /// Taps of the convolution; at least one.
    pub taps: usize,
    /// Whether every element of the state decays at a rate of its own, so that there is one head, whose
    /// value is the channels, and a running sequence keeps a second state (Mamba 1).
    pub is_selective: bool,
    /// Whether what is taken out of the state has a key of its own, so that rows are computed one
    /// after the other and a running sequence keeps a second state (RWKV-7).
    pub has_removal_keys: bool,
}

impl StateLayer {
    /// Elements of the state: a matrix per value head.
    pub fn matrix(&self) -> usize {
        self.n_value_heads * self.key_dim * self.value_dim
    }

    /// Elements of a row of keys, or of queries.
    pub fn key_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Elements of a row of values.
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }
}

/// The states of a model: its recurrent layers, and how many sequences and snapshots there is room for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StateShape {
    /// Recurrent layers, in the order of the model.
    pub layers: Vec<StateLayer>,
    /// How states are stored at borders of chunks; the rows of open chunks are f32.
    pub dtype: StateDtype,
    /// Sequences that may run at once.
    pub n_lanes: usize,
    /// Snapshots that may be kept.
    pub n_snapshots: usize,
}

impl StateShape {
    /// The recurrent layers of a model, whose states are stored in `dtype`, without room for any
    /// sequence.
    pub fn of(spec: &ArchSpec, dtype: StateDtype) -> Self {
        let layers = spec.layers.iter().filter_map(|layer| layer.mixer.kept().state).collect();
        Self { layers, dtype, n_lanes: 0, n_snapshots: 0 }
    }

    /// The same with room for `n_lanes` sequences and `n_snapshots` snapshots.
    #[must_use]
    pub fn with_room(self, n_lanes: usize, n_snapshots: usize) -> Self {
        Self { n_lanes, n_snapshots, ..self }
    }

    /// Whether the model has recurrent layers.
    pub fn is_used(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Bytes of all lanes and snapshots on a device; `None` where no address space holds them.
    pub fn n_bytes<D: Device>(&self) -> Option<usize> {
        let one = D::state_bytes(self);
        let lanes = one.lane.checked_mul(self.n_lanes)?;
        lanes.checked_add(one.snapshot.checked_mul(self.n_snapshots)?)
    }
}

/// Bytes of the states of one sequence in all layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateBytes {
    /// Of a running sequence: its states, and the rows of its open chunk.
    pub lane: usize,
    /// Of a snapshot.
    pub snapshot: usize,
}

/// The lane of a sequence in one step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lane<'a> {
    /// Its number.
    pub idx: usize,
    /// Border of the state that it holds: a multiple of [`CHUNK_TOKENS`], at most the sequence's first
    /// position in the step, and at most a chunk before it. At border 0 the state is zero, whatever the
    /// memory holds.
    pub border: usize,
    /// Borders beyond it that the step passes at which the state is copied, and the snapshots that it is
    /// copied to; ascending.
    pub saves: &'a [(usize, u32)],
}

impl Lane<'_> {
    /// The lane of a sequence of which all rows before `position` went through it, and nothing is saved.
    pub fn at(idx: usize, position: usize) -> Self {
        let border = position.saturating_sub(1) / CHUNK_TOKENS * CHUNK_TOKENS;
        Lane { idx, border, saves: &[] }
    }
}

/// Copies whole states of all recurrent layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateCopy {
    /// The state of a lane to a snapshot.
    Save {
        /// The lane.
        lane: u32,
        /// The snapshot.
        snapshot: u32,
    },
    /// A snapshot to a lane, whose rows are those after its border.
    Load {
        /// The snapshot.
        snapshot: u32,
        /// The lane.
        lane: u32,
    },
    /// A lane, the rows of its open chunk included, to another lane.
    Fork {
        /// The lane that is copied.
        from: u32,
        /// The lane that becomes the same.
        to: u32,
    },
}
