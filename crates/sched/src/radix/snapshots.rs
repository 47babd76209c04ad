//! Snapshots of recurrent states, which hang at the ends of blocks.
//!
//! ```text
//! root ─ [ a a a a | b b b b | c c c c | d d d d ]:5 ─ [ e e e e | ...
//!                            ▲                   ▲
//!            (node 5, 2 blocks): snapshot 0     (node 5, 4 blocks): snapshot 3
//! ```
//!
//! Few blocks have one, so they stand in a map beside the nodes, by the node and by the number of
//! blocks from the root on. A node that is split gives the upper part of them to the new node. A block
//! that is evicted takes the snapshot at its end with it.
//!
//! **Worth.** The snapshot that goes first is that with the least worth, which is the tree's own
//! measure ([`Eviction`]): the last use, or the decayed count of uses times the tokens that the
//! snapshot saves. It saves those since the next shallower snapshot on its path, at its last use. When
//! that one goes, the deeper ones are not weighed again until they are used, because a search for
//! them would visit the whole subtree.
//!
//! A lock does not keep a snapshot: it is read once, when a sequence begins, and the caller orders
//! that read before any later use of its memory.

use super::RadixTree;
use super::arena::NodeId;
use super::eviction::{Eviction, ONE, decayed, lasting_worth};
use super::locking::PrefixLock;
use super::matching::RadixMatch;
use crate::{BlockId, Namespace, SnapshotId};
use pelton_base::TokenId;
use std::collections::{BTreeMap, BTreeSet};

/// The end of a block: a node, and blocks from the root on.
type Place = (NodeId, usize);

/// The snapshots of a tree.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    by_place: BTreeMap<Place, Kept>,
    /// The least valuable first.
    by_worth: BTreeSet<(u64, Place)>,
    /// Snapshots that went with their blocks and that the caller has not taken back yet.
    dropped: Vec<SnapshotId>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    id: SnapshotId,
    /// Time of its last use.
    used: u64,
    /// Decayed count of uses as of `used`, in units of `1 / eviction::ONE`.
    heat: u64,
    worth: u64,
}

impl Snapshots {
    fn insert(&mut self, place: Place, kept: Kept) {
        self.by_worth.insert((kept.worth, place));
        let before = self.by_place.insert(place, kept);
        assert!(before.is_none(), "a second snapshot of one state");
    }

    fn remove(&mut self, place: Place) -> Kept {
        let kept = self.by_place.remove(&place).expect("invariant: a snapshot is where it hangs");
        self.by_worth.remove(&(kept.worth, place));
        kept
    }

    /// The deepest one of a node, at most `end` blocks from the root.
    fn deepest(&self, node: NodeId, end: usize) -> Option<(usize, SnapshotId)> {
        let mut up_to_end = self.by_place.range((node, 0)..=(node, end));
        up_to_end.next_back().map(|(place, kept)| (place.1, kept.id))
    }

    /// Gives the snapshots of the first blocks of a node to the node that now has these blocks.
    pub(super) fn split(&mut self, lower: NodeId, upper: NodeId, end: usize) {
        while let Some((end, _)) = self.deepest(lower, end) {
            let kept = self.remove((lower, end));
            self.insert((upper, end), kept);
        }
    }

    /// Drops the snapshots beyond the first `end` blocks of a node.
    pub(super) fn truncate(&mut self, node: NodeId, end: usize) {
        while let Some((&place, _)) =
            self.by_place.range((node, end + 1)..=(node, usize::MAX)).next()
        {
            let kept = self.remove(place);
            self.dropped.push(kept.id);
        }
    }

    pub(super) fn check_integrity(&self, is_end: impl Fn(NodeId, usize) -> bool) {
        assert!(self.by_place.keys().all(|&(node, end)| is_end(node, end)), "a stray snapshot");
        let by_worth = self.by_place.iter().map(|(&place, kept)| (kept.worth, place));
        assert_eq!(by_worth.collect::<BTreeSet<_>>(), self.by_worth, "the order of snapshots");
    }
}

impl RadixMatch {
    /// Cuts a match back to at most `n_blocks` whole blocks; `blocks` are the blocks of the match.
    pub fn cut(&mut self, n_blocks: usize, blocks: &mut Vec<BlockId>) {
        blocks.truncate(blocks.len() - self.n_full.saturating_sub(n_blocks));
        self.n_full = self.n_full.min(n_blocks);
        self.partial = None;
        if self.n_full == 0 {
            self.node = None;
        }
    }
}

impl RadixTree {
    /// The deepest snapshot on the path of a match, and the number of blocks from the root to it.
    ///
    /// Cost is `O(nodes on the path * log snapshots)`.
    pub fn deepest_snapshot(&self, found: &RadixMatch) -> Option<(usize, SnapshotId)> {
        self.deepest_above(found.node, found.n_full)
    }

    /// Keeps a snapshot of the state after the first `n_blocks` blocks, which `lock` pins.
    ///
    /// # Panics
    ///
    /// Panics if the lock pins fewer blocks, or if there is a snapshot already.
    pub fn attach(&mut self, lock: &PrefixLock, n_blocks: usize, snapshot: SnapshotId) {
        let place = self.place(lock, n_blocks);
        let worth = self.worth_of_snapshot(place, self.clock, ONE);
        self.snapshots.insert(place, Kept { id: snapshot, used: self.clock, heat: ONE, worth });
        self.stats.n_inserted_snapshots += 1;
    }

    /// Whether there is a snapshot of the state after the first `n_blocks` blocks, which `lock`
    /// pins.
    pub fn has_attached(&self, lock: &PrefixLock, n_blocks: usize) -> bool {
        self.snapshots.by_place.contains_key(&self.place(lock, n_blocks))
    }

    /// Whether there is a snapshot of the state after `tokens`, which fill whole blocks.
    pub fn has_snapshot(&self, namespace: Namespace, tokens: &[TokenId]) -> bool {
        let found = self.find(namespace, tokens, &mut Vec::new());
        let n_blocks = tokens.len() / self.config.block_size;
        let deepest = self.deepest_snapshot(&found);
        deepest.is_some_and(|(end, _)| end == n_blocks)
    }

    /// Forgets the least valuable snapshot, if there is one.
    pub fn forget_snapshot(&mut self) -> Option<SnapshotId> {
        let &(_, place) = self.snapshots.by_worth.first()?;
        self.stats.n_evicted_snapshots += 1;
        self.n_purges += 1;
        Some(self.snapshots.remove(place).id)
    }

    /// The snapshots that went with their blocks since the last call.
    pub fn take_dropped_snapshots(&mut self) -> impl Iterator<Item = SnapshotId> {
        self.stats.n_evicted_snapshots += self.snapshots.dropped.len() as u64;
        self.snapshots.dropped.drain(..)
    }

    /// Number of snapshots that it keeps.
    pub fn n_snapshots(&self) -> usize {
        self.snapshots.by_place.len()
    }

    /// Every snapshot that it keeps, and the number of blocks from the root to it.
    pub fn snapshots(&self) -> impl Iterator<Item = (usize, SnapshotId)> {
        self.snapshots.by_place.iter().map(|(place, kept)| (place.1, kept.id))
    }

    /// Counts a use of the snapshot at the end of a node, where a match was locked.
    pub(super) fn use_snapshot(&mut self, node: NodeId, snapshot: SnapshotId) {
        let place = (node, self.arena[node].end());
        let kept = self.snapshots.remove(place);
        assert_eq!(kept.id, snapshot, "a stale match: its snapshot is another");
        let heat = decayed(kept.heat, self.clock - kept.used) + ONE;
        let worth = self.worth_of_snapshot(place, self.clock, heat);
        self.snapshots.insert(place, Kept { used: self.clock, heat, worth, ..kept });
    }

    /// The deepest snapshot at most `end` blocks from the root, on the path to a node.
    fn deepest_above(&self, node: Option<NodeId>, end: usize) -> Option<(usize, SnapshotId)> {
        let mut above = node;
        while let Some(id) = above {
            let deepest = self.snapshots.deepest(id, end);
            if deepest.is_some() {
                return deepest;
            }
            above = self.arena[id].parent();
        }
        None
    }

    fn place(&self, lock: &PrefixLock, n_blocks: usize) -> Place {
        assert!(n_blocks > 0, "nothing is to be kept of the empty prefix");
        let mut id = lock.node;
        assert!(n_blocks <= self.arena[id].end(), "a snapshot beyond its lock");
        while self.arena[id].start >= n_blocks {
            id = self.arena[id].parent().expect("invariant: a root starts at 0");
        }
        (id, n_blocks)
    }

    fn worth_of_snapshot(&self, (node, end): Place, used: u64, heat: u64) -> u64 {
        match self.config.eviction {
            Eviction::Lru => used,
            Eviction::CostAware => {
                let start = self.deepest_above(Some(node), end - 1).map_or(0, |(end, _)| end);
                let block_size = self.config.block_size;
                let cost = self.config.recompute.between(start * block_size, end * block_size);
                lasting_worth(used, heat, cost)
            }
        }
    }
}
