//! The cached part of a query.

use super::RadixTree;
use super::arena::NodeId;
use super::children::{Children, fingerprint};
use crate::{BlockId, Namespace, SnapshotId};
use pelton_base::TokenId;
use std::ops::Bound::{Excluded, Included, Unbounded};

/// Tokens that are compared at once: a few registers wide, without a branch.
const STRIDE: usize = 32;

/// The longest cached prefix of some tokens, found but not pinned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RadixMatch {
    /// Whole blocks of it.
    pub n_full: usize,
    /// A cached block of which exactly the first `n` tokens are the next tokens of the query, with
    /// `0 < n < block_size`. A sequence copies them to a block of its own.
    ///
    /// Locking the match does not pin this block. The caller holds it in the pool until it is
    /// copied, so that its KV outlives an eviction.
    pub partial: Option<(BlockId, usize)>,
    /// The snapshot of the state after the whole blocks, in a match that was cut back to one. Locking
    /// the match counts as a use of it.
    pub snapshot: Option<SnapshotId>,
    pub(super) namespace: Namespace,
    /// The node that its whole blocks end in, when there are any.
    pub(super) node: Option<NodeId>,
    pub(super) n_tokens: usize,
    /// `RadixTree::n_purges` when it was found.
    pub(super) n_purges: u64,
}

impl RadixTree {
    /// Finds the longest cached prefix of `tokens`, and appends its whole blocks to `blocks`.
    ///
    /// Reads only. Cost is `O(tokens + nodes on the path * log children)`.
    pub fn find(
        &self,
        namespace: Namespace,
        tokens: &[TokenId],
        blocks: &mut Vec<BlockId>,
    ) -> RadixMatch {
        let block_size = self.config.block_size;
        let mut found = RadixMatch {
            n_full: 0,
            partial: None,
            snapshot: None,
            namespace,
            node: None,
            n_tokens: tokens.len(),
            n_purges: self.n_purges,
        };
        let Some(&root) = self.roots.get(&namespace) else { return found };
        let mut children = &self.arena[root].children;
        let mut rest = tokens;
        loop {
            let Some(child) = self.continuation(children, rest) else {
                found.partial = self.closest(children, &rest[..block_size.min(rest.len())]);
                return found;
            };
            let node = &self.arena[child];
            let n_common = common_prefix(&node.tokens, rest);
            let n_blocks = n_common / block_size;
            blocks.extend_from_slice(&node.blocks[..n_blocks]);
            found.n_full += n_blocks;
            found.node = Some(child);
            if n_blocks < node.blocks.len() {
                let n_more = n_common % block_size;
                found.partial = (n_more > 0).then(|| (node.blocks[n_blocks], n_more));
                return found;
            }
            rest = &rest[n_common..];
            children = &node.children;
        }
    }

    /// The child whose first block is the next block of `rest`.
    pub(super) fn continuation(&self, children: &Children, rest: &[TokenId]) -> Option<NodeId> {
        let next = rest.get(..self.config.block_size)?;
        match children {
            Children::Few { n, prints, ids } => {
                let print = fingerprint(next);
                let mut alike =
                    prints[..usize::from(*n)].iter().zip(ids).filter(|child| *child.0 == print);
                alike
                    .find(|child| self.arena[*child.1].tokens.starts_with(next))
                    .map(|child| *child.1)
            }
            Children::Many(many) => many.get(next).copied(),
        }
    }

    /// The first block that shares most of `next`, among children that share not all of a block.
    fn closest(&self, children: &Children, next: &[TokenId]) -> Option<(BlockId, usize)> {
        let share = |id: NodeId| (common_prefix(&self.arena[id].tokens, next), id);
        // The first of equals, so that the same calls find the same.
        let better = |best: (usize, NodeId), other: (usize, NodeId)| {
            if other.0 > best.0 { other } else { best }
        };
        let best = match children {
            Children::Few { n, ids, .. } => {
                ids[..usize::from(*n)].iter().copied().map(share).reduce(better)
            }
            Children::Many(many) => {
                // In sorted order the longest common prefix is with a neighbour.
                let below = many.range::<[TokenId], _>((Unbounded, Excluded(next))).next_back();
                let above = many.range::<[TokenId], _>((Included(next), Unbounded)).next();
                let beside = [above, below].into_iter().flatten();
                beside.map(|(_, &id)| share(id)).reduce(better)
            }
        };
        let (n_tokens, child) = best?;
        (n_tokens > 0).then(|| (self.arena[child].blocks[0], n_tokens))
    }
}

/// Number of leading tokens that `a` and `b` share.
pub(crate) fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    let n_tokens = a.len().min(b.len());
    let (a, b) = (&a[..n_tokens], &b[..n_tokens]);
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE));
    let differs = |(a, b): (&[TokenId], &[TokenId])| {
        a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a.0 ^ b.0)) != 0
    };
    let n_equal = STRIDE * strides.take_while(|&pair| !differs(pair)).count();
    let rest = a[n_equal..].iter().zip(&b[n_equal..]);
    n_equal + rest.take_while(|(a, b)| a == b).count()
}
