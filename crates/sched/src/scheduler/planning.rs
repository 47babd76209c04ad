//! The plan of a step: decode rows, then prefill chunks, then newcomers.

use super::Scheduler;
use crate::budget::Budget;
use crate::config::nanoseconds;
use crate::sequence::{Sequence, Standing};
use crate::tenants::Tariff;
use crate::{Batching, SchedulerOutput, Signals, StepLoad, Tick};

impl Scheduler {
    /// Replaces `output` by the plan of the next step, which is empty only when the scheduler is
    /// idle.
    ///
    /// # Panics
    ///
    /// Panics if the previous plan was not answered by [`update`](Self::update), or if time runs
    /// backwards.
    pub fn schedule(&mut self, now: Tick, signals: &Signals, output: &mut SchedulerOutput) {
        assert!(now >= self.now, "time runs backwards: {:?} after {now:?}", self.now);
        assert!(!self.running.iter().any(|running| running.is_in_flight()), "no answer yet");
        self.begin(now, signals);
        output.clear();

        let was_empty = self.running.is_empty();
        self.clear_places(output);
        self.make_room_for_rows(output);
        let n_most = self.config.choices.max_batch_tokens.min(signals.max_batch_tokens).max(1);
        let mut budget = Budget::new(n_most, signals.cost);
        self.plan_decode_rows(&mut budget, output);
        let n_rows = output.sequences.len();
        if let Some(allowance_ns) = self.allowance_ns() {
            budget.allow(allowance_ns, &output.load);
        }
        match (self.config.choices.batching, was_empty) {
            (Batching::Continuous, _) => self.plan_prompts(&mut budget, true, output),
            (Batching::Static, false) => self.plan_prompts(&mut budget, false, output),
            (Batching::Static, true) => {
                self.admit_batch(output);
                self.plan_prompts(&mut budget, false, output);
            }
        }
        self.finish(n_rows, output);
    }

    fn begin(&mut self, now: Tick, signals: &Signals) {
        self.pace.stepped(now.since(self.now));
        self.now = now;
        self.signals = *signals;
        self.kv.end_plan();
        let max_wait_ns = nanoseconds(self.config.choices.max_wait);
        if let Some(long_ago) = now.0.checked_sub(max_wait_ns) {
            self.stats.n_promoted += self.queue.promote(Tick(long_ago)) as u64;
        }
        for running in &mut self.running {
            if running.sequence.n_generated() > 0 {
                running.sequence.first_token_at.get_or_insert(now);
            }
        }
    }

    /// A block for each row that generates, oldest first. Where there is none, whoever stands last
    /// gives way; a row that stands last itself does.
    fn make_room_for_rows(&mut self, output: &mut SchedulerOutput) {
        let context = self.config.context_tokens();
        let mut idx = 0;
        while idx < self.running.len() {
            let running = &mut self.running[idx];
            if running.is_catching_up() {
                idx += 1;
                continue;
            }
            let n_tokens = running.sequence.tokens.len();
            if self.kv.grow(&mut running.held, n_tokens) {
                // Drafts take what is free, and nobody's place.
                running.drafts.truncate(running.sequence.most_drafts(context));
                let n_drafts = running.drafts.len();
                if n_drafts > 0 && !self.kv.grow(&mut running.held, n_tokens + n_drafts) {
                    running.drafts.clear();
                }
                idx += 1;
                continue;
            }
            assert!(self.running.len() > 1, "the first in standing fits alone");
            let victim = self.last_in_standing();
            self.preempt(victim, output);
            self.is_recovering = true;
            // Those before the victim have their blocks; the row that asked may have moved.
            if victim < idx {
                idx -= 1;
            }
        }
    }

    /// Whoever gives way next.
    pub(super) fn last_in_standing(&self) -> usize {
        let key = |&idx: &usize| self.precedence(&self.running[idx].sequence);
        (0..self.running.len()).max_by_key(key).expect("invariant: somebody runs")
    }

    /// The order of service, smaller first: those that waited too long, then by what the tenant was
    /// served where the policy says so, then by standing.
    pub(super) fn precedence(&self, sequence: &Sequence) -> (bool, u64, Standing) {
        let is_promoted = sequence.standing.is_promoted();
        let counts = self.policy.is_by_service() && !is_promoted;
        let served = if counts { self.tenants.counter(sequence.tenant) } else { 0 };
        (!is_promoted, served, sequence.standing)
    }

    /// Rows that already generate. Drafts take what those of all others leave.
    fn plan_decode_rows(&mut self, budget: &mut Budget, output: &mut SchedulerOutput) {
        let mut n_left = self.running.iter().filter(|running| !running.is_catching_up()).count();
        for running in &mut self.running {
            if running.is_catching_up() {
                continue;
            }
            if budget.n_tokens == 0 {
                return;
            }
            n_left -= 1;
            running.drafts.truncate(budget.n_tokens.saturating_sub(1 + n_left));
            budget.n_tokens -= 1 + running.drafts.len();
            running.plan(1, output);
        }
    }

    /// The time that this step may take.
    ///
    /// By the strictest target of those that generate: each is to have its next token when its average
    /// says so. Whoever is ahead lends up to one target, whoever is behind leaves a quarter of one.
    /// And by the targets of those that may arrive meanwhile: a quarter of the time in which they want
    /// their first token, but long enough that the weights are not read for a few tokens only.
    fn allowance_ns(&self) -> Option<u64> {
        let rows = self.running.iter().filter(|running| !running.is_catching_up());
        let by_row = rows.filter_map(|running| {
            let sequence = &running.sequence;
            // A sixteenth is kept for what was not foreseen.
            let target = nanoseconds(sequence.slo.tpot?);
            let target = target - target / 16;
            let n_generated = sequence.n_generated() as u64;
            let due = sequence.first_token_at?.0.saturating_add(target.saturating_mul(n_generated));
            Some(due.saturating_sub(self.now.0).clamp(target / 4, target.saturating_mul(2)))
        });
        let least = 4 * self.signals.cost.base_ps / 1000;
        by_row.chain(self.recent_ttft_ns.map(|target| (target / 4).max(least))).min()
    }

    /// Chunks of prompts, in one order: those that run and have not caught up, whose blocks exist
    /// since their admission, and those that wait, where they may be admitted.
    fn plan_prompts(&mut self, budget: &mut Budget, admits: bool, output: &mut SchedulerOutput) {
        let mut door = self.open_door(admits, output);
        while !budget.is_spent() {
            let next = (self.running.iter())
                .position(|running| running.is_catching_up() && !running.is_in_flight());
            let idx = match (self.candidate(&door), next) {
                (None, None) => return,
                (None, Some(idx)) => idx,
                (Some(spot), Some(idx)) if !self.goes_before(spot, idx) => idx,
                (Some(spot), _) => match self.let_in(spot, &mut door, output) {
                    Some(idx) => idx,
                    None => continue,
                },
            };
            let running = &mut self.running[idx];
            let (position, n_remaining) = (running.n_computed, running.n_remaining());
            let n_tokens = budget.take_chunk(position, n_remaining, &self.config);
            if n_tokens == 0 {
                return;
            }
            running.plan(n_tokens, output);
        }
    }

    /// Adds up what the plan asks of the machine, and charges the tenants for it.
    fn finish(&mut self, n_rows: usize, output: &mut SchedulerOutput) {
        output.load.n_moved_blocks = (output.swap_out.len() + output.swap_in.len()) as u64;
        self.stats.n_swapped_out_blocks += output.swap_out.len() as u64;
        self.stats.n_swapped_in_blocks += output.swap_in.len() as u64;
        self.stats.n_copied_blocks += output.copies.len() as u64;

        let cost = &self.signals.cost;
        let n_blocks = self.kv.n_blocks() as u64;
        let tariff = Tariff::new(cost, &output.load, output.sequences.len(), n_blocks);
        for running in &self.running {
            if let Some(load) = running.load() {
                let n_held = running.held.table.blocks().len();
                self.tenants.charge(running.sequence.tenant, tariff.of(&load, n_held));
            }
        }
        let mut prompts = StepLoad::default();
        for share in &output.sequences[n_rows..] {
            prompts.add_rows(share.first_position, share.tokens.len(), usize::from(share.samples));
        }
        let prompt_ns = if prompts.n_tokens > 0 { cost.step_ns(&prompts) } else { 0 };
        self.pace.planned(prompt_ns, self.queue.len() > 0);
        // Room for tables as long as they can become, so that later plans of the same sequences fit.
        let tables = self.running.iter().map(|running| running.held.table.capacity());
        output.blocks.reserve(tables.sum::<usize>().saturating_sub(output.blocks.len()));
    }
}
