//! Admission: which waiting request gets blocks next.
//!
//! A sequence is admitted when blocks for all its known tokens can be had, with a watermark to
//! spare for sequences that grow, and takes them at once: a prompt never runs dry half way.
//! Requests are admitted in order: none overtakes a request that finds no room. Two kinds are held
//! back and may be overtaken: a request whose next block another is computing right now, and a
//! request whose KV is still on its way to the host.

use super::Scheduler;
use crate::kv::Sizes;
use crate::queue::Spot;
use crate::sequence::{Loading, Running, Sequence, Standing};
use crate::{Batching, KvAllocation, RadixMatch, SchedulerOutput};

/// Most candidates that are held back in one step, which bounds the time of a plan.
const MOST_DEFERRED: usize = 8;

/// The state of admission while one plan is made.
#[derive(Debug)]
pub(super) struct Door {
    is_open: bool,
    /// Only requests that outrank those that were just preempted are admitted.
    bar: Option<Standing>,
    n_deferred: usize,
}

/// The outcome of a candidate.
enum Verdict {
    /// It runs, at this index.
    Admitted(usize),
    /// It holds blocks, and runs when its KV has come from the host.
    Loads,
    /// It is held back, and other candidates may pass.
    Deferred,
    NoRoom,
}

impl Scheduler {
    /// Under a policy where urgent requests take places: preempts less urgent requests until the
    /// first in the queue finds room, or will find it when transfers are over.
    pub(super) fn clear_places(&mut self, output: &mut SchedulerOutput) {
        if !self.policy.takes_places() || self.config.choices.batching == Batching::Static {
            return;
        }
        self.cursors.fill(None);
        let Some(spot) = self.queue.next(&self.cursors, &self.tenants) else { return };
        while !self.running.is_empty() {
            let victim = self.last_in_standing();
            if !spot.standing.outranks(self.running[victim].sequence.standing) {
                return;
            }
            let sequence = self.queue.at(spot).sequence();
            let n_reserved = self.n_reserved(sequence);
            let n_full = self.kv.find(sequence).n_full;
            let n_shared = self.config.n_held(n_full * self.config.block_size);
            let n_needed = self.config.n_held(n_reserved).saturating_sub(n_shared);
            let n_spare = self.config.watermark_blocks();
            let n_blocks = self.kv.n_available() + self.kv.n_leaving();
            if self.n_free_places() > 0 && n_blocks >= n_needed + n_spare {
                return;
            }
            self.preempt(victim, output);
        }
    }

    /// Begins admission, where `admits` allows it.
    pub(super) fn open_door(&mut self, admits: bool, output: &SchedulerOutput) -> Door {
        self.cursors.fill(None);
        // A request that was just preempted must not take its blocks back.
        let outranked = output.preempted.iter().filter_map(|&id| self.queue.find(id));
        let bar = outranked.map(|spot| spot.standing).min();
        Door { is_open: admits, bar, n_deferred: 0 }
    }

    /// The next request to admit, if any.
    pub(super) fn candidate(&mut self, door: &Door) -> Option<Spot> {
        if !door.is_open || self.n_free_places() == 0 {
            return None;
        }
        let spot = self.next_candidate()?;
        let tenant = self.queue.at(spot).sequence().tenant;
        if self.sits_out(tenant) || self.lacks_place(tenant) {
            return None;
        }
        door.bar.is_none_or(|bar| spot.standing.outranks(bar)).then_some(spot)
    }

    /// Whether a waiting request gets its tokens before a running one.
    pub(super) fn goes_before(&self, spot: Spot, idx: usize) -> bool {
        let waiting = self.queue.at(spot).sequence();
        self.precedence(waiting) < self.precedence(&self.running[idx].sequence)
    }

    /// Admits a request and returns its index if it runs at once; closes the door when there is no
    /// room.
    pub(super) fn let_in(
        &mut self,
        spot: Spot,
        door: &mut Door,
        output: &mut SchedulerOutput,
    ) -> Option<usize> {
        match self.try_admit(spot, output) {
            Verdict::Admitted(idx) => return Some(idx),
            Verdict::Loads => {}
            Verdict::Deferred => {
                self.stats.n_deferrals += 1;
                self.cursors[spot.lane] = Some(spot.standing);
                door.n_deferred += 1;
                door.is_open = door.n_deferred < MOST_DEFERRED;
            }
            Verdict::NoRoom => door.is_open = false,
        }
        None
    }

    /// Admits as many requests as find room, whether or not their tokens fit into this step.
    pub(super) fn admit_batch(&mut self, output: &mut SchedulerOutput) {
        let mut door = self.open_door(true, output);
        while let Some(spot) = self.candidate(&door) {
            self.let_in(spot, &mut door, output);
        }
    }

    /// The first request in the queue, or of its first few the one with the longest cached prefix.
    fn next_candidate(&mut self) -> Option<Spot> {
        let first = self.queue.next(&self.cursors, &self.tenants)?;
        let n_window = self.policy.window();
        if n_window == 1 || first.standing.is_promoted() {
            return Some(first);
        }
        let (mut best, mut n_longest, mut next) = (first, 0, Some(first));
        for _ in 0..n_window {
            let Some(spot) = next else { break };
            let found = self.kv.find(self.queue.at(spot).sequence());
            if found.n_full > n_longest {
                (best, n_longest) = (spot, found.n_full);
            }
            next = self.queue.next_in(spot.lane, Some(spot.standing));
        }
        Some(best)
    }

    fn try_admit(&mut self, spot: Spot, output: &mut SchedulerOutput) -> Verdict {
        let parked = self.queue.at(spot);
        let sequence = parked.sequence();
        if parked.host().is_some_and(|host| self.kv.is_arriving(host)) {
            return Verdict::Deferred;
        }
        let n_spare = match self.is_recovering || self.has_its_share(sequence.tenant) {
            _ if self.n_running() == 0 => 0,
            false => self.config.watermark_blocks(),
            true => self.config.recovery_blocks(),
        };
        let n_most = sequence.most_tokens(self.config.context_tokens());
        let n_reserved = self.n_reserved(sequence);
        let sizes = Sizes {
            n_reserved,
            n_prompt: sequence.n_prompt,
            n_most_blocks: self.config.blocks_for(n_most.max(n_reserved)),
            n_spare,
        };
        let Ok(mut fork) = self.fork_of(sequence) else { return Verdict::Deferred };
        let found = self.kv.find_beside(sequence, parked.host());
        // The cache may hold a longer prefix than it shares with the request that it names.
        let n_partial = found.partial.map_or(0, |(_, n_tokens)| n_tokens);
        let n_cached = found.n_full * self.config.block_size + n_partial;
        fork = fork.filter(|&(_, n_shared)| n_shared > n_cached);
        let mut namespace = sequence.namespace;
        let admission = if let Some((parent, n_shared)) = fork {
            let Running { sequence, held, .. } = &mut self.running[parent];
            namespace = sequence.namespace;
            self.kv.fork((held, sequence), n_shared, sizes, output)
        } else {
            if self.awaits_prefix(spot, &found) {
                return Verdict::Deferred;
            }
            self.kv.admit(&found, self.queue.at(spot).host(), sizes, output)
        };
        let Some(admission) = admission else { return Verdict::NoRoom };
        let (mut sequence, host) = self.queue.take(spot).into_parts();
        let transfer = match host {
            Some(host) if admission.loads => Some(self.kv.swap_in(&admission.held, host, output)),
            Some(host) => {
                self.kv.drop_host(host);
                None
            }
            None => None,
        };
        sequence.namespace = namespace;
        self.stats.n_forked += u64::from(fork.is_some());
        self.tenants.waits_no_more(sequence.tenant);
        self.tenants.runs(sequence.tenant);
        self.is_recovering = false;
        let context = self.config.context_tokens();
        let marks = self.kv.marks(&admission.held, &sequence);
        let running = Running::new(sequence, admission, marks, context);
        match transfer {
            None => {
                let idx = self.run(running);
                self.mark_for_waiting(idx);
                Verdict::Admitted(idx)
            }
            Some(transfer) => {
                self.loading.push(Loading { running, transfer });
                Verdict::Loads
            }
        }
    }

    /// Tokens for which a sequence takes blocks at its admission.
    fn n_reserved(&self, sequence: &Sequence) -> usize {
        match self.config.choices.kv_allocation {
            KvAllocation::Paged => sequence.tokens.len(),
            KvAllocation::Contiguous => self.config.context_tokens(),
        }
    }

    /// The running request that a new one can go on from, as an index, and the number of tokens
    /// that they share: of its prompt, and of its answer so far.
    fn fork_of(&self, sequence: &Sequence) -> Result<Option<(usize, usize)>, Deferred> {
        // A request that has generated has KV of its own; a branch generates before it runs.
        let is_new = sequence.n_generated() == 0 || sequence.n_cached.is_none();
        let Some(id) = sequence.fork_of.filter(|_| is_new) else {
            return Ok(None);
        };
        let parent = self.running.iter().position(|running| running.sequence.id == id);
        let Some(idx) = parent else { return Ok(None) };
        let parent = &self.running[idx];
        if parent.sequence.is_scored {
            return Ok(None);
        }
        // Without a prefix cache each request has a namespace of its own.
        if self.config.choices.prefix_cache && parent.sequence.namespace != sequence.namespace {
            return Ok(None);
        }
        if parent.sequence.source != sequence.source {
            return Ok(None);
        }
        // All but the last token, which has to be computed for the logits after it.
        let wanted = &sequence.tokens[..sequence.tokens.len() - 1];
        let pairs = wanted.iter().zip(&parent.sequence.tokens);
        let n_common = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        if parent.is_catching_up() && parent.n_computed < n_common {
            // A lane that will have gone too far is not waited for.
            let n_prompt = parent.prompt().len();
            let border =
                self.config.states.as_ref().map_or(0, |states| states.border(n_prompt - 1));
            return if border > n_common { Ok(None) } else { Err(Deferred) };
        }
        let n_shared = n_common.min(parent.n_computed);
        let border = parent.held.lane.as_ref().map_or(0, |lane| lane.border);
        let is_kept = border <= n_shared && self.kv.reaches(&parent.held, n_shared);
        let is_enough = n_shared >= sequence.source.end().max(1);
        Ok((is_enough && is_kept).then_some((idx, n_shared)))
    }

    /// Whether a running sequence is about to compute what would lengthen the match of a waiting one.
    fn awaits_prefix(&mut self, spot: Spot, found: &RadixMatch) -> bool {
        let parked = self.queue.at(spot);
        let n_found = found.n_full * self.config.block_size;
        match self.config.states {
            None => self.is_being_computed(parked.sequence(), found),
            Some(_) => {
                let n_on_host = parked.host().map_or(0, |host| host.n_tokens);
                self.awaits_state(spot, n_found.max(n_on_host))
            }
        }
    }

    /// Whether a running sequence is about to compute the block that follows a match.
    fn is_being_computed(&self, sequence: &Sequence, found: &RadixMatch) -> bool {
        let end = (found.n_full + 1) * self.config.block_size;
        let Some(wanted) = sequence.tokens[..sequence.tokens.len() - 1].get(..end) else {
            return false;
        };
        self.config.choices.prefix_cache
            && self.running.iter().any(|running| {
                let other = &running.sequence;
                running.is_catching_up()
                    && other.namespace == sequence.namespace
                    && other.n_prompt >= end
                    && running.n_computed < end
                    && other.tokens[end - 1] == wanted[end - 1]
                    && other.tokens[..end] == *wanted
            })
    }
}

/// Another request is computing the tokens that are needed.
struct Deferred;
