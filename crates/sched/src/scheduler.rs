//! The states of all requests, and the calls that change them.

mod admission;
mod integrity;
mod leading;
mod planning;
mod prospects;
mod reserve;
mod states;
mod transitions;

use crate::guard::Guard;
use crate::kv::Kv;
use crate::outlook::terms;
use crate::pace::Pace;
use crate::queue::Queue;
use crate::sequence::{Loading, Parked, Preempted, Running, Sequence, Standing, Waiting};
use crate::tenants::Tenants;
use crate::{
    DraftTree, KvAllocation, Policy, PromptSize, RadixStats, Refusal, SchedulerConfig, Signals,
    StepOutput, StepUpdates, Tick, config,
};
use pelton_base::{Ask, FinishReason, Namespace, Request, RequestId, TokenId};

/// Decides which tokens run next and where their KV lives.
///
/// [`schedule`](Self::schedule) and [`update`](Self::update) take turns; requests may be added and
/// aborted at any time, also between the two.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    policy: &'static dyn Policy,
    kv: Kv,
    /// Requests that are computed, in order of standing.
    running: Vec<Running>,
    /// Requests that hold blocks whose KV is on its way.
    loading: Vec<Loading>,
    /// Requests that hold no blocks.
    queue: Queue,
    /// Led requests that gave up their blocks while they rested. They have nothing to compute, so
    /// they do not wait for blocks before they get a token.
    resting: Vec<Preempted>,
    tenants: Tenants,
    guard: Guard,
    /// Whether the step at hand is for tenants below their share alone.
    is_kept: bool,
    pace: Pace,
    /// Sampled tokens of the last step, with their rank in it; sorted, for searching.
    sampled: Vec<(RequestId, usize, TokenId)>,
    /// The last request looked at in each lane of the queue, while a plan is made.
    cursors: Vec<Option<Standing>>,
    /// Whether a request was preempted for want of blocks and none was admitted since.
    is_recovering: bool,
    signals: Signals,
    /// The strictest target for the first token among late arrivals, in nanoseconds.
    recent_ttft_ns: Option<u64>,
    next_arrival: u64,
    now: Tick,
    stats: SchedulerStats,
}

/// The special treatment of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Plain,
    /// The caller gives it its tokens.
    Led,
    /// Its prompt is scored.
    Scored,
}

/// A request that generates, and the drafts for it.
#[derive(Debug)]
pub struct Generating<'a> {
    /// The request.
    pub id: RequestId,
    /// Prompt, then output.
    pub tokens: &'a [TokenId],
    /// Number of tokens of the prompt.
    pub n_prompt: usize,
    /// Most drafts that are of use; more are dropped.
    pub most_drafts: usize,
    /// Guesses at the tokens that follow; empty after each step.
    pub drafts: &'a mut DraftTree,
}

/// Counts since the scheduler was made.
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
    /// Blocks copied so that a sequence could go on from a prefix that ends within a block.
    pub n_copied_blocks: u64,
    /// Times that a request was held back for a step because another was computing its prefix, or
    /// because its KV was on its way to the host.
    pub n_deferrals: u64,
    /// Requests that were put first because they waited too long.
    pub n_promoted: u64,
    /// Tokens that were computed for them.
    pub n_promoted_tokens: u64,
    /// Requests that began with the KV of the running request that they name.
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
            loading: Vec::new(),
            resting: Vec::new(),
            cursors: vec![None; queue.n_lanes()],
            queue,
            tenants: Tenants::new(&config.choices.tenants),
            guard: Guard::default(),
            is_kept: false,
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

    /// Adds a request that arrived at the time of the last plan, and of whose prompt nothing is
    /// expected to be cached; see [`add_at`](Self::add_at).
    pub fn add(&mut self, request: Request) {
        self.add_at(request, self.now, 0);
    }

    /// Adds a request that arrived at `at`, which is no earlier than the arrivals before it.
    ///
    /// The first `n_cached` tokens of its prompt are expected in the prefix cache. While it waits, the
    /// [`Outlook`](crate::Outlook) leaves them out; what is computed does not depend on it.
    ///
    /// # Panics
    ///
    /// Panics if [`admits`](Self::admits) refuses the request, which the caller checks before, or
    /// if a live request has the same id.
    pub fn add_at(&mut self, request: Request, at: Tick, n_cached: usize) {
        self.enter(request, at, n_cached, Kind::Plain);
    }

    /// Adds a request whose prompt is scored: every row of the prompt is computed once, and most of
    /// them only once. It shares no KV: it finds none but its own, where it was preempted, and leaves
    /// none in the cache when it ends. A request that it names as the one it continues is ignored.
    ///
    /// # Panics
    ///
    /// As [`add_at`](Self::add_at).
    pub fn add_scored_at(&mut self, request: Request, at: Tick) {
        self.enter(request, at, 0, Kind::Scored);
    }

    fn enter(&mut self, request: Request, at: Tick, n_cached: usize, kind: Kind) {
        if let Err(refusal) = self.admits(request.ask.prompt.len(), request.ask.max_tokens) {
            panic!("{} can never run: {refusal}", request.id);
        }
        assert!(!self.is_live(request.id), "{} is here already", request.id);
        let Request { id, ask } = request;
        let Ask { prompt, max_tokens, stop_tokens, service, .. } = ask;
        let (tenant, terms) = terms(&service, &self.config);
        let slo = service.slo.or(terms.slo).or(self.config.choices.slo);
        if let Some(target) = slo.ttft.map(config::nanoseconds) {
            // A target fades with each later arrival.
            let before = self.recent_ttft_ns.map_or(target, |ns| ns.saturating_add(ns / 4));
            self.recent_ttft_ns = Some(before.min(target));
        }
        let prefill_ns =
            self.signals.cost.prefill_ns(0, prompt.len(), self.config.choices.chunk_tokens());
        let rank = self.config.rank(at, &service, prefill_ns);
        let size = PromptSize { n_tokens: prompt.len(), n_cached }.waiting(&service);
        let is_scored = kind == Kind::Scored;
        let namespace = match self.config.choices.prefix_cache {
            // Namespaces of tenants are hashes, and those of arrivals are counted from 0.
            _ if is_scored => Namespace(u64::MAX - self.next_arrival),
            true => service.namespace.of_source(&prompt[..service.source.n_tokens]),
            // A namespace of its own: the request alone finds the KV that it left in the cache.
            false => Namespace(self.next_arrival),
        };
        self.tenants.waits(tenant);
        let sequence = Sequence {
            id,
            standing: Standing::new(rank, self.next_arrival),
            arrived_at: at,
            tenant,
            namespace,
            slo,
            fork_of: service.fork_of.filter(|_| !is_scored),
            is_led: kind == Kind::Led,
            is_scored,
            n_prompt: prompt.len(),
            source: service.source,
            tokens: prompt,
            max_tokens,
            stop_tokens,
            n_cached: None,
            // A scored prompt is computed whole.
            n_expected: if is_scored { 0 } else { size.n_cached },
            n_accepted: 0,
            n_rejected: 0,
            first_token_at: None,
        };
        self.mark_for_arrival(&sequence);
        self.queue.push(Parked::Waiting(Waiting(sequence)));
        self.next_arrival += 1;
    }

    /// Forgets a request and frees its blocks, those of a transfer when it is over. `false` when
    /// the request is unknown or has ended.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let loading = self.loading.iter().position(|loading| loading.running.sequence.id == id);
        if let Some(idx) = loading {
            self.abandon(idx);
            return true;
        }
        if let Some(idx) = self.running.iter().position(|running| running.sequence.id == id) {
            let is_in_flight = self.running[idx].is_in_flight();
            self.complete(idx, !is_in_flight);
            return true;
        }
        if let Some(spot) = self.queue.find(id) {
            self.unpark(spot);
            return true;
        }
        self.wake(id).is_some_and(|Preempted { host, .. }| {
            host.into_iter().for_each(|host| self.kv.drop_host(host));
            true
        })
    }

    /// Takes in the outcome of the last plan, and replaces `updates` by the news of each sequence
    /// that has any.
    ///
    /// Requests that were aborted since the plan was made are ignored.
    ///
    /// # Panics
    ///
    /// Panics if the outcome reports a transfer that is not under way.
    pub fn update(&mut self, step: &StepOutput, updates: &mut StepUpdates) {
        updates.clear();
        self.kv.end_plan();
        for &id in &step.transferred {
            self.arrive(id);
        }
        self.sampled.clear();
        let ranked = step.sampled.iter().enumerate();
        self.sampled.extend(ranked.map(|(rank, &(id, token))| (id, rank, token)));
        self.sampled.sort_unstable();
        let context = self.config.context_tokens();
        let mut idx = 0;
        while idx < self.running.len() {
            let running = &mut self.running[idx];
            // Drafts that found no room are out of date.
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
            match update.as_ref().and_then(|update| update.finish) {
                Some(finish) => {
                    self.pace.ended();
                    self.complete(idx, finish != FinishReason::Error);
                }
                None => {
                    self.tidy(idx);
                    idx += 1;
                }
            }
            updates.sequences.extend(update);
        }
    }

    /// Gives back the blocks of rejected drafts, and offers newly computed blocks of the prompt to
    /// the cache, after a step of a sequence that goes on.
    fn tidy(&mut self, idx: usize) {
        self.settle(idx, true);
        let Running { sequence, held, n_computed, .. } = &mut self.running[idx];
        if self.config.choices.kv_allocation == KvAllocation::Paged {
            self.kv.shrink(held, sequence.tokens.len());
        }
        if !sequence.is_scored {
            self.kv.remember(held, sequence, (*n_computed).min(sequence.n_prompt));
        }
    }

    /// Every request that generates, in order of standing. Drafts that are added to it are verified
    /// in the next plan, or dropped where they find no room.
    pub fn generating(&mut self) -> impl Iterator<Item = Generating<'_>> {
        let config = &self.config;
        let rows = self.running.iter_mut().filter(|row| row.takes_drafts());
        rows.map(move |running| {
            let most_drafts = running.sequence.most_drafts(config);
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

    /// Adds drafts to one request and returns how many were taken: none where the request does not
    /// generate. See [`generating`](Self::generating).
    pub fn draft(&mut self, id: RequestId, drafts: &DraftTree) -> usize {
        let mut rows = self.running.iter_mut().filter(|row| row.takes_drafts());
        let Some(Running { sequence, drafts: taken, .. }) = rows.find(|row| row.sequence.id == id)
        else {
            return 0;
        };
        taken.clone_from(drafts);
        sequence.trim(taken, &self.config);
        taken.len()
    }

    /// Checks whether a request could run if it were alone.
    ///
    /// `max_tokens` beyond the context is no obstacle: the answer then ends at the context.
    ///
    /// # Errors
    ///
    /// The reason for which it could not.
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

    /// The limits that it was made with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Counts so far.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats { cache: self.kv.cache_stats(), ..self.stats }
    }

    /// Whether there is neither a request nor a transfer under way.
    pub fn is_idle(&self) -> bool {
        let n_requests = self.n_running() + self.queue.len() + self.resting.len();
        n_requests == 0 && self.n_transfers() == 0
    }

    /// Transfers that plans have started and no outcome has reported yet.
    pub fn n_transfers(&self) -> usize {
        self.kv.n_transfers()
    }

    /// States of recurrent layers that the prefix cache keeps.
    pub fn n_snapshots(&self) -> usize {
        self.kv.n_snapshots()
    }

    /// Requests that hold blocks, loading ones included.
    pub fn n_running(&self) -> usize {
        self.running.len() + self.loading.len()
    }

    /// Requests that wait for blocks, preempted ones included.
    pub fn n_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Blocks that a request could have: free ones, and cached ones that no request uses.
    pub fn n_free_blocks(&self) -> usize {
        self.kv.n_available()
    }

    /// Most requests that may run now.
    fn max_running(&self) -> usize {
        let n_lanes = self.config.states.as_ref().map_or(usize::MAX, |states| states.n_lanes as _);
        self.config.choices.max_running.min(self.signals.max_running).min(n_lanes).max(1)
    }

    /// Requests that may be admitted beside those that hold blocks.
    fn n_free_places(&self) -> usize {
        self.max_running().saturating_sub(self.n_running())
    }

    /// Every sequence that holds blocks, loading ones last.
    fn placed(&self) -> impl Iterator<Item = &Running> + Clone {
        self.running.iter().chain(self.loading.iter().map(|loading| &loading.running))
    }

    fn is_live(&self, id: RequestId) -> bool {
        self.sequence(id).is_some()
    }
}
