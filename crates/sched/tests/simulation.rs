//! Thousands of random lives: small pools, small budgets, failures, aborts, drafts, every policy.
//!
//! The fake executor keeps a fake KV memory: the slot of a token holds a hash of everything up to
//! that token, built from the slot before it *as the block table says*. The next token is a
//! function of that hash. So a wrong block table, a block given to two sequences, a skipped or
//! repeated token, or a stale prefix changes the answer, and the answer of every request is
//! compared with that of the same request alone in an endless memory. With recurrent layers, the fake
//! device ([`lanes`]) builds the same hash a second time, from lanes and snapshots.

mod device;
mod lanes;

use device::{Fake, Moving, absorb, mix, next_token};
use pelton_base::{
    Ask, FinishReason, KvWindows, Namespace, Reach, Request, RequestId, SamplingParams,
    ServiceParams, Slo, Source, TenantId, TokenId,
};
use pelton_sched::{
    Batching, Choices, Direction, Eviction, KvAllocation, PolicyKind, PreemptionMode,
    PriorityOrder, ScheduledSequence, Scheduler, SchedulerConfig, SchedulerOutput, Signals,
    StateConfig, StepCost, StepOutput, StepUpdates, TenantConfig, Tick,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const VOCAB: u64 = 5;
const STOP: TokenId = TokenId(0);
/// Time of a step where nothing is priced, in nanoseconds.
const STEP_NS: u64 = 1_000;

/// The beginning of a sequence's hash: prefixes of two namespaces look alike and are not, nor are
/// those of two sources, all of whose tokens count for each of their rows.
fn beginning(request: &Request) -> u64 {
    let Ask { service, prompt, .. } = &request.ask;
    let source = &prompt[..service.source.n_tokens];
    match source {
        [] => service.namespace.0,
        _ => source
            .iter()
            .fold(service.namespace.0 ^ source.len() as u64, |state, &token| absorb(state, token)),
    }
}

/// A prompt of which an encoder reads as much as there is room for, with what a decoder begins with.
fn source_of(prompt: &mut Vec<TokenId>, config: &SchedulerConfig) -> Source {
    let block_size = config.block_size;
    let most = (config.context_tokens() - 2) / block_size * block_size;
    if most == 0 {
        return Source::default();
    }
    prompt.truncate(most);
    let n_tokens = prompt.len();
    prompt.resize(n_tokens.next_multiple_of(block_size), TokenId(0));
    let source = Source { n_tokens, n_padding: prompt.len() - n_tokens };
    prompt.push(TokenId(1));
    source
}

/// The answer of a request that is alone in the world, and why it ends.
fn alone(request: &Request, context: usize) -> (Vec<TokenId>, FinishReason) {
    let mut state =
        request.ask.prompt.iter().fold(beginning(request), |state, &token| absorb(state, token));
    let mut output = Vec::new();
    loop {
        let token = next_token(state);
        output.push(token);
        state = absorb(state, token);
        if request.ask.stop_tokens.contains(&token) {
            return (output, FinishReason::Stop);
        }
        if output.len() == request.ask.max_tokens
            || request.ask.prompt.len() + output.len() == context
        {
            return (output, FinishReason::Length);
        }
    }
}

/// One random life.
#[derive(Clone, Debug)]
struct Workload {
    config: SchedulerConfig,
    cost: StepCost,
    requests: Vec<Arriving>,
    /// Per mille of executed shares that fail.
    fail_per_mille: u64,
    /// Per mille of steps in which someone is aborted.
    abort_per_mille: u64,
    /// Most drafts at once, besides branches.
    max_drafts: u64,
    branches: bool,
    /// Whether an encoder reads the prompts.
    has_sources: bool,
    /// Most steps that a transfer goes on after the one that starts it.
    max_delay: u64,
    seed: u64,
}

#[derive(Clone, Debug)]
struct Arriving {
    /// Step of arrival.
    at: u64,
    n_prompt: usize,
    max_tokens: usize,
    /// Whether it honours the stop token.
    stops: bool,
    service: ServiceParams,
    /// Whether it begins like the request that arrived before it.
    fork: Option<Fork>,
}

/// How a request begins like another.
#[derive(Clone, Copy, Debug)]
enum Fork {
    /// Another choice of its prompt.
    Choice,
    /// Goes on from its answer, as far as it came: that many tokens less, then some of its own.
    Answer { n_less: usize, n_own: usize },
}

#[derive(Debug, Default)]
struct Totals {
    n_steps: u64,
    /// Sources that were read.
    n_sources: u64,
    n_recomputed: u64,
    n_swapped: u64,
    n_swapped_in: u64,
    /// Steps without a share because every request waited for a transfer.
    n_stalled: u64,
    n_copied: u64,
    n_deferred: u64,
    n_promoted: u64,
    n_forked: u64,
    n_from_answers: u64,
    n_trees: u64,
    n_accepted_drafts: u64,
    n_rejected_drafts: u64,
    n_cached_tokens: u64,
    n_evicted: u64,
    n_finished: u64,
    /// Of states: snapshots loaded into a lane, lanes copied, snapshots taken of a lane at rest and of
    /// one in passing, and snapshots forgotten.
    n_loads: u64,
    n_lane_forks: u64,
    n_saves: u64,
    n_passed: u64,
    n_forgotten: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.n_steps += other.n_steps;
        self.n_sources += other.n_sources;
        self.n_recomputed += other.n_recomputed;
        self.n_swapped += other.n_swapped;
        self.n_swapped_in += other.n_swapped_in;
        self.n_stalled += other.n_stalled;
        self.n_copied += other.n_copied;
        self.n_deferred += other.n_deferred;
        self.n_promoted += other.n_promoted;
        self.n_forked += other.n_forked;
        self.n_from_answers += other.n_from_answers;
        self.n_trees += other.n_trees;
        self.n_accepted_drafts += other.n_accepted_drafts;
        self.n_rejected_drafts += other.n_rejected_drafts;
        self.n_cached_tokens += other.n_cached_tokens;
        self.n_evicted += other.n_evicted;
        self.n_finished += other.n_finished;
        self.n_loads += other.n_loads;
        self.n_lane_forks += other.n_lane_forks;
        self.n_saves += other.n_saves;
        self.n_passed += other.n_passed;
        self.n_forgotten += other.n_forgotten;
    }
}

/// A request, the answer that it should get, and the answer so far.
struct Asked {
    request: Request,
    expected: (Vec<TokenId>, FinishReason),
    output: Vec<TokenId>,
}

impl Asked {
    /// The hash after each token that it has so far.
    fn history(&self) -> Vec<u64> {
        let mut state = beginning(&self.request);
        let tokens = self.request.ask.prompt.iter().chain(&self.output);
        tokens
            .map(|&token| {
                state = absorb(state, token);
                state
            })
            .collect()
    }
}

fn live(workload: &Workload) -> Totals {
    let config = &workload.config;
    let mut scheduler = Scheduler::new(config.clone());
    let mut fake = Fake::new(config);
    let mut rng = workload.seed;
    let mut random = move || {
        rng = rng.wrapping_add(1);
        mix(rng)
    };

    let mut asked: BTreeMap<RequestId, Asked> = BTreeMap::new();
    // Also of those that were aborted while they were computed.
    let mut beginnings: BTreeMap<RequestId, u64> = BTreeMap::new();
    let mut arriving = workload.requests.clone();
    arriving.sort_by_key(|arriving| arriving.at);
    arriving.reverse();
    let mut latest: Option<Request> = None;
    let mut totals = Totals::default();
    // Blocks that went to the host, and that came from there.
    let mut n_moved = [0; 2];
    let (mut step, mut now) = (0, 0);
    let mut moving: Vec<Moving> = Vec::new();
    // All are used again and again, so what a step leaves in them must not matter to the next.
    let (mut plan, mut updates) = (SchedulerOutput::default(), StepUpdates::default());
    while !arriving.is_empty() || !scheduler.is_idle() {
        assert!(step < 100_000, "a request never ends: {scheduler}");
        while arriving.last().is_some_and(|arriving| arriving.at <= step) {
            let Arriving { n_prompt, max_tokens, stops, mut service, fork, .. } =
                arriving.pop().expect("checked");
            let n_prompt = n_prompt.clamp(1, config.context_tokens() - 1);
            // Prompts over two tokens, so that prefixes collide.
            let mut of_two = |n| (0..n).map(|_| TokenId((random() % 8 / 7) as u32)).collect();
            let mut prompt: Vec<TokenId> = of_two(n_prompt);
            if workload.has_sources {
                service.source = source_of(&mut prompt, config);
            }
            if let (Some(fork), Some(other)) = (fork, &latest) {
                service = ServiceParams { fork_of: Some(other.id), ..other.ask.service };
                prompt = other.ask.prompt.clone();
                let answer = asked.get(&other.id).map_or(&[][..], |asked| &asked.output);
                if let (Fork::Answer { n_less, n_own }, [_, ..]) = (fork, answer) {
                    prompt.extend(answer);
                    let least = service.source.end() + 1;
                    prompt.truncate(prompt.len().saturating_sub(n_less).max(least));
                    prompt.extend::<Vec<_>>(of_two(n_own));
                    prompt.truncate(config.context_tokens() - 1);
                    totals.n_from_answers += 1;
                }
            }
            let request = Request {
                id: RequestId(arriving.len() as u64),
                ask: Ask {
                    prompt,
                    sampling: SamplingParams::default(),
                    choice: 0,
                    max_tokens,
                    stop_tokens: if stops { vec![STOP] } else { Vec::new() },
                    service,
                    prediction: Vec::new(),
                    constraint: None,
                },
            };
            scheduler.add(request.clone());
            latest = Some(request.clone());
            let expected = alone(&request, config.context_tokens());
            beginnings.insert(request.id, beginning(&request));
            asked.insert(request.id, Asked { request, expected, output: Vec::new() });
        }

        // Guesses: the truth, but for one token now and then, and branches of anything.
        for row in scheduler.generating() {
            let asked = &asked[&row.id];
            let n_drafts = (random() % (workload.max_drafts + 1)) as usize;
            let rest = &asked.expected.0[asked.output.len().min(asked.expected.0.len())..];
            let mut drafts: Vec<TokenId> = rest.iter().copied().take(n_drafts).collect();
            drafts.resize(n_drafts, TokenId(1));
            if n_drafts > 0 && random() % 3 == 0 {
                let idx = random() as usize % n_drafts;
                drafts[idx] = TokenId((random() % VOCAB) as u32);
            }
            // More than are of use, now and then.
            let mut trunk = None;
            for draft in drafts {
                while workload.branches && random() % 3 == 0 {
                    let any = random() as usize % (row.drafts.len() + 1);
                    row.drafts.push(any.checked_sub(1), TokenId((random() % VOCAB) as u32));
                }
                trunk = Some(row.drafts.push(trunk, draft));
            }
        }

        let signals = Signals { cost: workload.cost, ..Signals::default() };
        scheduler.schedule(Tick(now), &signals, &mut plan);
        scheduler.check_integrity();
        let waits = scheduler.n_transfers() > 0;
        assert!(
            !plan.is_empty() || scheduler.is_idle() || waits,
            "work left, nothing planned: {scheduler}"
        );
        let source = |share: &ScheduledSequence| asked[&share.id].request.ask.service.source;
        let reads = |share: &&ScheduledSequence| share.first_position < source(share).end();
        // The one share that reads a source is as long as it must be.
        let readers = || plan.sequences.iter().filter(reads);
        let n_read: usize = readers().map(|share| share.tokens.len()).sum();
        assert!(plan.tokens.len() - n_read <= config.choices.max_batch_tokens);
        for share in readers() {
            assert!(share.first_position == 0 && share.tokens.len() >= source(share).end());
            totals.n_sources += 1;
        }
        assert!(plan.sequences.len() <= config.choices.max_running);
        if let Some(states) = &config.states {
            lanes::check(&plan, states, config.choices.prefix_cache);
        }
        for share in &plan.sequences {
            let n_known = share.tokens.len() - share.n_drafts;
            let most = config.choices.chunk_tokens().max(source(share).end());
            assert!((1..=most).contains(&n_known));
            let end = share.first_position + share.tokens.len();
            assert!(
                end < config.context_tokens() + usize::from(share.samples),
                "{} goes too far",
                share.id
            );
            assert!(!plan.preempted.contains(&share.id), "{} preempted and planned", share.id);
        }
        now += STEP_NS + workload.cost.step_ns(&plan.load);
        for transfer in &plan.transfers {
            let (id, direction) = (transfer.id, transfer.direction);
            let moved = plan.moved_by(transfer).to_vec();
            let until = step + random() % (workload.max_delay + 1);
            n_moved[usize::from(direction == Direction::In)] += moved.len() as u64;
            let new = Moving { id, direction, moved, until };
            fake.start(&new);
            moving.push(new);
        }
        fake.copy_blocks(&plan);
        totals.n_copied += plan.copies.len() as u64;
        totals.n_stalled += u64::from(plan.is_empty() && waits);

        // Someone may leave at any time, also while the step is being computed.
        if random() % 1000 < workload.abort_per_mille && !asked.is_empty() {
            let victim = *asked.keys().nth(random() as usize % asked.len()).expect("not empty");
            assert!(scheduler.abort(victim));
            assert!(!scheduler.abort(victim), "it is gone");
            scheduler.check_integrity();
            asked.remove(&victim);
        }

        let mut answer = StepOutput::default();
        for share in &plan.sequences {
            if random() % 1000 < workload.fail_per_mille {
                answer.failed.push(share.id);
                if let (Some(lanes), Some(lane)) = (&mut fake.lanes, &share.lane) {
                    lanes.fail(lane.lane, plan.saves_of(share));
                }
                continue;
            }
            let start = beginnings[&share.id];
            let history = asked.get(&share.id).map_or(Vec::new(), |asked| asked.history());
            let states = fake.compute(&plan, share, start, &history);
            if share.samples {
                let sampled = fake.verify(&plan, share, &states);
                let n_accepted = sampled.len() - 1;
                totals.n_trees += u64::from(plan.rows_of(share).parents.is_some());
                totals.n_accepted_drafts += n_accepted as u64;
                totals.n_rejected_drafts += (share.n_drafts - n_accepted) as u64;
                answer.sampled.extend(sampled.into_iter().map(|token| (share.id, token)));
            }
        }
        for over in moving.extract_if(.., |moving| moving.until <= step) {
            fake.end(&over);
            answer.transferred.push(over.id);
        }
        scheduler.update(&answer, &mut updates);
        for update in &updates.sequences {
            let known = asked.get_mut(&update.id).expect("only the living have news");
            known.output.extend(updates.tokens_of(update));
            let Some(finish) = update.finish else { continue };
            let Asked { request, expected, output } = asked.remove(&update.id).expect("just found");
            assert_eq!(update.usage.completion_tokens, output.len());
            let n_sent = request.ask.service.source.n_sent(request.ask.prompt.len());
            assert_eq!(update.usage.prompt_tokens, n_sent);
            assert!(update.usage.cached_tokens < request.ask.prompt.len());
            totals.n_cached_tokens += update.usage.cached_tokens as u64;
            totals.n_finished += 1;
            if answer.failed.contains(&update.id) {
                assert_eq!(finish, FinishReason::Error);
                assert!(expected.0.starts_with(&output));
            } else {
                assert_eq!((output, finish), expected, "{}", update.id);
            }
        }
        scheduler.check_integrity();
        step += 1;
    }
    assert!(asked.is_empty(), "some requests never ended: {:?}", asked.keys());
    assert_eq!(scheduler.n_free_blocks(), config.n_blocks as usize, "blocks are lost");
    let stats = scheduler.stats();
    totals.n_steps = step;
    totals.n_recomputed = stats.n_recomputed;
    totals.n_swapped = stats.n_swapped;
    assert_eq!(n_moved, [stats.n_swapped_out_blocks, stats.n_swapped_in_blocks]);
    assert_eq!(totals.n_copied, stats.n_copied_blocks);
    totals.n_swapped_in = stats.n_swapped_in_blocks;
    totals.n_deferred = stats.n_deferrals;
    totals.n_promoted = stats.n_promoted;
    totals.n_forked = stats.n_forked;
    totals.n_evicted = stats.cache.n_evicted_blocks;
    if let Some(lanes) = &fake.lanes {
        totals.n_loads = lanes.n_loads;
        totals.n_lane_forks = lanes.n_forks;
        totals.n_saves = lanes.n_saves;
        totals.n_passed = lanes.n_passed;
        totals.n_forgotten = stats.cache.n_evicted_snapshots;
    }
    totals
}

/// Every choice that a scheduler offers, drawn from `below(n) < n`.
fn choices(mut below: impl FnMut(u64) -> u64, limits: SchedulerConfig) -> SchedulerConfig {
    let mut of = |n: usize| below(n as u64) as usize;
    let n_host_blocks = [0, 3, 40][of(3)];
    let choices = Choices {
        policy: PolicyKind::ALL[of(PolicyKind::ALL.len())],
        priority_order: PriorityOrder::ALL[of(2)],
        max_wait: Duration::from_nanos([10, 100, 100_000][of(3)] * STEP_NS),
        batching: Batching::ALL[of(8) / 7],
        kv_allocation: KvAllocation::ALL[of(8) / 7],
        prefix_cache: of(4) > 0,
        eviction: Eviction::ALL[of(2)],
        preemption: PreemptionMode::ALL[of(3)],
        tenants: (0..=of(3))
            .map(|i| TenantConfig {
                name: format!("t{i}"),
                weight: 1 + i as u32,
                ..TenantConfig::default()
            })
            .collect(),
        ..limits.choices
    };
    SchedulerConfig { n_host_blocks, choices, ..limits }
}

fn prices(is_known: bool) -> StepCost {
    let price = |ps| if is_known { ps } else { 0 };
    StepCost {
        base_ps: price(5_000_000),
        token_ps: price(300_000),
        sample_ps: price(10_000),
        attended_ps: price(1_000),
        moved_block_ps: price(200_000),
    }
}

fn service(mut below: impl FnMut(u64) -> u64) -> ServiceParams {
    let target = |n| (n > 0).then(|| Duration::from_nanos(n * 4_000));
    ServiceParams {
        tenant: TenantId(below(4) as u32),
        priority: below(3) as i32 - 1,
        slo: Slo { ttft: target(below(20)), tpot: target(below(4)) },
        namespace: Namespace(below(8) / 7),
        ..ServiceParams::default()
    }
}

fn fork(mut below: impl FnMut(u64) -> u64) -> Option<Fork> {
    match below(8) {
        0 => Some(Fork::Choice),
        1 | 2 => Some(Fork::Answer { n_less: below(4) as usize, n_own: below(4) as usize }),
        _ => None,
    }
}

fn random_workload(seed: u64) -> Workload {
    let mut state = seed << 20;
    let mut below = |n: u64| {
        state += 1;
        mix(state) % n
    };
    let n_requests = 1 + below(24) as usize;
    // Drawn in this order, so that a seed means the same workload as ever.
    let max_batch_tokens = 1 + below(40) as usize;
    let max_running = 1 + below(10) as usize;
    let max_context = 2 + below(80) as usize;
    let max_chunk_tokens = Some(1 + below(20) as usize);
    let limits = SchedulerConfig {
        max_context,
        choices: Choices { max_batch_tokens, max_running, max_chunk_tokens, ..Choices::default() },
        ..SchedulerConfig::new(2 + below(16) as u32, 1 + below(5) as usize)
    };
    Workload {
        config: choices(&mut below, limits),
        cost: prices(below(2) == 1),
        requests: (0..n_requests)
            .map(|_| Arriving {
                at: below(60),
                n_prompt: 1 + below(40) as usize,
                max_tokens: 1 + below(30) as usize,
                stops: below(2) == 1,
                service: service(&mut below),
                fork: fork(&mut below),
            })
            .collect(),
        fail_per_mille: [0, 0, 20][below(3) as usize],
        abort_per_mille: [0, 0, 100][below(3) as usize],
        max_drafts: [0, 4][below(2) as usize],
        branches: below(2) == 0,
        has_sources: false,
        max_delay: [0, 0, 1, 7][below(4) as usize],
        seed,
    }
}

#[test]
fn in_five_thousand_random_lives_every_request_ends_with_its_own_answer() {
    let mut sum = Totals::default();
    for seed in 0..5000 {
        sum += live(&random_workload(seed));
    }
    // The lives must be eventful, or they prove little.
    assert!(sum.n_steps > 100_000, "{sum:?}");
    assert!(sum.n_recomputed > 1_000, "{sum:?}");
    assert!(sum.n_swapped > 200, "{sum:?}");
    assert!(sum.n_swapped_in > 500, "{sum:?}");
    assert!(sum.n_stalled > 20, "{sum:?}");
    assert!(sum.n_copied > 1_000, "{sum:?}");
    assert!(sum.n_deferred > 500, "{sum:?}");
    assert!(sum.n_promoted > 1_000, "{sum:?}");
    assert!(sum.n_forked > 500, "{sum:?}");
    assert!(sum.n_from_answers > 500, "{sum:?}");
    assert!(sum.n_trees > 1_000, "{sum:?}");
    assert!(sum.n_accepted_drafts > 10_000, "{sum:?}");
    assert!(sum.n_rejected_drafts > 3_000, "{sum:?}");
    assert!(sum.n_cached_tokens > 5_000, "{sum:?}");
    assert!(sum.n_evicted > 1_000, "{sum:?}");
    assert!(sum.n_finished > 20_000, "{sum:?}");
}

/// The same life of a model with recurrent layers.
fn with_states(seed: u64) -> Workload {
    let mut state = seed << 20 | 1 << 19;
    let mut below = |n: u64| {
        state += 1;
        mix(state) % n
    };
    let mut workload = random_workload(seed);
    workload.config.block_size = 1 << below(4);
    workload.config.n_blocks = (8 + below(56) as u32) / workload.config.block_size as u32;
    workload.config.states = Some(states(&mut below));
    if below(3) == 0 {
        workload.config.n_host_blocks = 40;
        workload.config.choices.preemption = PreemptionMode::Swap;
        workload.max_delay = 7;
    }
    workload
}

fn states(mut below: impl FnMut(u64) -> u64) -> StateConfig {
    let n_snapshots = [0, 1 + below(3), 20][below(3) as usize] as u32;
    StateConfig {
        n_lanes: 1 + below(10) as u32,
        n_snapshots,
        chunk: 8,
        every: [0, 8, 16][below(3) as usize],
        n_blocks: below(40),
    }
}

#[test]
fn in_three_thousand_lives_with_states_every_row_follows_its_own_prefix() {
    let mut sum = Totals::default();
    for seed in 0..3000 {
        sum += live(&with_states(seed));
    }
    assert!(sum.n_recomputed > 1_000, "{sum:?}");
    assert!(sum.n_swapped > 100, "{sum:?}");
    assert!(sum.n_swapped_in > 200, "{sum:?}");
    assert!(sum.n_deferred > 5_000, "{sum:?}");
    assert!(sum.n_trees > 1_000, "{sum:?}");
    assert!(sum.n_accepted_drafts > 10_000, "{sum:?}");
    assert!(sum.n_loads > 2_000, "{sum:?}");
    assert!(sum.n_lane_forks > 1_000, "{sum:?}");
    assert!(sum.n_saves > 2_000, "{sum:?}");
    assert!(sum.n_passed > 5_000, "{sum:?}");
    assert!(sum.n_forgotten > 5_000, "{sum:?}");
}

/// The same life of a model with an encoder.
fn with_sources(seed: u64) -> Workload {
    let mut workload = Workload { has_sources: true, ..random_workload(seed) };
    if seed.is_multiple_of(3) {
        workload.config.n_host_blocks = 40;
        workload.config.choices.preemption = PreemptionMode::Swap;
        workload.max_delay = 7;
    }
    workload
}

#[test]
fn in_three_thousand_lives_with_sources_each_is_read_whole_and_shared_whole() {
    let mut sum = Totals::default();
    for seed in 0..3000 {
        sum += live(&with_sources(seed));
    }
    assert!(sum.n_sources > 5_000, "{sum:?}");
    assert!(sum.n_cached_tokens > 1_000, "{sum:?}");
    assert!(sum.n_forked > 100, "{sum:?}");
    assert!(sum.n_recomputed > 100, "{sum:?}");
    assert!(sum.n_swapped_in > 100, "{sum:?}");
    assert!(sum.n_finished > 5_000, "{sum:?}");
}

/// The same life of a model with attention windows.
fn with_windows(seed: u64) -> Workload {
    let mut state = seed << 20 | 1 << 18;
    let mut below = |n: u64| {
        state += 1;
        mix(state) % n
    };
    let mut workload = random_workload(seed);
    let windows = windows(&mut below);
    workload.config.n_blocks =
        2 * windows.n_blocks as u32 + [4, 12, 60][below(3) as usize] + below(16) as u32;
    workload.config.windows = Some(windows);
    if below(3) == 0 {
        workload.config.n_host_blocks = 40;
        workload.config.choices.preemption = PreemptionMode::Swap;
        workload.max_delay = 7;
    }
    workload
}

fn windows(mut below: impl FnMut(u64) -> u64) -> KvWindows {
    let n = 1 + below(12) as usize;
    let is_all = below(4) == 0;
    KvWindows {
        reach: if below(3) == 0 { Reach::Segment(n) } else { Reach::Last(n) },
        n_blocks: if is_all { 1 } else { 1 + below(3) as usize },
        is_all,
    }
}

#[test]
fn in_five_thousand_lives_with_windows_every_row_finds_what_it_reads() {
    let mut sum = Totals::default();
    for seed in 0..5000 {
        sum += live(&with_windows(seed));
    }
    assert!(sum.n_recomputed > 1_000, "{sum:?}");
    assert!(sum.n_swapped > 100, "{sum:?}");
    assert!(sum.n_swapped_in > 200, "{sum:?}");
    assert!(sum.n_deferred > 500, "{sum:?}");
    assert!(sum.n_forked > 500, "{sum:?}");
    assert!(sum.n_trees > 1_000, "{sum:?}");
    assert!(sum.n_cached_tokens > 5_000, "{sum:?}");
    assert!(sum.n_evicted > 1_000, "{sum:?}");
    assert!(sum.n_finished > 20_000, "{sum:?}");
}

#[test]
fn the_same_calls_give_the_same_plans() {
    for seed in 0..50 {
        for workload in [random_workload(seed), with_states(seed), with_windows(seed)] {
            let (first, second) = (live(&workload), live(&workload));
            assert_eq!(format!("{first:?}"), format!("{second:?}"));
        }
    }
}

prop_compose! {
    fn any_workload()(
        (n_blocks, block_size, max_context) in (2..12_u32, 1..4_usize, 2..40_usize),
        (max_batch_tokens, max_chunk_tokens, max_running) in (1..16_usize, 1..8_usize, 1..5_usize),
        (config_seed, priced) in (any::<u32>(), any::<bool>()),
        requests in prop::collection::vec(
            (0..20_u64, 1..20_usize, 1..20_usize, any::<bool>(), any::<u16>(), any::<u16>()), 1..8,
        ),
        (fail_per_mille, abort_per_mille) in (0..30_u64, 0..60_u64),
        (max_drafts, branches, max_delay) in (0..4_u64, any::<bool>(), 0..5_u64),
        (seed, kind) in (any::<u32>(), 0..3),
    ) -> Workload {
        let draw = |seed: u64| {
            let mut state = seed << 16;
            move |n: u64| {
                state += 1;
                mix(state) % n
            }
        };
        let limits = SchedulerConfig {
            max_context,
            choices: Choices {
                max_batch_tokens,
                max_running,
                max_chunk_tokens: Some(max_chunk_tokens),
                ..Choices::default()
            },
            states: (kind == 1).then(|| states(draw(u64::from(config_seed) + 1))),
            windows: (kind == 2).then(|| windows(draw(u64::from(config_seed) + 1))),
            ..SchedulerConfig::new(
                if kind == 2 { 6 + n_blocks } else { n_blocks },
                if kind == 1 { 1 << block_size } else { block_size },
            )
        };
        Workload {
            config: choices(draw(u64::from(config_seed)), limits),
            cost: prices(priced),
            requests: requests
                .into_iter()
                .map(|(at, n_prompt, max_tokens, stops, seed, fork)| Arriving {
                    at, n_prompt, max_tokens, stops,
                    service: service(draw(u64::from(seed))),
                    fork: self::fork(draw(u64::from(fork))),
                })
                .collect(),
            fail_per_mille, abort_per_mille, max_drafts, branches, has_sources: false, max_delay,
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
