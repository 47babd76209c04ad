//! Drafts that share beginnings.
//!
//! ```text
//!                    ┌─ 0: the ─┬─ 2: old
//! known tokens ──────┤          └─ 3: small
//!                    └─ 1: a ───── 4: big ───── 5: dog
//!
//! tokens   the   a     old      small    big      dog
//! parents  None  None  Some(0)  Some(0)  Some(1)  Some(4)
//! rows     0 after the known tokens, 1 + node after each draft
//! ```
//!
//! A chain is a tree in which each draft is the parent of the next. Siblings are judged in the order
//! in which they stand.

use pelton_base::TokenId;

/// Drafts and what each follows, as plain slices in topological order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree<'a> {
    tokens: &'a [TokenId],
    parents: &'a [Option<u32>],
}

impl<'a> Tree<'a> {
    /// Looks at drafts as a tree; `None` follows the known tokens.
    ///
    /// # Panics
    ///
    /// If there are not as many parents as tokens, or one does not stand before its child.
    pub(crate) fn new(tokens: &'a [TokenId], parents: &'a [Option<u32>]) -> Self {
        assert_eq!(tokens.len(), parents.len(), "a parent for each draft");
        let is_before = |(node, parent): (usize, &Option<u32>)| {
            parent.is_none_or(|parent| (parent as usize) < node)
        };
        assert!(parents.iter().enumerate().all(is_before), "parents stand before their children");
        Self { tokens, parents }
    }

    /// The row of the target's logits that follows a node.
    pub(crate) fn row_of(node: Option<u32>) -> usize {
        node.map_or(0, |node| node as usize + 1)
    }

    /// The token of a node.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub(crate) fn token(&self, node: u32) -> TokenId {
        self.tokens[node as usize]
    }

    /// The nodes that follow a node, in order.
    pub(crate) fn children(&self, node: Option<u32>) -> impl Iterator<Item = u32> + use<'a> {
        let first = Self::row_of(node);
        let later = (first as u32..).zip(self.parents.get(first..).unwrap_or(&[]));
        later.filter(move |(_, parent)| **parent == node).map(|(child, _)| child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_in_order_and_leaves_have_none() {
        let parents = [None, None, Some(0), Some(0), Some(1), Some(4)];
        let tokens = [7; 6].map(TokenId);
        let tree = Tree::new(&tokens, &parents);
        let children = |node| tree.children(node).collect::<Vec<u32>>();
        assert_eq!(children(None), [0, 1]);
        assert_eq!(children(Some(0)), [2, 3]);
        assert_eq!(children(Some(1)), [4]);
        assert_eq!(children(Some(4)), [5]);
        assert!([2, 3, 5, 9].iter().all(|&leaf| children(Some(leaf)).is_empty()));
    }

    #[test]
    #[should_panic(expected = "parents stand before their children")]
    fn a_child_before_its_parent_is_refused() {
        Tree::new(&[TokenId(0)], &[Some(0)]);
    }
}
