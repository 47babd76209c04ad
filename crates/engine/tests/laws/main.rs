//! Same request, same tokens, through the real executor: architectures, weight formats, batches,
//! chunks, preemption, swapping, cached prefixes, choices that share a prompt, drafts, threads,
//! instruction sets. Log probabilities are compared too, to the bit, and those of prompts with those
//! of the same tokens generated.

mod beams;
mod endings;
mod prompts;
mod recurrent;
mod sampling;
mod seq2seq;
mod sharing;
mod windows;
mod worlds;

use pelton_base::{Ask, KvWindows, RuleState, SamplingParams, ServiceParams, TokenId};
use pelton_engine::spec::Verification;
use pelton_engine::{EngineConfig, EngineMetrics, SampledToken, SpecMethod, SpecStats};
use pelton_kernels::Kernels;
use pelton_model::{Compute, ModelFiles, StateDtype};
use pelton_sched::{Choices, PreemptionMode};
use std::time::Duration;

use worlds::*;

/// Answers of requests that were computed alone, which every world must repeat.
struct Law {
    name: String,
    files: ModelFiles,
    compute: Compute,
    /// How states are stored in every world.
    state_dtype: StateDtype,
    alone: Vec<Answer>,
}

impl Law {
    /// Computes all requests at once in `world`, and compares the answers to the bit.
    fn holds(&self, what: &str, world: &World) -> EngineMetrics {
        self.holds_for(what, world, requests())
    }

    fn holds_for(&self, what: &str, world: &World, requests: Vec<Ask>) -> EngineMetrics {
        let world = &World { state_dtype: self.state_dtype, ..world.clone() };
        let (answers, metrics) = answers(&self.files, self.compute, world, requests, true);
        for (i, (got, expected)) in answers.iter().zip(&self.alone).enumerate() {
            assert_eq!(got, expected, "{}: request {i}, {what}", self.name);
        }
        metrics
    }
}

fn law_holds_for(fixture: &str) {
    for (format, compute) in FORMATS {
        let (files, _folder) = open(fixture, format);
        let plain = World::plain();
        let (alone, metrics) = answers(&files, compute, &plain, requests(), false);
        let n_tokens: usize = alone.iter().map(|(tokens, ..)| tokens.len()).sum();
        assert_eq!(
            n_tokens,
            requests().iter().map(|request| request.max_tokens).sum::<usize>(),
            "{fixture} {format}"
        );
        for i in [2, 7] {
            let (mut rule, tokens) = (Comb::default(), &alone[i].0);
            assert!(tokens.iter().all(|sampled| rule.accept(sampled.token)), "{tokens:?}");
        }
        let n_steps_alone = metrics.n_steps;
        let (name, state_dtype) = (format!("{fixture} {format}"), StateDtype::F32);
        let law = Law { name, files, compute, state_dtype, alone };

        law.holds("in a batch of eight", &plain);
        let bounded = |max_step| {
            let choices = Choices { max_step, ..Choices::default() };
            World { config: EngineConfig { choices, ..Default::default() }, ..plain.clone() }
        };
        let metrics = law.holds("in steps of any length", &bounded(Duration::ZERO));
        assert!(metrics.n_steps * 4 < n_steps_alone, "they share steps: {metrics:?}");
        law.holds("in steps as short as can be", &bounded(Duration::from_nanos(1)));
        let metrics = in_little_memory(&law);
        assert!(metrics.swapped_in_blocks > 0, "{metrics:?}");
        drafted_by_models(&law);
        drafted_from_texts(&law);
        law.holds("on two threads", &World { n_threads: 2, ..plain.clone() });
        for kernels in Kernels::available().skip(1) {
            law.holds(kernels.name, &World { kernels, ..plain.clone() });
        }
    }
}

/// Blocks for the longest request, and a few more.
fn few_blocks(files: &ModelFiles) -> u32 {
    let spec = files.spec().expect("a model");
    let of_longest = |windows: KvWindows| windows.n_held(73, 0, BLOCK) as u32;
    spec.kv_windows().map_or(73, of_longest) + 11
}

/// A world in which requests are swapped out.
fn swapped(n_blocks: u32) -> World {
    let choices = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
    let swap = EngineConfig { choices, ..Default::default() };
    World { pool: Some(n_blocks), n_host_blocks: 400, config: swap, ..World::plain() }
}

/// Returns what was counted while requests were swapped out.
fn in_little_memory(law: &Law) -> EngineMetrics {
    let plain = World::plain();
    let chunks = EngineConfig { choices: chunked(), ..Default::default() };
    law.holds("in chunks", &World { config: chunks, ..plain.clone() });

    let metrics =
        law.holds("preempted", &World { pool: Some(few_blocks(&law.files)), ..plain.clone() });
    assert!(metrics.n_preemptions > 0, "{metrics:?}");

    let swapped_out = law.holds("swapped out", &swapped(few_blocks(&law.files)));

    let choices = Choices { prefix_cache: false, ..Choices::default() };
    let uncached = EngineConfig { choices, ..Default::default() };
    law.holds("without a cache", &World { config: uncached, ..plain });

    let all = World { n_threads: 2, config: everything(), ..swapped(few_blocks(&law.files)) };
    let metrics = law.holds("with everything at once", &all);
    assert!(metrics.spec.n_drafted > 0, "{metrics:?}");
    swapped_out
}

/// Drafts from texts in chains and in trees, and each instruction set.
fn from_texts_and_with_all_kernels(law: &Law) {
    drafted_from_texts(law);
    for method in [SpecMethod::Ngram, SpecMethod::Suffix, SpecMethod::Recycle] {
        let drafting = World { config: forced(method), branches: true, ..World::plain() };
        law.holds("drafted in trees", &drafting);
    }
    for kernels in Kernels::available().skip(1) {
        law.holds(kernels.name, &World { kernels, ..World::plain() });
    }
}

fn drafted_by_models(law: &Law) {
    let drafting = World { config: forced(SpecMethod::Draft), ..World::plain() };
    let metrics = law.holds("drafted by itself", &drafting);
    let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
    // The draft ignores the penalties of two requests.
    assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{metrics:?}");

    let metrics = law.holds("drafted in trees", &World { branches: true, ..drafting });
    let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
    assert!(n_accepted * 6 > n_drafted && n_drafted > 90, "{metrics:?}");

    let drafting = World { config: forced(SpecMethod::EarlyExit), ..World::plain() };
    let metrics = law.holds("drafted by its first layer", &drafting);
    assert!(metrics.spec.n_drafted > 30, "{metrics:?}");
    // The whole model guesses itself right, apart from the penalties.
    let mut whole = drafting;
    whole.config.spec.exit_layers = Some(2);
    let metrics = law.holds("drafted by all its layers", &whole);
    let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
    assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{metrics:?}");
}

fn drafted_from_texts(law: &Law) {
    for method in [SpecMethod::Ngram, SpecMethod::Suffix] {
        let drafting = World { config: forced(method), ..World::plain() };
        let metrics = law.holds(method.name(), &drafting);
        // A run of two tokens need not come again, a single one does.
        assert!(method == SpecMethod::Ngram || metrics.spec.n_drafted > 0, "{metrics:?}");
    }
    for method in [SpecMethod::Recycle, SpecMethod::Lookahead, SpecMethod::Auto] {
        let mut drafting = World { config: forced(method), ..World::plain() };
        drafting.config.spec.recent_tokens = 64;
        let metrics = law.holds(method.name(), &drafting);
        assert!(metrics.spec.n_drafted > 20, "{method:?}: {metrics:?}");
    }
}

#[test]
fn llama_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[0]);
}

#[test]
fn mistral_with_its_window_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[1]);
}

#[test]
fn qwen2_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[2]);
}

#[test]
fn qwen3_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[3]);
}

/// A greedy request without log probabilities gets the likeliest token and no logits, unless a
/// penalty or a rule needs them; a sampled request in the same step gets its logits.
#[test]
fn what_gets_no_logits_answers_like_what_does() {
    let quiet = || -> Vec<Ask> {
        let quiet = |request: Ask| Ask {
            sampling: SamplingParams { logprobs: None, ..request.sampling },
            ..request
        };
        requests().into_iter().map(quiet).collect()
    };
    let tokens = |answers: &[Answer]| -> Vec<Vec<TokenId>> {
        let tokens = |(sampled, ..): &Answer| sampled.iter().map(|it| it.token).collect();
        answers.iter().map(tokens).collect()
    };
    for (format, compute) in FORMATS {
        let (files, _folder) = open("qwen2", format);
        for sampled_vocab in [None, Some(100)] {
            let plain = World { sampled_vocab, ..World::plain() };
            let told = tokens(&answers(&files, compute, &plain, requests(), false).0);
            let check = |what: &str, world: &World, together| {
                let (answers, metrics) = answers(&files, compute, world, quiet(), together);
                assert_eq!(tokens(&answers), told, "{format} {sampled_vocab:?}: {what}");
                metrics
            };
            check("alone", &plain, false);
            check("together", &plain, true);
            check("on three threads", &World { n_threads: 3, ..plain.clone() }, true);
            for method in [SpecMethod::Suffix, SpecMethod::Draft, SpecMethod::EarlyExit] {
                let drafting = World { config: forced(method), ..plain.clone() };
                check(method.name(), &drafting, true);
                // The executor makes drafts of early exits later: nothing can branch off them here.
                if method != SpecMethod::EarlyExit {
                    let metrics = check("in trees", &World { branches: true, ..drafting }, true);
                    assert!(metrics.spec.n_drafted > 0, "{method:?}: {metrics:?}");
                }
            }
            // Asks for the likeliest tokens of all rows.
            check(
                "recycling",
                &World { config: forced(SpecMethod::Recycle), ..plain.clone() },
                true,
            );
            for kernels in Kernels::available().skip(1) {
                check(kernels.name, &World { kernels, ..plain.clone() }, true);
            }
            // Judged by chance, greedy answers are what they were.
            for verification in [Verification::Rejection, Verification::Typical] {
                let mut drafting = World { config: forced(SpecMethod::Draft), ..plain.clone() };
                drafting.config.spec.verification = verification;
                let (answers, _) = answers(&files, compute, &drafting, quiet(), true);
                let got = tokens(&answers);
                for i in [0, 3, 6, 7] {
                    assert_eq!(got[i], told[i], "{format}: {verification:?}, request {i}");
                }
            }
        }
    }
}

#[test]
fn rows_of_padding_are_neither_sampled_nor_reported() {
    const N_REAL: usize = 50;
    let (files, _folder) = open("llama3", "Q8_0");
    let requests: Vec<Ask> = [0.0, 5.0]
        .map(|temperature| Ask {
            prompt: vec![TokenId(1), TokenId(200)],
            sampling: SamplingParams {
                temperature,
                logprobs: Some(20),
                logit_bias: vec![(TokenId(VOCAB - 1), 100.0)],
                ..SamplingParams::default()
            },
            choice: 0,
            max_tokens: 60,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        })
        .into();
    let run = |sampled_vocab| {
        let world = World { sampled_vocab, ..World::plain() };
        answers(&files, Compute::Auto, &world, requests.clone(), true).0
    };
    for (tokens, ..) in run(Some(N_REAL)) {
        assert_eq!(tokens.len(), 60);
        for SampledToken { token, logprobs } in tokens {
            let top = logprobs.expect("asked for").top;
            assert_eq!(top.len(), 20);
            let ids = top.iter().map(|(id, _)| id).chain([&token]);
            assert!(ids.into_iter().all(|id| (id.0 as usize) < N_REAL), "{token}, {top:?}");
        }
    }
    let all = run(None);
    assert_eq!(all, run(Some(0)));
    assert_eq!(all, run(Some(VOCAB as usize + 1)));
    assert!(all.iter().flat_map(|answer| &answer.0).all(|sampled| sampled.token.0 == VOCAB - 1));
}
