//! An executor and a proposer that fail and panic at random.

use std::sync::{Arc, Mutex};

use pelton_base::{Request, RequestId};
use pelton_engine::spec::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_engine::{
    Drafting, Execution, Executor, ExecutorError, Extras, KvCapacity, Panicked, Sources,
};
use pelton_sched::SchedulerOutput;
use pelton_sim::Random;

use super::one_in;

/// In the message of every panic that a schedule plans.
pub(super) const PLANNED: &str = "as the schedule planned";

/// How often an executor fails: once in so many calls, never where it is zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) step_errors: u64,
    pub(super) refused_memory: u64,
    pub(super) share_errors: u64,
    pub(super) add_panics: u64,
    pub(super) step_panics: u64,
    pub(super) reset_panics: u64,
    pub(super) proposer_panics: u64,
}

impl Rates {
    /// None at all, or some of each kind.
    pub(super) fn of(random: &mut Random) -> Self {
        if one_in(random, 2) {
            return Self::default();
        }
        let mut rate = || if one_in(random, 2) { 0 } else { 4 + random.below(60) };
        Self {
            step_errors: rate(),
            refused_memory: rate(),
            share_errors: rate(),
            add_panics: rate(),
            step_panics: rate() * 4,
            reset_panics: rate() / 16,
            proposer_panics: rate(),
        }
    }
}

impl Rates {
    pub(super) fn any(self) -> bool {
        let Self { step_errors, refused_memory, share_errors, .. } = self;
        let Self { add_panics, step_panics, reset_panics, .. } = self;
        let all =
            [step_errors, refused_memory, share_errors, add_panics, step_panics, reset_panics];
        all.into_iter().any(|rate| rate > 0)
    }
}

/// Faults that happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Happened {
    pub(super) n_errors: u64,
    pub(super) n_panics: u64,
}

pub(super) struct Faulty<E> {
    pub(super) inner: E,
    pub(super) rates: Rates,
    pub(super) random: Random,
    pub(super) happened: Arc<Mutex<Happened>>,
}

impl<E> Faulty<E> {
    fn comes(&mut self, rate: u64) -> bool {
        rate > 0 && one_in(&mut self.random, rate)
    }

    fn fails(&mut self, rate: u64) -> bool {
        let fails = self.comes(rate);
        self.happened.lock().expect("plain").n_errors += u64::from(fails);
        fails
    }

    fn may_panic(&mut self, rate: u64) {
        if self.comes(rate) {
            self.happened.lock().expect("plain").n_panics += 1;
            panic!("{PLANNED}");
        }
    }
}

impl<E: Executor> Executor for Faulty<E> {
    fn kv_capacity(&self) -> KvCapacity {
        self.inner.kv_capacity()
    }

    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn max_context_tokens(&self) -> usize {
        self.inner.max_context_tokens()
    }

    fn sources(&self) -> Option<Sources> {
        self.inner.sources()
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        self.inner.drafting()
    }

    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked> {
        if self.fails(self.rates.add_panics) {
            return Err(Panicked { part: "sampling", message: PLANNED.to_owned() });
        }
        self.may_panic(self.rates.step_panics);
        self.inner.add(request, extras)
    }

    fn launch(&mut self, plan: &SchedulerOutput) {
        self.may_panic(self.rates.step_panics);
        self.inner.launch(plan);
        self.may_panic(self.rates.step_panics);
    }

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        let outcome = self.inner.collect(plan, execution);
        self.may_panic(self.rates.step_panics);
        if self.fails(self.rates.step_errors) {
            return Err(ExecutorError::Forward(PLANNED.into()));
        }
        if self.fails(self.rates.refused_memory) {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(ExecutorError::KvRefused { n_blocks: 1, block_bytes: 1, source });
        }
        if let Some(share) = plan.sequences.first()
            && self.fails(self.rates.share_errors)
        {
            execution.step.sampled.retain(|(id, _)| *id != share.id);
            execution.logprobs.retain(|(id, _)| *id != share.id);
            execution.step.failed.push(share.id);
        }
        outcome
    }

    fn finished(&mut self, id: RequestId) {
        self.inner.finished(id);
    }

    fn reset(&mut self) {
        self.may_panic(self.rates.reset_panics);
        self.inner.reset();
    }
}

/// A proposer that panics at random. No request may notice.
#[derive(Debug)]
pub(super) struct FaultyProposer {
    pub(super) inner: Box<dyn Proposer>,
    pub(super) rate: u64,
    pub(super) random: Random,
}

impl FaultyProposer {
    fn may_panic(&mut self) {
        assert!(self.rate == 0 || !one_in(&mut self.random, self.rate), "{PLANNED}");
    }
}

impl Proposer for FaultyProposer {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn add(&mut self, request: &Request) {
        self.may_panic();
        self.inner.add(request);
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        self.may_panic();
        self.inner.look(row, most)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        let outcome = self.inner.propose(rows, odds);
        self.may_panic();
        outcome
    }

    fn is_catching_up(&self, row: &Row<'_>) -> bool {
        self.inner.is_catching_up(row)
    }

    fn observe(&mut self, seen: &Seen<'_>) {
        self.may_panic();
        self.inner.observe(seen);
    }

    fn finished(&mut self, id: RequestId) {
        self.may_panic();
        self.inner.finished(id);
    }
}
