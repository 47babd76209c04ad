//! The plan of a step: decode rows, then prefill chunks, then newly admitted requests.

use super::Scheduler;
use crate::budget::Budget;
use crate::config::nanoseconds;
use crate::guard;
use crate::sequence::{Sequence, Standing};
use crate::tenants::Tariff;
use crate::{Batching, Direction, SchedulerOutput, Signals, StepLoad, Tick};

impl Scheduler {
    /// Replaces `output` by the plan of the next step. It has no shares only when the scheduler is
    /// idle, or when every request waits for a transfer.
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

        let was_empty = self.n_running() == 0;
        self.clear_places(output);
        self.make_room_for_rows(output);
        let n_most = self.config.choices.max_batch_tokens.min(signals.max_batch_tokens).max(1);
        let budget = Budget::new(n_most, signals.cost);
        self.keep_step();
        let mut n_rows = self.plan_shares(budget, was_empty, output);
        if output.is_empty() && self.is_kept {
            // The prompt that the step was kept for found no room.
            self.is_kept = false;
            n_rows = self.plan_shares(budget, was_empty, output);
        }
        // Requests at rest may hold the blocks or the places that the next one needs.
        while output.is_empty() && self.queue.len() > 0 && self.n_transfers() == 0 {
            let Some(idx) = self.last_at_rest() else { break };
            self.preempt(idx, output);
            n_rows = self.plan_shares(budget, self.n_running() == 0, output);
        }
        self.finish(n_rows, output);
    }

    /// Plans rows, then prompts; returns the number of rows.
    fn plan_shares(
        &mut self,
        mut budget: Budget,
        was_empty: bool,
        output: &mut SchedulerOutput,
    ) -> usize {
        self.plan_decode_rows(&mut budget, output);
        let n_rows = output.sequences.len();
        self.bound_prompts(&mut budget, output);
        match (self.config.choices.batching, was_empty) {
            (Batching::Continuous, _) => self.plan_prompts(&mut budget, true, output),
            (Batching::Static, false) => self.plan_prompts(&mut budget, false, output),
            (Batching::Static, true) => {
                self.admit_batch(output);
                self.plan_prompts(&mut budget, false, output);
            }
        }
        n_rows
    }

    fn begin(&mut self, now: Tick, signals: &Signals) {
        self.pace.stepped(now.since(self.now));
        self.now = now;
        self.signals = *signals;
        self.kv.end_plan();
        if self.policy.needs_guard() && self.guard.is_free() && self.queue.n_promoted() == 0 {
            self.promote();
        }
        for running in &mut self.running {
            if running.sequence.n_generated() > 0 {
                running.sequence.first_token_at.get_or_insert(now);
            }
        }
    }

    /// Puts a request that waited too long first, if there is one and promoted requests hold less
    /// than their share of the places.
    fn promote(&mut self) {
        let max_wait_ns = nanoseconds(self.config.choices.max_wait);
        let Some(long_ago) = self.now.0.checked_sub(max_wait_ns) else { return };
        let promoted = self.placed().filter(|running| running.sequence.standing.is_promoted());
        if promoted.count() < (self.max_running() / guard::SHARE).max(1) {
            self.stats.n_promoted += u64::from(self.queue.promote(Tick(long_ago), &self.tenants));
        }
    }

    /// Takes a block for each row that generates and needs one, and for the next token of each prompt
    /// whose window moves on, in order of standing. Where none is left, the request that stands last is preempted, be it the row itself. A row whose block is
    /// on its way out with a transfer waits, and has no share of this plan.
    fn make_room_for_rows(&mut self, output: &mut SchedulerOutput) {
        let mut n_awaited = 0;
        let mut idx = 0;
        while idx < self.running.len() {
            if self.grow_row(idx) {
                idx += 1;
                continue;
            }
            let running = &self.running[idx];
            let n_missing = self.kv.n_missing(&running.held, running.n_tokens_next());
            let is_alone = self.running.len() == 1;
            if n_awaited + n_missing <= self.kv.n_leaving() || is_alone && self.n_transfers() > 0 {
                n_awaited += n_missing;
                idx += 1;
                continue;
            }
            assert!(!is_alone, "the first in standing fits alone");
            let victim = self.last_in_standing();
            self.preempt(victim, output);
            self.is_recovering = true;
            // Rows before the victim have their blocks; the row that asked may have moved.
            if victim < idx {
                idx -= 1;
            }
        }
    }

    /// Takes the blocks that a row needs for its tokens, and for its drafts where blocks are free.
    fn grow_row(&mut self, idx: usize) -> bool {
        let running = &mut self.running[idx];
        let (n_computed, n_tokens) = (running.n_computed, running.n_tokens_next());
        if !self.kv.grow(&mut running.held, n_computed, n_tokens) {
            return false;
        }
        if running.is_catching_up() {
            return true;
        }
        running.sequence.trim(&mut running.drafts, &self.config);
        let n_drafts = running.drafts.len();
        if n_drafts > 0 && !self.kv.grow(&mut running.held, n_computed, n_tokens + n_drafts) {
            running.drafts.clear();
        }
        true
    }

    /// The running request that is preempted next, as an index.
    pub(super) fn last_in_standing(&self) -> usize {
        let key = |&idx: &usize| self.precedence(&self.running[idx].sequence);
        (0..self.running.len()).max_by_key(key).expect("invariant: a request runs")
    }

    /// The order of service, smaller first: by the turn of the tenant where the policy says so, then
    /// by standing.
    pub(super) fn precedence(&self, sequence: &Sequence) -> ((u64, usize), Standing) {
        let counts = self.policy.is_by_service();
        let turn = if counts { self.tenants.turn(sequence.tenant) } else { (0, 0) };
        (turn, sequence.standing)
    }

    /// Plans the rows that generate and have a block for their token. Drafts take the part of the
    /// budget that the known tokens of all rows leave.
    fn plan_decode_rows(&mut self, budget: &mut Budget, output: &mut SchedulerOutput) {
        let mut n_left = (0..self.running.len()).filter(|&idx| self.decodes(idx)).count();
        for idx in 0..self.running.len() {
            if !self.decodes(idx) {
                continue;
            }
            if budget.n_tokens == 0 {
                return;
            }
            n_left -= 1;
            let running = &mut self.running[idx];
            running.drafts.truncate(budget.n_tokens.saturating_sub(1 + n_left));
            budget.n_tokens -= 1 + running.drafts.len();
            running.plan(1, &self.kv, output);
        }
    }

    /// Whether a running request has a row in this step.
    fn decodes(&self, idx: usize) -> bool {
        let running = &self.running[idx];
        let n_missing = self.kv.n_missing(&running.held, running.sequence.tokens.len());
        let computes = !running.is_catching_up() && !running.is_at_rest();
        computes && n_missing == 0 && !self.sits_out(running.sequence.tenant)
    }

    /// Bounds the prompts of a step by the time that it may take beside the planned rows.
    fn bound_prompts(&self, budget: &mut Budget, output: &SchedulerOutput) {
        let longest_ns = self.longest_step_ns(&output.load);
        if longest_ns.is_some() {
            budget.try_out(self.signals.n_tried_tokens);
        }
        if let Some(allowance_ns) = self.allowance_ns().into_iter().chain(longest_ns).min() {
            budget.allow(allowance_ns, &output.load);
        }
    }

    /// The longest predicted time of a step while requests generate: the choice, less the usual error
    /// of predictions; half as long again as the rows alone where that is longer, so that prompts go
    /// on beside rows that take long.
    fn longest_step_ns(&self, rows: &StepLoad) -> Option<u64> {
        let most_ns = self.config.choices.max_step.as_nanos() * 1_000_000;
        let most_ns = most_ns / (1_000_000 + u128::from(self.signals.cost_error_ppm));
        let most_ns = u64::try_from(most_ns).unwrap_or(u64::MAX);
        let rows_ns = self.signals.cost.step_ns(rows);
        let generates = self.running.iter().any(|running| !running.is_catching_up());
        (most_ns > 0 && generates).then(|| most_ns.max(rows_ns + rows_ns / 2))
    }

    /// The time that the latency targets leave to this step.
    ///
    /// Each generating request with a target for the time per token is due its next token when its
    /// average says so. A request that is ahead lends up to one target, a request that is behind
    /// leaves a quarter of one. Requests that may arrive meanwhile leave a quarter of their target
    /// for the first token, but long enough that the weights are not read for a few tokens only.
    fn allowance_ns(&self) -> Option<u64> {
        let rows = self.running.iter().filter(|running| !running.is_catching_up());
        let by_row = rows.filter_map(|running| {
            let sequence = &running.sequence;
            // A sixteenth is kept for time that no price accounts for.
            let target = nanoseconds(sequence.slo.tpot?);
            let target = target - target / 16;
            let n_generated = sequence.n_generated() as u64;
            let due = sequence.first_token_at?.0.saturating_add(target.saturating_mul(n_generated));
            Some(due.saturating_sub(self.now.0).clamp(target / 4, target.saturating_mul(2)))
        });
        let least = 4 * self.signals.cost.base_ps / 1000;
        by_row.chain(self.recent_ttft_ns.map(|target| (target / 4).max(least))).min()
    }

    /// Plans chunks of prompts, in one order of service: of running requests that have not caught
    /// up, and of waiting ones, where they may be admitted. A step with a prompt of a tenant below
    /// its share is not filled up with prompts of tenants that have theirs.
    fn plan_prompts(&mut self, budget: &mut Budget, admits: bool, output: &mut SchedulerOutput) {
        let mut door = self.open_door(admits, output);
        let mut is_for_others = false;
        while !budget.is_spent() {
            let idx = match (self.candidate(&door), self.next_chunk()) {
                (None, None) => return,
                (None, Some(idx)) => idx,
                (Some(spot), Some(idx)) if !self.goes_before(spot, idx) => idx,
                (Some(spot), _) => match self.let_in(spot, &mut door, output) {
                    Some(idx) => idx,
                    None => continue,
                },
            };
            let has_its_share = self.has_its_share(self.running[idx].sequence.tenant);
            if is_for_others && has_its_share {
                return;
            }
            is_for_others |= !has_its_share;
            let running = &mut self.running[idx];
            let (position, n_remaining) = (running.n_computed, running.n_remaining());
            let n_together = match position {
                0 => running.sequence.source.end(),
                _ => 0,
            };
            let n_tokens = budget.take_chunk(position, (n_remaining, n_together), &self.config);
            let n_tokens = self.grow_chunk(idx, n_tokens);
            if n_tokens == 0 {
                return;
            }
            self.running[idx].plan(n_tokens, &self.kv, output);
            self.take_marks(idx);
        }
    }

    /// Takes the window blocks that a chunk of a prompt needs; returns how many of its tokens have them.
    fn grow_chunk(&mut self, idx: usize, n_tokens: usize) -> usize {
        let running = &mut self.running[idx];
        let n_computed = running.n_computed;
        let mut end = n_computed + n_tokens;
        while end > n_computed && !self.kv.grow(&mut running.held, n_computed, end) {
            end = (end - 1) / self.config.block_size * self.config.block_size;
        }
        end.saturating_sub(n_computed)
    }

    /// The running request that computes the next chunk of its prompt, as an index.
    fn next_chunk(&self) -> Option<usize> {
        let waits = |&idx: &usize| {
            let running = &self.running[idx];
            let takes_part = !self.sits_out(running.sequence.tenant);
            running.is_catching_up() && !running.is_in_flight() && takes_part
        };
        let key = |&idx: &usize| self.precedence(&self.running[idx].sequence);
        (0..self.running.len()).filter(waits).min_by_key(key)
    }

    /// Adds up the work that the plan asks of the machine, and charges the tenants for it.
    fn finish(&mut self, n_rows: usize, output: &mut SchedulerOutput) {
        if !output.is_empty() {
            self.kv.drain_copies(&mut output.state_copies);
        }
        for running in &self.running {
            running.plan_saves(output);
        }
        let n_states = (output.state_copies.len() + output.saves.len()) as u64;
        let state_blocks = self.config.states.map_or(0, |states| states.n_blocks);
        output.load.n_moved_blocks = output.moved.len() as u64 + n_states * state_blocks;
        self.stats.n_swapped_out_blocks += output.n_moved(Direction::Out) as u64;
        self.stats.n_swapped_in_blocks += output.n_moved(Direction::In) as u64;
        self.stats.n_copied_blocks += output.copies.len() as u64;

        let cost = &self.signals.cost;
        let n_blocks = self.kv.n_blocks() as u64;
        let tariff = Tariff::new(cost, &output.load, output.sequences.len(), n_blocks);
        let mut n_promoted_tokens = 0;
        for running in &self.running {
            if let Some(load) = running.load() {
                let Sequence { tenant, standing, .. } = running.sequence;
                let n_held = self.kv.n_held(&running.held);
                self.tenants.charge(tenant, tariff.of(&load, n_held));
                n_promoted_tokens += if standing.is_promoted() { load.n_tokens } else { 0 };
            }
        }
        self.guard.charge(n_promoted_tokens, output.load.n_tokens);
        self.stats.n_promoted_tokens += n_promoted_tokens;
        let mut prompts = StepLoad::default();
        for share in &output.sequences[n_rows..] {
            prompts.add_rows(share.first_position, share.tokens.len(), usize::from(share.samples));
        }
        let prompt_ns = if prompts.n_tokens > 0 { cost.step_ns(&prompts) } else { 0 };
        self.pace.planned(prompt_ns, self.queue.len() > 0);
        // Room for tables as long as they can become, so that later plans of the same sequences
        // fit.
        let tables = self.placed().map(|running| running.held.table.capacity());
        let n_blocks = tables.sum::<usize>() * self.kv.n_tables();
        output.blocks.reserve(n_blocks.saturating_sub(output.blocks.len()));
    }
}
