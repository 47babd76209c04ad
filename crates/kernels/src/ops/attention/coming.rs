//! Prefetching the keys and values that a thread reads next.
//!
//! ```text
//! this chunk        keys of column c        values of column c
//!                        |  reading prefetches ^     |
//!                                                    |  reading prefetches
//! what is coming                             keys of column c: the next chunk of the item, or
//!                                            the first of the item that this thread takes next
//! ```
//!
//! One head of one block of 16 tokens is 2 KiB (64 elements of bf16), and the next one lies a whole
//! block further: too short a run for the prefetchers of the hardware, which must learn each run
//! anew. So every line is prefetched half a chunk before it is used, while another line in the same
//! place of its run is read. The inner loops only know the distance between the two lines, the
//! prefetches are spread evenly over the arithmetic, and the second-level cache holds a chunk (64
//! KiB of 64 elements of bf16, 256 KiB of 128 of f32). Only time depends on it: where the shapes of
//! keys and values differ, or blocks are no multiple of 16, a few lines are prefetched in vain and
//! a few are missed.
//!
//! On one Zen 4 core, pages beyond the caches, this is worth a factor of 1.5 to 1.6 (bf16, 64
//! elements, 4 heads per KV head): 17 instead of 10 GB/s, which is half of what the memory gives
//! two.
//!
//! The scales of int8 keys and values lie in lines of their own, two misses per head and block.
//! With them prefetched, two Zen 5 cores decode behind 1,024 and 4,096 tokens in 13 % less time
//! where blocks lie in order (32 heads of 64 elements on 8), and in 5 to 50 % less where they are
//! scattered.
//!
//! Tried and dropped: prefetching to the first-level cache (9 % slower than to the second: it
//! allows few misses in flight); each line of keys once, where two or four steps of the loop share
//! one (no faster: another prefetch is free beside sixteen multiply-adds). On Zen 5: prefetching
//! line after line of one group while four are multiplied (8 % slower to 11 % faster, by shape);
//! all heads of a block in turn, so that 16 KiB are read in a row (no faster on two threads; on Zen 4,
//! where keys are left to the processor, it is: [`Prefetches::Values`] and `paired`).
//!
//! Not done: a line of padding between blocks, which are a power of two of bytes apart and share
//! sets of the cache. It saved 9 to 13 % of the time on Zen 5, but every size of a cache counts
//! blocks.

use super::CHUNK;
use crate::ops::kv::KvShape;

/// Data to be prefetched beside the keys and values of a chunk.
#[derive(Clone, Copy)]
pub(super) enum Prefetches<'a> {
    /// Beside each key the value of its column; beside each value the key of its column in the chunk
    /// that is coming, if there is one.
    Columns(Option<Coming<'a>>),
    /// Beside each value the one that is a block of columns behind it; beside the keys of the last
    /// block the values of the first.
    Values,
}

/// The keys that a thread reads after the values of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Coming<'a> {
    pub(super) block_table: &'a [u32],
    pub(super) kv_head: usize,
    /// Position of column 0.
    pub(super) start: usize,
    /// First position that is not in the block table.
    pub(super) end: usize,
}

impl Coming<'_> {
    /// First element, in a layer's pages, of the keys of the group of `column`; `None` after the
    /// chunk or the sequence.
    #[inline(always)]
    pub(super) fn key(&self, shape: &KvShape, column: usize) -> Option<usize> {
        let (block, place) = self.place(shape, column)?;
        Some(shape.key_group(block, self.kv_head, place).start)
    }

    /// First element of the scales of the keys of `column`; `None` as for the keys.
    #[inline(always)]
    pub(super) fn key_scales(&self, shape: &KvShape, column: usize) -> Option<usize> {
        let (block, place) = self.place(shape, column)?;
        Some(shape.key_scales(block, self.kv_head, place..place).start)
    }

    /// First element of the scales of the values of `column`; `None` as for the keys.
    #[inline(always)]
    pub(super) fn value_scales(&self, shape: &KvShape, column: usize) -> Option<usize> {
        let (block, place) = self.place(shape, column)?;
        Some(shape.value_scales(block, self.kv_head, place..place).start)
    }

    /// Block of the cache that holds `column`, and its place in there.
    #[inline(always)]
    fn place(&self, shape: &KvShape, column: usize) -> Option<(usize, usize)> {
        let position = self.start + column;
        if column >= CHUNK || position >= self.end {
            return None;
        }
        Some((self.block_table[position / shape.block_size] as usize, position % shape.block_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvDtype;

    #[test]
    fn scales_come_with_their_keys() {
        let shape = KvShape {
            n_layers: 1,
            n_blocks: 3,
            block_size: 32,
            n_kv_heads: 2,
            key_dim: 64,
            value_dim: 64,
            values_in_keys: false,
            dtype: KvDtype::Int8,
            gap: 0,
        };
        let coming = Coming { block_table: &[2, 0, 1], kv_head: 1, start: 32, end: 90 };
        let scales = |block, place| Some(shape.key_scales(block, 1, place..place).start);
        assert_eq!(coming.key_scales(&shape, 0), scales(0, 0));
        assert_eq!(coming.key_scales(&shape, 48), scales(1, 16));
        assert_eq!(coming.key_scales(&shape, 58), None, "not in the sequence");
        let scales = |block, place| Some(shape.value_scales(block, 1, place..place).start);
        assert_eq!(coming.value_scales(&shape, 48), scales(1, 16));
        assert_eq!(coming.value_scales(&shape, 58), None, "not in the sequence");
    }

    #[test]
    fn what_is_coming_ends_with_the_chunk_and_with_the_sequence() {
        let shape = KvShape {
            n_layers: 1,
            n_blocks: 9,
            block_size: 48,
            n_kv_heads: 2,
            key_dim: 64,
            value_dim: 64,
            values_in_keys: false,
            dtype: KvDtype::Bf16,
            gap: 0,
        };
        let block_table = [8, 3, 0, 7, 1, 2, 6, 5, 4];
        let coming = Coming { block_table: &block_table, kv_head: 1, start: 96, end: 400 };
        let group = |block, place| Some(shape.key_group(block, 1, place).start);
        assert_eq!(coming.key(&shape, 0), group(0, 0));
        assert_eq!(coming.key(&shape, 17), group(0, 16));
        assert_eq!(coming.key(&shape, 255), group(5, 15));
        assert_eq!(coming.key(&shape, 256), None, "the chunk after it");
        let coming = Coming { end: 96 + 49, ..coming };
        assert_eq!(coming.key(&shape, 48), group(7, 0));
        assert_eq!(coming.key(&shape, 49), None, "not in the sequence");
    }
}
