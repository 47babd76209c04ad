//! Events of a growing answer.

use std::sync::Arc;
use std::time::Duration;

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_engine::Fault;

use crate::beam::BeamScore;

/// The next piece of one answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Number of the answer: `prompt index * n + choice`.
    pub choice: usize,
    /// Text that is certain now; may be empty while a character or stop string is incomplete.
    pub text: String,
    /// Likewise, text of the thought before the answer. Only conversations with models that think
    /// have some.
    pub thought: String,
    /// Pieces of calls. Only conversations with tools have some.
    pub calls: Vec<CallPiece>,
    /// The tokens of this step, including tokens whose text is still held back.
    pub tokens: Vec<EventToken>,
    /// The prompt, in the first event of each answer, where its tokens are scored
    /// ([`Generation::prompt_logprobs`](crate::Generation::prompt_logprobs)); an answer that failed may
    /// lack it.
    pub prompt: Option<Arc<[PromptToken]>>,
    /// Set on the last event of an answer.
    pub finish: Option<Finish>,
}

impl Event {
    /// An event of an answer without any news.
    pub fn new(choice: usize) -> Self {
        let (text, thought) = (String::new(), String::new());
        let (calls, tokens, prompt) = (Vec::new(), Vec::new(), None);
        Self { choice, text, thought, calls, tokens, prompt, finish: None }
    }

    /// Bytes of text, and bytes and pieces of everything else.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let of_call = |piece: &CallPiece| 1 + piece.arguments.len();
        let calls: usize = self.calls.iter().map(of_call).sum();
        (self.text.len(), self.thought.len() + calls)
    }
}

/// A piece of a call of a tool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CallPiece {
    /// Place among the calls of the answer, from 0.
    pub index: usize,
    /// Name of the tool, in the first piece of a call.
    pub name: Option<String>,
    /// More of the arguments, as JSON text.
    pub arguments: String,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct EventToken {
    /// The token.
    pub id: TokenId,
    /// Its text, or its name if it is a control token.
    pub bytes: Vec<u8>,
    /// Whether it has no text in the answer, as control tokens.
    pub is_special: bool,
    /// Its log probability and the alternatives, if the request asks for them.
    pub logprob: Option<Logprob>,
    /// The part of the event that was released when it was read.
    pub released: Released,
}

/// The part of an [`Event`] that was released when a token was read.
///
/// Some tokens are held back, because a stop string, a call or a thought may begin with them, or
/// because they end within a character. Their text is released with a later token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Released {
    /// None: the token is held back, or it belongs to no part.
    #[default]
    Nothing,
    /// The next bytes of [`Event::text`], as many as this.
    Text(usize),
    /// A piece of a thought or of a call, and no text.
    Other,
}

/// One token of a prompt that is scored.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// The token. The first of a prompt has no log probability.
    pub token: EventToken,
    /// Its place among all tokens, the likeliest being 1; `None` for the first.
    pub rank: Option<usize>,
}

/// The log probability of a token under the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// Natural logarithm of the probability.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<TopToken>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TopToken {
    /// The token.
    pub id: TokenId,
    /// Its text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The reason.
    pub reason: FinishReason,
    /// The stop string that ended the answer, if one did.
    pub stop: Option<String>,
    /// The token that ended the answer, if one of [`Generation::stop_tokens`] did that is no end token
    /// of the model.
    ///
    /// [`Generation::stop_tokens`]: crate::Generation::stop_tokens
    pub stop_token: Option<TokenId>,
    /// The failure of this answer alone, if it failed alone; `reason` is then
    /// [`FinishReason::Error`].
    pub fault: Option<Fault>,
    /// Its score, where a beam search found it.
    pub beam: Option<BeamScore>,
    /// Calls of the answer; the arguments of the last one lack their end where the answer was cut.
    pub n_calls: usize,
    /// Whether something that began as a call was none, and is text of the answer.
    pub malformed_call: bool,
    /// Tokens of this answer.
    pub usage: Usage,
}

impl Finish {
    /// An end for a reason, without anything more to say.
    pub fn new(reason: FinishReason, usage: Usage) -> Self {
        let (stop, stop_token, fault, beam) = (None, None, None, None);
        Self { reason, stop, stop_token, fault, beam, n_calls: 0, malformed_call: false, usage }
    }
}

/// Times of a request.
///
/// A request with several answers has the times of the whole: the first token of any answer, and
/// the last token of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Timings {
    /// From submission to the first step that computed a part of it, in seconds: the time in the
    /// queue.
    pub queue_seconds: Option<f64>,
    /// From submission to the first token, in seconds: the time in the queue and of the prompt.
    pub ttft_seconds: Option<f64>,
    /// From submission to the last token so far, in seconds.
    pub total_seconds: f64,
    /// Prompt tokens per second, from the first step to the first token; `None` before the first
    /// token.
    pub prompt_tokens_per_second: Option<f64>,
    /// Tokens generated per second after the first token; `None` before the second token.
    pub generation_tokens_per_second: Option<f64>,
}

/// Times since submission; `None` for events that have not happened yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Milestones {
    /// Begin of the first step that computed a part of the request.
    pub(crate) started: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) last_token: Option<Duration>,
}

impl Timings {
    pub(crate) fn new(usage: Usage, n_choices: usize, at: Milestones) -> Self {
        let rate = |n: usize, seconds: f64| (n > 0 && seconds > 0.0).then(|| n as f64 / seconds);
        let queue = at.started.map(|d| d.as_secs_f64());
        let first = at.first_token.map(|d| d.as_secs_f64());
        let last = at.last_token.map_or(0.0, |d| d.as_secs_f64());
        let n_read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let n_after_first = usage.completion_tokens.saturating_sub(n_choices);
        Self {
            queue_seconds: queue,
            ttft_seconds: first,
            total_seconds: last,
            prompt_tokens_per_second: first.and_then(|s| rate(n_read, s - queue.unwrap_or(0.0))),
            generation_tokens_per_second: first.and_then(|s| rate(n_after_first, last - s)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_the_prompt_before_and_the_answer_after_the_first_token_and_no_waiting() {
        let usage = Usage { prompt_tokens: 100, completion_tokens: 11, ..Usage::default() };
        let after = |seconds| Some(Duration::from_secs(seconds));
        let at = Milestones { started: after(1), first_token: after(3), last_token: after(8) };
        let timings = Timings::new(usage, 1, at);
        assert_eq!((timings.queue_seconds, timings.ttft_seconds), (Some(1.0), Some(3.0)));
        assert_eq!(timings.prompt_tokens_per_second, Some(50.0));
        assert_eq!(timings.generation_tokens_per_second, Some(2.0));
        let one = Timings::new(usage, 11, Milestones { last_token: after(3), ..at });
        assert_eq!(one.generation_tokens_per_second, None);
        let none = Timings::new(Usage::default(), 1, Milestones::default());
        assert_eq!(none, Timings::default());
    }
}
