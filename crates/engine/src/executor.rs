//! The seam between the loop and the device that computes.

use crate::spec::Odds;
use crate::{ExecutorError, Fault, Panicked, Sources};
use pelton_base::{KvWindows, Request, RequestId, TokenId};
use pelton_sampling::{LogitsProcessor, LogprobsMode, ScoredToken, TokenLogprobs};
use pelton_sched::{SchedulerOutput, StateConfig, StepOutput};
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
    /// Lanes and snapshots of recurrent layers; `None` in models without such layers.
    pub states: Option<StateConfig>,
    /// Layers whose blocks are freed behind an attention window; `None` in models without such layers.
    pub windows: Option<KvWindows>,
}

/// The outcome of a step: tokens for the scheduler, and reports along with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    /// Tokens and failures.
    pub step: StepOutput,
    /// The reasons of some of the failures.
    pub faults: Vec<(RequestId, Fault)>,
    /// For requests that asked for them: one entry per sampled token, in the same order.
    pub logprobs: Vec<(RequestId, Vec<TokenLogprobs>)>,
    /// For requests whose prompts are scored and now computed: the tokens of the prompt but the
    /// first, in order.
    pub prompts: Vec<(RequestId, Vec<ScoredToken>)>,
    /// The likeliest tokens after each row that samples, by the model alone, the likeliest first:
    /// `n_candidates` for the last known token and for each draft of each share that samples, in
    /// order. See [`Drafting::report_candidates`].
    pub candidates: Vec<TokenId>,
    /// Candidates per row; zero where none were asked for or the executor does not report them.
    pub n_candidates: usize,
    /// Time that the executor spent making drafts that came blank.
    pub drafting: Duration,
    /// Time that the executor waited for masks of rules, after all else of the step was computed.
    pub masking: Duration,
}

impl Execution {
    /// Makes every request of `plan` fail. Transfers that are over stay over.
    pub(crate) fn fail(&mut self, plan: &SchedulerOutput) {
        let transferred = std::mem::take(&mut self.step.transferred);
        self.clear();
        self.step.transferred = transferred;
        self.step.failed.extend(plan.sequences.iter().map(|share| share.id));
    }

    /// Forgets the step and keeps the memory.
    pub fn clear(&mut self) {
        let Self { step, faults, logprobs, prompts, candidates, n_candidates, drafting, masking } =
            self;
        step.clear();
        faults.clear();
        logprobs.clear();
        prompts.clear();
        candidates.clear();
        (*n_candidates, *drafting, *masking) = (0, Duration::ZERO, Duration::ZERO);
    }
}

/// Wishes of a request beside its parameters.
#[derive(Debug, Default)]
pub struct Extras {
    /// Change each row of its logits, in order, after the processors that its parameters ask for.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Whether the tokens of its prompt are scored, and with how many of the likeliest tokens in
    /// their place.
    pub prompt_logprobs: Option<usize>,
    /// The distribution whose log probabilities are reported for its answer.
    pub logprobs_mode: LogprobsMode,
}

impl From<Vec<Box<dyn LogitsProcessor>>> for Extras {
    fn from(processors: Vec<Box<dyn LogitsProcessor>>) -> Self {
        Self { processors, ..Self::default() }
    }
}

/// Computes plans. Lives on the engine thread, which is the only one to call it.
///
/// The calls for one request are `add`, any number of steps with shares of it, `finished`. A step
/// is one `launch` and one `collect`; no other method is called between the two, except for
/// [`reset`](Self::reset) after a panic.
///
/// No method has a default: an ability that an executor lacks is one that it says it lacks, and an
/// executor that wraps another cannot lose one by accident.
pub trait Executor: Send + 'static {
    /// How much KV there is; asked once, at the start.
    fn kv_capacity(&self) -> KvCapacity;

    /// Number of tokens that a prompt may use; asked once, at the start.
    fn vocab_size(&self) -> usize;

    /// Most tokens that one sequence may have, prompt and output together; asked once, at the
    /// start. The engine's own limit may be lower.
    fn max_context_tokens(&self) -> usize;

    /// The encoder that reads prompts, where there is one; asked once, at the start.
    fn sources(&self) -> Option<Sources>;

    /// Its services to proposers; `None` where it verifies drafts and does no more for them.
    fn drafting(&mut self) -> Option<&mut dyn Drafting>;

    /// Meets a request, before any plan mentions it.
    ///
    /// The plans of a request whose prompt is scored cover every token of it
    /// ([`Scheduler::add_scored_at`](pelton_sched::Scheduler::add_scored_at)).
    ///
    /// # Errors
    ///
    /// When the request's own code panicked, such as its rule. The executor then knows nothing of
    /// the request, which ends with the error; neither a plan nor `finished` mentions it.
    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked>;

    /// Begins a plan: copies the blocks that it names, starts its transfers, and starts to compute
    /// its shares. Transfers may go on while later plans are computed.
    ///
    /// A device returns at once and computes while the loop does other work; the CPU may leave the
    /// computation to [`collect`](Self::collect).
    fn launch(&mut self, plan: &SchedulerOutput);

    /// Waits for the plan that was launched last, which is `plan`, and fills `execution`, which
    /// comes empty: the sampled tokens of every share that samples, and the transfers that are over
    /// by now, each once ([`StepOutput::transferred`]). Where the plan has no shares and transfers
    /// are under way, it waits for one of them.
    ///
    /// # Errors
    ///
    /// An error fails every request of the plan, whatever tokens `execution` has; to fail some,
    /// name them in [`StepOutput::failed`] instead. Either way the transfers that `execution`
    /// reports count, the other transfers go on, and the executor is called again.
    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError>;

    /// Forgets a request; no later plan mentions it.
    fn finished(&mut self, id: RequestId);

    /// Forgets every request, every transfer and the step at hand, as if it had just been made; the
    /// content of its KV memory no longer counts. The engine calls it after a panic of any method,
    /// so no state of an earlier call may be relied upon.
    fn reset(&mut self);
}

/// The services of an executor to proposers, beyond verifying their drafts.
pub trait Drafting {
    /// Asks for the `n` likeliest tokens after each row that samples, from the next plan on; zero
    /// for none. An executor that knows fewer reports fewer ([`Execution::n_candidates`]).
    fn report_candidates(&mut self, n: usize);

    /// Where proposers record the distributions that they drew the drafts of the next plan from;
    /// `None` where drafts are judged without them.
    fn odds(&mut self) -> Option<&mut Odds>;

    /// Whether it makes the drafts that come blank ([`BLANK`](crate::spec::BLANK)).
    fn fills_blanks(&self) -> bool;
}
