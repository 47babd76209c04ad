//! A loaded model: one that generates text, or one that makes vectors of texts.

use std::sync::Arc;

use pelton_llm::{Embedder, Llm};

/// A loaded model.
#[derive(Clone, Debug)]
pub enum Served {
    /// It generates text.
    Text(Arc<Llm>),
    /// It makes vectors of texts.
    Vectors(Arc<Embedder>),
}

impl Served {
    /// Its own name.
    pub fn name(&self) -> &str {
        match self {
            Self::Text(llm) => &llm.info().name,
            Self::Vectors(embedder) => &embedder.info().name,
        }
    }

    /// `text` or `vectors`: what it makes.
    pub(crate) fn kind(&self) -> &'static str {
        if matches!(self, Self::Text(_)) { "text" } else { "vectors" }
    }

    /// Whether it generates text and has a chat template.
    pub(crate) fn chats(&self) -> bool {
        matches!(self, Self::Text(llm) if llm.template().is_some())
    }

    /// Most tokens of a sequence.
    pub(crate) fn max_tokens(&self) -> usize {
        match self {
            Self::Text(llm) => llm.info().context_tokens,
            Self::Vectors(embedder) => embedder.info().max_tokens,
        }
    }

    /// Most tokens of a prompt: of what an encoder reads, where there is one.
    pub(crate) fn most_prompt_tokens(&self) -> usize {
        let of_source = match self {
            Self::Text(llm) => llm.engine().most_source_tokens(),
            Self::Vectors(_) => None,
        };
        of_source.map_or(self.max_tokens(), |most| most.min(self.max_tokens()))
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

    /// Stops the engine or the embedder, whose step may never end, without ever waiting for it.
    pub(crate) fn abandon(&self) {
        match self {
            Self::Text(llm) => llm.shutdown(false),
            Self::Vectors(embedder) => embedder.abandon(),
        }
    }

    /// Waits until the thread of the engine has ended, after [`shutdown`](Self::shutdown). That of
    /// an embedder ends where its last owner drops it, who waits for it.
    pub(crate) fn join(&self) {
        if let Self::Text(llm) = self {
            llm.engine().join();
        }
    }

    /// Bytes of weights, keys and values.
    pub(crate) fn n_bytes(&self) -> u64 {
        match self {
            Self::Text(llm) => llm.info().weight_bytes + llm.info().kv_bytes,
            Self::Vectors(embedder) => embedder.info().weight_bytes,
        }
    }
}
