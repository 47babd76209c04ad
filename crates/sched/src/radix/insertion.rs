//! Computed blocks enter the tree.

use super::RadixTree;
use super::arena::{Node, NodeId, Place};
use super::locking::PrefixLock;
use super::matching::common_prefix;
use crate::{BlockId, Namespace};
use pelton_base::TokenId;

impl RadixTree {
    /// Offers the blocks of a computed prefix, and moves `lock` to its end.
    ///
    /// `tokens` are all tokens from the first on and fill `blocks`, the whole table, exactly. The
    /// part that `lock` pins already is not looked at again, so a sequence that is offered block by
    /// block costs `O(block)` each time. Calls `keep` for each block that the tree now holds, in
    /// token order. Where it has another block for the same tokens already, it keeps that one, pins
    /// it, and skips the offered block, which stays the caller's own.
    ///
    /// Where the lock ends beside other locks, or where the tree goes on, its first block makes a
    /// node. Later blocks are appended to it, which allocates as a growing `Vec` does.
    ///
    /// # Panics
    ///
    /// Panics if `tokens` do not fill `blocks`, if these are fewer than `lock` pins, if `lock` is
    /// of another namespace, or if a block that is to be kept is in the tree already or beyond the
    /// pool.
    pub fn extend(
        &mut self,
        namespace: Namespace,
        lock: PrefixLock,
        tokens: &[TokenId],
        blocks: &[BlockId],
        keep: &mut impl FnMut(BlockId),
    ) -> PrefixLock {
        let block_size = self.config.block_size;
        assert_eq!(tokens.len(), blocks.len() * block_size, "the tokens fill the blocks");
        assert_eq!(namespace, lock.namespace, "a lock of another namespace");
        let mut end = self.arena[lock.node].end();
        assert!(end <= blocks.len(), "a lock beyond the offered blocks");
        debug_assert!(self.spells(lock.node, tokens), "the tokens before a lock are its prefix");
        if end == blocks.len() {
            return lock;
        }
        let PrefixLock { mut node, .. } = lock;
        self.arena[node].n_ends -= 1;
        // Down the part that exists already...
        while end < blocks.len() {
            let rest = &tokens[end * block_size..];
            let children = &self.arena[node].children;
            let Some(child) = self.continuation(children, rest) else { break };
            let run = &self.arena[child];
            let n_blocks = common_prefix(&run.tokens, rest) / block_size;
            node = match n_blocks < run.blocks.len() {
                true => self.split(child, n_blocks),
                false => child,
            };
            self.pin(node);
            end += n_blocks;
        }
        // ...and on with the new part.
        if end < blocks.len() {
            node = self.append(node, &tokens[end * block_size..], &blocks[end..]);
            for &block in &blocks[end..] {
                keep(block);
            }
        }
        self.arena[node].n_ends += 1;
        PrefixLock { namespace, node }
    }

    /// Lets a run follow the end of a pinned node, which no child continues like it, and returns
    /// the node it ends in.
    fn append(&mut self, id: NodeId, tokens: &[TokenId], blocks: &[BlockId]) -> NodeId {
        for &block in blocks {
            let kept = &mut self.kept[block.0 as usize];
            assert!(!*kept, "{block:?} is in the tree already");
            *kept = true;
        }
        self.n_blocks += blocks.len();
        self.stats.n_inserted_blocks += blocks.len() as u64;
        let now = self.clock;
        let node = &self.arena[id];
        // No other lock ends at or below it, so its end may move.
        let grows = node.n_locks == 1 && node.children.is_empty() && !node.blocks.is_empty();
        let end = match grows {
            true => id,
            false => {
                let mut child = Node::new(Place::Under(id), node.end());
                child.n_locks = 1;
                self.arena.insert(child)
            }
        };
        let node = &mut self.arena[end];
        node.tokens.extend_from_slice(tokens);
        node.blocks.extend_from_slice(blocks);
        node.cool(now);
        if !grows {
            self.arena.adopt(id, end, self.config.block_size);
        }
        end
    }

    /// Whether the path to the end of a node spells the beginning of `tokens`.
    fn spells(&self, mut id: NodeId, tokens: &[TokenId]) -> bool {
        loop {
            let node = &self.arena[id];
            if !tokens[node.start * self.config.block_size..].starts_with(&node.tokens) {
                return false;
            }
            let Some(parent) = node.parent() else { return true };
            id = parent;
        }
    }
}
