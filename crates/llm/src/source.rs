//! The first part of loading: find a model, open its files, and read its tokenizer.
//!
//! Served models, draft models and embedders begin alike; they differ from [`Source`] on.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use pelton_model::{ModelFiles, RoundTo};
use pelton_text::Tokenizer;

use crate::error::LlmError;
use crate::hub::HubProgress;
use crate::reference::ModelRef;

/// Progress of loading a model.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LoadProgress<'a> {
    /// A file is downloaded from the hub.
    Download(HubProgress<'a>),
    /// Weights are packed for the kernels, or verified where an earlier load kept them packed.
    Pack {
        /// Stored bytes packed so far, or packed bytes verified.
        done_bytes: u64,
        /// The total of the whole model.
        total_bytes: u64,
    },
}

/// Hands the progress of all parts of loading to one closure of the caller.
pub(crate) struct Reporter<'a, 'p> {
    report: RefCell<&'a mut (dyn FnMut(LoadProgress<'_>) + 'p)>,
}

impl<'a, 'p> Reporter<'a, 'p> {
    pub(crate) fn new(report: &'a mut (dyn FnMut(LoadProgress<'_>) + 'p)) -> Self {
        Self { report: RefCell::new(report) }
    }

    fn download(&self, progress: HubProgress<'_>) {
        (*self.report.borrow_mut())(LoadProgress::Download(progress));
    }

    /// Reports packed bytes.
    pub(crate) fn pack(&self, progress: pelton_model::LoadProgress) {
        let (done_bytes, total_bytes) = (progress.n_bytes, progress.n_total_bytes);
        (*self.report.borrow_mut())(LoadProgress::Pack { done_bytes, total_bytes });
    }
}

/// A model whose files are open and whose weights are not loaded yet.
pub(crate) struct Source {
    /// Name of the model for clients.
    pub(crate) name: String,
    pub(crate) files: ModelFiles,
}

impl Source {
    /// Finds the files of a model, downloads them where needed, and opens them.
    ///
    /// # Errors
    ///
    /// As [`ModelRef::resolve`] and [`LocalModel::open`](crate::LocalModel::open).
    pub(crate) fn open(
        model: &ModelRef,
        name: Option<&str>,
        reporter: &Reporter<'_, '_>,
    ) -> Result<Self, LlmError> {
        let name = name.map_or_else(|| model.display_name(), str::to_owned);
        let local = model.resolve(&mut |progress| reporter.download(progress))?;
        Ok(Self { name, files: local.open()? })
    }

    /// Rounds the weights to a format while they are loaded, where one is asked for.
    ///
    /// # Errors
    ///
    /// As [`ModelFiles::round_to`].
    pub(crate) fn round_to(&mut self, format: Option<RoundTo>) -> Result<(), LlmError> {
        Ok(format.map_or(Ok(()), |to| self.files.round_to(to))?)
    }

    /// Refuses a model that cannot generate text.
    ///
    /// # Errors
    ///
    /// [`LlmError::NotGenerative`] for an encoder.
    pub(crate) fn check_generates(&self) -> Result<(), LlmError> {
        if self.files.spec()?.generates() {
            return Ok(());
        }
        let architecture = self.files.config().architecture.clone();
        Err(LlmError::NotGenerative { model: self.name.clone(), architecture })
    }

    /// Reads the tokenizer; called before the weights are packed, which takes longest.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot be read, or that has more tokens than the model.
    pub(crate) fn tokenizer(&self) -> Result<Arc<Tokenizer>, LlmError> {
        let tokenizer = match self.files.gguf() {
            Some(gguf) => Tokenizer::from_gguf(gguf)?,
            None => Tokenizer::from_folder(self.folder())?,
        };
        check_vocabulary(&self.name, &tokenizer, self.files.config().vocab_size)?;
        Ok(Arc::new(tokenizer))
    }

    /// A tokenizer for a model without one: the text of a token is its id and a space.
    ///
    /// # Errors
    ///
    /// None that a vocabulary of numbers can cause.
    pub(crate) fn tokenizer_of_ids(&self) -> Result<Arc<Tokenizer>, LlmError> {
        let spelled = |id: usize| format!("{id} ");
        let ids = 0..self.files.config().vocab_size;
        let vocab: serde_json::Map<String, serde_json::Value> =
            ids.map(|id| (spelled(id), id.into())).collect();
        let model = serde_json::json!({
            "type": "WordLevel", "vocab": vocab, "unk_token": spelled(0),
        });
        let json = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {"type": "Fuse"}, "model": model,
        });
        Ok(Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes())?))
    }

    /// The folder of the model's files.
    pub(crate) fn folder(&self) -> &Path {
        self.files.folder().unwrap_or(Path::new("."))
    }
}

/// Refuses a tokenizer with more tokens than the embedding has rows.
///
/// # Errors
///
/// [`LlmError::VocabMismatch`].
pub fn check_vocabulary(
    model: &str,
    tokenizer: &Tokenizer,
    n_embedding: usize,
) -> Result<(), LlmError> {
    let n_tokenizer = tokenizer.vocab_size();
    if n_tokenizer > n_embedding {
        return Err(LlmError::VocabMismatch { model: model.to_owned(), n_tokenizer, n_embedding });
    }
    Ok(())
}
