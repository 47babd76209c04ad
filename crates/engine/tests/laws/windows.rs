//! Models whose layers have an attention window: the same answers in every world while blocks are freed
//! behind it, and as little memory as is said.

use pelton_engine::{EngineConfig, SpecMethod};
use pelton_model::{Compute, ModelFiles, StateDtype};
use pelton_sched::{Choices, PreemptionMode};
use pelton_testkit::golden::decoders;

use crate::worlds::*;
use crate::{Law, from_texts_and_with_all_kernels, in_little_memory};

fn law_holds_for(fixture: &str) {
    let (files, _folder) = open_folder(fixture);
    assert!(files.spec().expect(fixture).kv_windows().is_some(), "{fixture} frees nothing");
    let compute = Compute::Auto;
    let plain = World::plain();
    let (alone, _) = answers(&files, compute, &plain, requests(), false);
    let (name, state_dtype) = (fixture.to_owned(), StateDtype::F32);
    let law = Law { name, files, compute, state_dtype, alone };
    law.holds("in a batch of eight", &plain);
    in_little_memory(&law);
    from_texts_and_with_all_kernels(&law);
    law.holds("drafted by itself", &World { config: forced(SpecMethod::Draft), ..plain.clone() });
    let early = World { config: forced(SpecMethod::EarlyExit), ..plain.clone() };
    law.holds("drafted by its first layer", &early);
}

#[test]
fn two_layers_with_a_window_for_each_without_answer_alike_in_every_world() {
    law_holds_for("gemma3");
}

#[test]
fn three_layers_with_segments_for_each_without_answer_alike_in_every_world() {
    law_holds_for("llama4");
}

#[test]
fn layers_with_windows_and_sinks_answer_alike_in_every_world() {
    law_holds_for("gpt-oss");
}

#[test]
fn layers_that_read_pages_of_others_and_narrower_heads_answer_alike_in_every_world() {
    law_holds_for("gemma4");
}

#[test]
fn residual_streams_side_by_side_answer_alike_in_every_world() {
    law_holds_for("gemma3n");
}

#[test]
fn three_streams_of_which_layers_read_the_second_answer_alike_in_every_world() {
    law_holds_for("gemma3n-streams");
}

#[test]
fn pages_of_windows_twice_as_large_answer_alike_in_every_world() {
    law_holds_for("gemma4-k-eq-v");
}

/// Every family with windows: one request in the least memory that holds it, which is far less than all
/// of its tokens take, has the answer that it has in memory without end.
#[test]
fn a_long_sequence_fits_into_its_window_and_the_layers_without_one() {
    let mut n_families = 0;
    for golden in decoders() {
        let fixture = golden.checkpoint.name();
        let folder = tempfile::tempdir().expect("a folder");
        golden.checkpoint.write_bare_folder(folder.path());
        let files = ModelFiles::open(folder.path()).expect(fixture);
        let spec = files.spec().expect(fixture);
        let Some(windows) = spec.kv_windows() else { continue };
        n_families += 1;
        let request = || vec![ask(tokens(5, spec.max_context - 20), 19)];
        let (wide, _) = answers(&files, Compute::Auto, &World::plain(), request(), false);
        // One token of the answer has no keys and values.
        let n_tokens = (spec.max_context - 2).div_ceil(BLOCK);
        let n_blocks = windows.n_held(n_tokens, 0, BLOCK);
        assert!(2 * n_blocks < windows.n_taken(n_tokens, n_tokens) + n_tokens, "{fixture}");
        let narrow = World { pool: Some(n_blocks as u32), ..World::plain() };
        let (found, metrics) = answers(&files, Compute::Auto, &narrow, request(), false);
        assert_eq!(found, wide, "{fixture}");
        assert_eq!(metrics.n_blocks, n_blocks, "{fixture}");
        assert_eq!(metrics.n_preemptions, 0, "{fixture}");
    }
    assert!(n_families > 9, "only {n_families} families with windows");
}

#[test]
fn every_turn_of_a_conversation_computes_its_own_tokens_and_a_block_at_most() {
    for fixture in ["gemma3", "gemma4", "llama4", "mistral"] {
        let (files, _folder) = open_folder(fixture);
        let (n_prompt, n_cached) = conversation(&files, &World::plain(), 6);
        let (n_computed, n_most) = (n_prompt - n_cached, 90 + 5 * (50 + BLOCK));
        assert!(n_computed <= n_most, "{fixture}: {n_computed} of {n_prompt}, at most {n_most}");
    }
}

/// An answer that is longer than the window is left out of the next prompt, as thoughts are: what the
/// prompt's end needs is still there.
#[test]
fn a_prompt_goes_on_from_the_end_of_an_earlier_prompt_without_its_answer() {
    for fixture in ["gemma3", "gemma4", "llama4", "mistral"] {
        let (files, _folder) = open_folder(fixture);
        let (engine, hold) = start(&files, Compute::Auto, &World::plain());
        drop(hold);
        let first = tokens(1, 90);
        collect(engine.submit(ask(first.clone(), 60)).expect("taken"));
        let second = [first, tokens(9, 30)].concat();
        let answer = collect(engine.submit(ask(second.clone(), 8)).expect("taken"));
        let metrics = stop(engine);
        assert!(metrics.cached_prompt_tokens as usize >= 90 - BLOCK, "{fixture}: {metrics:?}");
        let alone = answers(&files, Compute::Auto, &World::plain(), vec![ask(second, 8)], false);
        assert_eq!(answer, alone.0[0], "{fixture}");
    }
}

/// Requests that take each other's blocks again and again.
#[test]
fn requests_are_swapped_with_the_blocks_of_their_windows() {
    for fixture in ["gemma3", "gemma3n", "gemma4", "gemma4-k-eq-v", "mistral"] {
        let (files, _folder) = open_folder(fixture);
        let all = || (0..6).map(|i| ask(tokens(i, 40 + 7 * i as usize), 40)).collect::<Vec<_>>();
        let (wide, _) = answers(&files, Compute::Auto, &World::plain(), all(), false);
        let windows = files.spec().expect(fixture).kv_windows().expect("windows");
        let pool = Some(2 * windows.n_held(30, 0, BLOCK) as u32);
        for preemption in [PreemptionMode::Swap, PreemptionMode::Recompute] {
            let choices = Choices { preemption, max_batch_tokens: 24, ..Choices::default() };
            let config = EngineConfig { choices, ..Default::default() };
            let narrow = World { pool, n_host_blocks: 400, config, ..World::plain() };
            let (found, metrics) = answers(&files, Compute::Auto, &narrow, all(), true);
            assert_eq!(found, wide, "{fixture}");
            let is_swapped = metrics.swapped_in_blocks > 0;
            let is_asked = preemption == PreemptionMode::Swap && metrics.n_preemptions > 0;
            assert_eq!(is_swapped, is_asked, "{fixture}: {metrics:?}");
        }
    }
}
