//! Many prompts answered together: one thread waits for all of them.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pelton_base::{FinishReason, TokenId};
use pelton_llm::{BestOf, Event, EventToken, Finish, Generating, Llm, LlmError};
use pyo3::PyErr;

use crate::ask::Job;
use crate::errors;
use crate::processor;
use crate::wait::{self, PATIENCE};

/// Most answers under way at once: enough to fill every step, and few enough for the engine's queue.
const MOST_UNDER_WAY: usize = 256;

/// A whole answer.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<EventToken>,
    pub(crate) finish: Option<Finish>,
}

/// The tokens of a prompt, and the answers to it.
pub(crate) type Answered = (Vec<TokenId>, Vec<Answer>);

/// A prompt whose answers grow.
struct Growing {
    /// Its place among all prompts.
    place: usize,
    job: Job,
    generating: Generating,
    best: Option<BestOf>,
    prompt: Vec<TokenId>,
    answers: Vec<Answer>,
}

/// Prompts on their way through the engine. Dropping it aborts them.
pub(crate) struct Crowd<'a> {
    llm: &'a Llm,
    waiting: VecDeque<(usize, Job)>,
    growing: Vec<Growing>,
    answered: Vec<Option<Answered>>,
    waker: Waker,
}

impl<'a> Crowd<'a> {
    /// Prompts that have not started. Call [`advance`](Self::advance) on the same thread.
    pub(crate) fn new(llm: &'a Llm, jobs: Vec<Job>) -> Self {
        let answered = jobs.iter().map(|_| None).collect();
        let waiting = jobs.into_iter().enumerate().collect();
        Self { llm, waiting, growing: Vec::new(), answered, waker: wait::waker() }
    }

    /// Works for about [`PATIENCE`]; the answers in the order of the prompts, once all have ended.
    pub(crate) fn advance(&mut self) -> Option<Result<Vec<Answered>, PyErr>> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let step = self.start_some().map_err(errors::refused).and_then(|()| self.collect());
            match step {
                Err(error) => return Some(Err(error)),
                Ok(_) if self.growing.is_empty() && self.waiting.is_empty() => {
                    let answered = self.answered.drain(..).flatten().collect();
                    return Some(Ok(answered));
                }
                Ok(true) => {}
                Ok(false) => std::thread::park_timeout(PATIENCE),
            }
        }
        None
    }

    /// Submits as many prompts as may be under way. A full engine takes the next one later.
    fn start_some(&mut self) -> Result<(), LlmError> {
        let mut n_under_way: usize = self.growing.iter().map(|one| one.job.n_made()).sum();
        while let Some((place, job)) = self.waiting.pop_front() {
            let n_made = job.n_made();
            if n_under_way > 0 && n_under_way + n_made > MOST_UNDER_WAY {
                self.waiting.push_front((place, job));
                break;
            }
            match job.start(self.llm) {
                Ok((prompt, generating)) => {
                    n_under_way += n_made;
                    let keep = job.generation.n as usize;
                    let best =
                        job.generation.best_of.map(|made| BestOf::new(1, keep, made as usize));
                    let answers = (0..n_made).map(|_| Answer::default()).collect();
                    self.growing.push(Growing { place, job, generating, best, prompt, answers });
                }
                Err(LlmError::Refused { retry_after: Some(_), .. }) => {
                    self.waiting.push_front((place, job));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes every event that has come; `false` where there was none.
    fn collect(&mut self) -> Result<bool, PyErr> {
        let mut context = Context::from_waker(&self.waker);
        let mut has_any = false;
        let mut idx = 0;
        while idx < self.growing.len() {
            let one = &mut self.growing[idx];
            match one.generating.poll_next(&mut context) {
                Poll::Pending => idx += 1,
                Poll::Ready(Some(event)) => {
                    has_any = true;
                    one.take(event)?;
                }
                Poll::Ready(None) => {
                    has_any = true;
                    let one = self.growing.swap_remove(idx);
                    let place = one.place;
                    self.answered[place] = Some(one.finished());
                }
            }
        }
        Ok(has_any)
    }
}

impl Growing {
    fn take(&mut self, event: Event) -> Result<(), PyErr> {
        if let Some(best) = &mut self.best {
            best.add(&event);
        }
        let answer = &mut self.answers[event.choice];
        answer.text.push_str(&event.text);
        answer.tokens.extend(event.tokens);
        if let Some(finish) = event.finish {
            if finish.reason == FinishReason::Error {
                let raised = processor::take(&self.job.fault);
                return Err(raised.unwrap_or_else(|| errors::ended(&finish)));
            }
            answer.finish = Some(finish);
        }
        Ok(())
    }

    /// The answers to keep, the best first.
    fn finished(mut self) -> Answered {
        if let Some(best) = self.best {
            let mut all: Vec<Option<Answer>> = self.answers.into_iter().map(Some).collect();
            self.answers = best.choices().into_iter().filter_map(|idx| all[idx].take()).collect();
        }
        (self.prompt, self.answers)
    }
}
