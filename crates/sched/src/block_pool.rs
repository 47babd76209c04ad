//! Reference-counted pool of fixed-size KV-cache blocks.
//!
//! The pool deals in block *ids* only: it owns no tensor memory, performs no I/O and never fails.
//! Running out of blocks is an ordinary answer (`None`), which the scheduler turns into
//! preemption.
//!
//! **Architecture invariant:** every block is in exactly one state: free (`ref_count == 0`, on the
//! free list) or held (`ref_count > 0`, off the free list). [`BlockPool::check_integrity`] verifies
//! it.
//!
//! Paper: Kwon et al., "PagedAttention", SOSP 2023, §4.2.

/// Index of one KV-cache block, in `0..BlockPool::capacity()`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockId(pub u32);

/// A reference-counted pool of KV-cache blocks, allocated once at start-up.
#[derive(Debug)]
pub struct BlockPool {
    /// `ref_counts[id]` is the number of holders of block `id`.
    ref_counts: Vec<u32>,
    /// Free ids; the *last* element is handed out first.
    free: Vec<BlockId>,
}

impl BlockPool {
    /// Creates a pool of `capacity` free blocks.
    pub fn new(capacity: u32) -> Self {
        Self {
            ref_counts: vec![0; capacity as usize],
            free: (0..capacity).rev().map(BlockId).collect(),
        }
    }

    /// Takes `n_blocks` free blocks, each with a reference count of one.
    ///
    /// Returns `None`, leaving the pool untouched, when fewer than `n_blocks` are free. The blocks
    /// are taken whether or not the iterator is read to its end, and come straight from the free
    /// list: nothing is allocated for them.
    #[must_use = "blocks that are not kept are lost"]
    pub fn allocate(&mut self, n_blocks: usize) -> Option<impl Iterator<Item = BlockId>> {
        let split = self.free.len().checked_sub(n_blocks)?;
        for block in &self.free[split..] {
            let ref_count = &mut self.ref_counts[block.0 as usize];
            debug_assert_eq!(*ref_count, 0, "{block:?} was on the free list while held");
            *ref_count = 1;
        }
        Some(self.free.drain(split..).rev())
    }

    /// Adds one holder to `block`, which must already be held.
    pub fn retain(&mut self, block: BlockId) {
        let ref_count = &mut self.ref_counts[block.0 as usize];
        assert!(*ref_count > 0, "retain of free {block:?}");
        *ref_count += 1;
    }

    /// Removes one holder from `block`; the last holder returns it to the free list.
    pub fn release(&mut self, block: BlockId) {
        let ref_count = &mut self.ref_counts[block.0 as usize];
        assert!(*ref_count > 0, "double release of {block:?}");
        *ref_count -= 1;
        if *ref_count == 0 {
            self.free.push(block);
        }
    }

    /// Number of holders of `block`.
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.ref_counts[block.0 as usize]
    }

    /// Number of blocks that [`allocate`](Self::allocate) can hand out now.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Total number of blocks, free or held.
    pub fn capacity(&self) -> usize {
        self.ref_counts.len()
    }

    /// Number of holders over all blocks.
    pub fn n_references(&self) -> usize {
        self.ref_counts.iter().map(|&n| n as usize).sum()
    }

    /// Panics if a block is lost, duplicated, or free while held.
    ///
    /// Cost is `O(capacity)`; call it when idle and after every step in tests.
    pub fn check_integrity(&self) {
        let mut on_free_list = vec![false; self.capacity()];
        for block in &self.free {
            let seen = &mut on_free_list[block.0 as usize];
            assert!(!*seen, "{block:?} is on the free list twice");
            *seen = true;
        }
        for (id, (&ref_count, &free)) in self.ref_counts.iter().zip(&on_free_list).enumerate() {
            assert_eq!(ref_count == 0, free, "block {id}: ref_count {ref_count}, free {free}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_is_an_answer_and_changes_nothing() {
        let mut pool = BlockPool::new(2);
        assert!(pool.allocate(3).is_none());
        assert_eq!(pool.n_free(), 2);
        pool.check_integrity();
    }

    #[test]
    fn any_interleaving_keeps_the_pool_whole() {
        // Small capacity and a small alphabet of operations collide quickly.
        let mut rng = 0x9E37_79B9_u64;
        let mut pool = BlockPool::new(7);
        let mut held: Vec<BlockId> = Vec::new();
        for _ in 0..10_000 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            match rng % 3 {
                0 => held.extend(pool.allocate((rng >> 8) as usize % 4).into_iter().flatten()),
                1 if !held.is_empty() => {
                    let block = held[(rng >> 8) as usize % held.len()];
                    pool.retain(block);
                    held.push(block);
                }
                _ if !held.is_empty() => {
                    let idx = (rng >> 8) as usize % held.len();
                    pool.release(held.swap_remove(idx));
                }
                _ => {}
            }
            pool.check_integrity();
        }
    }
}
