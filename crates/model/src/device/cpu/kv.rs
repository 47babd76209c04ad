//! Memory of sequences on the CPU: pages of keys and values, and states of recurrent layers.

use pelton_kernels::{KvCache, KvLayer, KvPart, STATE_CHUNK, StateStore};

use crate::kv::KvPlace;
use crate::state::{CHUNK_TOKENS, StateCopy, StateLayer, StateShape};

const _: () = assert!(STATE_CHUNK == CHUNK_TOKENS);

/// Pages of keys and values, and states of recurrent layers.
#[derive(Debug)]
pub struct CpuKv {
    pub(super) pages: KvCache,
    pub(super) states: StateStore,
}

impl CpuKv {
    pub(super) fn try_new(
        pages: pelton_kernels::KvShape,
        states: &StateShape,
    ) -> std::io::Result<Self> {
        let states = StateStore::try_new(state_shape(states))?;
        Ok(Self { pages: KvCache::try_new(pages)?, states })
    }

    /// The layer at a place of the blocks.
    pub(super) fn layer(&self, KvPlace { layer, nth, heads }: KvPlace) -> KvLayer {
        let shape = self.pages.shape();
        let (n_kv_heads, key_dim, value_dim) = (heads.n, heads.key_dim, heads.value_dim);
        let is_widest =
            (n_kv_heads, key_dim, value_dim) == (shape.n_kv_heads, shape.key_dim, shape.value_dim);
        let part = KvPart { nth, n_kv_heads, key_dim, value_dim };
        KvLayer { layer, part: (!is_widest).then_some(part) }
    }

    /// Bytes of the pages.
    pub fn n_bytes(&self) -> usize {
        self.pages.n_bytes()
    }

    /// Bytes of address space that the pages take.
    pub fn n_mapped_bytes(&self) -> usize {
        self.pages.n_mapped_bytes()
    }

    /// Bytes of the states, lanes and snapshots together.
    pub fn n_state_bytes(&self) -> usize {
        self.states.n_bytes()
    }

    pub(super) fn copy_state(&mut self, copy: StateCopy) {
        match copy {
            StateCopy::Save { lane, snapshot } => self.states.save(lane as usize, snapshot),
            StateCopy::Load { snapshot, lane } => self.states.load(snapshot, lane as usize),
            StateCopy::Fork { from, to } => self.states.fork(from as usize, to as usize),
        }
    }
}

/// The shape of states in the form of the kernels.
pub(super) fn state_shape(states: &StateShape) -> pelton_kernels::StateShape {
    let layer = |layer: &StateLayer| pelton_kernels::StateLayer {
        matrix: layer.matrix(),
        channels: layer.channels,
        taps: layer.taps,
        key_width: layer.key_width(),
        update_width: layer.value_width(),
        n_heads: layer.n_value_heads,
        is_selective: layer.is_selective,
        has_removal_keys: layer.has_removal_keys,
        has_channel_decays: layer.has_channel_decays,
    };
    let StateShape { ref layers, dtype, n_lanes, n_snapshots } = *states;
    let layers = layers.iter().map(layer).collect();
    pelton_kernels::StateShape { layers, dtype, n_lanes, n_snapshots }
}
