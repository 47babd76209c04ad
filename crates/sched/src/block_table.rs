//! The blocks of one sequence, in the order of its tokens.

use crate::{BlockId, BlockPool};

/// A sequence's claim on its blocks: token `i` lives in block `i / block_size` of the table.
///
/// A linear handle: not `Clone`, and [`release`](Self::release) consumes it. Dropping it instead
/// loses its blocks, which [`Scheduler::check_integrity`](crate::Scheduler::check_integrity) finds.
#[derive(Debug)]
#[must_use = "a table that is dropped instead of released leaks its blocks"]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// Builds a table over `shared` blocks, which gain a holder, with memory to grow to `capacity`
    /// blocks.
    pub fn new(pool: &mut BlockPool, shared: &[BlockId], capacity: usize) -> Self {
        let mut blocks = Vec::with_capacity(capacity);
        for &block in shared {
            pool.retain(block);
            blocks.push(block);
        }
        Self { blocks }
    }

    /// Appends blocks that were allocated for this table.
    pub fn extend(&mut self, own: impl Iterator<Item = BlockId>) {
        self.blocks.extend(own);
    }

    /// Puts `block`, which gains a holder, in the place of another that loses one.
    pub fn replace(&mut self, pool: &mut BlockPool, idx: usize, block: BlockId) {
        pool.retain(block);
        pool.release(std::mem::replace(&mut self.blocks[idx], block));
    }

    /// Gives back all but the first `n_blocks` blocks; the last first.
    pub fn truncate(&mut self, pool: &mut BlockPool, n_blocks: usize) {
        for block in self.blocks.drain(n_blocks.min(self.blocks.len())..).rev() {
            pool.release(block);
        }
    }

    /// Gives every block back to the pool.
    pub fn release(self, pool: &mut BlockPool) {
        // Last block first, so that the pool hands them out again in their old order.
        for &block in self.blocks.iter().rev() {
            pool.release(block);
        }
    }

    /// Number of blocks that it has memory for.
    pub fn capacity(&self) -> usize {
        self.blocks.capacity()
    }

    /// The blocks, in token order.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_block_outlives_the_first_of_its_two_tables() {
        let mut pool = BlockPool::new(3);
        let mut first = BlockTable::new(&mut pool, &[], 2);
        first.extend(pool.allocate(2).expect("free"));
        let mut second = BlockTable::new(&mut pool, &first.blocks()[..1], 2);
        second.extend(pool.allocate(1).expect("free"));
        assert_eq!(second.blocks(), [BlockId(0), BlockId(2)]);
        first.release(&mut pool);
        assert_eq!(pool.n_free(), 1, "block 1 is free, block 0 is still held by the second table");
        second.release(&mut pool);
        assert_eq!(pool.n_free(), 3);
        pool.check_integrity();
    }
}
