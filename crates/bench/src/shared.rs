//! An engine whose executor the benchmark reaches too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_engine::{
    Drafting, Engine, EngineConfig, EngineHandle, Execution, Executor, ExecutorError, Extras,
    KvCapacity, KvMemory, ModelExecutor, ModelExecutorConfig, Panicked, Sources, StateRoom,
};
use pelton_model::{CpuDevice, Decoder};
use pelton_sched::{Choices, SchedulerOutput};

use crate::{BenchError, Result};

/// The executor of the engine, which the benchmark reaches too: the engine waits while the
/// benchmark holds the lock.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<ModelExecutor<CpuDevice>>>);

impl Shared {
    /// An executor that an engine and the benchmark use in turn.
    pub(crate) fn new(executor: ModelExecutor<CpuDevice>) -> Self {
        Self(Arc::new(Mutex::new(executor)))
    }

    /// Keeps the engine waiting until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ModelExecutor<CpuDevice>> {
        // A panic under the lock has ended the engine already.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) use pelton_base::limits::{BLOCK_TOKENS, STEP_TOKENS};

/// Starts an engine for at most `n_requests` requests at once, with room for the keys and values of this
/// many blocks of tokens; steps are never cut short for time.
///
/// # Errors
///
/// When the system refuses the memory, or there are more blocks than 32 bits count.
pub(crate) fn spawn(
    mut decoder: Decoder<CpuDevice>,
    n_blocks: usize,
    n_requests: usize,
) -> Result<(Shared, EngineHandle)> {
    decoder.group_windows();
    let n_blocks = n_blocks.saturating_mul(decoder.spec().n_kv_groups());
    let n_blocks = u32::try_from(n_blocks).map_err(|_| {
        BenchError::invalid("`--batch` is too large: blocks are counted in 32 bits")
    })?;
    let config = ModelExecutorConfig {
        block_size: BLOCK_TOKENS,
        memory: KvMemory::Blocks(n_blocks),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers: None,
        verification: Default::default(),
        // A state of its own for each request of recurrent layers; fewer would let some wait.
        states: StateRoom {
            n_lanes: u32::try_from(n_requests).unwrap_or(u32::MAX),
            ..StateRoom::default()
        },
    };
    let executor = Shared::new(ModelExecutor::new(decoder, config)?);
    let config = EngineConfig {
        choices: Choices {
            max_batch_tokens: STEP_TOKENS.max(n_requests),
            max_chunk_tokens: Some(STEP_TOKENS),
            max_running: n_requests,
            max_step: Duration::ZERO,
            ..Choices::default()
        },
        max_waiting_requests: n_requests,
        ..EngineConfig::default()
    };
    let engine = Engine::spawn(executor.clone(), config);
    Ok((executor, engine))
}

/// A greedy request for exactly this many tokens.
pub(crate) fn greedy(prompt: Vec<TokenId>, max_tokens: usize) -> Ask {
    Ask {
        prompt,
        sampling: SamplingParams::greedy(),
        choice: 0,
        max_tokens,
        stop_tokens: Vec::new(),
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: None,
    }
}

impl Executor for Shared {
    fn kv_capacity(&self) -> KvCapacity {
        self.lock().kv_capacity()
    }

    fn vocab_size(&self) -> usize {
        self.lock().vocab_size()
    }

    fn max_context_tokens(&self) -> usize {
        self.lock().max_context_tokens()
    }

    fn sources(&self) -> Option<Sources> {
        self.lock().sources()
    }

    /// Nothing is drafted here.
    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        None
    }

    fn add(&mut self, request: &Request, extras: Extras) -> std::result::Result<(), Panicked> {
        self.lock().add(request, extras)
    }

    fn launch(&mut self, plan: &SchedulerOutput) {
        self.lock().launch(plan);
    }

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> std::result::Result<(), ExecutorError> {
        self.lock().collect(plan, execution)
    }

    fn finished(&mut self, id: RequestId) {
        self.lock().finished(id);
    }

    fn reset(&mut self) {
        self.lock().reset();
    }
}

/// An engine that stopped or gave an answer of another kind than asked for.
pub(crate) fn engine_failed() -> BenchError {
    BenchError::failed("the engine failed while generating")
}

/// Seconds of one of the steps in which every sequence got a token, over at most `most_steps` of
/// them; `times[i]` are the moments of the tokens of sequence `i`.
///
/// `None` when there was no such step.
pub(crate) fn full_step(times: &[Vec<Instant>], most_steps: usize) -> Option<f64> {
    // From the first token of the last one to start ...
    let last = times.iter().max_by_key(|times| times.first())?;
    let start = *last.first()?;
    // ... for as long as all of them go on.
    let n_together = |times: &Vec<Instant>| times.iter().filter(|at| **at > start).count();
    let n_steps = times.iter().map(n_together).min()?.min(most_steps);
    let end = *last.iter().filter(|at| **at > start).nth(n_steps.checked_sub(1)?)?;
    Some((end - start).as_secs_f64() / n_steps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_in_which_all_generate_are_counted() {
        let zero = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| zero + Duration::from_millis(*ms)).collect();
        // The second starts two tokens later, the first ends one token earlier.
        let times: Vec<Vec<Instant>> = vec![at(&[1, 2, 10, 30, 50]), at(&[10, 30, 50, 51])];
        let seconds = full_step(&times, 100).expect("two steps together");
        assert!((seconds - 0.020).abs() < 1e-9, "{seconds}");
        assert_eq!(full_step(&[at(&[1, 2]), at(&[2, 3])], 100), None);
        assert_eq!(full_step(&[at(&[1, 2]), Vec::new()], 100), None);
        let one = full_step(&[at(&[1, 5, 100])], 1).expect("one step");
        assert!((one - 0.004).abs() < 1e-9, "{one}");
    }
}
