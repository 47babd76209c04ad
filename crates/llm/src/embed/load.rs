//! From a model's name to a thread that makes vectors.

use std::sync::Arc;

use pelton_model::embed::{EmbedSpec, Pooling, VectorModel};
use pelton_model::{Compute, LoadOptions, ModelError, ModelFiles, PackedCache, RoundTo};

use super::queue::{EmbedModel, Queue};
use super::{EmbedInfo, Embedder};
use crate::error::LlmError;
use crate::reference::{LocalModel, ModelRef};
use crate::runtime::Runtime;
use crate::source::{LoadProgress, Reporter, Source};

/// Longest text where the options name no other, in tokens: longer texts take gigabytes of rows.
const MAX_TOKENS: usize = 8192;

/// How an embedding model is loaded; a field that is `None` follows the model's files.
#[derive(Clone, Debug, Default)]
pub struct EmbedOptions {
    /// Arithmetic of the weights.
    pub compute: Compute,
    /// The format that weights in f32, f16 or bf16 are rounded to while they are loaded; those of
    /// layers behind the pooling stay.
    pub quantize: Option<RoundTo>,
    /// Longest text, in tokens; by default what the model declares, at most 8,192.
    pub max_tokens: Option<usize>,
    /// How rows become a vector.
    pub pooling: Option<Pooling>,
    /// Whether vectors get the length 1.
    pub normalise: Option<bool>,
    /// Where packed weights are kept for the next start; by default nowhere.
    pub packed_cache: Option<PackedCache>,
    /// Name of the model for clients; by default [`ModelRef::display_name`].
    pub name: Option<String>,
}

impl LocalModel {
    /// Whether the model's files say that it is a model for vectors.
    ///
    /// # Errors
    ///
    /// As [`LocalModel::open`].
    pub fn is_embedding_model(&self) -> Result<bool, LlmError> {
        Ok(EmbedSpec::is_declared(&self.open()?)?)
    }
}

impl Embedder {
    /// Finds, downloads if need be, and loads a model for vectors on `runtime`: an encoder, or any
    /// decoder, whose last layer then gives the vectors.
    ///
    /// # Errors
    ///
    /// [`LlmError`] names the file, field, tensor or option that is wrong.
    pub fn load(
        runtime: &Runtime,
        model: &ModelRef,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Arc<Self>, LlmError> {
        Self::load_behind(runtime, model, options, progress, |model| model)
    }

    /// As [`Embedder::load`]; `wrap` may put something between the queue and the model, such as a
    /// test that lets steps fail.
    ///
    /// # Errors
    ///
    /// As [`Embedder::load`].
    pub fn load_behind(
        runtime: &Runtime,
        model: &ModelRef,
        options: &EmbedOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
        wrap: impl FnOnce(Box<dyn EmbedModel>) -> Box<dyn EmbedModel>,
    ) -> Result<Arc<Self>, LlmError> {
        let reporter = Reporter::new(progress);
        let mut source = Source::open(model, options.name.as_deref(), &reporter)?;
        source.round_to(options.quantize)?;
        let tokenizer = source.tokenizer()?;
        let (spec, max_tokens) = spec(&source.files, options)?;
        let load = LoadOptions {
            compute: options.compute,
            packed_cache: options.packed_cache.as_ref(),
            progress: Some(&|progress| reporter.pack(progress)),
            ..LoadOptions::default()
        };
        let decoder = runtime.load(&source.files, &load)?;
        let io = |source_error| ModelError::Io {
            file: source.files.path().to_owned(),
            source: source_error,
        };
        let info = EmbedInfo {
            name: source.name.clone(),
            architecture: source.files.config().architecture.clone(),
            n_dimensions: spec.n_dimensions(decoder.spec().hidden_size),
            max_tokens,
            pooling: spec.pooling.iter().map(ToString::to_string).collect(),
            is_normalised: spec.normalise,
            prompts: spec.prompts.keys().cloned().collect(),
            labels: spec.classes.as_ref().map_or_else(Vec::new, |classes| classes.labels.clone()),
            activation: spec.classes.as_ref().map(|classes| classes.activation.name()),
            vocab_size: decoder.spec().vocab_size,
            weight_bytes: decoder.memory_bytes(),
            rounded_to: source.files.rounded_to().map(RoundTo::name),
            n_threads: runtime.n_threads(),
        };
        info.log();
        let vectors = VectorModel::new(decoder, spec, max_tokens).map_err(io)?;
        let spec = vectors.spec().clone();
        let queue = Queue::spawn(wrap(Box::new(vectors))).map_err(io)?;
        Ok(Arc::new(Self { info, spec, tokenizer, queue }))
    }
}

impl EmbedInfo {
    fn log(&self) {
        tracing::info!(
            model = self.name,
            architecture = self.architecture,
            dimensions = self.n_dimensions,
            max_tokens = self.max_tokens,
            pooling = self.pooling.join(" + "),
            threads = self.n_threads,
            labels = self.labels.len(),
            "{} loaded",
            if self.labels.is_empty() { "embedding model" } else { "classifier" }
        );
    }
}

/// The steps after the last layer and the longest text: as the files say, unless the options do.
fn spec(files: &ModelFiles, options: &EmbedOptions) -> Result<(EmbedSpec, usize), LlmError> {
    let model = files.spec()?;
    let mut spec = EmbedSpec::read(files, &model)?;
    let why = if model.is_recurrent() {
        Some("its recurrent layers keep states, expected a model of attention alone for vectors")
    } else if model.encoder.is_some() {
        Some("it has an encoder and a decoder, expected a model of one of them for vectors")
    } else {
        None
    };
    if let Some(why) = why {
        return Err(LlmError::Option { option: "model", why: why.to_owned() });
    }
    let is_overridden = options.pooling.is_some() || options.normalise.is_some();
    if spec.classes.is_some() && is_overridden {
        let option = if options.pooling.is_some() { "pooling" } else { "normalize" };
        let why = "the model is a classifier, whose files say how its rows are read; leave it out";
        return Err(LlmError::Option { option, why: why.to_owned() });
    }
    if let Some(pooling) = options.pooling {
        if !spec.dense.is_empty() && spec.pooling.len() != 1 {
            let why = "the model's dense layers take the vectors of its own pooling; leave it out";
            let why = why.to_owned();
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
