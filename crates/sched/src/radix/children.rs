//! The continuations of a node.
//!
//! Most nodes have two children: the rest of the run that was split, and the branch that split it.
//! A map would cost such a node three visits to memory that is in no cache (its node, its key, the
//! child); so a few children stand in their parent, with a fingerprint that shows which of them is
//! worth a visit; a map is made only for more children than that. On paths of some fifty nodes this
//! saved a third of the time.

use super::arena::NodeId;
use pelton_base::TokenId;
use std::collections::BTreeMap;

/// Children that fit into the node itself.
const N_FEW: usize = 3;

#[derive(Debug)]
pub(super) enum Children {
    /// The first `n` of `ids`, in no order.
    Few { n: u8, prints: [u32; N_FEW], ids: [NodeId; N_FEW] },
    /// By the tokens of their first block.
    Many(BTreeMap<Box<[TokenId]>, NodeId>),
}

impl Default for Children {
    fn default() -> Self {
        Self::Few { n: 0, prints: [0; N_FEW], ids: [NodeId::default(); N_FEW] }
    }
}

impl Children {
    /// Adds a child whose first block no other child has; `first_of` returns that of any child.
    pub(super) fn insert<'a>(&mut self, child: NodeId, first_of: impl Fn(NodeId) -> &'a [TokenId]) {
        match self {
            Self::Few { n, prints, ids } if usize::from(*n) < N_FEW => {
                let idx = usize::from(*n);
                (prints[idx], ids[idx]) = (fingerprint(first_of(child)), child);
                *n += 1;
            }
            Self::Few { ids, .. } => {
                let all = ids.iter().copied().chain([child]);
                *self = Self::Many(all.map(|id| (first_of(id).into(), id)).collect());
            }
            Self::Many(many) => {
                many.insert(first_of(child).into(), child);
            }
        }
    }

    /// Puts a child in the place of another one that begins with the same block.
    pub(super) fn replace(&mut self, first: &[TokenId], old: NodeId, new: NodeId) {
        let place = match self {
            Self::Few { n, ids, .. } => ids[..usize::from(*n)].iter_mut().find(|id| **id == old),
            Self::Many(many) => many.get_mut(first),
        };
        *place.expect("invariant: a parent knows its children") = new;
    }

    pub(super) fn remove(&mut self, first: &[TokenId], child: NodeId) {
        match self {
            Self::Few { n, prints, ids } => {
                let idx = ids[..usize::from(*n)].iter().position(|&id| id == child);
                let idx = idx.expect("invariant: a parent knows its children");
                *n -= 1;
                let last = usize::from(*n);
                (prints[idx], ids[idx]) = (prints[last], ids[last]);
            }
            Self::Many(many) => {
                let removed = many.remove(first);
                assert_eq!(removed, Some(child), "invariant: a parent knows its children");
                // Not as soon as they would fit, or one that comes and goes would cost a map each
                // time.
                if let (1, Some((first, &id))) = (many.len(), many.first_key_value()) {
                    let mut few = Self::default();
                    few.insert(id, |_id| &**first);
                    *self = few;
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids().next().is_none()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> {
        let (few, many) = match self {
            Self::Few { n, ids, .. } => (&ids[..usize::from(*n)], None),
            Self::Many(many) => (&[][..], Some(many)),
        };
        few.iter().copied().chain(many.into_iter().flat_map(BTreeMap::values).copied())
    }
}

/// A hash of a block: equal blocks have equal ones, different blocks mostly not.
pub(super) fn fingerprint(block: &[TokenId]) -> u32 {
    block
        .iter()
        .fold(0, |print: u32, token| (print.rotate_left(5) ^ token.0).wrapping_mul(0x9E37_79B1))
}
