//! Bounds of offering blocks to the cache and of swapping, with blocks of two tokens.

use super::*;
use crate::Tick;
use crate::sequence::Standing;
use pelton_base::{Namespace, RequestId, Slo, Source};

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
        n_accepted: 0,
        n_rejected: 0,
        first_token_at: None,
    }
}

fn admit(kv: &mut Kv, sequence: &Sequence) -> Held {
    let n_reserved = sequence.tokens.len();
    let n_most_blocks = n_reserved.div_ceil(2);
    let sizes = Sizes { n_reserved, n_prompt: n_reserved, n_most_blocks, n_spare: 0 };
    let found = kv.find(sequence);
    let admission = kv.admit(&found, None, sizes, &mut SchedulerOutput::default());
    kv.end_plan();
    admission.expect("room").held
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
