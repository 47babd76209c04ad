//! Memory of keys and values, known before it is allocated; and the store that blocks are swapped to.
//!
//! ```text
//! pool    [ n_layers ][ n_blocks ][ block ]        one buffer, read and written by forward passes
//! store   [ n_host_blocks ][ n_layers ][ block ]   one buffer, all layers of a block together
//! ```
//!
//! `n_layers` are the places of a memory group, which narrower layers share (`arch/memory.rs`). Where layers with an attention window have groups of their own
//! ([`ArchSpec::group_windows`]), each block belongs to one group, and the tokens of a block take a block
//! in each.
//!
//! Both are allocated once, at the start, and never grow. [`KvFootprint`] is the only arithmetic: the
//! executor allocates by it and `inspect` prints it, so a prediction and an allocation agree.
//!
//! Moving a block copies its bytes as they are, scales and padding included, so a block comes back
//! unchanged: `n_layers` copies of tens of KiB each. One thread does it. That fills a memory channel
//! or two; a team would only pay where whole sequences move, and the scheduler avoids such moves.

use pelton_tensor::{AlignedBuf, KvDtype};

use crate::arch::{ArchSpec, KvHeads};
use crate::device::Device;
use pelton_base::KvWindows;

/// Sizes of a paged KV cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvShape {
    /// Places of a block: the layers of a memory group that store keys and values, where all store as
    /// much; narrower layers share a place.
    pub n_layers: usize,
    /// Blocks that sequences may own.
    pub n_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Keys and values of a token in one layer; in one of the widest where layers differ.
    pub heads: KvHeads,
    /// Layers with less, several of which share a place.
    pub narrow: Option<NarrowKv>,
    /// Stored type.
    pub dtype: KvDtype,
}

/// Layers with smaller keys and values than the other ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NarrowKv {
    /// Keys and values of a token in one of them.
    pub heads: KvHeads,
    /// How many of them share a place; at least one.
    pub n_per_place: usize,
}

/// Where the keys and values of a layer lie in each block of its memory group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvPlace {
    /// The place.
    pub layer: usize,
    /// Index among the layers that share the place; 0 where none do.
    pub nth: usize,
    /// Keys and values of a token.
    pub heads: KvHeads,
}

/// The sizes of a KV pool and of its swap store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvFootprint {
    /// The pool.
    pub shape: KvShape,
    /// Blocks of the store.
    pub n_host_blocks: usize,
    /// Layers whose blocks are freed behind an attention window.
    pub windows: Option<KvWindows>,
    /// Bytes of one block over the layers of a group on the device, scales and padding included.
    block_bytes: usize,
}

impl KvFootprint {
    /// One block of `block_size` tokens of a model on a device `D`, and no store.
    pub fn new<D: Device>(spec: &ArchSpec, dtype: KvDtype, block_size: usize) -> Self {
        let (heads, narrow) = spec.kv_sizes();
        let n_layers = spec.n_block_layers();
        let shape = KvShape { n_layers, n_blocks: 1, block_size, heads, narrow, dtype };
        Self::of::<D>(shape, spec.freed_windows())
    }

    /// One block of this shape on a device `D`, and no store.
    pub fn of<D: Device>(shape: KvShape, windows: Option<KvWindows>) -> Self {
        let shape = KvShape { n_blocks: 1, ..shape };
        Self { shape, n_host_blocks: 0, windows, block_bytes: D::kv_block_bytes(&shape) }
    }

    /// The same with blocks that are kept for all tokens.
    #[must_use]
    pub fn without_windows(self) -> Self {
        Self { windows: None, ..self }
    }

    /// The same with a pool of `n_blocks` blocks.
    #[must_use]
    pub fn with_blocks(self, n_blocks: usize) -> Self {
        Self { shape: KvShape { n_blocks, ..self.shape }, ..self }
    }

    /// The same with a store of `n_host_blocks` blocks.
    #[must_use]
    pub fn with_host_blocks(self, n_host_blocks: usize) -> Self {
        Self { n_host_blocks, ..self }
    }

    /// The same with a store of as many blocks as `n_bytes` hold.
    #[must_use]
    pub fn with_swap_bytes(self, n_bytes: u64) -> Self {
        let n_blocks = n_bytes / (self.block_bytes as u64).max(1);
        // Host blocks are numbered by u32.
        self.with_host_blocks(n_blocks.min(u32::MAX.into()) as usize)
    }

    /// Blocks that a request of `context_tokens` tokens holds at most, when `chunk_tokens` of them are
    /// computed at once.
    pub fn blocks_of(&self, context_tokens: usize, chunk_tokens: usize) -> usize {
        let block_size = self.shape.block_size;
        let n_blocks = context_tokens.div_ceil(block_size);
        self.windows.map_or(n_blocks, |windows| {
            windows.n_held(n_blocks, chunk_tokens.div_ceil(block_size), block_size)
        })
    }

    /// Blocks with which `n_requests` requests of `context_tokens` tokens never wait for a block: those
    /// that they fill, and those of one more block of tokens, for a copy.
    pub fn blocks_for(
        &self,
        context_tokens: usize,
        chunk_tokens: usize,
        n_requests: usize,
    ) -> usize {
        let for_copy = self.windows.map_or(1, |windows| windows.n_groups());
        let of_one = self.blocks_of(context_tokens, chunk_tokens);
        of_one.saturating_mul(n_requests).saturating_add(for_copy)
    }

    /// Most tokens of a request that has all blocks of the pool to itself.
    pub fn most_tokens(&self) -> usize {
        let KvShape { n_blocks, block_size, .. } = self.shape;
        let n = self.windows.map_or(n_blocks, |windows| windows.most_tokens(n_blocks, block_size));
        n.saturating_mul(block_size)
    }

    /// Bytes of a token in all layers of the model, scales and padding included.
    pub fn token_bytes(&self, spec: &ArchSpec) -> usize {
        self.place_bytes() * spec.n_kv_places() / self.shape.block_size
    }

    /// Bytes of one block over the layers of a group, scales and padding included.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of one place of a block.
    pub(crate) fn place_bytes(&self) -> usize {
        self.block_bytes / self.shape.n_layers.max(1)
    }

    /// Bytes of the pool once every block has been used; `None` where no address space holds them.
    pub fn pool_bytes(&self) -> Option<usize> {
        self.block_bytes().checked_mul(self.shape.n_blocks)
    }

    /// Bytes of the store once every block has been used; `None` where no address space holds them.
    pub fn swap_bytes(&self) -> Option<usize> {
        self.block_bytes().checked_mul(self.n_host_blocks)
    }

    /// Bytes of address space that both reserve, alignment included.
    pub fn mapped_bytes(&self) -> Option<usize> {
        let pool = AlignedBuf::mapped_bytes(self.pool_bytes()?)?;
        pool.checked_add(AlignedBuf::mapped_bytes(self.swap_bytes()?)?)
    }
}

/// Host memory for blocks that were swapped out.
#[derive(Debug)]
pub struct SwapStore {
    buffer: AlignedBuf,
    n_blocks: usize,
    block_bytes: usize,
}

impl SwapStore {
    /// Reserves the store of `footprint`. No page of it is touched before a block is swapped out.
    ///
    /// # Errors
    ///
    /// When the system refuses the memory.
    pub fn try_new(footprint: &KvFootprint) -> std::io::Result<Self> {
        let n_bytes = footprint.swap_bytes().ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            buffer: AlignedBuf::try_zeroed(n_bytes)?,
            n_blocks: footprint.n_host_blocks,
            block_bytes: footprint.block_bytes(),
        })
    }

    /// Bytes reserved.
    pub fn n_bytes(&self) -> usize {
        self.buffer.n_bytes()
    }

    /// Bytes of address space reserved, alignment included.
    pub fn n_mapped_bytes(&self) -> usize {
        self.buffer.n_mapped_bytes()
    }

    /// The bytes of one block.
    ///
    /// # Panics
    ///
    /// When it does not exist.
    pub fn block(&self, idx: u32) -> &[u8] {
        &self.buffer.bytes()[self.range(idx)]
    }

    /// The bytes of one block, to be written.
    ///
    /// # Panics
    ///
    /// When it does not exist.
    pub fn block_mut(&mut self, idx: u32) -> &mut [u8] {
        let range = self.range(idx);
        &mut self.buffer.bytes_mut()[range]
    }

    fn range(&self, idx: u32) -> std::ops::Range<usize> {
        let (idx, n_blocks) = (idx as usize, self.n_blocks);
        assert!(idx < n_blocks, "invariant: host block {idx} of {n_blocks}");
        idx * self.block_bytes..(idx + 1) * self.block_bytes
    }
}
