//! Answers that end early or may not end yet, and errors that end one answer.

use pelton_base::{
    Ask, Constraint, FinishReason, RequestId, SamplingParams, ServiceParams, TokenId,
};
use pelton_engine::spec::Verification;
use pelton_engine::{SampledToken, SpecMethod, SpecStats};
use pelton_model::{Compute, ModelFiles};
use std::sync::Arc;

use crate::worlds::*;

/// A rule under which an answer cannot continue ends this answer with an error, drafted or not, and
/// changes no other one.
#[test]
fn a_rule_that_allows_nothing_ends_its_request_alone() {
    let (files, _folder) = open("llama3", "BF16");
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
    let mut asked = requests();
    let end = Comb { end: Some(3), ..Comb::default() };
    asked[2].constraint = Some(Constraint(Arc::new(end)));
    for method in [SpecMethod::Off, SpecMethod::Suffix, SpecMethod::Draft, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        let (mut ended, _) = answers(&files, Compute::Auto, &world, asked.clone(), true);
        let (tokens, finish, _) = ended.remove(2);
        assert_eq!(finish, FinishReason::Error, "{method:?}");
        assert!(alone[2].0.starts_with(&tokens) && tokens.len() <= 3, "{tokens:?}");
        assert_eq!((&ended[..2], &ended[2..]), (&alone[..2], &alone[3..]), "{method:?}");
    }
}

/// A rule allows nothing behind the token with which an answer ends. A draft of that token may be
/// right, and nothing behind it is an error: the answer is complete.
#[test]
fn an_answer_that_its_rule_completes_is_complete_with_any_drafts() {
    let (files, _folder) = open("llama3", "BF16");
    let complete =
        |is_secret| Some(Constraint(Arc::new(Comb { end: Some(3), is_secret, ..Comb::default() })));
    let asked = || -> Vec<Ask> {
        let ends: Vec<TokenId> = (0..VOCAB).filter(|token| token % 3 == 2).map(TokenId).collect();
        let with_rule = |(i, request): (usize, Ask)| Ask {
            stop_tokens: ends.clone(),
            constraint: complete(i % 2 == 1),
            ..request
        };
        requests().into_iter().enumerate().map(with_rule).collect()
    };
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), asked(), false);
    for (tokens, finish, _) in &alone {
        assert_eq!((tokens.len(), *finish), (3, FinishReason::Stop));
    }
    let whole_model = {
        let mut config = forced(SpecMethod::EarlyExit);
        config.spec.exit_layers = Some(2);
        config
    };
    let methods = SpecMethod::ALL.iter().map(|method| forced(*method));
    for config in methods.chain([whole_model]) {
        let method = config.spec.method;
        for verification in [Verification::Match, Verification::Rejection] {
            let mut world = World { config: config.clone(), ..World::plain() };
            world.config.spec.verification = verification;
            let (drafted, _) = answers(&files, Compute::Auto, &world, asked(), true);
            for (i, (got, expected)) in drafted.iter().zip(&alone).enumerate() {
                let is_same = verification == Verification::Match || i == 0 || i == 3;
                assert!(!is_same || got == expected, "{method:?} {verification:?}, request {i}");
                assert_eq!(
                    (got.0.len(), got.1),
                    (3, FinishReason::Stop),
                    "{method:?}, request {i}"
                );
            }
        }
    }
}

/// Weights that are not numbers end every request with an error, whether its logits are read or
/// not.
#[test]
fn damaged_weights_end_a_request_with_or_without_logits() {
    let (_, folder) = open("llama3", "BF16");
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let n_header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + n_header..].fill(0xff);
    std::fs::write(&path, bytes).expect("weights");
    std::fs::remove_file(folder.path().join("model.gguf")).expect("ours");
    let files = ModelFiles::open(folder.path()).expect("a model");
    for method in [SpecMethod::Off, SpecMethod::Draft, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        for logprobs in [None, Some(1)] {
            let asked = requests().into_iter().map(|request| Ask {
                sampling: SamplingParams { logprobs, ..request.sampling },
                ..request
            });
            let (ended, _) = answers(&files, Compute::Auto, &world, asked.collect(), true);
            for (tokens, finish, _) in ended {
                assert_eq!((tokens.len(), finish), (0, FinishReason::Error), "{method:?}");
            }
        }
    }
}

/// The same requests with every even token as stop token and a minimal length each: that of the
/// sixth is its maximal length, the last has none.
fn bounded() -> Vec<Ask> {
    let min_tokens = [1, 4, 7, 11, 5, 13, 8, 0];
    let ends: Vec<TokenId> = (0..VOCAB).step_by(2).map(TokenId).collect();
    let bounded = requests().into_iter().zip(min_tokens).map(|(request, min_tokens)| Ask {
        sampling: SamplingParams { min_tokens, ..request.sampling },
        stop_tokens: ends.clone(),
        ..request
    });
    bounded.collect()
}

/// Stop tokens are masked place by place before the minimal length. Drafts have four tokens, so
/// most requests have drafts across the first place at which they may end.
#[test]
fn an_answer_that_may_not_end_yet_is_the_same_in_every_world() {
    let is_end = |sampled: &SampledToken| sampled.token.0.is_multiple_of(2);
    for format in ["BF16", "Q8_0"] {
        let (files, _folder) = open("llama3", format);
        let plain = World::plain();
        let (alone, _) = answers(&files, Compute::Auto, &plain, bounded(), false);
        for ((tokens, finish, _), asked) in alone.iter().zip(bounded()) {
            let n_before = tokens.iter().position(is_end).unwrap_or(tokens.len());
            assert!(n_before >= asked.sampling.min_tokens, "{tokens:?}");
            let ended = (n_before + 1 == tokens.len(), *finish);
            let cut = (n_before == asked.max_tokens, FinishReason::Length);
            assert!(ended == (true, FinishReason::Stop) || cut.0 && *finish == cut.1, "{tokens:?}");
        }
        // Log probabilities are those of the model, so the likeliest token may be a stop token.
        let all = || alone.iter().flat_map(|(tokens, ..)| tokens);
        let likeliest = |sampled: &SampledToken| sampled.logprobs.as_ref().expect("asked").top[0].0;
        let n_masked =
            all().filter(|sampled| !is_end(sampled) && likeliest(sampled).0 % 2 == 0).count();
        assert!(n_masked > 15, "{n_masked}");

        let together = |what: &str, world: &World| {
            let (answers, metrics) = answers(&files, Compute::Auto, world, bounded(), true);
            for (i, (got, expected)) in answers.iter().zip(&alone).enumerate() {
                assert_eq!(got, expected, "{format}: request {i}, {what}");
            }
            metrics
        };
        let metrics = together("preempted", &World { n_blocks: 74, ..plain.clone() });
        assert!(metrics.n_preemptions > 0, "{metrics:?}");
        let all = World { n_blocks: 84, n_host_blocks: 400, config: everything(), ..plain.clone() };
        together("with everything at once", &all);
        for method in SpecMethod::ALL.iter().filter(|method| **method != SpecMethod::Off) {
            let mut world = World { config: forced(*method), ..plain.clone() };
            world.config.spec.recent_tokens = 64;
            let metrics = together(method.name(), &world);
            assert!(*method == SpecMethod::Ngram || metrics.spec.n_drafted > 0, "{metrics:?}");
            if [SpecMethod::Suffix, SpecMethod::Draft].contains(method) {
                together("drafted in trees", &World { branches: true, ..world });
            }
        }
        // Drafts of the whole model are masked as its answers are.
        let mut itself = World { config: forced(SpecMethod::EarlyExit), ..plain.clone() };
        itself.config.spec.exit_layers = Some(2);
        for world in [itself, World { config: forced(SpecMethod::Draft), ..plain.clone() }] {
            let SpecStats { n_drafted, n_accepted, .. } = together("by itself", &world).spec;
            assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{n_accepted} of {n_drafted}");
        }

        let twice = bounded().into_iter().chain(bounded()).collect();
        let (again, metrics) = answers(&files, Compute::Auto, &plain, twice, false);
        assert_eq!((&again[..8], &again[8..]), (&alone[..], &alone[..]), "{format}, cached");
        assert!(metrics.cached_prompt_tokens > 0, "{metrics:?}");
        let choices = |fork_of: Option<RequestId>| {
            let service = ServiceParams { fork_of, ..ServiceParams::default() };
            let request = bounded().swap_remove(4);
            (0..3).map(move |choice| Ask { choice, service, ..request.clone() }).collect()
        };
        let (apart, _) = answers(&files, Compute::Auto, &plain, choices(None), false);
        let fork = Some(RequestId(0));
        let (forked, _) = answers(&files, Compute::Auto, &plain, choices(fork), true);
        assert_eq!(forked, apart, "{format}, choices");
    }
}

/// An answer that may not end although every token is a stop token ends with an error, and no other
/// one does.
#[test]
fn an_answer_that_can_neither_end_nor_go_on_ends_alone() {
    let (files, _folder) = open("llama3", "BF16");
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
    let mut asked = requests();
    asked[1].stop_tokens = (0..VOCAB).map(TokenId).collect();
    asked[1].sampling.min_tokens = 1;
    for method in [SpecMethod::Off, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        let (mut ended, _) = answers(&files, Compute::Auto, &world, asked.clone(), true);
        let (tokens, finish, _) = ended.remove(1);
        assert_eq!((tokens, finish), (Vec::new(), FinishReason::Error));
        assert_eq!((&ended[..1], &ended[1..]), (&alone[..1], &alone[2..]), "{method:?}");
    }
}

/// A panic of the executor at any moment of a step ends the requests at hand. The engine that starts
/// anew on the same executor answers the same requests as before, with everything switched on.
#[test]
fn an_engine_that_started_anew_answers_as_before() {
    let (files, _folder) = open("llama3", "Q8_0");
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
    let moments = [Moment::BeforeLaunch, Moment::AfterLaunch, Moment::AfterCollect];
    for (moment, step) in moments.into_iter().flat_map(|it| (0..16).map(move |step| (it, step))) {
        for method in [SpecMethod::Suffix, SpecMethod::Draft, SpecMethod::EarlyExit] {
            let mut config = everything();
            config.spec = forced(method).spec;
            let panics = Some((moment, step));
            let world =
                World { n_blocks: 84, n_host_blocks: 400, panics, config, ..World::plain() };
            let (engine, hold) = start(&files, Compute::Auto, &world);
            let ask = || -> Vec<_> {
                requests().into_iter().map(|ask| engine.submit(ask).expect("taken")).collect()
            };
            let hurt = ask();
            drop(hold);
            for ((tokens, finish, _), alone) in hurt.into_iter().map(collect).zip(&alone) {
                assert!(alone.0.starts_with(&tokens), "{method:?} {moment:?} {step}");
                assert!(finish == FinishReason::Error || finish == alone.1, "{finish:?}");
            }
            if engine.metrics().n_restarts == 0 {
                // Drafts have ended the answers in fewer steps.
                assert!(step > 9, "{method:?} {moment:?} {step}");
                continue;
            }
            let again: Vec<Answer> = ask().into_iter().map(collect).collect();
            assert!(again == alone, "{method:?} {moment:?} {step}");
            assert_eq!(stop(engine).n_restarts, 1, "{method:?} {moment:?} {step}");
        }
    }
}
