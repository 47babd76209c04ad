//! The order of eviction.
//!
//! Only the last block of an unpinned leaf can go, since a block without its predecessors is never
//! found again. The leaves stand in an ordered set by the *worth* of their last block; eviction
//! takes blocks from the end of the least one until it is gone or enough is released.
//!
//! **Lru**: worth is the time of the leaf's last use. Every use walks the path to the root, so
//! parents are never older than their children, and leaves-first is oldest-first over all nodes.
//!
//! **CostAware**: worth is the time that keeping the block is expected to save,
//!
//! ```text
//! worth(t) = uses(t) * cost / bytes
//! uses(t)  = sum over uses of 2^(-(t - when) / HALF_LIFE)        the chance of another use
//! cost     = per_token + position * per_context_token            of a token, attention included
//! ```
//!
//! All blocks have the same number of bytes and tokens, which therefore do not appear. As `uses`
//! halves for all leaves at once, the order of two leaves stays the same until one of them is used
//! again; so the ordered set holds a logarithm that does not depend on the current time:
//!
//! ```text
//! log2 worth(t) + t / HALF_LIFE  =  log2 uses(used) + used / HALF_LIFE + log2 cost
//! ```
//!
//! in fixed point with [`FRACTION_BITS`] bits, where logarithm and decay are linear between powers
//! of two (both within 9 %). The cost of a run falls towards its front, so a leaf that has been
//! least stays least while it is eaten up.
//!
//! Papers: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
//! Policy", HP Labs 1998 (frequency times cost over size; its rising clock is our `used /
//! HALF_LIFE`); Lee et al., "LRFU", IEEE Transactions on Computers 2001 (decay that keeps the
//! order).

use super::RadixTree;
use super::arena::{Node, NodeId, Place};
use crate::BlockId;

/// Fraction bits of logarithms and of counts of uses.
const FRACTION_BITS: u32 = 16;
/// One use.
pub(super) const ONE: u64 = 1 << FRACTION_BITS;
/// Locks and unlocks of any prefix after which a use counts half: a power of two.
const HALF_LIFE: u64 = 1 << 11;

/// The order in which blocks are evicted.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Eviction {
    /// Least recently used blocks first.
    #[default]
    Lru,
    /// Blocks that save least first: rarely used, or cheap to compute again.
    CostAware,
}

impl Eviction {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Lru, Self::CostAware];

    /// Its name, as [`from_name`](Self::from_name) reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::CostAware => "cost-aware",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|eviction| eviction.name() == name)
    }
}

/// Price of computing the KV of a token at a position: `per_token + position *
/// per_context_token`, in any unit. Only the ratio counts.
///
/// A transformer of `P` parameters, `L` layers and attention of width `d` spends `2 P` operations
/// on a token and `4 L d` on each token before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecomputeCost {
    /// For the token itself.
    pub per_token: u64,
    /// For each token of its context.
    pub per_context_token: u64,
}

/// As for a model of a few billion parameters: 2^14 tokens of context cost as much as the weights.
impl Default for RecomputeCost {
    fn default() -> Self {
        Self { per_token: 1 << 14, per_context_token: 1 }
    }
}

impl RecomputeCost {
    fn at(&self, position: usize) -> u64 {
        let context = self.per_context_token.saturating_mul(position as u64);
        self.per_token.saturating_add(context)
    }

    /// For all tokens from one position to another: their number times the price half way.
    pub(super) fn between(&self, first: usize, end: usize) -> u64 {
        self.at(first.midpoint(end)).saturating_mul((end - first) as u64)
    }
}

impl RadixTree {
    /// Forgets unpinned blocks, least valuable first, until `n_blocks` are released or none is
    /// left; returns how many.
    ///
    /// Calls `release` for each, the last block of a run first. Whether a released block becomes
    /// free is the pool's affair. Cost is `O(log leaves)` for each node that blocks are taken from,
    /// however many are pinned.
    pub fn evict(&mut self, n_blocks: usize, release: &mut impl FnMut(BlockId)) -> usize {
        let mut n_left = n_blocks;
        while n_left > 0 {
            let Some((_, id)) = self.candidates.pop_first() else { break };
            let node = &mut self.arena[id];
            let n_kept = node.blocks.len().saturating_sub(n_left);
            n_left -= node.blocks.len() - n_kept;
            for &block in node.blocks[n_kept..].iter().rev() {
                self.kept[block.0 as usize] = false;
                release(block);
            }
            self.snapshots.truncate(id, node.start + n_kept);
            if n_kept > 0 {
                node.truncate(n_kept, self.config.block_size);
            } else {
                self.remove_leaf(id);
                continue;
            }
            self.candidates.extend(self.candidacy(id));
        }
        let n_released = n_blocks - n_left;
        self.n_blocks -= n_released;
        self.n_evictable -= n_released;
        self.n_purges += u64::from(n_released > 0);
        self.stats.n_evicted_blocks += n_released as u64;
        n_released
    }

    /// Forgets everything that is not pinned, calling `release` for each block; returns how many.
    pub fn clear(&mut self, release: &mut impl FnMut(BlockId)) -> usize {
        self.evict(self.n_evictable, release)
    }

    /// The entry of a node among the candidates: the worth of its last block, if that can go.
    pub(super) fn candidacy(&self, id: NodeId) -> Option<(u64, NodeId)> {
        let node = &self.arena[id];
        let can_go = node.n_locks == 0 && node.children.is_empty() && !node.blocks.is_empty();
        can_go.then(|| (self.worth(node), id))
    }

    /// The worth of a node's last block, on a scale that does not move with time.
    fn worth(&self, node: &Node) -> u64 {
        match self.config.eviction {
            Eviction::Lru => node.used,
            Eviction::CostAware => {
                let position = (node.end() - 1) * self.config.block_size;
                let cost = self.config.recompute.at(position);
                lasting_worth(node.used, node.heat, cost)
            }
        }
    }

    fn remove_leaf(&mut self, id: NodeId) {
        let node = self.arena.remove(id);
        let parent = node.parent().expect("invariant: a root is no candidate");
        let first = &node.tokens[..self.config.block_size];
        self.arena[parent].children.remove(first, id);
        match self.arena[parent].place {
            Place::Root(namespace) => self.drop_idle_root(namespace),
            Place::Under(_) => self.candidates.extend(self.candidacy(parent)),
        }
    }
}

impl Node {
    /// Counts a use that begins.
    pub(super) fn warm(&mut self, now: u64) {
        self.heat = decayed(self.heat, now - self.used) + ONE;
        self.used = now;
    }

    /// Notes that a use goes on or ends; a use that just ended counts as at least one fresh use.
    pub(super) fn cool(&mut self, now: u64) {
        self.heat = decayed(self.heat, now - self.used).max(ONE);
        self.used = now;
    }
}

/// The logarithm of `uses * cost`, on a scale that does not move with time.
pub(super) fn lasting_worth(used: u64, heat: u64, cost: u64) -> u64 {
    used * (ONE / HALF_LIFE) + log2(heat) + log2(cost)
}

/// `heat * 2^(-age / HALF_LIFE)`, linear between the powers of two.
pub(super) fn decayed(heat: u64, age: u64) -> u64 {
    let halved = heat >> (age / HALF_LIFE).min(63);
    halved - halved * (age % HALF_LIFE) / (2 * HALF_LIFE)
}

/// Logarithm with `FRACTION_BITS` fraction bits, linear between the powers of two; that of 0 is 0.
fn log2(x: u64) -> u64 {
    let whole = u64::from(x.max(1).ilog2());
    // The bits below the leading one, moved to the top.
    let below = (x << (63 - whole)) << 1;
    (whole << FRACTION_BITS) + (below >> (64 - FRACTION_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_counts_half_after_a_half_life() {
        let heat = 64 * ONE;
        assert_eq!(decayed(heat, 0), heat);
        assert_eq!(decayed(heat, HALF_LIFE / 2), heat * 3 / 4, "linear between the powers of two");
        assert_eq!(decayed(heat, HALF_LIFE), heat / 2);
        assert_eq!(decayed(heat, 3 * HALF_LIFE), heat / 8);
        assert_eq!(decayed(heat, u64::MAX), 0);
    }

    #[test]
    fn a_logarithm_is_exact_at_the_powers_of_two_and_linear_between() {
        for (x, expected) in [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (6, 5), (1 << 63, 126)] {
            assert_eq!(log2(x), (expected << FRACTION_BITS) / 2, "{x}");
        }
    }
}
