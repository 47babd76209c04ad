//! The engine thread: drain, schedule, execute, update, hand out; park when idle.

mod leading;
mod route;

use crate::beams::Groups;
use crate::feedback::Feedback;
use crate::mailbox::{Ended, Mail, Shared, Shutdown, Submission};
use crate::spec::{Proposer, Speculation};
use crate::{
    Drafting, EngineConfig, EngineHandle, EngineMetrics, Execution, Executor, Fault, KvCapacity,
    MarkKind, Panicked, SampledToken, TokenEvent, guard,
};
use pelton_base::{Ask, FinishReason, RequestId, Usage};
use pelton_sampling::{ScoredToken, TokenLogprobs};
use pelton_sched::{
    Choices, Scheduler, SchedulerOutput, SchedulerStats, SequenceUpdate, StepUpdates,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use route::{Route, end, sampled_tokens, send};

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts an engine thread that owns `executor`.
    ///
    /// # Panics
    ///
    /// Panics if a limit of `config` or the executor's capacity is below its documented minimum, if
    /// a proposer hands out blank drafts that the executor does not fill, or if the system refuses
    /// a thread.
    pub fn spawn(executor: impl Executor, config: EngineConfig) -> EngineHandle {
        let proposers = config.spec.proposers();
        Self::spawn_with(executor, config, proposers)
    }

    /// Starts an engine thread that owns `executor`, and `proposers` to draft for it.
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with(
        executor: impl Executor,
        config: EngineConfig,
        proposers: Vec<Box<dyn Proposer>>,
    ) -> EngineHandle {
        let (mut handle, mut engine) = EngineLoop::new(executor, config, proposers);
        let thread = std::thread::Builder::new()
            .name("pelton-engine".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || while engine.turn(true) {})
            .expect("the system gives the engine a thread");
        handle.run_by(thread);
        handle
    }

    /// Makes an engine without a thread, which advances when it is asked to. For simulations, which
    /// decide who acts next.
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    pub fn manual(
        executor: impl Executor,
        config: EngineConfig,
        proposers: Vec<Box<dyn Proposer>>,
    ) -> (EngineHandle, ManualEngine) {
        let (handle, mut engine) = EngineLoop::new(executor, config, proposers);
        (handle, ManualEngine { turn: Box::new(move || engine.turn(false)) })
    }
}

/// An engine whose loop somebody else drives, see [`Engine::manual`].
pub struct ManualEngine {
    turn: Box<dyn FnMut() -> bool + Send>,
}

impl ManualEngine {
    /// Takes the mail and makes one step, as the thread of an engine does, but does not wait where
    /// there is nothing to do. `false` once the engine has ended.
    pub fn turn(&mut self) -> bool {
        (self.turn)()
    }
}

impl std::fmt::Debug for ManualEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualEngine").finish_non_exhaustive()
    }
}

/// Stack of the threads that call rules of requests, in bytes: a rule may call itself for each part of
/// a deep grammar.
pub(crate) const STACK_BYTES: usize = 16 << 20;

/// The part of the work whose panic costs all requests, for errors.
const STEP: &str = "a step of the engine";

/// Logs the choices that matter most.
/// The usage of a request of which nothing is computed.
fn usage_before(ask: &Ask) -> Usage {
    Usage { prompt_tokens: ask.service.source.n_sent(ask.prompt.len()), ..Usage::default() }
}

fn log_start(choices: &Choices, kv: &KvCapacity) {
    let Choices { max_running, max_batch_tokens, max_step, .. } = choices;
    tracing::info!(
        "engine starts: policy {}, at most {max_running} requests and {max_batch_tokens} tokens in a \
         step of at most {} ms; {} blocks of {} tokens, and {} in swap memory",
        choices.policy.name(),
        max_step.as_millis(),
        kv.n_blocks,
        kv.block_size,
        kv.n_host_blocks
    );
}

struct EngineLoop<E> {
    executor: E,
    scheduler: Scheduler,
    /// Counts of the scheduler that a restart replaced.
    stats_before: SchedulerStats,
    feedback: Feedback,
    speculation: Speculation,
    beams: Groups,
    routes: HashMap<RequestId, Route>,
    /// Requests out of the mailbox that are not introduced yet.
    arrivals: VecDeque<Submission>,
    metrics: EngineMetrics,
    shared: Arc<Shared>,
    papers: Papers,
}

/// Plan, outcome and news of a step, whose memory is kept from step to step.
#[derive(Default)]
struct Papers {
    plan: SchedulerOutput,
    execution: Execution,
    updates: StepUpdates,
}

impl<E: Executor> EngineLoop<E> {
    fn new(
        mut executor: E,
        config: EngineConfig,
        proposers: Vec<Box<dyn Proposer>>,
    ) -> (EngineHandle, Self) {
        let fills_blanks = executor.drafting().is_some_and(|drafting| drafting.fills_blanks());
        let hands_out_blanks = proposers.iter().any(|proposer| proposer.abilities().is_late);
        assert!(fills_blanks || !hands_out_blanks, "the executor does not fill blank drafts");
        let kv = executor.kv_capacity();
        let vocab_size = executor.vocab_size();
        let sources = executor.sources();
        let scheduler_config = config.scheduler(kv, executor.max_context_tokens());
        let max_prompt_tokens = match &sources {
            Some(sources) => sources.most_prompt_tokens(&scheduler_config),
            None => scheduler_config.context_tokens() - 1,
        };
        let scheduler = Scheduler::new(scheduler_config.clone());
        let metrics = EngineMetrics {
            n_blocks: kv.n_blocks as usize,
            n_free_blocks: kv.n_blocks as usize,
            block_tokens: kv.block_size,
            windows: kv.windows,
            slo: config.choices.slo,
            n_host_blocks: kv.n_host_blocks as usize,
            ..EngineMetrics::default()
        };
        log_start(&config.choices, &kv);
        let shared = Shared::new(config.max_waiting_requests, scheduler_config, metrics);
        let shared = Arc::new(shared);
        let drafters = proposers.iter().map(|proposer| proposer.name()).collect();
        let handle = EngineHandle::new(
            Arc::clone(&shared),
            max_prompt_tokens,
            vocab_size,
            sources,
            drafters,
        );
        let speculation = Speculation::new(proposers, config.spec);
        let engine = Self {
            executor,
            scheduler,
            stats_before: SchedulerStats::default(),
            feedback: Feedback::new(&config),
            speculation,
            beams: Groups::default(),
            routes: HashMap::new(),
            arrivals: VecDeque::new(),
            metrics,
            shared,
            papers: Papers::default(),
        };
        (handle, engine)
    }

    /// One turn of the loop; `waits` says whether an idle engine waits for mail. `false` once it has
    /// ended: when shut down, or by a panic from which it does not recover.
    fn turn(&mut self, waits: bool) -> bool {
        let outcome = guard(STEP, || self.advance(waits));
        if let Err(panicked) = &outcome
            && self.metrics.n_restarts == 0
            && self.restart(panicked)
        {
            return true;
        }
        let goes_on = matches!(outcome, Ok(true));
        if !goes_on {
            self.end(outcome.err());
        }
        goes_on
    }

    /// Ends every stream, and the mailbox.
    fn end(&mut self, panicked: Option<Panicked>) {
        self.metrics.n_finished += self.routes.len() as u64;
        let (ended, how) = match &panicked {
            None => {
                for name in self.beams.names() {
                    self.drop_beams(name);
                }
                for &id in self.routes.keys() {
                    self.scheduler.abort(id);
                }
                self.scheduler.check_integrity();
                self.measure();
                self.sum_up();
                (Ended::Stopped, FinishReason::Aborted)
            }
            Some(_) => {
                tracing::error!("the engine has failed and takes no more requests");
                (self.metrics.n_running, self.metrics.n_waiting) = (0, 0);
                (Ended::Failed, FinishReason::Error)
            }
        };
        let left = self.shared.end(ended, self.metrics);
        self.end_routes(how, panicked.as_ref());
        let arrivals = std::mem::take(&mut self.arrivals);
        for Submission { events, request, .. } in arrivals.into_iter().chain(left.submissions) {
            let usage = usage_before(&request.ask);
            end(&events, how, panicked.clone().map(Fault::Panicked), usage, None);
        }
    }

    /// After a panic in a step: ends the requests that the engine had, and puts a new scheduler and
    /// an executor without memory of them in place. `false` where that panics, too.
    ///
    /// A panic leaves nothing half written outside of these two: proposers forget the requests one
    /// by one, prices and latencies are plain numbers, and the mailbox is never left half changed.
    /// Requests that are still in the mailbox are served.
    fn restart(&mut self, panicked: &Panicked) -> bool {
        let is_ready = guard("starting the engine anew", || {
            self.executor.reset();
            self.routes.keys().for_each(|&id| self.speculation.finished(id));
            self.stats_before = self.scheduler.stats();
            self.scheduler = Scheduler::new(self.shared.config.clone());
            self.beams.clear();
        });
        if is_ready.is_err() {
            return false;
        }
        let n_ended = self.routes.len();
        self.metrics.n_finished += n_ended as u64;
        self.metrics.n_restarts += 1;
        // A client that hears of the panic can see the restart.
        self.measure();
        self.shared.publish(&self.metrics, &self.scheduler);
        self.end_routes(FinishReason::Error, Some(panicked));
        tracing::error!(n_ended, "the engine starts anew without the requests that it had");
        true
    }

    /// Ends every stream that the engine knows.
    fn end_routes(&mut self, how: FinishReason, panicked: Option<&Panicked>) {
        for (_, Route { events, usage, started_at, .. }) in self.routes.drain() {
            end(&events, how, panicked.cloned().map(Fault::Panicked), usage, started_at);
        }
    }

    /// Takes the mail and makes a step; `false` when it is asked to end.
    fn advance(&mut self, waits: bool) -> bool {
        if self.scheduler.is_idle() {
            self.scheduler.check_integrity();
        }
        self.measure();
        let mail = self.shared.exchange(&self.metrics, &self.scheduler, waits);
        let shutdown = mail.shutdown;
        self.take_in(mail);
        match shutdown {
            Some(Shutdown::Abort) => return false,
            Some(Shutdown::Drain) if self.scheduler.is_idle() => return false,
            _ => {}
        }
        let mut papers = std::mem::take(&mut self.papers);
        self.step(&mut papers);
        self.papers = papers;
        true
    }

    /// Submissions that a panic leaves behind are taken in at the next turn.
    fn take_in(&mut self, mail: Mail) {
        self.arrivals.extend(mail.submissions);
        while let Some(submission) = self.arrivals.pop_front() {
            self.admit(submission);
        }
        for id in mail.aborts {
            if self.abort_search(id) {
                continue;
            }
            if self.scheduler.abort(id) {
                tracing::debug!(%id, "request aborted");
                self.forget(id);
            }
        }
    }

    /// Introduces a request to every part of the engine.
    fn admit(&mut self, submission: Submission) {
        let Submission { request, size, extras, beams, events, progress, at } = submission;
        let is_scored = extras.prompt_logprobs.is_some();
        self.metrics.n_submitted += 1;
        let n_prompt = request.ask.prompt.len();
        let usage = usage_before(&request.ask);
        let route = Route {
            events,
            n_prompt,
            usage,
            submitted_at: at,
            token_at: None,
            started_at: None,
            progress,
            logged_at: None,
        };
        // First of all, so that a panic below ends the stream.
        self.routes.insert(request.id, route);
        if let Some(params) = beams {
            return self.begin_search((request, size.n_cached), params, at);
        }
        if let Err(panicked) = self.executor.add(&request, extras) {
            self.metrics.n_panicked += 1;
            self.metrics.n_finished += 1;
            if let Some(route) = self.routes.remove(&request.id) {
                end(&route.events, FinishReason::Error, Some(panicked.into()), usage, None);
            }
            return;
        }
        tracing::debug!(id = %request.id, n_prompt, "request taken");
        self.speculation.add(&request);
        match is_scored {
            true => self.scheduler.add_scored_at(request, at),
            false => self.scheduler.add_at(request, at, size.n_cached),
        }
    }

    /// Plans a step, carries it out and hands out its tokens.
    fn step(&mut self, papers: &mut Papers) {
        let started = Instant::now();
        let now = self.shared.clock.tick(started);
        let Papers { plan, execution, updates } = papers;
        let signals = self.feedback.signals(now, self.scheduler.n_running());
        let mut drafting = self.executor.drafting();
        let odds = drafting.as_deref_mut().and_then(Drafting::odds);
        self.speculation.draft(&mut self.scheduler, &signals.cost, odds);
        if let Some(drafting) = drafting {
            drafting.report_candidates(self.speculation.n_candidates());
        }
        self.scheduler.schedule(now, &signals, plan);
        // Without shares there may still be transfers to wait for.
        if plan.is_empty() && plan.copies.is_empty() && self.scheduler.n_transfers() == 0 {
            return;
        }
        self.metrics.schedule_time += started.elapsed();
        let span = tracing::trace_span!("step", tick = now.0, n_tokens = plan.tokens.len());
        let _guard = span.enter();
        self.count(plan, started);
        execution.clear();
        let ready = Instant::now();
        self.executor.launch(plan);
        // Requests that are submitted during the step are judged by the current state.
        self.measure();
        self.shared.publish(&self.metrics, &self.scheduler);
        let outcome = self.executor.collect(plan, execution);
        let executed = Instant::now();
        self.metrics.execute_time += executed - ready;
        self.metrics.mask_time += execution.masking;
        self.note_end(plan, executed);
        match outcome {
            Ok(()) => {
                let now = self.shared.clock.tick(executed);
                let took = (executed - ready).saturating_sub(execution.drafting);
                // Waiting for a transfer does not show the price of computing.
                if !plan.is_empty() {
                    self.feedback.executed(now, &plan.load, took);
                }
                self.speculation.learn(plan, execution);
                self.metrics.spec = self.speculation.stats();
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "a step failed, and the requests in it");
                self.metrics.n_failed_steps += 1;
                execution.fail(plan);
            }
        }
        self.scheduler.update(&execution.step, updates);
        let at = Instant::now();
        self.metrics.schedule_time += at - executed;
        self.deliver(execution, updates, at);
        let elapsed = started.elapsed();
        self.metrics.step_time += elapsed;
        self.speculation.stepped(plan, execution.step.sampled.len(), elapsed);
    }

    /// Hands out the news of a step to requests and searches.
    fn deliver(&mut self, execution: &mut Execution, updates: &StepUpdates, at: Instant) {
        let mut logprobs: HashMap<RequestId, Vec<TokenLogprobs>> =
            execution.logprobs.drain(..).collect();
        let panics = execution.faults.iter().filter(|(_, f)| matches!(f, Fault::Panicked(_)));
        self.metrics.n_panicked += panics.count() as u64;
        let mut computed = Vec::new();
        for update in &updates.sequences {
            let logprobs = logprobs.remove(&update.id).unwrap_or_default();
            let fault = execution.faults.iter().find(|(id, _)| *id == update.id);
            let fault = fault.map(|(_, fault)| fault.clone());
            if let Some(search) = self.beams.of(update.id) {
                let report = logprobs.into_iter().next();
                let is_computed = self.note_beam(search, update, report, fault);
                computed.extend(is_computed.then_some(search));
                continue;
            }
            // A search that ended with one of its beams has no use for the others.
            if !self.routes.contains_key(&update.id) {
                continue;
            }
            let tokens = sampled_tokens(updates.tokens_of(update), logprobs);
            let scored = execution.prompts.iter_mut().find(|(id, _)| *id == update.id);
            let prompt = scored.map(|(_, prompt)| std::mem::take(prompt)).unwrap_or_default();
            self.hand_out(update, (tokens, prompt), fault, at);
        }
        for search in computed {
            self.advance_search(search, at);
        }
    }

    fn hand_out(
        &mut self,
        update: &SequenceUpdate,
        (tokens, prompt): (Vec<SampledToken>, Vec<ScoredToken>),
        fault: Option<Fault>,
        at: Instant,
    ) {
        let SequenceUpdate { id, finish, usage, .. } = *update;
        self.metrics.generated_tokens += tokens.len() as u64;
        let route = self.routes.get_mut(&id).expect("invariant: live requests have a route");
        route.usage = usage;
        route.progress.trace().ended(at, tokens.len());
        if !tokens.is_empty() {
            let (now, charts) = (self.shared.clock.tick(at), &mut self.feedback.charts);
            let n = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            match route.token_at.replace(now) {
                None => charts.ttft.record(now.0, now.0 - route.submitted_at.0, 1),
                Some(last) => charts.tpot.record(now.0, (now.0 - last.0) / u64::from(n), n),
            }
        }
        let started_at = route.started_at;
        let beams = Vec::new();
        let event = TokenEvent { tokens, finish, fault, usage, started_at, at, beams, prompt };
        send(&route.events, event);
        if finish.is_some() {
            self.forget(id);
        }
    }

    /// After a request has left the scheduler.
    fn forget(&mut self, id: RequestId) {
        let route = self.routes.remove(&id);
        let n_cached = route.map_or(0, |route| route.usage.cached_tokens);
        self.metrics.cached_prompt_tokens += n_cached as u64;
        self.executor.finished(id);
        self.speculation.finished(id);
        self.metrics.spec = self.speculation.stats();
        self.metrics.n_finished += 1;
    }

    /// Counts a step that is about to be executed.
    fn count(&mut self, plan: &SchedulerOutput, started: Instant) {
        self.metrics.n_steps += 1;
        self.metrics.step_tokens.add(plan.tokens.len());
        let now = self.shared.clock.tick(started);
        for id in &plan.preempted {
            if let Some(route) = self.routes.get(id) {
                route.progress.trace().step(MarkKind::Preempted, started, 0, 0);
            }
        }
        for share in &plan.sequences {
            let Some(route) = self.routes.get_mut(&share.id) else { continue };
            if route.started_at.is_none() {
                route.started_at = Some(started);
                self.feedback.charts.queue.record(now.0, now.0 - route.submitted_at.0, 1);
            }
            route.note(share, started);
            let n_prompt_rows = route.n_prompt.saturating_sub(share.first_position);
            self.metrics.prompt_tokens += n_prompt_rows.min(share.tokens.len()) as u64;
            if n_prompt_rows > 0 {
                route.progress(share.id, share.first_position, share.tokens.len(), started);
            }
        }
    }

    /// Notes the end of a step in the timelines of its requests.
    fn note_end(&self, plan: &SchedulerOutput, at: Instant) {
        for share in &plan.sequences {
            if let Some(route) = self.routes.get(&share.id) {
                route.progress.trace().ended(at, 0);
            }
        }
    }

    /// Logs the outcome of speculation at the end, if any draft was verified.
    fn sum_up(&self) {
        let stats = self.metrics.spec;
        let Some(tokens_per_step) = stats.tokens_per_step() else { return };
        tracing::info!(
            drafted = stats.n_drafted,
            accepted = stats.n_accepted,
            tokens_per_step,
            draft_ms = stats.draft_ns / 1_000_000,
            saved_ms = stats.saved_ns / 1_000_000,
            failures = stats.n_failures,
            "speculation in total"
        );
    }

    fn measure(&mut self) {
        self.metrics.n_running = self.scheduler.n_running();
        self.metrics.n_waiting = self.scheduler.n_waiting();
        self.metrics.n_free_blocks = self.scheduler.n_free_blocks();
        let (stats, before) = (self.scheduler.stats(), self.stats_before);
        let sum = |count: fn(&SchedulerStats) -> u64| count(&before) + count(&stats);
        self.metrics.n_preemptions = sum(|stats| stats.n_recomputed + stats.n_swapped);
        self.metrics.swapped_out_blocks = sum(|stats| stats.n_swapped_out_blocks);
        self.metrics.swapped_in_blocks = sum(|stats| stats.n_swapped_in_blocks);
        self.metrics.copied_blocks = sum(|stats| stats.n_copied_blocks);
        self.metrics.n_evicted_blocks = sum(|stats| stats.cache.n_evicted_blocks);
        let (now, is_idle) = (self.shared.clock.now(), self.scheduler.is_idle());
        self.feedback.write(now, is_idle, &mut self.metrics);
    }
}
