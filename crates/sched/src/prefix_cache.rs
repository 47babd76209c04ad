//! The seam for sharing KV between requests that start alike.
//!
//! A cache remembers which blocks hold the KV of which token prefix. It deals in ids only. **The
//! cache never touches the pool**: it says which blocks it wants to keep and which it lets go, and
//! the scheduler counts the references. So blocks have one book-keeper.
//!
//! | call | modifies the cache | what the scheduler does to the pool |
//! |---|---|---|
//! | `match_prefix` | no | nothing; the match is stale after the next `&mut` call other than `lock` |
//! | `lock` | pins the path | the sequence becomes a holder of each matched block |
//! | `insert` | adds blocks | the cache becomes a holder of each block in `Inserted` |
//! | `unlock` | unpins, consumes the handle | nothing (the sequence's table is released apart) |
//! | `evict` | forgets unpinned blocks | the cache stops being a holder of each returned block |

use crate::BlockId;
use pelton_base::{Namespace, TokenId};

/// The longest cached prefix of some tokens, found but not pinned.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PrefixMatch {
    /// Blocks that hold it, all full, in token order.
    pub blocks: Vec<BlockId>,
    /// Where it ends, in the cache's own terms.
    pub key: u64,
}

/// A pinned prefix: until it is unlocked, none of its blocks is evicted.
///
/// A linear handle: made by [`PrefixCache::lock`], consumed by [`PrefixCache::unlock`].
#[derive(Debug)]
#[must_use = "a handle that is dropped instead of unlocked pins its prefix for ever"]
pub struct PrefixHandle {
    key: u64,
}

impl PrefixHandle {
    /// Makes the handle for a prefix; for implementations of [`PrefixCache::lock`].
    pub fn new(key: u64) -> Self {
        Self { key }
    }

    /// Consumes the handle, naming the prefix; for implementations of [`PrefixCache::unlock`].
    pub fn into_key(self) -> u64 {
        self.key
    }
}

/// What an insertion changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[must_use = "the caller adds the cache as a holder of these blocks"]
pub struct Inserted {
    /// Offered blocks that the cache keeps; those it already had under other ids are not here.
    pub kept: Vec<BlockId>,
}

/// Remembers which blocks hold which prefix.
///
/// Only whole blocks are cached, so a match is always a multiple of the block size.
pub trait PrefixCache: Send + std::fmt::Debug {
    /// Finds the longest cached prefix of `tokens`. Reads only.
    fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId]) -> PrefixMatch;

    /// Pins a match that is still fresh.
    fn lock(&mut self, found: PrefixMatch) -> PrefixHandle;

    /// Unpins a prefix.
    fn unlock(&mut self, handle: PrefixHandle);

    /// Offers the blocks of a computed prefix: `tokens` fill `blocks` exactly.
    fn insert(&mut self, namespace: Namespace, tokens: &[TokenId], blocks: &[BlockId]) -> Inserted;

    /// Forgets up to `n_blocks` unpinned blocks, least valuable first; fewer when fewer are unpinned.
    #[must_use = "the caller removes the cache as a holder of these blocks"]
    fn evict(&mut self, n_blocks: usize) -> Vec<BlockId>;

    /// Number of blocks that the cache keeps.
    fn n_blocks(&self) -> usize;

    /// Panics if the cache contradicts itself.
    fn check_integrity(&self);
}

/// The cache that remembers nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl PrefixCache for NoCache {
    fn match_prefix(&self, _namespace: Namespace, _tokens: &[TokenId]) -> PrefixMatch {
        PrefixMatch::default()
    }

    fn lock(&mut self, found: PrefixMatch) -> PrefixHandle {
        PrefixHandle::new(found.key)
    }

    fn unlock(&mut self, handle: PrefixHandle) {
        handle.into_key();
    }

    fn insert(&mut self, _: Namespace, _tokens: &[TokenId], _blocks: &[BlockId]) -> Inserted {
        Inserted::default()
    }

    fn evict(&mut self, _n_blocks: usize) -> Vec<BlockId> {
        Vec::new()
    }

    fn n_blocks(&self) -> usize {
        0
    }

    fn check_integrity(&self) {}
}
