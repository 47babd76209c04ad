//! The radix tree beside a model of it that is too simple to be wrong: a map from whole prefixes to
//! blocks, over a vocabulary of two tokens so that prefixes collide.
//!
//! Sequences begin, grow, end; blocks come from a real pool, are evicted when it is empty, and
//! carry the text whose KV they would hold. So a block that is evicted under a sequence is handed
//! out again and holds another text, which the next match shows.
//!
//! Snapshots are a second map from whole prefixes, to ids that are never used again.

use pelton_base::TokenId;
use pelton_sched::{
    BlockId, BlockPool, Eviction, Namespace, PrefixLock, RadixConfig, RadixMatch, RadixTree,
    RecomputeCost, SnapshotId,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A prefix that ends with a block.
type Prefix = (Namespace, Vec<TokenId>);

#[derive(Clone, Debug)]
enum Op {
    /// A prompt comes; bit `i` of `bits` is its token `i`.
    Begin {
        namespace: u64,
        n_tokens: usize,
        bits: u32,
    },
    /// A sequence gets tokens, and offers the blocks that these fill.
    Grow {
        which: usize,
        n_tokens: usize,
        bits: u32,
    },
    End {
        which: usize,
    },
    Evict {
        n_blocks: usize,
    },
    /// The state of a sequence is kept at one of its blocks.
    Keep {
        which: usize,
        n_blocks: usize,
    },
    /// The least valuable state is forgotten.
    Forget,
    Clear,
}

#[derive(Debug)]
struct Live {
    namespace: Namespace,
    tokens: Vec<TokenId>,
    table: Vec<BlockId>,
    lock: PrefixLock,
}

/// The facts that the tree should know of a block.
#[derive(Debug)]
struct Known {
    block: BlockId,
    /// When a sequence that pinned it ended.
    used: usize,
}

/// The facts that the tree should know of a snapshot.
#[derive(Debug)]
struct Kept {
    snapshot: SnapshotId,
    /// When it was attached or locked, in locks and unlocks.
    used: u64,
}

struct World {
    tree: RadixTree,
    pool: BlockPool,
    block_size: usize,
    eviction: Eviction,
    live: Vec<Live>,
    known: BTreeMap<Prefix, Known>,
    /// The tokens that each block's KV was computed from.
    texts: Vec<Prefix>,
    states: BTreeMap<Prefix, Kept>,
    n_snapshots: u32,
    now: usize,
    /// Locks and unlocks.
    clock: u64,
    n_found_states: usize,
    n_dropped_states: usize,
}

fn tokens(n_tokens: usize, bits: u32) -> impl Iterator<Item = TokenId> {
    (0..n_tokens).map(move |i| TokenId(bits >> (i % 32) & 1))
}

fn n_common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl World {
    fn new(block_size: usize, n_blocks: usize, eviction: Eviction) -> Self {
        let recompute = RecomputeCost::default();
        Self {
            tree: RadixTree::new(RadixConfig { block_size, n_blocks, eviction, recompute }),
            pool: BlockPool::new(n_blocks as u32),
            block_size,
            eviction,
            live: Vec::new(),
            known: BTreeMap::new(),
            texts: vec![(Namespace(0), Vec::new()); n_blocks],
            states: BTreeMap::new(),
            n_snapshots: 0,
            now: 0,
            clock: 0,
            n_found_states: 0,
            n_dropped_states: 0,
        }
    }

    fn prefix(&self, namespace: Namespace, tokens: &[TokenId], n_blocks: usize) -> Prefix {
        (namespace, tokens[..n_blocks * self.block_size].to_vec())
    }

    fn is_pinned(&self, prefix: &Prefix) -> bool {
        self.live.iter().any(|live| {
            let n_pinned = self.tree.n_locked_blocks(&live.lock) * self.block_size;
            live.namespace == prefix.0 && live.tokens[..n_pinned].starts_with(&prefix.1)
        })
    }

    fn apply(&mut self, op: &Op) {
        self.now += 1;
        match *op {
            Op::Begin { namespace, n_tokens, bits } => {
                self.begin(
                    Namespace(namespace),
                    tokens(n_tokens, bits).collect(),
                    bits.is_multiple_of(3),
                );
            }
            Op::Grow { which, n_tokens, bits } if !self.live.is_empty() => {
                self.grow(which % self.live.len(), n_tokens, bits);
            }
            Op::End { which } if !self.live.is_empty() => self.end(which % self.live.len()),
            Op::Evict { n_blocks } => {
                self.evict(n_blocks);
            }
            Op::Clear => {
                let n_evictable = self.tree.n_evictable();
                let mut released = Vec::new();
                let n_released = self.tree.clear(&mut |block| released.push(block));
                self.forget(&released);
                assert_eq!((n_released, self.tree.n_evictable()), (n_evictable, 0));
            }
            Op::Keep { which, n_blocks } if !self.live.is_empty() => {
                self.keep(which % self.live.len(), n_blocks);
            }
            Op::Forget => self.forget_state(),
            Op::Grow { .. } | Op::End { .. } | Op::Keep { .. } => {}
        }
        self.check();
    }

    /// Keeps a state at the end of a block that a sequence pins.
    fn keep(&mut self, which: usize, n_blocks: usize) {
        let live = &self.live[which];
        let n_pinned = self.tree.n_locked_blocks(&live.lock);
        if n_pinned == 0 {
            return;
        }
        let n_blocks = 1 + n_blocks % n_pinned;
        let prefix = self.prefix(live.namespace, &live.tokens, n_blocks);
        let is_kept = self.states.contains_key(&prefix);
        assert_eq!(self.tree.has_attached(&live.lock, n_blocks), is_kept);
        assert_eq!(self.tree.has_snapshot(prefix.0, &prefix.1), is_kept);
        if !is_kept {
            let snapshot = SnapshotId(self.n_snapshots);
            self.n_snapshots += 1;
            self.tree.attach(&live.lock, n_blocks, snapshot);
            self.states.insert(prefix, Kept { snapshot, used: self.clock });
        }
    }

    fn forget_state(&mut self) {
        let forgotten = self.tree.forget_snapshot();
        let oldest = self.states.values().map(|kept| kept.used).min();
        assert_eq!(forgotten.is_some(), oldest.is_some());
        let Some(forgotten) = forgotten else { return };
        let gone = self.states.iter().find(|(_, kept)| kept.snapshot == forgotten);
        let (prefix, kept) = gone.expect("a snapshot that was kept");
        if self.eviction == Eviction::Lru {
            assert_eq!(Some(kept.used), oldest, "{forgotten:?} is not the oldest");
        }
        let prefix = prefix.clone();
        self.states.remove(&prefix);
    }

    /// Compares the deepest state of a match with the model, and cuts the match back to it.
    fn cut(
        &mut self,
        (namespace, tokens): (Namespace, &[TokenId]),
        found: &mut RadixMatch,
        table: &mut Vec<BlockId>,
    ) {
        let deepest = (1..=found.n_full).rev().find_map(|n_blocks| {
            let kept = self.states.get(&self.prefix(namespace, tokens, n_blocks))?;
            Some((n_blocks, kept.snapshot))
        });
        assert_eq!(self.tree.deepest_snapshot(found), deepest);
        let Some((n_blocks, snapshot)) = deepest else { return };
        found.cut(n_blocks, table);
        found.snapshot = Some(snapshot);
        let prefix = self.prefix(namespace, tokens, n_blocks);
        self.states.get_mut(&prefix).expect("just found").used = self.clock + 1;
        self.n_found_states += 1;
    }

    /// Finds, compares with the model, and locks; where it `cuts`, as far as a state reaches.
    fn begin(&mut self, namespace: Namespace, tokens: Vec<TokenId>, cuts: bool) {
        let mut table = vec![BlockId(0)]; // What was there stays.
        let mut found = self.tree.find(namespace, &tokens, &mut table);
        table.remove(0);
        let whole = (1..=tokens.len() / self.block_size)
            .map_while(|n| self.known.get(&self.prefix(namespace, &tokens, n)));
        let expected: Vec<BlockId> = whole.map(|known| known.block).collect();
        assert_eq!(table, expected);
        assert_eq!(found.n_full, table.len());

        let (before, next) = tokens.split_at(table.len() * self.block_size);
        let follows = self.known.iter().filter(|((of, text), _)| {
            *of == namespace
                && text.len() == before.len() + self.block_size
                && text.starts_with(before)
        });
        let shares =
            follows.map(|((_, text), known)| (n_common(&text[before.len()..], next), known.block));
        let shares: Vec<(usize, BlockId)> = shares.collect();
        let most = shares.iter().map(|share| share.0).max().unwrap_or(0);
        match found.partial {
            None => assert_eq!(most, 0, "a partial block was overlooked"),
            Some((block, n_tokens)) => {
                assert_eq!(n_tokens, most);
                assert!(n_tokens > 0 && shares.contains(&(n_tokens, block)));
            }
        }
        if cuts {
            self.cut((namespace, &tokens), &mut found, &mut table);
        }
        for (idx, &block) in table.iter().enumerate() {
            let text = self.prefix(namespace, &tokens, idx + 1);
            assert_eq!(self.texts[block.0 as usize], text, "KV of another text");
            self.pool.retain(block);
        }
        let n_evictable = self.tree.n_evictable_beside(&found);
        let lock = self.tree.lock(&found);
        self.clock += 1;
        assert_eq!(self.tree.n_evictable(), n_evictable);
        self.live.push(Live { namespace, tokens, table, lock });
        self.grow(self.live.len() - 1, 0, 0);
    }

    /// Computes all tokens of a sequence, as far as there are blocks.
    fn grow(&mut self, which: usize, n_tokens: usize, bits: u32) {
        let mut live = self.live.swap_remove(which);
        live.tokens.extend(tokens(n_tokens, bits));
        let n_before = live.table.len();
        let n_own = live.tokens.len() / self.block_size - n_before;
        self.live.push(live);
        // Blocks may be held by tables after their eviction, so evicted is not yet free.
        while self.pool.n_free() < n_own && self.evict(1) > 0 {}
        let mut live = self.live.pop().expect("just put there");
        let own = self.pool.allocate(n_own.min(self.pool.n_free())).expect("as many as are free");
        live.table.extend(own);
        live.tokens.truncate((live.table.len() + 1) * self.block_size - 1);
        for n in n_before..live.table.len() {
            let text = self.prefix(live.namespace, &live.tokens, n + 1);
            self.texts[live.table[n].0 as usize] = text;
        }

        let first = self.tree.n_locked_blocks(&live.lock);
        let mut expected = Vec::new();
        for n in first..live.table.len() {
            let prefix = self.prefix(live.namespace, &live.tokens, n + 1);
            let block = live.table[n];
            self.known.entry(prefix).or_insert_with(|| {
                expected.push(block);
                Known { block, used: self.now }
            });
        }
        let mut kept = Vec::new();
        let full = &live.tokens[..live.table.len() * self.block_size];
        let Live { namespace, lock, ref table, .. } = live;
        let lock = self.tree.extend(namespace, lock, full, table, &mut |block| kept.push(block));
        assert_eq!(kept, expected);
        for &block in &kept {
            self.pool.retain(block);
        }
        assert_eq!(self.tree.n_locked_blocks(&lock), live.table.len());
        self.live.push(Live { lock, ..live });
    }

    fn end(&mut self, which: usize) {
        let live = self.live.swap_remove(which);
        for n in 1..=self.tree.n_locked_blocks(&live.lock) {
            let prefix = self.prefix(live.namespace, &live.tokens, n);
            self.known.get_mut(&prefix).expect("pinned").used = self.now;
        }
        self.tree.unlock(live.lock);
        self.clock += 1;
        for block in live.table {
            self.pool.release(block);
        }
    }

    fn evict(&mut self, n_blocks: usize) -> usize {
        let n_evictable = self.tree.n_evictable();
        let mut released = Vec::new();
        let n_released = self.tree.evict(n_blocks, &mut |block| released.push(block));
        assert_eq!(n_released, released.len());
        assert_eq!(n_released, n_blocks.min(n_evictable));
        self.forget(&released);
        n_released
    }

    /// Each block must have been a leaf without pin and, for LRU, the oldest of these.
    fn forget(&mut self, released: &[BlockId]) {
        let mut dropped: Vec<SnapshotId> = self.tree.take_dropped_snapshots().collect();
        self.n_dropped_states += dropped.len();
        for &block in released {
            let is_leaf = |prefix: &Prefix| {
                let longer = self.known.keys().filter(|(of, _)| *of == prefix.0);
                longer.filter(|(_, text)| text.starts_with(&prefix.1)).count() == 1
            };
            let leaves = self.known.iter().filter(|(prefix, _)| is_leaf(prefix));
            let free = leaves.filter(|(prefix, _)| !self.is_pinned(prefix));
            let free: Vec<(&Prefix, &Known)> = free.collect();
            let oldest = free.iter().map(|(_, known)| known.used).min();
            let gone = free.iter().find(|(_, known)| known.block == block);
            let (prefix, known) = gone.unwrap_or_else(|| panic!("{block:?} could not be evicted"));
            if self.eviction == Eviction::Lru {
                assert_eq!(Some(known.used), oldest, "{block:?} is not the oldest");
            }
            let prefix = (*prefix).clone();
            self.known.remove(&prefix);
            self.pool.release(block);
            if let Some(kept) = self.states.remove(&prefix) {
                let idx = dropped.iter().position(|&snapshot| snapshot == kept.snapshot);
                dropped.swap_remove(idx.expect("a state goes with its block"));
            }
        }
        assert_eq!(dropped, [], "the blocks of a dropped state are still there");
    }

    fn check(&self) {
        self.tree.check_integrity();
        self.pool.check_integrity();
        assert_eq!(self.tree.n_blocks(), self.known.len());
        assert_eq!(self.tree.n_locks(), self.live.len());
        assert_eq!(self.tree.n_snapshots(), self.states.len());
        let stats = self.tree.stats();
        let n_kept = stats.n_inserted_snapshots - stats.n_evicted_snapshots;
        assert_eq!(n_kept, self.states.len() as u64);
        let free = self.known.keys().filter(|prefix| !self.is_pinned(prefix));
        assert_eq!(self.tree.n_evictable(), free.count());
        let in_tables: usize = self.live.iter().map(|live| live.table.len()).sum();
        assert_eq!(self.pool.n_references(), in_tables + self.known.len());
    }
}

fn live(block_size: usize, n_blocks: usize, eviction: Eviction, ops: &[Op]) -> World {
    let mut world = World::new(block_size, n_blocks, eviction);
    for op in ops {
        world.apply(op);
    }
    while !world.live.is_empty() {
        world.apply(&Op::End { which: 0 });
    }
    world.apply(&Op::Clear);
    assert_eq!(world.pool.n_free(), n_blocks, "every block came back");
    assert_eq!(world.tree.n_nodes(), 0, "an empty tree is empty");
    world
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..2_u64, 0..20_usize, any::<u32>())
            .prop_map(|(namespace, n_tokens, bits)| Op::Begin { namespace, n_tokens, bits }),
        4 => (0..8_usize, 1..9_usize, any::<u32>())
            .prop_map(|(which, n_tokens, bits)| Op::Grow { which, n_tokens, bits }),
        3 => (0..8_usize).prop_map(|which| Op::End { which }),
        2 => (0..12_usize).prop_map(|n_blocks| Op::Evict { n_blocks }),
        3 => (0..8_usize, 0..8_usize).prop_map(|(which, n_blocks)| Op::Keep { which, n_blocks }),
        1 => Just(Op::Forget),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_tree_knows_what_a_map_of_prefixes_knows(
        (block_size, n_blocks) in (1..5_usize, 1..40_usize),
        eviction in prop::sample::select(Eviction::ALL),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        live(block_size, n_blocks, eviction, &ops);
    }
}

#[test]
fn one_long_life_is_eventful_and_ends_with_an_empty_tree() {
    let mut state = 7_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % n
    };
    let mut ops = Vec::new();
    for _ in 0..8_000 {
        // Few ones among the bits, so that texts stay alike for long.
        let bits = (below(1 << 16) & below(1 << 16) & below(1 << 16)) as u32;
        let (which, n_tokens) = (below(64) as usize, below(24) as usize);
        ops.push(match below(11) {
            0..3 => Op::Begin { namespace: below(2), n_tokens, bits },
            3..5 => Op::Grow { which, n_tokens: n_tokens / 3, bits },
            5..8 => Op::End { which },
            8 => Op::Keep { which, n_blocks: n_tokens },
            9 if which < 8 => Op::Forget,
            9 => Op::Keep { which, n_blocks: n_tokens },
            _ => Op::Evict { n_blocks: n_tokens / 4 },
        });
    }
    for &eviction in Eviction::ALL {
        let world = live(2, 64, eviction, &ops);
        assert!(world.n_found_states > 100, "{}", world.n_found_states);
        assert!(world.n_dropped_states > 100, "{}", world.n_dropped_states);
        let stats = world.tree.stats();
        assert!(stats.n_hits > 1_000, "{stats:?}");
        assert!(stats.n_evicted_blocks > 1_000, "{stats:?}");
    }
}
