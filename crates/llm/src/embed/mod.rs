//! Texts in, vectors out: the face of embedding models.
//!
//! ```text
//! EmbedRequest --prompt, tokenizer, limits--> token lists --queue--> VectorModel --> vectors
//! ScoreRequest --frame of a pair, limits---->                                   --> scores
//! ```
//!
//! One thread computes ([`queue`]); requests that come at the same time share its steps. A text has
//! the same vector alone and together with others, to the bit.

mod classify;
mod input;
mod load;
mod queue;
mod score;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use pelton_base::{ParamError, TokenId};
use pelton_model::embed::{EmbedSpec, TypedTokens, normalise};
use pelton_text::Tokenizer;

use crate::error::LlmError;

pub use classify::{Classes, PreparedClasses};
pub use load::EmbedOptions;
use queue::Queue;
pub use queue::{EmbedMetrics, EmbedModel, EmbedTicket};
pub use score::{Cut, PreparedScores, ScoreRequest, Scores};

/// A text, or its tokens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EmbedInput {
    /// A text; the prompt is put before it, and the special tokens of the model around it.
    Text(String),
    /// Tokens, used as they are.
    Tokens(Vec<TokenId>),
}

/// A request for vectors of texts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EmbedRequest {
    /// The texts.
    pub inputs: Vec<EmbedInput>,
    /// Number of elements to keep of each vector, from the first; for models that were trained for
    /// it (Kusupati et al., 2022, "Matryoshka").
    pub dimensions: Option<usize>,
    /// Name of the prompt that is put before each text; by default the default prompt of the
    /// model's files, if they have one.
    pub prompt_name: Option<String>,
    /// Whether a text that is too long is cut, instead of being refused.
    pub truncate: bool,
}

/// Vectors of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// One vector per text, in order, all of one length.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of each text, special tokens included.
    pub n_tokens: Vec<usize>,
}

/// Facts about a loaded embedding model.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct EmbedInfo {
    /// Its name for clients.
    pub name: String,
    /// Its family, as the checkpoint names it.
    pub architecture: String,
    /// Elements of a vector.
    pub n_dimensions: usize,
    /// Longest text, in tokens, special tokens included.
    pub max_tokens: usize,
    /// How rows become a vector: one or several kinds of pooling.
    pub pooling: Vec<String>,
    /// Whether vectors have the length 1.
    pub is_normalised: bool,
    /// Names of the prompts.
    pub prompts: Vec<String>,
    /// Names of the labels, where the model is a classifier.
    pub labels: Vec<String>,
    /// From the logits of a classifier to probabilities: `sigmoid`, `softmax` or `none`.
    pub activation: Option<&'static str>,
    /// Rows of the model's embedding.
    pub vocab_size: usize,
    /// Bytes of weights read per step.
    pub weight_bytes: u64,
    /// The format that weights were rounded to while they were loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounded_to: Option<&'static str>,
    /// Threads that compute.
    pub n_threads: usize,
}

/// A request that is checked and ready to be computed.
#[derive(Debug)]
pub struct PreparedEmbed {
    texts: Vec<TypedTokens>,
    dimensions: Option<usize>,
}

impl PreparedEmbed {
    /// Tokens of all texts.
    pub fn n_tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).sum()
    }
}

/// A loaded embedding model, for use by any number of threads.
#[derive(Debug)]
pub struct Embedder {
    info: EmbedInfo,
    spec: EmbedSpec,
    tokenizer: Arc<Tokenizer>,
    queue: Queue,
}

impl Embedder {
    /// Facts about the model.
    pub fn info(&self) -> &EmbedInfo {
        &self.info
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Waiting requests, and totals since the start.
    pub fn metrics(&self) -> EmbedMetrics {
        self.queue.metrics()
    }

    /// Turns texts into tokens on the calling thread, and checks everything.
    ///
    /// # Errors
    ///
    /// Names the parameter and, where it is one of several texts, its number: empty, too long, a
    /// token out of range, an unknown prompt, more dimensions than there are.
    pub fn prepare(&self, request: &EmbedRequest) -> Result<PreparedEmbed, LlmError> {
        if self.spec.classes.is_some() {
            let why =
                "is a classifier and makes no vectors; ask it for scores of pairs or for labels";
            return Err(self.wrong_task(why));
        }
        let n_dimensions = self.info.n_dimensions;
        if let Some(n) = request.dimensions.filter(|n| !(1..=n_dimensions).contains(n)) {
            let (param, expected) = ("dimensions", "from 1 to the dimensions of the model");
            let got = format!("{n} of {n_dimensions}");
            return Err(ParamError { param, expected, got }.into());
        }
        let prompt = self.prompt(request.prompt_name.as_deref())?;
        let texts = self.inputs(&request.inputs, prompt, request.truncate)?;
        Ok(PreparedEmbed { texts, dimensions: request.dimensions })
    }

    /// Puts a request into the queue; `reply` is called on the thread that computes, once, unless
    /// the ticket is dropped before.
    ///
    /// # Errors
    ///
    /// When too many texts wait, or the model was shut down.
    pub fn submit(
        &self,
        prepared: PreparedEmbed,
        reply: impl FnOnce(Result<Embeddings, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        let PreparedEmbed { texts, dimensions } = prepared;
        let n_tokens = texts.iter().map(|text| text.tokens.len()).collect();
        let is_normalised = self.spec.normalise;
        let finish = move |vectors: Result<Vec<Vec<f32>>, LlmError>| {
            let embeddings = vectors.and_then(|mut vectors| {
                for (index, vector) in vectors.iter_mut().enumerate() {
                    if let Some(n) = dimensions {
                        vector.truncate(n);
                        if is_normalised {
                            normalise(vector);
                        }
                    }
                    if vector.iter().any(|x| !x.is_finite()) {
                        return Err(LlmError::NotFinite { index });
                    }
                }
                Ok(Embeddings { vectors, n_tokens })
            });
            reply(embeddings);
        };
        self.queue.push(texts, Box::new(finish))
    }

    /// Vectors of texts; waits for them.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare) and [`submit`](Self::submit), and [`LlmError::NotFinite`] for
    /// weights that overflow.
    pub fn embed(&self, request: EmbedRequest) -> Result<Embeddings, LlmError> {
        let prepared = self.prepare(&request)?;
        waiting(|reply| self.submit(prepared, reply))
    }

    /// Whether the model gives labels, and not vectors.
    pub fn is_classifier(&self) -> bool {
        self.spec.classes.is_some()
    }

    fn wrong_task(&self, why: &str) -> LlmError {
        LlmError::WrongTask { model: self.info.name.clone(), why: why.to_owned() }
    }

    /// Whether the model has panicked twice and takes no more requests.
    pub fn has_failed(&self) -> bool {
        *self.queue.has_failed().borrow()
    }

    /// Waits until the model fails; for ever where it does not. Safe to cancel.
    pub async fn failed(&self) {
        let mut has_failed = self.queue.has_failed();
        // The sender lives as long as `self` does.
        let _ = has_failed.wait_for(|has_failed| *has_failed).await;
    }

    /// How long the model is at its current step; `None` while it waits for requests. A step that
    /// takes far longer than any before hangs.
    pub fn busy_for(&self) -> Option<Duration> {
        self.queue.busy_for()
    }

    /// As [`shutdown`](Self::shutdown), for a model whose step hangs: dropping it does not wait for the
    /// thread, which keeps its memory while it runs.
    pub fn abandon(&self) {
        self.queue.abandon();
    }

    /// Ends the thread after the current step; waiting requests are answered with
    /// [`LlmError::Stopped`].
    pub fn shutdown(&self) {
        self.queue.close();
    }
}

/// Waits for the answer to a request that `submit` puts into the queue.
fn waiting<T: Send + 'static>(
    submit: impl FnOnce(Box<dyn FnOnce(Result<T, LlmError>) + Send>) -> Result<EmbedTicket, LlmError>,
) -> Result<T, LlmError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let _ticket = submit(Box::new(move |answer| {
        // The receiver below outlives this call.
        let _ = sender.send(answer);
    }))?;
    receiver.recv().unwrap_or(Err(LlmError::Stopped))
}

/// Cosine of the angle between two vectors; 0 where one of them is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { dot(a, b) / lengths }
}
