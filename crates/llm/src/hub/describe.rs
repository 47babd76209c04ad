//! Fetching the description of a model without its weights: `config.json`, or the headers of
//! `.gguf` files.
//!
//! ```text
//! a folder     config.json, into its snapshot of the cache, where a later download finds it
//! a .gguf      |== header ==|-- not asked for --|    into memory: half a file has no place in the
//!              0            n                 size    cache, which other programs share
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::Gguf;

use super::cache::{RepoCache, is_commit};
use super::fetch::{Hub, Snapshot};
use super::http::{self, Failure};
use super::select::{Wanted, select};
use super::{HubError, HubId};

/// The description of a folder.
const CONFIG: &str = "config.json";
/// Bytes of a `.gguf` file that are asked for first; each further request has twice as many.
const FIRST_BYTES: u64 = 2 << 20;

/// A model as the hub or the cache describes it.
#[derive(Clone, Debug)]
pub enum Description {
    /// `config.json` in the cache.
    Config(PathBuf),
    /// A `.gguf` file in the cache, whole; the first part of a split model.
    Whole(PathBuf),
    /// The beginnings of all files of a GGUF model, in order.
    Headers(Vec<GgufHead>),
}

/// The beginning of a `.gguf` file, its whole header and perhaps some weights.
#[derive(Clone, Debug)]
pub struct GgufHead {
    /// Name of the file, without folders.
    pub file: String,
    /// Size of the file, in bytes.
    pub n_bytes: u64,
    /// Its first bytes.
    pub start: Vec<u8>,
}

impl Hub {
    /// Fetches what describes a model, and none of its weights.
    ///
    /// Weights that cannot be loaded here do not matter: `config.json` is enough. Where the hub
    /// cannot be reached, the description is that of the cache and a warning is logged.
    ///
    /// # Errors
    ///
    /// [`HubError`] names the address or file.
    pub fn describe(&self, id: &HubId) -> Result<Description, HubError> {
        let cache = RepoCache::new(&self.config.cache, id);
        let in_cache = self.described_in_cache(id, &cache);
        if self.config.offline || (is_commit(&id.revision) && in_cache.is_ok()) {
            return in_cache;
        }
        let (commit, files) = match self.commit_and_files(id) {
            Ok(listing) => listing,
            Err(error @ HubError::Network { .. }) => {
                let Ok(described) = in_cache else { return Err(error) };
                tracing::warn!("{error}; using what is in the cache of {id}");
                return Ok(described);
            }
            Err(error) => return Err(error),
        };
        let snapshot = Snapshot { id, cache: &cache, commit: &commit };
        match chosen(id, &files)? {
            None => {
                self.fetch(&snapshot, &[CONFIG.to_owned()], &mut |_| {})?;
                cache.write_ref(&id.revision, &commit)?;
                Ok(Description::Config(cache.snapshot(&commit).join(CONFIG)))
            }
            Some(parts) => {
                snapshot.expect_listed(&parts, &files)?;
                let folder = cache.snapshot(&commit);
                if parts.iter().all(|part| folder.join(part).is_file()) {
                    return Ok(Description::Whole(folder.join(&parts[0])));
                }
                let heads = parts.iter().map(|part| self.head(&snapshot, part));
                heads.collect::<Result<_, _>>().map(Description::Headers)
            }
        }
    }

    /// The description in the cache alone.
    fn described_in_cache(&self, id: &HubId, cache: &RepoCache) -> Result<Description, HubError> {
        let config = || {
            let config = cache.snapshot(&cache.commit(&id.revision)?).join(CONFIG);
            (id.gguf.is_none() && config.is_file()).then_some(config)
        };
        match self.cached(id, cache) {
            Ok(path) if path.is_file() => Ok(Description::Whole(path)),
            Ok(folder) => Ok(Description::Config(folder.join(CONFIG))),
            Err(error) => config().map(Description::Config).ok_or(error),
        }
    }

    /// Fetches the header of a `.gguf` file.
    fn head(&self, snapshot: &Snapshot<'_>, file: &str) -> Result<GgufHead, HubError> {
        let url = self.address(snapshot, file)?;
        let protocol = |why: String| HubError::Protocol { url: url.clone(), why };
        let n_bytes = self.announced(&url)?.size;
        let n_bytes = n_bytes.ok_or_else(|| protocol("the hub announces no size".to_owned()))?;
        let most = n_bytes.min(limits::GGUF_HEADER_BYTES as u64);
        let (mut start, mut end) = (Vec::new(), FIRST_BYTES.min(most));
        loop {
            self.append_until(&url, end, &mut start)?;
            match Gguf::has_whole_header(Path::new(file), &start) {
                Ok(true) => break,
                Ok(false) if end < most => end = most.min(2 * end),
                Ok(false) => {
                    return Err(protocol(format!("the header does not end within {most} bytes")));
                }
                Err(error) => return Err(protocol(error.to_string())),
            }
        }
        let file = file.rsplit('/').next().unwrap_or(file).to_owned();
        Ok(GgufHead { file, n_bytes, start })
    }

    /// Fetches the bytes of a file that follow `start`, until it has `end` of them.
    fn append_until(&self, url: &str, end: u64, start: &mut Vec<u8>) -> Result<(), HubError> {
        http::with_retries(&self.config, url, |made_progress| {
            let at = start.len() as u64;
            if at >= end {
                return Ok(());
            }
            let request = self.request(self.follow.get(url));
            let sent = request.header("range", format!("bytes={at}-{}", end - 1)).call();
            let mut response = http::check(url, self.config.token.is_some(), sent)?;
            let range = http::header(response.headers(), "content-range").map(str::to_owned);
            let first = range.as_deref().and_then(http::content_range).map(|(first, _)| first);
            // A server without ranges sends the file from its first byte.
            let first = if response.status().as_u16() == 206 { first } else { Some(0) };
            if first != Some(at) {
                if first == Some(0) {
                    start.clear();
                } else {
                    let why = format!("asked for bytes {at}-, the answer is {range:?}");
                    let error = HubError::Protocol { url: url.to_owned(), why };
                    return Err(Failure::Fatal(error));
                }
            }
            let n_before = start.len();
            let rest = end - n_before as u64;
            let outcome = response.body_mut().as_reader().take(rest).read_to_end(start);
            *made_progress = start.len() > n_before;
            outcome.map_err(http::body_failure)?;
            if (start.len() as u64) < end {
                let why = format!("the stream ended at byte {} of {end}", start.len());
                return Err(Failure::Transient { why, wait: None });
            }
            Ok(())
        })
    }
}

/// The files of the GGUF model that an id stands for; `None` where `config.json` describes it.
fn chosen(id: &HubId, files: &[String]) -> Result<Option<Vec<String>>, HubError> {
    let has_config = id.gguf.is_none() && files.iter().any(|file| file == CONFIG);
    match select(id, files) {
        Ok(Wanted::Gguf(parts)) => Ok(Some(parts)),
        Ok(Wanted::Folder { .. }) => Ok(None),
        Err(HubError::NoModel { .. }) if has_config => Ok(None),
        Err(error) => Err(error),
    }
}
