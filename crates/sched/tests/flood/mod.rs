//! A scheduler under floods of requests, step by step.
#![allow(dead_code, reason = "each test file uses its own part")]

use pelton_base::{
    Ask, Namespace, Request, RequestId, SamplingParams, ServiceParams, TenantId, TokenId,
};
use pelton_sched::{
    Choices, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepCost, StepLoad, StepOutput,
    StepUpdates, TenantConfig, Tick,
};
use std::collections::HashMap;

pub(crate) const COST: StepCost = StepCost {
    base_ps: 18_000_000_000,
    token_ps: 1_300_000_000,
    sample_ps: 50_000_000,
    attended_ps: 300_000,
    moved_block_ps: 20_000_000,
};
pub(crate) const MS: u64 = 1_000_000;
/// Longest prompt and longest answer of a flood.
const MOST_PROMPT: u64 = 300;
const MOST_ANSWER: u64 = 100;
pub(crate) const LONGEST: u64 = MOST_PROMPT + MOST_ANSWER;

/// A scheduler under floods of requests, with a pool that holds all that run.
pub(crate) struct Flood {
    pub(crate) scheduler: Scheduler,
    pub(crate) signals: Signals,
    pub(crate) now_ns: u64,
    random: u64,
    pub(crate) plan: SchedulerOutput,
    /// Tenant of each request.
    pub(crate) tenants: HashMap<RequestId, u32>,
    /// Tokens computed for each tenant, and in all.
    pub(crate) computed: HashMap<u32, u64>,
    pub(crate) n_computed: u64,
    pub(crate) n_ended: HashMap<u32, u64>,
}

impl Flood {
    pub(crate) fn new(choices: Choices, cost: StepCost) -> Self {
        Self {
            scheduler: Scheduler::new(SchedulerConfig {
                choices,
                ..SchedulerConfig::new(100_000, 16)
            }),
            signals: Signals { cost, ..Signals::default() },
            now_ns: 0,
            random: 1,
            plan: SchedulerOutput::default(),
            tenants: HashMap::new(),
            computed: HashMap::new(),
            n_computed: 0,
            n_ended: HashMap::new(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % n
    }

    /// Adds a request of random length that shares no prefix with another.
    pub(crate) fn add(&mut self, tenant: u32, priority: i32) {
        let (n_prompt, max_tokens) = (1 + self.below(MOST_PROMPT), 1 + self.below(MOST_ANSWER));
        self.add_sized(tenant, priority, n_prompt as usize, max_tokens as usize);
    }

    pub(crate) fn add_sized(
        &mut self,
        tenant: u32,
        priority: i32,
        n_prompt: usize,
        max_tokens: usize,
    ) {
        let id = RequestId(self.tenants.len() as u64);
        self.tenants.insert(id, tenant);
        let service = ServiceParams {
            tenant: TenantId(tenant),
            priority,
            namespace: Namespace(id.0),
            ..ServiceParams::default()
        };
        let ask = Ask {
            prompt: vec![TokenId(1); n_prompt],
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens,
            stop_tokens: Vec::new(),
            service,
            prediction: Vec::new(),
            constraint: None,
        };
        self.scheduler.add_at(Request { id, ask }, Tick(self.now_ns), 0);
    }

    /// Carries out a step.
    pub(crate) fn step(&mut self) {
        self.scheduler.schedule(Tick(self.now_ns), &self.signals, &mut self.plan);
        let mut answer = StepOutput::default();
        for share in &self.plan.sequences {
            let n_tokens = share.tokens.len() as u64;
            *self.computed.entry(self.tenants[&share.id]).or_default() += n_tokens;
            self.n_computed += n_tokens;
            if share.samples {
                answer.sampled.push((share.id, TokenId(7)));
            }
        }
        self.now_ns += self.signals.cost.step_ns(&self.plan.load).max(MS);
        let mut updates = StepUpdates::default();
        self.scheduler.update(&answer, &mut updates);
        for update in updates.sequences.iter().filter(|update| update.finish.is_some()) {
            *self.n_ended.entry(self.tenants[&update.id]).or_default() += 1;
        }
    }

    /// Requests of a tenant that have not ended.
    pub(crate) fn n_live(&self, tenant: u32) -> u64 {
        let n_added = self.tenants.values().filter(|&&other| other == tenant).count() as u64;
        n_added - self.n_ended.get(&tenant).copied().unwrap_or(0)
    }

    /// The work of the plan's rows that generate.
    pub(crate) fn rows(&self) -> StepLoad {
        let mut rows = StepLoad::default();
        for share in self.plan.sequences.iter().filter(|share| share.n_generated > 0) {
            rows.add_rows(share.first_position, 1, 1);
        }
        rows
    }
}

/// Tenants with these weights.
pub(crate) fn tenants(weights: &[u32]) -> Vec<TenantConfig> {
    let tenant = |(i, &weight): (usize, &u32)| TenantConfig {
        name: format!("t{i}"),
        weight,
        ..TenantConfig::default()
    };
    weights.iter().enumerate().map(tenant).collect()
}
