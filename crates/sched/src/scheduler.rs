//! First come, first served, over one budget of tokens per step.

use crate::sequence::{Admission, Preempted, Release, Running, Sequence, Waiting};
use crate::{
    BlockPool, BlockTable, Namespace, NoCache, Outlook, PrefixCache, Refusal, SchedulerConfig,
    SchedulerOutput, Signals, StepCost, StepOutput, StepUpdates, Tick,
};
use pelton_base::{Request, RequestId, TokenId};
use std::collections::{HashSet, VecDeque};

/// Decides which tokens run next and where their KV lives.
///
/// [`schedule`](Self::schedule) and [`update`](Self::update) take turns; requests may be added and
/// aborted at any time, also between the two.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    cache: Box<dyn PrefixCache>,
    /// The three live states, each in order of arrival.
    running: Vec<Running>,
    preempted: VecDeque<Preempted>,
    waiting: VecDeque<Waiting>,
    /// Sampled tokens of the last step, with their rank in it; sorted, for searching.
    sampled: Vec<(RequestId, usize, TokenId)>,
    next_arrival: u64,
    now: Tick,
    /// What steps cost, as last told.
    cost: StepCost,
}

impl Scheduler {
    /// Creates an idle scheduler that shares no prefixes.
    ///
    /// # Panics
    ///
    /// Panics if a limit of `config` is below the minimum that its field documents.
    pub fn new(config: SchedulerConfig) -> Self {
        Self::with_prefix_cache(config, Box::new(NoCache))
    }

    /// Creates an idle scheduler over an empty prefix cache.
    ///
    /// # Panics
    ///
    /// Panics if a limit of `config` is below the minimum that its field documents.
    pub fn with_prefix_cache(config: SchedulerConfig, cache: Box<dyn PrefixCache>) -> Self {
        config.check();
        Self {
            pool: BlockPool::new(config.n_blocks),
            config,
            cache,
            running: Vec::new(),
            preempted: VecDeque::new(),
            waiting: VecDeque::new(),
            sampled: Vec::new(),
            next_arrival: 0,
            now: Tick::default(),
            cost: StepCost::default(),
        }
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Panics
    ///
    /// Panics if [`admits`](Self::admits) refuses the request, which the caller has asked before.
    pub fn add(&mut self, request: Request) {
        if let Err(refusal) = self.admits(request.prompt.len(), request.max_tokens) {
            panic!("{} can never run: {refusal}", request.id);
        }
        self.waiting.push_back(Waiting::new(request, self.next_arrival));
        self.next_arrival += 1;
    }

    /// Forgets a request, freeing its blocks; `false` when it is not here (any more).
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(idx) = self.running.iter().position(|running| running.sequence.id == id) {
            self.running.remove(idx).complete(Release {
                pool: &mut self.pool,
                cache: &mut *self.cache,
                block_size: self.config.block_size,
            });
            return true;
        }
        let n_before = self.preempted.len() + self.waiting.len();
        self.preempted.retain(|preempted| preempted.0.id != id);
        self.waiting.retain(|waiting| waiting.0.id != id);
        self.preempted.len() + self.waiting.len() < n_before
    }

    /// Replaces `output` by the plan of the next step, which is empty only when the scheduler is
    /// idle.
    ///
    /// # Panics
    ///
    /// Panics if the previous plan was not answered by [`update`](Self::update), or if time runs
    /// backwards.
    pub fn schedule(&mut self, now: Tick, signals: &Signals, output: &mut SchedulerOutput) {
        assert!(now >= self.now, "time runs backwards: {:?} after {now:?}", self.now);
        self.now = now;
        self.cost = signals.cost;
        assert!(!self.running.iter().any(Running::is_in_flight), "the last plan has no answer yet");

        output.clear();
        let mut budget = self.config.max_batch_tokens;
        self.plan_decode_rows(&mut budget, output);
        self.plan_prefill_chunks(&mut budget, output);
        // Whoever was just preempted must not take the blocks back from those it made room for.
        if output.preempted.is_empty() {
            self.admit(&mut budget, output);
        }
        // Room for tables as long as they can become, so that later plans of the same sequences fit.
        let n_most: usize = self.running.iter().map(|running| running.table.capacity()).sum();
        output.blocks.reserve(n_most.saturating_sub(output.blocks.len()));
    }

    /// Takes in what came of the last plan, and replaces `updates` by the news of each sequence that
    /// has any.
    ///
    /// Requests that were aborted since the plan was made are ignored.
    pub fn update(&mut self, step: &StepOutput, updates: &mut StepUpdates) {
        updates.clear();
        self.sampled.clear();
        let ranked = step.sampled.iter().enumerate();
        self.sampled.extend(ranked.map(|(rank, &(id, token))| (id, rank, token)));
        self.sampled.sort_unstable();
        let context = self.config.context_tokens();
        let mut idx = 0;
        while idx < self.running.len() {
            let running = &mut self.running[idx];
            let id = running.sequence.id;
            let first = self.sampled.partition_point(|sampled| sampled.0 < id);
            let n_sampled = self.sampled[first..].partition_point(|sampled| sampled.0 == id);
            let sampled = self.sampled[first..][..n_sampled].iter().map(|sampled| sampled.2);
            let failed = step.failed.contains(&id);
            let update = running.absorb(sampled, failed, context, &mut updates.tokens);
            if update.as_ref().is_some_and(|update| update.finish.is_some()) {
                self.running.remove(idx).complete(Release {
                    pool: &mut self.pool,
                    cache: &mut *self.cache,
                    block_size: self.config.block_size,
                });
            } else {
                idx += 1;
            }
            updates.sequences.extend(update);
        }
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

    /// Replaces `outlook` by how things stand for newcomers.
    pub fn outlook(&self, outlook: &mut Outlook) {
        let Self { config, cost, .. } = self;
        let prefill_ns =
            |n_done: usize, n_left: usize| cost.prefill_ns(n_done, n_left, config.max_chunk_tokens);
        let catching_up = self.running.iter().filter(|running| running.is_catching_up());
        let running = catching_up.map(|r| prefill_ns(r.n_computed, r.n_remaining()));
        let preempted = self.preempted.iter().map(|preempted| &preempted.0);
        let waiting = preempted.chain(self.waiting.iter().map(|waiting| &waiting.0));
        outlook.cost = *cost;
        outlook.waiting_by_tenant.clear();
        outlook.waiting_by_tenant.resize(config.tenants.len(), 0);
        outlook.backlog_ns = running.sum();
        for sequence in waiting {
            outlook.backlog_ns += prefill_ns(0, sequence.tokens.len());
            let tenant = if sequence.tenant < config.tenants.len() { sequence.tenant } else { 0 };
            outlook.waiting_by_tenant[tenant] += 1;
        }
        outlook.n_waiting = self.n_waiting();
        outlook.n_places = config.max_running - self.n_running().min(config.max_running);
    }

    /// The limits it was made with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Number of requests that hold no blocks: those that never ran and those preempted.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len() + self.preempted.len()
    }

    /// Number of requests that hold blocks.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Number of blocks that nobody holds.
    pub fn n_free_blocks(&self) -> usize {
        self.pool.n_free()
    }

    /// Whether no request is left.
    pub fn is_idle(&self) -> bool {
        self.n_running() + self.n_waiting() == 0
    }

    /// Panics if a block is lost or counted wrongly, a queue is out of order, or a sequence lacks
    /// blocks for what it has computed.
    ///
    /// Cost is `O(blocks + tokens)`; call it when idle and after every step in tests.
    pub fn check_integrity(&self) {
        self.pool.check_integrity();
        self.cache.check_integrity();
        let in_tables: usize = self.running.iter().map(|r| r.table.blocks().len()).sum();
        assert_eq!(
            self.pool.n_references(),
            in_tables + self.cache.n_blocks(),
            "every reference belongs to a table or to the cache"
        );
        let arrivals: Vec<u64> = self.sequences().map(|sequence| sequence.arrival).collect();
        assert!(arrivals.is_sorted_by(|a, b| a < b), "arrival order is broken: {arrivals:?}");
        let ids: HashSet<RequestId> = self.sequences().map(|sequence| sequence.id).collect();
        assert_eq!(ids.len(), arrivals.len(), "an id is used twice");
        assert!(self.running.len() <= self.config.max_running, "too many sequences run");
        for running in &self.running {
            let Sequence { id, tokens, .. } = &running.sequence;
            assert!(running.n_computed <= tokens.len(), "{id} computed tokens it does not have");
            assert!(tokens.len() <= self.config.context_tokens(), "{id} exceeds the context");
            let n_blocks = running.table.blocks().len();
            let n_needed = self.config.blocks_for(running.n_computed);
            assert!(n_blocks >= n_needed, "{id} has {n_blocks} blocks, needs {n_needed}");
            assert!(
                n_blocks <= self.config.blocks_for(tokens.len()),
                "{id} holds more blocks than its tokens can fill"
            );
        }
    }

    /// Rows that already generate, oldest first; the latest arrivals pay for missing blocks.
    fn plan_decode_rows(&mut self, budget: &mut usize, output: &mut SchedulerOutput) {
        let mut idx = 0;
        while idx < self.running.len() && *budget > 0 {
            if !self.running[idx].is_catching_up() {
                let n_tokens = self.share(&self.running[idx], *budget);
                if !self.make_room(idx, n_tokens, &mut output.preempted) {
                    return; // The row itself, the last one, was preempted.
                }
                self.running[idx].plan(n_tokens, output);
                *budget -= n_tokens;
            }
            idx += 1;
        }
    }

    /// Chunks of sequences that run but have not caught up; their blocks exist since admission.
    fn plan_prefill_chunks(&mut self, budget: &mut usize, output: &mut SchedulerOutput) {
        for idx in 0..self.running.len() {
            let running = &self.running[idx];
            if *budget > 0 && running.is_catching_up() {
                let n_tokens = self.share(running, *budget);
                self.running[idx].plan(n_tokens, output);
                *budget -= n_tokens;
            }
        }
    }

    /// Lets requests in, preempted ones first, until one does not fit: nobody overtakes.
    fn admit(&mut self, budget: &mut usize, output: &mut SchedulerOutput) {
        while *budget > 0 && self.running.len() < self.config.max_running {
            let next = self.preempted.front().map(|preempted| &preempted.0);
            let Some(next) = next.or(self.waiting.front().map(|waiting| &waiting.0)) else {
                return;
            };
            let Some(admission) = Self::reserve(
                &self.config,
                &mut self.pool,
                &mut *self.cache,
                next,
                self.running.is_empty(),
            ) else {
                return;
            };
            let sequence = match self.preempted.pop_front() {
                Some(preempted) => preempted.0,
                None => self.waiting.pop_front().expect("invariant: one of the queues had it").0,
            };
            let mut running = Running::new(sequence, admission, self.config.context_tokens());
            let n_tokens = self.share(&running, *budget);
            running.plan(n_tokens, output);
            *budget -= n_tokens;
            self.running.push(running);
        }
    }

    /// Blocks for all tokens of `sequence`, or `None` when they would leave too few for others.
    fn reserve(
        config: &SchedulerConfig,
        pool: &mut BlockPool,
        cache: &mut dyn PrefixCache,
        sequence: &Sequence,
        alone: bool,
    ) -> Option<Admission> {
        // The last token is always computed: its logits are what comes next.
        let n_matchable = sequence.tokens.len() - 1;
        let found = cache.match_prefix(Namespace::default(), &sequence.tokens[..n_matchable]);
        let shared = found.blocks.clone();
        // Pinned before anything is evicted, so that eviction cannot take what was matched.
        let prefix = cache.lock(found);
        let n_own = config.blocks_for(sequence.tokens.len()) - shared.len();
        let watermark = if alone { 0 } else { config.watermark_blocks() };
        let n_most = config.blocks_for(sequence.most_tokens(config.context_tokens()));
        if !make_free(pool, cache, n_own + watermark) {
            cache.unlock(prefix);
            return None;
        }
        let mut table = BlockTable::new(pool, &shared, n_most);
        table.extend(pool.allocate(n_own).expect("invariant: made free"));
        Some(Admission { table, prefix, n_cached: shared.len() * config.block_size })
    }

    /// Gives `running[idx]` blocks for `n_tokens` more tokens, preempting later arrivals if it
    /// must; `false` when it was itself the latest and gave way.
    fn make_room(&mut self, idx: usize, n_tokens: usize, preempted: &mut Vec<RequestId>) -> bool {
        let running = &self.running[idx];
        let n_needed = self.config.blocks_for(running.n_computed + n_tokens);
        let n_missing = n_needed.saturating_sub(running.table.blocks().len());
        loop {
            if make_free(&mut self.pool, &mut *self.cache, n_missing) {
                let own = self.pool.allocate(n_missing).expect("invariant: made free");
                self.running[idx].table.extend(own);
                return true;
            }
            assert!(self.running.len() > 1, "the oldest request fits alone");
            let victim =
                self.running.pop().expect("invariant: more than one runs").preempt(Release {
                    pool: &mut self.pool,
                    cache: &mut *self.cache,
                    block_size: self.config.block_size,
                });
            preempted.push(victim.0.id);
            self.preempted.push_front(victim);
            if self.running.len() == idx {
                return false;
            }
        }
    }

    /// Tokens that `running` gets out of `budget`.
    fn share(&self, running: &Running, budget: usize) -> usize {
        running.n_remaining().min(budget).min(self.config.max_chunk_tokens)
    }

    /// Every live sequence, in the order that arrival order must show.
    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        let running = self.running.iter().map(|running| &running.sequence);
        let preempted = self.preempted.iter().map(|preempted| &preempted.0);
        running.chain(preempted).chain(self.waiting.iter().map(|waiting| &waiting.0))
    }
}

/// Evicts cached prefixes until `n_blocks` blocks are free; `false` when there are too few even so.
fn make_free(pool: &mut BlockPool, cache: &mut dyn PrefixCache, n_blocks: usize) -> bool {
    while pool.n_free() < n_blocks {
        let evicted = cache.evict(n_blocks - pool.n_free());
        if evicted.is_empty() {
            return false;
        }
        for block in evicted {
            pool.release(block);
        }
    }
    true
}

/// One line for logs and text tables: who is where, with `computed/known` tokens, and free blocks.
impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "running")?;
        for running in &self.running {
            let Sequence { id, tokens, .. } = &running.sequence;
            write!(f, " {}({}/{})", id.0, running.n_computed, tokens.len())?;
        }
        write!(f, " | preempted")?;
        for Preempted(sequence) in &self.preempted {
            write!(f, " {}", sequence.id.0)?;
        }
        write!(f, " | waiting")?;
        for Waiting(sequence) in &self.waiting {
            write!(f, " {}", sequence.id.0)?;
        }
        write!(f, " | free {}/{}", self.pool.n_free(), self.pool.capacity())
    }
}
