//! Every limit of the house in one place, with its unit.
//!
//! A limit that a user may move has a flag; these are the built-in values and the hard bounds.

/// Most requests waiting in the engine's mailbox, in requests; beyond it a submission is refused.
pub const MAILBOX_REQUESTS: usize = 1024;
/// Most stop strings of one request.
pub const STOP_STRINGS: usize = 16;
/// Longest stop string, in bytes.
pub const STOP_STRING_BYTES: usize = 1024;
/// Most prompts of one completion request.
pub const PROMPTS: usize = 64;
/// Most texts of one request for embeddings.
pub const EMBED_INPUTS: usize = 2048;
/// Largest input of `pelton embed`, in bytes.
pub const EMBED_TEXTS_BYTES: usize = 256 << 20;
/// Most choices (`n`) of one prompt.
pub const CHOICES: usize = 128;
/// Most answers of one request: prompts times choices. They wait in the mailbox together.
pub const ANSWERS: usize = MAILBOX_REQUESTS;
/// Longest salt of the prefix cache (`cache_salt`), in bytes.
pub const CACHE_SALT_BYTES: usize = 1024;
/// Longest latency target of a request, in milliseconds: a day.
pub const SLO_MS: f64 = 86_400_000.0;
/// Most tenants of one engine; each has its own figures in the metrics.
pub const TENANTS: usize = 256;
/// Longest name of a tenant, in bytes.
pub const TENANT_NAME_BYTES: usize = 64;
/// Most API keys of one server.
pub const API_KEYS: usize = 65_536;
/// Longest API key, in bytes.
pub const API_KEY_BYTES: usize = 512;
/// Most alternatives reported per token (`top_logprobs`).
pub const TOP_LOGPROBS: usize = 20;
/// Most entries of a logit bias.
pub const LOGIT_BIAS_ENTRIES: usize = 1024;
/// Most texts that an answer must not contain (`bad_words`).
pub const BAD_WORDS: usize = 1024;
/// Most tokens that an answer may be limited to (`allowed_token_ids`).
pub const ALLOWED_TOKENS: usize = 1 << 16;
/// Most texts that end a repetition (`dry_sequence_breakers`).
pub const DRY_BREAKER_TEXTS: usize = 64;
/// Most sequences of tokens that end a repetition: every token that contains one of the texts.
pub const DRY_BREAKERS: usize = 1 << 16;
/// Longest repetition that is looked for (`dry`), in tokens.
pub const DRY_TOKENS: usize = 1024;
/// Most entries of a sampler order.
pub const SAMPLER_STAGES: usize = 16;
/// Largest JSON schema or grammar of a request, in bytes.
pub const GRAMMAR_BYTES: usize = 1 << 20;
/// Most texts of a `choice`.
pub const GRAMMAR_CHOICES: usize = 4096;
/// Most tools of a request.
pub const TOOLS: usize = 128;
/// Longest name of a tool, in bytes.
pub const TOOL_NAME_BYTES: usize = 64;
/// Most beams of a beam search.
pub const BEAMS: usize = 32;
/// Most HTTP connections at once.
pub const HTTP_CONNECTIONS: usize = 1024;
/// Largest HTTP body, in bytes.
pub const BODY_BYTES: usize = 16 << 20;
/// Largest `config.json`, `serve.yaml`, file of API keys and other small file, in bytes.
pub const CONFIG_BYTES: u64 = 4 << 20;
/// Largest `tokenizer.json`, in bytes.
pub const TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest JSON header of a safetensors file, in bytes.
pub const SAFETENSORS_HEADER_BYTES: usize = 100 << 20;
/// Largest chat template, in bytes.
pub const TEMPLATE_BYTES: usize = 1 << 20;
/// Steps that a chat template may take.
pub const TEMPLATE_FUEL: u64 = 5_000_000;
/// Bytes that all steps of one chat template together may read, copy and write.
pub const TEMPLATE_WORK_BYTES: u64 = 256 << 20;
/// Largest text that a chat template may produce, in bytes.
pub const TEMPLATE_OUTPUT_BYTES: usize = 16 << 20;
/// Largest prompt text, in bytes.
pub const PROMPT_BYTES: usize = 16 << 20;
/// Most decoder layers of a model.
pub const MODEL_LAYERS: usize = 1024;
/// Most heads of the state of a recurrent layer.
pub const STATE_HEADS: usize = 1024;
/// Most elements of a key or value of a recurrent layer.
pub const STATE_HEAD_DIM: usize = 1024;
/// Most taps of a convolution over time, as many as its kernel takes; the published models have 3 or 4.
pub const CONV_TAPS: usize = 16;
/// Widest dimension of a model, in elements.
pub const MODEL_WIDTH: usize = 1 << 20;
/// Largest vocabulary, in tokens.
pub const MODEL_VOCAB: usize = 1 << 22;
/// Longest context that a model may declare, in tokens.
pub const MODEL_CONTEXT: usize = 1 << 27;
/// Largest `model.safetensors.index.json`, in bytes.
pub const SAFETENSORS_INDEX_BYTES: u64 = 64 << 20;
/// Largest metadata section of a GGUF file (everything before the tensor data), in bytes.
pub const GGUF_HEADER_BYTES: usize = 256 << 20;
/// Most metadata entries of a GGUF file.
pub const GGUF_METADATA_ENTRIES: usize = 1 << 16;
/// Longest array in the metadata of a GGUF file, in elements.
pub const GGUF_ARRAY_ELEMENTS: usize = 1 << 22;
/// Most files that one GGUF model may be split into.
pub const GGUF_PARTS: usize = 1024;
/// Most tensors of one checkpoint file.
pub const FILE_TENSORS: usize = 1 << 20;
/// Longest name of a tensor or metadata key, in bytes.
pub const TENSOR_NAME_BYTES: usize = 65_535;
/// Most dimensions of a tensor.
pub const TENSOR_RANK: usize = 8;

/// Tokens of a step where nothing else is chosen, and so of the longest piece of a prompt that is computed
/// at once.
pub const STEP_TOKENS: usize = 512;
/// Tokens of one block of keys and values where nothing else is chosen: a whole group of the kernels, so
/// that no place is padding.
pub const BLOCK_TOKENS: usize = 16;

/// Whether our reader of JSON keeps the digits of a number: it rounds whole numbers of more than 64
/// bits. One with a point or an exponent may be rounded as every reader of JSON does.
pub fn keeps_digits(number: &str) -> bool {
    number.contains(['.', 'e', 'E'])
        || number.parse::<u64>().is_ok()
        || number.parse::<i64>().is_ok()
}
