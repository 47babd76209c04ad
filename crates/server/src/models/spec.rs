//! The facts about a model that a server knows before it is loaded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Served;

/// Loads a model. Called on threads that may block, one load of a server at a time.
pub trait Loader: Send + Sync + 'static {
    /// Bytes that the weights take in memory, by the headers of the model's files.
    ///
    /// # Errors
    ///
    /// A sentence that names the file and what is wrong with it.
    fn weight_bytes(&self) -> Result<u64, String>;

    /// Loads the model, anew each time that it is called. `most_bytes` is the memory that there is
    /// for its weights, keys and values together; `None` where no budget limits it.
    ///
    /// # Errors
    ///
    /// A sentence that names the file and what is wrong with it, or the memory that is lacking.
    fn load(&self, most_bytes: Option<u64>) -> Result<Served, String>;

    /// Hears that the engine of a model that it loaded hangs in a step and was given up, with the
    /// threads that compute: what is loaded from now on needs other ones.
    fn abandon_threads(&self) {}
}

/// A model that a server can load.
#[derive(Clone)]
pub struct ModelSpec {
    /// Its name for clients.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Whether it is loaded before the server listens; otherwise the first request loads it.
    pub preload: bool,
    /// Time without requests after which it is unloaded; `None` to keep it.
    pub keep_alive: Option<Duration>,
    /// All settings in words: a model with others is loaded anew by [`Catalog::apply`](super::Catalog::apply).
    pub settings: String,
    /// The way to its files.
    pub loader: Arc<dyn Loader>,
}

impl fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, aliases, preload, keep_alive, settings: _, loader: _ } = self;
        f.debug_struct("ModelSpec")
            .field("name", name)
            .field("aliases", aliases)
            .field("preload", preload)
            .field("keep_alive", keep_alive)
            .finish_non_exhaustive()
    }
}

/// Why a model was not loaded.
#[derive(Debug)]
pub(super) struct LoadFailure {
    pub(super) why: String,
    /// Whether the same load fails whatever else ends: the model alone is too large.
    pub(super) is_final: bool,
}

impl From<String> for LoadFailure {
    fn from(why: String) -> Self {
        Self { why, is_final: false }
    }
}

/// Models that cannot be served together.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// No model at all.
    #[error("expected at least one model")]
    None,
    /// More models than a server keeps apart.
    #[error("{n} models; expected at most 256")]
    TooMany {
        /// Their number.
        n: usize,
    },
    /// A name that no request can hold.
    #[error(
        "`{name}` cannot be the name of a model: expected 1 to 256 characters, none of them a control character"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A name or alias that two models have, or one model twice.
    #[error(
        "`{name}` is the name or an alias of two models; expected one model, because a request could mean either"
    )]
    SharedName {
        /// The name.
        name: String,
    },
    /// A model that was to be loaded at the start and could not be.
    #[error("model `{name}`: {why}")]
    Load {
        /// Its name.
        name: String,
        /// The mistake.
        why: String,
    },
}
