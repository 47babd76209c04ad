//! From a model's name to a running engine, in three parts.
//!
//! ```text
//! Source::open       find and open the files, read tokenizer and template
//! Runtime::load      pack the weights for the device
//! size_kv, start     size the keys and values, load the draft model, start the engine
//! ```

use std::sync::Arc;

use pelton_base::{SamplingParams, TokenId};
use pelton_engine::spec::Verification;
use pelton_engine::{
    Engine, EngineHandle, KvMemory, ModelExecutor, ModelExecutorConfig, SpecMethod, StateRoom,
};
use pelton_model::{ArchSpec, Decoder, LoadOptions, RoundTo, available_memory_bytes};
use pelton_sched::KvAllocation;
use pelton_tensor::{AlignedBuf, MemoryLeft, MemoryRefused};
use pelton_text::{ChatTemplate, Tokenizer};

use crate::chat::Dialect;
use crate::draft::{DraftPlan, Target};
use crate::error::LlmError;
use crate::llm::{Llm, LlmInfo, LlmParts, StateInfo};
use crate::memory::{KvPlan, KvSizing, StateSizing, UNKNOWN_MEMORY_BYTES};
use crate::options::LlmOptions;
use crate::reference::ModelRef;
use crate::runtime::{Device, Runtime};
use crate::source::{LoadProgress, Reporter, Source};

impl Llm {
    /// Finds, downloads if need be, and loads a model on `runtime`, and starts its engine.
    ///
    /// # Errors
    ///
    /// [`LlmError`] names the file, field, tensor or option that is wrong.
    pub fn load(
        runtime: &Runtime,
        model: &ModelRef,
        options: &LlmOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Arc<Self>, LlmError> {
        options.check()?;
        let drafts = DraftPlan::new(options)?;
        let reporter = Reporter::new(progress);
        let mut source = Source::open(model, options.name.as_deref(), &reporter)?;
        source.check_generates()?;
        source.round_to(options.quantize)?;
        let text = TextSide::load(&source, options)?;
        let decoder = load_weights(runtime, &source, options, &reporter)?;
        // Before keys and values take what is left, and once more when they have.
        check_step(decoder.spec(), options)?;
        let kv = size_kv(&decoder, options)?;
        let eos = end_tokens(decoder.spec(), &text.tokenizer);
        let suppressed = source.files.suppressed_tokens()?;
        let info = describe(source, &decoder, &kv, options.choices.kv_allocation, runtime);
        let loading = Loading { runtime, options, reporter: &reporter };
        let engine = loading.start(decoder, &kv, &text.tokenizer, drafts)?;
        let TextSide { tokenizer, has_text, template, dialect, sampling } = text;
        let share_prefixes = options.share_prefixes;
        let verification = match options.spec.method {
            SpecMethod::Off => Verification::Match,
            _ => options.spec.verification,
        };
        let parts = LlmParts {
            info,
            tokenizer,
            has_text,
            template,
            dialect,
            engine,
            eos,
            sampling,
            suppressed,
            share_prefixes,
            verification,
        };
        let mut llm = Self::from_parts(parts)?;
        llm.logprobs_mode = options.logprobs_mode;
        llm.max_choices = options.max_choices;
        Ok(Arc::new(llm))
    }
}

/// The parts of a model that concern text: everything but its weights.
struct TextSide {
    tokenizer: Arc<Tokenizer>,
    /// Whether it is one of texts, not of ids alone.
    has_text: bool,
    template: Result<ChatTemplate, String>,
    dialect: Dialect,
    sampling: Option<SamplingParams>,
}

impl TextSide {
    fn load(source: &Source, options: &LlmOptions) -> Result<Self, LlmError> {
        let (tokenizer, has_text) = match source.tokenizer() {
            Err(error) if !options.needs_text => {
                tracing::warn!("no text, only token ids: {error}");
                (source.tokenizer_of_ids()?, false)
            }
            tokenizer => (tokenizer?, true),
        };
        let (template, sampling) = match source.files.gguf() {
            Some(gguf) => {
                (ChatTemplate::from_gguf(gguf), crate::defaults::recommended_by_gguf(gguf)?)
            }
            None => {
                let folder = source.folder();
                let sampling = crate::defaults::recommended_sampling(folder)?;
                (ChatTemplate::from_folder(folder), sampling)
            }
        };
        let template = match &options.chat_template {
            Some(name) => Ok(Some(ChatTemplate::choose(name, &tokenizer)?)),
            None => template,
        };
        // A model whose template cannot be used can still continue texts.
        let template = match template {
            Ok(Some(template)) => Ok(template.with_args(options.chat_template_kwargs.clone())),
            Ok(None) => Err(ChatTemplate::why_none(&tokenizer)),
            Err(error) => {
                // Every request for a chat is refused with the same words.
                tracing::info!(%error, "the chat template cannot be used");
                Err(error.to_string())
            }
        };
        let dialect = Dialect::choose(template.as_ref().ok(), options)?;
        let unknown = options.chat_template_kwargs.keys().find(|name| !dialect.mentions(name));
        if let Some(unknown) = unknown {
            let why = match &template {
                Ok(_) => format!("the chat template mentions no variable `{unknown}`"),
                Err(_) => "the model has no chat template".to_owned(),
            };
            return Err(LlmError::Option { option: "chat_template_kwargs", why });
        }
        Ok(Self { tokenizer, has_text, template, dialect, sampling })
    }
}

fn load_weights(
    runtime: &Runtime,
    source: &Source,
    options: &LlmOptions,
    reporter: &Reporter<'_, '_>,
) -> Result<Decoder<Device>, LlmError> {
    let load = LoadOptions {
        compute: options.compute,
        kv_dtype: options.kv_dtype,
        state_dtype: options.state_dtype,
        activation_group: options.activation_group,
        max_context: options.max_context,
        packed_cache: options.packed_cache.as_ref(),
        progress: Some(&|progress| reporter.pack(progress)),
        ..LoadOptions::default()
    };
    let mut decoder = runtime.load(&source.files, &load)?;
    decoder.group_windows();
    Ok(decoder)
}

/// The size of the KV pool, and the context that is served with it.
///
/// # Errors
///
/// When the context has room for no answer, or memory holds less than was asked for.
fn size_kv(decoder: &Decoder<Device>, options: &LlmOptions) -> Result<KvPlan, LlmError> {
    let available = available_memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES);
    let sizing = KvSizing {
        block: decoder.kv_footprint(1, options.block_size, 0),
        chunk_tokens: options.choices.chunk_tokens(),
        is_contiguous: options.choices.kv_allocation == KvAllocation::Contiguous,
        context_tokens: options.max_context.unwrap_or(decoder.spec().max_context),
        is_asked: options.max_context.is_some(),
        n_running: options.choices.max_running,
        limit_bytes: options.kv_bytes,
        available_bytes: available.saturating_sub(step_bytes(decoder.spec(), options) as u64),
        states: StateSizing::new(&decoder.state_shape(), options.state_snapshots),
    };
    let declared = sizing.context_tokens;
    if declared < 2 {
        let why = "the model reaches 1 token, expected at least 2: one to read, one to write";
        return Err(LlmError::Option { option: "max_context", why: why.to_owned() });
    }
    let short = || LlmError::KvMemory(sizing.shortage(decoder.spec()));
    let plan = sizing.plan().ok_or_else(short)?;
    let served = plan.context_tokens;
    if served < declared {
        if options.max_context.is_some() {
            return Err(short());
        }
        tracing::warn!(declared, served, "the context is cut to the tokens that memory holds");
    }
    Ok(plan)
}

/// Bytes of the largest step.
fn step_bytes(spec: &ArchSpec, options: &LlmOptions) -> usize {
    let n_tokens = options.choices.max_batch_tokens;
    spec.step_bytes(n_tokens, options.choices.max_running.min(n_tokens))
}

/// Refuses a largest step for which there is no memory: its buffers grow where a refusal could not
/// be answered any more.
fn check_step(spec: &ArchSpec, options: &LlmOptions) -> Result<(), LlmError> {
    let n_tokens = options.choices.max_batch_tokens;
    let n_bytes = step_bytes(spec, options);
    let lacking = |source| LlmError::StepMemory { n_tokens, source };
    let left = MemoryLeft::now();
    if left.least().is_some_and(|n_left| n_left < n_bytes as u64) {
        return Err(lacking(MemoryRefused { n_bytes, reason: "more than there is".into(), left }));
    }
    // Reserved and given back: nothing is touched.
    AlignedBuf::try_zeroed(n_bytes).map(drop).map_err(lacking)
}

/// Tokens that end an answer, as the configuration and the tokenizer name them.
fn end_tokens(spec: &ArchSpec, tokenizer: &Tokenizer) -> Vec<TokenId> {
    let mut eos = spec.eos_tokens.clone();
    eos.extend(tokenizer.eos());
    eos.extend(tokenizer.eot());
    eos.sort_unstable();
    eos.dedup();
    eos.retain(|token| (token.0 as usize) < spec.vocab_size);
    eos
}

/// Facts about the loaded model, which are logged too.
fn describe(
    source: Source,
    decoder: &Decoder<Device>,
    kv: &KvPlan,
    allocation: KvAllocation,
    runtime: &Runtime,
) -> LlmInfo {
    // Tokens whose blocks are held beside those of a window.
    let reserved_tokens = match allocation {
        KvAllocation::Contiguous => kv.context_tokens,
        KvAllocation::Paged => 0,
    };
    let info = LlmInfo {
        name: source.name,
        architecture: source.files.config().architecture.clone(),
        vocab_size: decoder.spec().vocab_size,
        context_tokens: kv.context_tokens,
        weight_bytes: decoder.weight_bytes() as u64,
        loaded_bytes: decoder.memory_bytes(),
        rounded_to: source.files.rounded_to().map(RoundTo::name),
        kv_bytes: kv.n_bytes() - kv.state_bytes,
        kv_bytes_per_token: kv.block.token_bytes(decoder.spec()) as u64,
        n_long_requests: u64::from(kv.n_blocks)
            / (kv.block.blocks_of(kv.context_tokens, reserved_tokens) as u64).max(1),
        states: StateInfo {
            n_bytes: kv.state_bytes,
            bytes_per_request: StateSizing::new(&decoder.state_shape(), None).snapshot_bytes,
            n_running: kv.n_lanes,
            n_kept: kv.n_snapshots,
        },
        n_threads: runtime.n_threads(),
    };
    tracing::info!(
        model = info.name,
        architecture = info.architecture,
        context_tokens = info.context_tokens,
        kv_mib = info.kv_bytes >> 20,
        state_mib = info.states.n_bytes >> 20,
        kv_dtype = %decoder.kv_dtype(),
        rounded_to = info.rounded_to,
        threads = info.n_threads,
        "model loaded"
    );
    info
}

/// The surroundings of a load.
struct Loading<'a, 'r, 'p> {
    runtime: &'a Runtime,
    options: &'a LlmOptions,
    reporter: &'a Reporter<'r, 'p>,
}

impl Loading<'_, '_, '_> {
    /// Takes the memory for keys and values, loads the draft model, and starts the engine.
    fn start(
        &self,
        decoder: Decoder<Device>,
        kv: &KvPlan,
        tokenizer: &Tokenizer,
        drafts: DraftPlan<'_>,
    ) -> Result<EngineHandle, LlmError> {
        let options = self.options;
        let n_host = options.swap_bytes / (kv.block.block_bytes() as u64).max(1);
        let config = ModelExecutorConfig {
            block_size: options.block_size,
            memory: KvMemory::Blocks(kv.n_blocks),
            host_blocks: u32::try_from(n_host).unwrap_or(u32::MAX),
            sampled_vocab: Some(tokenizer.vocab_size()),
            exit_layers: options.spec.exit_layers,
            verification: options.spec.verification,
            states: StateRoom {
                n_lanes: kv.n_lanes,
                n_snapshots: kv.n_snapshots,
                every_tokens: options.state_interval,
            },
        };
        let executor = ModelExecutor::new(decoder, config)?;
        check_step(executor.decoder().spec(), options)?;
        let weight_bytes = executor.decoder().weight_bytes();
        let has_encoder = executor.decoder().spec().encoder.is_some();
        let context_tokens = kv.context_tokens;
        let target = Target { tokenizer, weight_bytes, context_tokens, has_encoder };
        let DraftPlan { mut proposers, model } = drafts;
        if let Some(model) = model {
            let draft = target.load_draft(self.runtime, model, options, self.reporter)?;
            proposers.push(Box::new(draft));
        }
        Ok(Engine::spawn_with(executor, options.engine(kv.context_tokens), proposers))
    }
}
