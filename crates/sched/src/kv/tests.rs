//! Bounds of admission, forks, matches with windows, offering blocks to the cache and swapping, with
//! blocks of two tokens.

use super::*;
use crate::sequence::Standing;
use crate::{KvWindows, Tick};
use pelton_base::{Namespace, Reach, RequestId, Slo, Source};

fn kv(n_blocks: u32, n_host_blocks: u32) -> Kv {
    Kv::new(&SchedulerConfig { n_host_blocks, ..SchedulerConfig::new(n_blocks, 2) })
}

fn sequence(id: u64, n_tokens: u32) -> Sequence {
    Sequence {
        id: RequestId(id),
        standing: Standing::new(0, id),
        arrived_at: Tick(0),
        tenant: 0,
        namespace: Namespace::default(),
        slo: Slo::default(),
        fork_of: None,
        is_led: false,
        is_scored: false,
        tokens: (0..n_tokens).map(TokenId).collect(),
        n_prompt: n_tokens as usize,
        source: Source::default(),
        max_tokens: 1,
        stop_tokens: Vec::new(),
        n_cached: None,
        n_expected: 0,
        n_accepted: 0,
        n_rejected: 0,
        first_token_at: None,
    }
}

/// The memory of a sequence that takes blocks for all its tokens, and leaves some free.
fn sizes(sequence: &Sequence, n_spare: usize) -> Sizes {
    let n_reserved = sequence.tokens.len();
    let n_most_blocks = n_reserved.div_ceil(2);
    Sizes { n_reserved, n_prompt: n_reserved, n_most_blocks, n_spare }
}

/// Admits a sequence if there is room, and lists the copies for it.
fn try_admit(
    kv: &mut Kv,
    sequence: &Sequence,
    n_spare: usize,
) -> Option<(Admission, SchedulerOutput)> {
    let mut output = SchedulerOutput::default();
    let found = kv.find(sequence);
    let admission = kv.admit(&found, None, sizes(sequence, n_spare), &mut output);
    kv.end_plan();
    Some((admission?, output))
}

fn admit(kv: &mut Kv, sequence: &Sequence) -> Held {
    try_admit(kv, sequence, 0).expect("room").0.held
}

/// A sequence that begins with the first `n_common` tokens of those that [`sequence`] makes.
fn parting(id: u64, n_common: u32, n_tokens: u32) -> Sequence {
    let own = (n_common..n_tokens).map(|i| TokenId(1000 + i));
    Sequence { tokens: (0..n_common).map(TokenId).chain(own).collect(), ..sequence(id, n_tokens) }
}

#[test]
fn blocks_that_the_cache_has_already_replace_those_of_the_table() {
    let mut kv = kv(32, 0);
    let (first, second) = (sequence(1, 8), sequence(2, 15));
    // Both begin before either has computed anything, so each has blocks of its own.
    let (mut one, mut two) = (admit(&mut kv, &first), admit(&mut kv, &second));
    kv.remember(&mut one, &first, 8);
    kv.remember(&mut two, &second, 6);
    assert_eq!(two.table.blocks()[..3], one.table.blocks()[..3]);
    let own: Vec<BlockId> = two.table.blocks()[4..7].to_vec();
    // Of four more blocks the cache has one, and keeps three.
    kv.remember(&mut two, &second, 14);
    assert_eq!(two.table.blocks()[..4], one.table.blocks()[..]);
    assert_eq!(two.table.blocks()[4..7], own);
    assert_eq!(kv.n_cached(), 7);
    // Offering what was offered changes nothing, and neither does offering less.
    kv.remember(&mut two, &second, 15);
    kv.remember(&mut two, &second, 3);
    assert_eq!((kv.n_cached(), two.n_offered), (7, 7));
    kv.check_integrity([(&one, 8), (&two, 15)].into_iter(), std::iter::empty());
    kv.release(one, &first, 8, true);
    kv.release(two, &second, 15, true);
}

#[test]
fn a_source_is_found_whole_or_not_at_all() {
    let mut kv = kv(32, 0);
    let first = sequence(1, 9);
    let mut held = admit(&mut kv, &first);
    kv.remember(&mut held, &first, 6);
    for (n_tokens, n_full) in [(0, 3), (4, 3), (6, 3), (7, 0), (8, 0)] {
        let source = Source { n_tokens, n_padding: 0 };
        let later = Sequence { source, ..sequence(2, 9) };
        assert_eq!(
            kv.find(&later).n_full,
            n_full,
            "six tokens are cached, the source has {n_tokens}"
        );
    }
    kv.release(held, &first, 6, true);
}

#[test]
fn what_is_swapped_out_needs_a_host_block_for_each_block_and_stays_cached() {
    let mut output = SchedulerOutput::default();
    for (n_host, n_computed, is_swapped) in
        [(3, 0, false), (3, 1, true), (2, 5, false), (3, 5, true), (3, 6, true), (3, 7, false)]
    {
        let mut kv = kv(16, n_host);
        let moving = sequence(1, 8);
        let held = admit(&mut kv, &moving);
        output.clear();
        match kv.swap_out(held, &moving, n_computed, &mut output) {
            Err(held) => {
                assert!(!is_swapped, "{n_computed} tokens to {n_host} blocks");
                assert_eq!((output.transfers.len(), kv.n_free_host()), (0, n_host as usize));
                kv.release(held, &moving, n_computed, false);
            }
            Ok(host) => {
                assert!(is_swapped, "{n_computed} tokens to {n_host} blocks");
                assert_eq!(host.blocks.len(), n_computed.div_ceil(2));
                assert_eq!(output.moved_by(&output.transfers[0]).len(), n_computed.div_ceil(2));
                assert_eq!(kv.n_leaving(), n_computed.div_ceil(2));
                kv.end_transfer(output.transfers[0].id);
                // Full blocks can still be found on the device.
                assert_eq!(kv.find(&moving).n_full, n_computed / 2);
                kv.drop_host(host);
                assert_eq!(kv.n_free_host(), n_host as usize);
            }
        }
        kv.check_integrity(std::iter::empty(), std::iter::empty());
        assert_eq!(kv.n_available(), 16);
    }
}

#[test]
fn a_prefix_that_is_shared_takes_no_room_of_its_own() {
    // The first sequence has 5 blocks; the second shares 3 of them and takes 2.
    for (n_blocks, n_spare, has_room) in [(7, 0, true), (7, 1, false), (8, 1, true), (6, 0, false)]
    {
        let mut kv = kv(n_blocks, 0);
        let (first, second) = (sequence(1, 10), sequence(2, 10));
        let mut one = admit(&mut kv, &first);
        kv.remember(&mut one, &first, 6);
        let Some((two, output)) = try_admit(&mut kv, &second, n_spare) else {
            assert!(!has_room, "{n_blocks} blocks, {n_spare} to spare");
            continue;
        };
        assert!(has_room, "{n_blocks} blocks, {n_spare} to spare");
        assert_eq!((two.n_computed, two.n_shared, output.copies.len()), (6, 6, 0));
        assert_eq!(two.held.table.blocks()[..3], one.table.blocks()[..3]);
        assert_eq!(two.held.table.blocks().len(), 5);
        kv.check_integrity([(&one, 6), (&two.held, 6)].into_iter(), std::iter::empty());
    }
}

#[test]
fn a_block_that_matches_in_part_is_copied_unless_it_is_the_last_one_to_write_to() {
    for (n_blocks, is_copied) in [(5, true), (4, false)] {
        let mut kv = kv(n_blocks, 0);
        let first = sequence(1, 8);
        let held = admit(&mut kv, &first);
        let third = held.table.blocks()[2];
        kv.release(held, &first, 8, true);
        assert_eq!(kv.n_cached(), 4);
        // Five tokens are cached: two blocks, and the first half of the third.
        let second = parting(2, 5, 8);
        let (two, output) = try_admit(&mut kv, &second, 0).expect("room");
        let n_shared = if is_copied { 5 } else { 4 };
        assert_eq!((two.n_computed, two.n_shared, two.loads), (n_shared, n_shared, false));
        let copies = [(third, two.held.table.blocks()[2])];
        assert_eq!(output.copies, if is_copied { &copies[..] } else { &[] });
        kv.check_integrity([(&two.held, n_shared)].into_iter(), std::iter::empty());
        kv.release(two.held, &second, 5, false);
        assert_eq!(kv.n_available(), n_blocks as usize);
    }
}

#[test]
fn a_fork_shares_whole_blocks_and_copies_the_rest() {
    // The parent has 4 blocks and has computed 5 tokens; the fork shares 2 blocks and takes 2.
    for (n_blocks, n_spare, has_room) in [(6, 0, true), (5, 0, false), (6, 1, false), (7, 1, true)]
    {
        let mut kv = kv(n_blocks, 0);
        let (first, second) = (sequence(1, 8), parting(2, 5, 8));
        let mut one = admit(&mut kv, &first);
        let mut output = SchedulerOutput::default();
        let fork = kv.fork((&mut one, &first), 5, sizes(&second, n_spare), &mut output);
        kv.end_plan();
        let Some(fork) = fork else {
            assert!(!has_room, "{n_blocks} blocks, {n_spare} to spare");
            continue;
        };
        assert!(has_room, "{n_blocks} blocks, {n_spare} to spare");
        assert_eq!((fork.n_computed, fork.n_shared, fork.loads), (5, 5, false));
        let (ours, theirs) = (fork.held.table.blocks(), one.table.blocks());
        assert_eq!((&ours[..2], ours.len()), (&theirs[..2], 4));
        assert_eq!(output.copies, [(theirs[2], ours[2])]);
        kv.check_integrity([(&one, 5), (&fork.held, 5)].into_iter(), std::iter::empty());
    }
}

#[test]
fn a_match_reaches_as_far_as_the_window_blocks_that_go_on_from_it() {
    let windows = KvWindows { reach: Reach::Last(4), n_blocks: 1, is_all: false };
    let config = SchedulerConfig { windows: Some(windows), ..SchedulerConfig::new(32, 2) };
    let mut kv = Kv::new(&config);
    let first = sequence(1, 12);
    let mut held = admit(&mut kv, &first);
    for n_tokens in (2..=12).step_by(2) {
        assert!(kv.grow(&mut held, n_tokens - 2, n_tokens), "room for {n_tokens} tokens");
        kv.remember(&mut held, &first, n_tokens);
    }
    assert!(kv.grow(&mut held, 12, 12), "nothing is missing");
    kv.release(held, &first, 12, true);
    // All 12 tokens; 6 of them; 11, the last of which is half a block.
    let queries = [sequence(2, 13), parting(3, 6, 9), parting(4, 11, 13)];
    let match_of = |kv: &mut Kv, query: &Sequence, host: Option<&Host>| {
        let found = kv.find_beside(query, host);
        assert_eq!(kv.found.len(), found.n_full);
        (found.n_full, found.partial.map_or(0, |(_, n_tokens)| n_tokens))
    };
    let all = queries.each_ref().map(|query| match_of(&mut kv, query, None));
    assert_eq!(all, [(6, 0), (3, 0), (5, 1)]);
    // Window blocks are worth keeping where the last match parts from the cache: behind 11 tokens.
    assert_eq!(kv.n_on_path, 11);
    // Behind 12 tokens, blocks 4 and 5 are read, and they are kept longest. The others are not
    // there.
    while kv.evict_window(List::Passed) {}
    let all = queries.each_ref().map(|query| match_of(&mut kv, query, None));
    assert_eq!(all, [(6, 0), (0, 0), (0, 0)]);
    // KV on the host is not computed anew: as deep as it reaches, without its last token's block.
    for (n_tokens, n_full) in [(4, 1), (5, 2), (6, 2)] {
        let host = Host { blocks: Vec::new(), n_tokens, transfer: TransferId(0), snapshot: None };
        assert_eq!(match_of(&mut kv, &queries[1], Some(&host)), (n_full, 0), "{n_tokens} tokens");
        let whole = match_of(&mut kv, &queries[0], Some(&host));
        assert_eq!(whole, (6, 0), "the cache reaches further than {n_tokens} tokens");
    }
}
