//! Models from a Hugging Face hub, kept in the cache that other tools use too.
//!
//! ```text
//!   $HF_HUB_CACHE  or  $HF_HOME/hub  or  ~/.cache/huggingface/hub
//!     models--org--name/
//!       refs/main                     the commit that `main` pointed to
//!       blobs/<etag>                  file contents, named by the hub's entity tag
//!       blobs/<etag>.incomplete       a download that goes on where it stopped
//!       snapshots/<commit>/config.json -> ../../blobs/<etag>
//!     .locks/models--org--name/<etag>.lock
//! ```
//!
//! One request asks the hub for the commit and the list of files. For each wanted file, one request
//! asks for its tag and size (`HEAD`); then the files are fetched one after the other, a large one
//! in several streams at once. Bytes are written in order, so a partial file is always a beginning
//! of the whole: a second attempt, in this process, another one or another program, asks with
//! `Range` for the rest and checks that the answer starts there. The sizes must agree, and files
//! kept in large-file storage must have the SHA-256 that their linked tag names; only then does a
//! blob get its final name. A lock per blob, the one that Python's client takes too, makes a second
//! download of a file wait for the first.
//!
//! Environment: `HF_ENDPOINT`, `HF_TOKEN` (or the token file in `HF_HOME`), `HF_HOME`,
//! `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`. Answers of the hub are hostile
//! input: file names and tags become paths only after a check.

mod blob;
mod cache;
mod describe;
mod error;
mod fetch;
mod http;
mod id;
mod lanes;
mod select;
mod stream;

use std::path::PathBuf;
use std::time::Duration;

use pelton_base::limits;
use pelton_tensor::read_limited_text;

pub(crate) use cache::{RepoCache, repositories};
pub use describe::{Description, GgufHead};
pub use error::HubError;
pub use fetch::{Hub, HubProgress};
pub use id::HubId;
pub(crate) use id::is_safe_path;
pub(crate) use select::{
    format_of, gguf_models, has_all_shards, is_gguf_model, named_gguf, shortest_wish,
};

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
    /// Longest silence of the hub; then an attempt has failed.
    pub patience: Duration,
    /// Streams that fetch a large file at once; one fetches it from beginning to end.
    pub n_streams: usize,
    /// Bytes that one stream fetches at a time. As many times `n_streams` may wait in memory.
    pub lane_bytes: u64,
}

/// Streams that fetch a large file at once, unless asked otherwise.
const STREAMS: usize = 4;
/// Bytes that one stream fetches at a time.
const LANE_BYTES: u64 = 16 << 20;
/// Longest silence of the hub, in seconds, unless the environment says otherwise.
const PATIENCE_SECONDS: u64 = 30;
/// The variable with another time.
const PATIENCE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";

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
        let patience = var(PATIENCE).and_then(|text| {
            let seconds = text.trim().parse().ok().filter(|n| (1..=86_400).contains(n));
            if seconds.is_none() {
                tracing::warn!(
                    "{PATIENCE}={text}: expected seconds from 1 to 86400; {PATIENCE_SECONDS} are used"
                );
            }
            seconds
        });
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
            patience: Duration::from_secs(patience.unwrap_or(PATIENCE_SECONDS)),
            n_streams: STREAMS,
            lane_bytes: LANE_BYTES,
        }
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
        assert_eq!(vars(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).patience.as_secs(), 7);
        assert_eq!(vars(&[("HF_HUB_DOWNLOAD_TIMEOUT", "0")]).patience.as_secs(), PATIENCE_SECONDS);
    }
}
