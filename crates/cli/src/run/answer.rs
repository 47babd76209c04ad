//! Receives one answer and writes its text, until its end or Ctrl-C.

use std::io::Write;

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_llm::{Generating, Panicked, Timings};

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;

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
    pub(crate) panicked: Option<Panicked>,
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
        Failure::internal(match &self.panicked {
            Some(panicked) => panicked.to_string(),
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

/// Destination of the text while it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink {
    /// Standard output.
    Stdout,
    /// Nowhere; the whole is printed later.
    Silent,
}

impl Sink {
    fn write(self, text: &str) -> Result<()> {
        if matches!(self, Self::Silent) || text.is_empty() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::stdout(&error))
    }

    /// Ends the last line where the answer does not.
    pub(crate) fn finish_line(self, answer: &Answer) -> Result<()> {
        if answer.text.ends_with('\n') { Ok(()) } else { self.write("\n") }
    }
}

/// Receives an answer to its end, or until Ctrl-C; then the request is dropped, which aborts it.
///
/// # Errors
///
/// When the text cannot be written.
pub(crate) async fn receive(
    mut generating: Generating,
    interrupts: &mut Interrupts,
    sink: Sink,
) -> Result<Answer> {
    let mut text = String::new();
    let mut tokens = Vec::new();
    let mut finish = None;
    let mut interrupted = false;
    while finish.is_none() && !interrupted {
        let event = tokio::select! {
            event = generating.next() => event,
            () = interrupts.next() => {
                interrupted = true;
                continue;
            }
        };
        let Some(event) = event else { break };
        sink.write(&event.text)?;
        text.push_str(&event.text);
        tokens.extend(event.tokens.iter().map(|token| token.id));
        finish = event.finish;
    }
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
        panicked: finish.and_then(|finish| finish.panicked),
    })
}
