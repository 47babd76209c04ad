//! The model of a server: one that generates text, or one that makes vectors of texts.

use std::sync::Arc;

use pelton_llm::{Embedder, Llm};

use crate::error::ApiError;

/// The one model of a server.
#[derive(Clone, Debug)]
pub(crate) enum Served {
    Text(Arc<Llm>),
    Vectors(Arc<Embedder>),
}

impl Served {
    /// Its name for clients.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Text(llm) => &llm.info().name,
            Self::Vectors(embedder) => &embedder.info().name,
        }
    }

    /// Most tokens of a sequence.
    pub(crate) fn max_tokens(&self) -> usize {
        match self {
            Self::Text(llm) => llm.info().context_tokens,
            Self::Vectors(embedder) => embedder.info().max_tokens,
        }
    }

    /// The model, if it generates text.
    pub(crate) fn llm(&self) -> Result<&Arc<Llm>, ApiError> {
        match self {
            Self::Text(llm) => Ok(llm),
            Self::Vectors(_) => Err(ApiError::wrong_model(format!(
                "`{}` is an embedding model: it generates no text; ask POST /v1/embeddings",
                self.name()
            ))),
        }
    }

    /// The model, if it makes vectors.
    pub(crate) fn embedder(&self) -> Result<&Arc<Embedder>, ApiError> {
        match self {
            Self::Vectors(embedder) => Ok(embedder),
            Self::Text(_) => Err(ApiError::wrong_model(format!(
                "`{}` is served for text and makes no vectors; `pelton serve --embeddings` serves \
                 a model for these",
                self.name()
            ))),
        }
    }

    /// Whether the engine or the embedder has failed for good.
    pub(crate) fn has_failed(&self) -> bool {
        match self {
            Self::Text(llm) => llm.engine().has_failed(),
            Self::Vectors(embedder) => embedder.has_failed(),
        }
    }

    /// Waits until the engine or the embedder fails; for ever where it does not.
    pub(crate) async fn failed(&self) {
        match self {
            Self::Text(llm) => llm.engine().failed().await,
            Self::Vectors(embedder) => embedder.failed().await,
        }
    }

    /// Stops the engine or the embedder and aborts running requests.
    pub(crate) fn shutdown(&self) {
        match self {
            Self::Text(llm) => llm.shutdown(false),
            Self::Vectors(embedder) => embedder.shutdown(),
        }
    }
}
