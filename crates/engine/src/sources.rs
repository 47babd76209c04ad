//! Prompts of encoder-decoder models.
//!
//! ```text
//! request    | prompt |
//! sequence   | prompt: the source | up to a whole block | first tokens of the decoder | answer ...
//! ```
//!
//! The prompt of a request is what the encoder reads. The decoder begins with tokens that the model's
//! configuration names, in a block of its own.

use pelton_base::{Ask, Source, TokenId};
use pelton_sched::SchedulerConfig;

use crate::SubmitError;

/// The limits of a model with an encoder, and the tokens that its decoder begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Sources {
    /// Longest source, in tokens.
    pub max_source: usize,
    /// Most tokens of the decoder, those that it begins with included.
    pub max_own: usize,
    /// Tokens that the decoder begins with; at least one.
    pub first_tokens: Vec<TokenId>,
}

impl Sources {
    /// Longest prompt that leaves room for an answer, in tokens.
    pub(crate) fn most_prompt_tokens(&self, config: &SchedulerConfig) -> usize {
        let n_before_answer = config.context_tokens().saturating_sub(1 + self.first_tokens.len());
        self.max_source.min(n_before_answer / config.block_size * config.block_size)
    }

    /// Most tokens of an answer to a prompt of `n_prompt` tokens.
    pub(crate) fn answer_room(&self, n_prompt: usize, config: &SchedulerConfig) -> usize {
        let n_before = n_prompt.next_multiple_of(config.block_size) + self.first_tokens.len();
        let own = self.max_own.saturating_sub(self.first_tokens.len());
        config.context_tokens().saturating_sub(n_before).min(own)
    }

    /// Turns a request's prompt into a source, for an engine with these limits.
    ///
    /// # Errors
    ///
    /// When the source is too long for the model, its context or a step.
    pub(crate) fn begin(&self, ask: &mut Ask, config: &SchedulerConfig) -> Result<(), SubmitError> {
        let (n_tokens, limit) = (ask.prompt.len(), self.most_prompt_tokens(config));
        if n_tokens > limit {
            return Err(SubmitError::TooLong { n_prompt: n_tokens, limit });
        }
        let (block_size, limit) = (config.block_size, config.choices.max_batch_tokens);
        if n_tokens > limit {
            return Err(SubmitError::SourceTooLong { n_source: n_tokens, limit });
        }
        let n_padding = n_tokens.next_multiple_of(block_size) - n_tokens;
        ask.service.source = Source { n_tokens, n_padding };
        ask.prompt.resize(n_tokens + n_padding, TokenId(0));
        ask.prompt.extend_from_slice(&self.first_tokens);
        ask.max_tokens = ask.max_tokens.min(self.max_own - self.first_tokens.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_base::{SamplingParams, ServiceParams};

    fn ask(n: u32) -> Ask {
        Ask {
            prompt: (1..=n).map(TokenId).collect(),
            sampling: SamplingParams::greedy(),
            choice: 0,
            max_tokens: 100,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        }
    }

    fn config(block_size: usize, max_batch_tokens: usize, n_blocks: u32) -> SchedulerConfig {
        let mut config = SchedulerConfig::new(n_blocks, block_size);
        config.choices.max_batch_tokens = max_batch_tokens;
        config
    }

    fn sources() -> Sources {
        Sources { max_source: 40, max_own: 30, first_tokens: vec![TokenId(7), TokenId(8)] }
    }

    #[test]
    fn the_decoder_begins_with_a_block_and_ends_where_its_positions_do() {
        for (n, n_padding) in [(1, 15), (16, 0), (17, 15)] {
            let mut ask = ask(n);
            sources().begin(&mut ask, &config(16, 40, 100)).expect("fits");
            let n = n as usize;
            assert_eq!(ask.service.source, Source { n_tokens: n, n_padding });
            assert_eq!(ask.prompt[n + n_padding..], [TokenId(7), TokenId(8)]);
            assert_eq!(ask.prompt[n - 1], TokenId(n as u32));
            assert_eq!(ask.max_tokens, 28);
        }
    }

    #[test]
    fn sources_that_do_not_fit_are_refused_with_the_limit() {
        let error = sources().begin(&mut ask(41), &config(16, 100, 100)).expect_err("too long");
        assert_eq!(error, SubmitError::TooLong { n_prompt: 41, limit: 40 });
        let error =
            sources().begin(&mut ask(33), &config(16, 32, 100)).expect_err("too long for a step");
        assert_eq!(error, SubmitError::SourceTooLong { n_source: 33, limit: 32 });
        // Two blocks of 16 hold one of a source, the first two tokens and an answer.
        let error = sources().begin(&mut ask(17), &config(16, 100, 2)).expect_err("no room");
        assert_eq!(error, SubmitError::TooLong { n_prompt: 17, limit: 16 });
    }
}
