//! Layers with an attention window, whose keys and values are freed behind it, and their sizes.
//!
//! Blocks of the memory for keys and values are all of one size: that of the layers that read all tokens.
//! Where there are more layers with a window than that, the tokens of one block take several blocks in
//! them:
//!
//! ```text
//! layers     F W W W W W F W W W W W        F reads all tokens, W has a window
//! groups     0 1 1 2 2 3 0 3 4 4 5 5        of as many layers as F: a block table for each group
//! ```

/// The tokens that a layer with a window reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// The last so many tokens, the token itself included; at least one.
    Last(usize),
    /// The tokens of its own segment up to itself; segments of so many tokens, at least one, count from
    /// position 0.
    Segment(usize),
}

impl Reach {
    /// The first position that the token at `position` reads.
    pub fn first_seen(self, position: usize) -> usize {
        match self {
            Self::Last(n) => (position + 1).saturating_sub(n),
            Self::Segment(n) => position / n * n,
        }
    }
}

/// The layers with a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvWindows {
    /// The tokens that these layers read; where windows differ, the widest.
    pub reach: Reach,
    /// Blocks of the pool that the tokens of one block take in these layers; at least one.
    pub n_blocks: usize,
    /// Whether all layers with keys and values have a window. Then the tokens of a block take no other
    /// blocks of the pool than these.
    pub is_all: bool,
}

impl KvWindows {
    /// Most blocks of tokens that one token reads from, its own included.
    pub fn n_needed(&self, block_size: usize) -> usize {
        match self.reach {
            Reach::Last(n) => (n - 1).div_ceil(block_size) + 1,
            Reach::Segment(n) => n.div_ceil(block_size) + 1,
        }
    }

    /// Blocks of the pool for `n_tokens` blocks of tokens, of which `n_windows` are kept in the layers with
    /// a window, too.
    pub fn n_taken(&self, n_tokens: usize, n_windows: usize) -> usize {
        let for_all = if self.is_all { 0 } else { n_tokens };
        for_all.saturating_add(n_windows.saturating_mul(self.n_blocks))
    }

    /// Blocks of the pool that a sequence of `n_tokens` blocks of tokens holds while it computes `n_more` of
    /// them at once.
    pub fn n_held(&self, n_tokens: usize, n_more: usize, block_size: usize) -> usize {
        let n_windows = n_tokens.min(self.n_needed(block_size).saturating_add(n_more));
        self.n_taken(n_tokens, n_windows)
    }

    /// Most blocks of tokens of a sequence that has a pool of `n_blocks` blocks to itself; `usize::MAX`
    /// where any number fits.
    pub fn most_tokens(&self, n_blocks: usize, block_size: usize) -> usize {
        let n_needed = self.n_needed(block_size);
        match n_blocks / self.n_taken(1, 1) {
            n if n < n_needed => n,
            _ if self.is_all => usize::MAX,
            _ => n_blocks - n_needed * self.n_blocks,
        }
    }

    /// Number of memory groups of layers, each with a block table of its own: that of the layers that read
    /// all tokens comes first, where there are such layers.
    pub fn n_groups(&self) -> usize {
        self.n_taken(1, 1)
    }

    /// Panics if a size is out of its range.
    pub fn check(&self) {
        let (Reach::Last(n) | Reach::Segment(n)) = self.reach;
        assert!(n > 0, "the reach of a window must be at least 1");
        assert!(self.n_blocks > 0, "n_blocks of a window must be at least 1");
        assert!(!self.is_all || self.n_blocks == 1, "layers of one kind take one block");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_its_window_or_its_segment() {
        assert_eq!([0, 3, 4, 9].map(|p| Reach::Last(4).first_seen(p)), [0, 0, 1, 6]);
        assert_eq!([0, 3, 4, 9].map(|p| Reach::Segment(4).first_seen(p)), [0, 0, 4, 8]);
    }

    #[test]
    fn no_position_reads_more_blocks_than_are_said_to_be_needed() {
        for block_size in 1..6 {
            for n in 1..20 {
                for reach in [Reach::Last(n), Reach::Segment(n)] {
                    let windows = KvWindows { reach, n_blocks: 1, is_all: true };
                    let read = |p: usize| p / block_size - reach.first_seen(p) / block_size + 1;
                    let most = (0..200).map(read).max().expect("positions");
                    let said = windows.n_needed(block_size);
                    assert!(most <= said, "{reach:?}, blocks of {block_size}: {most} > {said}");
                    // A segment may begin within a block, but does not always.
                    assert!(said <= most + 1, "{reach:?}, blocks of {block_size}: {said}");
                }
            }
        }
    }

    #[test]
    fn a_long_sequence_holds_its_window_alone_in_most_layers() {
        // Gemma 3 4B: 5 layers read all tokens, 29 the last 1,024; blocks of 32 tokens.
        let windows = KvWindows { reach: Reach::Last(1024), n_blocks: 6, is_all: false };
        assert_eq!((windows.n_needed(32), windows.n_groups()), (33, 7));
        assert_eq!(windows.n_held(1024, 0, 32), 1024 + 6 * 33);
        assert_eq!(windows.n_held(10, 16, 32), 70, "a short one holds all");
        // As many tokens as that takes fit into as many blocks.
        assert_eq!(windows.most_tokens(1024 + 6 * 33, 32), 1024);
        assert_eq!(windows.most_tokens(69, 32), 9);
        let all = KvWindows { is_all: true, n_blocks: 1, ..windows };
        assert_eq!((all.most_tokens(33, 32), all.most_tokens(32, 32)), (usize::MAX, 32));
    }
}
