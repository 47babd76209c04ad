//! Finding a model, and loading it on the runtime of the process with a progress bar.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pelton_llm::hub::HubProgress;
use pelton_llm::{
    EmbedOptions, Embedder, Llm, LlmError, LlmOptions, LoadProgress, LocalModel, ModelRef, Runtime,
    RuntimeOptions,
};
use pelton_model::{CpuDevice, Decoder, LoadOptions, ModelFiles, RoundTo};

use crate::failure::{Failure, Result};
use crate::hints::short_of_memory;
pub(crate) use crate::hints::{interrupted, not_here};
use crate::interrupt::{self, Leave};
use crate::progress::Progress;

/// The story-teller inside the binary, a GGUF file.
static STORY: &[u8] = include_bytes!("../model/story-q8_0.gguf");

/// A model of a fifth of its parameters, to draft for it.
static STORY_DRAFT: &[u8] = include_bytes!("../model/story-draft-q8_0.gguf");

/// Name of the story-teller.
pub(crate) const STORY_NAME: &str = "story";

/// Name of its draft model.
const STORY_DRAFT_NAME: &str = "story-draft";

/// Another name of the story-teller.
pub(crate) const EMBEDDED: &str = "embedded";

/// Line for a person's first screen: what the story-teller is, and how to get a real model.
pub(crate) const TOY_NOTE: &str = "note: this is the built-in toy model (11 million parameters, \
    trained on old books); a real one: pelton run -m Qwen/Qwen3-0.6B";

/// Reads a model's name; no name, `embedded`, or `story` where there is no such path, is the
/// story-teller, and `story-draft` is the model that drafts for it.
///
/// # Errors
///
/// When the name is no path that exists and no hub id.
pub(crate) fn reference(name: Option<&str>) -> Result<ModelRef> {
    let is_story = |name: &str| name == STORY_NAME && !Path::new(name).exists();
    match name {
        None | Some(EMBEDDED) => Ok(ModelRef::Embedded { name: STORY_NAME, bytes: STORY }),
        Some(name) if is_story(name) => Ok(ModelRef::Embedded { name: STORY_NAME, bytes: STORY }),
        Some(STORY_DRAFT_NAME) => {
            Ok(ModelRef::Embedded { name: STORY_DRAFT_NAME, bytes: STORY_DRAFT })
        }
        Some(name) => Ok(ModelRef::parse(name)?),
    }
}

/// The folder or file on this machine that a model's name leads to: the folder where one of its
/// files is named, and nothing for models of the hub.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    let path = match reference(Some(name)).ok()? {
        ModelRef::Path(path) | ModelRef::Stored { path, .. } => path,
        ModelRef::Hub(_) | ModelRef::Embedded { .. } => return None,
    };
    let is_of_folder = |ending: &str| path.extension().is_some_and(|own| own == ending);
    match path.is_file() && ["safetensors", "json"].into_iter().any(is_of_folder) {
        true => Some(path.parent().map_or_else(|| PathBuf::from("."), |folder| folder.join("."))),
        false => Some(path),
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
    let screen = Screen::new(model);
    Ok(model.resolve(&mut |progress| screen.downloading(progress))?)
}

/// Finds a model's files and opens them, to be rounded where a format is given.
///
/// # Errors
///
/// When the hub does not give them, they are damaged, or the weights are quantized already.
pub(crate) fn open(model: &ModelRef, quantize: Option<RoundTo>) -> Result<ModelFiles> {
    let mut files = resolve(model)?.open()?;
    if let Some(to) = quantize {
        files.round_to(to)?;
    }
    Ok(files)
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
    let screen = Screen::new(model);
    Llm::load(runtime, model, options, &mut |progress| screen.show(progress))
        .map_err(|error| short_of_memory(error, options))
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
    let screen = Screen::new(model);
    Embedder::load(runtime, model, options, &mut |progress| screen.show(progress))
        .map_err(|error| short_of_memory(error, &LlmOptions::default()))
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
    let load = LoadOptions {
        compute: options.compute,
        kv_dtype: options.kv_dtype,
        state_dtype: options.state_dtype,
        activation_group: options.activation_group,
        max_context: options.max_context,
        packed_cache: options.packed_cache.as_ref(),
        progress: Some(&|at| bar.loading(at.n_bytes, at.n_total_bytes)),
        ..LoadOptions::default()
    };
    runtime.load(files, &load).map_err(|error| short_of_memory(error, options))
}

/// Refuses a model that generates no text, and so has no logits.
pub(crate) fn expect_generates(model: &ModelRef, files: &ModelFiles) -> Result<()> {
    if files.spec()?.generates() {
        return Ok(());
    }
    let (model, architecture) = (model.display_name(), files.config().architecture.clone());
    Err(LlmError::NotGenerative { model, architecture }.into())
}

/// Refuses a model whose prompts an encoder reads, for a command that follows a text token by token,
/// and one that generates no text.
pub(crate) fn expect_decoder(model: &ModelRef, files: &ModelFiles) -> Result<()> {
    expect_generates(model, files)?;
    if files.spec()?.encoder.is_none() {
        return Ok(());
    }
    let architecture = &files.config().architecture;
    Err(Failure::new(format!("{architecture} has an encoder, which this command does not measure"))
        .hint("`pelton run`, `serve`, `logits` and `inspect` take such models"))
}

/// The progress of a load, for a person.
struct Screen {
    bar: Progress,
    name: String,
    /// Answers to Ctrl-C from the first byte of a download on.
    leave: RefCell<Option<Leave>>,
}

impl Screen {
    fn new(model: &ModelRef) -> Self {
        Self { bar: Progress::new(), name: model.display_name(), leave: RefCell::new(None) }
    }

    fn downloading(&self, at: HubProgress<'_>) {
        let mut leave = self.leave.borrow_mut();
        if leave.is_none() && !interrupt::is_handed_over() {
            // Without it Ctrl-C ends the process all the same, only without a word.
            *leave = Leave::with(interrupted(&self.name)).ok();
        }
        self.bar.downloading(at);
    }

    fn show(&self, progress: LoadProgress<'_>) {
        match progress {
            LoadProgress::Download(at) => self.downloading(at),
            LoadProgress::Pack { done_bytes, total_bytes } => {
                drop(self.leave.take());
                self.bar.loading(done_bytes, total_bytes);
            }
            _ => {}
        }
    }
}
