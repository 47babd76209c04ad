//! An engine that serves one batch at a time.

use std::time::Instant;

use pelton_base::FinishReason;
use pelton_engine::{EngineHandle, TokenStream};
use pelton_kernels::Cpu;
use pelton_model::{CpuDevice, Decoder, Lap};

use super::plan::{Plan, Shape};
use crate::Result;
use crate::shared::{BLOCK_TOKENS, Shared, engine_failed, full_step, greedy, spawn};
use crate::tokens::RandomTokens;

/// A loaded model behind an engine.
pub(super) struct Subject<'a> {
    executor: Shared,
    engine: EngineHandle,
    prompts: RandomTokens,
    is_stopped: &'a dyn Fn() -> bool,
}

/// One batch, from its first step to its last token.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// From the first step to the first token of the last request.
    pub(super) prompt_s: f64,
    /// A step in which all requests generate; `None` where there was none.
    pub(super) step_s: Option<f64>,
    /// From the first step to the last token.
    pub(super) whole_s: f64,
    /// From the first step to the first token of each request.
    pub(super) ttft_s: Vec<f64>,
    /// From each token to the next one of its request.
    pub(super) gaps_s: Vec<f64>,
}

impl Pass {
    fn new(started: Instant, tokens: &[Vec<Instant>]) -> Option<Self> {
        let since = |at: &Instant| (*at - started).as_secs_f64().max(1e-9);
        let ttft_s: Vec<f64> =
            tokens.iter().map(|times| times.first().map(since)).collect::<Option<_>>()?;
        let gaps = |times: &Vec<Instant>| {
            times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect::<Vec<_>>()
        };
        Some(Self {
            prompt_s: ttft_s.iter().copied().fold(0.0, f64::max),
            step_s: full_step(tokens, usize::MAX).map(|step| step.max(1e-9)),
            whole_s: tokens.iter().filter_map(|times| times.last().map(since)).fold(0.0, f64::max),
            ttft_s,
            gaps_s: tokens.iter().flat_map(gaps).collect(),
        })
    }

    /// Tokens of prompts per second.
    pub(super) fn prompt_rate(&self, shape: &Shape) -> f64 {
        (shape.batch * shape.input) as f64 / self.prompt_s
    }

    /// Tokens of answers per second, prompts included in the time.
    pub(super) fn output_rate(&self, shape: &Shape) -> f64 {
        (shape.batch * shape.output) as f64 / self.whole_s
    }
}

impl<'a> Subject<'a> {
    /// Starts an engine with this many blocks.
    ///
    /// # Errors
    ///
    /// When the system refuses the memory.
    pub(super) fn new(
        decoder: Decoder<CpuDevice>,
        plan: &Plan,
        n_blocks: usize,
        is_stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self> {
        let prompts = RandomTokens::new(decoder.spec().vocab_size);
        let (executor, engine) = spawn(decoder, n_blocks, plan.most_requests())?;
        Ok(Self { executor, engine, prompts, is_stopped })
    }

    /// Lets `look` see the threads that compute.
    pub(super) fn with_cpu<T>(&self, look: impl FnOnce(&Cpu) -> T) -> T {
        self.with_decoder(|decoder| look(decoder.device().cpu()))
    }

    /// Lets `look` see the decoder.
    pub(super) fn with_decoder<T>(&self, look: impl FnOnce(&Decoder<CpuDevice>) -> T) -> T {
        look(self.executor.lock().decoder())
    }

    /// The operations of all steps of a batch; `None` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the engine fails.
    pub(super) fn laps(&mut self, shape: &Shape) -> Result<Option<Vec<Lap>>> {
        self.executor.lock().decoder_mut().note_laps();
        let pass = self.pass(shape);
        let laps = self.executor.lock().decoder_mut().take_laps();
        Ok(pass?.map(|_| laps))
    }

    /// Serves the widest batch and the longest prompt with answers of a few tokens, so that every
    /// buffer has its size; `false` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the engine fails.
    pub(super) fn warm_up(&mut self, plan: &Plan) -> Result<bool> {
        let output = 2;
        let shortest = plan.shapes.iter().map(|shape| shape.input).min().unwrap_or(1);
        let input = shortest.min(BLOCK_TOKENS);
        let widest = Shape { batch: plan.most_requests(), input, output };
        let longest = plan.shapes.iter().map(|shape| shape.input).max().unwrap_or(1);
        let input = longest.saturating_sub(output).max(1);
        let longest = Shape { batch: 1, input, output };
        Ok(self.pass(&widest)?.is_some() && self.pass(&longest)?.is_some())
    }

    /// Serves a batch of new prompts; `None` when the caller stopped first.
    ///
    /// # Errors
    ///
    /// When the engine fails.
    pub(super) fn pass(&mut self, shape: &Shape) -> Result<Option<Pass>> {
        if (self.is_stopped)() {
            return Ok(None);
        }
        let executor = self.executor.clone();
        let streams = {
            // The engine cannot begin before all requests are submitted.
            let _lock = executor.lock();
            (0..shape.batch).map(|_| self.submit(shape)).collect::<Result<Vec<_>>>()?
        };
        let mut started: Option<Instant> = None;
        let mut tokens = Vec::with_capacity(shape.batch);
        for stream in streams {
            let Some((begin, times)) = self.receive(stream)? else { return Ok(None) };
            started = Some(started.map_or(begin, |first| first.min(begin)));
            tokens.push(times);
        }
        let started = started.ok_or_else(engine_failed)?;
        Ok(Some(Pass::new(started, &tokens).ok_or_else(engine_failed)?))
    }

    fn submit(&mut self, shape: &Shape) -> Result<TokenStream> {
        let request = greedy(self.prompts.take(shape.input), shape.output);
        Ok(self.engine.submit(request)?)
    }

    /// The begin of a request's first step and the moments of its tokens; `None` when the caller
    /// stopped first.
    fn receive(&self, mut stream: TokenStream) -> Result<Option<(Instant, Vec<Instant>)>> {
        let (mut started, mut times) = (None, Vec::new());
        while let Some(event) = stream.blocking_recv() {
            if (self.is_stopped)() {
                return Ok(None);
            }
            if event.finish.is_some_and(|reason| reason != FinishReason::Length) {
                return Err(engine_failed());
            }
            started = started.or(event.started_at);
            times.extend(event.tokens.iter().map(|_| event.at));
        }
        let started = started.ok_or_else(engine_failed)?;
        Ok(Some((started, times)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn prompts_and_generation_are_counted_apart() {
        let zero = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| zero + Duration::from_millis(*ms)).collect();
        let shape = Shape { batch: 2, input: 100, output: 4 };
        let tokens: Vec<Vec<Instant>> = vec![at(&[100, 190, 210, 230]), at(&[200, 210, 230, 250])];
        let pass = Pass::new(zero, &tokens).expect("tokens");
        assert_eq!((pass.prompt_s, pass.whole_s), (0.2, 0.25));
        assert_eq!(pass.ttft_s, [0.1, 0.2]);
        assert_eq!((pass.prompt_rate(&shape), pass.output_rate(&shape)), (1000.0, 32.0));
        assert_eq!(pass.gaps_s.len(), 6);
        // Steps in which both generate: 200 to 210 and 210 to 230.
        assert!(pass.step_s.is_some_and(|step| (step - 0.015).abs() < 1e-9), "{pass:?}");
        let apart: Vec<Vec<Instant>> = vec![at(&[100, 110]), at(&[200, 210])];
        assert_eq!(Pass::new(zero, &apart).expect("tokens").step_s, None);
        assert!(Pass::new(zero, &[Vec::new()]).is_none());
    }
}
