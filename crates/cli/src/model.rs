//! Finding a model, and loading it on the runtime of the process with a progress bar.

use std::sync::Arc;

use pelton_llm::{
    EmbedOptions, Embedder, Llm, LlmError, LlmOptions, LoadProgress, LocalModel, MemoryUse,
    ModelRef, Runtime, RuntimeOptions,
};
use pelton_model::{CpuDevice, Decoder, LoadOptions, ModelFiles};

use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// The story-teller inside the binary, a GGUF file.
static STORY: &[u8] = include_bytes!("../model/story-q8_0.gguf");

/// A tenth of the story-teller, to draft for it.
static STORY_DRAFT: &[u8] = include_bytes!("../model/story-draft-q8_0.gguf");

/// What the story-teller is called.
const STORY_NAME: &str = "story";

/// What its draft model is called.
const STORY_DRAFT_NAME: &str = "story-draft";

/// Another name of the story-teller.
pub(crate) const EMBEDDED: &str = "embedded";

/// Line for a person's first screen: what the story-teller is, and how to get a real model.
pub(crate) const TOY_NOTE: &str = "note: this is the built-in toy model (9 million parameters, \
    trained on old books); a real one: pelton run -m Qwen/Qwen3-0.6B";

/// Reads a model's name; no name, or `embedded`, is the story-teller, and `story-draft` is the
/// model that drafts for it.
///
/// # Errors
///
/// When the name is no path that exists and no hub id.
pub(crate) fn reference(name: Option<&str>) -> Result<ModelRef> {
    match name {
        None | Some(EMBEDDED) => Ok(ModelRef::Embedded { name: STORY_NAME, bytes: STORY }),
        Some(STORY_DRAFT_NAME) => {
            Ok(ModelRef::Embedded { name: STORY_DRAFT_NAME, bytes: STORY_DRAFT })
        }
        Some(name) => Ok(ModelRef::parse(name)?),
    }
}

/// Whether this is the story-teller.
pub(crate) fn is_embedded(model: &ModelRef) -> bool {
    matches!(model, ModelRef::Embedded { .. })
}

/// Finds a model's files, downloading them where needed.
///
/// # Errors
///
/// When the hub does not give them.
pub(crate) fn resolve(model: &ModelRef) -> Result<LocalModel> {
    let bar = Progress::new();
    Ok(model.resolve(&mut |progress| {
        bar.update(progress.file, progress.done_bytes, progress.total_bytes);
    })?)
}

/// The one runtime of the process, as `--threads` and the environment ask for it.
///
/// # Errors
///
/// When `PELTON_KERNELS` names kernels that this machine cannot run.
pub(crate) fn runtime(threads: Option<usize>) -> Result<Runtime> {
    Ok(Runtime::new(RuntimeOptions::from_env(threads))?)
}

/// Downloads (where needed) and loads a model, with a bar if it takes a while.
///
/// # Errors
///
/// Everything that can be wrong with a model, by file and field.
pub(crate) fn load(runtime: &Runtime, model: &ModelRef, options: &LlmOptions) -> Result<Arc<Llm>> {
    let bar = Progress::new();
    Llm::load(runtime, model, options, &mut |progress| show(&bar, progress)).map_err(with_hint)
}

/// Loads a model for vectors, likewise.
///
/// # Errors
///
/// As [`load`].
pub(crate) fn load_embedder(
    runtime: &Runtime,
    model: &ModelRef,
    options: &EmbedOptions,
) -> Result<Arc<Embedder>> {
    let bar = Progress::new();
    Embedder::load(runtime, model, options, &mut |progress| show(&bar, progress)).map_err(with_hint)
}

/// Loads the weights of open files without an engine, with a bar if it takes a while.
///
/// # Errors
///
/// A tensor that is missing or misshapen, or too little memory.
pub(crate) fn load_decoder(
    runtime: &Runtime,
    files: &ModelFiles,
    options: &LlmOptions,
) -> Result<Decoder<CpuDevice>> {
    let bar = Progress::new();
    let options = LoadOptions {
        compute: options.compute,
        kv_dtype: options.kv_dtype,
        max_context: options.max_context,
        packed_cache: options.packed_cache.as_ref(),
        progress: Some(&|at| bar.loading(at.n_bytes, at.n_total_bytes)),
        ..LoadOptions::default()
    };
    runtime.load(files, &options).map_err(with_hint)
}

/// Where memory lacks, says which flags ask for less.
fn with_hint(error: LlmError) -> Failure {
    let hint = error.lacks_memory_for().map(|lacking| match lacking {
        MemoryUse::Weights => {
            "a smaller weight format takes less: `pelton convert --help` lists them"
        }
        MemoryUse::KeysAndValues => {
            "smaller `--kv-memory`, `--max-context` or `--swap-memory` take less"
        }
        MemoryUse::Step => "smaller `--max-batch-tokens` or `--max-running` take less",
        _ => "end other programs, or raise the limits of this one",
    });
    let failure = Failure::from(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn show(bar: &Progress, progress: LoadProgress<'_>) {
    match progress {
        LoadProgress::Download(at) => bar.update(at.file, at.done_bytes, at.total_bytes),
        LoadProgress::Pack { done_bytes, total_bytes } => bar.loading(done_bytes, total_bytes),
        _ => {}
    }
}
