//! Models whose layers keep states beside pages, or states alone: the same answers in every world, and
//! the same reuse of what was computed.

use pelton_base::{Ask, RequestId, ServiceParams};
use pelton_engine::{EngineConfig, KvMemory, ModelExecutor, ModelExecutorConfig, SpecMethod};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{CHUNK_TOKENS, Compute, CpuDevice, LoadOptions, StateDtype, load};
use pelton_sched::{Choices, PreemptionMode};

use crate::worlds::*;
use crate::{Law, from_texts_and_with_all_kernels, in_little_memory};

fn law_holds_for(fixture: &str) {
    use Compute::{Auto, F32};
    for (compute, state_dtype) in
        [(Auto, StateDtype::F32), (Auto, StateDtype::Bf16), (F32, StateDtype::Bf16)]
    {
        let (files, _folder) = open_folder(fixture);
        let plain = World { state_dtype, ..World::plain() };
        let (alone, _) = answers(&files, compute, &plain, requests(), false);
        let name = format!("{fixture} {compute:?}, states in {state_dtype}");
        let law = Law { name, files, compute, state_dtype, alone };
        law.holds("in a batch of eight", &plain);
        // Only tokens up to a border of a chunk are swapped, and these requests are short.
        in_little_memory(&law);
        from_texts_and_with_all_kernels(&law);
        law.holds("on two threads", &World { n_threads: 2, ..plain.clone() });
    }
}

#[test]
fn delta_nets_with_experts_answer_alike_in_every_world() {
    law_holds_for("qwen3-next");
}

#[test]
fn delta_nets_with_perceptrons_answer_alike_in_every_world() {
    law_holds_for("qwen3-5");
}

#[test]
fn delta_nets_that_turn_around_what_they_forget_answer_alike_in_every_world() {
    law_holds_for("olmo-hybrid");
}

#[test]
fn kimi_delta_attention_beside_latents_answers_alike_in_every_world() {
    law_holds_for("kimi-linear");
}

#[test]
fn lightning_attention_answers_alike_in_every_world() {
    law_holds_for("minimax");
}

#[test]
fn mamba_beside_attention_answers_alike_in_every_world() {
    law_holds_for("granite-hybrid");
}

#[test]
fn mamba_alone_answers_alike_in_every_world() {
    law_holds_for("mamba2");
}

#[test]
fn layers_of_one_mixer_answer_alike_in_every_world() {
    law_holds_for("nemotron-h");
}

#[test]
fn selective_scans_alone_answer_alike_in_every_world() {
    law_holds_for("mamba");
}

#[test]
fn selective_scans_beside_attention_and_experts_answer_alike_in_every_world() {
    law_holds_for("jamba");
}

#[test]
fn time_mixes_and_channel_mixes_answer_alike_in_every_world() {
    law_holds_for("rwkv7");
}

#[test]
fn two_mixers_in_a_layer_answer_alike_in_every_world() {
    law_holds_for("falcon-h1");
}

#[test]
fn short_convolutions_answer_alike_in_every_world() {
    law_holds_for("lfm2");
}

#[test]
fn every_turn_of_a_conversation_computes_its_own_tokens_and_a_chunk_at_most() {
    for (fixture, state_dtype) in [
        ("qwen3-next", StateDtype::F32),
        ("qwen3-next", StateDtype::Bf16),
        ("jamba", StateDtype::Bf16),
        ("rwkv7", StateDtype::Bf16),
    ] {
        let (files, _folder) = open_folder(fixture);
        let world = World { state_dtype, ..World::plain() };
        let (n_prompt, n_cached) = conversation(&files, &world, 8);
        // The new tokens of each turn, and the tokens after the last border of the turn before.
        let (n_computed, n_most) = (n_prompt - n_cached, 90 + 7 * (50 + CHUNK_TOKENS));
        assert!(n_computed <= n_most, "{n_computed} of {n_prompt} tokens, at most {n_most}");
    }
}

#[test]
fn a_third_request_reuses_a_common_prefix_to_within_a_chunk() {
    for fixture in ["granite-hybrid", "jamba", "falcon-h1", "rwkv7"] {
        reused_by_a_third_request(fixture);
    }
}

fn reused_by_a_third_request(fixture: &str) {
    let (files, _folder) = open_folder(fixture);
    let prefix = tokens(3, 301);
    let with = |seed, n| -> Ask { ask([prefix.clone(), tokens(seed, n)].concat(), 4) };
    let asked = vec![with(4, 70), with(5, 90), with(6, 110)];
    let (together, metrics) = answers(&files, Compute::Auto, &World::plain(), asked.clone(), false);
    let n_reused = 301 / CHUNK_TOKENS * CHUNK_TOKENS;
    // The second request finds no state where it leaves the first one, and keeps one there.
    assert_eq!(metrics.cached_prompt_tokens as usize, n_reused);
    for (asked, got) in asked.into_iter().zip(together) {
        let alone = answers(&files, Compute::Auto, &World::plain(), vec![asked], false);
        assert_eq!(got, alone.0[0]);
    }
}

#[test]
fn requests_that_come_at_once_compute_their_common_prompt_once() {
    let (files, _folder) = open_folder("qwen3-5");
    let prefix = tokens(7, 256);
    let with = |seed| ask([prefix.clone(), tokens(seed, 9)].concat(), 4);
    let asked: Vec<Ask> = (10..15).map(with).collect();
    let config = EngineConfig { choices: chunked(), ..EngineConfig::default() };
    let world = World { config, ..World::plain() };
    let (together, metrics) = answers(&files, Compute::Auto, &world, asked.clone(), true);
    assert_eq!(metrics.cached_prompt_tokens, 4 * 256);
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), asked, false);
    assert_eq!(together, alone);
}

#[test]
fn requests_that_are_swapped_out_come_back_with_their_states() {
    for fixture in ["qwen3-next", "jamba", "falcon-h1", "kimi-linear", "rwkv7"] {
        for state_dtype in StateDtype::ALL {
            swapped_out_and_in(fixture, state_dtype);
        }
    }
}

fn swapped_out_and_in(fixture: &str, state_dtype: StateDtype) {
    let (files, _folder) = open_folder(fixture);
    let asked: Vec<Ask> =
        (0..5).map(|i| ask(tokens(i, 130 + 20 * i as usize), 40 + 10 * i as usize)).collect();
    let plain = World { state_dtype, ..World::plain() };
    let (alone, _) = answers(&files, Compute::Auto, &plain, asked.clone(), false);
    for preemption in [PreemptionMode::Swap, PreemptionMode::Recompute] {
        let choices = Choices { preemption, ..Choices::default() };
        let config = EngineConfig { choices, ..EngineConfig::default() };
        let world = World { n_blocks: 230, n_host_blocks: 400, config, ..plain.clone() };
        let (got, metrics) = answers(&files, Compute::Auto, &world, asked.clone(), true);
        assert_eq!(got, alone, "{fixture}, states in {state_dtype}, {preemption:?}");
        assert!(metrics.n_preemptions > 0, "{metrics:?}");
        let swaps = preemption == PreemptionMode::Swap;
        assert_eq!(metrics.swapped_in_blocks > 0, swaps, "{metrics:?}");
    }
}

/// A tree of drafts is computed within one chunk, which the last known token may end.
#[test]
fn trees_of_drafts_lead_over_the_borders_of_chunks() {
    for fixture in ["qwen3-next", "kimi-linear", "granite-hybrid", "jamba", "rwkv7", "lfm2"] {
        let (files, _folder) = open_folder(fixture);
        let asked: Vec<Ask> = [10, CHUNK_TOKENS - 1, CHUNK_TOKENS]
            .map(|n_prompt| ask(tokens(5, n_prompt), 2 * CHUNK_TOKENS))
            .to_vec();
        let (alone, _) = answers(&files, Compute::Auto, &World::plain(), asked.clone(), false);
        for method in [SpecMethod::Suffix, SpecMethod::Recycle, SpecMethod::Lookahead] {
            let mut world = World { config: forced(method), branches: true, ..World::plain() };
            world.config.spec.recent_tokens = 64;
            let (got, metrics) = answers(&files, Compute::Auto, &world, asked.clone(), true);
            assert_eq!(got, alone, "{fixture}, {method:?}");
            assert!(metrics.spec.n_drafted > 100, "{fixture}, {method:?}: {metrics:?}");
        }
    }
}

#[test]
fn choices_and_continuations_begin_with_the_state_of_what_they_continue() {
    for fixture in ["qwen3-next", "jamba", "falcon-h1", "rwkv7"] {
        for state_dtype in StateDtype::ALL {
            forked_and_continued(fixture, state_dtype);
        }
    }
}

fn forked_and_continued(fixture: &str, state_dtype: StateDtype) {
    let plain = World { state_dtype, ..World::plain() };
    let (files, _folder) = open_folder(fixture);
    let choices = |fork_of: Option<RequestId>| {
        let service = ServiceParams { fork_of, ..ServiceParams::default() };
        let request = Ask { prompt: tokens(8, 150), ..requests().swap_remove(4) };
        (0..3).map(move |choice| Ask { choice, service, ..request.clone() }).collect()
    };
    let uncached = Choices { prefix_cache: false, ..Choices::default() };
    for choices_of in [Choices::default(), uncached] {
        let config = EngineConfig { choices: choices_of, ..EngineConfig::default() };
        let world = World { config, ..plain.clone() };
        let (apart, _) = answers(&files, Compute::Auto, &plain, choices(None), false);
        let fork = Some(RequestId(0));
        let (forked, metrics) = answers(&files, Compute::Auto, &world, choices(fork), true);
        assert_eq!(forked, apart);
        assert!(metrics.cached_prompt_tokens >= 2 * 149, "{metrics:?}");
    }
}

#[test]
fn states_in_bf16_change_log_probabilities_behind_the_first_border_alone() {
    for fixture in ["qwen3-next", "kimi-linear", "granite-hybrid", "jamba", "rwkv7"] {
        let (files, _folder) = open_folder(fixture);
        let [exact, rounded] = StateDtype::ALL.map(|state_dtype| {
            let world = World { state_dtype, ..World::plain() };
            let logprobs = |prompt| {
                let mut asked = ask(prompt, 8);
                asked.sampling.logprobs = Some(0);
                answers(&files, Compute::F32, &world, vec![asked], false).0.swap_remove(0)
            };
            [logprobs(tokens(3, 40)), logprobs(tokens(3, 100))]
        });
        assert_eq!(exact[0], rounded[0], "{fixture}: before the border");
        assert_ne!(exact[1], rounded[1], "{fixture}: behind the border");
    }
}

#[test]
fn what_cannot_work_with_states_is_refused_by_name() {
    let (files, _folder) = open_folder("qwen3-5");
    let decoder = || {
        let device = CpuDevice::new(Cpu::with(Kernels::best(), 1));
        load(&files, device, &LoadOptions::default()).expect("it loads")
    };
    let config = ModelExecutorConfig {
        block_size: 4,
        memory: KvMemory::Blocks(8),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers: None,
        verification: Default::default(),
        states: Default::default(),
    };
    let refused = |config| ModelExecutor::new(decoder(), config).expect_err("refused").to_string();
    let blocks = refused(ModelExecutorConfig { block_size: 24, ..config });
    assert!(blocks.contains("blocks of 24 tokens") && blocks.contains("64"), "{blocks}");
    let exit = refused(ModelExecutorConfig { exit_layers: Some(1), ..config });
    assert!(exit.contains("early exit") && exit.contains("recurrent"), "{exit}");
    let draft = pelton_engine::spec::DraftModel::new(decoder(), 4, KvMemory::Blocks(8), 256);
    let draft = draft.map(drop).expect_err("refused").to_string();
    assert!(draft.contains("the draft model has recurrent layers"), "{draft}");
}
