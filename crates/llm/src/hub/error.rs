//! Errors of the hub and of its cache.

use std::path::{Path, PathBuf};

use pelton_tensor::ByteSize;

/// Reason why a model cannot be downloaded from the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text does not name a repository.
    #[error("`{id}` is not a hub model: {why}")]
    BadId {
        /// The text as it was given.
        id: String,
        /// The expected form.
        why: &'static str,
    },
    /// The hub has no such repository, revision or file, or refuses access to it.
    #[error("{url}: {status}; {hint}")]
    Refused {
        /// The address of the request.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The fix.
        hint: &'static str,
    },
    /// The network or the server failed in every attempt.
    #[error("{url}: {why}{}", attempts(*n_attempts))]
    Network {
        /// The address of the request.
        url: String,
        /// The last failure.
        why: String,
        /// Number of attempts.
        n_attempts: u32,
    },
    /// The server's answer makes no sense.
    #[error("{url}: {why}")]
    Protocol {
        /// The address of the request.
        url: String,
        /// The fault of the answer.
        why: String,
    },
    /// A file arrived whole but is not the file that the hub announced.
    #[error("{file} of {id}: {what} is {got}, the hub announced {expected}")]
    Corrupt {
        /// The repository.
        id: String,
        /// The file.
        file: String,
        /// `size`, `sha256` or `sha1`.
        what: &'static str,
        /// Its value in the file that arrived.
        got: String,
        /// Its value in the announcement.
        expected: String,
    },
    /// The model is not in the cache and the network may not be used.
    #[error("{}", offline(id, cache, missing.as_deref(), *partial_bytes))]
    Offline {
        /// The repository.
        id: String,
        /// The cache folder.
        cache: PathBuf,
        /// The first file that is missing of a model that is there; `None` where none of it is.
        missing: Option<String>,
        /// Bytes that an unfinished download has left.
        partial_bytes: u64,
    },
    /// Another process works on this model.
    #[error("{id} is being downloaded by another process")]
    Busy {
        /// The repository.
        id: String,
    },
    /// The repository holds no model that can be loaded, or several to choose from.
    #[error("{id}: {why}")]
    NoModel {
        /// The repository.
        id: String,
        /// The files that were expected and the files that exist.
        why: String,
    },
    /// The disk of the cache has less free space than the files that are still to be fetched take.
    #[error(
        "{id} needs {needed_bytes} bytes ({}) more in {}, and {free_bytes} bytes ({}) are free",
        ByteSize(*needed_bytes), cache.display(), ByteSize(*free_bytes)
    )]
    NoSpace {
        /// The repository.
        id: String,
        /// The cache folder.
        cache: PathBuf,
        /// Bytes that have not arrived yet.
        needed_bytes: u64,
        /// Bytes that the disk has for us.
        free_bytes: u64,
    },
    /// The cache folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl HubError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// ` (after 5 attempts)`, or nothing after the first.
fn attempts(n_attempts: u32) -> String {
    if n_attempts > 1 { format!(" (after {n_attempts} attempts)") } else { String::new() }
}

fn offline(id: &str, cache: &Path, missing: Option<&str>, partial_bytes: u64) -> String {
    let cache = cache.display();
    match (missing, partial_bytes) {
        (None, 0) => format!("{id} is not in {cache}, and HF_HUB_OFFLINE is set"),
        (Some(file), 0) => {
            format!("{id} lacks {file} in {cache}, and HF_HUB_OFFLINE is set")
        }
        (_, n) => format!(
            "{id} is only partly in {cache}, {} of it, and HF_HUB_OFFLINE is set",
            ByteSize(n)
        ),
    }
}
