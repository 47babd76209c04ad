//! Requests that ask for more than temperature, top-k, top-p and min-p: the same tokens in every
//! world, though Mirostat, DRY, bad words and a window of penalties follow the tokens so far.

use pelton_base::{
    Ask, Dry, Dynatemp, Mirostat, SamplerStage, SamplingParams, SuppressedTokens, TokenId, Xtc,
};
use pelton_engine::{EngineConfig, SpecMethod};
use pelton_model::{Compute, StateDtype};
use pelton_sched::Choices;

use crate::worlds::*;
use crate::{Law, swapped};

/// Every parameter of the kind, each in one of eight requests.
fn rare_requests() -> Vec<Ask> {
    let plain = SamplingParams { temperature: 1.2, ..SamplingParams::default() };
    let breakers = vec![vec![TokenId(3)], [7, 9].map(TokenId).to_vec()];
    let dry = Dry { multiplier: 2.0, allowed_length: 1, ..Dry::default() };
    let mirostat = |version| Some(Mirostat { version, tau: 3.0, eta: 0.4 });
    let samplings = [
        SamplingParams { typical_p: 0.6, min_keep: 3, ..plain.clone() },
        SamplingParams { mirostat: mirostat(1), ..plain.clone() },
        SamplingParams { top_n_sigma: 1.5, top_p: 0.9, ..plain.clone() },
        SamplingParams { mirostat: mirostat(2), dry: dry.clone(), ..plain.clone() },
        SamplingParams { xtc: Xtc { probability: 0.5, threshold: 0.02 }, ..plain.clone() },
        SamplingParams {
            dynatemp: Dynatemp { range: 0.8, exponent: 1.3 },
            samplers: Some(vec![SamplerStage::TopK, SamplerStage::Temperature, SamplerStage::MinP]),
            top_k: 50,
            min_p: 0.02,
            ..plain.clone()
        },
        SamplingParams {
            dry: Dry { breakers: breakers.into(), ..dry },
            // A token that an answer repeats where nothing speaks against it.
            logit_bias: vec![(TokenId(5), 4.0)],
            ..SamplingParams::greedy()
        },
        SamplingParams {
            allowed_tokens: Some((0..200).map(TokenId).collect()),
            bad_words: (0..40).map(|i| [i, i + 3, i + 9].map(TokenId)[..2].to_vec()).collect(),
            repetition_penalty: 1.4,
            repeat_last_n: Some(6),
            ..plain
        },
    ];
    let seeded = |(ask, sampling): (Ask, SamplingParams)| {
        let SamplingParams { seed, logprobs, .. } = ask.sampling;
        Ask { sampling: SamplingParams { seed, logprobs, ..sampling }, ..ask }
    };
    requests().into_iter().zip(samplings).map(seeded).collect()
}

#[test]
fn rare_parameters_answer_alike_in_every_world() {
    let (fixture, compute) = ("qwen3", Compute::Auto);
    let (files, _folder) = open(fixture, "Q8_0");
    let plain = World::plain();
    let (alone, _) = answers(&files, compute, &plain, rare_requests(), false);
    let mut usual = requests();
    usual[6].sampling =
        SamplingParams { dry: Dry::default(), ..rare_requests()[6].sampling.clone() };
    let (usual, _) = answers(&files, compute, &plain, usual, false);
    for (i, (rare, usual)) in alone.iter().zip(&usual).enumerate() {
        assert_ne!(rare.0, usual.0, "request {i} asks for something that does something");
    }
    let (name, state_dtype) = (format!("{fixture}, rare parameters"), StateDtype::F32);
    let law = Law { name, files, compute, state_dtype, alone };
    let holds = |what: &str, world: &World| law.holds_for(what, world, rare_requests());
    holds("in a batch of eight", &plain);
    let chunks = EngineConfig { choices: chunked(), ..Default::default() };
    holds("in chunks", &World { config: chunks, ..plain.clone() });
    let metrics = holds("preempted", &World { n_blocks: 84, ..plain.clone() });
    assert!(metrics.n_preemptions > 0, "{metrics:?}");
    let metrics = holds("swapped out", &swapped(84));
    assert!(metrics.swapped_in_blocks > 0, "{metrics:?}");
    let choices = Choices { prefix_cache: false, ..Choices::default() };
    let uncached = EngineConfig { choices, ..Default::default() };
    holds("without a cache", &World { config: uncached, ..plain.clone() });
    for method in [SpecMethod::Draft, SpecMethod::EarlyExit, SpecMethod::Suffix] {
        let drafting = World { config: forced(method), ..plain.clone() };
        let metrics = holds(method.name(), &drafting);
        assert!(metrics.spec.n_drafted > 0, "{method:?}: {metrics:?}");
        let trees = World { branches: true, ..drafting };
        if method == SpecMethod::Draft {
            let metrics = holds("drafted in trees", &trees);
            assert!(metrics.spec.n_accepted > 0, "{metrics:?}");
        }
    }
    let all = World { n_threads: 2, config: everything(), ..swapped(84) };
    holds("with everything at once", &all);
}

/// Greedy requests that report nothing, whose likeliest tokens the model may compute without logits.
fn greedy_requests(suppressed: &SuppressedTokens, favoured: &[TokenId]) -> Vec<Ask> {
    let greedy = SamplingParams {
        suppressed: suppressed.clone(),
        logit_bias: favoured.iter().map(|token| (*token, 50.0)).collect(),
        ..SamplingParams::greedy()
    };
    let greedy = |ask: Ask| Ask { sampling: greedy.clone(), constraint: None, ..ask };
    requests().into_iter().map(greedy).collect()
}

#[test]
fn suppressed_tokens_never_come_drafted_or_not_and_greedy_requests_skip_them() {
    let (fixture, compute) = ("qwen3", Compute::Auto);
    let (files, _folder) = open(fixture, "Q8_0");
    let plain = World::plain();
    let none = SuppressedTokens::default();
    let (usual, _) = answers(&files, compute, &plain, greedy_requests(&none, &[]), false);
    let token = |answer: usize, place: usize| usual[answer].0[place].token;
    let always = SuppressedTokens { always: [token(0, 1), token(1, 3)].into(), ..none.clone() };
    let first = SuppressedTokens { first: [token(0, 0), token(2, 0)].into(), ..none };
    // A bias brings no suppressed token back.
    let biased = (always.clone(), vec![token(0, 1)]);
    for (suppressed, favoured) in [(always, vec![]), (first, vec![]), biased] {
        let asked = || greedy_requests(&suppressed, &favoured);
        let (alone, _) = answers(&files, compute, &plain, asked(), false);
        assert_ne!(alone[0].0, usual[0].0, "the likeliest tokens are forbidden");
        for (tokens, ..) in &alone {
            for (i, sampled) in tokens.iter().enumerate() {
                assert!(suppressed.at(i).all(|token| token != sampled.token), "{tokens:?}");
            }
        }
        let (name, state_dtype) = (format!("{fixture}, {suppressed:?}"), StateDtype::F32);
        let (files, _folder) = open(fixture, "Q8_0");
        let law = Law { name, files, compute, state_dtype, alone };
        law.holds_for("in a batch of eight", &plain, asked());
        for method in [SpecMethod::Draft, SpecMethod::EarlyExit, SpecMethod::Suffix] {
            let drafting = World { config: forced(method), ..plain.clone() };
            let metrics = law.holds_for(method.name(), &drafting, asked());
            assert!(metrics.spec.n_drafted > 0, "{method:?}: {metrics:?}");
        }
    }
}
