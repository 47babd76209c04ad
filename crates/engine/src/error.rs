//! The reasons for which a submission is refused and a step fails.

use pelton_base::{ParamError, TokenId};
use pelton_sched::Refusal;
use std::time::Duration;

/// The reason for which a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests wait already; try again later.
    #[error("{limit} requests are waiting already, which is the limit")]
    Full {
        /// Most requests that may wait.
        limit: usize,
    },
    /// The prompt can never fit.
    #[error("the prompt has {n_prompt} tokens, the longest that fits has {limit}")]
    TooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Longest prompt that fits, in tokens.
        limit: usize,
    },
    /// An encoder reads a source in one step, and this one does not fit.
    #[error(
        "the source has {n_source} tokens, and a step reads at most {limit}: raise \
         `--max-batch-tokens`, or shorten it"
    )]
    SourceTooLong {
        /// Tokens of the source.
        n_source: usize,
        /// Most tokens of a step.
        limit: usize,
    },
    /// The request asks for something that models with an encoder do not do.
    #[error("`{param}` is not supported by models with an encoder, whose prompts have no logits")]
    NotOfSources {
        /// The parameter of the request.
        param: &'static str,
    },
    /// There is no token to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// `max_tokens` is zero.
    #[error("`max_tokens` must be at least 1")]
    NothingToGenerate,
    /// A token of the prompt that the model does not have.
    #[error("token {token} at position {position} of the prompt is not below {vocab_size}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Its index in the prompt.
        position: usize,
        /// Number of tokens of the model.
        vocab_size: usize,
    },
    /// A token of the prediction that the model does not have.
    #[error("token {token} of the prediction is not below {vocab_size}")]
    UnknownPrediction {
        /// The token.
        token: TokenId,
        /// Number of tokens of the model.
        vocab_size: usize,
    },
    /// The request asks for drafts by a proposer that the engine does not have.
    #[error("no proposer `{asked}`; this engine has {}", listed(.available))]
    NoSuchDrafter {
        /// The name asked for.
        asked: &'static str,
        /// Names of the proposers that it has.
        available: Vec<&'static str>,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Invalid(#[from] ParamError),
    /// Its tenant has too many waiting, or its first token would come too late.
    #[error("{0}")]
    Refused(Refusal),
    /// The engine was shut down.
    #[error("the engine has stopped")]
    Stopped,
    /// The engine panicked and did not recover; it takes no request until it is started anew.
    #[error("the engine has failed: a step panicked; start it anew")]
    Failed,
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl SubmitError {
    /// When the same request may be taken; `None` where that is not known, or never.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after(),
            _ => None,
        }
    }
}

/// The reason for which an executor could not be made or a step not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// Drafts are to be made after a layer that the model does not have.
    #[error("drafts cannot be made after layer {asked}: the model has {n_layers}")]
    NoSuchExit {
        /// The layer asked for.
        asked: usize,
        /// Layers of the model.
        n_layers: usize,
    },
    /// Drafts are to be made with the first layers of a model that keeps states.
    #[error(
        "early exit cannot draft for this model: its recurrent layers keep a state, which a pass over \
         the first layers would change; choose another method"
    )]
    ExitOfRecurrent,
    /// A draft model that keeps states.
    #[error(
        "the draft model has recurrent layers, expected a model of attention alone: drafts that are \
         rejected cannot be taken out of a state"
    )]
    RecurrentDraft,
    /// Blocks that do not fit the chunks of recurrent layers.
    #[error(
        "blocks of {block_size} tokens do not fit this model: its recurrent layers count in chunks of \
         {chunk}, expected a block size that divides it"
    )]
    BlockSize {
        /// Tokens of a block.
        block_size: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// The model's forward pass failed.
    #[error("the forward pass failed")]
    Forward(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The memory given to the KV cache holds no request at all.
    #[error("{n_bytes} bytes of KV memory hold no request; one block takes {block_bytes} bytes")]
    KvTooSmall {
        /// Memory given, in bytes.
        n_bytes: usize,
        /// Memory of one block, in bytes.
        block_bytes: usize,
    },
    /// The system did not give the memory for the KV cache, or for its swap store.
    #[error("no memory for {n_blocks} KV blocks of {block_bytes} bytes")]
    KvRefused {
        /// Blocks asked for.
        n_blocks: usize,
        /// Memory of one block, in bytes.
        block_bytes: usize,
        /// The error of the system.
        source: std::io::Error,
    },
}
