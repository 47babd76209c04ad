//! The radix tree: which blocks hold the KV of which prefix.
//!
//! # The chapter
//!
//! ```text
//! root(namespace 0)
//!  ├─ [ t t t t | t t t t | t t t t ]     a node: a run of tokens that fill whole blocks,
//!  │  [    7    |    2    |    9    ]     and the blocks that hold their KV
//!  │     ├─ [ t t t t ]                   children differ within their first block
//!  │     │  [    4    ]
//!  │     └─ [ t t t t | t t t t ]  ◀── lock: pins every block from here up to the root
//!  └─ [ t t t t ]
//! root(namespace 1)
//! ```
//!
//! | call | modifies the tree | the caller's duty towards the pool |
//! |---|---|---|
//! | [`find`](RadixTree::find) | no | nothing; the match is stale once a block has been evicted |
//! | [`lock`](RadixTree::lock) | pins the path | the sequence becomes a holder of each matched block |
//! | [`extend`](RadixTree::extend) | adds blocks, moves the pin | the tree becomes a holder of each block in `keep` |
//! | [`unlock`](RadixTree::unlock) | unpins, consumes the lock | nothing |
//! | [`evict`](RadixTree::evict), [`clear`](RadixTree::clear) | evicts unpinned blocks | the tree stops being a holder of each block in `release` |
//! | [`attach`](RadixTree::attach) | keeps a snapshot at the end of a block | nothing |
//! | [`forget_snapshot`](RadixTree::forget_snapshot) | forgets a snapshot | it is the caller's again |
//! | [`take_dropped_snapshots`](RadixTree::take_dropped_snapshots) | no | they are the caller's again |
//!
//! **The tree deals in ids only and never touches the pool**, so the pool alone counts the holders
//! of a block.
//!
//! **Matching.** A query of `n` tokens costs a comparison of `n` tokens with a few runs and, per
//! node, one search in a sorted map of children. Where no child begins with the whole next block of
//! the query, the child that shares most of it stands beside the place of the query in that order.
//!
//! **Splitting.** A lock or a new branch splits a node where it ends. The *upper* part is the new
//! node and the lower part keeps its id, so a lock, which is the id of a node, keeps its end. Parts
//! are not joined again: the upper part may be in use when the lower one is not, and eviction needs
//! this difference.
//!
//! **Growing.** A lock that alone ends at a leaf owns that leaf's end. Extending it appends in
//! place, so a sequence that offers its blocks as they fill stays one node and pays for the new
//! block only.
//!
//! Tried and dropped, each without gain on paths of ten nodes: to look up the next child before the
//! run is compared, and short cuts by fingerprint beside a large sorted map. The remaining time is
//! waits for memory, at least one per node: `benches/radix.rs` has the figures, in the cache and
//! out of it. Not tried: a slab of tokens by block id, since comparing 32 scattered pieces took
//! three times as long as one piece of their length.
//!
//! **Architecture invariant:** the runs of a node's children differ in their first block, so every
//! prefix has one place.
//!
//! **Architecture invariant:** a node is pinned by every lock that ends at it or below it. So
//! unpinned nodes form whole subtrees, and every unpinned block can be evicted, children before
//! parents.
//!
//! Paper: Zheng et al., "SGLang", NeurIPS 2024 (RadixAttention). We differ in that runs end at
//! block borders only and that a run may be evicted from its end, block by block.

mod arena;
mod children;
mod eviction;
mod insertion;
mod integrity;
mod locking;
mod matching;
mod snapshots;

#[cfg(test)]
mod tests;

pub use eviction::{Eviction, RecomputeCost};
pub use locking::PrefixLock;
pub use matching::RadixMatch;
pub(crate) use matching::common_prefix;

use crate::BlockId;
use arena::{Arena, NodeId};
use pelton_base::Namespace;
use snapshots::Snapshots;
use std::collections::{BTreeMap, BTreeSet};

/// The limits and prices that a tree is made for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RadixConfig {
    /// Tokens per block; at least one.
    pub block_size: usize,
    /// Blocks of the pool: every id is below it, so the tree can never keep more.
    pub n_blocks: usize,
    /// Order of eviction.
    pub eviction: Eviction,
    /// Price of computing an evicted token again; read by [`Eviction::CostAware`] only.
    pub recompute: RecomputeCost,
}

/// Counts since the tree was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RadixStats {
    /// Matches that were locked.
    pub n_lookups: u64,
    /// Locked matches with at least one whole block.
    pub n_hits: u64,
    /// Tokens that the locked matches looked for.
    pub lookup_tokens: u64,
    /// Tokens of whole blocks that the locked matches found.
    pub matched_tokens: u64,
    /// Blocks that the tree began to keep.
    pub n_inserted_blocks: u64,
    /// Blocks that it forgot.
    pub n_evicted_blocks: u64,
    /// Snapshots that it began to keep.
    pub n_inserted_snapshots: u64,
    /// Snapshots that it forgot, those of evicted blocks included.
    pub n_evicted_snapshots: u64,
}

/// Remembers which blocks hold which prefix, token by token.
#[derive(Debug)]
pub struct RadixTree {
    config: RadixConfig,
    arena: Arena,
    /// The root of each namespace that has a node or a lock.
    roots: BTreeMap<Namespace, NodeId>,
    /// Unpinned leaves, least valuable first.
    candidates: BTreeSet<(u64, NodeId)>,
    /// `kept[id]` is set where the tree keeps block `id`.
    kept: Vec<bool>,
    snapshots: Snapshots,
    n_blocks: usize,
    /// Blocks of nodes without locks.
    n_evictable: usize,
    /// Locks that exist.
    n_locks: u32,
    /// Counts locks and unlocks; this is the tree's only clock.
    clock: u64,
    /// Counts the calls that forgot a block.
    n_purges: u64,
    stats: RadixStats,
}

impl RadixTree {
    /// Creates an empty tree.
    ///
    /// # Panics
    ///
    /// Panics if `block_size` is zero.
    pub fn new(config: RadixConfig) -> Self {
        assert!(config.block_size > 0, "block_size must be at least 1");
        Self {
            kept: vec![false; config.n_blocks],
            config,
            arena: Arena::default(),
            roots: BTreeMap::new(),
            snapshots: Snapshots::default(),
            candidates: BTreeSet::new(),
            n_blocks: 0,
            n_evictable: 0,
            n_locks: 0,
            clock: 0,
            n_purges: 0,
            stats: RadixStats::default(),
        }
    }

    /// Number of blocks that the tree keeps.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Whether the tree keeps a block.
    pub(crate) fn keeps(&self, block: BlockId) -> bool {
        self.kept[block.0 as usize]
    }

    /// Number of blocks that [`evict`](Self::evict) could release now.
    pub fn n_evictable(&self) -> usize {
        self.n_evictable
    }

    /// Number of nodes, the roots of used namespaces included.
    pub fn n_nodes(&self) -> usize {
        self.arena.len()
    }

    /// Number of locks that were not unlocked.
    pub fn n_locks(&self) -> usize {
        self.n_locks as usize
    }

    /// Counts so far.
    pub fn stats(&self) -> RadixStats {
        self.stats
    }

    /// The limits and prices that it was made for.
    pub fn config(&self) -> &RadixConfig {
        &self.config
    }
}
