//! The nodes of the tree and their memory.
//!
//! The id of a removed node is reused. No caller holds such an id: a lock keeps its node, and a
//! match that is older than a removal is refused.

use super::children::Children;
use crate::{BlockId, Namespace};
use pelton_base::TokenId;
use std::ops::{Index, IndexMut};

/// Index of a node in its arena.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct NodeId(u32);

/// The place of a node in the tree.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// The empty prefix of a namespace.
    Root(Namespace),
    /// Continues this node.
    Under(NodeId),
}

/// A run of whole blocks after the prefix that its parent ends.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    /// Blocks before its own.
    pub(super) start: usize,
    /// `blocks.len() * block_size` tokens; none at a root only.
    pub(super) tokens: Vec<TokenId>,
    pub(super) blocks: Vec<BlockId>,
    pub(super) children: Children,
    /// Locks that end here or below.
    pub(super) n_locks: u32,
    /// Locks that end here.
    pub(super) n_ends: u32,
    /// Time at which it was last locked, extended or unlocked.
    pub(super) used: u64,
    /// Decayed count of uses as of `used`, in units of `1 / eviction::ONE`.
    pub(super) heat: u64,
}

impl Node {
    pub(super) fn new(place: Place, start: usize) -> Self {
        Self {
            place,
            start,
            tokens: Vec::new(),
            blocks: Vec::new(),
            children: Children::default(),
            n_locks: 0,
            n_ends: 0,
            used: 0,
            heat: 0,
        }
    }

    /// Blocks up to its end.
    pub(super) fn end(&self) -> usize {
        self.start + self.blocks.len()
    }

    pub(super) fn parent(&self) -> Option<NodeId> {
        match self.place {
            Place::Root(_) => None,
            Place::Under(parent) => Some(parent),
        }
    }

    /// Drops all but the first `n_blocks` blocks, and most of the memory that they do not need.
    pub(super) fn truncate(&mut self, n_blocks: usize, block_size: usize) {
        self.tokens.truncate(n_blocks * block_size);
        self.blocks.truncate(n_blocks);
        if self.blocks.capacity() / 4 >= n_blocks {
            self.tokens.shrink_to(2 * self.tokens.len());
            self.blocks.shrink_to(2 * n_blocks);
        }
    }
}

// Two lines of memory: a long path is as slow as the lines that it visits.
const _: () = assert!(size_of::<Option<Node>>() == 128);

/// Slots of nodes, and the list of empty slots.
#[derive(Debug, Default)]
pub(super) struct Arena {
    slots: Vec<Option<Node>>,
    free: Vec<NodeId>,
}

impl Arena {
    pub(super) fn insert(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.slots[id.0 as usize] = Some(node);
            return id;
        }
        let id = NodeId(u32::try_from(self.slots.len()).expect("fewer nodes than block ids"));
        self.slots.push(Some(node));
        id
    }

    pub(super) fn remove(&mut self, id: NodeId) -> Node {
        self.free.push(id);
        self.slots[id.0 as usize].take().expect("a live node")
    }

    /// Ends a node after `n_blocks` of its blocks, and returns the new node that holds these.
    ///
    /// ```text
    /// parent ─ [ a b c d ]:id          parent ─ [ a b ]:new ─ [ c d ]:id
    /// ```
    ///
    /// Locks on the lower part pin the upper part too; locks that ended at `id` still do.
    pub(super) fn split(&mut self, id: NodeId, n_blocks: usize, block_size: usize) -> NodeId {
        let lower = &mut self[id];
        assert!((1..lower.blocks.len()).contains(&n_blocks), "both parts have blocks");
        let parent = lower.parent().expect("a root has no blocks");
        let mut upper = Node::new(lower.place, lower.start);
        upper.n_locks = lower.n_locks;
        (upper.used, upper.heat) = (lower.used, lower.heat);
        upper.tokens = lower.tokens.drain(..n_blocks * block_size).collect();
        upper.blocks = lower.blocks.drain(..n_blocks).collect();
        lower.truncate(lower.blocks.len(), block_size);
        lower.start += n_blocks;
        let new = self.insert(upper);
        self[id].place = Place::Under(new);
        let mut siblings = std::mem::take(&mut self[parent].children);
        siblings.replace(&self[new].tokens[..block_size], id, new);
        self[parent].children = siblings;
        self.adopt(new, id, block_size);
        new
    }

    /// Makes a node known to its parent.
    pub(super) fn adopt(&mut self, parent: NodeId, child: NodeId, block_size: usize) {
        let mut children = std::mem::take(&mut self[parent].children);
        children.insert(child, |id| &self[id].tokens[..block_size]);
        self[parent].children = children;
    }

    /// Number of live nodes.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(idx, slot)| Some((NodeId(idx as u32), slot.as_ref()?)))
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        self.slots[id.0 as usize].as_ref().expect("a live node")
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        self.slots[id.0 as usize].as_mut().expect("a live node")
    }
}
