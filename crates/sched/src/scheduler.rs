//! Who runs next, over one budget of tokens and time per step.

mod admission;
mod planning;

use crate::kv::Kv;
use crate::outlook::terms;
use crate::pace::Pace;
use crate::queue::{Queue, Spot};
use crate::sequence::{Parked, Preempted, Running, Sequence, Standing, Waiting};
use crate::tenants::Tenants;
use crate::{
    DraftTree, KvAllocation, Outlook, Policy, PreemptionMode, RadixStats, Refusal, SchedulerConfig,
    SchedulerOutput, Signals, StepOutput, StepUpdates, Tick, config, outlook,
};
use pelton_base::{Ask, Namespace, Request, RequestId, TokenId};
use std::collections::HashMap;

/// Decides which tokens run next and where their KV lives.
///
/// [`schedule`](Self::schedule) and [`update`](Self::update) take turns; requests may be added and
/// aborted at any time, also between the two.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    policy: &'static dyn Policy,
    kv: Kv,
    /// Those that hold blocks, in order of standing.
    running: Vec<Running>,
    /// Those that hold none.
    queue: Queue,
    tenants: Tenants,
    pace: Pace,
    /// Sampled tokens of the last step, with their rank in it; sorted, for searching.
    sampled: Vec<(RequestId, usize, TokenId)>,
    /// Where each lane of the queue was looked at last, in the plan being made.
    cursors: Vec<Option<Standing>>,
    /// Set by a preemption for want of blocks, until there is room again.
    is_recovering: bool,
    signals: Signals,
    /// The strictest target for the first token among late arrivals, in nanoseconds.
    recent_ttft_ns: Option<u64>,
    next_arrival: u64,
    now: Tick,
    stats: SchedulerStats,
}

/// A request that generates, as drafts are proposed for it.
#[derive(Debug)]
pub struct Generating<'a> {
    /// Which.
    pub id: RequestId,
    /// Prompt, then output.
    pub tokens: &'a [TokenId],
    /// How many of them are the prompt.
    pub n_prompt: usize,
    /// Most drafts that are of use; more are dropped.
    pub most_drafts: usize,
    /// Guesses at the tokens that follow; empty after each step.
    pub drafts: &'a mut DraftTree,
}

/// What happened since the scheduler was made, as sums.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SchedulerStats {
    /// Requests whose KV was forgotten to make room.
    pub n_recomputed: u64,
    /// Requests whose KV was copied to the host to make room.
    pub n_swapped: u64,
    /// Blocks copied to the host.
    pub n_swapped_out_blocks: u64,
    /// Blocks copied back.
    pub n_swapped_in_blocks: u64,
    /// Blocks copied so that a sequence could go on from a prefix that ends within one.
    pub n_copied_blocks: u64,
    /// Times that a request was held back for a step because another was computing its prefix.
    pub n_deferrals: u64,
    /// Requests that waited too long and went first.
    pub n_promoted: u64,
    /// Choices that began with the KV of another choice.
    pub n_forked: u64,
    /// The prefix cache.
    pub cache: RadixStats,
}

impl Scheduler {
    /// Creates an idle scheduler.
    ///
    /// # Panics
    ///
    /// Panics if a limit of `config` is below the minimum that its field documents.
    pub fn new(config: SchedulerConfig) -> Self {
        config.check();
        let policy = config.choices.policy.policy();
        let queue = Queue::new(policy, config.choices.tenants.len());
        Self {
            policy,
            kv: Kv::new(&config),
            running: Vec::new(),
            cursors: vec![None; queue.n_lanes()],
            queue,
            tenants: Tenants::new(&config.choices.tenants),
            pace: Pace::default(),
            sampled: Vec::new(),
            is_recovering: false,
            signals: Signals::default(),
            recent_ttft_ns: None,
            next_arrival: 0,
            now: Tick::default(),
            stats: SchedulerStats::default(),
            config,
        }
    }

    /// Takes a request in, as having arrived at the time of the last plan; see
    /// [`add_at`](Self::add_at).
    pub fn add(&mut self, request: Request) {
        self.add_at(request, self.now);
    }

    /// Takes a request in that arrived at `at`, which is no earlier than the arrival of those before.
    ///
    /// # Panics
    ///
    /// Panics if [`admits`](Self::admits) refuses the request, which the caller has asked before, or
    /// if a live one has its name.
    pub fn add_at(&mut self, request: Request, at: Tick) {
        if let Err(refusal) = self.admits(request.ask.prompt.len(), request.ask.max_tokens) {
            panic!("{} can never run: {refusal}", request.id);
        }
        assert!(!self.is_live(request.id), "{} is here already", request.id);
        let Request { id, ask } = request;
        let Ask { prompt, max_tokens, stop_tokens, service, .. } = ask;
        let (tenant, terms) = terms(&service, &self.config);
        let slo = service.slo.or(terms.slo).or(self.config.choices.slo);
        if let Some(target) = slo.ttft.map(config::nanoseconds) {
            // The last arrivals count most.
            let before = self.recent_ttft_ns.map_or(target, |ns| ns.saturating_add(ns / 4));
            self.recent_ttft_ns = Some(before.min(target));
        }
        let prefill_ns =
            self.signals.cost.prefill_ns(0, prompt.len(), self.config.choices.chunk_tokens());
        let rank = self.config.rank(at, &service, prefill_ns);
        let namespace = match self.config.choices.prefix_cache {
            true => service.namespace,
            // A namespace of its own: it finds again what it left itself, and nobody else does.
            false => Namespace(self.next_arrival),
        };
        self.tenants.waits(tenant);
        self.queue.push(Parked::Waiting(Waiting(Sequence {
            id,
            standing: Standing::new(rank, self.next_arrival),
            arrived_at: at,
            tenant,
            namespace,
            slo,
            fork_of: service.fork_of,
            n_prompt: prompt.len(),
            tokens: prompt,
            max_tokens,
            stop_tokens,
            n_cached: None,
            n_accepted: 0,
            n_rejected: 0,
            first_token_at: None,
        })));
        self.next_arrival += 1;
    }

    /// Forgets a request, freeing its blocks; `false` when it is not here (any more).
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(idx) = self.running.iter().position(|running| running.sequence.id == id) {
            self.complete(idx);
            return true;
        }
        let Some(spot) = self.queue.find(id) else { return false };
        self.unpark(spot);
        true
    }

    /// Takes in what came of the last plan, and replaces `updates` by the news of each sequence that
    /// has any.
    ///
    /// Requests that were aborted since the plan was made are ignored.
    pub fn update(&mut self, step: &StepOutput, updates: &mut StepUpdates) {
        updates.clear();
        self.kv.end_plan();
        self.sampled.clear();
        let ranked = step.sampled.iter().enumerate();
        self.sampled.extend(ranked.map(|(rank, &(id, token))| (id, rank, token)));
        self.sampled.sort_unstable();
        let context = self.config.context_tokens();
        let mut idx = 0;
        while idx < self.running.len() {
            let running = &mut self.running[idx];
            // Guesses that found no room are stale now.
            running.drafts.clear();
            if !running.is_in_flight() {
                idx += 1;
                continue;
            }
            let id = running.sequence.id;
            let first = self.sampled.partition_point(|sampled| sampled.0 < id);
            let n_sampled = self.sampled[first..].partition_point(|sampled| sampled.0 == id);
            let sampled = self.sampled[first..][..n_sampled].iter().map(|sampled| sampled.2);
            let failed = step.failed.contains(&id);
            let update = running.absorb(sampled, failed, context, &mut updates.tokens);
            if update.as_ref().is_some_and(|update| update.finish.is_some()) {
                self.pace.ended();
                self.complete(idx);
            } else {
                self.tidy(idx);
                idx += 1;
            }
            updates.sequences.extend(update);
        }
    }

    /// After a step of one that goes on: rejected drafts lose their blocks, and what of the prompt is
    /// new is remembered.
    fn tidy(&mut self, idx: usize) {
        let Running { sequence, held, n_computed, .. } = &mut self.running[idx];
        if self.config.choices.kv_allocation == KvAllocation::Paged {
            self.kv.shrink(held, sequence.tokens.len());
        }
        self.kv.remember(held, sequence, (*n_computed).min(sequence.n_prompt));
    }

    /// Every request that generates, in order of standing: drafts of what may follow can be added to
    /// each, and are verified in the next plan. They are dropped where they find no room.
    pub fn generating(&mut self) -> impl Iterator<Item = Generating<'_>> {
        let context = self.config.context_tokens();
        let rows =
            self.running.iter_mut().filter(|row| !row.is_catching_up() && !row.is_in_flight());
        rows.map(move |running| {
            let most_drafts = running.sequence.most_drafts(context);
            let Running { sequence, drafts, .. } = running;
            Generating {
                id: sequence.id,
                tokens: &sequence.tokens,
                n_prompt: sequence.n_prompt,
                most_drafts,
                drafts,
            }
        })
    }

    /// Proposes tokens that may follow what one request has; how many were taken, which is none for
    /// requests that do not generate. See [`generating`](Self::generating).
    pub fn draft(&mut self, id: RequestId, drafts: &DraftTree) -> usize {
        let Some(generating) = self.generating().find(|generating| generating.id == id) else {
            return 0;
        };
        generating.drafts.clone_from(drafts);
        generating.drafts.truncate(generating.most_drafts);
        generating.drafts.len()
    }

    /// Tells whether a request could run if it were alone.
    ///
    /// `max_tokens` beyond the context is no obstacle: the answer then ends at the context.
    ///
    /// # Errors
    ///
    /// Says what stands in the way.
    pub fn admits(&self, n_prompt: usize, max_tokens: usize) -> Result<(), Refusal> {
        let limit = self.config.context_tokens() - 1;
        if n_prompt == 0 {
            Err(Refusal::EmptyPrompt)
        } else if max_tokens == 0 {
            Err(Refusal::NothingToGenerate)
        } else if n_prompt > limit {
            Err(Refusal::PromptTooLong { n_prompt, limit })
        } else {
            Ok(())
        }
    }

    /// Tells newcomers what to expect; `outlook` keeps its memory.
    pub fn outlook(&self, outlook: &mut Outlook) {
        let cost = self.signals.cost;
        let chunk = self.config.choices.chunk_tokens();
        let catching_up = self.running.iter().filter(|running| running.is_catching_up());
        let running_ns: u64 = catching_up
            .map(|running| cost.prefill_ns(running.n_computed, running.n_remaining(), chunk))
            .sum();
        // As if all were one prompt from position 0 each: their attention is left out, which makes
        // the outlook a little too bright rather than refusing what could be served.
        let n_tokens = self.queue.n_tokens();
        let n_steps = n_tokens.div_ceil(chunk as u64).max(self.queue.len() as u64);
        let waiting_ps = n_tokens
            .saturating_mul(cost.token_ps)
            .saturating_add(n_steps.saturating_mul(cost.base_ps));
        outlook.cost = cost;
        outlook.now = self.now;
        outlook.urgent.clear();
        if self.policy.is_by_rank() {
            self.tell_urgent(&mut outlook.urgent);
        }
        outlook.backlog_ns = running_ns.saturating_add(waiting_ps / 1000);
        outlook.stretch = self.pace.stretch();
        outlook.ending_ns = self.pace.ending_ns();
        outlook.n_waiting = self.queue.len();
        let has_room = self.kv.n_available() > self.config.watermark_blocks();
        let n_free_places = self.max_running().saturating_sub(self.running.len());
        outlook.n_places = if has_room { n_free_places } else { 0 };
        outlook.waiting_by_tenant.clear();
        outlook.waiting_by_tenant.extend(self.tenants.n_waiting());
    }

    /// The prompts that are computed next, with their ranks.
    fn tell_urgent(&self, urgent: &mut Vec<(i64, u64)>) {
        let (cost, chunk) = (&self.signals.cost, self.config.choices.chunk_tokens());
        let catching_up = self.running.iter().filter(|running| running.is_catching_up());
        let running = catching_up.map(|running| {
            let left_ns = cost.prefill_ns(running.n_computed, running.n_remaining(), chunk);
            (running.sequence.standing.rank(), left_ns)
        });
        let waiting = self.queue.iter().map(|parked| {
            let sequence = parked.sequence();
            (sequence.standing.rank(), cost.prefill_ns(0, sequence.tokens.len(), chunk))
        });
        urgent.extend(running.chain(waiting).take(outlook::MOST_URGENT));
        urgent.sort_unstable();
    }

    /// The limits it was made with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// What happened so far.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats { cache: self.kv.cache_stats(), ..self.stats }
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.len() == 0
    }

    /// Requests that hold blocks.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for blocks, preempted ones included.
    pub fn n_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Blocks that a request could have: free ones, and cached ones that nobody uses.
    pub fn n_free_blocks(&self) -> usize {
        self.kv.n_available()
    }

    /// Panics if anything contradicts anything else. Cost is linear in all that there is.
    pub fn check_integrity(&self) {
        self.queue.check_integrity();
        let held = self.running.iter().map(|running| (&running.held, running.n_computed));
        self.kv.check_integrity(held, self.queue.iter().filter_map(Parked::host));
        assert_eq!(self.tenants.n_live(), (self.queue.len(), self.running.len()));
        let mut standings = self.running.iter().map(|running| running.sequence.standing);
        assert!(standings.by_ref().is_sorted(), "running requests are out of order");
        let mut names = HashMap::new();
        let running = self.running.iter().map(|running| &running.sequence);
        for sequence in running.chain(self.queue.iter().map(Parked::sequence)) {
            let id = sequence.id;
            assert!(names.insert(id, ()).is_none(), "{id} is in two states");
            assert!(sequence.tokens.len() <= self.config.context_tokens(), "{id}: the context");
            assert!(sequence.tokens.len() >= sequence.n_prompt, "{id} lost a part of its prompt");
        }
        for Running { sequence, held, n_computed, .. } in &self.running {
            let Sequence { id, tokens, .. } = sequence;
            assert!(*n_computed <= tokens.len(), "{id} computed tokens it does not have");
            let n_blocks = held.table.blocks().len();
            let n_needed = self.config.blocks_for(*n_computed);
            assert!(n_blocks >= n_needed, "{id} has {n_blocks} blocks, needs {n_needed}");
        }
    }

    /// Most requests that may run now.
    fn max_running(&self) -> usize {
        self.config.choices.max_running.min(self.signals.max_running).max(1)
    }

    fn is_live(&self, id: RequestId) -> bool {
        self.queue.find(id).is_some() || self.running.iter().any(|live| live.sequence.id == id)
    }

    /// Takes somebody out of the queue for good.
    fn unpark(&mut self, spot: Spot) {
        let (sequence, host) = self.queue.take(spot).into_parts();
        self.tenants.waits_no_more(sequence.tenant);
        if let Some(host) = host {
            self.kv.drop_host(host);
        }
    }

    /// Ends one that runs, whatever the reason. It leaves nothing behind but its cached prefix.
    fn complete(&mut self, idx: usize) {
        let Running { sequence, held, n_computed, .. } = self.running.remove(idx);
        self.tenants.runs_no_more(sequence.tenant);
        self.kv.release(held, &sequence, n_computed, self.config.choices.prefix_cache);
    }

    /// Makes one that runs give its blocks up; it will run again.
    fn preempt(&mut self, idx: usize, output: &mut SchedulerOutput) {
        let Running { sequence, held, n_computed, .. } = self.running.remove(idx);
        let host = match self.is_swap_cheaper(n_computed) {
            true => self.kv.swap_out(&held, n_computed, output),
            false => None,
        };
        match &host {
            Some(_) => self.stats.n_swapped += 1,
            None => self.stats.n_recomputed += 1,
        }
        self.kv.release(held, &sequence, n_computed, true);
        output.preempted.push(sequence.id);
        self.tenants.runs_no_more(sequence.tenant);
        self.tenants.waits(sequence.tenant);
        self.queue.push(Parked::Preempted(Preempted { sequence, host }));
    }

    fn is_swap_cheaper(&self, n_computed: usize) -> bool {
        let cost = &self.signals.cost;
        let n_moves = 2 * self.config.blocks_for(n_computed) as u64;
        let swap_ns = n_moves.saturating_mul(cost.moved_block_ps) / 1000;
        match self.config.choices.preemption {
            PreemptionMode::Recompute => false,
            PreemptionMode::Swap => true,
            PreemptionMode::ByCost => {
                let chunk = self.config.choices.chunk_tokens();
                cost.is_known() && swap_ns < cost.prefill_ns(0, n_computed, chunk)
            }
        }
    }
}

/// One line for logs and text tables: who is where, with `computed/known` tokens, and blocks that
/// can be had.
impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "running")?;
        for Running { sequence, n_computed, .. } in &self.running {
            write!(f, " {}({n_computed}/{})", sequence.id.0, sequence.tokens.len())?;
        }
        write!(f, " | waiting")?;
        for parked in self.queue.iter() {
            let sign = match parked {
                Parked::Waiting(_) => "",
                Parked::Preempted(preempted) if preempted.host.is_some() => "s",
                Parked::Preempted(_) => "p",
            };
            write!(f, " {}{sign}", parked.sequence().id.0)?;
        }
        write!(f, " | free {}", self.kv.n_free())?;
        if self.kv.n_cached() > 0 {
            write!(f, " + {} cached", self.kv.n_cached())?;
        }
        if self.config.n_host_blocks > 0 {
            write!(f, " | host {}", self.kv.n_free_host())?;
        }
        Ok(())
    }
}
