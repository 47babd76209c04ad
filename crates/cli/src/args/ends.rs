//! Flags that end an answer.

use std::num::NonZeroUsize;

use clap::Args;
use clap::builder::BoolishValueParser;
use pelton_base::TokenId;
use pelton_llm::Generation;
use serde::Serialize;

use super::sampling::token;

/// Limits and ends of an answer; absent flags leave the decision to the model and the context.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Generation")]
pub(crate) struct EndArgs {
    /// Most tokens to generate [default: 256 for a continuation, the rest of the context in chat]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<NonZeroUsize>,
    /// Least tokens to generate before the model or a `--stop` text may end the answer [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) min_tokens: Option<usize>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Token that ends the answer besides the model's own end tokens; several with commas
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = token)]
    pub(crate) stop_token: Vec<TokenId>,
    /// Continue after the model's own end token
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_name = "BOOL",
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) ignore_eos: Option<bool>,
}

impl EndArgs {
    /// Lays the flags over `generation`.
    pub(crate) fn over(&self, mut generation: Generation) -> Generation {
        generation.max_tokens = self.max_tokens.map(NonZeroUsize::get).or(generation.max_tokens);
        if let Some(min_tokens) = self.min_tokens {
            generation.sampling.min_tokens = min_tokens;
        }
        if !self.stop.is_empty() {
            generation.stop.clone_from(&self.stop);
        }
        if !self.stop_token.is_empty() {
            generation.stop_tokens.clone_from(&self.stop_token);
        }
        generation.ignore_eos = self.ignore_eos.unwrap_or(generation.ignore_eos);
        generation
    }

    /// The flags that ask for what `generation` does.
    pub(crate) fn of(generation: &Generation) -> Self {
        Self {
            max_tokens: generation.max_tokens.and_then(NonZeroUsize::new),
            min_tokens: Some(generation.sampling.min_tokens),
            stop: generation.stop.clone(),
            stop_token: generation.stop_tokens.clone(),
            ignore_eos: Some(generation.ignore_eos),
        }
    }
}
