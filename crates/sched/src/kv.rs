//! Where KV lives: the pool, the prefix cache over it, and the swap store beside it.
//!
//! ```text
//! admit    shares the cached prefix, copies a cached part of the next block, and takes blocks for all
//!          other tokens
//! grow     takes more blocks at the end
//! remember offers full blocks of the prompt to the cache as they are computed
//! shrink   gives back the blocks of rejected drafts
//! swap_out starts to copy computed KV to the host; the transfer holds the blocks until it is over
//! swap_in  starts to copy KV from the host to the blocks of an admitted sequence
//! release  leaves full blocks to the cache, unpinned, and gives up all blocks
//! ```
//!
//! A model with recurrent layers also has lanes and snapshots ([`states`]). There a sequence shares
//! blocks only as far as a snapshot reaches, because KV alone is no place to go on from.
//!
//! The pool alone counts the holders of a block; tables and the cache are holders alike. All blocks
//! that a table shares with the cache are on the path that its lock pins, so an unpinned block of
//! the cache has no other holder, and evicting it frees it.
//!
//! **Architecture invariant:** copy on write. A sequence writes only where its table is the only
//! holder: the shared part ends at a block's border, and a block shared in part is copied first.
//!
//! **Architecture invariant:** the blocks that a plan copies from are held until the plan is
//! carried out, and both ends of a transfer until it is reported, so nothing can overwrite them
//! meanwhile.

mod integrity;
mod states;
mod swap;

use crate::sequence::Sequence;
use crate::states::Lane;
use crate::transfers::Transfers;
use crate::{
    BlockId, BlockPool, BlockTable, HostBlockId, PrefixLock, RadixConfig, RadixMatch, RadixStats,
    RadixTree, RecomputeCost, SchedulerConfig, SchedulerOutput, SnapshotId, TransferId,
};
use pelton_base::TokenId;
use states::States;

/// A sequence's hold on its blocks and on the prefix that it shares.
#[derive(Debug)]
#[must_use = "what is dropped instead of released leaks its blocks"]
pub(crate) struct Held {
    pub(crate) table: BlockTable,
    /// `None` only while the lock is exchanged for another.
    lock: Option<PrefixLock>,
    /// Leading blocks that were offered to the cache.
    n_offered: usize,
    /// `None` for a model without recurrent layers, and while a transfer holds the blocks.
    pub(crate) lane: Option<Lane>,
}

const LOCKED: &str = "invariant: a table comes with a lock";

/// A sequence's KV in the swap store.
#[derive(Debug)]
#[must_use = "what is dropped instead of given back leaks its blocks"]
pub(crate) struct Host {
    blocks: Vec<HostBlockId>,
    /// Leading tokens whose KV it is.
    pub(crate) n_tokens: usize,
    /// The transfer that fills the blocks.
    transfer: TransferId,
    /// The state after these tokens; `None` for a model without recurrent layers.
    snapshot: Option<SnapshotId>,
}

/// The memory that a sequence takes at its admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Tokens for which it takes blocks.
    pub(crate) n_reserved: usize,
    /// Blocks that its table can come to hold.
    pub(crate) n_most_blocks: usize,
    /// Blocks that must stay free.
    pub(crate) n_spare: usize,
}

/// How a sequence begins to run.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) held: Held,
    /// Leading tokens that have KV, once it has come from the host.
    pub(crate) n_computed: usize,
    /// Leading tokens whose KV was computed by other sequences.
    pub(crate) n_shared: usize,
    /// Whether the KV behind the shared tokens has to come from the host first.
    pub(crate) loads: bool,
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
    transfers: Transfers,
    /// `None` for a model without recurrent layers.
    states: Option<States>,
    /// Blocks that the current plan copies from.
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
            transfers: Transfers::default(),
            states: config.states.as_ref().map(States::new),
            read: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Ends the last plan: the blocks that it read may be overwritten from now on.
    pub(crate) fn end_plan(&mut self) {
        for block in self.read.drain(..) {
            self.pool.release(block);
        }
    }

    /// The longest cached prefix of a sequence, without its last token, which has to be computed
    /// for the logits after it.
    pub(crate) fn find(&mut self, sequence: &Sequence) -> RadixMatch {
        self.find_beside(sequence, None)
    }

    /// As [`find`](Self::find), for a sequence that may have KV on the host.
    pub(crate) fn find_beside(&mut self, sequence: &Sequence, host: Option<&Host>) -> RadixMatch {
        self.found.clear();
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        let mut found = self.tree.find(sequence.namespace, known, &mut self.found);
        self.cut_to_state(&mut found, host);
        found
    }

    /// Blocks for a sequence, as many as possible shared; `None` when too few would be left.
    /// `found` is the last answer of [`find_beside`](Self::find_beside) this host.
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
        // Held before anything is evicted, so that its content is there until the plan is carried
        // out.
        let from_host = host.filter(|host| host.n_tokens > n_full * self.block_size);
        let partial = found.partial.filter(|_| from_host.is_none());
        if let Some((block, _)) = partial {
            self.pool.retain(block);
        }
        let mut table = BlockTable::new(&mut self.pool, &self.found, sizes.n_most_blocks);
        self.make_free(n_own);
        let mut copied = partial;
        if let (true, Some((block, _))) = (self.pool.n_free() < n_own, partial) {
            // The very last block is needed for writing; its content is computed anew.
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
            n_computed = host.n_tokens;
        }
        let snapshot = found.snapshot.or_else(|| host?.snapshot);
        let lane = self.begin_lane(n_computed, snapshot);
        let held = Held { table, lock: Some(lock), n_offered: n_full, lane };
        Some(Admission { held, n_computed, n_shared, loads: from_host.is_some() })
    }

    /// Blocks for one that begins like `parent`, which has computed the first `n_shared` tokens:
    /// full blocks are shared, the rest of the last is copied.
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
        // The shared blocks go to the cache, so that both sequences pin them. Without a prefix
        // cache the namespace is the parent's own, and no other request finds them.
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
        let lane = self.fork_lane(held);
        let held = Held { table, lock: Some(lock), n_offered: n_full, lane };
        Some(Admission { held, n_computed: n_shared, n_shared, loads: false })
    }

    /// Blocks for `n_tokens` tokens in all; `false`, and nothing changed, when there are not
    /// enough.
    pub(crate) fn grow(&mut self, held: &mut Held, n_tokens: usize) -> bool {
        let n_missing = self.n_missing(held, n_tokens);
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

    /// Offers the full blocks of the first `n_computed` tokens to the cache, where other requests
    /// find them while this sequence still runs.
    pub(crate) fn remember(&mut self, held: &mut Held, sequence: &Sequence, n_computed: usize) {
        if self.caches {
            self.offer(held, sequence, n_computed / self.block_size);
        }
    }

    fn offer(&mut self, held: &mut Held, sequence: &Sequence, n_full: usize) {
        let Held { table, lock: slot, n_offered, .. } = held;
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
            // The cache has other blocks with the same content: they replace those of the table.
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

    /// Blocks that a sequence lacks to hold `n_tokens` tokens.
    pub(crate) fn n_missing(&self, held: &Held, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size).saturating_sub(held.table.blocks().len())
    }

    /// Gives up a sequence's blocks. With `keeps`, the full blocks of its first `n_computed` tokens
    /// stay cached until their memory is needed, and with them the state at the border of its lane.
    pub(crate) fn release(
        &mut self,
        mut held: Held,
        sequence: &Sequence,
        n_computed: usize,
        keeps: bool,
    ) {
        if keeps {
            self.offer(&mut held, sequence, n_computed / self.block_size);
            self.leave_state(&held);
        }
        self.let_go(held);
    }

    fn let_go(&mut self, mut held: Held) {
        self.release_lane(&mut held);
        self.tree.unlock(held.lock.expect(LOCKED));
        held.table.release(&mut self.pool);
    }

    /// Blocks that can be had without taking any from a running sequence.
    pub(crate) fn n_available(&self) -> usize {
        self.n_free_with(self.tree.n_evictable())
    }

    /// Blocks that are free once the cache has evicted `n_evictable`, without those that the plan
    /// reads.
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
                break;
            }
        }
        self.collect_dropped();
    }
}

#[cfg(test)]
mod tests;
