//! Memory of sequences: caches for a decoder, their sizes, and what moves in them.

use pelton_tensor::KvDtype;

use super::Decoder;
use crate::device::{BlockTables, Ops};
use crate::kv::{KvFootprint, KvShape, SwapStore};
use crate::state::{CHUNK_TOKENS, StateCopy, StateShape};

/// Most sequences for whose states a cache has room, where nobody says for how many.
const MOST_LANES: usize = 4;

impl<D: Ops> Decoder<D> {
    /// A KV cache for this model.
    ///
    /// # Panics
    ///
    /// When the memory is refused; [`try_new_kv`](Self::try_new_kv) answers instead.
    pub fn new_kv(&self, n_blocks: usize, block_size: usize) -> D::Kv {
        self.try_new_kv(n_blocks, block_size).expect("memory for the KV cache")
    }

    /// A KV cache for this model.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    pub fn try_new_kv(&self, n_blocks: usize, block_size: usize) -> std::io::Result<D::Kv> {
        self.try_new_kv_for(n_blocks, block_size, n_blocks.min(MOST_LANES), 0)
    }

    /// A KV cache for this model with room for the states of `n_lanes` sequences and for `n_snapshots`
    /// snapshots, in models with recurrent layers.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    pub fn try_new_kv_for(
        &self,
        n_blocks: usize,
        block_size: usize,
        n_lanes: usize,
        n_snapshots: usize,
    ) -> std::io::Result<D::Kv> {
        let states = self.state_shape().with_room(n_lanes, n_snapshots);
        self.device.new_kv(&self.kv_shape(n_blocks, block_size), &states)
    }

    /// The states of this model's recurrent layers, without room for any sequence.
    pub fn state_shape(&self) -> StateShape {
        StateShape::of(&self.spec, self.state_dtype)
    }

    /// A KV cache in f32 for [`hidden`](Self::hidden): of one layer, unless layers read what other layers
    /// store.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    pub fn try_new_passing_kv(&self, n_blocks: usize, block_size: usize) -> std::io::Result<D::Kv> {
        let shape = self.kv_shape(n_blocks, block_size);
        let n_layers = if self.spec.shares_pages() { shape.n_layers } else { 1 };
        let shape = KvShape { n_layers, dtype: KvDtype::F32, ..shape };
        self.device.new_kv(&shape, &StateShape::default())
    }

    /// Copies one block of a cache over another, in all layers.
    pub fn copy_kv_block(&self, kv: &mut D::Kv, from: u32, to: u32) {
        self.device.copy_kv_block(kv, from, to);
    }

    /// Copies the states of all recurrent layers.
    pub fn copy_state(&self, kv: &mut D::Kv, copy: StateCopy) {
        self.device.copy_state(kv, copy);
    }

    /// Copies what layers keep of the token at position `from` of a sequence to position `to`, in all
    /// layers: the accepted path of a draft tree moves to where an unbranched sequence has it. In models
    /// with recurrent layers both positions lie in the open chunk of `lane`.
    pub fn copy_kv_position(
        &self,
        kv: &mut D::Kv,
        tables: BlockTables<'_>,
        lane: Option<usize>,
        from: usize,
        to: usize,
    ) {
        if let Some(lane) = lane {
            self.device.copy_state_row(kv, lane, from % CHUNK_TOKENS, to % CHUNK_TOKENS);
        }
        let block_size = D::kv_block_size(kv);
        for (layer, place) in self.spec.layers.iter().zip(&self.places) {
            if layer.mixer.kv_heads().is_some() {
                let slot = |place| tables.slot(layer.kv_group, place, block_size);
                self.device.copy_kv_slot(kv, place.pages, slot(from), slot(to));
            }
        }
    }

    /// Copies one block of a cache to a block of a swap store, in all layers.
    pub fn swap_kv_out(&self, kv: &D::Kv, block: u32, store: &mut SwapStore, host_block: u32) {
        self.device.read_kv_block(kv, block, store.block_mut(host_block));
    }

    /// Copies one block of a swap store to a block of a cache, in all layers.
    pub fn swap_kv_in(&self, kv: &mut D::Kv, store: &SwapStore, host_block: u32, block: u32) {
        self.device.write_kv_block(kv, block, store.block(host_block));
    }

    /// Lets blocks be freed behind attention windows: caches that are made from now on have memory groups,
    /// and every sequence has a block table for each; see
    /// [`ArchSpec::group_windows`](crate::ArchSpec::group_windows).
    pub fn group_windows(&mut self) {
        self.spec.group_windows();
        self.places = self.spec.memory_places();
    }

    /// Bytes of one block of `block_size` tokens over the layers of a memory group, keys and values.
    pub fn kv_bytes_per_block(&self, block_size: usize) -> usize {
        self.kv_block(block_size).block_bytes()
    }

    /// Sizes of a cache of `n_blocks` blocks with a swap store of `n_host_blocks` blocks.
    pub fn kv_footprint(
        &self,
        n_blocks: usize,
        block_size: usize,
        n_host_blocks: usize,
    ) -> KvFootprint {
        self.kv_block(block_size).with_blocks(n_blocks).with_host_blocks(n_host_blocks)
    }

    fn kv_shape(&self, n_blocks: usize, block_size: usize) -> KvShape {
        self.kv_block(block_size).with_blocks(n_blocks).shape
    }

    /// The footprint of one block.
    fn kv_block(&self, block_size: usize) -> KvFootprint {
        KvFootprint::new::<D>(&self.spec, self.kv_dtype, block_size)
    }
}
