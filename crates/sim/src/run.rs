//! A running simulation: one step of it, and its entries in the ledger.

use crate::live::{Live, Window};
use crate::random::Random;
use crate::report::{Ledger, RefusalRecord};
use crate::simulate::{SimConfig, SimError};
use crate::trace::TraceRequest;
use pelton_base::{Ask, Request, SamplingParams, ServiceParams, Slo};
use pelton_sched::{
    Direction, Outlook, PrefixMarks, Prefixes, PromptSize, Refusal, Scheduler, SchedulerOutput,
    Signals, StepCost, StepLoad, StepOutput, StepUpdates, Tick,
};

/// Tokens of the vocabulary: enough that only prompts with the same prefixes are equal.
const VOCAB: u32 = 1 << 20;
/// Most steps in a row in which no request ends, while some run.
const PATIENCE_STEPS: u64 = 1_000_000;
/// Most empty plans in a row while requests wait.
const PATIENCE_EMPTY: u32 = 1_000;

/// A running simulation.
pub(super) struct Run<'a> {
    config: &'a SimConfig,
    signals: Signals,
    pub(super) scheduler: Scheduler,
    pub(super) live: Window,
    pub(super) outlook: Outlook,
    prefixes: Prefixes,
    noise: Random,
    pub(super) now_ns: u64,
    pub(super) ledger: Ledger,
    /// Passed to the scheduler again and again, so that no step allocates.
    plan: SchedulerOutput,
    answer: StepOutput,
    updates: StepUpdates,
    /// Computed tokens of each tenant until the last arrival.
    service: Vec<StepLoad>,
    busy_ns: u64,
    n_recomputed: u64,
    /// Preempted requests that lost some computed tokens, and those that lost none.
    n_back: (u64, u64),
    /// Blocks out and in.
    n_swapped: (u64, u64),
    /// Sums over steps, each times its nanoseconds.
    running_ns: u128,
    used_blocks_ns: u128,
    n_steps_at_last_end: u64,
    n_empty: u32,
}

impl<'a> Run<'a> {
    pub(super) fn new(config: &'a SimConfig) -> Self {
        Self {
            config,
            signals: Signals { cost: config.cost, ..Signals::default() },
            scheduler: Scheduler::new(config.scheduler.clone()),
            live: Window::default(),
            outlook: Outlook::default(),
            prefixes: Prefixes::new(&config.scheduler),
            noise: Random::new(config.seed, 0),
            now_ns: 0,
            ledger: Ledger::default(),
            plan: SchedulerOutput::default(),
            answer: StepOutput::default(),
            updates: StepUpdates::default(),
            service: vec![StepLoad::default(); config.scheduler.choices.tenants.len()],
            busy_ns: 0,
            n_recomputed: 0,
            n_back: (0, 0),
            n_swapped: (0, 0),
            running_ns: 0,
            used_blocks_ns: 0,
            n_steps_at_last_end: 0,
            n_empty: 0,
        }
    }

    /// Hands a request to the scheduler, or refuses it.
    pub(super) fn take_in(&mut self, request: &TraceRequest) {
        let number = self.ledger.n_offered;
        self.ledger.n_offered += 1;
        let scheduler_config = &self.config.scheduler;
        let service = request.service();
        let ask = Ask {
            prompt: request.prompt(number, VOCAB),
            sampling: SamplingParams::greedy(),
            choice: 0,
            max_tokens: request.n_output,
            stop_tokens: Vec::new(),
            service,
            prediction: Vec::new(),
            constraint: None,
        };
        let marks = PrefixMarks::new(&ask.prompt, &service);
        let size = self.prefixes.size(&marks);
        if let Err(refusal) = self.judge(size, &service) {
            self.ledger.refusals.push(RefusalRecord {
                tenant: request.tenant,
                n_prompt: u32::try_from(request.n_prompt).unwrap_or(u32::MAX),
                reason: reason(&refusal),
            });
            return;
        }
        self.outlook.add(size, &service, scheduler_config);
        self.prefixes.note(&marks);
        let slo = request.slo.or(self.default_slo(request));
        let id = self.live.insert(Live::new(*request, number, slo));
        self.scheduler.add_at(Request { id, ask }, Tick(request.at_ns), size.n_cached);
    }

    fn judge(&self, prompt: PromptSize, service: &ServiceParams) -> Result<(), Refusal> {
        let (config, n_prompt) = (&self.config.scheduler, prompt.n_tokens);
        let limit = config.context_tokens() - 1;
        if n_prompt > limit {
            return Err(Refusal::PromptTooLong { n_prompt, limit });
        }
        match self.config.admission {
            true => self.outlook.judge(prompt, service, config),
            false => Ok(()),
        }
    }

    fn default_slo(&self, request: &TraceRequest) -> Slo {
        let tenants = &self.config.scheduler.choices.tenants;
        tenants.get(request.tenant.0 as usize).unwrap_or(&tenants[0]).slo.or(self
            .config
            .scheduler
            .choices
            .slo)
    }

    /// One step; `is_loaded` says that more requests will arrive.
    pub(super) fn step(&mut self, is_loaded: bool) -> Result<(), SimError> {
        self.scheduler.schedule(Tick(self.now_ns), &self.signals, &mut self.plan);
        self.ledger.totals.steps += 1;
        self.n_empty = if self.plan.is_empty() { self.n_empty + 1 } else { 0 };
        let n_without_end = self.ledger.totals.steps - self.n_steps_at_last_end;
        if self.n_empty > PATIENCE_EMPTY || n_without_end > PATIENCE_STEPS {
            return Err(SimError::Stuck {
                at_ms: self.now_ns / 1_000_000,
                n_steps: self.ledger.totals.steps,
                state: self.scheduler.to_string(),
            });
        }
        if self.config.check {
            self.check();
        }
        self.execute(is_loaded);
        self.pass_time();
        self.scheduler.update(&self.answer, &mut self.updates);
        self.hand_out();
        Ok(())
    }

    /// Gives every share that samples its token, and notes the computed tokens of each tenant.
    fn execute(&mut self, is_loaded: bool) {
        self.answer.clear();
        for &id in &self.plan.preempted {
            self.live.get(id).give_way();
        }
        // The simulated machine copies within the step.
        self.answer.transferred.extend(self.plan.transfers.iter().map(|transfer| transfer.id));
        for share in &self.plan.sequences {
            let live = self.live.get(share.id);
            let n_tokens = share.tokens.len();
            let n_again = live.start(self.now_ns, share.first_position, n_tokens);
            self.n_recomputed += n_again as u64;
            if live.comes_back() {
                let way = if n_again > 0 { &mut self.n_back.0 } else { &mut self.n_back.1 };
                *way += 1;
            }
            if share.samples {
                self.answer.sampled.push((share.id, live.answer_token(share.n_generated, VOCAB)));
            }
            if is_loaded {
                let tenant = live.request.tenant.0 as usize;
                let tenant = if tenant < self.service.len() { tenant } else { 0 };
                let n_samples = usize::from(share.samples);
                self.service[tenant].add_rows(share.first_position, n_tokens, n_samples);
            }
        }
    }

    /// Advances the clock by the time of the step.
    fn pass_time(&mut self) {
        let mut step_ns = self.config.cost.step_ns(&self.plan.load);
        if self.config.noise > 0.0 {
            let factor = (1.0 + self.config.noise * self.noise.normal()).max(0.1);
            step_ns = (step_ns as f64 * factor) as u64;
        }
        let step_ns = step_ns.max(1);
        self.now_ns += step_ns;
        self.busy_ns += step_ns;
        let n_used = self.config.scheduler.n_blocks as usize - self.scheduler.n_free_blocks();
        self.running_ns += self.scheduler.n_running() as u128 * u128::from(step_ns);
        self.used_blocks_ns += n_used as u128 * u128::from(step_ns);
        let totals = &mut self.ledger.totals;
        totals.computed_tokens += self.plan.tokens.len() as u64;
        totals.preemptions += self.plan.preempted.len() as u64;
        self.n_swapped.0 += self.plan.n_moved(Direction::Out) as u64;
        self.n_swapped.1 += self.plan.n_moved(Direction::In) as u64;
    }

    /// Notes first tokens and ends in the ledger.
    fn hand_out(&mut self) {
        for update in &self.updates.sequences {
            if !update.new_tokens.is_empty() {
                self.live.get(update.id).receive(self.now_ns);
            }
            if let Some(finish) = update.finish {
                let live = self.live.remove(update.id);
                self.ledger.records.push(live.end(self.now_ns, finish, update.usage));
                self.n_steps_at_last_end = self.ledger.totals.steps;
            }
        }
    }

    /// Panics unless the scheduler is consistent and plans the right tokens.
    fn check(&mut self) {
        self.scheduler.check_integrity();
        for share in &self.plan.sequences {
            let live = self.live.get(share.id);
            for (&token, position) in self.plan.tokens_of(share).iter().zip(share.first_position..)
            {
                let expected = live.request.token(live.number, position, VOCAB);
                assert_eq!(token, expected, "{} at position {position}", share.id);
            }
        }
    }

    /// The ledger with its sums.
    pub(super) fn close(mut self) -> Ledger {
        let StepCost { token_ps, sample_ps, attended_ps, .. } = self.config.cost;
        let price = |load: &StepLoad| {
            let part = |n: u64, ps: u64| n as f64 * ps as f64;
            part(load.n_tokens, token_ps)
                + part(load.n_samples, sample_ps)
                + part(load.n_attended, attended_ps)
        };
        self.ledger.service = self.service.iter().map(price).collect();
        self.ledger.duration_s = self.now_ns as f64 / 1e9;
        let busy_ns = self.busy_ns.max(1) as f64;
        let n_blocks = f64::from(self.config.scheduler.n_blocks);
        let totals = &mut self.ledger.totals;
        totals.busy_s = self.busy_ns as f64 / 1e9;
        totals.recomputed_tokens = Some(self.n_recomputed);
        totals.recomputed_preemptions = Some(self.n_back.0);
        totals.restored_preemptions = Some(self.n_back.1);
        totals.swapped_out_blocks = Some(self.n_swapped.0);
        totals.swapped_in_blocks = Some(self.n_swapped.1);
        totals.mean_running = Some(self.running_ns as f64 / busy_ns);
        totals.mean_kv_share = Some(self.used_blocks_ns as f64 / busy_ns / n_blocks);
        self.ledger
    }
}

/// A refusal in a word or two.
fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::PromptTooLong { .. } => "prompt too long",
        Refusal::TenantQueueFull { .. } => "queue full",
        Refusal::DeadlineUnreachable { .. } => "deadline unreachable",
        _ => "cannot run",
    }
}
