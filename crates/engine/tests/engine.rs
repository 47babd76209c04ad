//! The loop with a fake executor: equality laws, failures, aborts, shutdown.

use crate::fake::{FAILS_ALONE, FAILS_STEP, FakeExecutor, PANICS, VOCAB};
use pelton_base::{Ask, FinishReason, SamplingParams, ServiceParams, TenantId, TokenId, Usage};
use pelton_engine::{
    Engine, EngineConfig, EngineHandle, EngineMetrics, Latencies, Limits, MarkKind, SampledToken,
    SubmitError, TokenStream,
};
use pelton_sched::{Choices, PreemptionMode, Refusal, TenantConfig};
use std::time::{Duration, Instant};

fn request(prompt: &[u32], max_tokens: usize) -> Ask {
    Ask {
        prompt: prompt.iter().map(|&token| TokenId(token)).collect(),
        sampling: SamplingParams { logprobs: Some(2), ..SamplingParams::default() },
        choice: 0,
        max_tokens,
        stop_tokens: Vec::new(),
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: None,
    }
}

/// Two dozen requests of all sorts: long and short, greedy and sampled, stopped early or not.
fn requests() -> Vec<Ask> {
    (0..24_u32)
        .map(|i| Ask {
            prompt: (0..1 + i * 5 % 23).map(|j| TokenId((i * 31 + j * 7) % 37)).collect(),
            sampling: SamplingParams {
                temperature: [0.0, 1.0, 0.7][i as usize % 3],
                seed: u64::from(i / 2),
                frequency_penalty: if i % 4 == 1 { 0.5 } else { 0.0 },
                ..SamplingParams::default()
            },
            choice: i % 2,
            max_tokens: 3 + i as usize * 3 % 29,
            stop_tokens: if i % 5 == 0 { vec![TokenId(i)] } else { Vec::new() },
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        })
        .collect()
}

type Answer = (Vec<SampledToken>, FinishReason, Usage);

fn collect(mut stream: TokenStream) -> Answer {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_recv() {
        tokens.extend(event.tokens);
        if let Some(reason) = event.finish {
            // Only the number of cached tokens depends on the requests before.
            let usage = Usage { cached_tokens: 0, ..event.usage };
            assert!(stream.blocking_recv().is_none(), "the end is the last event");
            return (tokens, reason, usage);
        }
    }
    panic!("the stream broke off without an end");
}

fn with(choices: Choices) -> EngineConfig {
    EngineConfig { choices, ..EngineConfig::default() }
}

fn running_at_once(max_running: usize) -> EngineConfig {
    with(Choices { max_running, ..Choices::default() })
}

fn submit(engine: &EngineHandle, request: Ask) -> TokenStream {
    engine.submit(request).expect("the engine takes it")
}

fn end(engine: &EngineHandle) -> EngineMetrics {
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "{metrics:?}");
    assert_eq!(metrics.n_finished, metrics.n_submitted, "{metrics:?}");
    assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0));
    metrics
}

/// All answers of a world where every request is submitted at once.
fn together(executor: FakeExecutor, config: EngineConfig) -> (Vec<Answer>, EngineMetrics) {
    let (executor, gate) = executor.gated();
    let engine = Engine::spawn(executor, config);
    let streams: Vec<TokenStream> =
        requests().into_iter().map(|request| submit(&engine, request)).collect();
    drop(gate);
    let answers = streams.into_iter().map(collect).collect();
    (answers, end(&engine))
}

fn alone() -> Vec<Answer> {
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    let answers = requests().into_iter().map(|r| collect(submit(&engine, r))).collect();
    assert_eq!(end(&engine).n_preemptions, 0);
    answers
}

#[test]
fn a_batch_answers_like_each_of_its_requests_alone() {
    let (answers, metrics) = together(FakeExecutor::new(1000, 4), EngineConfig::default());
    let n_tokens: usize = answers.iter().map(|(tokens, ..)| tokens.len()).sum();
    assert_eq!(metrics.generated_tokens, n_tokens as u64);
    assert!(metrics.n_steps < n_tokens as u64 / 4, "they really shared steps: {metrics:?}");
    assert_eq!(answers, alone());
    let n_prompt: usize = requests().iter().map(|request| request.prompt.len()).sum();
    assert_eq!(metrics.prompt_tokens, n_prompt as u64);
}

#[test]
fn a_chunked_prompt_answers_like_a_whole_one() {
    for (max_batch_tokens, max_chunk_tokens) in [(1, 1), (3, 2), (16, 5)] {
        let config = with(Choices {
            max_batch_tokens,
            max_chunk_tokens: Some(max_chunk_tokens),
            ..Choices::default()
        });
        assert_eq!(together(FakeExecutor::new(1000, 4), config).0, alone());
    }
}

#[test]
fn a_preempted_request_answers_like_one_that_was_not() {
    let config = EngineConfig { max_context_tokens: 64, ..Default::default() };
    let (answers, metrics) = together(FakeExecutor::new(22, 3), config);
    assert!(metrics.n_preemptions > 10, "{metrics:?}");
    assert_eq!(answers, alone());
}

#[test]
fn a_request_that_was_swapped_answers_like_one_that_was_not() {
    let choices = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
    let config = EngineConfig { max_context_tokens: 64, choices, ..Default::default() };
    let (answers, metrics) = together(FakeExecutor::new(22, 3).with_host_blocks(40), config);
    assert!(metrics.n_preemptions > 10, "{metrics:?}");
    assert_eq!(answers, alone());
}

#[test]
fn transfers_that_take_many_steps_change_no_answer() {
    let choices = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
    let config = EngineConfig { max_context_tokens: 64, choices, ..Default::default() };
    for n_steps in [1, 4, 9] {
        let executor = FakeExecutor::new(22, 3).with_host_blocks(40).with_slow_transfers(n_steps);
        let log = executor.log();
        let (answers, metrics) = together(executor, config.clone());
        assert!(metrics.swapped_in_blocks > 0, "{metrics:?}");
        assert_eq!(answers, alone(), "{n_steps} steps");
        // Most steps compute while KV is on its way.
        let plans = log.plans.lock().unwrap();
        let waits = plans.iter().filter(|plan| plan.is_empty()).count();
        assert!(waits < plans.len() / 2, "{waits} of {} plans only wait", plans.len());
    }
}

#[test]
fn a_failed_step_loses_no_transfer() {
    let choices = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
    let config = EngineConfig { max_context_tokens: 64, choices, ..Default::default() };
    for n_steps in [0, 2] {
        let executor = FakeExecutor::new(22, 3).with_host_blocks(40).with_slow_transfers(n_steps);
        let (executor, gate) = executor.gated();
        let engine = Engine::spawn(executor, config.clone());
        let mut requests = requests();
        for request in requests.iter_mut().skip(20).step_by(2) {
            request.prompt.push(FAILS_STEP);
        }
        let streams: Vec<TokenStream> = requests.into_iter().map(|r| submit(&engine, r)).collect();
        drop(gate);
        for stream in streams {
            collect(stream);
        }
        let metrics = end(&engine);
        assert!(metrics.n_failed_steps > 0 && metrics.swapped_out_blocks > 0, "{metrics:?}");
    }
}

#[test]
fn dropping_a_stream_aborts_its_request_within_one_step_and_frees_its_blocks() {
    let (executor, gate) = FakeExecutor::new(16, 4).gated();
    let log = executor.log();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let mut dropped = submit(&engine, request(&[1, 2, 3], 50));
    let id = dropped.id();
    gate.wait();
    gate.open();
    assert_eq!(dropped.blocking_recv().expect("an event").tokens.len(), 1);
    gate.wait(); // The second step is under way...
    drop(dropped); // ...when the client leaves.
    let kept = submit(&engine, request(&[4, 5], 3));
    gate.open();
    gate.wait(); // The third step is planned without it.
    assert_eq!(log.n_plans_with(id), 2);
    assert_eq!(*log.finished.lock().unwrap(), [id]);
    assert_eq!(engine.metrics().n_running, 1);
    assert_eq!(engine.metrics().n_free_blocks, 15, "only the one block of the request that stayed");
    drop(gate);
    assert_eq!(collect(kept).1, FinishReason::Length);
    end(&engine);
    assert_eq!(log.n_plans_with(id), 2);
}

#[test]
fn a_request_dropped_in_the_mailbox_is_never_computed() {
    let (executor, gate) = FakeExecutor::new(16, 4).gated();
    let log = executor.log();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let first = submit(&engine, request(&[1], 2));
    gate.wait();
    let never = submit(&engine, request(&[2], 2));
    let id = never.id();
    drop(never);
    drop(gate);
    collect(first);
    end(&engine);
    assert_eq!(log.n_plans_with(id), 0);
}

#[test]
fn a_failed_step_ends_exactly_the_requests_in_it() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let engine = Engine::spawn(executor, running_at_once(3));
    // The first is alone at the gate; the others then enter one step together.
    let first = submit(&engine, request(&[1], 1));
    gate.wait();
    let failing = submit(&engine, request(&[2, FAILS_STEP.0], 9));
    let with_it = submit(&engine, request(&[3], 9));
    let also_with_it = submit(&engine, request(&[4], 9));
    let after_it = submit(&engine, request(&[5], 9));
    drop(gate);
    assert_eq!(collect(first).1, FinishReason::Length);
    for stream in [failing, with_it, also_with_it] {
        let (tokens, reason, usage) = collect(stream);
        assert_eq!((tokens.len(), reason, usage.completion_tokens), (0, FinishReason::Error, 0));
    }
    assert_eq!(collect(after_it).1, FinishReason::Length);
    let metrics = end(&engine);
    assert_eq!(metrics.n_failed_steps, 1);
}

#[test]
fn a_failing_request_leaves_its_neighbours_as_they_would_be_alone() {
    let neighbours = [request(&[1, 2, 3], 9), request(&[4], 9)];
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    let expected: Vec<Answer> =
        neighbours.iter().map(|request| collect(submit(&engine, request.clone()))).collect();
    let streams = neighbours.map(|request| submit(&engine, request));
    let failing = submit(&engine, request(&[FAILS_ALONE.0], 9));
    assert_eq!(collect(failing).1, FinishReason::Error);
    assert_eq!(streams.map(collect).to_vec(), expected);
    assert_eq!(end(&engine).n_failed_steps, 0);
}

#[test]
fn a_panic_ends_the_requests_at_hand_and_the_engine_starts_anew() {
    let asked = || request(&[1, 2, 3], 9);
    let engine = Engine::spawn(FakeExecutor::new(64, 4), running_at_once(2));
    let expected = collect(submit(&engine, asked()));
    end(&engine);
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let engine = Engine::spawn(executor, running_at_once(2));
    let running = submit(&engine, request(&[1], 9));
    gate.wait();
    let panicking = submit(&engine, request(&[PANICS.0], 9));
    let waiting = submit(&engine, request(&[2], 9));
    gate.open();
    gate.wait();
    let in_the_mailbox = submit(&engine, asked());
    drop(gate);
    for mut stream in [running, panicking, waiting] {
        let last = std::iter::from_fn(|| stream.blocking_recv()).last().expect("an end");
        assert_eq!(last.finish, Some(FinishReason::Error));
        let panicked = last.fault.expect("its reason").to_string();
        assert!(
            panicked.contains("a step of the engine panicked: as the test asked"),
            "{panicked}"
        );
    }
    assert_eq!(collect(in_the_mailbox), expected, "requests in the mailbox are served");
    assert_eq!(collect(submit(&engine, asked())), expected);
    assert!(!engine.has_failed());
    let metrics = end(&engine);
    assert_eq!((metrics.n_restarts, metrics.n_panicked), (1, 0));
}

#[test]
fn a_second_panic_fails_the_engine() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let engine = Engine::spawn(executor, running_at_once(2));
    let first = submit(&engine, request(&[PANICS.0], 9));
    gate.wait();
    gate.open();
    assert_eq!(collect(first).1, FinishReason::Error);
    let second = submit(&engine, request(&[PANICS.0], 9));
    gate.wait();
    let in_the_mailbox = submit(&engine, request(&[2], 9));
    drop(gate);
    for stream in [second, in_the_mailbox] {
        assert_eq!(collect(stream).1, FinishReason::Error);
    }
    engine.join();
    assert!(engine.has_failed());
    assert_eq!(engine.submit(request(&[1], 1)).unwrap_err(), SubmitError::Failed);
    let metrics = engine.metrics();
    assert_eq!((metrics.n_restarts, metrics.n_submitted, metrics.n_finished), (1, 2, 2));
    assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0));
}

#[test]
fn a_drain_finishes_what_was_taken_and_takes_nothing_more() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let running = submit(&engine, request(&[1], 5));
    gate.wait();
    let in_the_mailbox = submit(&engine, request(&[2], 5));
    engine.shutdown(true);
    assert_eq!(engine.submit(request(&[3], 5)).unwrap_err(), SubmitError::Stopped);
    drop(gate);
    for stream in [running, in_the_mailbox] {
        let (tokens, reason, _) = collect(stream);
        assert_eq!((tokens.len(), reason), (5, FinishReason::Length));
    }
    end(&engine);
}

#[test]
fn an_abort_ends_everything_at_once_even_during_a_drain() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let running = submit(&engine, request(&[1], 200));
    gate.wait();
    let in_the_mailbox = submit(&engine, request(&[2], 200));
    engine.shutdown(true);
    engine.shutdown(false);
    engine.shutdown(true); // Does not take the abort back.
    drop(gate);
    let (tokens, reason, usage) = collect(running);
    assert_eq!((tokens.len(), reason), (1, FinishReason::Aborted), "one step was under way");
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (1, 1));
    assert_eq!(collect(in_the_mailbox).1, FinishReason::Aborted);
    end(&engine);
}

#[test]
fn the_last_handle_to_go_lets_the_streams_finish() {
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    let stream = submit(&engine.clone(), request(&[1, 2], 7));
    drop(engine);
    assert_eq!(collect(stream).0.len(), 7);
}

#[test]
fn a_full_engine_refuses_and_takes_again_when_someone_leaves() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let config = EngineConfig { max_waiting_requests: 2, ..running_at_once(1) };
    let engine = Engine::spawn(executor, config);
    let running = submit(&engine, request(&[1], 2));
    gate.wait();
    let waiting = [submit(&engine, request(&[2], 1)), submit(&engine, request(&[3], 1))];
    assert_eq!(engine.submit(request(&[4], 1)).unwrap_err(), SubmitError::Full { limit: 2 });
    gate.open();
    gate.wait(); // They have moved from the mailbox to the scheduler, and wait still.
    assert_eq!(engine.metrics().n_waiting, 2);
    assert_eq!(engine.submit(request(&[4], 1)).unwrap_err(), SubmitError::Full { limit: 2 });
    let [leaves, stays] = waiting;
    drop(leaves);
    gate.open();
    gate.wait();
    let taken = submit(&engine, request(&[4], 1));
    drop(gate);
    for stream in [running, stays, taken] {
        assert_eq!(collect(stream).1, FinishReason::Length);
    }
    end(&engine);
}

#[test]
fn what_can_never_run_is_refused_by_name() {
    let config = EngineConfig { max_context_tokens: 8, ..Default::default() };
    let engine = Engine::spawn(FakeExecutor::new(64, 4), config);
    let refused = |request| engine.submit(request).unwrap_err();
    assert_eq!(refused(request(&[], 1)), SubmitError::EmptyPrompt);
    assert_eq!(refused(request(&[1], 0)), SubmitError::NothingToGenerate);
    assert_eq!(refused(request(&[1; 8], 1)), SubmitError::TooLong { n_prompt: 8, limit: 7 });
    let unknown = SubmitError::UnknownToken { token: TokenId(40), position: 1, vocab_size: VOCAB };
    assert_eq!(refused(request(&[1, 40], 1)), unknown);
    let mut hot = request(&[1], 1);
    hot.sampling.temperature = f32::NAN;
    assert!(refused(hot).to_string().contains("temperature"));
    let mut long = request(&[1], 4);
    long.sampling.min_tokens = 5;
    assert!(refused(long).to_string().contains("`min_tokens` must be at most `max_tokens`"));
    // The longest prompt that fits yields one token and ends at the context.
    let (tokens, reason, _) = collect(submit(&engine, request(&[1; 7], 99)));
    assert_eq!((tokens.len(), reason), (1, FinishReason::Length));
    end(&engine);
}

#[test]
fn log_probabilities_travel_with_their_tokens() {
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    let (tokens, ..) = collect(submit(&engine, request(&[1, 2], 6)));
    for sampled in tokens {
        let logprobs = sampled.logprobs.expect("asked for");
        assert_eq!(logprobs.token, sampled.token);
        assert_eq!(logprobs.top.len(), 2);
    }
    let mut silent = request(&[1, 2], 6);
    silent.sampling.logprobs = None;
    assert!(collect(submit(&engine, silent)).0.iter().all(|sampled| sampled.logprobs.is_none()));
    end(&engine);
}

#[tokio::test]
async fn streams_can_be_awaited() {
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    let mut streams: Vec<TokenStream> =
        requests().into_iter().map(|request| submit(&engine, request)).collect();
    let expected = tokio::task::spawn_blocking(alone).await.expect("no panic");
    for (stream, (expected, reason, _)) in streams.iter_mut().zip(expected) {
        let mut tokens = Vec::new();
        let mut finish = None;
        while let Some(event) = stream.recv().await {
            tokens.extend(event.tokens);
            finish = event.finish;
        }
        assert_eq!((tokens, finish.expect("an end")), (expected, reason));
    }
}

#[test]
fn a_tenant_with_too_many_waiting_is_refused_at_once_and_the_others_are_not() {
    let (executor, gate) = FakeExecutor::new(64, 4).gated();
    let tenant = |name: &str, max_waiting| TenantConfig {
        name: name.to_owned(),
        max_waiting,
        ..TenantConfig::default()
    };
    let tenants = vec![tenant("free", 2), tenant("paid", 9)];
    let config = with(Choices { tenants, max_running: 1, ..Choices::default() });
    let engine = Engine::spawn(executor, config);
    let of = |tenant| {
        let mut request = request(&[1, 2], 2);
        request.service.tenant = TenantId(tenant);
        request
    };
    let first = submit(&engine, of(1));
    gate.wait(); // It runs; whoever comes now stays in the mailbox.
    let mut taken = vec![first, submit(&engine, of(0)), submit(&engine, of(0))];
    let error = engine.submit(of(0)).unwrap_err();
    assert!(matches!(&error, SubmitError::Refused(Refusal::TenantQueueFull { tenant, .. })
        if tenant == "free"));
    assert!(error.retry_after().is_some() && error.to_string().contains("free"));
    taken.push(submit(&engine, of(1)));
    assert_eq!(engine.metrics().n_refused, 1);
    drop(gate);
    for stream in taken {
        assert_eq!(collect(stream).1, FinishReason::Length);
    }
    collect(submit(&engine, of(0)));
    assert_eq!(end(&engine).n_refused, 1);
}

#[test]
fn every_token_and_every_step_is_charted() {
    let config = running_at_once(3);
    let began = Instant::now();
    let (answers, metrics) = together(FakeExecutor::new(1000, 4), config);
    let Latencies { ttft, tpot, queue, step } = metrics.latencies;
    let n_tokens: usize = answers.iter().map(|(tokens, ..)| tokens.len()).sum();
    let n_answers = answers.len() as u64;
    assert_eq!((ttft.count(), queue.count()), (n_answers, n_answers));
    assert_eq!(tpot.count(), n_tokens as u64 - n_answers);
    assert_eq!(step.count(), metrics.n_steps);
    assert!(queue.sum() <= ttft.sum(), "a request waits before its first token: {metrics:?}");
    let all = began.elapsed();
    assert!(ttft.sum() + tpot.sum() <= all * answers.len() as u32, "{metrics:?}");
    assert!(tpot.sum() > Duration::ZERO, "{metrics:?}");
    assert_eq!(metrics.recent.ttft.n, n_answers);
    let parts = metrics.schedule_time + metrics.execute_time;
    assert!(parts > Duration::ZERO && parts <= metrics.step_time, "{metrics:?}");
    assert!(metrics.cost.is_known(), "{metrics:?}");
    assert_eq!(metrics.limits, Limits { batch_tokens: 512, running: 3 });
}

#[test]
fn a_failed_step_is_neither_priced_nor_charted() {
    let engine = Engine::spawn(FakeExecutor::new(64, 4), EngineConfig::default());
    assert_eq!(collect(submit(&engine, request(&[FAILS_STEP.0], 9))).1, FinishReason::Error);
    let metrics = end(&engine);
    assert_eq!((metrics.n_steps, metrics.latencies.step.count()), (1, 0));
    assert_eq!(metrics.latencies.ttft.count(), 0);
}

#[test]
fn a_stream_knows_the_steps_of_its_request() {
    let chunked = Choices { max_chunk_tokens: Some(4), ..Choices::default() };
    let engine = Engine::spawn(FakeExecutor::new(64, 4), with(chunked));
    let began = Instant::now();
    let mut stream = submit(&engine, request(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 5));
    while stream.blocking_recv().is_some() {}
    assert_eq!(stream.n_computed(), 8, "when the last step of the prompt began");
    let trace = stream.trace();
    let marks = trace.marks().iter();
    let seen: Vec<_> = marks.map(|mark| (mark.kind, mark.n_rows, mark.n_tokens)).collect();
    let prefill = [4, 4, 2].map(|n_rows| (MarkKind::Prefill, n_rows, u32::from(n_rows == 2)));
    assert_eq!(seen[..3], prefill);
    assert_eq!(seen[3..], [(MarkKind::Decode, 1, 1); 4]);
    for mark in trace.marks() {
        assert!(began <= mark.begin && mark.begin < mark.end, "each step took time: {mark:?}");
    }
    end(&engine);
}

#[test]
fn an_engine_that_is_driven_by_hand_says_when_it_has_ended() {
    let executor = FakeExecutor::new(64, 4);
    let (engine, mut manual) = Engine::manual(executor, EngineConfig::default(), Vec::new());
    let stream = engine.submit(request(&[1, 2, 3], 4)).expect("taken");
    assert!((0..20).all(|_| manual.turn()), "it waits for more");
    engine.shutdown(true);
    assert!((0..10).any(|_| !manual.turn()), "it has ended");
    assert_eq!(collect(stream).0.len(), 4);
}
