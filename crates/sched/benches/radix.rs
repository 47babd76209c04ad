//! How long the calls of the radix tree take when the tree is large: `cargo bench -p pelton-sched`.
//!
//! The tree is grown as a server's is: some hundred system prompts, each followed by conversations,
//! and conversations that fork where someone went another way. So runs have all lengths, the root
//! has thousands of children, and a long prompt is a path of several nodes. The queries visit prompts
//! in random order, so that, but for one row, the tree is in memory and not in the cache: then a match
//! takes as long as the lines that it visits, and hardly any longer for comparing them.

use pelton_base::TokenId;
use pelton_sched::{
    BlockId, Eviction, Namespace, PrefixLock, RadixConfig, RadixTree, RecomputeCost,
};
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

const BLOCK_SIZE: usize = 16;
/// Blocks of the pool: 64 MiB of tokens.
const N_POOL_BLOCKS: usize = 1 << 20;
const N_NODES: usize = 100_000;
const QUERY_TOKENS: usize = 4_096;
/// Tokens that all prompts begin with, fewer than a block.
const N_COMMON: usize = 5;
const N_SYSTEM_PROMPTS: usize = 300;
/// Prompts without a system prompt, a few blocks long.
const N_SHORT: usize = 2_000;
/// Conversations of `QUERY_TOKENS` tokens, and the first of them, which fork much more often.
const N_LONG: usize = 1_000;
const N_BUSY: usize = 50;
const VOCAB: u64 = 128_000;
const N_SAMPLES: usize = 4_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn tokens(&mut self, n: usize) -> impl Iterator<Item = TokenId> {
        (0..n).map(|_| TokenId(self.below(VOCAB) as u32))
    }
}

/// The tree, the blocks that it does not keep, and what it knows.
struct Bench {
    tree: RadixTree,
    free: Vec<BlockId>,
    systems: Vec<Vec<TokenId>>,
    long: Vec<Vec<TokenId>>,
    random: Random,
    table: Vec<BlockId>,
}

impl Bench {
    fn new(eviction: Eviction) -> Self {
        let config = RadixConfig {
            block_size: BLOCK_SIZE,
            n_blocks: N_POOL_BLOCKS,
            eviction,
            recompute: RecomputeCost::default(),
        };
        let mut bench = Self {
            tree: RadixTree::new(config),
            free: (0..N_POOL_BLOCKS as u32).rev().map(BlockId).collect(),
            systems: Vec::new(),
            long: Vec::new(),
            random: Random(1),
            table: Vec::new(),
        };
        let common: Vec<TokenId> = bench.random.tokens(N_COMMON).collect();
        for _ in 0..N_SYSTEM_PROMPTS {
            let n_blocks = 8 + bench.random.below(40) as usize;
            let system = bench.follow(&common, n_blocks);
            bench.systems.push(system);
        }
        for _ in 0..N_SHORT {
            let n_blocks = 1 + bench.random.below(8) as usize;
            bench.follow(&common, n_blocks);
        }
        for _ in 0..N_LONG {
            let system = bench.any_system();
            let n_blocks = (QUERY_TOKENS - system.len()) / BLOCK_SIZE;
            let long = bench.follow(&system, n_blocks);
            bench.long.push(long);
        }
        while bench.tree.n_nodes() < N_NODES {
            // In ten new prompts, eight turns of two conversations, one fork, one fork of the busy.
            for kind in 0..4 {
                let mut prompt = match kind {
                    0 | 1 => bench.any_system(),
                    2 => bench.fork(N_LONG),
                    _ => bench.fork(N_BUSY),
                };
                for _ in 0..4 {
                    let n_blocks = 1 + bench.random.below(16) as usize;
                    prompt = bench.follow(&prompt, n_blocks);
                    if kind > 1 {
                        break;
                    }
                    // The next turn replaces the end of this one: it was spelled otherwise.
                    prompt.truncate(prompt.len() - BLOCK_SIZE);
                }
            }
        }
        bench
    }

    /// Inserts a prompt that begins like `before` and is `n_blocks` longer, rounded down to blocks.
    fn follow(&mut self, before: &[TokenId], n_blocks: usize) -> Vec<TokenId> {
        let n_tokens = (before.len() / BLOCK_SIZE + n_blocks) * BLOCK_SIZE;
        let mut prompt = before.to_vec();
        prompt.extend(self.random.tokens(n_tokens - before.len()));
        let lock = self.begin(&prompt);
        let Self { tree, table, .. } = self;
        let lock = tree.extend(Namespace::default(), lock, &prompt, table, &mut |_block| {});
        tree.unlock(lock);
        prompt
    }

    fn any_system(&mut self) -> Vec<TokenId> {
        let idx = self.random.below(self.systems.len() as u64) as usize;
        self.systems[idx].clone()
    }

    /// The beginning of one of the first `n` long conversations.
    fn fork(&mut self, n: usize) -> Vec<TokenId> {
        let idx = self.random.below(n as u64) as usize;
        let most = (QUERY_TOKENS / BLOCK_SIZE - 1) as u64;
        let n_blocks = 1 + self.random.below(most) as usize;
        self.long[idx][..n_blocks * BLOCK_SIZE].to_vec()
    }

    /// Blocks for `tokens`, the first of them as the tree has them.
    fn begin(&mut self, tokens: &[TokenId]) -> PrefixLock {
        self.table.clear();
        let found = self.tree.find(Namespace::default(), tokens, &mut self.table);
        let n_own = tokens.len() / BLOCK_SIZE - found.n_full;
        self.table.extend(self.free.drain(self.free.len() - n_own..));
        self.tree.lock(&found)
    }

    fn time(&mut self, name: &str, mut sample: impl FnMut(&mut Self) -> Duration) {
        let mut times: Vec<Duration> = (0..N_SAMPLES).map(|_| sample(self)).collect();
        times.sort_unstable();
        let us = |per_cent: usize| times[times.len() * per_cent / 100].as_secs_f64() * 1e6;
        println!("{name:<34} {:>8.2} {:>8.2} {:>8.2}", us(10), us(50), us(90));
    }

    fn any_long(&mut self, range: Range<usize>) -> Vec<TokenId> {
        let idx = range.start + self.random.below(range.len() as u64) as usize;
        self.long[idx].clone()
    }
}

fn find(bench: &mut Bench, tokens: &[TokenId]) -> Duration {
    let Bench { tree, table, .. } = bench;
    table.clear();
    let start = Instant::now();
    black_box(tree.find(Namespace::default(), black_box(tokens), table));
    start.elapsed()
}

fn find_hit(bench: &mut Bench, which: Range<usize>) -> Duration {
    let tokens = bench.any_long(which);
    let time = find(bench, &tokens);
    assert_eq!(bench.table.len(), QUERY_TOKENS / BLOCK_SIZE, "a hit");
    time
}

fn find_again(bench: &mut Bench, which: Range<usize>) -> Duration {
    let tokens = bench.any_long(which);
    find(bench, &tokens);
    find(bench, &tokens)
}

fn find_miss(bench: &mut Bench) -> Duration {
    let mut tokens = bench.any_long(0..N_LONG)[..N_COMMON].to_vec();
    tokens.extend(bench.random.tokens(QUERY_TOKENS - N_COMMON));
    find(bench, &tokens)
}

fn lock_and_unlock(bench: &mut Bench) -> Duration {
    let tokens = bench.any_long(N_BUSY..N_LONG);
    let found = bench.tree.find(Namespace::default(), &tokens, &mut Vec::new());
    let start = Instant::now();
    let lock = bench.tree.lock(&found);
    bench.tree.unlock(lock);
    start.elapsed()
}

fn extend_by_one_block(bench: &mut Bench) -> Duration {
    let mut tokens = bench.any_long(N_BUSY..N_LONG);
    tokens.extend(bench.random.tokens(2 * BLOCK_SIZE));
    let lock = bench.begin(&tokens);
    let Bench { tree, table, .. } = bench;
    // The first block makes the node, the second one is timed.
    let namespace = Namespace::default();
    let (n_tokens, n_blocks) = (tokens.len() - BLOCK_SIZE, table.len() - 1);
    let lock =
        tree.extend(namespace, lock, &tokens[..n_tokens], &table[..n_blocks], &mut |_block| {});
    let start = Instant::now();
    let lock = tree.extend(namespace, lock, &tokens, table, &mut |_block| {});
    let time = start.elapsed();
    tree.unlock(lock);
    time
}

fn evict_one_block(bench: &mut Bench) -> Duration {
    let Bench { tree, free, .. } = bench;
    let start = Instant::now();
    tree.evict(1, &mut |block| free.push(block));
    start.elapsed()
}

fn main() {
    for &eviction in Eviction::ALL {
        let mut bench = Bench::new(eviction);
        let (n_nodes, n_blocks) = (bench.tree.n_nodes(), bench.tree.n_blocks());
        println!("{}: {n_nodes} nodes, {n_blocks} blocks of {BLOCK_SIZE} tokens", eviction.name());
        println!("{:<34} {:>8} {:>8} {:>8}", "microseconds", "p10", "median", "p90");
        let (busy, others) = (0..N_BUSY, N_BUSY..N_LONG);
        bench.time("find, 4,096 tokens known", |bench| find_hit(bench, others.clone()));
        bench.time("the same, in the cache", |bench| find_again(bench, others.clone()));
        bench.time("known, forked very often", |bench| find_hit(bench, busy.clone()));
        bench.time("find, 4,096 tokens unknown", find_miss);
        bench.time("lock and unlock", lock_and_unlock);
        bench.time("extend by one block", extend_by_one_block);
        bench.time("evict one block", evict_one_block);
        bench.tree.check_integrity();
    }
}
