use super::*;
use crate::{BlockId, SnapshotId};
use pelton_base::TokenId;

/// Tokens named by letters.
fn spell(text: &str) -> Vec<TokenId> {
    text.bytes().map(|letter| TokenId(letter.into())).collect()
}

fn tree(eviction: Eviction) -> RadixTree {
    let recompute = RecomputeCost { per_token: 8, per_context_token: 1 };
    RadixTree::new(RadixConfig { block_size: 2, n_blocks: 100, eviction, recompute })
}

const DEFAULT: Namespace = Namespace(0);

/// Inserts a text whose blocks that are not there yet get ids from `first` on.
fn insert(tree: &mut RadixTree, text: &str, first: u32) {
    let mut table = Vec::new();
    let found = tree.find(DEFAULT, &spell(text), &mut table);
    let n_own = (text.len() / 2 - table.len()) as u32;
    table.extend((first..first + n_own).map(BlockId));
    let lock = tree.lock(&found);
    let lock = tree.extend(DEFAULT, lock, &spell(text), &table, &mut |_block| {});
    tree.unlock(lock);
    tree.check_integrity();
}

/// The ids of the whole blocks that match, and the partial block.
fn find(tree: &RadixTree, text: &str) -> (Vec<u32>, Option<(u32, usize)>) {
    let mut blocks = Vec::new();
    let found = tree.find(DEFAULT, &spell(text), &mut blocks);
    assert_eq!(found.n_full, blocks.len());
    let partial = found.partial.map(|(block, n_tokens)| (block.0, n_tokens));
    (blocks.iter().map(|block| block.0).collect(), partial)
}

fn lock(tree: &mut RadixTree, text: &str) -> PrefixLock {
    let found = tree.find(DEFAULT, &spell(text), &mut Vec::new());
    tree.lock(&found)
}

fn evict(tree: &mut RadixTree, n_blocks: usize) -> Vec<u32> {
    let mut released = Vec::new();
    let n_released = tree.evict(n_blocks, &mut |block| released.push(block.0));
    assert_eq!(n_released, released.len());
    tree.check_integrity();
    released
}

#[test]
fn a_match_ends_inside_a_block_within_a_run_as_well_as_behind_it() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbcc", 0);
    insert(&mut tree, "aabbdx", 10);
    assert_eq!(find(&tree, "aabbcc"), (vec![0, 1, 2], None));
    assert_eq!(find(&tree, "aabbd"), (vec![0, 1], Some((10, 1))));
    assert_eq!(find(&tree, "aabbcz"), (vec![0, 1], Some((2, 1))));
    assert_eq!(find(&tree, "aabz"), (vec![0], Some((1, 1))));
    assert_eq!(find(&tree, "aab"), (vec![0], Some((1, 1))));
    assert_eq!(find(&tree, "aa"), (vec![0], None));
    assert_eq!(find(&tree, "zz"), (vec![], None));
    assert_eq!(find(&tree, ""), (vec![], None));
}

#[test]
fn among_many_children_the_nearest_gives_the_partial_block() {
    let recompute = RecomputeCost::default();
    let eviction = Eviction::Lru;
    let config = RadixConfig { block_size: 4, n_blocks: 100, eviction, recompute };
    let mut tree = RadixTree::new(config);
    for (idx, text) in ["bbbb", "aaaa", "abca", "abcz", "abzz", "zzzz"].iter().enumerate() {
        let lock = tree.root_lock(DEFAULT);
        let table = [BlockId(idx as u32)];
        let lock = tree.extend(DEFAULT, lock, &spell(text), &table, &mut |_block| {});
        tree.unlock(lock);
        tree.check_integrity();
    }
    let partial = |text| find(&tree, text).1;
    assert_eq!(partial("abcb"), Some((3, 3)), "above");
    assert_eq!(partial("abzy"), Some((4, 3)), "above");
    assert_eq!(partial("bbzz"), Some((0, 2)), "below");
    assert_eq!(partial("abz"), Some((4, 3)), "a query shorter than a block");
    assert_eq!(partial("cccc"), None);
}

#[test]
fn a_split_keeps_what_a_lock_means() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbccdd", 0);
    let whole = lock(&mut tree, "aabbccdd");
    let half = lock(&mut tree, "aabb");
    tree.check_integrity();
    assert_eq!(tree.n_locked_blocks(&whole), 4);
    assert_eq!(tree.n_locked_blocks(&half), 2);
    assert_eq!(tree.n_evictable(), 0);
    tree.unlock(whole);
    tree.check_integrity();
    assert_eq!(tree.n_evictable(), 2);
    assert_eq!(evict(&mut tree, 9), [3, 2], "the last block first, and nothing that is pinned");
    tree.unlock(half);
    assert_eq!(evict(&mut tree, 9), [1, 0]);
    assert_eq!((tree.n_blocks(), tree.n_nodes(), tree.n_locks()), (0, 0, 0));
}

#[test]
fn a_match_may_be_locked_after_a_split_and_an_extension() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbccdd", 0);
    let early = tree.find(DEFAULT, &spell("aabb"), &mut Vec::new());
    let first = lock(&mut tree, "aa");
    insert(&mut tree, "aabbccxx", 10);
    assert_eq!(tree.n_evictable_beside(&early), 3);
    let second = tree.lock(&early);
    tree.check_integrity();
    assert_eq!(tree.n_locked_blocks(&second), 2);
    assert_eq!(tree.n_evictable(), 3);
    tree.unlock(first);
    tree.unlock(second);
    tree.check_integrity();
}

#[test]
#[should_panic(expected = "a stale match")]
fn a_match_that_is_older_than_an_eviction_is_refused() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    let found = tree.find(DEFAULT, &spell("aabb"), &mut Vec::new());
    evict(&mut tree, 1);
    let _lock = tree.lock(&found);
}

#[test]
#[should_panic(expected = "is in the tree already")]
fn a_block_cannot_be_in_two_places() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aa", 7);
    insert(&mut tree, "bb", 7);
}

#[test]
fn a_sequence_that_grows_alone_stays_one_node_and_offers_only_what_is_new() {
    let mut tree = tree(Eviction::Lru);
    let text = "abcdefghij";
    let table: Vec<BlockId> = (0..5).map(BlockId).collect();
    let mut lock = tree.root_lock(DEFAULT);
    for n_blocks in 1..=5 {
        let mut kept = Vec::new();
        let tokens = spell(&text[..2 * n_blocks]);
        let mut keep = |block: BlockId| kept.push(block);
        lock = tree.extend(DEFAULT, lock, &tokens, &table[..n_blocks], &mut keep);
        tree.check_integrity();
        assert_eq!(kept, [table[n_blocks - 1]]);
        assert_eq!(tree.n_nodes(), 2, "the root and the run");
    }
    tree.unlock(lock);
}

#[test]
fn two_sequences_that_compute_the_same_keep_one_copy_and_both_pin_it() {
    let mut tree = tree(Eviction::Lru);
    let (first, second) = (tree.root_lock(DEFAULT), tree.root_lock(DEFAULT));
    let text = spell("aabb");
    let table = [BlockId(0), BlockId(1)];
    let first = tree.extend(DEFAULT, first, &text, &table, &mut |_block| {});
    let (text, table) = (spell("aabbcc"), [BlockId(5), BlockId(6), BlockId(7)]);
    let mut kept = Vec::new();
    let second = tree.extend(DEFAULT, second, &text, &table, &mut |block| kept.push(block));
    tree.check_integrity();
    assert_eq!(kept, [BlockId(7)]);
    assert_eq!(find(&tree, "aabbcc"), (vec![0, 1, 7], None));
    assert_eq!(tree.n_locked_blocks(&first), 2, "the end of the first is where it was");
    tree.unlock(first);
    assert_eq!(tree.n_evictable(), 0, "the second pins all three");
    tree.unlock(second);
    assert_eq!(tree.n_evictable(), 3);
}

#[test]
fn equal_tokens_of_two_namespaces_never_meet() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    let other = Namespace(1);
    let found = tree.find(other, &spell("aabb"), &mut Vec::new());
    assert_eq!((found.n_full, found.partial), (0, None));
    let lock = tree.lock(&found);
    let (text, table) = (spell("aabb"), [BlockId(8), BlockId(9)]);
    let lock = tree.extend(other, lock, &text, &table, &mut |_block| {});
    tree.check_integrity();
    assert_eq!(find(&tree, "aabb").0, [0, 1]);
    assert_eq!(evict(&mut tree, 9), [1, 0]);
    tree.unlock(lock);
    assert_eq!(evict(&mut tree, 9), [9, 8]);
    assert_eq!(tree.n_nodes(), 0, "a namespace leaves nothing behind");
}

#[test]
fn the_longest_unused_goes_first_and_an_end_before_its_beginning() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbcc", 0);
    insert(&mut tree, "xxyy", 10);
    let again = lock(&mut tree, "aabb");
    tree.unlock(again);
    assert_eq!(evict(&mut tree, 1), [2], "the end that was not used again");
    assert_eq!(evict(&mut tree, 3), [11, 10, 1], "a run may be shortened by a block");
    assert_eq!(find(&tree, "aabb"), (vec![0], None));
}

#[test]
fn cost_aware_eviction_weighs_uses_positions_and_age() {
    let mut tree = tree(Eviction::CostAware);
    insert(&mut tree, "aa", 0);
    for _ in 0..3 {
        let hit = lock(&mut tree, "aa");
        tree.unlock(hit);
    }
    insert(&mut tree, "bb", 1);
    insert(&mut tree, "ccddeeffgghhiijj", 10);
    assert_eq!(evict(&mut tree, 1), [1], "used later than block 0, but once only");
    assert_eq!(find(&tree, "aa").0, [0]);
    // 22 to compute at the end of the long run; 8 at position 0, but about four uses.
    assert_eq!(evict(&mut tree, 1), [17]);
    insert(&mut tree, "bb", 1);
    assert_eq!(evict(&mut tree, 1), [1], "one use both, but cheaper to compute");
    // Uses age: many half-lives later a single new one is worth more than four old ones.
    pass_time(&mut tree);
    insert(&mut tree, "bb", 1);
    assert_eq!(evict(&mut tree, 8), [16, 15, 14, 13, 12, 11, 10, 0]);
    assert_eq!(find(&tree, "bb").0, [1]);
}

#[test]
fn clearing_leaves_what_is_pinned() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    insert(&mut tree, "ccdd", 10);
    let pinned = lock(&mut tree, "ccdd");
    let mut n_released = 0;
    assert_eq!(tree.clear(&mut |_block| n_released += 1), 2);
    tree.check_integrity();
    assert_eq!((n_released, tree.n_blocks()), (2, 2));
    assert_eq!(find(&tree, "ccdd").0, [10, 11]);
    tree.unlock(pinned);
}

#[test]
fn statistics_count_what_was_locked_kept_and_forgotten() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    insert(&mut tree, "aabb", 10);
    let hit = lock(&mut tree, "aabx");
    tree.unlock(hit);
    evict(&mut tree, 1);
    let stats = tree.stats();
    assert_eq!((stats.n_lookups, stats.n_hits), (3, 2));
    assert_eq!((stats.lookup_tokens, stats.matched_tokens), (12, 6));
    assert_eq!((stats.n_inserted_blocks, stats.n_evicted_blocks), (2, 1));
}

/// Many half-lives go by, in which nothing that is cached is used.
fn pass_time(tree: &mut RadixTree) {
    for _ in 0..20_000 {
        let idle = lock(tree, "zz");
        tree.unlock(idle);
    }
}

/// Begins at a snapshot of a text.
fn use_snapshot(tree: &mut RadixTree, text: &str, snapshot: u32) {
    let mut found = tree.find(DEFAULT, &spell(text), &mut Vec::new());
    found.snapshot = Some(SnapshotId(snapshot));
    let lock = tree.lock(&found);
    tree.unlock(lock);
}

/// Attaches a snapshot behind a text that is cached.
fn attach(tree: &mut RadixTree, text: &str, snapshot: u32) {
    let lock = lock(tree, text);
    tree.attach(&lock, text.len() / 2, SnapshotId(snapshot));
    assert!(tree.has_attached(&lock, text.len() / 2));
    tree.unlock(lock);
    tree.check_integrity();
}

/// The deepest snapshot on the path of a text, and the blocks up to it.
fn deepest(tree: &RadixTree, text: &str) -> Option<(usize, u32)> {
    let found = tree.find(DEFAULT, &spell(text), &mut Vec::new());
    tree.deepest_snapshot(&found).map(|(n_blocks, snapshot)| (n_blocks, snapshot.0))
}

fn dropped(tree: &mut RadixTree) -> Vec<u32> {
    tree.take_dropped_snapshots().map(|snapshot| snapshot.0).collect()
}

#[test]
fn a_snapshot_stays_at_its_block_when_the_run_around_it_is_split_and_evicted() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbccdd", 0);
    attach(&mut tree, "aabb", 0);
    attach(&mut tree, "aabbccdd", 1);
    assert_eq!(deepest(&tree, "aabbccdd"), Some((4, 1)));
    assert_eq!(deepest(&tree, "aabbccdx"), Some((2, 0)), "a part of a block is not enough");
    assert_eq!(deepest(&tree, "aabx"), None);
    // Splits before, at and behind the first snapshot.
    insert(&mut tree, "aabbccxx", 10);
    insert(&mut tree, "aabbyy", 20);
    insert(&mut tree, "aazz", 30);
    assert_eq!(deepest(&tree, "aabbccdd"), Some((4, 1)));
    assert_eq!(deepest(&tree, "aabbccxx"), Some((2, 0)));
    assert!(tree.has_snapshot(DEFAULT, &spell("aabb")));
    assert!(!tree.has_snapshot(DEFAULT, &spell("aabbcc")));
    assert_eq!(evict(&mut tree, 1), [3]);
    assert_eq!((dropped(&mut tree), tree.n_snapshots()), (vec![1], 1));
    assert_eq!(evict(&mut tree, 9).len(), 6);
    assert_eq!((dropped(&mut tree), tree.n_snapshots()), (vec![0], 0));
}

#[test]
fn a_run_that_is_shortened_drops_the_snapshots_of_its_end_only() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbccdd", 0);
    for (n_letters, snapshot) in [(2, 0), (4, 1), (8, 2)] {
        attach(&mut tree, &"aabbccdd"[..n_letters], snapshot);
    }
    assert_eq!(evict(&mut tree, 1), [3]);
    assert_eq!(dropped(&mut tree), [2]);
    assert_eq!(evict(&mut tree, 1), [2]);
    assert_eq!(dropped(&mut tree), [0; 0]);
    assert_eq!(evict(&mut tree, 2), [1, 0]);
    assert_eq!(dropped(&mut tree), [1, 0]);
}

#[test]
fn the_snapshot_that_was_not_used_for_longest_goes_first() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabbcc", 0);
    attach(&mut tree, "aa", 0);
    attach(&mut tree, "aabb", 1);
    attach(&mut tree, "aabbcc", 2);
    assert_eq!(deepest(&tree, "aaxx"), Some((1, 0)));
    use_snapshot(&mut tree, "aaxx", 0);
    let order = std::iter::from_fn(|| tree.forget_snapshot()).map(|snapshot| snapshot.0);
    assert_eq!(order.collect::<Vec<_>>(), [1, 2, 0]);
}

#[test]
fn by_cost_the_snapshot_that_saves_fewest_tokens_goes_first() {
    let mut tree = tree(Eviction::CostAware);
    insert(&mut tree, "aabbccddeeff", 0);
    attach(&mut tree, "aabbccdd", 0);
    attach(&mut tree, "aabbccddee", 1);
    attach(&mut tree, "aa", 2);
    assert_eq!(tree.forget_snapshot(), Some(SnapshotId(2)), "two tokens at the beginning");
    assert_eq!(tree.forget_snapshot(), Some(SnapshotId(1)), "two tokens since the one before");
    assert_eq!(tree.forget_snapshot(), Some(SnapshotId(0)));
    assert_eq!(tree.forget_snapshot(), None);
}

#[test]
fn a_match_that_is_cut_to_nothing_locks_nothing() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    let mut blocks = Vec::new();
    let mut found = tree.find(DEFAULT, &spell("aabx"), &mut blocks);
    found.cut(0, &mut blocks);
    assert_eq!((found.n_full, found.partial, blocks.len()), (0, None, 0));
    let lock = tree.lock(&found);
    tree.check_integrity();
    assert_eq!((tree.n_locked_blocks(&lock), tree.n_evictable()), (0, 2));
    tree.unlock(lock);
}

#[test]
#[should_panic(expected = "a stale match")]
fn a_match_whose_snapshot_was_forgotten_is_refused() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    attach(&mut tree, "aabb", 0);
    let mut found = tree.find(DEFAULT, &spell("aabb"), &mut Vec::new());
    found.snapshot = tree.deepest_snapshot(&found).map(|(_, snapshot)| snapshot);
    tree.forget_snapshot();
    let _lock = tree.lock(&found);
}

#[test]
fn every_eviction_has_a_name_of_its_own() {
    for &eviction in Eviction::ALL {
        assert_eq!(Eviction::from_name(eviction.name()), Some(eviction));
    }
    assert_eq!(Eviction::from_name("fifo"), None);
}

#[test]
fn a_common_prefix_ends_at_the_first_difference_wherever_it_is() {
    let a: Vec<TokenId> = (0..130).map(TokenId).collect();
    for n_common in 0..130 {
        let mut b = a.clone();
        b[n_common].0 ^= 1 << 31;
        assert_eq!(matching::common_prefix(&a, &b), n_common);
        assert_eq!(matching::common_prefix(&a, &a[..n_common]), n_common);
    }
}

#[test]
fn children_with_equal_fingerprints_are_told_apart() {
    let mut tree = tree(Eviction::Lru);
    let block = |first: u32| {
        let mixed = first.wrapping_mul(0x9E37_79B1).rotate_left(5);
        [TokenId(first), TokenId(mixed ^ 99)]
    };
    let blocks = [1, 2, 3].map(block);
    assert_eq!(children::fingerprint(&blocks[0]), children::fingerprint(&blocks[1]));
    for (idx, tokens) in blocks[..2].iter().enumerate() {
        let lock = tree.root_lock(DEFAULT);
        let table = [BlockId(idx as u32)];
        let lock = tree.extend(DEFAULT, lock, tokens, &table, &mut |_block| {});
        tree.unlock(lock);
        tree.check_integrity();
    }
    for (idx, tokens) in blocks.iter().enumerate() {
        let mut found = Vec::new();
        tree.find(DEFAULT, tokens, &mut found);
        assert_eq!(found, [0, 1].map(BlockId).get(idx).copied().into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_use_counts_less_the_longer_it_is_ago() {
    let mut tree = tree(Eviction::CostAware);
    insert(&mut tree, "aabbcc", 0);
    insert(&mut tree, "ddeeff", 10);
    attach(&mut tree, "aabbcc", 0);
    (0..4).for_each(|_| use_snapshot(&mut tree, "aabbcc", 0));
    pass_time(&mut tree);
    attach(&mut tree, "ddeeff", 1);
    use_snapshot(&mut tree, "ddeeff", 1);
    use_snapshot(&mut tree, "ddeeff", 1);
    use_snapshot(&mut tree, "aabbcc", 0);
    assert_eq!(tree.forget_snapshot(), Some(SnapshotId(0)), "one late use and four old ones");
}

#[test]
fn a_snapshot_that_was_used_more_often_stays_longer() {
    let mut tree = tree(Eviction::CostAware);
    insert(&mut tree, "aabbcc", 0);
    insert(&mut tree, "ddeeff", 10);
    attach(&mut tree, "aabbcc", 0);
    attach(&mut tree, "ddeeff", 1);
    (0..4).for_each(|_| use_snapshot(&mut tree, "aabbcc", 0));
    (0..2).for_each(|_| use_snapshot(&mut tree, "ddeeff", 1));
    assert_eq!(tree.forget_snapshot(), Some(SnapshotId(1)), "four uses and two late ones");
}

#[test]
#[should_panic(expected = "number of blocks")]
fn a_tree_that_contradicts_itself_is_found_out() {
    let mut tree = tree(Eviction::Lru);
    insert(&mut tree, "aabb", 0);
    tree.n_blocks += 1;
    tree.check_integrity();
}
