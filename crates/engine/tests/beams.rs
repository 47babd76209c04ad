//! Beam searches in the loop with a fake executor, whose KV betrays every wrong block: the answers are
//! those of the definition, whatever else the engine does.

use crate::fake::{FAILS_ALONE, FAILS_STEP, FakeExecutor, PANICS, VOCAB, logits_after};
use pelton_base::{
    Ask, Constraint, FinishReason, Rule, RuleState, SamplingParams, ServiceParams, TokenId,
    TokenSet, Usage,
};
use pelton_engine::{
    Beam, BeamEvent, BeamParams, BeamStream, EarlyStopping, Engine, EngineConfig, EngineHandle,
    EngineMetrics, Fault, SpecConfig, SpecMethod, SubmitError,
};
use pelton_sampling::Philox;
use pelton_sched::{Batching, Choices, KvAllocation, PolicyKind, PreemptionMode};
use pelton_testkit::beams::{NaiveBeams, log_softmax};
use std::sync::Arc;
use std::time::Instant;

/// A search, and the answers that it should have.
struct Asked {
    ask: Ask,
    params: BeamParams,
}

fn ask(prompt: &[u32], max_tokens: usize) -> Ask {
    Ask {
        prompt: prompt.iter().map(|&token| TokenId(token)).collect(),
        sampling: SamplingParams::greedy(),
        choice: 0,
        max_tokens,
        stop_tokens: vec![TokenId(3), TokenId(8)],
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: None,
    }
}

/// Ten searches of all sorts, some of the same prompt.
fn searches() -> Vec<Asked> {
    let modes = [EarlyStopping::Never, EarlyStopping::Heuristic, EarlyStopping::Always];
    (0..10_u32)
        .map(|i| {
            let n_prompt = 1 + (i / 2) * 7 % 23;
            let prompt: Vec<u32> = (0..n_prompt).map(|j| (i / 2 * 31 + j * 7) % 37).collect();
            let mut ask = ask(&prompt, 1 + i as usize * 5 % 17);
            // A third of the tokens, so that answers end at different lengths.
            ask.stop_tokens = (0..37).step_by(3).map(TokenId).collect();
            if i % 3 == 1 {
                ask.stop_tokens.clear();
            }
            if i % 4 == 3 {
                ask.sampling.min_tokens = ask.max_tokens.min(4);
            }
            if i % 5 == 4 {
                ask.sampling.allowed_tokens = Some((0..20).map(TokenId).collect());
            }
            let params = BeamParams {
                length_penalty: [1.0, 0.0, -0.5, 2.0][i as usize % 4],
                early_stopping: modes[i as usize % 3],
                ..BeamParams::of_width(1 + i as usize % 5)
            };
            Asked { ask, params }
        })
        .collect()
}

impl Asked {
    /// The answers by definition: tokens, sum, score, end.
    fn expected(&self, mut rules_out: impl FnMut(&[TokenId], TokenId) -> bool) -> Vec<Beam> {
        let Self { ask, params } = self;
        let naive = NaiveBeams {
            width: params.width,
            length_penalty: params.length_penalty,
            stops_early: match params.early_stopping {
                EarlyStopping::Never => None,
                EarlyStopping::Heuristic => Some(false),
                EarlyStopping::Always => Some(true),
            },
            n_prompt: ask.prompt.len(),
            n_most: ask.max_tokens,
            ends: &ask.stop_tokens,
        };
        let found = naive.search(|tokens| {
            let all: Vec<TokenId> = ask.prompt.iter().chain(tokens).copied().collect();
            let mut logprobs = log_softmax(&logits_after(&all));
            for (id, logprob) in (0..).map(TokenId).zip(&mut logprobs) {
                let is_early = tokens.len() < ask.sampling.min_tokens;
                let allowed = ask.sampling.allowed_tokens.as_ref();
                if is_early && ask.stop_tokens.contains(&id)
                    || allowed.is_some_and(|allowed| !allowed.contains(&id))
                    || rules_out(tokens, id)
                {
                    *logprob = f64::NEG_INFINITY;
                }
            }
            logprobs
        });
        let answer = |naive: pelton_testkit::beams::NaiveBeam| Beam {
            logprobs: Vec::new(),
            tokens: naive.tokens,
            cumulative_logprob: naive.sum,
            score: naive.score,
            finish: if naive.is_stopped { FinishReason::Stop } else { FinishReason::Length },
        };
        found.into_iter().map(answer).collect()
    }
}

fn assert_close(found: &[Beam], expected: &[Beam], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (rank, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.tokens, expected.tokens, "{what}, answer {rank}");
        assert_eq!(found.finish, expected.finish, "{what}, answer {rank}");
        let far = |a: f64, b: f64| (a - b).abs() > 1e-4;
        assert!(!far(found.cumulative_logprob, expected.cumulative_logprob), "{what}: {found:?}");
        assert!(!far(found.score, expected.score), "{what}: {found:?} {expected:?}");
    }
}

fn collect(mut stream: BeamStream) -> (Vec<Beam>, Usage) {
    let mut n_before = 0;
    loop {
        match stream.blocking_recv().expect("a stream ends with an event that says so") {
            BeamEvent::Grown { n_tokens, .. } => {
                assert_eq!(n_tokens, n_before + 1, "a token a step");
                n_before = n_tokens;
            }
            BeamEvent::Ended { answers, failure, fault, usage, .. } => {
                assert_eq!((failure, fault), (None, None));
                assert!(stream.blocking_recv().is_none(), "it is the last event");
                return (answers, usage);
            }
        }
    }
}

fn submit(engine: &EngineHandle, asked: &Asked) -> BeamStream {
    engine.submit_beams(asked.ask.clone(), asked.params).expect("the engine takes it")
}

fn end(engine: &EngineHandle) -> EngineMetrics {
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "{metrics:?}");
    assert_eq!(metrics.n_submitted, metrics.n_finished, "{metrics:?}");
    metrics
}

fn with(choices: Choices) -> EngineConfig {
    EngineConfig { choices, ..EngineConfig::default() }
}

/// The answers to all searches at once, beside requests that are sampled.
fn together(executor: FakeExecutor, config: EngineConfig) -> (Vec<Vec<Beam>>, EngineMetrics) {
    let engine = Engine::spawn(executor, config);
    let sampled = SamplingParams { seed: 5, ..SamplingParams::default() };
    let mut neighbours = Vec::new();
    let mut streams = Vec::new();
    for (i, asked) in searches().iter().enumerate() {
        let neighbour = Ask {
            sampling: sampled.clone(),
            stop_tokens: Vec::new(),
            ..ask(&[i as u32, 2, 3], 5 + i)
        };
        neighbours.push(engine.submit(neighbour).expect("taken"));
        streams.push(submit(&engine, asked));
    }
    let answers = streams.into_iter().map(|stream| collect(stream).0).collect();
    for (i, mut neighbour) in neighbours.into_iter().enumerate() {
        let mut n = 0;
        while let Some(event) = neighbour.blocking_recv() {
            n += event.tokens.len();
        }
        assert_eq!(n, 5 + i, "neighbour {i}");
    }
    (answers, end(&engine))
}

/// The answers to each search alone.
fn alone() -> Vec<Vec<Beam>> {
    let engine = Engine::spawn(FakeExecutor::new(200, 4), EngineConfig::default());
    let answers = searches().iter().map(|asked| collect(submit(&engine, asked)).0).collect();
    end(&engine);
    answers
}

#[test]
fn the_answers_are_those_of_the_definition() {
    for (i, (asked, found)) in searches().iter().zip(alone()).enumerate() {
        assert_close(&found, &asked.expected(|_, _| false), &format!("search {i}"));
    }
}

#[test]
fn neighbours_chunks_memory_and_policies_change_no_bit_of_an_answer() {
    let expected = alone();
    let plain = Choices::default;
    let small = |choices: Choices| with(Choices { max_batch_tokens: 5, ..choices });
    let uncached = Choices { prefix_cache: false, ..plain() };
    let swap = Choices { preemption: PreemptionMode::Swap, ..plain() };
    let mut totals = EngineMetrics::default();
    for (what, n_blocks, n_host, config) in [
        ("in a batch", 400, 0, EngineConfig::default()),
        ("without a prefix cache", 400, 0, with(uncached.clone())),
        ("in chunks", 400, 0, small(Choices { max_chunk_tokens: Some(3), ..plain() })),
        ("in two places", 400, 0, with(Choices { max_running: 2, ..plain() })),
        ("in one place", 400, 0, with(Choices { max_running: 1, ..uncached.clone() })),
        ("in little memory", 14, 0, EngineConfig::default()),
        ("in little memory without a cache", 14, 0, with(uncached)),
        ("swapping", 14, 40, with(swap.clone())),
        ("swapping in small steps", 12, 9, small(swap)),
        (
            "longest prefix first",
            30,
            0,
            with(Choices { policy: PolicyKind::LongestPrefix, ..plain() }),
        ),
        ("fairly", 30, 0, with(Choices { policy: PolicyKind::Fair, ..plain() })),
        ("urgently", 14, 9, with(Choices { policy: PolicyKind::Sla, ..plain() })),
        ("in static batches", 30, 0, with(Choices { batching: Batching::Static, ..plain() })),
        (
            "in contiguous blocks",
            64,
            0,
            EngineConfig {
                max_context_tokens: 64,
                ..with(Choices { kv_allocation: KvAllocation::Contiguous, ..plain() })
            },
        ),
        (
            "beside drafts",
            60,
            0,
            EngineConfig {
                spec: SpecConfig {
                    method: SpecMethod::Suffix,
                    is_forced: true,
                    ..SpecConfig::default()
                },
                ..EngineConfig::default()
            },
        ),
    ] {
        let executor = FakeExecutor::new(n_blocks, 4).with_host_blocks(n_host);
        let executor = executor.with_slow_transfers(3);
        let (found, metrics) = together(executor, config);
        assert_eq!(found, expected, "{what}");
        totals.n_preemptions += metrics.n_preemptions;
        totals.swapped_in_blocks += metrics.swapped_in_blocks;
        totals.copied_blocks += metrics.copied_blocks;
    }
    assert!(totals.n_preemptions > 20 && totals.copied_blocks > 100, "{totals:?}");
    // Little of it depends on how fast requests come.
    assert!(totals.swapped_in_blocks > 0, "{totals:?}");
}

#[test]
fn in_a_hundred_random_worlds_the_answers_are_the_same() {
    let expected = alone();
    let (mut n_preemptions, mut n_swapped) = (0, 0);
    for seed in 0..100 {
        let rng = Philox::new(seed, 0);
        let mut n_drawn = 0;
        let mut below = |n: usize| {
            n_drawn += 1;
            (rng.uniform(n_drawn) * n as f64) as usize
        };
        let block_size = 1 + below(5);
        // The longest sequence alone just fits.
        let n_blocks = (48_usize.div_ceil(block_size) + 1 + below(12)) as u32;
        let n_host_blocks = [0, 5, 60][below(3)];
        let choices = Choices {
            policy: PolicyKind::ALL[below(PolicyKind::ALL.len())],
            preemption: PreemptionMode::ALL[below(PreemptionMode::ALL.len())],
            prefix_cache: below(2) == 0,
            max_running: 1 + below(9),
            max_batch_tokens: 1 + below(20),
            max_chunk_tokens: Some(1 + below(9)),
            ..Choices::default()
        };
        let executor = FakeExecutor::new(n_blocks, block_size).with_host_blocks(n_host_blocks);
        let (found, metrics) =
            together(executor.with_slow_transfers(below(6)), with(choices.clone()));
        assert_eq!(found, expected, "world {seed}: {n_blocks} of {block_size}, {choices:?}");
        n_preemptions += metrics.n_preemptions;
        n_swapped += metrics.swapped_in_blocks;
    }
    assert!(n_preemptions > 300 && n_swapped > 10, "{n_preemptions}, {n_swapped}");
}

#[test]
fn a_step_of_a_search_is_one_row_for_each_beam() {
    let executor = FakeExecutor::new(200, 4);
    let log = executor.log();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let mut asked = Asked { ask: ask(&[1, 2, 3, 4, 5, 6], 12), params: BeamParams::of_width(4) };
    asked.ask.stop_tokens.clear();
    let began = Instant::now();
    let (answers, usage) = collect(submit(&engine, &asked));
    assert_eq!(answers.len(), 4);
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (6, 4 * 12));
    let latencies = engine.metrics().latencies;
    // The report of the last token is the end of the search, which no chart has.
    assert_eq!((latencies.ttft.count(), latencies.tpot.count()), (1, 10));
    assert!(latencies.ttft.sum() + latencies.tpot.sum() <= began.elapsed(), "{latencies:?}");
    let plans = log.plans.lock().unwrap();
    let computed: Vec<usize> = plans.iter().map(|plan| plan.tokens.len()).collect();
    let mut expected = vec![4; 12];
    expected[0] = 6;
    assert_eq!(computed, expected, "the prompt once, then no token twice");
    drop(plans);
    end(&engine);
}

#[test]
fn one_beam_is_greedy_decoding() {
    let engine = Engine::spawn(FakeExecutor::new(200, 4), EngineConfig::default());
    for asked in searches() {
        let params =
            BeamParams { early_stopping: EarlyStopping::Always, ..BeamParams::of_width(1) };
        // Of two candidates one may stop the answer without being the likeliest.
        let ask = Ask { stop_tokens: Vec::new(), ..asked.ask.clone() };
        let ask = Ask { sampling: SamplingParams::greedy(), ..ask };
        let (answers, _) = collect(submit(&engine, &Asked { ask: ask.clone(), params }));
        let mut greedy = engine.submit(ask).expect("taken");
        let mut tokens = Vec::new();
        while let Some(event) = greedy.blocking_recv() {
            tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
        }
        assert_eq!(answers[0].tokens, tokens);
    }
    end(&engine);
}

/// Token `i` of an answer is `i` modulo 3, and differs from the one before. Nothing may follow `end`.
#[derive(Clone, Debug)]
struct Comb {
    tokens: Vec<TokenId>,
    end: usize,
    panics: bool,
}

impl Comb {
    fn allows(&self, token: TokenId) -> bool {
        let n = self.tokens.len();
        n < self.end && token.0 as usize % 3 == n % 3 && self.tokens.last() != Some(&token)
    }
}

impl Rule for Comb {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

impl RuleState for Comb {
    fn allow(&mut self, allowed: &mut TokenSet) {
        (0..VOCAB as u32)
            .map(TokenId)
            .filter(|&it| self.allows(it))
            .for_each(|it| allowed.insert(it));
    }

    fn accept(&mut self, token: TokenId) -> bool {
        assert!(!self.panics || self.tokens.len() < 2, "as the test asked");
        let is_allowed = self.allows(token);
        self.tokens.push(token);
        is_allowed
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        Some(format!("the comb has {} teeth", self.end))
    }

    fn fork(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

fn ruled(end: usize, panics: bool) -> Ask {
    let rule = Comb { tokens: Vec::new(), end, panics };
    Ask {
        stop_tokens: Vec::new(),
        constraint: Some(Constraint(Arc::new(rule))),
        ..ask(&[5, 6, 7], 9)
    }
}

#[test]
fn each_beam_obeys_the_rule_from_where_it_is() {
    for (n_blocks, max_running) in [(200, 64), (7, 64), (200, 2)] {
        let config = with(Choices { max_running, ..Choices::default() });
        let engine = Engine::spawn(FakeExecutor::new(n_blocks, 4), config);
        for width in 1..=5 {
            let asked = Asked { ask: ruled(99, false), params: BeamParams::of_width(width) };
            let (found, _) = collect(submit(&engine, &asked));
            let expected = asked.expected(|tokens, token| {
                !Comb { tokens: tokens.to_vec(), end: 99, panics: false }.allows(token)
            });
            assert_close(&found, &expected, &format!("{width} beams in {n_blocks} blocks"));
        }
        end(&engine);
    }
}

fn failure(mut stream: BeamStream) -> (Vec<Beam>, Option<FinishReason>, Option<Fault>) {
    while let Some(event) = stream.blocking_recv() {
        if let BeamEvent::Ended { answers, failure, fault, .. } = event {
            return (answers, failure, fault);
        }
    }
    panic!("the stream broke off without an end");
}

#[test]
fn a_search_that_fails_says_why_and_leaves_nothing_behind() {
    let executor = FakeExecutor::new(60, 4);
    let log = executor.log();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let params = BeamParams::of_width(3);
    let run = |ask| failure(engine.submit_beams(ask, params).expect("taken"));
    let (answers, how, fault) = run(ruled(2, false));
    assert_eq!((answers, how), (Vec::new(), Some(FinishReason::Error)));
    assert_eq!(fault, Some(Fault::Stuck("the comb has 2 teeth".to_owned())));
    let (_, how, fault) = run(ruled(99, true));
    assert_eq!(how, Some(FinishReason::Error));
    assert!(
        matches!(&fault, Some(Fault::Panicked(it)) if it.message.contains("asked")),
        "{fault:?}"
    );
    for token in [FAILS_ALONE, FAILS_STEP] {
        let (answers, how, _) = run(ask(&[1, token.0], 8));
        assert_eq!((answers, how), (Vec::new(), Some(FinishReason::Error)));
    }
    let (answers, _) = collect(submit(&engine, &Asked { ask: ask(&[1, 2], 8), params }));
    assert_eq!(answers.len(), 3, "the engine goes on");
    end(&engine);
    let mut finished = log.finished.lock().unwrap().clone();
    finished.sort();
    finished.dedup();
    assert_eq!(finished.len(), log.finished.lock().unwrap().len(), "each beam ends once");
}

#[test]
fn an_engine_that_starts_anew_has_no_beams_of_before() {
    let (executor, keeper) = FakeExecutor::new(60, 4).gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let params = BeamParams::of_width(3);
    let before = engine.submit_beams(ask(&[1, 2], 30), params).expect("taken");
    for _ in 0..3 {
        keeper.wait();
        keeper.open();
    }
    let panics = engine.submit_beams(ask(&[1, PANICS.0], 8), params).expect("taken");
    drop(keeper);
    for stream in [before, panics] {
        let (_, how, fault) = failure(stream);
        assert_eq!(how, Some(FinishReason::Error));
        assert!(matches!(fault, Some(Fault::Panicked(_))), "{fault:?}");
    }
    let asked = Asked { ask: ask(&[1, 2], 8), params };
    let (found, _) = collect(submit(&engine, &asked));
    assert_close(&found, &asked.expected(|_, _| false), "after the restart");
    assert_eq!(end(&engine).n_restarts, 1);
}

#[test]
fn a_stream_that_is_dropped_takes_all_beams_with_it() {
    for n_steps in [0, 1, 2, 5] {
        let (executor, keeper) = FakeExecutor::new(60, 4).gated();
        let log = executor.log();
        let engine = Engine::spawn(executor, EngineConfig::default());
        let params = BeamParams::of_width(4);
        let stream = engine.submit_beams(ask(&[1, 2, 3], 30), params).expect("taken");
        for _ in 0..n_steps {
            keeper.wait();
            keeper.open();
        }
        keeper.wait();
        drop(stream);
        keeper.open();
        drop(keeper);
        let metrics = end(&engine);
        assert!(metrics.n_steps <= n_steps as u64 + 2, "{metrics:?}");
        let plans = log.plans.lock().unwrap();
        let mut beams: Vec<_> =
            plans.iter().flat_map(|plan| &plan.sequences).map(|it| it.id).collect();
        beams.sort();
        beams.dedup();
        let finished = log.finished.lock().unwrap();
        assert!(beams.iter().all(|beam| finished.contains(beam)), "{beams:?} {finished:?}");
    }
}

#[test]
fn a_shutdown_ends_a_search_now_or_when_it_is_done() {
    let (executor, keeper) = FakeExecutor::new(60, 4).gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let params = BeamParams::of_width(4);
    let stream = engine.submit_beams(ask(&[1, 2, 3], 30), params).expect("taken");
    for _ in 0..3 {
        keeper.wait();
        keeper.open();
    }
    engine.shutdown(false);
    drop(keeper);
    assert_eq!(failure(stream).1, Some(FinishReason::Aborted));
    engine.join();
    assert_eq!(engine.metrics().n_free_blocks, 60);

    let engine = Engine::spawn(FakeExecutor::new(60, 4), EngineConfig::default());
    let stream = engine.submit_beams(ask(&[1, 2, 3], 30), params).expect("taken");
    engine.shutdown(true);
    assert_eq!(collect(stream).0.len(), 4);
    engine.join();
}

#[test]
fn the_context_ends_an_answer() {
    let config = EngineConfig { max_context_tokens: 12, ..EngineConfig::default() };
    let engine = Engine::spawn(FakeExecutor::new(60, 4), config);
    let ask = Ask { stop_tokens: Vec::new(), ..ask(&[1, 2, 3, 4, 5, 6, 7], usize::MAX) };
    let (answers, _) = collect(engine.submit_beams(ask, BeamParams::of_width(3)).expect("taken"));
    let lengths: Vec<usize> = answers.iter().map(|answer| answer.tokens.len()).collect();
    assert_eq!(lengths, [5; 3]);
    assert!(answers.iter().all(|answer| answer.finish == FinishReason::Length));
    end(&engine);
}

#[test]
fn reports_have_the_probability_of_each_token_and_the_likeliest_ones() {
    let engine = Engine::spawn(FakeExecutor::new(60, 4), EngineConfig::default());
    let mut asked = Asked { ask: ask(&[1, 2, 3], 6), params: BeamParams::of_width(2) };
    asked.ask.sampling.logprobs = Some(3);
    for beam in collect(submit(&engine, &asked)).0 {
        for (i, one) in beam.logprobs.iter().enumerate() {
            let all: Vec<TokenId> =
                asked.ask.prompt.iter().chain(&beam.tokens[..i]).copied().collect();
            let expected = log_softmax(&logits_after(&all));
            let is_close = |(token, logprob): (TokenId, f32)| {
                (expected[token.0 as usize] - f64::from(logprob)).abs() < 1e-5
            };
            assert!(is_close((one.token, one.logprob)));
            assert_eq!(one.top.len(), 3);
            assert!(one.top.iter().all(|&top| is_close(top)));
            assert!(one.top.is_sorted_by(|a, b| a.1 >= b.1));
        }
    }
    end(&engine);
}

#[test]
fn what_a_search_does_not_do_is_refused_by_name() {
    let engine = Engine::spawn(FakeExecutor::new(60, 4), EngineConfig::default());
    let plain = SamplingParams::default;
    for (param, sampling) in [
        ("temperature", SamplingParams { temperature: 0.7, ..plain() }),
        ("top_k", SamplingParams { top_k: 5, ..plain() }),
        ("top_p", SamplingParams { top_p: 0.9, ..plain() }),
        ("min_p", SamplingParams { min_p: 0.1, ..plain() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(TokenId(1), 1.0)], ..plain() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 1.1, ..plain() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: 0.1, ..plain() }),
        ("presence_penalty", SamplingParams { presence_penalty: 0.1, ..plain() }),
        ("bad_words", SamplingParams { bad_words: vec![vec![TokenId(1)]], ..plain() }),
    ] {
        let ask = Ask { sampling, ..ask(&[1], 4) };
        match engine.submit_beams(ask, BeamParams::of_width(2)).map(|_| ()) {
            Err(SubmitError::Invalid(error)) => assert_eq!(error.param, param),
            other => panic!("{param}: {other:?}"),
        }
    }
    let wide = engine.submit_beams(ask(&[1], 4), BeamParams::of_width(33)).map(|_| ());
    assert!(matches!(wide, Err(SubmitError::Invalid(error)) if error.param == "beam_width"));
    end(&engine);
}
