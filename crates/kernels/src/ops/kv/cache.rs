//! The memory of a cache.

use std::fmt;
use std::io;
use std::ops::Range;

use pelton_tensor::AlignedBuf;

use super::{KvLayer, KvPart, KvShape};

/// Keys and values of all layers, in pages.
pub struct KvCache {
    shape: KvShape,
    buffer: AlignedBuf,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl KvCache {
    /// Reserves a zeroed cache.
    ///
    /// # Panics
    ///
    /// When the system refuses the memory (see [`KvCache::try_new`]), or a size of the shape other
    /// than `n_layers` and `n_blocks` is 0.
    pub fn new(shape: KvShape) -> Self {
        match Self::try_new(shape) {
            Ok(cache) => cache,
            Err(err) => panic!("cannot reserve {} bytes of KV cache: {err}", shape.n_bytes()),
        }
    }

    /// Reserves a zeroed cache, or says why the system refuses the memory.
    ///
    /// # Errors
    ///
    /// The system's own error.
    ///
    /// # Panics
    ///
    /// When `block_size`, `n_kv_heads`, `key_dim` or `value_dim` is 0, values are in keys that are
    /// shorter, or there are 2³² slots or more.
    pub fn try_new(shape: KvShape) -> io::Result<Self> {
        assert!(shape.block_size > 0, "invariant: blocks hold tokens");
        assert!(shape.n_kv_heads > 0, "invariant: a layer has KV heads");
        let KvShape { key_dim, value_dim, .. } = shape;
        assert!(key_dim > 0 && value_dim > 0, "invariant: heads are not empty");
        let is_inside = !shape.values_in_keys || value_dim <= key_dim;
        assert!(is_inside, "invariant: values of {value_dim} are within keys of {key_dim}");
        let n_slots = shape.n_blocks.checked_mul(shape.block_size);
        assert!(
            n_slots.is_some_and(|n| u32::try_from(n).is_ok()),
            "invariant: slots are numbered by u32"
        );
        Ok(Self { shape, buffer: AlignedBuf::try_zeroed(shape.n_bytes())? })
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &KvShape {
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

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(shape: &KvShape) -> usize {
        shape.bytes_per_block()
    }

    /// Copies the keys and values of block `src` to block `dst`, in every layer.
    ///
    /// # Panics
    ///
    /// When either block does not exist.
    pub fn copy_block(&mut self, src: u32, dst: u32) {
        let (src, dst) = (src as usize, dst as usize);
        let n_blocks = self.shape.n_blocks;
        assert!(src < n_blocks, "invariant: copy from block {src} of {n_blocks}");
        assert!(dst < n_blocks, "invariant: copy to block {dst} of {n_blocks}");
        let n_bytes = self.shape.block_stride() * self.shape.dtype.n_bytes();
        for layer in 0..self.shape.n_layers {
            let (from, to) = (layer * n_blocks + src, layer * n_blocks + dst);
            let range = from * n_bytes..(from + 1) * n_bytes;
            self.buffer.bytes_mut().copy_within(range, to * n_bytes);
        }
    }

    /// Copies the keys and values of `block` to `bytes`, one layer after the other.
    ///
    /// # Shapes
    ///
    /// `bytes`: [`KvShape::bytes_per_block`].
    ///
    /// # Panics
    ///
    /// When the block does not exist, or `bytes` has another size.
    pub fn read_block(&self, block: u32, bytes: &mut [u8]) {
        for (layer, range) in self.block_ranges(block, bytes.len()).enumerate() {
            let n = range.len();
            bytes[layer * n..(layer + 1) * n].copy_from_slice(&self.buffer.bytes()[range]);
        }
    }

    /// Fills `block` with bytes that [`read_block`](Self::read_block) read from any block of a
    /// cache of the same shape.
    ///
    /// # Panics
    ///
    /// When the block does not exist, or `bytes` has another size.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) {
        for (layer, range) in self.block_ranges(block, bytes.len()).enumerate() {
            let n = range.len();
            self.buffer.bytes_mut()[range].copy_from_slice(&bytes[layer * n..(layer + 1) * n]);
        }
    }

    /// Where the bytes of a block lie, for each layer.
    fn block_ranges(
        &self,
        block: u32,
        n_bytes: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let KvShape { n_layers, n_blocks, .. } = self.shape;
        let block = block as usize;
        assert!(block < n_blocks, "invariant: block {block} of {n_blocks}");
        assert_eq!(n_bytes, self.shape.bytes_per_block(), "invariant: the bytes of one block");
        let n = self.shape.block_stride() * self.shape.dtype.n_bytes();
        (0..n_layers).map(move |layer| {
            let start = (layer * n_blocks + block) * n;
            start..start + n
        })
    }

    /// The shape of a layer, and where its elements lie in the buffer.
    ///
    /// # Panics
    ///
    /// When there is no such layer, or it is wider than its part of a block.
    pub(crate) fn find(&self, KvLayer { layer, part }: KvLayer) -> (KvShape, Range<usize>) {
        let (mut shape, n_layers) = (self.shape, self.shape.n_layers);
        assert!(layer < n_layers, "invariant: layer {layer} of {n_layers}");
        let stride = shape.block_stride();
        let n = shape.n_blocks * stride;
        let mut elements = layer * n..(layer + 1) * n;
        if let Some(KvPart { nth, n_kv_heads, key_dim, value_dim }) = part {
            shape = KvShape { n_kv_heads, key_dim, value_dim, gap: 0, ..shape };
            let own = shape.block_elements();
            assert!(
                (nth + 1) * own <= stride,
                "invariant: {} blocks in {stride} elements",
                nth + 1
            );
            shape.gap = stride - own;
            elements.start = (elements.start + nth * own).min(elements.end);
        }
        (shape, elements)
    }

    /// The shape of a layer and its elements, as `T` (which must be the stored type).
    pub(crate) fn layer<T: bytemuck::Pod>(&self, layer: KvLayer) -> (KvShape, &[T]) {
        assert_eq!(size_of::<T>(), self.shape.dtype.n_bytes(), "invariant: the stored type");
        let (shape, elements) = self.find(layer);
        (shape, &self.buffer.as_slice_of::<T>()[elements])
    }

    /// The elements of one layer, to be written.
    pub(super) fn layer_mut<T: bytemuck::Pod>(&mut self, layer: KvLayer) -> &mut [T] {
        assert_eq!(size_of::<T>(), self.shape.dtype.n_bytes(), "invariant: the stored type");
        let (_, elements) = self.find(layer);
        &mut self.buffer.as_mut_slice_of::<T>()[elements]
    }

    /// Everything that is stored, to be moved about.
    pub(super) fn buffer_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Everything that is stored.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }
}
