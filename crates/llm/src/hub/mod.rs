//! Models from a Hugging Face hub, kept in the cache that other tools use too.
//!
//! ```text
//!   $HF_HUB_CACHE  or  $HF_HOME/hub  or  ~/.cache/huggingface/hub
//!     models--org--name/
//!       refs/main                     the commit that `main` pointed to
//!       blobs/<etag>                  file contents, named by the hub's entity tag
//!       blobs/<etag>.incomplete       a download that goes on where it stopped
//!       snapshots/<commit>/config.json -> ../../blobs/<etag>
//! ```
//!
//! One request asks the hub for the commit and the list of files. For each wanted file, one request
//! asks for its tag and size (`HEAD`), and one stream fetches it. Bytes that have arrived are kept:
//! a second attempt, in this process or another, asks with `Range` for the rest and checks that the
//! answer starts there. The sizes must agree, and files kept in large-file storage must have the
//! SHA-256 that their linked tag names; only then does a blob get its final name.
//!
//! Environment: `HF_ENDPOINT`, `HF_TOKEN` (or the token file in `HF_HOME`), `HF_HOME`,
//! `HF_HUB_CACHE`, `HF_HUB_OFFLINE`. Answers of the hub are hostile input: file names and tags
//! become paths only after a check.

mod blob;
mod cache;
mod fetch;
mod http;
mod id;
mod select;

use std::path::PathBuf;
use std::time::Duration;

use pelton_base::limits;
use pelton_tensor::read_limited_text;

pub use fetch::{Hub, HubProgress};
pub use id::HubId;

/// Where the hub is, where its cache is, and how patient to be.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Base address, without a slash at the end.
    pub endpoint: String,
    /// Bearer token, sent to the endpoint and never to a redirect's target.
    pub token: Option<String>,
    /// The folder that holds `models--org--name` folders.
    pub cache: PathBuf,
    /// Answer from the cache only.
    pub offline: bool,
    /// Attempts per request or file before giving up; an attempt that made progress starts the
    /// count again.
    pub n_attempts: u32,
    /// Wait before the second attempt; doubles up to 30 s.
    pub first_wait: Duration,
}

impl HubConfig {
    /// Reads the environment that other hub clients read.
    pub fn from_env() -> Self {
        Self::from_vars(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_vars(var: &dyn Fn(&str) -> Option<String>) -> Self {
        let home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let user_cache = var("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| var("HOME").map(|home| PathBuf::from(home).join(".cache")));
            user_cache.unwrap_or_else(std::env::temp_dir).join("huggingface")
        });
        let is_on = |name| {
            var(name).is_some_and(|v| {
                matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
            })
        };
        let token_file = || {
            let text = read_limited_text(&home.join("token"), limits::CONFIG_BYTES).ok()?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        };
        Self {
            endpoint: var("HF_ENDPOINT")
                .unwrap_or_else(|| "https://huggingface.co".to_owned())
                .trim_end_matches('/')
                .to_owned(),
            token: var("HF_TOKEN").map(|t| t.trim().to_owned()).or_else(token_file),
            cache: var("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| home.join("hub")),
            offline: is_on("HF_HUB_OFFLINE"),
            n_attempts: 5,
            first_wait: Duration::from_millis(500),
        }
    }
}

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
    #[error("{url}: {why} (after {n_attempts} attempts)")]
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
        /// `size` or `sha256`.
        what: &'static str,
        /// Its value in the file that arrived.
        got: String,
        /// Its value in the announcement.
        expected: String,
    },
    /// The model is not in the cache and the network may not be used.
    #[error("{id} is not complete in {} and HF_HUB_OFFLINE is set: {missing} is missing", cache.display())]
    Offline {
        /// The repository.
        id: String,
        /// The cache folder.
        cache: PathBuf,
        /// The first file that is missing.
        missing: String,
    },
    /// The repository holds no model that can be loaded, or several to choose from.
    #[error("{id}: {why}")]
    NoModel {
        /// The repository.
        id: String,
        /// The files that were expected and the files that exist.
        why: String,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_as_other_clients_read_it() {
        let vars = |pairs: &'static [(&str, &str)]| {
            HubConfig::from_vars(&|name| {
                pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
            })
        };
        let config = vars(&[("HF_HOME", "/h"), ("HF_ENDPOINT", "http://m/"), ("HF_TOKEN", "t")]);
        assert_eq!((config.cache, config.endpoint), (PathBuf::from("/h/hub"), "http://m".into()));
        assert_eq!((config.token.as_deref(), config.offline), (Some("t"), false));
        let config = vars(&[("HOME", "/u"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(config.cache, PathBuf::from("/u/.cache/huggingface/hub"));
        assert!(config.offline && config.token.is_none());
        assert_eq!(vars(&[("HF_HUB_CACHE", "/c")]).cache, PathBuf::from("/c"));
    }
}
