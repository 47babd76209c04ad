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
//! blocks only as far as a snapshot reaches, because KV alone is no place to go on from. A model with
//! attention windows has window blocks beside the blocks of all tokens ([`crate::windows`]).
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
mod windows;

use self::windows::{Beginning, HeldWindows};
use crate::sequence::Sequence;
use crate::states::Lane;
use crate::transfers::Transfers;
use crate::windows::{List, WindowId, Windows};
use crate::{
    BlockId, BlockPool, BlockTable, HostBlockId, KvAllocation, PrefixLock, RadixConfig, RadixMatch,
    RadixStats, RadixTree, RecomputeCost, SchedulerConfig, SchedulerOutput, SnapshotId, TransferId,
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
    /// `None` for a model without attention windows.
    windows: Option<Box<HeldWindows>>,
}

const LOCKED: &str = "invariant: a table comes with a lock";

/// A sequence's KV in the swap store.
#[derive(Debug)]
#[must_use = "what is dropped instead of given back leaks its blocks"]
pub(crate) struct Host {
    /// Blocks of all tokens, then window blocks.
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
    /// Tokens of its prompt.
    pub(crate) n_prompt: usize,
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
    /// Whether a sequence takes blocks for all tokens that it may come to hold, and frees none.
    reserves_all: bool,
    /// Most blocks that the tokens of one chunk begin.
    n_chunk_blocks: usize,
    /// Blocks of tokens. They are the blocks of the memory, unless all layers have windows.
    pool: BlockPool,
    tree: RadixTree,
    /// Free blocks of the swap store; the last is handed out first.
    host: Vec<HostBlockId>,
    n_host: usize,
    transfers: Transfers,
    /// `None` for a model without recurrent layers.
    states: Option<States>,
    /// `None` for a model without attention windows.
    windows: Option<Windows>,
    /// Blocks that the current plan copies from, and those that it reads for sequences which have other
    /// blocks with the same content now.
    read: Vec<BlockId>,
    /// The same of window blocks.
    read_windows: Vec<WindowId>,
    /// Tokens of the last match whose KV is cached, however far window blocks reach.
    n_on_path: usize,
    /// Blocks of the last match.
    found: Vec<BlockId>,
}

impl Kv {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let n_ids = config.n_token_blocks();
        let tree = RadixTree::new(RadixConfig {
            block_size: config.block_size,
            n_blocks: n_ids as usize,
            eviction: config.choices.eviction,
            recompute: RecomputeCost::default(),
        });
        Self {
            block_size: config.block_size,
            caches: config.choices.prefix_cache,
            reserves_all: config.choices.kv_allocation == KvAllocation::Contiguous,
            n_chunk_blocks: config.choices.chunk_tokens().div_ceil(config.block_size),
            pool: BlockPool::new(n_ids),
            tree,
            host: (0..config.n_host_blocks).rev().map(HostBlockId).collect(),
            n_host: config.n_host_blocks as usize,
            transfers: Transfers::default(),
            states: config.states.as_ref().map(States::new),
            windows: config
                .windows
                .map(|windows| Windows::new(windows, config.n_blocks, n_ids as usize)),
            read: Vec::new(),
            read_windows: Vec::new(),
            n_on_path: 0,
            found: Vec::new(),
        }
    }

    /// Ends the last plan: the blocks that it read may be overwritten from now on.
    pub(crate) fn end_plan(&mut self) {
        for block in self.read.drain(..) {
            self.pool.release(block);
        }
        if let Some(windows) = &mut self.windows {
            for id in self.read_windows.drain(..) {
                windows.release(&mut self.pool, id, List::Ends);
            }
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
        self.cut_to_windows(&mut found, host);
        let n_partial = found.partial.map_or(0, |(_, n_tokens)| n_tokens);
        if found.n_full * self.block_size + n_partial < sequence.source.end() {
            // A part of a source is of no use.
            found.cut(0, &mut self.found);
        }
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
        let from_host = host.filter(|host| host.n_tokens > n_full * self.block_size);
        let n_loaded = from_host.map(|host| host.n_tokens);
        let beginning = self.begin_windows(found, n_loaded, sizes);
        let n_own_windows = beginning.as_ref().map_or(0, |beginning| beginning.n_own);
        let n_unused = beginning.as_ref().map_or(0, |beginning| self.n_unused_in(beginning));
        let evictable = (self.tree.n_evictable_beside(found), self.n_unused() - n_unused);
        if !self.has_room((n_own, n_own_windows), sizes.n_spare, evictable) {
            return None;
        }
        // Held before anything is evicted, so that its content is there until the plan is carried
        // out.
        let partial = found.partial.filter(|_| from_host.is_none());
        let partial_window =
            partial.and_then(|(block, _)| self.windows.as_ref().and_then(|all| all.of(block)));
        if let Some((block, _)) = partial {
            self.pool.retain(block);
        }
        self.hold_window(partial_window);
        let mut held = self.share(found, beginning.as_ref(), sizes);
        self.make_free(n_own, n_own_windows);
        let mut copied = partial;
        if let (false, Some((block, _))) = (self.is_free(n_own, n_own_windows), partial) {
            // The very last block is needed for writing; its content is computed anew.
            self.pool.release(block);
            self.let_window_go(partial_window);
            copied = None;
            self.make_free(n_own, n_own_windows);
        }
        held.table.extend(self.pool.allocate(n_own).expect("invariant: made free"));
        self.extend_windows(&mut held, n_own_windows);
        let mut n_computed = n_full * self.block_size;
        let mut n_shared = n_computed;
        if let Some((block, n_tokens)) = copied {
            self.copy_block(block, &held, n_full, output);
            self.copy_window(partial_window, &held, n_full, output);
            n_computed += n_tokens;
            n_shared += n_tokens;
        }
        if let Some(n_loaded) = n_loaded {
            n_computed = n_loaded;
        }
        let snapshot = found.snapshot.or_else(|| host?.snapshot);
        held.lane = self.begin_lane(n_computed, snapshot);
        Some(Admission { held, n_computed, n_shared, loads: from_host.is_some() })
    }

    /// A hold on the blocks of a match, which is the last one, and on the window blocks of a beginning.
    fn share(&mut self, found: &RadixMatch, beginning: Option<&Beginning>, sizes: Sizes) -> Held {
        let lock = Some(self.tree.lock(found));
        let table = BlockTable::new(&mut self.pool, &self.found, sizes.n_most_blocks);
        let windows = beginning.and_then(|beginning| self.share_windows(beginning, sizes));
        Held { table, lock, n_offered: found.n_full, lane: None, windows }
    }

    /// Lists the copy of a block that is held to block `idx` of a table. It is given up when the plan is
    /// carried out.
    fn copy_block(&mut self, from: BlockId, to: &Held, idx: usize, output: &mut SchedulerOutput) {
        self.read.push(from);
        if self.windows.as_ref().is_none_or(|windows| !windows.has_own_pool()) {
            output.copies.push((from, to.table.blocks()[idx]));
        }
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
        self.offer(held, sequence, n_full, true);
        self.found.clear();
        let prefix = &sequence.tokens[..n_full * self.block_size];
        let found = self.tree.find(sequence.namespace, prefix, &mut self.found);
        self.n_on_path = n_shared;
        let beginning = self.fork_windows(held, n_shared, sizes);
        let n_own_windows = beginning.as_ref().map_or(0, |beginning| beginning.n_own);
        let evictable = (self.tree.n_evictable_beside(&found), self.n_unused());
        if !self.has_room((n_own, n_own_windows), sizes.n_spare, evictable) {
            return None;
        }
        let mut fork = self.share(&found, beginning.as_ref(), sizes);
        self.make_free(n_own, n_own_windows);
        fork.table.extend(self.pool.allocate(n_own).expect("invariant: made free"));
        self.extend_windows(&mut fork, n_own_windows);
        if n_part > 0 {
            let block = held.table.blocks()[n_full];
            self.pool.retain(block);
            self.copy_block(block, &fork, n_full, output);
            let window = held.windows.as_ref().and_then(|windows| windows.table.get(n_full));
            self.hold_window(window);
            self.copy_window(window, &fork, n_full, output);
        }
        fork.lane = self.fork_lane(held);
        Some(Admission { held: fork, n_computed: n_shared, n_shared, loads: false })
    }

    /// Blocks for `n_tokens` tokens in all, of which `n_computed` have KV; `false`, and nothing taken,
    /// when there are not enough. Window blocks that the sequence reads no more are freed first.
    pub(crate) fn grow(&mut self, held: &mut Held, n_computed: usize, n_tokens: usize) -> bool {
        self.slide(held, n_computed);
        let (n_own, n_own_windows) = self.missing(held, n_tokens);
        if n_own + n_own_windows == 0 {
            return true;
        }
        let evictable = (self.tree.n_evictable(), self.n_unused());
        if !self.has_room((n_own, n_own_windows), 0, evictable) {
            return false;
        }
        self.make_free(n_own, n_own_windows);
        held.table.extend(self.pool.allocate(n_own).expect("invariant: made free"));
        self.extend_windows(held, n_own_windows);
        true
    }

    /// Gives back blocks beyond those that hold `n_tokens` tokens.
    pub(crate) fn shrink(&mut self, held: &mut Held, n_tokens: usize) {
        let n_blocks = n_tokens.div_ceil(self.block_size);
        held.table.truncate(&mut self.pool, n_blocks);
        self.truncate_windows(held, n_blocks);
    }

    /// Offers the full blocks of the first `n_computed` tokens to the cache, where other requests
    /// find them while this sequence still runs.
    pub(crate) fn remember(&mut self, held: &mut Held, sequence: &Sequence, n_computed: usize) {
        if self.caches {
            self.offer(held, sequence, n_computed / self.block_size, false);
        }
    }

    /// Offers full blocks to the cache. Where it has others with the same content, the table gets those.
    /// With `is_planned` the plan at hand may read the blocks that they replace, which are held until it is
    /// carried out.
    fn offer(&mut self, held: &mut Held, sequence: &Sequence, n_full: usize, is_planned: bool) {
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
                    if is_planned {
                        self.pool.retain(table.blocks()[idx]);
                        self.read.push(table.blocks()[idx]);
                    }
                    table.replace(&mut self.pool, idx, block);
                }
            }
        }
        let offered = std::mem::replace(n_offered, n_full)..n_full;
        self.offer_windows(held, offered, is_planned);
    }

    /// Blocks of the pool that a sequence lacks to hold `n_tokens` tokens.
    pub(crate) fn n_missing(&self, held: &Held, n_tokens: usize) -> usize {
        let (n_own, n_own_windows) = self.missing(held, n_tokens);
        self.n_taken(n_own, n_own_windows)
    }

    /// Blocks of tokens, and window blocks, that a sequence lacks to hold `n_tokens` tokens.
    fn missing(&self, held: &Held, n_tokens: usize) -> (usize, usize) {
        let n_own = n_tokens.div_ceil(self.block_size).saturating_sub(held.table.blocks().len());
        (n_own, self.n_missing_windows(held, n_tokens))
    }

    /// Blocks of the pool that a sequence holds.
    pub(crate) fn n_held(&self, held: &Held) -> usize {
        self.n_taken(held.table.blocks().len(), Self::n_windows(held))
    }

    /// Blocks of the pool that so many blocks of tokens and window blocks take.
    fn n_taken(&self, n_tokens: usize, n_windows: usize) -> usize {
        let taken = |windows: &Windows| windows.config.n_taken(n_tokens, n_windows);
        self.windows.as_ref().map_or(n_tokens, taken)
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
            self.offer(&mut held, sequence, n_computed / self.block_size, false);
            self.leave_state(&held);
        }
        self.let_go(held);
    }

    fn let_go(&mut self, mut held: Held) {
        self.release_lane(&mut held);
        self.truncate_windows(&mut held, 0);
        self.tree.unlock(held.lock.expect(LOCKED));
        held.table.release(&mut self.pool);
    }

    /// Blocks of the pool that can be had without taking any from a running sequence.
    pub(crate) fn n_available(&self) -> usize {
        self.n_free_with((self.tree.n_evictable(), self.n_unused()))
    }

    /// Whether there are so many blocks of tokens and window blocks, and `n_spare` blocks of the pool
    /// more, once the cache has evicted the `evictable` ones.
    fn has_room(
        &self,
        (n_tokens, n_windows): (usize, usize),
        n_spare: usize,
        evictable: (usize, usize),
    ) -> bool {
        // Blocks of tokens can run out by themselves where they are not blocks of the pool.
        let has_own_pool = self.windows.as_ref().is_some_and(Windows::has_own_pool);
        let n_ids = self.pool.n_free() + evictable.0.saturating_sub(self.read.len());
        (n_tokens <= n_ids || !has_own_pool)
            && self.n_taken(n_tokens, n_windows) + n_spare <= self.n_free_with(evictable)
    }

    /// Blocks of the pool that are free once the cache has evicted so many blocks of tokens and window
    /// blocks, without those that the plan reads.
    fn n_free_with(&self, (n_tokens, n_windows): (usize, usize)) -> usize {
        let n_tokens = n_tokens.saturating_sub(self.read.len());
        self.n_free() + self.n_taken(n_tokens, n_windows)
    }

    /// Cached window blocks that no sequence uses.
    fn n_unused(&self) -> usize {
        self.windows.as_ref().map_or(0, Windows::n_unused)
    }

    /// Free blocks of the pool.
    pub(crate) fn n_free(&self) -> usize {
        self.windows.as_ref().map_or(&self.pool, |windows| windows.pool(&self.pool)).n_free()
    }

    pub(crate) fn n_cached(&self) -> usize {
        self.tree.n_blocks()
    }

    /// Blocks of the pool.
    pub(crate) fn n_blocks(&self) -> usize {
        self.windows.as_ref().map_or(&self.pool, |windows| windows.pool(&self.pool)).capacity()
    }

    pub(crate) fn n_free_host(&self) -> usize {
        self.host.len()
    }

    pub(crate) fn cache_stats(&self) -> RadixStats {
        self.tree.stats()
    }

    /// Whether so many blocks of tokens and window blocks can be taken from the pool.
    fn is_free(&self, n_tokens: usize, n_windows: usize) -> bool {
        n_tokens <= self.pool.n_free() && self.n_taken(n_tokens, n_windows) <= self.n_free()
    }

    /// Evicts until so many blocks of tokens and window blocks are free, as far as possible.
    fn make_free(&mut self, n_tokens: usize, n_windows: usize) {
        while !self.is_free(n_tokens, n_windows) {
            let n_missing = self.n_taken(n_tokens, n_windows).saturating_sub(self.n_free());
            if n_missing > 0 && self.evict_window(List::Passed) {
                continue;
            }
            let n_missing = n_missing.max(n_tokens.saturating_sub(self.pool.n_free()));
            let Self { tree, pool, windows, .. } = self;
            // A block frees its window block, too.
            let n_evicted = n_missing
                .div_ceil(windows.as_ref().map_or(1, |windows| windows.config.n_taken(1, 1)));
            let mut release = |block| {
                if let Some(windows) = windows {
                    windows.forget(pool, block);
                }
                pool.release(block);
            };
            if tree.evict(n_evicted, &mut release) == 0 && !self.evict_window(List::Ends) {
                break;
            }
        }
        self.collect_dropped();
    }
}

#[cfg(test)]
mod tests;
