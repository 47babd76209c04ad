//! The chunks of a prompt beside a stream: small until the prices of larger ones are known.

use crate::fake::FakeExecutor;
use pelton_base::{Ask, SamplingParams, ServiceParams, TokenId};
use pelton_engine::{Engine, EngineConfig, EngineHandle, TokenStream};

fn submit(engine: &EngineHandle, prompt: &[u32], max_tokens: usize) -> TokenStream {
    let ask = Ask {
        prompt: prompt.iter().map(|&token| TokenId(token)).collect(),
        sampling: SamplingParams::greedy(),
        choice: 0,
        max_tokens,
        stop_tokens: Vec::new(),
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: None,
    };
    engine.submit(ask).expect("the engine takes it")
}

fn tokens(mut stream: TokenStream) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_recv() {
        tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
    }
    tokens
}

#[test]
fn a_prompt_beside_a_stream_begins_in_small_chunks_and_one_alone_does_not() {
    let executor = FakeExecutor::new(1000, 4);
    let log = executor.log();
    let (executor, gate) = executor.gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let prompt: Vec<u32> = (0..400).map(|i| i % 37).collect();
    let other = [&[9], &prompt[..]].concat();
    let stream = submit(&engine, &prompt, 300);
    gate.wait();
    let beside = submit(&engine, &other, 3);
    drop(gate);
    let answers = [tokens(beside), tokens(stream)];
    let plans = log.plans.lock().unwrap().clone();
    assert_eq!(plans[0].tokens.len(), 400, "no stream is kept waiting");
    let mut n_tried = 0;
    let mut chunks = Vec::new();
    for (step, plan) in plans.iter().enumerate() {
        let chunk = plan.sequences.iter().find(|share| share.id.0 == 1 && share.n_generated == 0);
        if let Some(share) = chunk {
            assert!(share.tokens.len() <= (2 * n_tried).max(32), "{chunks:?} after {n_tried}");
            chunks.push(share.tokens.len());
        }
        // Nothing is learned from the first step.
        n_tried = if step == 0 { 0 } else { n_tried.max(plan.tokens.len()) };
    }
    assert_eq!((chunks[0], chunks.iter().sum::<usize>()), (32, 401), "{chunks:?}");
    assert!(chunks.len() >= 4, "{chunks:?}");

    let engine = Engine::spawn(FakeExecutor::new(1000, 4), EngineConfig::default());
    let alone = tokens(submit(&engine, &other, 3));
    assert_eq!(answers, [alone, tokens(submit(&engine, &prompt, 300))]);
}
