//! Where KV lives: the pool, the prefix cache over it, and the swap store beside it.
//!
//! ```text
//! admit    the cached prefix is shared, a cached part of the next block copied, what the host has
//!          copied back, and blocks for all other tokens taken
//! grow     more blocks at the end
//! remember full blocks of the prompt go to the cache as they are computed
//! shrink   blocks of rejected drafts go back
//! swap_out what was computed is copied to the host
//! release  full blocks go to the cache, unpinned; all blocks lose this holder
//! ```
//!
//! A block has one book-keeper, the pool: a table and the cache are holders alike. Whatever a table
//! shares with the cache is on the path that its lock pins, so an unpinned block of the cache has no
//! other holder, and evicting it frees it.
//!
//! **Architecture invariant:** copy on write. A sequence writes only where its table is the only
//! holder: what it shares ends at a block's border, and a block shared in part is copied first.
//!
//! **Architecture invariant:** blocks that a plan copies from are held until it was carried out, so
//! nothing of the same plan can overwrite them. Host blocks need no such care: whoever gives way does
//! so before anyone is let in, so none is freed and taken in one plan.

use crate::plan::HostBlockId;
use crate::sequence::Sequence;
use crate::{
    BlockId, BlockPool, BlockTable, PrefixLock, RadixConfig, RadixMatch, RadixStats, RadixTree,
    RecomputeCost, SchedulerConfig, SchedulerOutput,
};
use pelton_base::TokenId;

/// A sequence's hold on its blocks and on the prefix that it shares.
#[derive(Debug)]
#[must_use = "what is dropped instead of released leaks its blocks"]
pub(crate) struct Held {
    pub(crate) table: BlockTable,
    /// Taken out only while it moves.
    lock: Option<PrefixLock>,
    /// Leading blocks that the cache was offered.
    n_offered: usize,
}

const LOCKED: &str = "invariant: whoever holds blocks holds a lock";

/// A sequence's KV in the swap store.
#[derive(Debug)]
#[must_use = "what is dropped instead of given back leaks its blocks"]
pub(crate) struct Host {
    blocks: Vec<HostBlockId>,
    /// Leading tokens whose KV it is.
    pub(crate) n_tokens: usize,
}

/// What a sequence takes at its admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Tokens for which it takes blocks.
    pub(crate) n_reserved: usize,
    /// Blocks that its table can come to hold.
    pub(crate) n_most_blocks: usize,
    /// Blocks that must be left for others.
    pub(crate) n_spare: usize,
}

/// How a sequence begins to run.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) held: Held,
    /// Leading tokens that have KV.
    pub(crate) n_computed: usize,
    /// Those of them that others computed.
    pub(crate) n_shared: usize,
}

/// The KV of all sequences, as ids.
#[derive(Debug)]
pub(crate) struct Kv {
    block_size: usize,
    caches: bool,
    pool: BlockPool,
    tree: RadixTree,
    /// Free blocks of the swap store; the last is handed out first.
    host: Vec<HostBlockId>,
    n_host: usize,
    /// What the current plan reads.
    read: Vec<BlockId>,
    /// Blocks of the last match.
    found: Vec<BlockId>,
}

impl Kv {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let tree = RadixTree::new(RadixConfig {
            block_size: config.block_size,
            n_blocks: config.n_blocks as usize,
            eviction: config.choices.eviction,
            recompute: RecomputeCost::default(),
        });
        Self {
            block_size: config.block_size,
            caches: config.choices.prefix_cache,
            pool: BlockPool::new(config.n_blocks),
            tree,
            host: (0..config.n_host_blocks).rev().map(HostBlockId).collect(),
            n_host: config.n_host_blocks as usize,
            read: Vec::new(),
            found: Vec::new(),
        }
    }

    /// The last plan was carried out: what it read may be overwritten.
    pub(crate) fn end_plan(&mut self) {
        for block in self.read.drain(..) {
            self.pool.release(block);
        }
    }

    /// The longest cached prefix of a sequence. Its last token is never part of it: that one's logits
    /// are what comes next.
    pub(crate) fn find(&mut self, sequence: &Sequence) -> RadixMatch {
        self.found.clear();
        let n_matchable = sequence.tokens.len() - 1;
        self.tree.find(sequence.namespace, &sequence.tokens[..n_matchable], &mut self.found)
    }

    /// Blocks for a sequence, as many as possible shared; `None` when too few would be left. `found`
    /// is what [`find`](Self::find) just found.
    pub(crate) fn admit(
        &mut self,
        found: &RadixMatch,
        host: Option<&Host>,
        sizes: Sizes,
        output: &mut SchedulerOutput,
    ) -> Option<Admission> {
        let n_full = found.n_full;
        let n_own = sizes.n_reserved.div_ceil(self.block_size) - n_full;
        let n_available = self.n_free_with(self.tree.n_evictable_beside(found));
        if n_available < n_own + sizes.n_spare {
            return None;
        }
        let lock = self.tree.lock(found);
        // Held before anything is evicted, so that its content outlives the plan.
        let from_host = host.filter(|host| host.n_tokens > n_full * self.block_size);
        let partial = found.partial.filter(|_| from_host.is_none());
        if let Some((block, _)) = partial {
            self.pool.retain(block);
        }
        let mut table = BlockTable::new(&mut self.pool, &self.found, sizes.n_most_blocks);
        self.make_free(n_own);
        let mut copied = partial;
        if let (true, Some((block, _))) = (self.pool.n_free() < n_own, partial) {
            // The very last block: it is needed more than its content.
            self.pool.release(block);
            copied = None;
        }
        table.extend(self.pool.allocate(n_own).expect("invariant: made free"));
        let mut n_computed = n_full * self.block_size;
        let mut n_shared = n_computed;
        if let Some((block, n_tokens)) = copied {
            self.read.push(block);
            output.copies.push((block, table.blocks()[n_full]));
            n_computed += n_tokens;
            n_shared += n_tokens;
        }
        if let Some(host) = from_host {
            let wanted = n_full..host.n_tokens.div_ceil(self.block_size);
            let pairs = wanted.map(|idx| (host.blocks[idx], table.blocks()[idx]));
            output.swap_in.extend(pairs);
            n_computed = host.n_tokens;
        }
        let held = Held { table, lock: Some(lock), n_offered: n_full };
        Some(Admission { held, n_computed, n_shared })
    }

    /// Blocks for one that begins like `parent`, which has computed the first `n_shared` tokens: full
    /// blocks are shared, the rest of the last is copied.
    pub(crate) fn fork(
        &mut self,
        parent: (&mut Held, &Sequence),
        n_shared: usize,
        sizes: Sizes,
        output: &mut SchedulerOutput,
    ) -> Option<Admission> {
        let (n_full, n_part) = (n_shared / self.block_size, n_shared % self.block_size);
        let n_own = sizes.n_reserved.div_ceil(self.block_size) - n_full;
        let (held, sequence) = parent;
        // In the cache, so that both pin what they share; nobody else finds it in a namespace of one.
        self.offer(held, sequence, n_full);
        self.found.clear();
        let prefix = &sequence.tokens[..n_full * self.block_size];
        let found = self.tree.find(sequence.namespace, prefix, &mut self.found);
        let n_available = self.n_free_with(self.tree.n_evictable_beside(&found));
        if n_available < n_own + sizes.n_spare {
            return None;
        }
        let lock = self.tree.lock(&found);
        let mut table = BlockTable::new(&mut self.pool, &self.found, sizes.n_most_blocks);
        self.make_free(n_own);
        table.extend(self.pool.allocate(n_own).expect("invariant: made free"));
        if n_part > 0 {
            let block = held.table.blocks()[n_full];
            self.pool.retain(block);
            self.read.push(block);
            output.copies.push((block, table.blocks()[n_full]));
        }
        let held = Held { table, lock: Some(lock), n_offered: n_full };
        Some(Admission { held, n_computed: n_shared, n_shared })
    }

    /// Blocks for `n_tokens` tokens in all; `false`, and nothing changed, when there are not enough.
    pub(crate) fn grow(&mut self, held: &mut Held, n_tokens: usize) -> bool {
        let n_needed = n_tokens.div_ceil(self.block_size);
        let n_missing = n_needed.saturating_sub(held.table.blocks().len());
        if n_missing > self.n_available() {
            return false;
        }
        self.make_free(n_missing);
        held.table.extend(self.pool.allocate(n_missing).expect("invariant: made free"));
        true
    }

    /// Gives back blocks beyond those that hold `n_tokens` tokens.
    pub(crate) fn shrink(&mut self, held: &mut Held, n_tokens: usize) {
        held.table.truncate(&mut self.pool, n_tokens.div_ceil(self.block_size));
    }

    /// Offers the full blocks of the first `n_computed` tokens to the cache, so that others find
    /// them while this sequence still runs.
    pub(crate) fn remember(&mut self, held: &mut Held, sequence: &Sequence, n_computed: usize) {
        if self.caches {
            self.offer(held, sequence, n_computed / self.block_size);
        }
    }

    fn offer(&mut self, held: &mut Held, sequence: &Sequence, n_full: usize) {
        let Held { table, lock: slot, n_offered } = held;
        if n_full <= *n_offered {
            return;
        }
        let tokens: &[TokenId] = &sequence.tokens[..n_full * self.block_size];
        let pool = &mut self.pool;
        let mut n_kept = 0;
        let keep = &mut |block| {
            pool.retain(block);
            n_kept += 1;
        };
        let blocks = &table.blocks()[..n_full];
        let lock = slot.take().expect(LOCKED);
        *slot = Some(self.tree.extend(sequence.namespace, lock, tokens, blocks, keep));
        if *n_offered + n_kept < n_full {
            // Somebody else's blocks hold the same: two copies would be one too many.
            self.found.clear();
            self.tree.find(sequence.namespace, tokens, &mut self.found);
            for (idx, &block) in self.found.iter().enumerate() {
                if table.blocks()[idx] != block {
                    table.replace(&mut self.pool, idx, block);
                }
            }
        }
        *n_offered = n_full;
    }

    /// Copies what was computed to the host; `None` when there is nothing, or no room for it.
    pub(crate) fn swap_out(
        &mut self,
        held: &Held,
        n_computed: usize,
        output: &mut SchedulerOutput,
    ) -> Option<Host> {
        let n_blocks = n_computed.div_ceil(self.block_size);
        let split = self.host.len().checked_sub(n_blocks).filter(|_| n_blocks > 0)?;
        let blocks = self.host.split_off(split);
        output.swap_out.extend(held.table.blocks().iter().copied().zip(blocks.iter().copied()));
        Some(Host { blocks, n_tokens: n_computed })
    }

    /// Gives host blocks back.
    pub(crate) fn drop_host(&mut self, host: Host) {
        self.host.extend(host.blocks);
    }

    /// Lets go of a sequence's blocks; those of its first `n_computed` tokens that are full stay
    /// cached, when `keeps` says so, until their memory is needed.
    pub(crate) fn release(
        &mut self,
        mut held: Held,
        sequence: &Sequence,
        n_computed: usize,
        keeps: bool,
    ) {
        if keeps {
            self.offer(&mut held, sequence, n_computed / self.block_size);
        }
        self.tree.unlock(held.lock.expect(LOCKED));
        held.table.release(&mut self.pool);
    }

    /// Blocks that can be had without taking any from a running sequence.
    pub(crate) fn n_available(&self) -> usize {
        self.n_free_with(self.tree.n_evictable())
    }

    /// Blocks that are free once the cache has given up `n_evictable`; what the plan reads is not.
    fn n_free_with(&self, n_evictable: usize) -> usize {
        self.pool.n_free() + n_evictable.saturating_sub(self.read.len())
    }

    pub(crate) fn n_free(&self) -> usize {
        self.pool.n_free()
    }

    pub(crate) fn n_cached(&self) -> usize {
        self.tree.n_blocks()
    }

    pub(crate) fn n_blocks(&self) -> usize {
        self.pool.capacity()
    }

    pub(crate) fn n_free_host(&self) -> usize {
        self.host.len()
    }

    pub(crate) fn cache_stats(&self) -> RadixStats {
        self.tree.stats()
    }

    /// Evicts until `n_blocks` are free, as far as possible.
    fn make_free(&mut self, n_blocks: usize) {
        while self.pool.n_free() < n_blocks {
            let n_missing = n_blocks - self.pool.n_free();
            let pool = &mut self.pool;
            if self.tree.evict(n_missing, &mut |block| pool.release(block)) == 0 {
                return;
            }
        }
    }

    /// Panics if a block or a lock is lost, or if someone could write where others read.
    pub(crate) fn check_integrity<'a>(
        &self,
        running: impl Iterator<Item = (&'a Held, usize)> + Clone,
        hosts: impl Iterator<Item = &'a Host>,
    ) {
        self.pool.check_integrity();
        self.tree.check_integrity();
        let n_in_tables: usize = running.clone().map(|(held, _)| held.table.blocks().len()).sum();
        let n_held = n_in_tables + self.tree.n_blocks() + self.read.len();
        assert_eq!(self.pool.n_references(), n_held, "a block is held by nobody, or twice");
        assert_eq!(self.tree.n_locks(), running.clone().count(), "a lock is lost");
        let n_swapped: usize = hosts.map(|host| host.blocks.len()).sum();
        let n_host = self.host.len() + n_swapped;
        assert_eq!(n_host, self.n_host, "a host block is lost");
        for (held, n_computed) in running {
            for block in &held.table.blocks()[n_computed / self.block_size..] {
                // The copy of a plan may still read it.
                let n_readers = self.read.iter().filter(|read| *read == block).count() as u32;
                let n_holders = self.pool.ref_count(*block) - n_readers;
                assert_eq!(n_holders, 1, "{block:?} is written to by one of {n_holders} holders");
            }
        }
    }
}
