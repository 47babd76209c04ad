//! Drafts of the tokens that may follow, as a tree.
//!
//! ```text
//! drafts    0: the    1: cat    2: dog    3: sat          the ─┬─ cat ── sat
//! parents   none      0         0         1                    └─ dog
//! ```
//!
//! A parent stands before its children, so the first drafts of a tree are a tree themselves, and a
//! tree can be cut short anywhere. A chain is a tree in which each draft follows the one before.

use pelton_base::TokenId;

/// Tokens that may follow, each after its parent or after the last known token.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DraftTree {
    tokens: Vec<TokenId>,
    /// Index of the parent, or [`NO_PARENT`].
    parents: Vec<u32>,
}

/// The parent of a draft that follows the last known token.
const NO_PARENT: u32 = u32::MAX;

impl DraftTree {
    /// Adds a draft that follows `parent`, or the last known token, and returns its index.
    ///
    /// # Panics
    ///
    /// When there is no such parent.
    pub fn push(&mut self, parent: Option<usize>, token: TokenId) -> usize {
        let idx = self.tokens.len();
        assert!(parent.is_none_or(|parent| parent < idx), "a parent comes before its children");
        self.tokens.push(token);
        self.parents.push(parent.map_or(NO_PARENT, |parent| parent as u32));
        idx
    }

    /// Adds a chain of drafts behind the last draft of the tree.
    pub fn extend(&mut self, tokens: impl IntoIterator<Item = TokenId>) {
        for token in tokens {
            self.push(self.len().checked_sub(1), token);
        }
    }

    /// Number of drafts.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The drafts, parents before children.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Index of the draft that a draft follows; `None` for the last known token.
    pub fn parent(&self, idx: usize) -> Option<usize> {
        Some(self.parents[idx]).filter(|&parent| parent != NO_PARENT).map(|parent| parent as usize)
    }

    /// Whether each draft follows the one before.
    pub fn is_chain(&self) -> bool {
        (0..self.len()).all(|idx| self.parent(idx) == idx.checked_sub(1))
    }

    /// Drafts on the longest path.
    pub fn depth(&self) -> usize {
        if self.is_chain() {
            return self.len();
        }
        let depth = |mut idx: usize| {
            let mut depth = 1;
            while let Some(parent) = self.parent(idx) {
                (idx, depth) = (parent, depth + 1);
            }
            depth
        };
        (0..self.len()).map(depth).max().unwrap_or(0)
    }

    /// Keeps the first drafts, as far as each follows the one before.
    pub(crate) fn keep_chain(&mut self) {
        let n_chained = (0..self.len()).take_while(|&idx| self.parent(idx) == idx.checked_sub(1));
        self.truncate(n_chained.count());
    }

    /// Keeps the first `n_drafts` only.
    pub fn truncate(&mut self, n_drafts: usize) {
        self.tokens.truncate(n_drafts);
        self.parents.truncate(n_drafts);
    }

    /// Removes all drafts and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_knows_its_paths_and_its_beginning_is_one_too() {
        let mut tree = DraftTree::default();
        tree.extend([TokenId(1), TokenId(2)]);
        assert!(tree.is_chain() && tree.depth() == 2);
        let dog = tree.push(Some(0), TokenId(3));
        tree.extend([TokenId(4), TokenId(5)]);
        assert_eq!((tree.parent(0), tree.parent(dog), tree.parent(3)), (None, Some(0), Some(dog)));
        assert_eq!((tree.is_chain(), tree.depth(), tree.len()), (false, 4, 5));
        let mut chain = tree.clone();
        chain.keep_chain();
        assert_eq!(chain.tokens(), [TokenId(1), TokenId(2)]);
        tree.truncate(3);
        assert_eq!((tree.is_chain(), tree.depth()), (false, 2));
        tree.truncate(2);
        assert!(tree.is_chain());
        tree.clear();
        assert!(tree.is_empty() && tree.is_chain() && tree.depth() == 0);
    }

    #[test]
    #[should_panic(expected = "a parent comes before its children")]
    fn a_draft_without_a_parent_is_refused() {
        DraftTree::default().push(Some(0), TokenId(1));
    }
}
