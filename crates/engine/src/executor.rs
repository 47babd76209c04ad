//! The seam between the loop and whatever computes.

use crate::ExecutorError;
use crate::spec::Odds;
use pelton_base::{Request, RequestId, TokenId};
use pelton_sampling::TokenLogprobs;
use pelton_sched::{SchedulerOutput, StepOutput};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much KV an executor holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvCapacity {
    /// Number of blocks; at least one.
    pub n_blocks: u32,
    /// Number of blocks of the swap store in host memory; zero for none.
    pub n_host_blocks: u32,
    /// Tokens per block; at least one.
    pub block_size: usize,
}

/// What a step brought: tokens for the scheduler, and what is reported along with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    /// Tokens and failures.
    pub step: StepOutput,
    /// For requests that asked for them: one entry per sampled token, in the same order.
    pub logprobs: Vec<(RequestId, Vec<TokenLogprobs>)>,
    /// The likeliest tokens after each row that samples, by the model alone, the likeliest first:
    /// `n_candidates` for the last known token and for each draft of each share that samples, in order.
    pub candidates: Vec<TokenId>,
    /// How many each of these rows has; zero where nobody asked or the executor does not tell.
    pub n_candidates: usize,
    /// Time spent making drafts that came blank.
    pub drafting: Duration,
}

impl Execution {
    /// Forgets the step and keeps the memory.
    pub fn clear(&mut self) {
        let Self { step, logprobs, candidates, n_candidates, drafting } = self;
        step.clear();
        logprobs.clear();
        candidates.clear();
        (*n_candidates, *drafting) = (0, Duration::ZERO);
    }
}

/// Computes plans. Lives on the engine thread, which is the only one to call it.
///
/// The calls for one request are `add`, any number of `execute` with shares of it, `finished`.
pub trait Executor: Send + 'static {
    /// How much KV there is; asked once, at the start.
    fn kv_capacity(&self) -> KvCapacity;

    /// Number of tokens that a prompt may use; asked once, at the start.
    fn vocab_size(&self) -> usize;

    /// Most tokens that one sequence may have, prompt and output together; asked once, at the
    /// start. The engine's own limit may be lower.
    fn max_context_tokens(&self) -> usize;

    /// Asks for the `n` likeliest tokens after each row that samples, from the next plan on. Not
    /// every executor tells them.
    fn report_candidates(&mut self, _n: usize) {}

    /// Where proposers say what they drew the drafts of the next plan from; `None` where drafts are
    /// judged without it.
    fn odds(&mut self) -> Option<&mut Odds> {
        None
    }

    /// Meets a request, before any plan mentions it.
    fn add(&mut self, request: &Request);

    /// Moves the blocks that `plan` names (out to the host, then in from it, then copies), computes
    /// every share and samples where the share says so, into `execution`, which
    /// comes empty.
    ///
    /// # Errors
    ///
    /// An error fails every request of the plan, whatever `execution` says; to fail some, name them
    /// in [`StepOutput::failed`] instead. Either way the blocks are moved (others may own them), and
    /// the executor is called again.
    fn execute(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError>;

    /// Forgets a request; no later plan mentions it.
    fn finished(&mut self, id: RequestId);
}

/// An executor that its owner can still reach while an engine has it, for instance to measure the
/// model beneath. Every call takes the lock, so the engine waits while the owner holds it.
impl<E: Executor> Executor for Arc<Mutex<E>> {
    fn kv_capacity(&self) -> KvCapacity {
        locked(self).kv_capacity()
    }

    fn vocab_size(&self) -> usize {
        locked(self).vocab_size()
    }

    fn max_context_tokens(&self) -> usize {
        locked(self).max_context_tokens()
    }

    fn report_candidates(&mut self, n: usize) {
        locked(self).report_candidates(n);
    }

    fn add(&mut self, request: &Request) {
        locked(self).add(request);
    }

    fn execute(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        locked(self).execute(plan, execution)
    }

    fn finished(&mut self, id: RequestId) {
        locked(self).finished(id);
    }
}

/// A panic under the lock ends the engine by itself; the lock need not say it again.
fn locked<E>(executor: &Mutex<E>) -> MutexGuard<'_, E> {
    executor.lock().unwrap_or_else(PoisonError::into_inner)
}
