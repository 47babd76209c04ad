//! The tree checks itself.

use super::RadixTree;
use super::arena::Place;
use std::collections::BTreeSet;

impl RadixTree {
    /// Panics if the tree contradicts itself: a node that its parent does not know, a lock counted
    /// on part of a path only, a block that is there twice, a wrong sum, a leaf that is missing
    /// among the candidates for eviction.
    ///
    /// Cost is `O(tokens)`; call it when idle and after every step in tests.
    pub fn check_integrity(&self) {
        let block_size = self.config.block_size;
        let mut kept = vec![false; self.kept.len()];
        let mut candidates = BTreeSet::new();
        let (mut n_blocks, mut n_evictable, mut n_ends, mut n_roots) = (0, 0, 0, 0);
        for (id, node) in self.arena.iter() {
            assert_eq!(
                node.tokens.len(),
                node.blocks.len() * block_size,
                "{id:?} fills its blocks"
            );
            match node.place {
                Place::Root(namespace) => {
                    n_roots += 1;
                    assert_eq!(self.roots.get(&namespace), Some(&id), "{id:?} is an unknown root");
                    assert_eq!(node.end(), 0, "a root has no blocks");
                    let used = node.n_locks > 0 || !node.children.is_empty();
                    assert!(used, "the root of {namespace:?} is left over");
                }
                Place::Under(parent) => {
                    assert!(!node.blocks.is_empty(), "{id:?} has no blocks");
                    let parent = &self.arena[parent];
                    let known = self.continuation(&parent.children, &node.tokens);
                    assert_eq!(known, Some(id), "{id:?} is unknown to its parent");
                    assert_eq!(node.start, parent.end(), "{id:?} does not follow its parent");
                    let older = node.n_locks == 0 && node.used > parent.used;
                    assert!(!older, "{id:?} was used without its parent");
                }
            }
            let mut n_below = 0;
            for child in node.children.ids() {
                let place = self.arena[child].place;
                assert!(matches!(place, Place::Under(parent) if parent == id), "a stray {child:?}");
                n_below += self.arena[child].n_locks;
            }
            assert_eq!(node.n_locks, node.n_ends + n_below, "{id:?} counts its locks wrongly");
            for block in &node.blocks {
                let seen = &mut kept[block.0 as usize];
                assert!(!*seen, "{block:?} is in the tree twice");
                *seen = true;
            }
            n_blocks += node.blocks.len();
            n_ends += node.n_ends;
            if node.n_locks == 0 {
                n_evictable += node.blocks.len();
            }
            candidates.extend(self.candidacy(id));
        }
        assert_eq!(kept, self.kept, "blocks that are kept");
        assert_eq!(candidates, self.candidates, "leaves that can be evicted");
        assert_eq!(n_blocks, self.n_blocks, "number of blocks");
        assert_eq!(n_evictable, self.n_evictable, "number of evictable blocks");
        assert_eq!(n_ends, self.n_locks, "number of locks");
        assert_eq!(n_roots, self.roots.len(), "number of namespaces");
        self.snapshots.check_integrity(|id, end| {
            let mut nodes = self.arena.iter();
            nodes.any(|(other, node)| other == id && node.start < end && end <= node.end())
        });
    }
}
