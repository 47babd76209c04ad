//! Tokens that a model with recurrent layers computes anew, at the sizes of a real one.
//!
//! A state is kept at borders only, so a request that goes on from another one computes up to a chunk
//! more than it would with KV alone, and never more than that while there are snapshots.

use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_sched::{
    Choices, PolicyKind, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StateConfig,
    StepOutput, StepUpdates, Tick,
};
use std::collections::HashMap;

const CHUNK: usize = 64;

struct World {
    scheduler: Scheduler,
    n_steps: u64,
    plan: SchedulerOutput,
    /// Tokens computed for each request.
    computed: HashMap<RequestId, usize>,
    n_preempted: usize,
}

impl World {
    fn new(n_blocks: u32, every: usize) -> Self {
        let states = StateConfig { n_lanes: 32, n_snapshots: 64, chunk: CHUNK, every, n_blocks: 8 };
        Self {
            scheduler: Scheduler::new(SchedulerConfig {
                states: Some(states),
                choices: Choices { max_batch_tokens: 512, ..Choices::default() },
                ..SchedulerConfig::new(n_blocks, 16)
            }),
            n_steps: 0,
            plan: SchedulerOutput::default(),
            computed: HashMap::new(),
            n_preempted: 0,
        }
    }

    fn add(&mut self, id: u64, prompt: Vec<TokenId>, max_tokens: usize) {
        self.add_with(id, prompt, max_tokens, ServiceParams::default());
    }

    /// Adds a request that may take the place of another.
    fn add_urgent(&mut self, id: u64, prompt: Vec<TokenId>, max_tokens: usize) {
        let service = ServiceParams { priority: -1, ..ServiceParams::default() };
        self.add_with(id, prompt, max_tokens, service);
    }

    fn add_with(
        &mut self,
        id: u64,
        prompt: Vec<TokenId>,
        max_tokens: usize,
        service: ServiceParams,
    ) {
        let ask = Ask {
            prompt,
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens,
            stop_tokens: Vec::new(),
            service,
            prediction: Vec::new(),
            constraint: None,
        };
        self.scheduler.add(Request { id: RequestId(id), ask });
    }

    fn step(&mut self) {
        self.n_steps += 1;
        self.scheduler.schedule(Tick(self.n_steps), &Signals::default(), &mut self.plan);
        let mut answer = StepOutput::default();
        for share in &self.plan.sequences {
            *self.computed.entry(share.id).or_default() += share.tokens.len();
            if share.samples {
                answer.sampled.push((share.id, TokenId(7)));
            }
        }
        self.n_preempted += self.plan.preempted.len();
        self.scheduler.update(&answer, &mut StepUpdates::default());
        self.scheduler.check_integrity();
    }

    fn run(&mut self) {
        while !self.scheduler.is_idle() {
            self.step();
        }
    }
}

/// Tokens that are the same for the same name.
fn text(name: u32, n_tokens: usize) -> Vec<TokenId> {
    (0..n_tokens as u32).map(|i| TokenId((i * 17 + name * 7919) % 50_000)).collect()
}

fn prompt(system: &[TokenId], name: u32, n_own: usize) -> Vec<TokenId> {
    system.iter().copied().chain(text(name, n_own)).collect()
}

#[test]
fn a_system_prompt_is_computed_once_however_many_requests_come_with_it() {
    let system = text(0, 4_000);
    for n_late in [0, 3, 12] {
        let mut world = World::new(10_000, 0);
        for id in 0..16 {
            if id == 16 - n_late {
                (0..3).for_each(|_| world.step());
            }
            world.add(id, prompt(&system, 1 + id as u32, 100), 1);
        }
        world.run();
        for (id, &n_computed) in &world.computed {
            let most = if id.0 == 0 { 4_100 } else { 100 + CHUNK };
            assert!(n_computed <= most, "{id} computed {n_computed} tokens, {n_late} are late");
        }
    }
}

#[test]
fn each_turn_of_a_conversation_computes_itself_and_a_chunk_at_most() {
    let mut world = World::new(10_000, 0);
    let mut history = Vec::new();
    for turn in 0..20 {
        history.extend(text(turn, 150));
        world.add(u64::from(turn), history.clone(), 83);
        world.run();
        history.extend([TokenId(7); 83]);
        let n_computed = world.computed[&RequestId(u64::from(turn))];
        // The last token of an answer has no KV.
        let most = 150 + 83 + CHUNK;
        assert!(n_computed <= most, "turn {turn} computed {n_computed} tokens of at most {most}");
    }
}

#[test]
fn two_requests_that_part_in_the_middle_leave_a_state_for_the_third() {
    let system = text(0, 1_000);
    for (every, most_of_second) in [(0, 1_100), (256, 1_000 % 256 + 100)] {
        let mut world = World::new(10_000, every);
        assert_eq!(world.scheduler.n_snapshots(), 0);
        for (id, most) in [(0, 1_100), (1, most_of_second), (2, 100 + CHUNK)] {
            world.add(id, prompt(&system, 1 + id as u32, 100), 1);
            world.run();
            let n_computed = world.computed[&RequestId(id)];
            assert!(n_computed <= most, "request {id} computed {n_computed} tokens, {every}");
            assert!(world.scheduler.n_snapshots() > id as usize, "one more for each, at least");
        }
    }
}

#[test]
fn a_request_that_lost_its_place_loses_a_chunk_at_most() {
    for (n_lanes, max_running) in [(1, 64), (32, 1)] {
        let mut world = World::new(10_000, 0);
        let config = world.scheduler.config().clone();
        let states = StateConfig { n_lanes, ..config.states.expect("recurrent layers") };
        let choices = Choices { policy: PolicyKind::Priority, max_running, ..config.choices };
        world.scheduler =
            Scheduler::new(SchedulerConfig { states: Some(states), choices, ..config });
        world.add(0, text(0, 300), 200);
        let mut n_urgent = 0;
        while !world.scheduler.is_idle() {
            // An urgent request now and then, at other lengths of the open chunk each time.
            if world.n_steps % 37 == 20 {
                n_urgent += 1;
                world.add_urgent(n_urgent, text(n_urgent as u32, 10), 2);
            }
            world.step();
        }
        let n_anew = world.computed[&RequestId(0)] - 499;
        assert!(world.n_preempted > 4, "{} of {n_urgent}", world.n_preempted);
        assert!(n_anew <= world.n_preempted * CHUNK, "{n_anew} tokens, {}", world.n_preempted);
    }
}
