//! A smaller model that drafts for the one that is served.

use std::path::Path;

use pelton_base::TokenId;
use pelton_engine::spec::{DraftModel, MOST_DRAFTS, Proposer};
use pelton_engine::{KvMemory, SpecConfig, SpecMethod};
use pelton_model::{LoadOptions, available_memory_bytes, load_cpu};
use pelton_text::Tokenizer;

use crate::error::LlmError;
use crate::load::LlmOptions;
use crate::memory::{KvSizing, UNKNOWN_MEMORY_BYTES};
use crate::reference::ModelRef;

/// Share of the available memory that its keys and values may take: an eighth.
const KV_SHARE: u64 = 8;

/// The model that is served.
pub(crate) struct Target<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Bytes of weights that a token of it reads.
    pub(crate) weight_bytes: usize,
    pub(crate) context_tokens: usize,
}

/// What drafts for a model: what the methods make of themselves, each once, and the model that
/// `options` name.
///
/// # Errors
///
/// Where the method needs a model and there is none, or the model has another vocabulary, or it
/// cannot be loaded.
pub(crate) fn proposers(
    options: &LlmOptions,
    target: &Target<'_>,
    resolve: &mut dyn FnMut(&ModelRef) -> Result<pelton_model::ModelFiles, LlmError>,
) -> Result<Vec<Box<dyn Proposer>>, LlmError> {
    let fail = |option, why: &str| Err(LlmError::Option { option, why: why.to_owned() });
    let SpecConfig { method, max_drafts, .. } = options.spec;
    if !(1..=MOST_DRAFTS).contains(&max_drafts) {
        let why = format!("{max_drafts} drafts at once, expected 1 to {MOST_DRAFTS}");
        return fail("spec_max", &why);
    }
    let methods: Vec<SpecMethod> =
        [method].into_iter().chain(options.further_methods.iter().copied()).collect();
    let mut proposers: Vec<Box<dyn Proposer>> = Vec::new();
    for proposer in
        methods.iter().flat_map(|&method| SpecConfig { method, ..options.spec }.proposers())
    {
        if proposers.iter().all(|known| known.name() != proposer.name()) {
            proposers.push(proposer);
        }
    }
    let has = |method| methods.contains(&method);
    match (has(SpecMethod::EarlyExit), options.spec.exit_layers) {
        (true, None) => {
            return fail("spec", "`early-exit` needs the number of layers after which to draft");
        }
        (true, Some(_)) | (_, None) => {}
        (false, Some(_)) => return fail("spec", "only `early-exit` drafts after some layers"),
    }
    let model = match &options.draft {
        Some(model) if has(SpecMethod::Draft) || has(SpecMethod::Auto) => model,
        Some(_) => return fail("draft_model", "it drafts only where `spec` is `draft` or `auto`"),
        None if has(SpecMethod::Draft) => {
            return fail("spec", "`draft` needs a model that drafts");
        }
        None => return Ok(proposers),
    };
    let files = resolve(model)?;
    let tokenizer = match files.gguf() {
        Some(gguf) => Tokenizer::from_gguf(gguf)?,
        None => Tokenizer::from_folder(files.folder().unwrap_or(Path::new(".")))?,
    };
    check_vocabulary(target.tokenizer, &tokenizer)?;
    let load = LoadOptions {
        compute: options.compute,
        n_threads: options.n_threads,
        kv_dtype: options.kv_dtype,
        packed_cache: options.packed_cache.as_ref(),
        ..LoadOptions::default()
    };
    let decoder = load_cpu(&files, &load)?;
    if decoder.weight_bytes() >= target.weight_bytes {
        let (draft, target) = (decoder.weight_bytes(), target.weight_bytes);
        tracing::warn!(draft, target, "the draft model is no smaller than the one it drafts for");
    }
    let block_size = options.block_size;
    let sizing = KvSizing {
        bytes_per_block: decoder.kv_bytes_per_block(block_size) as u64,
        block_size,
        context_tokens: target.context_tokens.min(decoder.spec().max_context),
        n_running: options.choices.max_running,
        limit_bytes: Some(available_memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES) / KV_SHARE),
        available_bytes: 0,
    };
    let Some(plan) = sizing.plan() else {
        return fail("draft_model", "there is no memory for its keys and values");
    };
    let memory = KvMemory::Blocks(plan.n_blocks);
    let draft = DraftModel::new(decoder, block_size, memory, target.tokenizer.vocab_size())?;
    proposers.push(Box::new(draft));
    Ok(proposers)
}

/// Refuses a draft model whose tokens mean something else.
fn check_vocabulary(target: &Tokenizer, draft: &Tokenizer) -> Result<(), LlmError> {
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
