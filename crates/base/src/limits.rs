//! Every limit of the house in one place, with its unit.
//!
//! A limit that a user may move has a flag; these are the built-in values and the hard bounds.

/// Most requests waiting in the engine's mailbox, in requests; beyond it a submission is refused.
pub const MAILBOX_REQUESTS: usize = 1024;
/// Most stop strings of one request.
pub const STOP_STRINGS: usize = 16;
/// Longest stop string, in bytes.
pub const STOP_STRING_BYTES: usize = 1024;
/// Most choices (`n`) of one request.
pub const CHOICES: usize = 16;
/// Most alternatives reported per token (`top_logprobs`).
pub const TOP_LOGPROBS: usize = 20;
/// Most entries of a logit bias.
pub const LOGIT_BIAS_ENTRIES: usize = 1024;
/// Largest HTTP body, in bytes.
pub const BODY_BYTES: usize = 16 << 20;
/// Largest `config.json`, in bytes.
pub const CONFIG_BYTES: u64 = 4 << 20;
/// Largest `tokenizer.json`, in bytes.
pub const TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest JSON header of a safetensors file, in bytes.
pub const SAFETENSORS_HEADER_BYTES: usize = 100 << 20;
/// Largest chat template, in bytes.
pub const TEMPLATE_BYTES: usize = 1 << 20;
/// Steps that a chat template may take.
pub const TEMPLATE_FUEL: u64 = 5_000_000;
/// Largest text that a chat template may produce, in bytes.
pub const TEMPLATE_OUTPUT_BYTES: usize = 16 << 20;
/// Largest prompt text, in bytes.
pub const PROMPT_BYTES: usize = 16 << 20;
/// Most decoder layers of a model.
pub const MODEL_LAYERS: usize = 1024;
/// Widest dimension of a model, in elements.
pub const MODEL_WIDTH: usize = 1 << 20;
/// Largest vocabulary, in tokens.
pub const MODEL_VOCAB: usize = 1 << 22;
/// Longest context that a model may declare, in tokens.
pub const MODEL_CONTEXT: usize = 1 << 27;
