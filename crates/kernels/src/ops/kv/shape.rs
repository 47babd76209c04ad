//! Sizes of a cache, and where things lie in a block.

use std::ops::Range;

use super::KvDtype;
use crate::simd::LANES;

/// Sizes of a [`KvCache`](super::KvCache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub n_layers: usize,
    /// Blocks that sequences may own.
    pub n_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Key and value heads per layer.
    pub n_kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether a value is the beginning of its key: then keys alone are stored.
    pub values_in_keys: bool,
    /// Stored type.
    pub dtype: KvDtype,
    /// Elements between a block of a layer and its next one, which other layers have; whole 16s.
    pub gap: usize,
}

/// A layer of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Index of the layer, or of the one that it shares with others.
    pub layer: usize,
    /// Its part of the blocks, where it shares them.
    pub part: Option<KvPart>,
}

/// The part that a narrower layer has of the blocks of a wider one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPart {
    /// Place among the layers that share the blocks, all of which have these sizes.
    pub nth: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl From<usize> for KvLayer {
    /// A layer of the shape of the cache.
    fn from(layer: usize) -> Self {
        Self { layer, part: None }
    }
}

impl KvShape {
    /// Bytes of one block over all layers, scales included.
    ///
    /// # Panics
    ///
    /// When they are more than an address space holds.
    pub fn bytes_per_block(&self) -> usize {
        // Keys and values have this number of elements each, scales no more, and an element has at
        // most 4 bytes: where this product does not wrap around, no size of a block does.
        let whole = |n: usize| n.checked_next_multiple_of(LANES);
        let widest = whole(self.key_dim.max(self.value_dim));
        let sizes = [whole(self.block_size), widest, Some(self.n_kv_heads), Some(16)];
        let most = sizes.into_iter().try_fold(self.n_layers, |product, n| product.checked_mul(n?));
        let gaps = self.n_layers.checked_mul(self.gap).and_then(|n| n.checked_mul(16));
        let all = most.zip(gaps).and_then(|(most, gaps)| most.checked_add(gaps));
        assert!(all.is_some(), "invariant: a KV block fits in the address space");
        self.n_layers * self.block_stride() * self.dtype.n_bytes()
    }

    /// Bytes of the whole cache.
    ///
    /// # Panics
    ///
    /// When they are more than an address space holds.
    pub fn n_bytes(&self) -> usize {
        let bytes = self.bytes_per_block().checked_mul(self.n_blocks);
        bytes.expect("invariant: the KV cache fits in the address space")
    }

    /// Elements of a value in whole vectors, as they lie in memory and are summed up.
    #[inline(always)]
    pub(crate) fn padded_dim(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Tokens of a block in whole key groups.
    #[inline(always)]
    fn padded_tokens(&self) -> usize {
        self.block_size.next_multiple_of(LANES)
    }

    /// Elements of the keys of one head of one block.
    #[inline(always)]
    fn key_elements(&self) -> usize {
        self.padded_tokens() * self.key_dim
    }

    /// Elements of the values of one head of one block; none where they are in the keys.
    #[inline(always)]
    fn value_elements(&self) -> usize {
        if self.values_in_keys { 0 } else { self.block_size * self.padded_dim() }
    }

    /// Heads of keys and of values that are stored.
    #[inline(always)]
    fn n_stored_heads(&self) -> usize {
        if self.values_in_keys { self.n_kv_heads } else { 2 * self.n_kv_heads }
    }

    /// Elements that the scales of one head of one block take, for its keys or for its values.
    #[inline(always)]
    fn scale_elements(&self) -> usize {
        match self.dtype.has_scales() {
            true => self.padded_tokens() * size_of::<f32>() / self.dtype.n_bytes(),
            false => 0,
        }
    }

    /// Elements of one block of one layer; scales count as the elements whose bytes they take.
    #[inline(always)]
    pub(crate) fn block_elements(&self) -> usize {
        self.n_kv_heads * (self.key_elements() + self.value_elements())
            + self.n_stored_heads() * self.scale_elements()
    }

    /// Elements from one block of a layer to the next.
    #[inline(always)]
    pub(crate) fn block_stride(&self) -> usize {
        self.block_elements() + self.gap
    }

    /// Keys of the group of 16 tokens that holds token `place` of a block of a layer.
    #[inline(always)]
    pub(crate) fn key_group(&self, block: usize, head: usize, place: usize) -> Range<usize> {
        let group = place / LANES * LANES * self.key_dim;
        let start = block * self.block_stride() + head * self.key_elements() + group;
        start..start + LANES * self.key_dim
    }

    /// Values of the tokens `places` of a block of a layer, where they are stored.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, head: usize, places: Range<usize>) -> Range<usize> {
        let start = block * self.block_stride()
            + self.n_kv_heads * self.key_elements()
            + head * self.value_elements();
        start + places.start * self.padded_dim()..start + places.end * self.padded_dim()
    }

    /// Elements that hold the key scales of the tokens `places` of a block of a layer.
    ///
    /// They begin at a multiple of four bytes, as all that lies before them is whole 16s.
    #[inline(always)]
    pub(crate) fn key_scales(
        &self,
        block: usize,
        head: usize,
        places: Range<usize>,
    ) -> Range<usize> {
        self.scales(block, head, places)
    }

    /// Elements that hold the value scales of the tokens `places` of a block of a layer: the key
    /// scales, where values are in the keys.
    #[inline(always)]
    pub(crate) fn value_scales(
        &self,
        block: usize,
        head: usize,
        places: Range<usize>,
    ) -> Range<usize> {
        let nth = if self.values_in_keys { head } else { self.n_kv_heads + head };
        self.scales(block, nth, places)
    }

    #[inline(always)]
    fn scales(&self, block: usize, nth: usize, places: Range<usize>) -> Range<usize> {
        let n_elements = size_of::<f32>() / self.dtype.n_bytes();
        let start = block * self.block_stride()
            + self.n_kv_heads * (self.key_elements() + self.value_elements())
            + nth * self.scale_elements();
        start + places.start * n_elements..start + places.end * n_elements
    }
}
