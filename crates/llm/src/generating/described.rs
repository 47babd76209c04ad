//! Tokens with their bytes and scores.

use std::sync::Arc;

use pelton_base::TokenId;
use pelton_engine::{SampledToken, ScoredToken};
use pelton_text::Tokenizer;

use crate::event::{EventToken, Logprob, PromptToken, Released, TopToken};

/// The tokens of a prompt with their scores, which the first one lacks.
pub(super) fn scored_prompt(
    tokenizer: &Tokenizer,
    tokens: &[TokenId],
    scores: Vec<ScoredToken>,
) -> Arc<[PromptToken]> {
    let mut scores = scores.into_iter();
    let with_score = |(place, &token): (usize, &TokenId)| {
        let score = if place == 0 { None } else { scores.next() };
        let (rank, logprobs) = score.map(|score| (score.rank, score.logprobs)).unzip();
        let token = describe(tokenizer, SampledToken { token, logprobs }, false, false);
        PromptToken { token, rank }
    };
    tokens.iter().enumerate().map(with_score).collect()
}

/// A token as clients see it; a hidden one counts as special.
pub(super) fn describe(
    tokenizer: &Tokenizer,
    sampled: SampledToken,
    is_hidden: bool,
    keep_special: bool,
) -> EventToken {
    let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    let logprob = sampled.logprobs.map(|l| Logprob {
        logprob: l.logprob,
        top: l
            .top
            .into_iter()
            .map(|(id, logprob)| TopToken { id, bytes: bytes(id), logprob })
            .collect(),
    });
    EventToken {
        id: sampled.token,
        bytes: bytes(sampled.token),
        is_special: is_hidden || !keep_special && tokenizer.is_special(sampled.token),
        logprob,
        released: Released::Nothing,
    }
}
