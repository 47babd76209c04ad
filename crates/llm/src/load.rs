//! From a model's name to a running engine.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use pelton_base::SamplingParams;
use pelton_engine::{
    Engine, EngineConfig, KvMemory, ModelExecutor, ModelExecutorConfig, SpecConfig, SpecMethod,
};
use pelton_model::{
    Compute, KvDtype, LoadOptions, ModelFiles, PackedCache, available_memory_bytes, load_cpu,
};
use pelton_sched::Choices;
use pelton_text::{ChatTemplate, Tokenizer};

use crate::draft::Target;
use crate::error::LlmError;
use crate::hub::HubProgress;
use crate::llm::{Llm, LlmInfo, LlmParts};
use crate::memory::{KvSizing, UNKNOWN_MEMORY_BYTES};
use crate::reference::{LocalModel, ModelRef};

/// Tokens of one KV block.
pub const BLOCK_TOKENS: usize = 16;
/// Most tokens of one KV block: beyond it a block is longer than most requests.
const MOST_BLOCK_TOKENS: usize = 4096;

/// How a model is loaded and run.
///
/// The defaults suit a server for a few dozen users; a program that asks one question at a time
/// sets `choices.max_running` to one and saves memory.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// Arithmetic of the weights.
    pub compute: Compute,
    /// Threads that compute; by default one per usable core.
    pub n_threads: Option<usize>,
    /// How keys and values are stored; by default bf16, or f32 with [`Compute::F32`].
    pub kv_dtype: Option<KvDtype>,
    /// Most tokens of one sequence; by default what the model declares, or what memory holds.
    pub max_context: Option<usize>,
    /// How requests share the machine.
    pub choices: Choices,
    /// Most requests waiting; further ones are refused.
    pub max_waiting: usize,
    /// Host memory for the KV of preempted requests, in bytes; zero for none.
    pub swap_bytes: u64,
    /// Whether tenants share cached prefixes with one another.
    pub share_prefixes: bool,
    /// Bytes for keys and values; by default what all requests can use, at most half of the memory
    /// that is available.
    pub kv_bytes: Option<u64>,
    /// Tokens of one KV block: large ones are found faster, small ones share and waste less.
    pub block_size: usize,
    /// Whether and how tokens are guessed, to be verified several at once.
    pub spec: SpecConfig,
    /// Methods besides that of `spec`, for requests that choose one by name; whoever chooses none gets
    /// the drafts of whichever promises most.
    pub further_methods: Vec<SpecMethod>,
    /// The model that drafts, where `spec` says that one does; its vocabulary is the model's.
    pub draft: Option<ModelRef>,
    /// Where packed weights are kept for the next start; by default nowhere.
    pub packed_cache: Option<PackedCache>,
    /// What clients call the model; by default [`ModelRef::display_name`].
    pub name: Option<String>,
}

impl Default for LlmOptions {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            compute: Compute::default(),
            n_threads: None,
            kv_dtype: None,
            max_context: None,
            choices: engine.choices,
            max_waiting: engine.max_waiting_requests,
            swap_bytes: 0,
            share_prefixes: false,
            kv_bytes: None,
            block_size: BLOCK_TOKENS,
            spec: engine.spec,
            further_methods: Vec::new(),
            draft: None,
            packed_cache: None,
            name: None,
        }
    }
}

/// What loading reports while it runs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LoadProgress<'a> {
    /// A file comes from the hub.
    Download(HubProgress<'a>),
    /// Weights are packed for the kernels, or verified as an earlier load packed them.
    Pack {
        /// Stored bytes packed so far, or packed bytes verified.
        done_bytes: u64,
        /// The same of the whole model.
        total_bytes: u64,
    },
}

impl Llm {
    /// Finds, downloads if need be, and loads a model, and starts its engine.
    ///
    /// # Errors
    ///
    /// [`LlmError`] names the file, field, tensor or option that is wrong.
    pub fn load(
        model: &ModelRef,
        options: &LlmOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Arc<Self>, LlmError> {
        options.check()?;
        let name = options.name.clone().unwrap_or_else(|| model.display_name());
        let local = model.resolve(&mut |p| progress(LoadProgress::Download(p)))?;
        let files = local.open()?;
        if !files.spec()?.generates() {
            let architecture = files.config().architecture.clone();
            return Err(LlmError::NotGenerative { model: name, architecture });
        }
        let text = TextSide::load(&files)?;
        check_vocabulary(&name, &text.tokenizer, &files)?;

        let progress = RefCell::new(progress);
        let packed = packing(&progress);
        let decoder = load_cpu(
            &files,
            &LoadOptions {
                compute: options.compute,
                n_threads: options.n_threads,
                kv_dtype: options.kv_dtype,
                max_context: options.max_context,
                packed_cache: options.packed_cache.as_ref(),
                tune: Some(&crate::tuning::tune),
                progress: Some(&packed),
                ..LoadOptions::default()
            },
        )?;
        let spec = decoder.spec();
        let block_size = options.block_size;
        let bytes_per_block = decoder.kv_bytes_per_block(block_size) as u64;
        let sizing = KvSizing {
            bytes_per_block,
            block_size,
            context_tokens: options.max_context.unwrap_or(spec.max_context),
            n_running: options.choices.max_running,
            limit_bytes: options.kv_bytes,
            available_bytes: available_memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES),
        };
        if sizing.context_tokens < 2 {
            let why = "the model reaches 1 token, expected at least 2: one to read, one to write";
            return Err(LlmError::Option { option: "max_context", why: why.to_owned() });
        }
        let plan = sizing.plan().ok_or_else(|| LlmError::Option {
            option: "kv_bytes",
            why: format!("one block of {block_size} tokens takes {bytes_per_block} bytes"),
        })?;
        if plan.context_tokens < sizing.context_tokens {
            if options.max_context.is_some() {
                let needed = bytes_per_block * sizing.context_tokens.div_ceil(block_size) as u64;
                return Err(LlmError::Option {
                    option: "max_context",
                    why: format!(
                        "{} tokens need {needed} bytes of keys and values, there is room for {} \
                         tokens",
                        sizing.context_tokens, plan.context_tokens
                    ),
                });
            }
            tracing::warn!(
                declared = sizing.context_tokens,
                served = plan.context_tokens,
                "the context is cut to what memory holds"
            );
        }
        let mut eos = spec.eos_tokens.clone();
        eos.extend(text.tokenizer.eos());
        eos.extend(text.tokenizer.eot());
        eos.sort_unstable();
        eos.dedup();
        eos.retain(|token| (token.0 as usize) < spec.vocab_size);
        let info = LlmInfo {
            name,
            architecture: files.config().architecture.clone(),
            vocab_size: spec.vocab_size,
            context_tokens: plan.context_tokens,
            weight_bytes: decoder.weight_bytes() as u64,
            kv_bytes: bytes_per_block * u64::from(plan.n_blocks),
            kv_bytes_per_token: bytes_per_block / block_size as u64,
            n_threads: decoder.backend().cpu().team.n_threads(),
        };
        tracing::info!(
            model = info.name,
            architecture = info.architecture,
            context_tokens = info.context_tokens,
            kv_mib = info.kv_bytes >> 20,
            kv_dtype = %decoder.kv_dtype(),
            threads = info.n_threads,
            "model loaded"
        );
        let n_host = options.swap_bytes / bytes_per_block.max(1);
        let host_blocks = u32::try_from(n_host).unwrap_or(u32::MAX);
        let executor = ModelExecutor::new(
            decoder,
            ModelExecutorConfig {
                block_size,
                memory: KvMemory::Blocks(plan.n_blocks),
                host_blocks,
                sampled_vocab: Some(text.tokenizer.vocab_size()),
                exit_layers: options.spec.exit_layers,
                verification: options.spec.verification,
            },
        )?;
        let mut open = |model: &ModelRef| {
            let mut fetched =
                |p: HubProgress<'_>| (*progress.borrow_mut())(LoadProgress::Download(p));
            model.resolve(&mut fetched)?.open()
        };
        let context_tokens = plan.context_tokens;
        let target = Target {
            tokenizer: &text.tokenizer,
            weight_bytes: executor.decoder().weight_bytes(),
            context_tokens,
        };
        let proposers = crate::draft::proposers(options, &target, &mut open)?;
        let engine = Engine::spawn_with(executor, options.engine(context_tokens), proposers);
        let TextSide { tokenizer, template, sampling } = text;
        let share_prefixes = options.share_prefixes;
        let parts = LlmParts { info, tokenizer, template, engine, eos, sampling, share_prefixes };
        Self::from_parts(parts).map(Arc::new)
    }
}

impl LlmOptions {
    fn check(&self) -> Result<(), LlmError> {
        let positive = |option, value: Option<usize>| match value {
            Some(0) => Err(LlmError::Option { option, why: "expected at least 1, got 0".into() }),
            _ => Ok(()),
        };
        positive("n_threads", self.n_threads)?;
        positive("max_waiting", Some(self.max_waiting))?;
        if !(1..=MOST_BLOCK_TOKENS).contains(&self.block_size) {
            let why = format!("expected from 1 to {MOST_BLOCK_TOKENS}, got {}", self.block_size);
            return Err(LlmError::Option { option: "block_size", why });
        }
        self.check_scheduling()?;
        if self.max_context.is_some_and(|n| n < 2) {
            let why = "expected at least 2: a token to read and one to write".to_owned();
            return Err(LlmError::Option { option: "max_context", why });
        }
        Ok(())
    }
}

impl LocalModel {
    /// Opens the model's files without loading the weights.
    ///
    /// # Errors
    ///
    /// Names the file and the field or tensor that is wrong.
    pub fn open(&self) -> Result<ModelFiles, LlmError> {
        Ok(match self {
            Self::Path(path) => ModelFiles::open(path)?,
            Self::Embedded(bytes) => ModelFiles::embedded(bytes)?,
        })
    }
}

/// The tokenizer of a model's files.
pub(crate) fn tokenizer(files: &ModelFiles) -> Result<Tokenizer, LlmError> {
    Ok(match files.gguf() {
        Some(gguf) => Tokenizer::from_gguf(gguf)?,
        None => Tokenizer::from_folder(files.folder().unwrap_or(Path::new(".")))?,
    })
}

/// Refuses a tokenizer with more tokens than the model; asked before the weights are packed, which takes
/// longest.
pub(crate) fn check_vocabulary(
    model: &str,
    tokenizer: &Tokenizer,
    files: &ModelFiles,
) -> Result<(), LlmError> {
    let (n_tokenizer, n_embedding) = (tokenizer.vocab_size(), files.config().vocab_size);
    if n_tokenizer > n_embedding {
        return Err(LlmError::VocabMismatch { model: model.to_owned(), n_tokenizer, n_embedding });
    }
    Ok(())
}

/// Who is told of downloads and of weights that are packed.
type Teller<'a, 'p> = RefCell<&'a mut (dyn FnMut(LoadProgress<'_>) + 'p)>;

/// Tells of weights that are packed.
pub(crate) fn packing(teller: &Teller<'_, '_>) -> impl Fn(pelton_model::LoadProgress) {
    move |p| {
        let (done_bytes, total_bytes) = (p.n_bytes, p.n_total_bytes);
        (*teller.borrow_mut())(LoadProgress::Pack { done_bytes, total_bytes });
    }
}

/// What concerns text: everything of a model but its weights.
struct TextSide {
    tokenizer: Arc<Tokenizer>,
    template: Result<ChatTemplate, String>,
    sampling: Option<SamplingParams>,
}

impl TextSide {
    fn load(files: &ModelFiles) -> Result<Self, LlmError> {
        let (tokenizer, template, sampling) = if let Some(gguf) = files.gguf() {
            let sampling = crate::defaults::recommended_by_gguf(gguf)?;
            (tokenizer(files)?, ChatTemplate::from_gguf(gguf), sampling)
        } else {
            let folder = files.folder().unwrap_or(Path::new("."));
            let sampling = crate::defaults::recommended_sampling(folder)?;
            (tokenizer(files)?, ChatTemplate::from_folder(folder), sampling)
        };
        // A model whose template is beyond us can still continue texts.
        let template = match template {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err("it has no chat template".to_owned()),
            Err(error) => {
                // Said again, by name, to whoever asks for a chat.
                tracing::info!(%error, "the chat template cannot be used");
                Err(error.to_string())
            }
        };
        Ok(Self { tokenizer: Arc::new(tokenizer), template, sampling })
    }
}
