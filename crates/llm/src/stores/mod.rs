//! Models that are on this machine already: in the caches of the Hugging Face hub, of Ollama and of
//! llama.cpp.
//!
//! ```text
//!   Hugging Face   HF_HUB_CACHE, HF_HOME/hub       models--org--name/snapshots/..   org/name[:FORMAT]
//!   Ollama         OLLAMA_MODELS, ~/.ollama/models manifests/.., blobs/sha256-..    name:tag
//!   llama.cpp      LLAMA_CACHE, ~/.cache/llama.cpp FILE.gguf                        FILE.gguf
//! ```
//!
//! Pelton writes to the first only. A model of the two other programs is one GGUF file, which is
//! run where it lies. Their files are hostile input, as an answer of the hub is.

mod hugging_face;
mod known;
mod llama_cpp;
mod ollama;

use std::fmt;
use std::path::PathBuf;

pub use hugging_face::remove;
pub use known::hub_name;

use crate::hub::HubConfig;

/// The program whose cache holds a model.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Store {
    /// The hub cache, which Pelton and Python's tools fill.
    HuggingFace,
    /// Ollama.
    Ollama,
    /// llama.cpp.
    LlamaCpp,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HuggingFace => "Hugging Face",
            Self::Ollama => "Ollama",
            Self::LlamaCpp => "llama.cpp",
        })
    }
}

/// A model in one of the caches.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct StoredModel {
    /// Name that [`ModelRef::parse`](crate::ModelRef::parse) reads.
    pub name: String,
    /// The kind of files, such as `safetensors` or `GGUF Q4_K_M`.
    pub format: String,
    /// Bytes on the disk.
    pub n_bytes: u64,
    /// Whether a download has not finished.
    pub is_partial: bool,
    /// The program whose cache it is in.
    pub store: Store,
    /// The folder, or the file.
    pub path: PathBuf,
    /// The commit of the repository, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// Every model in the caches of this machine, those of one program together.
pub fn list() -> Vec<StoredModel> {
    let mut found = hugging_face::list(&HubConfig::from_env());
    found.extend(ollama::Ollama::from_env().iter().flat_map(ollama::Ollama::list));
    found.extend(llama_cpp::folder().iter().flat_map(|folder| llama_cpp::list(folder)));
    found
}

/// A model of Ollama or of llama.cpp by the name that [`list`] shows.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let of_ollama = || ollama::Ollama::from_env().iter().find_map(|ollama| ollama.find(name));
    let of_llama_cpp = || llama_cpp::folder().and_then(|folder| llama_cpp::find(&folder, name));
    of_llama_cpp().or_else(of_ollama)
}

/// The value of an environment variable as a path, where it is set and not empty.
fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// `GGUF Q4_K_M` for a file of that format, or `GGUF`.
fn gguf_format(file: &str) -> String {
    match crate::hub::format_of(file) {
        Some(format) => format!("GGUF {format}"),
        None => "GGUF".to_owned(),
    }
}
