//! Receives one answer and writes its text, until its end or Ctrl-C.

use std::time::Duration;

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_llm::{BeamScore, CallPiece, Event, Fault, Generating, Llm, Timings, ToolCall};

use super::page::Page;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::progress::PromptProgress;

/// One answer, whole or interrupted.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its text, without stop strings.
    pub(crate) text: String,
    /// The thought before it.
    pub(crate) thought: String,
    /// Calls of tools.
    pub(crate) calls: Vec<ToolCall>,
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
        match &self.fault {
            Some(fault) if fault.is_of_request() => Failure::new(fault.to_string()),
            Some(fault) => Failure::internal(fault.to_string()),
            None => Failure::internal("the engine failed while generating"),
        }
    }

    /// The text, and a line for each call, as a conversation keeps it.
    pub(crate) fn with_calls(&self) -> String {
        let mut text = self.text.clone();
        for ToolCall { name, arguments } in &self.calls {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{name}({arguments})"));
        }
        text
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
    let (mut text, mut thought) = (String::new(), String::new());
    let mut calls: Vec<ToolCall> = Vec::new();
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
        page.think(&event.thought)?;
        page.write(&event.text)?;
        text.push_str(&event.text);
        thought.push_str(&event.thought);
        event.calls.into_iter().for_each(|piece| add(piece, &mut calls));
        tokens.extend(event.tokens.iter().map(|token| token.id));
        finish = event.finish;
    }
    progress.end();
    for call in &calls {
        page.call(&call.name, &call.arguments)?;
    }
    page.finish()?;
    let ending = match (&finish, interrupted) {
        (_, true) => Ending::Interrupted,
        (Some(finish), _) if finish.reason != FinishReason::Error => Ending::Complete,
        _ => Ending::Failed,
    };
    Ok(Answer {
        text,
        thought,
        calls,
        usage: generating.usage(),
        tokens,
        timings: generating.timings(),
        ending,
        finish: finish.as_ref().map(|finish| finish.reason),
        beam: finish.as_ref().and_then(|finish| finish.beam),
        fault: finish.and_then(|finish| finish.fault),
    })
}

/// Adds a piece to the calls of an answer.
fn add(piece: CallPiece, calls: &mut Vec<ToolCall>) {
    if let Some(name) = piece.name {
        calls.push(ToolCall { name, arguments: String::new() });
    }
    if let Some(call) = calls.get_mut(piece.index) {
        call.arguments.push_str(&piece.arguments);
    }
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
