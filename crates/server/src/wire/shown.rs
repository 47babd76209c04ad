//! Parts of an answer beside its text, which a client asks for, and how they are written.
//!
//! ```text
//! echo                        the prompt before each answer; with `logprobs`, its tokens too
//! prompt_logprobs             scores of the prompt's tokens, in vLLM's shape
//! return_token_ids            ids of the tokens of prompt and answers
//! return_tokens_as_token_ids  `token_id:7` in place of the text of token 7 in log probabilities
//! timings_per_token           llama-server's times, in each piece
//! ```

use std::sync::Arc;

use pelton_base::{TokenId, Usage};
use pelton_llm::{EventToken, Finish, PromptToken, Timings};
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

use super::{Fields, finite, token_text};
use crate::error::ApiError;

/// The parts that a request asks for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Shown {
    pub(crate) echo: bool,
    /// Likeliest tokens in each place of the prompt, under `prompt_logprobs`.
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) token_ids: bool,
    pub(crate) tokens_as_ids: bool,
    pub(crate) timings: bool,
}

impl Shown {
    /// Reads the flags; `prompt_logprobs` shapes the generation and is read with that.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut flag = |name| fields.bool(name).map(|flag| flag.unwrap_or(false));
        Ok(Self {
            echo: flag("echo")?,
            prompt_logprobs: None,
            token_ids: flag("return_token_ids")?,
            tokens_as_ids: flag("return_tokens_as_token_ids")?,
            timings: flag("timings_per_token")?,
        })
    }

    /// The text of a token in log probabilities.
    pub(crate) fn name(self, id: TokenId, bytes: &[u8]) -> String {
        match self.tokens_as_ids {
            true => Self::name_by_id(id),
            false => token_text(bytes),
        }
    }

    /// The id of a token as its text in log probabilities.
    pub(crate) fn name_by_id(id: TokenId) -> String {
        format!("token_id:{id}")
    }

    /// The ids of tokens, if they are asked for.
    pub(crate) fn ids(self, tokens: &[EventToken]) -> Option<Vec<TokenId>> {
        self.token_ids.then(|| tokens.iter().map(|token| token.id).collect())
    }

    /// The scores of a prompt, if they are asked for.
    pub(crate) fn scores(self, prompt: Option<&Arc<[PromptToken]>>) -> Option<PromptLogprobs> {
        let n_top = self.prompt_logprobs?;
        Some(PromptLogprobs { prompt: Arc::clone(prompt?), n_top })
    }
}

/// The ids of a prompt, which several answers share.
#[derive(Clone, Debug)]
pub(crate) struct Ids(Arc<[TokenId]>);

impl Ids {
    pub(crate) fn of(tokens: &[TokenId]) -> Self {
        Self(Arc::from(tokens))
    }
}

impl Serialize for Ids {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter())
    }
}

/// Scores of a prompt as vLLM writes them: `null` for the first token, and an object from ids to log
/// probabilities for each other one.
#[derive(Clone, Debug)]
pub(crate) struct PromptLogprobs {
    prompt: Arc<[PromptToken]>,
    n_top: usize,
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.prompt.len()))?;
        for token in self.prompt.iter() {
            seq.serialize_element(&Place { token, n_top: self.n_top })?;
        }
        seq.end()
    }
}

/// One place of a prompt.
struct Place<'a> {
    token: &'a PromptToken,
    n_top: usize,
}

#[derive(Serialize)]
struct Candidate {
    logprob: f32,
    rank: usize,
    decoded_token: String,
}

impl Serialize for Place<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PromptToken { token, rank } = self.token;
        let (Some(logprob), Some(rank)) = (&token.logprob, *rank) else {
            return serializer.serialize_none();
        };
        let candidate = |logprob, rank, bytes: &[u8]| Candidate {
            logprob: finite(logprob),
            rank,
            decoded_token: token_text(bytes),
        };
        let mut map = serializer.serialize_map(None)?;
        let own = candidate(logprob.logprob, rank, &token.bytes);
        map.serialize_entry(&token.id.0.to_string(), &own)?;
        let top = logprob.top.iter().take(self.n_top).enumerate();
        for (place, top) in top.filter(|(_, top)| top.id != token.id) {
            let other = candidate(top.logprob, place + 1, &top.bytes);
            map.serialize_entry(&top.id.0.to_string(), &other)?;
        }
        map.end()
    }
}

/// The end of an answer: a stop string or a stop token of the request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Text(String),
    Token(TokenId),
}

impl StopReason {
    pub(crate) fn of(finish: &Finish) -> Option<Self> {
        let token = || finish.stop_token.map(Self::Token);
        finish.stop.clone().map(Self::Text).or_else(token)
    }
}

/// Counts and times of a request at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Now {
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

/// Times as llama-server writes them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct TimingsBody {
    /// Tokens of the prompt that came from the cache.
    cache_n: usize,
    /// Tokens of the prompt that were computed.
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl From<Now> for TimingsBody {
    fn from(Now { usage, timings }: Now) -> Self {
        let first = timings.ttft_seconds.unwrap_or(0.0);
        let prompt_ms = (first - timings.queue_seconds.unwrap_or(0.0)).max(0.0) * 1e3;
        let predicted_ms = (timings.total_seconds - first).max(0.0) * 1e3;
        let prompt_n = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let predicted_n = usage.completion_tokens;
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Self {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(1e3 * prompt_n as f64, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, predicted_n as f64),
            predicted_per_second: ratio(1e3 * predicted_n as f64, predicted_ms),
        }
    }
}

/// Random letters beside a piece of text, so that the length of a chunk tells little of that of its
/// text: text and letters together are a multiple of 16 bytes, at least 16.
pub(crate) fn obfuscation(n_text_bytes: usize) -> String {
    const STEP: usize = 16;
    // A fresh id is longer than a step.
    let mut letters = super::fresh_id("");
    letters.truncate(STEP - n_text_bytes % STEP);
    letters
}

#[cfg(test)]
mod tests {
    use pelton_llm::{Logprob, Released, TopToken};
    use serde_json::json;

    use super::*;

    fn token(id: u32, score: Option<(f32, usize)>, top: &[(u32, f32)]) -> PromptToken {
        let bytes = |id: u32| vec![b'a' + id as u8];
        let top = top.iter().map(|&(id, logprob)| {
            let (id, bytes) = (TokenId(id), bytes(id));
            TopToken { id, bytes, logprob }
        });
        let (top, bytes) = (top.collect(), bytes(id));
        let logprob = score.map(|(logprob, _)| Logprob { logprob, top });
        let token = EventToken {
            id: TokenId(id),
            bytes,
            is_special: false,
            logprob,
            released: Released::Nothing,
        };
        PromptToken { token, rank: score.map(|(_, rank)| rank) }
    }

    #[test]
    fn a_prompt_is_scored_in_the_shape_of_vllm() {
        let prompt: Arc<[PromptToken]> = Arc::new([
            token(0, None, &[]),
            token(1, Some((-2.0, 3)), &[(2, -0.5), (3, -1.0)]),
            token(2, Some((f32::NEG_INFINITY, 9)), &[(2, f32::NEG_INFINITY), (1, -1.0)]),
        ]);
        let shown = |prompt_logprobs| Shown { prompt_logprobs, ..Shown::default() };
        assert!(
            shown(None).scores(Some(&prompt)).is_none() && shown(Some(1)).scores(None).is_none()
        );
        let scores = shown(Some(1)).scores(Some(&prompt)).expect("asked for");
        let candidate = |logprob: f64, rank: usize, text: &str| json!({"logprob": logprob, "rank": rank, "decoded_token": text});
        let expected = json!([
            null,
            {"1": candidate(-2.0, 3, "b"), "2": candidate(-0.5, 1, "c")},
            {"2": candidate(-9999.0, 9, "c")},
        ]);
        assert_eq!(serde_json::to_value(scores).expect("plain data"), expected);
    }

    #[test]
    fn a_piece_and_its_letters_have_a_length_of_steps() {
        for n in [0, 1, 15, 16, 17, 300] {
            let letters = obfuscation(n);
            assert!(
                (1..=16).contains(&letters.len()) && (n + letters.len()).is_multiple_of(16),
                "{n}"
            );
            // A single letter may come twice by chance.
            assert!(letters.len() < 8 || letters != obfuscation(n), "{n}");
        }
    }
}
