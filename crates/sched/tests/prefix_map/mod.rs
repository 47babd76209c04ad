//! The simplest prefix cache that shares: a map from the hash of a prefix to its last block.
//!
//! It exists to prove the `PrefixCache` seam, not to be fast.

use pelton_base::TokenId;
use pelton_sched::{BlockId, Inserted, Namespace, PrefixCache, PrefixHandle, PrefixMatch};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Key of the empty prefix.
const ROOT: u64 = 0;

#[derive(Debug)]
struct Node {
    parent: u64,
    block: BlockId,
    n_children: usize,
    n_pins: usize,
    /// When it was last locked or inserted.
    used: u64,
}

/// One node per cached block.
#[derive(Debug)]
pub(crate) struct PrefixMap {
    nodes: BTreeMap<u64, Node>,
    block_size: usize,
    clock: u64,
}

impl PrefixMap {
    pub(crate) fn new(block_size: usize) -> Self {
        Self { nodes: BTreeMap::new(), block_size, clock: 0 }
    }

    fn key(parent: u64, namespace: Namespace, tokens: &[TokenId]) -> u64 {
        let mut hasher = DefaultHasher::new();
        (parent, namespace, tokens).hash(&mut hasher);
        hasher.finish()
    }

    fn pin(&mut self, mut key: u64, pin: impl Fn(&mut usize)) {
        self.clock += 1;
        while key != ROOT {
            let node = self.nodes.get_mut(&key).expect("a pinned path exists");
            pin(&mut node.n_pins);
            node.used = self.clock;
            key = node.parent;
        }
    }
}

impl PrefixCache for PrefixMap {
    fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId]) -> PrefixMatch {
        let mut found = PrefixMatch { blocks: Vec::new(), key: ROOT };
        for tokens in tokens.chunks_exact(self.block_size) {
            let key = Self::key(found.key, namespace, tokens);
            let Some(node) = self.nodes.get(&key) else { break };
            found.blocks.push(node.block);
            found.key = key;
        }
        found
    }

    fn lock(&mut self, found: PrefixMatch) -> PrefixHandle {
        self.pin(found.key, |n_pins| *n_pins += 1);
        PrefixHandle::new(found.key)
    }

    fn unlock(&mut self, handle: PrefixHandle) {
        self.pin(handle.into_key(), |n_pins| *n_pins -= 1);
    }

    fn insert(&mut self, namespace: Namespace, tokens: &[TokenId], blocks: &[BlockId]) -> Inserted {
        assert_eq!(tokens.len(), blocks.len() * self.block_size);
        self.clock += 1;
        let mut kept = Vec::new();
        let mut parent = ROOT;
        for (tokens, &block) in tokens.chunks_exact(self.block_size).zip(blocks) {
            let key = Self::key(parent, namespace, tokens);
            if !self.nodes.contains_key(&key) {
                let node = Node { parent, block, n_children: 0, n_pins: 0, used: self.clock };
                self.nodes.insert(key, node);
                if let Some(parent) = self.nodes.get_mut(&parent) {
                    parent.n_children += 1;
                }
                kept.push(block);
            }
            parent = key;
        }
        Inserted { kept }
    }

    fn evict(&mut self, n_blocks: usize) -> Vec<BlockId> {
        let mut evicted = Vec::new();
        while evicted.len() < n_blocks {
            let leaves = self.nodes.iter().filter(|(_, n)| n.n_children == 0 && n.n_pins == 0);
            let Some((&key, _)) = leaves.min_by_key(|(_, node)| node.used) else { break };
            let node = self.nodes.remove(&key).expect("just found");
            if let Some(parent) = self.nodes.get_mut(&node.parent) {
                parent.n_children -= 1;
            }
            evicted.push(node.block);
        }
        evicted
    }

    fn n_blocks(&self) -> usize {
        self.nodes.len()
    }

    fn check_integrity(&self) {
        for node in self.nodes.values() {
            if let Some(parent) = self.nodes.get(&node.parent) {
                assert!(parent.n_pins >= node.n_pins, "a pinned child under an unpinned parent");
            } else {
                assert_eq!(node.parent, ROOT, "an orphan");
            }
        }
    }
}
