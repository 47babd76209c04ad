//! Wishes of a request about drafts: none, few, or those of one proposer; and texts that it
//! predicts. Every answer is that of plain decoding.

use crate::fake::{self, FakeExecutor};
use pelton_base::{Ask, Drafting, SamplingParams, ServiceParams, TokenId, Usage};
use pelton_engine::spec::{Ngram, Proposer, Suffix};
use pelton_engine::{
    Engine, EngineConfig, EngineHandle, SpecConfig, SpecMethod, SpecStats, SubmitError,
};

const N_TOKENS: usize = 20;

fn proposers(method: SpecMethod) -> Vec<Box<dyn Proposer>> {
    SpecConfig { method, ..SpecConfig::default() }.proposers()
}

/// An engine that verifies whatever can be guessed.
fn engine(proposers: Vec<Box<dyn Proposer>>) -> EngineHandle {
    let spec = SpecConfig { max_drafts: 4, is_forced: true, ..SpecConfig::default() };
    let config = EngineConfig { spec, ..EngineConfig::default() };
    Engine::spawn_with(FakeExecutor::new(100, 4), config, proposers)
}

fn both() -> Vec<Box<dyn Proposer>> {
    vec![Box::new(Ngram::default()), Box::new(Suffix::default())]
}

/// A prompt that ends as it began, so that there is something to guess from the start.
fn request() -> Ask {
    Ask {
        prompt: [5, 6, 7, 8, 9, 5, 6, 7, 8].map(TokenId).to_vec(),
        sampling: SamplingParams::greedy(),
        choice: 0,
        max_tokens: N_TOKENS,
        stop_tokens: Vec::new(),
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: None,
    }
}

fn limited(drafting: Drafting) -> Ask {
    Ask { service: ServiceParams { drafting, ..ServiceParams::default() }, ..request() }
}

/// The tokens of an answer, how they were counted, and what the engine counted meanwhile.
fn answer(engine: EngineHandle, request: Ask) -> (Vec<TokenId>, Usage, SpecStats) {
    let mut stream = engine.submit(request).expect("taken");
    let (mut tokens, mut usage) = (Vec::new(), Usage::default());
    while let Some(event) = stream.blocking_recv() {
        tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
        usage = event.usage;
    }
    engine.shutdown(true);
    engine.join();
    (tokens, usage, engine.metrics().spec)
}

fn plain() -> Vec<TokenId> {
    answer(engine(Vec::new()), request()).0
}

#[test]
fn a_request_without_limits_is_drafted_for() {
    let (tokens, usage, stats) = answer(engine(both()), request());
    assert_eq!(tokens, plain());
    assert!(stats.n_drafted > stats.n_verified_rows, "{stats:?}");
    let counted = (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens);
    let n_rejected = stats.n_drafted - stats.n_accepted;
    assert_eq!(counted, (stats.n_accepted as usize, n_rejected as usize));
}

#[test]
fn a_request_that_wants_no_drafts_gets_none() {
    for by in [None, Some("suffix")] {
        let drafting = Drafting { most: Some(0), by, always: false };
        let (tokens, usage, stats) = answer(engine(both()), limited(drafting));
        assert_eq!((tokens, stats), (plain(), SpecStats::default()));
        assert_eq!(usage.accepted_prediction_tokens + usage.rejected_prediction_tokens, 0);
    }
}

#[test]
fn a_request_bounds_its_drafts() {
    let drafting = Drafting { most: Some(1), by: None, always: false };
    let (tokens, _, stats) = answer(engine(both()), limited(drafting));
    assert_eq!(tokens, plain());
    assert!(stats.n_drafted > 0 && stats.n_drafted == stats.n_verified_rows, "{stats:?}");
    let drafting = Drafting { most: Some(1000), by: None, always: false };
    let (.., more) = answer(engine(both()), limited(drafting));
    assert!(more.n_drafted <= 4 * more.n_verified_rows, "the engine's own bound holds: {more:?}");
}

#[test]
fn a_request_chooses_who_drafts() {
    for (by, method) in [("ngram", SpecMethod::Ngram), ("suffix", SpecMethod::Suffix)] {
        let drafting = Drafting { most: None, by: Some(by), always: false };
        let (tokens, _, among_both) = answer(engine(both()), limited(drafting));
        assert_eq!(tokens, plain());
        let (.., alone) = answer(engine(proposers(method)), request());
        let counts = |stats: SpecStats| (stats.n_drafted, stats.n_accepted, stats.drafted_at);
        assert_eq!(counts(among_both), counts(alone), "{by}");
    }
    let engine = engine(both());
    assert_eq!(engine.drafters(), ["ngram", "suffix"]);
    let drafting = Drafting { most: None, by: Some("draft"), always: false };
    let error = engine.submit(limited(drafting)).expect_err("nobody of this name");
    assert!(error.to_string().contains("ngram, suffix"), "{error}");
    assert!(matches!(error, SubmitError::NoSuchDrafter { asked: "draft", .. }));
}

#[test]
fn methods_and_proposers_have_the_same_names() {
    for method in SpecMethod::ALL.iter().filter(|method| **method != SpecMethod::Auto) {
        for proposer in proposers(*method) {
            assert_eq!(proposer.name(), method.name());
        }
    }
}

#[test]
fn a_right_prediction_is_accepted_and_a_wrong_one_changes_nothing() {
    let plain = plain();
    let mut asked = request();
    asked.prompt = [1, 2, 3].map(TokenId).to_vec();
    let (expected, ..) = answer(engine(Vec::new()), asked.clone());
    asked.prediction = expected.clone();
    let (tokens, usage, stats) = answer(engine(proposers(SpecMethod::Suffix)), asked.clone());
    assert_eq!(tokens, expected);
    // The first token starts the prediction, and one of each step is no draft.
    let n_right = usage.accepted_prediction_tokens;
    assert!(n_right >= (N_TOKENS - 1) * 3 / 4, "{usage:?}");
    assert_eq!(stats.accepted_at[..4].iter().sum::<u64>(), n_right as u64);

    asked.prompt = request().prompt;
    let (tokens, ..) = answer(engine(proposers(SpecMethod::Suffix)), asked.clone());
    assert_eq!(tokens, plain, "the prediction of another answer");
    asked.prediction = vec![TokenId(fake::VOCAB as u32)];
    let error = engine(Vec::new()).submit(asked).expect_err("no such token");
    assert!(matches!(error, SubmitError::UnknownPrediction { .. }), "{error}");
}

#[test]
fn drafts_beyond_the_end_of_an_answer_are_not_part_of_it() {
    let mut asked = request();
    asked.prompt = [1, 2, 3].map(TokenId).to_vec();
    let (expected, ..) = answer(engine(Vec::new()), asked.clone());
    // The first step gives one token, the second four drafts and one more.
    asked.prediction = expected.clone();
    asked.stop_tokens = vec![expected[2]];
    let n_until_stop = 1 + expected.iter().position(|token| *token == expected[2]).expect("there");
    assert!((2..=3).contains(&n_until_stop), "{expected:?}");
    let (tokens, usage, _) = answer(engine(proposers(SpecMethod::Suffix)), asked);
    assert_eq!(tokens, expected[..n_until_stop]);
    assert_eq!(usage.accepted_prediction_tokens, n_until_stop - 1, "{usage:?}");
    assert_eq!(usage.rejected_prediction_tokens, 4 - (n_until_stop - 1), "{usage:?}");
}
