//! Receives one answer and writes its text, until its end or Ctrl-C.

use std::time::Duration;

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_llm::{BeamScore, Event, Fault, Generating, Llm, Timings};

use super::page::Page;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::progress::PromptProgress;

/// One answer, whole or interrupted.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its text, without stop strings.
    pub(crate) text: String,
    /// Its tokens, the stop token included.
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens in and out.
    pub(crate) usage: Usage,
    /// Times of the answer.
    pub(crate) timings: Timings,
    /// Its end.
    pub(crate) ending: Ending,
    /// The panic that ended it, if one did.
    pub(crate) fault: Option<Fault>,
    /// Its score, where a beam search found it.
    pub(crate) beam: Option<BeamScore>,
    finish: Option<FinishReason>,
}

/// End of an answer, as the exit code distinguishes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// The model or a limit ended it.
    Complete,
    /// Ctrl-C.
    Interrupted,
    /// The engine failed.
    Failed,
}

impl Answer {
    /// The error of an answer that failed.
    pub(crate) fn failure(&self) -> Failure {
        Failure::internal(match &self.fault {
            Some(fault) => fault.to_string(),
            None => "the engine failed while generating".to_owned(),
        })
    }

    /// The reason why it ended.
    pub(crate) fn finish(&self) -> FinishReason {
        self.finish.unwrap_or(match self.ending {
            Ending::Failed => FinishReason::Error,
            Ending::Complete | Ending::Interrupted => FinishReason::Aborted,
        })
    }
}

/// Receives an answer to its end, or until Ctrl-C; then the request is dropped, which aborts it.
///
/// Until the first token, `progress` shows how much of the prompt is computed.
///
/// # Errors
///
/// When the text cannot be written.
pub(crate) async fn receive(
    mut generating: Generating,
    interrupts: &mut Interrupts,
    page: &mut Page,
    mut progress: Waiting<'_>,
) -> Result<Answer> {
    let mut text = String::new();
    let mut tokens = Vec::new();
    let mut finish = None;
    let mut interrupted = false;
    while finish.is_none() && !interrupted {
        let event = tokio::select! {
            event = progress.next(&mut generating) => event,
            () = interrupts.next() => {
                interrupted = true;
                continue;
            }
        };
        let Some(event) = event else { break };
        progress.end();
        page.write(&event.text)?;
        text.push_str(&event.text);
        tokens.extend(event.tokens.iter().map(|token| token.id));
        finish = event.finish;
    }
    progress.end();
    page.finish()?;
    let ending = match (&finish, interrupted) {
        (_, true) => Ending::Interrupted,
        (Some(finish), _) if finish.reason != FinishReason::Error => Ending::Complete,
        _ => Ending::Failed,
    };
    Ok(Answer {
        text,
        usage: generating.usage(),
        tokens,
        timings: generating.timings(),
        ending,
        finish: finish.as_ref().map(|finish| finish.reason),
        beam: finish.as_ref().and_then(|finish| finish.beam),
        fault: finish.and_then(|finish| finish.fault),
    })
}

/// The spinner that a person sees while the prompt is computed.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    bar: Option<PromptProgress>,
    llm: &'a Llm,
    /// Prompt tokens that the engine had computed before.
    n_before: u64,
}

impl<'a> Waiting<'a> {
    /// A spinner with the progress of a prompt of `n_tokens`, or nothing.
    pub(crate) fn new(llm: &'a Llm, n_tokens: usize, is_shown: bool) -> Self {
        let bar = is_shown.then(|| PromptProgress::new(n_tokens));
        Self { bar, llm, n_before: llm.metrics().prompt_tokens }
    }

    /// The next event; the spinner turns meanwhile.
    async fn next(&mut self, generating: &mut Generating) -> Option<Event> {
        const TICK: Duration = Duration::from_millis(100);
        while let Some(bar) = &mut self.bar {
            match tokio::time::timeout(TICK, generating.next()).await {
                Ok(event) => return event,
                Err(_) => {
                    bar.update(self.llm.metrics().prompt_tokens.saturating_sub(self.n_before));
                }
            }
        }
        generating.next().await
    }

    /// Removes the spinner.
    fn end(&mut self) {
        self.bar = None;
    }
}
