//! Scores of prompts: each is that of the same token when it is generated after the tokens before it.

use std::sync::Arc;
use std::time::Duration;

use pelton_base::{Ask, Constraint, Rule, RuleState, SamplingParams, TokenId, TokenSet};
use pelton_engine::{EngineConfig, EngineMetrics, Extras, ScoredToken, SpecMethod, TokenStream};
use pelton_kernels::Kernels;
use pelton_model::{Compute, ModelFiles};
use pelton_sampling::TokenLogprobs;
use pelton_sched::{Choices, PreemptionMode};

use crate::few_blocks;
use crate::worlds::*;

/// The scores of a prompt, and the answer to it.
type Scored = (Vec<ScoredToken>, Answer);

/// Likeliest tokens in each place.
const N_TOP: usize = 3;

/// Allows these tokens, one after the other.
#[derive(Clone, Debug)]
struct Script(Arc<[TokenId]>, usize);

impl Rule for Script {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

impl RuleState for Script {
    fn allow(&mut self, allowed: &mut TokenSet) {
        self.0.get(self.1).into_iter().for_each(|&token| allowed.insert(token));
    }

    fn accept(&mut self, token: TokenId) -> bool {
        self.1 += 1;
        self.0.get(self.1 - 1) == Some(&token)
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        None
    }

    fn fork(&self) -> Box<dyn RuleState> {
        self.begin()
    }
}

/// The log probabilities of a prompt's tokens but the first, as an answer to the first.
fn generated(files: &ModelFiles, world: &World, prompt: &[TokenId]) -> Vec<TokenLogprobs> {
    let script = Script(prompt[1..].into(), 0);
    let ask = Ask {
        prompt: vec![prompt[0]],
        sampling: SamplingParams { logprobs: Some(N_TOP), ..SamplingParams::greedy() },
        max_tokens: prompt.len() - 1,
        constraint: Some(Constraint(Arc::new(script))),
        ..requests().swap_remove(0)
    };
    let (mut answers, _) = answers(files, Compute::Auto, world, vec![ask], false);
    answers.remove(0).0.into_iter().map(|token| token.logprobs.expect("asked for")).collect()
}

/// The scores of the prompt of a request, and its answer.
fn collect_scored(mut stream: TokenStream) -> Scored {
    let first = stream.blocking_recv().expect("an event");
    assert!(!first.tokens.is_empty() && first.finish.is_none(), "{first:?}");
    let (mut answer, scores) = (collect(stream), first.prompt);
    answer.0.splice(0..0, first.tokens);
    (scores, answer)
}

/// Every request is scored, between requests with the same prompts that are not and fill the cache.
fn scored(files: &ModelFiles, world: &World) -> (Vec<Scored>, Vec<Answer>, EngineMetrics) {
    let (engine, hold) = start(files, Compute::Auto, world);
    let extras = || Extras { prompt_logprobs: Some(N_TOP), ..Extras::default() };
    let (mut asked, mut plain) = (Vec::new(), Vec::new());
    for (i, ask) in requests().into_iter().enumerate() {
        plain.push(engine.submit(ask.clone()).expect("taken"));
        asked.push(engine.submit_with(ask, extras()).expect("taken"));
        if i == 3 {
            // The long prompt is in the cache before it is scored again.
            let again = requests().swap_remove(3);
            plain.push(engine.submit(again.clone()).expect("taken"));
            asked.push(engine.submit_with(again, extras()).expect("taken"));
        }
    }
    drop(hold);
    let asked = asked.into_iter().map(collect_scored).collect();
    let plain = plain.into_iter().map(collect).collect();
    (asked, plain, stop(engine))
}

fn worlds(few: u32) -> Vec<(&'static str, World)> {
    let plain = World::plain;
    let config = |choices| EngineConfig { choices, ..Default::default() };
    let swap = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
    let short = Choices { max_step: Duration::from_nanos(1), ..Choices::default() };
    let uncached = Choices { prefix_cache: false, ..Choices::default() };
    let mut worlds = vec![
        ("together", plain()),
        ("in short steps", World { config: config(short), ..plain() }),
        ("in chunks", World { config: config(chunked()), ..plain() }),
        ("preempted", World { pool: Some(few), ..plain() }),
        ("swapped", World { pool: Some(few), n_host_blocks: 400, config: config(swap), ..plain() }),
        ("without a cache", World { config: config(uncached), ..plain() }),
        ("drafted", World { config: forced(SpecMethod::Draft), ..plain() }),
        ("with candidates", World { config: forced(SpecMethod::Recycle), ..plain() }),
        ("on two threads", World { n_threads: 2, ..plain() }),
    ];
    let all = World { pool: Some(few), n_host_blocks: 400, config: everything(), ..plain() };
    worlds.push(("with everything at once", all));
    let others = Kernels::available().skip(1);
    worlds.extend(others.map(|kernels| (kernels.name, World { kernels, ..plain() })));
    worlds
}

#[test]
fn a_prompt_is_scored_as_if_it_were_generated_in_every_world() {
    for (fixture, format) in [("qwen3", "Q8_0"), ("mistral", "BF16"), ("llama3", "Q4_0")] {
        let (files, _folder) = open(fixture, format);
        let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
        let mut expected: Vec<_> = requests()
            .iter()
            .map(|ask| generated(&files, &World::plain(), &ask.prompt))
            .zip(alone)
            .collect();
        expected.insert(4, expected[3].clone());
        for (what, world) in worlds(few_blocks(&files)) {
            let what = format!("{fixture} {format}, {what}");
            let (scored, plain, metrics) = scored(&files, &world);
            assert!(world.pool.is_none() || metrics.n_preemptions > 0, "{what}: {metrics:?}");
            for (i, (scores, answer)) in scored.into_iter().enumerate() {
                let (logprobs, alone) = &expected[i];
                check_ranks(&scores);
                let scores: Vec<_> = scores.into_iter().map(|scored| scored.logprobs).collect();
                assert_eq!(&scores, logprobs, "{what}: prompt {i}");
                assert_eq!(&answer, alone, "{what}: the answer to prompt {i}");
                assert_eq!(&plain[i], alone, "{what}: the neighbour of prompt {i}");
            }
        }
    }
}

/// A token that is among the likeliest has its place there; others come behind these.
fn check_ranks(scores: &[ScoredToken]) {
    for ScoredToken { logprobs: TokenLogprobs { token, top, .. }, rank } in scores {
        let place = top.iter().position(|(id, _)| id == token);
        assert_eq!(place.map(|place| place + 1), (*rank <= N_TOP).then_some(*rank));
    }
}

/// A scored prompt neither takes from the cache nor leaves something there, because it would push out
/// what other requests use.
#[test]
fn a_scored_prompt_leaves_nothing_in_the_cache() {
    let (files, _folder) = open("qwen3", "Q8_0");
    let (engine, hold) = start(&files, Compute::Auto, &World::plain());
    drop(hold);
    let cached = |score: bool| {
        let ask = requests().swap_remove(3);
        let extras = Extras { prompt_logprobs: score.then_some(0), ..Extras::default() };
        let mut stream = engine.submit_with(ask, extras).expect("taken");
        let mut cached = 0;
        while let Some(event) = stream.blocking_recv() {
            cached = event.usage.cached_tokens;
        }
        cached
    };
    assert_eq!([cached(true), cached(true), cached(false)], [0, 0, 0]);
    assert!(cached(false) > 200, "others share it");
    assert_eq!(cached(true), 0);
    stop(engine);
}
