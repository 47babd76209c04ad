//! Locks: the blocks that a sequence uses are not evicted.

use super::RadixTree;
use super::arena::{Node, NodeId, Place};
use super::matching::RadixMatch;
use pelton_base::Namespace;

/// A pinned prefix: until it is unlocked, none of its blocks is evicted.
///
/// A linear handle: made by [`RadixTree::lock`], consumed by [`RadixTree::unlock`]. Dropping it
/// instead leaves [`RadixTree::n_locks`] above the number of locks that exist.
#[derive(Debug)]
#[must_use = "a lock that is dropped instead of unlocked pins its prefix for ever"]
pub struct PrefixLock {
    pub(super) namespace: Namespace,
    /// The node at whose end the prefix ends.
    pub(super) node: NodeId,
}

impl RadixTree {
    /// Pins the whole blocks of a match, and counts it as a use of them.
    ///
    /// The match may be older than other locks and extensions, but not than a block's eviction. A
    /// caller that may have to give up for want of blocks asks
    /// [`n_evictable_beside`](Self::n_evictable_beside) first: a lock that is given back unused
    /// still counts as a use.
    ///
    /// # Panics
    ///
    /// Panics if blocks were evicted since the match was found.
    pub fn lock(&mut self, found: &RadixMatch) -> PrefixLock {
        assert_eq!(found.n_purges, self.n_purges, "a stale match: blocks were evicted since");
        self.stats.n_lookups += 1;
        self.stats.n_hits += u64::from(found.n_full > 0);
        self.stats.lookup_tokens += found.n_tokens as u64;
        self.stats.matched_tokens += (found.n_full * self.config.block_size) as u64;
        self.clock += 1;
        let Some(mut node) = found.node else { return self.root_lock(found.namespace) };
        // Since then the node may have been split above the end of the match.
        while self.arena[node].start >= found.n_full {
            node = self.arena[node].parent().expect("invariant: a root starts at 0");
        }
        let n_blocks = found.n_full - self.arena[node].start;
        if n_blocks < self.arena[node].blocks.len() {
            node = self.split(node, n_blocks);
        }
        if let Some(snapshot) = found.snapshot {
            self.use_snapshot(node, snapshot);
        }
        let mut above = Some(node);
        while let Some(id) = above {
            self.pin(id);
            above = self.arena[id].parent();
        }
        self.end_lock_at(found.namespace, node)
    }

    /// A lock on the empty prefix: it pins nothing, and can be extended.
    pub fn root_lock(&mut self, namespace: Namespace) -> PrefixLock {
        let arena = &mut self.arena;
        let new_root = || arena.insert(Node::new(Place::Root(namespace), 0));
        let root = *self.roots.entry(namespace).or_insert_with(new_root);
        self.pin(root);
        self.end_lock_at(namespace, root)
    }

    /// Unpins a prefix. Its blocks stay, as the most recently used.
    pub fn unlock(&mut self, lock: PrefixLock) {
        self.clock += 1;
        self.n_locks -= 1;
        self.arena[lock.node].n_ends -= 1;
        let mut above = Some(lock.node);
        while let Some(id) = above {
            let now = self.clock;
            let node = &mut self.arena[id];
            node.n_locks -= 1;
            node.cool(now);
            above = node.parent();
            if node.n_locks == 0 {
                self.n_evictable += node.blocks.len();
            }
            self.candidates.extend(self.candidacy(id));
        }
        self.drop_idle_root(lock.namespace);
    }

    /// Number of blocks that a lock pins.
    pub fn n_locked_blocks(&self, lock: &PrefixLock) -> usize {
        self.arena[lock.node].end()
    }

    /// Number of blocks that [`evict`](Self::evict) could release if `found` were locked.
    ///
    /// # Panics
    ///
    /// Panics if blocks were evicted since the match was found.
    pub fn n_evictable_beside(&self, found: &RadixMatch) -> usize {
        assert_eq!(found.n_purges, self.n_purges, "a stale match: blocks were evicted since");
        let mut n_evictable = self.n_evictable;
        let mut above = found.node;
        while let Some(node) = above.map(|id| &self.arena[id]) {
            if node.n_locks > 0 {
                break; // And so is everything above.
            }
            n_evictable -= node.end().min(found.n_full).saturating_sub(node.start);
            above = node.parent();
        }
        n_evictable
    }

    /// Adds a lock to one node of a path.
    pub(super) fn pin(&mut self, id: NodeId) {
        if let Some(candidacy) = self.candidacy(id) {
            self.candidates.remove(&candidacy);
        }
        let now = self.clock;
        let node = &mut self.arena[id];
        if node.n_locks == 0 {
            self.n_evictable -= node.blocks.len();
        }
        node.n_locks += 1;
        node.warm(now);
    }

    /// Removes the root of a namespace without nodes and locks.
    pub(super) fn drop_idle_root(&mut self, namespace: Namespace) {
        let Some(&root) = self.roots.get(&namespace) else { return };
        if self.arena[root].n_locks == 0 && self.arena[root].children.is_empty() {
            self.arena.remove(root);
            self.roots.remove(&namespace);
        }
    }

    /// Ends a node after `n_blocks` of its blocks, and returns the new node that holds these.
    pub(super) fn split(&mut self, id: NodeId, n_blocks: usize) -> NodeId {
        let upper = self.arena.split(id, n_blocks, self.config.block_size);
        self.snapshots.split(id, upper, self.arena[upper].end());
        upper
    }

    fn end_lock_at(&mut self, namespace: Namespace, node: NodeId) -> PrefixLock {
        self.n_locks += 1;
        self.arena[node].n_ends += 1;
        PrefixLock { namespace, node }
    }
}
