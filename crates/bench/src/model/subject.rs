//! The model under measurement: once behind the real engine, once reached directly.
//!
//! ```text
//! prefill, decode     submit ──> engine thread ──> scheduler, forward, greedy sampler ──> events
//! context, verify     forward on one long sequence with a KV cache of its own
//! ```
//!
//! Both use the same decoder and threads: the engine shares the executor behind a lock ([`Shared`]),
//! which it takes for each call.
//!
//! The long sequence is computed once. A measured step at position `p` computes the tokens from `p`
//! on again. This stores equal bits (the result of a row depends on nothing else), so every round
//! finds the same cache. The engine gets new prompts each time, so that none is in the prefix
//! cache.

use std::time::{Duration, Instant};

use pelton_base::{FinishReason, TokenId};
use pelton_engine::{EngineHandle, TokenEvent, TokenStream};
use pelton_model::{
    BlockTables, CpuDevice, Decoder, Device, ForwardInput, ForwardSequence, Lane, Lap,
};

use super::plan::{CONTEXT_STEPS, Needs, Plan, SHORT_TOKENS, Variant};
use crate::shared::{BLOCK_TOKENS, STEP_TOKENS, Shared, engine_failed, full_step, greedy, spawn};
use crate::tokens::RandomTokens;
use crate::{BenchError, Result};

/// Verifications per round.
const VERIFICATIONS: usize = 8;

/// A loaded model, ready to be measured.
pub(super) struct Subject<'a> {
    executor: Shared,
    engine: EngineHandle,
    /// The long sequence, and where its keys and values are.
    sequence: Vec<TokenId>,
    kv: <CpuDevice as Device>::Kv,
    /// A table for each memory group of layers, one after the other.
    block_tables: Vec<u32>,
    n_groups: usize,
    is_recurrent: bool,
    logits: Vec<f32>,
    prompts: RandomTokens,
    plan: Plan,
    is_stopped: &'a dyn Fn() -> bool,
}

impl<'a> Subject<'a> {
    /// Starts an engine, takes the memory of the long sequence, and computes everything once.
    ///
    /// `None` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the system refuses the memory, or the engine fails.
    pub(super) fn new(
        mut decoder: Decoder<CpuDevice>,
        plan: &Plan,
        needs: Needs,
        is_stopped: &'a dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let mut prompts = RandomTokens::new(decoder.spec().vocab_size);
        // As the engine will have it.
        decoder.group_windows();
        let n_blocks = needs.n_sequence_blocks * decoder.spec().n_kv_groups();
        let kv = decoder.try_new_kv(n_blocks, BLOCK_TOKENS).map_err(|error| {
            BenchError::invalid_with_hint(
                format!("no memory for the keys and values of a context: {error}"),
                "lower `--context` or `--prompt`",
            )
        })?;
        let is_recurrent = decoder.spec().is_recurrent();
        let n_groups = decoder.spec().n_kv_groups();
        let (executor, engine) = spawn(decoder, needs.n_engine_blocks, plan.most_sequences())?;
        let mut subject = Self {
            executor,
            engine,
            sequence: prompts.take(plan.sequence_tokens()),
            kv,
            block_tables: (0..n_blocks as u32).collect(),
            n_groups,
            is_recurrent,
            logits: Vec::new(),
            prompts,
            plan: plan.clone(),
            is_stopped,
        };
        let is_ready = subject.fill() && subject.warm_up()?;
        Ok(is_ready.then_some(subject))
    }

    /// Seconds of one step of this kind; `None` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the engine fails.
    pub(super) fn measure(&mut self, variant: Variant) -> Result<Option<f64>> {
        if (self.is_stopped)() {
            return Ok(None);
        }
        match variant {
            Variant::Prefill { n_tokens } => self.prefill(n_tokens),
            Variant::Decode { batch } => self.decode(batch, self.plan.generated_tokens(batch)),
            Variant::Context { n_tokens } => {
                let steps = (n_tokens..n_tokens + CONTEXT_STEPS).map(|position| (position, 1));
                Ok(Some(self.forward_all(steps)))
            }
            Variant::Verify { n_rows } => {
                Ok(Some(self.forward_all([(self.plan.prompt, n_rows); VERIFICATIONS])))
            }
        }
    }

    /// The operations of all steps of one measurement; `None` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the engine fails.
    pub(super) fn laps(&mut self, variant: Variant) -> Result<Option<Vec<Lap>>> {
        self.executor.lock().decoder_mut().note_laps();
        let measured = self.measure(variant);
        let laps = self.executor.lock().decoder_mut().take_laps();
        Ok(measured?.map(|_| laps))
    }

    /// Lets `look` see the decoder.
    pub(super) fn with_decoder<T>(&self, look: impl FnOnce(&Decoder<CpuDevice>) -> T) -> T {
        look(self.executor.lock().decoder())
    }

    /// Computes the long sequence; `false` when the caller stopped first.
    fn fill(&mut self) -> bool {
        for first in (0..self.sequence.len()).step_by(STEP_TOKENS) {
            if (self.is_stopped)() {
                return false;
            }
            self.forward(first, STEP_TOKENS.min(self.sequence.len() - first), false);
        }
        true
    }

    /// Runs each kind of step once, so that every buffer has its size; `false` when the caller
    /// stopped first.
    fn warm_up(&mut self) -> Result<bool> {
        const N_TOKENS: usize = 4;
        Ok(self.prefill(self.plan.prompt)?.is_some()
            && self.decode(self.plan.most_sequences(), N_TOKENS)?.is_some())
    }

    /// Seconds from the start of a prompt's first step to its first token.
    fn prefill(&mut self, n_tokens: usize) -> Result<Option<f64>> {
        let stream = self.submit(n_tokens, 1)?;
        let Some(events) = self.receive(stream)? else { return Ok(None) };
        let first = events.first().ok_or_else(engine_failed)?;
        let started = first.started_at.ok_or_else(engine_failed)?;
        Ok(Some((first.at - started).as_secs_f64()))
    }

    /// Seconds of one step in which all of `batch` sequences generate.
    fn decode(&mut self, batch: usize, n_tokens: usize) -> Result<Option<f64>> {
        let executor = self.executor.clone();
        let streams = {
            // The engine cannot begin before all requests are submitted.
            let _lock = executor.lock();
            (0..batch).map(|_| self.submit(SHORT_TOKENS, n_tokens)).collect::<Result<Vec<_>>>()?
        };
        let mut times: Vec<Vec<Instant>> = Vec::with_capacity(batch);
        for stream in streams {
            let Some(events) = self.receive(stream)? else { return Ok(None) };
            times.push(events.iter().map(|event| event.at).collect());
        }
        Ok(Some(full_step(&times, self.plan.generate).ok_or_else(engine_failed)?))
    }

    fn submit(&mut self, n_prompt: usize, max_tokens: usize) -> Result<TokenStream> {
        let request = greedy(self.prompts.take(n_prompt), max_tokens);
        Ok(self.engine.submit(request)?)
    }

    /// All events of a request that have tokens; `None` when the caller stopped first.
    fn receive(&self, mut stream: TokenStream) -> Result<Option<Vec<TokenEvent>>> {
        let mut events = Vec::new();
        while let Some(event) = stream.blocking_recv() {
            if (self.is_stopped)() {
                return Ok(None);
            }
            if event.finish.is_some_and(|reason| reason != FinishReason::Length) {
                return Err(engine_failed());
            }
            if !event.tokens.is_empty() {
                events.push(event);
            }
        }
        Ok(Some(events))
    }

    /// Mean seconds of forward passes, each of some rows from a position on; the first is computed
    /// once before the clock starts, because the step before it had other rows.
    fn forward_all(&mut self, steps: impl IntoIterator<Item = (usize, usize)>) -> f64 {
        let mut steps = steps.into_iter().peekable();
        if let Some(&(first, n_rows)) = steps.peek() {
            self.forward(first, n_rows, true);
        }
        let (mut total, mut n_steps) = (Duration::ZERO, 0_u32);
        for (first, n_rows) in steps {
            total += self.forward(first, n_rows, true);
            n_steps += 1;
        }
        total.as_secs_f64() / f64::from(n_steps.max(1))
    }

    /// Computes `n_rows` tokens of the long sequence from position `first` on.
    fn forward(&mut self, first: usize, n_rows: usize, with_logits: bool) -> Duration {
        let rows: Vec<usize> = if with_logits { (0..n_rows).collect() } else { Vec::new() };
        let sequence = ForwardSequence {
            rows: 0..n_rows,
            n_source: 0,
            first_position: first,
            block_tables: BlockTables::new(&self.block_tables, self.n_groups),
            // Of timing alone: a lane is not what its place says where rows are computed again.
            lane: self.is_recurrent.then(|| Lane::at(0, first)),
            tree: None,
        };
        let input = ForwardInput {
            tokens: &self.sequence[first..first + n_rows],
            sequences: &[sequence],
            logits_rows: &rows,
        };
        let mut executor = self.executor.lock();
        let decoder = executor.decoder_mut();
        let started = Instant::now();
        decoder.forward(&mut self.kv, &input, &mut self.logits);
        started.elapsed()
    }
}
