//! Moving single tokens, for the accepted path of a draft tree.
//!
//! A tree's rows lie in the order in which they were drafted. The rows of the accepted path move to
//! the slots of an unbranched sequence; at most as many rows move as the path is long.
//!
//! ```text
//! slots     known | a   b   c   d        tree: a -> c, a -> b -> d;  right: a, c
//! becomes   known | a   c   .   .        one token copied: c over b
//! ```
//!
//! A token of one layer and head is `key_dim` scattered elements of the keys, one run of values
//! (unless these are in the keys), and their scales where the type has scales. Bits are copied,
//! nothing is computed.

use std::ops::Range;

use super::{KvCache, KvLayer};
use crate::simd::LANES;

impl KvCache {
    /// Copies keys and values of the token in slot `src` to slot `dst`, in one layer.
    ///
    /// A slot is `block * block_size + place`.
    ///
    /// # Panics
    ///
    /// When the layer or either slot does not exist.
    pub fn copy_slot(&mut self, layer: impl Into<KvLayer>, src: u32, dst: u32) {
        let (shape, Range { start: first, .. }) = self.find(layer.into());
        let n_slots = shape.n_blocks * shape.block_size;
        let place = |slot: u32| {
            let slot = slot as usize;
            assert!(slot < n_slots, "invariant: slot {slot} of {n_slots}");
            (slot / shape.block_size, slot % shape.block_size)
        };
        let ((from_block, from), (to_block, to)) = (place(src), place(dst));
        for head in 0..shape.n_kv_heads {
            let from_keys = shape.key_group(from_block, head, from);
            let to_keys = shape.key_group(to_block, head, to);
            let from_keys = from_keys.skip(from % LANES).step_by(LANES);
            for (from, to) in from_keys.zip(to_keys.skip(to % LANES).step_by(LANES)) {
                self.copy_elements(first, from..from + 1, to);
            }
            if !shape.values_in_keys {
                let values = shape.values(from_block, head, from..from + 1);
                self.copy_elements(first, values, shape.values(to_block, head, to..to + 1).start);
            }
            if shape.dtype.has_scales() {
                let scales = shape.key_scales(from_block, head, from..from + 1);
                let place = shape.key_scales(to_block, head, to..to + 1).start;
                self.copy_elements(first, scales, place);
                // Where values are in the keys, these are the key scales once more.
                let scales = shape.value_scales(from_block, head, from..from + 1);
                let place = shape.value_scales(to_block, head, to..to + 1).start;
                self.copy_elements(first, scales, place);
            }
        }
    }

    /// Copies elements of a layer, which begins at element `first` of the cache.
    fn copy_elements(&mut self, first: usize, from: Range<usize>, to: usize) {
        let n = self.shape().dtype.n_bytes();
        let from = (first + from.start) * n..(first + from.end) * n;
        self.buffer_mut().copy_within(from, (first + to) * n);
    }
}
