//! Requests that continue from the KV of another one.

use pelton_base::{Ask, RequestId, ServiceParams, TokenId};
use pelton_engine::{EngineConfig, TokenStream};
use pelton_model::Compute;
use pelton_sched::Choices;

use crate::worlds::*;

/// Each request comes a second time, and choices of one prompt continue from the KV of the first.
#[test]
fn what_is_cached_or_shared_answers_like_what_is_computed() {
    for format in ["Q8_0", "BF16"] {
        let (files, _folder) = open("qwen3", format);
        let plain = World::plain();
        let (alone, _) = answers(&files, Compute::Auto, &plain, requests(), false);
        for n_blocks in [400, 84] {
            let twice = requests().into_iter().chain(requests()).collect();
            let world = World { n_blocks, ..plain.clone() };
            let (again, metrics) = answers(&files, Compute::Auto, &world, twice, false);
            assert_eq!(again[..8], alone[..], "{format}, {n_blocks} blocks");
            assert_eq!(again[8..], alone[..], "{format}, {n_blocks} blocks, the second time");
            assert!(metrics.cached_prompt_tokens > 0, "{metrics:?}");
            assert!(n_blocks < 400 || metrics.copied_blocks > 0, "{metrics:?}");
        }
        // All choices of the fourth request, whose prompt does not end with a block.
        let choices = |fork_of: Option<RequestId>| {
            let service = ServiceParams { fork_of, ..ServiceParams::default() };
            let request = requests().swap_remove(4);
            (0..3).map(move |choice| Ask { choice, service, ..request.clone() }).collect()
        };
        let (apart, _) = answers(&files, Compute::Auto, &plain, choices(None), false);
        let fork = Some(RequestId(0));
        let (forked, metrics) = answers(&files, Compute::Auto, &plain, choices(fork), true);
        assert_eq!(forked, apart, "{format}");
        assert!(metrics.copied_blocks >= 2, "{metrics:?}");
    }
}

/// A request that continues an unfinished answer of another one, as beams do.
#[test]
fn a_fork_of_an_answer_answers_like_one_that_computes_it_all() {
    let (files, _folder) = open("qwen3", "Q8_0");
    let request = |prompt, max_tokens, fork_of| Ask {
        prompt,
        max_tokens,
        service: ServiceParams { fork_of, ..ServiceParams::default() },
        ..requests().swap_remove(4)
    };
    let choices = Choices { prefix_cache: false, ..Choices::default() };
    let uncached = EngineConfig { choices, ..Default::default() };
    for config in [EngineConfig::default(), uncached] {
        let world = World { config, ..World::plain() };
        let (engine, step) = start(&files, Compute::Auto, &world);
        let mut prompt: Vec<TokenId> = (1..20).map(TokenId).collect();
        let mut parent = engine.submit(request(prompt.clone(), 60, None)).expect("taken");
        for _ in 0..20 {
            step.send(()).expect("it runs");
            let event = parent.blocking_recv().expect("a token a step");
            prompt.extend(event.tokens.iter().map(|sampled| sampled.token));
        }
        // One token more than the answer, three fewer, and as many.
        let mut forks: Vec<Vec<TokenId>> = vec![prompt.clone(), prompt.clone(), prompt];
        forks[0].push(TokenId(9));
        forks[1].truncate(36);
        let asked = forks.into_iter().map(|prompt| request(prompt, 30, Some(parent.id())));
        let asked: Vec<Ask> = asked.collect();
        let submitted: Vec<TokenStream> =
            asked.iter().map(|fork| engine.submit(fork.clone()).expect("taken")).collect();
        drop(step);
        let forked: Vec<Answer> = submitted.into_iter().map(collect).collect();
        collect(parent);
        let metrics = stop(engine);
        assert!(metrics.cached_prompt_tokens >= 38 + 35 + 38, "{metrics:?}");
        assert!(metrics.copied_blocks >= 2, "{metrics:?}");
        let (alone, _) = answers(&files, Compute::Auto, &World::plain(), asked, false);
        assert_eq!(forked, alone);
    }
}
