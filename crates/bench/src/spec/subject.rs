//! One engine that answers the same requests with a different drafting method each time.
//!
//! ```text
//! request 1  ├ prompt ┤t────t──t──t────t┤
//! request 2  ├ prompt ────┤t──t────t──t┤           counted: tokens and steps after `from`
//!                          └ from        └ to      seconds: to - from
//! ```

use std::time::Instant;

use pelton_base::{Ask, Drafting, FinishReason, SamplingParams, ServiceParams, TokenId};
use pelton_engine::{EngineHandle, SpecStats, TokenStream};
use pelton_llm::{Llm, SpecMethod};

use super::prompts::{Question, Texts};
use crate::{BenchError, Result};

/// Requests of one kind at one batch size, and what was measured with them.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) batch: usize,
    pub(super) text: Texts<Question>,
    /// By method, then round.
    pub(super) runs: Vec<Vec<Run>>,
    /// The answers of the first run of plain decoding.
    expected: Option<Vec<Vec<TokenId>>>,
    /// By method: whether its tokens always were those of plain decoding.
    pub(super) is_equal: Vec<bool>,
}

/// The moment and the number of tokens of each step of one sequence.
type Steps = Vec<(Instant, usize)>;

/// The outcome of all requests of a cell with one method.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Tokens of each answer, in the order of the requests.
    pub(super) answers: Vec<Vec<TokenId>>,
    /// Tokens while all generated.
    pub(super) n_tokens: usize,
    pub(super) seconds: f64,
    /// Steps of single sequences meanwhile.
    pub(super) n_row_steps: usize,
    /// Steps of single sequences in the whole run.
    pub(super) n_all_row_steps: usize,
    pub(super) stats: SpecStats,
}

impl Cell {
    /// Nothing measured yet.
    pub(super) fn new(batch: usize, text: &Texts<Question>, n_methods: usize) -> Self {
        let runs = vec![Vec::new(); n_methods];
        let is_equal = vec![true; n_methods];
        Self { batch, text: text.clone(), runs, expected: None, is_equal }
    }

    /// Takes in a run of a method, the first of which is plain decoding.
    pub(super) fn add(&mut self, method: usize, mut run: Run, is_counted: bool) {
        let answers = std::mem::take(&mut run.answers);
        match &self.expected {
            None => self.expected = Some(answers),
            Some(expected) => self.is_equal[method] &= *expected == answers,
        }
        if is_counted {
            self.runs[method].push(run);
        }
    }

    /// Requests in groups of the batch size: every text at least once.
    fn groups(&self) -> impl Iterator<Item = Vec<(usize, &Question)>> {
        let texts = &self.text.all;
        let request = |i: usize| (i, &texts[i % texts.len()]);
        let n_groups = texts.len().div_ceil(self.batch);
        (0..n_groups).map(move |g| (g * self.batch..(g + 1) * self.batch).map(request).collect())
    }
}

/// Sends requests to an engine.
pub(super) struct Subject<'a> {
    engine: &'a EngineHandle,
    eos: &'a [TokenId],
    sampling: SamplingParams,
    max_tokens: usize,
    is_stopped: &'a dyn Fn() -> bool,
}

impl<'a> Subject<'a> {
    pub(super) fn new(
        llm: &'a Llm,
        sampling: SamplingParams,
        max_tokens: usize,
        is_stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { engine: llm.engine(), eos: llm.eos(), sampling, max_tokens, is_stopped }
    }

    /// Answers all requests of a cell; `None` when the caller stopped.
    ///
    /// # Errors
    ///
    /// An engine that refuses or fails.
    pub(super) fn run(&self, cell: &Cell, method: SpecMethod) -> Result<Option<Run>> {
        let drafting = match method {
            SpecMethod::Off => Drafting { most: Some(0), by: None, always: false },
            SpecMethod::Auto => Drafting::default(),
            other => Drafting { most: None, by: Some(other.name()), always: false },
        };
        let before = self.engine.metrics();
        let mut n_ended = before.n_finished;
        let mut run = Run::default();
        for group in cell.groups() {
            n_ended += group.len() as u64;
            let Some(times) = self.answer(&group, drafting, &mut run.answers)? else {
                return Ok(None);
            };
            let (n_tokens, n_steps, seconds) = counted(&times);
            run.n_tokens += n_tokens;
            run.n_row_steps += n_steps;
            run.seconds += seconds;
            run.n_all_row_steps += times.iter().map(Vec::len).sum::<usize>();
        }
        // The figures of the last step are published a moment after its tokens.
        let after = loop {
            let metrics = self.engine.metrics();
            if metrics.n_finished >= n_ended {
                break metrics;
            }
            std::thread::yield_now();
        };
        run.stats = after.spec.since(&before.spec);
        Ok(Some(run))
    }

    /// Answers some requests at once: when each got how many tokens.
    fn answer(
        &self,
        group: &[(usize, &Question)],
        drafting: Drafting,
        answers: &mut Vec<Vec<TokenId>>,
    ) -> Result<Option<Vec<Steps>>> {
        let submit = |&(number, question): &(usize, &Question)| {
            let n_given = question.n_given.unwrap_or(self.max_tokens);
            let submitted = self.engine.submit(Ask {
                prompt: question.prompt.clone(),
                sampling: SamplingParams { seed: number as u64, ..self.sampling.clone() },
                choice: 0,
                max_tokens: self.max_tokens.min(n_given),
                stop_tokens: self.eos.to_vec(),
                service: ServiceParams { drafting, ..ServiceParams::default() },
                prediction: Vec::new(),
                constraint: question.rule.clone(),
            });
            Ok(submitted?)
        };
        let streams: Vec<TokenStream> = group.iter().map(submit).collect::<Result<_>>()?;
        let mut all_times = Vec::with_capacity(streams.len());
        for mut stream in streams {
            let (mut tokens, mut times) = (Vec::new(), Vec::new());
            while let Some(event) = stream.blocking_recv() {
                if (self.is_stopped)() {
                    // The streams are dropped, which aborts their requests.
                    return Ok(None);
                }
                if matches!(event.finish, Some(FinishReason::Error | FinishReason::Aborted)) {
                    return Err(BenchError::failed("the engine failed while generating"));
                }
                if !event.tokens.is_empty() {
                    times.push((event.at, event.tokens.len()));
                }
                tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
            }
            answers.push(tokens);
            all_times.push(times);
        }
        Ok(Some(all_times))
    }
}

/// Tokens, steps of sequences and seconds after the moment from which all generate; `times[i]` are
/// the steps of sequence `i` with their tokens.
fn counted(times: &[Steps]) -> (usize, usize, f64) {
    let from = times.iter().filter_map(|times| times.first()).map(|(at, _)| *at).max();
    let to = times.iter().filter_map(|times| times.last()).map(|(at, _)| *at).max();
    let (Some(from), Some(to)) = (from, to) else { return (0, 0, 0.0) };
    let later = || times.iter().flatten().filter(|(at, _)| *at > from);
    (later().map(|(_, n)| n).sum(), later().count(), (to - from).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cell(batch: usize, n_texts: u32) -> Cell {
        let question = |id| Question { prompt: vec![TokenId(id)], rule: None, n_given: None };
        let all = (0..n_texts).map(question).collect();
        Cell::new(batch, &Texts { kind: "given".to_owned(), all }, 2)
    }

    #[test]
    fn every_batch_is_full_and_every_text_is_asked() {
        let groups = |batch, n_texts| {
            let cell = cell(batch, n_texts);
            let ids = |group: Vec<(usize, &Question)>| {
                group.iter().map(|(_, question)| question.prompt[0].0).collect::<Vec<u32>>()
            };
            cell.groups().map(ids).collect::<Vec<_>>()
        };
        assert_eq!(groups(1, 2), [[0], [1]]);
        assert_eq!(groups(4, 2), [[0, 1, 0, 1]]);
        assert_eq!(groups(2, 3), [[0, 1], [2, 0]]);
    }

    #[test]
    fn tokens_count_from_where_all_generate() {
        let zero = Instant::now();
        let at = |ms: u64, n: usize| (zero + Duration::from_millis(ms), n);
        let times = [vec![at(1, 1), at(2, 1), at(4, 3)], vec![at(2, 1), at(4, 2), at(6, 1)]];
        let (n_tokens, n_steps, seconds) = counted(&times);
        assert_eq!((n_tokens, n_steps), (6, 3));
        assert!((seconds - 0.004).abs() < 1e-9, "{seconds}");
        assert_eq!(counted(&[Vec::new()]).0, 0);
    }

    #[test]
    fn one_token_that_differs_is_noticed() {
        let mut cell = cell(1, 1);
        let run = |token| Run { answers: vec![vec![TokenId(token)]], ..Run::default() };
        cell.add(0, run(7), false);
        cell.add(1, run(7), true);
        assert_eq!((cell.is_equal.as_slice(), cell.runs[1].len()), (&[true, true][..], 1));
        cell.add(1, run(8), true);
        cell.add(1, run(7), true);
        assert_eq!(cell.is_equal, [true, false]);
    }
}
