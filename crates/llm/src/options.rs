//! How a model is loaded and run: the limits, and the parts that choose.

use pelton_base::limits::{self, BLOCK_TOKENS};
use pelton_engine::spec::Proposer;
use pelton_engine::{EngineConfig, LogprobsMode, SpecConfig, SpecMethod};
use pelton_model::{ActivationGroup, Compute, KvDtype, PackedCache, RoundTo, StateDtype};
use pelton_sched::Choices;

use crate::draft;
use crate::error::LlmError;
use crate::reference::ModelRef;

/// Tokens of a prompt between two states that are kept.
const STATE_INTERVAL_TOKENS: usize = 2048;
/// Most tokens of one KV block: longer blocks are longer than most requests.
const MOST_BLOCK_TOKENS: usize = 4096;

/// How a model is loaded and run; threads and tuning belong to the [`Runtime`](crate::Runtime).
///
/// The defaults suit a server for a few dozen users; a program that asks one question at a time
/// sets `choices.max_running` to one and saves memory.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// Arithmetic of the weights.
    pub compute: Compute,
    /// The format that weights in f32, f16 or bf16 are rounded to while they are loaded; a draft model
    /// stays as it is. By default weights keep their format.
    pub quantize: Option<RoundTo>,
    /// How keys and values are stored; by default bf16, or f32 with [`Compute::F32`].
    pub kv_dtype: Option<KvDtype>,
    /// How the states of recurrent layers are stored: bf16 takes half of the memory, and rounds a state
    /// once in 64 tokens. Of no use in models without such layers.
    pub state_dtype: StateDtype,
    /// Most activations that share a scale where they multiply quantized weights, whose scales must be
    /// for as many inputs: larger groups are faster and less precise.
    pub activation_group: ActivationGroup,
    /// Most tokens of one sequence; by default what the model declares, or what memory holds.
    pub max_context: Option<usize>,
    /// How requests share the machine.
    pub choices: Choices,
    /// Most requests waiting; further requests are refused.
    pub max_waiting: usize,
    /// Most answers to one prompt of a request: its `n`, its `best_of`, or its beams.
    pub max_choices: usize,
    /// Host memory for the KV of preempted requests, in bytes; zero for none.
    pub swap_bytes: u64,
    /// Whether tenants share cached prefixes with one another.
    pub share_prefixes: bool,
    /// Bytes for keys and values; by default as many as all requests can use, and at most half of
    /// the available memory.
    pub kv_bytes: Option<u64>,
    /// Tokens of one KV block: large blocks are found faster, small blocks share and waste less.
    pub block_size: usize,
    /// States of recurrent layers to keep for the prefix cache and for preempted requests; by default as
    /// many as are of use, in at most a quarter of `kv_bytes`. Of no use in models without such layers.
    pub state_snapshots: Option<u32>,
    /// Tokens of a prompt between two states that are kept for the prefix cache; zero to keep states only
    /// where a prompt ends or parts from another.
    pub state_interval: usize,
    /// Speculation: whether and how tokens are drafted, to be verified several at once.
    pub spec: SpecConfig,
    /// Methods besides that of `spec`. A request may choose one by name; other requests get the
    /// drafts of the method that is expected to save most.
    pub further_methods: Vec<SpecMethod>,
    /// Functions that make proposers of the caller's own, whose names must be new. Like every
    /// proposer they change the speed of an answer and no token.
    pub proposers: Vec<fn() -> Box<dyn Proposer>>,
    /// The model that drafts, for methods of `spec` that use one; it must have the vocabulary of
    /// the served model.
    pub draft: Option<ModelRef>,
    /// Where packed weights are kept for the next start; by default nowhere.
    pub packed_cache: Option<PackedCache>,
    /// Whether a model without a usable tokenizer is refused. Without one only token ids can be
    /// continued, and the text of an answer is the ids of its tokens.
    pub needs_text: bool,
    /// The chat template: a file, or the name of a built-in one; by default the model's own.
    pub chat_template: Option<String>,
    /// Arguments of the chat template in every conversation, such as `enable_thinking`.
    pub chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// The format in which the model writes tool calls, by name; by default the one that its chat
    /// template shows.
    pub tool_parser: Option<String>,
    /// The format in which the model writes thoughts, by name, or `none`; by default the one that
    /// its chat template shows.
    pub reasoning_parser: Option<String>,
    /// The kind of log probabilities of answers, unless a request of the library says otherwise.
    pub logprobs_mode: LogprobsMode,
    /// Name of the model for clients; by default [`ModelRef::display_name`].
    pub name: Option<String>,
}

impl Default for LlmOptions {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            compute: Compute::default(),
            quantize: None,
            kv_dtype: None,
            state_dtype: StateDtype::default(),
            activation_group: ActivationGroup::default(),
            max_context: None,
            choices: engine.choices,
            max_waiting: engine.max_waiting_requests,
            max_choices: limits::CHOICES,
            swap_bytes: 0,
            share_prefixes: false,
            kv_bytes: None,
            block_size: BLOCK_TOKENS,
            state_snapshots: None,
            state_interval: STATE_INTERVAL_TOKENS,
            spec: engine.spec,
            further_methods: Vec::new(),
            proposers: Vec::new(),
            draft: None,
            packed_cache: None,
            needs_text: true,
            chat_template: None,
            chat_template_kwargs: serde_json::Map::new(),
            tool_parser: None,
            reasoning_parser: None,
            logprobs_mode: LogprobsMode::default(),
            name: None,
        }
    }
}

impl LlmOptions {
    /// Refuses options that are out of range or contradict each other, before any file is opened.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] names the first option that is wrong.
    pub fn check(&self) -> Result<(), LlmError> {
        let fail = |option, why: String| Err(LlmError::Option { option, why });
        if self.max_waiting == 0 {
            return fail("max_waiting", "expected at least 1, got 0".to_owned());
        }
        if !(1..=limits::CHOICES).contains(&self.max_choices) {
            let why = format!("expected from 1 to {}, got {}", limits::CHOICES, self.max_choices);
            return fail("max_choices", why);
        }
        if !(1..=MOST_BLOCK_TOKENS).contains(&self.block_size) {
            let why = format!("expected from 1 to {MOST_BLOCK_TOKENS}, got {}", self.block_size);
            return fail("block_size", why);
        }
        self.check_scheduling()?;
        draft::check(self)?;
        if self.max_context.is_some_and(|n| n < 2) {
            let why = "expected at least 2: a token to read and one to write";
            return fail("max_context", why.to_owned());
        }
        Ok(())
    }
}
