//! The proposers of a served model, and a smaller model that drafts for it.

use pelton_base::TokenId;
use pelton_engine::spec::{DraftModel, MOST_DRAFTS, Proposer};
use pelton_engine::{ExecutorError, KvMemory, SpecConfig, SpecMethod};
use pelton_model::{Decoder, LoadOptions, available_memory_bytes};
use pelton_text::Tokenizer;

use crate::error::LlmError;
use crate::memory::{KvPlan, KvSizing, StateSizing, UNKNOWN_MEMORY_BYTES};
use crate::options::LlmOptions;
use crate::reference::ModelRef;
use crate::runtime::{Device, Runtime};
use crate::source::{Reporter, Source};

/// Share of the available memory for the keys and values of a draft model: an eighth.
const KV_SHARE: u64 = 8;

/// The ways in which tokens are drafted, as the options choose them.
pub(crate) struct DraftPlan<'a> {
    /// Proposers that need no model of their own, each once.
    pub(crate) proposers: Vec<Box<dyn Proposer>>,
    /// The model that drafts, where a method uses one.
    pub(crate) model: Option<&'a ModelRef>,
}

impl<'a> DraftPlan<'a> {
    /// Reads the options; loads nothing.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] where methods, layers and draft model do not fit together.
    pub(crate) fn new(options: &'a LlmOptions) -> Result<Self, LlmError> {
        let SpecConfig { max_drafts, .. } = options.spec;
        if !(1..=MOST_DRAFTS).contains(&max_drafts) {
            let why = format!("{max_drafts} drafts at once, expected 1 to {MOST_DRAFTS}");
            return Err(LlmError::Option { option: "spec_max", why });
        }
        let methods = methods(options);
        check_exit(options, &methods)?;
        let model = draft_model(options, &methods)?;
        let mut proposers: Vec<Box<dyn Proposer>> = Vec::new();
        for &method in &methods {
            for proposer in (SpecConfig { method, ..options.spec }).proposers() {
                if proposers.iter().all(|known| known.name() != proposer.name()) {
                    proposers.push(proposer);
                }
            }
        }
        for make in &options.proposers {
            let proposer = make();
            let name = proposer.name();
            if SpecMethod::ALL.iter().any(|method| method.name() == name)
                || proposers.iter().any(|known| known.name() == name)
            {
                let why = format!("the name `{name}` is taken, expected another one");
                return Err(LlmError::Option { option: "proposers", why });
            }
            proposers.push(proposer);
        }
        Ok(Self { proposers, model })
    }
}

/// Refuses methods, layers and a draft model that do not fit together.
///
/// # Errors
///
/// As of [`DraftPlan::new`].
pub(crate) fn check(options: &LlmOptions) -> Result<(), LlmError> {
    let methods = methods(options);
    check_exit(options, &methods)?;
    draft_model(options, &methods).map(drop)
}

/// The first method and the further ones.
fn methods(options: &LlmOptions) -> Vec<SpecMethod> {
    let further = options.further_methods.iter().copied();
    std::iter::once(options.spec.method).chain(further).collect()
}

/// Refuses an early exit without its layer, and a layer without an early exit.
fn check_exit(options: &LlmOptions, methods: &[SpecMethod]) -> Result<(), LlmError> {
    let why = match (methods.contains(&SpecMethod::EarlyExit), options.spec.exit_layers) {
        (true, None) => "`early-exit` needs the number of layers after which to draft",
        (false, Some(_)) => "only `early-exit` drafts after some layers",
        (true, Some(_)) | (false, None) => return Ok(()),
    };
    Err(LlmError::Option { option: "spec", why: why.to_owned() })
}

/// The model that drafts, where a method uses one.
fn draft_model<'a>(
    options: &'a LlmOptions,
    methods: &[SpecMethod],
) -> Result<Option<&'a ModelRef>, LlmError> {
    let fail = |option, why: &str| Err(LlmError::Option { option, why: why.to_owned() });
    let needs_model = methods.contains(&SpecMethod::Draft);
    let takes_model = needs_model || methods.contains(&SpecMethod::Auto);
    match &options.draft {
        Some(_) if !takes_model => {
            fail("draft_model", "it drafts only where `spec` is `draft` or `auto`")
        }
        None if needs_model => fail("spec", "`draft` needs a model that drafts"),
        model => Ok(model.as_ref()),
    }
}

/// The model that is served.
pub(crate) struct Target<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Bytes of weights that one token reads.
    pub(crate) weight_bytes: usize,
    pub(crate) context_tokens: usize,
    /// Whether an encoder reads its prompts.
    pub(crate) has_encoder: bool,
}

impl Target<'_> {
    /// Loads a draft model on the runtime of the served model.
    ///
    /// # Errors
    ///
    /// A model that cannot be loaded, that has another vocabulary, or for whose keys and values
    /// there is no memory.
    pub(crate) fn load_draft(
        &self,
        runtime: &Runtime,
        model: &ModelRef,
        options: &LlmOptions,
        reporter: &Reporter<'_, '_>,
    ) -> Result<DraftModel<Device>, LlmError> {
        let source = Source::open(model, None, reporter)?;
        check_same_vocabulary(self.tokenizer, &*source.tokenizer()?)?;
        let load = LoadOptions {
            compute: options.compute,
            kv_dtype: options.kv_dtype,
            activation_group: options.activation_group,
            packed_cache: options.packed_cache.as_ref(),
            progress: Some(&|progress| reporter.pack(progress)),
            ..LoadOptions::default()
        };
        if self.has_encoder || source.files.spec()?.encoder.is_some() {
            let why =
                "a model with an encoder neither drafts for another one nor has a draft model";
            return Err(LlmError::Option { option: "draft_model", why: why.to_owned() });
        }
        if source.files.spec()?.is_recurrent() {
            return Err(ExecutorError::RecurrentDraft.into());
        }
        let decoder = runtime.load(&source.files, &load)?;
        if decoder.weight_bytes() >= self.weight_bytes {
            let (draft, target) = (decoder.weight_bytes(), self.weight_bytes);
            tracing::warn!(draft, target, "the draft model is as large as the model it drafts for");
        }
        let kv = self.size_draft_kv(&decoder, options)?;
        let memory = KvMemory::Blocks(kv.n_blocks);
        Ok(DraftModel::new(decoder, options.block_size, memory, self.tokenizer.vocab_size())?)
    }

    fn size_draft_kv(
        &self,
        decoder: &Decoder<Device>,
        options: &LlmOptions,
    ) -> Result<KvPlan, LlmError> {
        let available_bytes = available_memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES);
        let sizing = KvSizing {
            // The draft model keeps all tokens.
            block: decoder.kv_footprint(1, options.block_size, 0).without_windows(),
            chunk_tokens: options.choices.chunk_tokens(),
            is_contiguous: false,
            context_tokens: self.context_tokens.min(decoder.spec().max_context),
            is_asked: false,
            n_running: options.choices.max_running,
            limit_bytes: Some(available_bytes / KV_SHARE),
            available_bytes,
            states: StateSizing::default(),
        };
        sizing.plan().ok_or_else(|| {
            let why = "there is no memory for its keys and values".to_owned();
            LlmError::Option { option: "draft_model", why }
        })
    }
}

/// Refuses a draft model whose tokens stand for other texts.
fn check_same_vocabulary(target: &Tokenizer, draft: &Tokenizer) -> Result<(), LlmError> {
    let (n_target, n_draft) = (target.vocab_size(), draft.vocab_size());
    let other = (0..n_target.max(n_draft) as u32)
        .map(TokenId)
        .find(|&token| target.token_bytes(token) != draft.token_bytes(token));
    match other {
        None => Ok(()),
        Some(token) => {
            let why = format!(
                "its vocabulary is another one: token {token} differs ({n_draft} tokens, the model \
                 that is served has {n_target})"
            );
            Err(LlmError::Option { option: "draft_model", why })
        }
    }
}
