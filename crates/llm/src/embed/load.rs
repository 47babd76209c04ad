//! From a model's name to a thread that makes vectors.

use std::cell::RefCell;
use std::sync::Arc;

use pelton_model::embed::{EmbedSpec, Pooling, VectorModel};
use pelton_model::{Compute, LoadOptions, ModelError, ModelFiles, PackedCache, load_cpu};

use super::queue::Queue;
use super::{EmbedInfo, Embedder};
use crate::error::LlmError;
use crate::load::{LoadProgress, check_vocabulary, packing, tokenizer};
use crate::reference::{LocalModel, ModelRef};

/// Longest text unless somebody asks for more, in tokens: longer ones take gigabytes of rows.
const MAX_TOKENS: usize = 8192;

/// How an embedding model is loaded; what is `None` is as the model's files say.
#[derive(Clone, Debug, Default)]
pub struct EmbedOptions {
    /// Arithmetic of the weights.
    pub compute: Compute,
    /// Threads that compute; by default one per usable core.
    pub n_threads: Option<usize>,
    /// Longest text, in tokens; by default what the model declares, at most 8,192.
    pub max_tokens: Option<usize>,
    /// How rows become a vector.
    pub pooling: Option<Pooling>,
    /// Whether vectors get the length 1.
    pub normalise: Option<bool>,
    /// Where packed weights are kept for the next start; by default nowhere.
    pub packed_cache: Option<PackedCache>,
    /// What clients call the model; by default [`ModelRef::display_name`].
    pub name: Option<String>,
}

impl LocalModel {
    /// Whether the model's files say that vectors are what it is for.
    ///
    /// # Errors
    ///
    /// As [`LocalModel::open`].
    pub fn is_embedding_model(&self) -> Result<bool, LlmError> {
        Ok(EmbedSpec::is_declared(&self.open()?)?)
    }
}

impl Embedder {
    /// Finds, downloads if need be, and loads a model for vectors: an encoder, or any decoder, whose
    /// last layer is then what counts.
    ///
    /// # Errors
    ///
    /// [`LlmError`] names the file, field, tensor or option that is wrong.
    pub fn load(
        model: &ModelRef,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Arc<Self>, LlmError> {
        let name = options.name.clone().unwrap_or_else(|| model.display_name());
        let local = model.resolve(&mut |p| progress(LoadProgress::Download(p)))?;
        let files = local.open()?;
        let tokenizer = Arc::new(tokenizer(&files)?);
        check_vocabulary(&name, &tokenizer, &files)?;
        let (spec, max_tokens) = spec(&files, options)?;

        let progress = RefCell::new(progress);
        let packed = packing(&progress);
        let decoder = load_cpu(
            &files,
            &LoadOptions {
                compute: options.compute,
                n_threads: options.n_threads,
                packed_cache: options.packed_cache.as_ref(),
                tune: Some(&crate::tuning::tune),
                progress: Some(&packed),
                ..LoadOptions::default()
            },
        )?;
        let io = |source| ModelError::Io { file: files.path().to_owned(), source };
        let info = EmbedInfo {
            name,
            architecture: files.config().architecture.clone(),
            n_dimensions: spec.n_dimensions(decoder.spec().hidden_size),
            max_tokens,
            pooling: spec.pooling.iter().map(ToString::to_string).collect(),
            is_normalised: spec.normalise,
            prompts: spec.prompts.keys().cloned().collect(),
            vocab_size: decoder.spec().vocab_size,
            weight_bytes: decoder.weight_bytes() as u64,
            n_threads: decoder.backend().cpu().team.n_threads(),
        };
        tracing::info!(
            model = info.name,
            architecture = info.architecture,
            dimensions = info.n_dimensions,
            max_tokens,
            pooling = info.pooling.join(" + "),
            threads = info.n_threads,
            "embedding model loaded"
        );
        let vectors = VectorModel::new(decoder, spec, max_tokens).map_err(io)?;
        let spec = vectors.spec().clone();
        let queue = Queue::spawn(vectors).map_err(io)?;
        Ok(Arc::new(Self { info, spec, tokenizer, queue }))
    }
}

/// What is done after the last layer, and the longest text, with what the options say otherwise.
fn spec(files: &ModelFiles, options: &EmbedOptions) -> Result<(EmbedSpec, usize), LlmError> {
    let model = files.spec()?;
    let mut spec = EmbedSpec::read(files, &model)?;
    if let Some(pooling) = options.pooling {
        if !spec.dense.is_empty() && spec.pooling.len() != 1 {
            let why = "the layers after pooling are for the model's own pooling".to_owned();
            return Err(LlmError::Option { option: "pooling", why });
        }
        spec.pooling = vec![pooling];
    }
    if let Some(normalise) = options.normalise {
        spec.normalise = normalise;
    }
    let max_tokens = match options.max_tokens {
        None => spec.max_tokens.min(MAX_TOKENS),
        Some(asked) if (1..=model.max_context).contains(&asked) => asked,
        Some(asked) => {
            let why = format!("expected from 1 to {}, got {asked}", model.max_context);
            return Err(LlmError::Option { option: "max_context", why });
        }
    };
    Ok((spec, max_tokens))
}
