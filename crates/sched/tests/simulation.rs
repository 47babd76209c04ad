//! Thousands of random lives: small pools, small budgets, failures, aborts, several tokens a step.
//!
//! The fake executor keeps a fake KV memory: the slot of a token holds a hash of everything up to
//! that token, built from the slot before it *as the block table says*. The next token is a
//! function of that hash. So a wrong block table, a block given to two sequences, a skipped or
//! repeated token, or a stale prefix changes the answer, and the answer of every request is
//! compared with that of the same request alone in an endless memory.

mod prefix_map;

use pelton_base::{FinishReason, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_sched::{
    NoCache, PrefixCache, ScheduledSequence, Scheduler, SchedulerConfig, SchedulerOutput, Signals,
    StepOutput, StepUpdates, Tick,
};
use prefix_map::PrefixMap;
use proptest::prelude::*;
use std::collections::BTreeMap;

const VOCAB: u64 = 5;
const STOP: TokenId = TokenId(0);

/// SplitMix64: one number in, one well-mixed number out.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn absorb(state: u64, token: TokenId) -> u64 {
    mix(state ^ u64::from(token.0).wrapping_mul(0x0000_0100_0000_01B3))
}

fn next_token(state: u64) -> TokenId {
    TokenId((mix(state ^ 1) % VOCAB) as u32)
}

/// The answer of a request that is alone in the world, and why it ends.
fn alone(request: &Request, context: usize) -> (Vec<TokenId>, FinishReason) {
    let mut state = request.prompt.iter().fold(0, |state, &token| absorb(state, token));
    let mut output = Vec::new();
    loop {
        let token = next_token(state);
        output.push(token);
        state = absorb(state, token);
        if request.stop_tokens.contains(&token) {
            return (output, FinishReason::Stop);
        }
        if output.len() == request.max_tokens || request.prompt.len() + output.len() == context {
            return (output, FinishReason::Length);
        }
    }
}

/// One random life.
#[derive(Clone, Debug)]
struct Workload {
    config: SchedulerConfig,
    cached: bool,
    /// (step of arrival, prompt length, max_tokens, honours the stop token)
    requests: Vec<(u64, usize, usize, bool)>,
    /// Per mille of executed shares that fail.
    fail_per_mille: u64,
    /// Per mille of steps in which someone is aborted.
    abort_per_mille: u64,
    /// Most tokens sampled at once.
    max_sampled: u64,
    seed: u64,
}

struct Fake {
    kv: Vec<u64>,
    block_size: usize,
}

impl Fake {
    /// Computes a share; the hash of the whole sequence so far.
    fn compute(&mut self, plan: &SchedulerOutput, share: &ScheduledSequence) -> u64 {
        let slot = |position: usize| {
            let block = plan.block_table_of(share)[position / self.block_size];
            block.0 as usize * self.block_size + position % self.block_size
        };
        let mut state = match share.first_position {
            0 => 0,
            position => self.kv[slot(position - 1)],
        };
        for (i, &token) in plan.tokens_of(share).iter().enumerate() {
            state = absorb(state, token);
            self.kv[slot(share.first_position + i)] = state;
        }
        state
    }
}

#[derive(Debug, Default)]
struct Totals {
    n_steps: u64,
    n_preempted: u64,
    n_cached_tokens: usize,
    n_finished: u64,
}

fn live(workload: &Workload) -> Totals {
    let config = &workload.config;
    let cache: Box<dyn PrefixCache> = match workload.cached {
        true => Box::new(PrefixMap::new(config.block_size)),
        false => Box::new(NoCache),
    };
    let mut scheduler = Scheduler::with_prefix_cache(config.clone(), cache);
    let n_slots = config.n_blocks as usize * config.block_size;
    let mut fake = Fake { kv: vec![0; n_slots], block_size: config.block_size };
    let mut rng = workload.seed;
    let mut random = move || {
        rng = rng.wrapping_add(1);
        mix(rng)
    };

    let mut asked: BTreeMap<RequestId, (Request, Vec<TokenId>)> = BTreeMap::new();
    let mut arriving = workload.requests.clone();
    arriving.sort_by_key(|arriving| arriving.0);
    arriving.reverse();
    let mut totals = Totals::default();
    let mut step = 0;
    // Both are used again and again, so what a step leaves in them must not matter to the next.
    let (mut plan, mut updates) = (SchedulerOutput::default(), StepUpdates::default());
    while !arriving.is_empty() || !scheduler.is_idle() {
        assert!(step < 200_000, "a request never ends: {scheduler}");
        while arriving.last().is_some_and(|arriving| arriving.0 <= step) {
            let (_, n_prompt, max_tokens, stops) = arriving.pop().expect("checked");
            let n_prompt = n_prompt.clamp(1, config.context_tokens() - 1);
            // Prompts over two tokens, so that prefixes collide.
            let request = Request {
                id: RequestId(arriving.len() as u64),
                prompt: (0..n_prompt).map(|_| TokenId((random() % 8 / 7) as u32)).collect(),
                sampling: SamplingParams::default(),
                choice: 0,
                max_tokens,
                service: ServiceParams::default(),
                stop_tokens: if stops { vec![STOP] } else { Vec::new() },
            };
            scheduler.add(request.clone());
            asked.insert(request.id, (request, Vec::new()));
        }

        scheduler.schedule(Tick(step), &Signals::default(), &mut plan);
        scheduler.check_integrity();
        assert_eq!(plan.is_empty(), scheduler.is_idle(), "work left, nothing planned: {scheduler}");
        assert!(plan.tokens.len() <= config.max_batch_tokens);
        assert!(plan.sequences.len() <= config.max_running);
        for share in &plan.sequences {
            assert!((1..=config.max_chunk_tokens).contains(&share.tokens.len()));
            assert!(!plan.preempted.contains(&share.id), "{} preempted and planned", share.id);
        }
        totals.n_preempted += plan.preempted.len() as u64;

        // Someone may leave at any time, also while the step is being computed.
        if random() % 1000 < workload.abort_per_mille && !asked.is_empty() {
            let victim = *asked.keys().nth(random() as usize % asked.len()).expect("not empty");
            assert!(scheduler.abort(victim));
            scheduler.check_integrity();
            asked.remove(&victim);
        }

        let mut answer = StepOutput::default();
        for share in &plan.sequences {
            if random() % 1000 < workload.fail_per_mille {
                answer.failed.push(share.id);
                continue;
            }
            let mut state = fake.compute(&plan, share);
            if share.samples {
                for _ in 0..=random() % workload.max_sampled {
                    answer.sampled.push((share.id, next_token(state)));
                    state = absorb(state, next_token(state));
                }
            }
        }
        scheduler.update(&answer, &mut updates);
        for update in &updates.sequences {
            let (_, output) = asked.get_mut(&update.id).expect("only the living have news");
            output.extend(updates.tokens_of(update));
            let Some(finish) = update.finish else { continue };
            let (request, output) = asked.remove(&update.id).expect("just found");
            assert_eq!(update.usage.completion_tokens, output.len());
            assert_eq!(update.usage.prompt_tokens, request.prompt.len());
            totals.n_cached_tokens += update.usage.cached_tokens;
            totals.n_finished += 1;
            let (expected, reason) = alone(&request, config.context_tokens());
            if answer.failed.contains(&update.id) {
                assert_eq!(finish, FinishReason::Error);
                assert!(expected.starts_with(&output));
            } else {
                assert_eq!((output, finish), (expected, reason), "{}", update.id);
            }
        }
        scheduler.check_integrity();
        step += 1;
    }
    assert!(asked.is_empty(), "some requests never ended: {asked:?}");
    if !workload.cached {
        assert_eq!(scheduler.n_free_blocks(), config.n_blocks as usize);
    }
    totals.n_steps = step;
    totals
}

fn random_workload(seed: u64) -> Workload {
    let mut state = seed << 20;
    let mut below = |n: u64| {
        state += 1;
        mix(state) % n
    };
    let n_requests = 1 + below(24) as usize;
    Workload {
        config: SchedulerConfig {
            max_batch_tokens: 1 + below(40) as usize,
            max_running: 1 + below(10) as usize,
            max_context: 2 + below(80) as usize,
            max_chunk_tokens: 1 + below(20) as usize,
            ..SchedulerConfig::new(2 + below(16) as u32, 1 + below(5) as usize)
        },
        cached: below(2) == 1,
        requests: (0..n_requests)
            .map(|_| (below(60), 1 + below(40) as usize, 1 + below(30) as usize, below(2) == 1))
            .collect(),
        fail_per_mille: [0, 0, 20][below(3) as usize],
        abort_per_mille: [0, 0, 100][below(3) as usize],
        max_sampled: 1 + below(3),
        seed,
    }
}

#[test]
fn in_four_thousand_random_lives_every_request_ends_with_its_own_answer() {
    let mut sum = Totals::default();
    for seed in 0..4000 {
        let totals = live(&random_workload(seed));
        sum.n_steps += totals.n_steps;
        sum.n_preempted += totals.n_preempted;
        sum.n_cached_tokens += totals.n_cached_tokens;
        sum.n_finished += totals.n_finished;
    }
    // The lives must be eventful, or they prove little.
    assert!(sum.n_preempted > 1_000, "{sum:?}");
    assert!(sum.n_cached_tokens > 5_000, "{sum:?}");
    assert!(sum.n_finished > 20_000, "{sum:?}");
}

#[test]
fn the_same_calls_give_the_same_plans() {
    for seed in 0..50 {
        let (first, second) = (live(&random_workload(seed)), live(&random_workload(seed)));
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}

prop_compose! {
    fn any_workload()(
        (n_blocks, block_size, max_context) in (2..12_u32, 1..4_usize, 2..40_usize),
        (max_batch_tokens, max_chunk_tokens, max_running) in (1..16_usize, 1..8_usize, 1..5_usize),
        cached in any::<bool>(),
        requests in prop::collection::vec((0..20_u64, 1..20_usize, 1..20_usize, any::<bool>()), 1..8),
        (fail_per_mille, abort_per_mille) in (0..30_u64, 0..60_u64),
        (max_sampled, seed) in (1..4_u64, any::<u32>()),
    ) -> Workload {
        Workload {
            config: SchedulerConfig {
                max_batch_tokens, max_running, max_context, max_chunk_tokens,
                ..SchedulerConfig::new(n_blocks, block_size)
            },
            cached, requests, fail_per_mille, abort_per_mille, max_sampled,
            seed: u64::from(seed),
        }
    }
}

proptest! {
    /// The same life as above, in a form that shrinks to the smallest one that fails.
    #[test]
    fn no_small_life_goes_wrong(workload in any_workload()) {
        live(&workload);
    }
}
