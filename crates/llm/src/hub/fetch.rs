//! Fetching: the commit, the tags, the bytes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;

use pelton_base::limits;
use pelton_tensor::read_limited;
use sha2::Digest;
use ureq::Agent;

use super::blob::{Announced, Arrived, Job};
use super::cache::{RepoCache, create_parent, is_commit};
use super::http::{self, Failure};
use super::id::{is_safe_etag, is_safe_path};
use super::select::{Wanted, select, shards};
use super::{HubConfig, HubError, HubId};

/// Largest answer that lists a repository's files, in bytes.
const LISTING_BYTES: u64 = 64 << 20;
/// Most redirects within the hub, which follow after a repository was renamed.
const REDIRECTS: usize = 5;

/// Progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct HubProgress<'a> {
    /// The file being fetched.
    pub file: &'a str,
    /// Bytes that have arrived.
    pub done_bytes: u64,
    /// Its size in bytes, where the hub announces it.
    pub total_bytes: Option<u64>,
}

/// A client of one hub with one cache.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    /// Follows no redirects; for requests to the endpoint itself.
    direct: Agent,
    /// Follows redirects to the storage of the bytes.
    follow: Agent,
}

#[derive(serde::Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(serde::Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Hub {
    /// A client; sends nothing yet.
    pub fn new(config: HubConfig) -> Self {
        let (direct, follow) =
            (http::agent(&config.endpoint, 0), http::agent(&config.endpoint, 10));
        Self { config, direct, follow }
    }

    /// Makes sure that a model is in the cache, and returns its path.
    ///
    /// The path is a snapshot folder, or a `.gguf` file inside one: the first part of a split
    /// model, whose further parts lie beside it. Where the hub cannot be reached and the cache
    /// holds the model, the cached model is used and a warning is logged.
    ///
    /// # Errors
    ///
    /// [`HubError`] names the address or file.
    pub fn download(
        &self,
        id: &HubId,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<PathBuf, HubError> {
        let cache = RepoCache::new(&self.config.cache, id);
        if self.config.offline || (is_commit(&id.revision) && self.cached(id, &cache).is_ok()) {
            return self.cached(id, &cache);
        }
        let listing = match self.listing(id) {
            Ok(listing) => listing,
            Err(error @ HubError::Network { .. }) => {
                let path = self.cached(id, &cache).map_err(|_| error)?;
                tracing::warn!(%id, path = %path.display(), "hub not reached, using the cache");
                return Ok(path);
            }
            Err(error) => return Err(error),
        };
        let files: Vec<String> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
        let mut get = |file: &str| self.file(id, &cache, &listing.sha, file, progress);
        let path = match select(id, &files)? {
            Wanted::Gguf(parts) => {
                if let Some(missing) = parts.iter().find(|part| !files.contains(part)) {
                    let why = format!("{missing}, a part of the model, is not there");
                    return Err(HubError::NoModel { id: id.to_string(), why });
                }
                let paths = parts.iter().map(|part| get(part)).collect::<Result<Vec<_>, _>>()?;
                paths.into_iter().next().expect("invariant: a model has a file")
            }
            Wanted::Folder { side_files, weights } => {
                for file in &side_files {
                    get(file)?;
                }
                let path = get(&weights)?;
                if weights.ends_with(".json") {
                    let index = read_limited(&path, limits::SAFETENSORS_INDEX_BYTES);
                    let index = index.map_err(HubError::io(&path))?;
                    let shards = shards(&index)
                        .map_err(|why| HubError::NoModel { id: id.to_string(), why })?;
                    for shard in shards {
                        get(&shard)?;
                    }
                }
                cache.snapshot(&listing.sha)
            }
        };
        cache.write_ref(&id.revision, &listing.sha)?;
        Ok(path)
    }

    /// The answer from the cache alone.
    fn cached(&self, id: &HubId, cache: &RepoCache) -> Result<PathBuf, HubError> {
        let offline = |missing: &str| HubError::Offline {
            id: id.to_string(),
            cache: self.config.cache.clone(),
            missing: missing.to_owned(),
        };
        let commit = cache.commit(&id.revision).ok_or_else(|| offline("the snapshot"))?;
        let folder = cache.snapshot(&commit);
        match select(id, &cache.files(&commit))? {
            Wanted::Gguf(parts) => match parts.iter().find(|part| !folder.join(part).exists()) {
                Some(missing) => Err(offline(missing)),
                None => Ok(folder.join(&parts[0])),
            },
            Wanted::Folder { weights, .. } => {
                if weights.ends_with(".json") {
                    let path = folder.join(&weights);
                    let index = read_limited(&path, limits::SAFETENSORS_INDEX_BYTES);
                    let index = index.map_err(HubError::io(&path))?;
                    let shards = shards(&index)
                        .map_err(|why| HubError::NoModel { id: id.to_string(), why })?;
                    if let Some(missing) = shards.iter().find(|file| !folder.join(file).exists()) {
                        return Err(offline(missing));
                    }
                }
                Ok(folder)
            }
        }
    }

    fn request<T>(&self, mut request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        // Sizes and tags must be those of the stored file and not of a compressed copy.
        request = request.header("accept-encoding", "identity");
        match &self.config.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn listing(&self, id: &HubId) -> Result<Listing, HubError> {
        let HubConfig { endpoint, token, .. } = &self.config;
        let revision = http::encode_path(&id.revision).replace('/', "%2F");
        let url = format!("{endpoint}/api/models/{}/revision/{revision}", id.repo);
        let listing: Listing =
            http::with_retries(&self.config, &url, |_| {
                let sent = self.request(self.follow.get(&url)).call();
                let mut response = http::check(&url, token.is_some(), sent)?;
                let text =
                    response.body_mut().with_config().limit(LISTING_BYTES).read_to_vec().map_err(
                        |error| Failure::Transient { why: error.to_string(), wait: None },
                    )?;
                serde_json::from_slice(&text).map_err(|error| {
                    Failure::Fatal(HubError::Protocol { url: url.clone(), why: error.to_string() })
                })
            })?;
        if !is_commit(&listing.sha) {
            let why = format!("`sha` is {:?}, expected a commit", listing.sha);
            return Err(HubError::Protocol { url, why });
        }
        Ok(listing)
    }

    /// Asks the hub for the tag and size of a file.
    fn announced(&self, url: &str) -> Result<Announced, HubError> {
        let protocol = |why: String| HubError::Protocol { url: url.to_owned(), why };
        let mut at = url.to_owned();
        for _ in 0..=REDIRECTS {
            let response = http::with_retries(&self.config, &at, |_| {
                let sent = self.request(self.direct.head(&at)).call();
                http::check(&at, self.config.token.is_some(), sent)
            })?;
            let (status, headers) = (response.status().as_u16(), response.headers());
            let linked = http::header(headers, "x-linked-etag");
            let location = http::header(headers, "location");
            // A relative redirect stays on the hub; an absolute redirect leads to the bytes.
            if let Some(path) = location.filter(|l| l.starts_with('/') && !l.starts_with("//"))
                && (300..400).contains(&status)
            {
                at = format!("{}{path}", self.config.endpoint);
                continue;
            }
            let etag = linked
                .or_else(|| http::header(headers, "etag"))
                .map(http::plain_etag)
                .ok_or_else(|| protocol("the answer carries no etag".to_owned()))?
                .to_owned();
            if !is_safe_etag(&etag) {
                return Err(protocol(format!("the etag {etag:?} is no file name")));
            }
            let size = http::header(headers, "x-linked-size")
                .or_else(|| http::header(headers, "content-length").filter(|_| status < 300))
                .and_then(|text| text.parse().ok());
            let is_sha256 =
                linked.is_some() && etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
            return Ok(Announced { etag, size, is_sha256 });
        }
        Err(protocol(format!("more than {REDIRECTS} redirects")))
    }

    fn file(
        &self,
        id: &HubId,
        cache: &RepoCache,
        commit: &str,
        file: &str,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<PathBuf, HubError> {
        if !is_safe_path(file) {
            let why = format!("the hub lists a file named {file:?}, which is no file name");
            return Err(HubError::NoModel { id: id.to_string(), why });
        }
        let pointer = cache.snapshot(commit).join(file);
        if pointer.is_file() {
            return Ok(pointer);
        }
        let url = format!(
            "{}/{}/resolve/{commit}/{}",
            self.config.endpoint,
            id.repo,
            http::encode_path(file)
        );
        let announced = self.announced(&url)?;
        let blob = cache.blob(&announced.etag);
        if !blob.is_file() {
            let job = Job { id, file, url: &url, announced: &announced, blob: &blob };
            self.fetch_blob(&job, progress)?;
        }
        cache.link(commit, file, &announced.etag)
    }

    /// Downloads one blob into the cache, from where an earlier attempt stopped.
    fn fetch_blob(
        &self,
        job: &Job<'_>,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<(), HubError> {
        create_parent(job.blob)?;
        let partial = PathBuf::from(format!("{}.incomplete", job.blob.display()));
        let io = || HubError::io(&partial);
        let mut out = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&partial)
            .map_err(io())?;
        // Another process may be downloading the same blob; its result is used here too.
        out.lock().map_err(io())?;
        if job.blob.is_file() {
            return Ok(());
        }
        let mut arrived = Arrived::read(&mut out).map_err(io())?;
        if job.announced.size.is_some_and(|size| arrived.n_bytes > size) {
            arrived = Arrived::restart(&mut out).map_err(io())?;
        }
        let is_whole = job.announced.size == Some(arrived.n_bytes) && arrived.n_bytes > 0;
        if !is_whole {
            http::with_retries(&self.config, job.url, |made_progress| {
                let n_before = arrived.n_bytes;
                let result = self.stream(job, &mut out, &mut arrived, progress);
                *made_progress = arrived.n_bytes > n_before;
                result
            })?;
        }
        if let Err(error) = job.verify(arrived) {
            // A wrong partial file must not be continued by the next attempt.
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
        out.sync_all().map_err(io())?;
        std::fs::rename(&partial, job.blob).map_err(HubError::io(job.blob))
    }

    /// One attempt: asks for the rest of the file and appends the bytes that come.
    fn stream(
        &self,
        job: &Job<'_>,
        out: &mut File,
        arrived: &mut Arrived,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<(), Failure> {
        let mut request = self.request(self.follow.get(job.url));
        if arrived.n_bytes > 0 {
            request = request.header("range", format!("bytes={}-", arrived.n_bytes));
        }
        let io = |error| Failure::Fatal(HubError::io(job.blob)(error));
        let sent = request.call();
        if let Ok(response) = &sent
            && response.status() == 416
            && arrived.n_bytes > 0
        {
            *arrived = Arrived::restart(out).map_err(io)?;
            let why = "the server does not send the rest of the file".to_owned();
            return Err(Failure::Transient { why, wait: None });
        }
        let mut response = http::check(job.url, self.config.token.is_some(), sent)?;
        match response.status().as_u16() {
            200 => *arrived = Arrived::restart(out).map_err(io)?,
            206 => job.check_range(response.headers(), arrived)?,
            status => return Err(job.protocol(format!("unexpected status {status}"))),
        }
        job.append(&mut response.body_mut().as_reader(), out, arrived, progress)
    }
}

impl Job<'_> {
    fn protocol(&self, why: String) -> Failure {
        Failure::Fatal(HubError::Protocol { url: self.url.to_owned(), why })
    }

    /// Checks that a partial answer goes on where the file ends, and that it is of the same file.
    fn check_range(
        &self,
        headers: &ureq::http::HeaderMap,
        arrived: &Arrived,
    ) -> Result<(), Failure> {
        let range = http::header(headers, "content-range");
        let (start, total) = range
            .and_then(http::content_range)
            .ok_or_else(|| self.protocol(format!("status 206 with Content-Range {range:?}")))?;
        let is_our_size = match (total, self.announced.size) {
            (Some(total), Some(size)) => total == size,
            _ => true,
        };
        if start == arrived.n_bytes && is_our_size {
            return Ok(());
        }
        Err(self.protocol(format!(
            "asked for bytes {}- of {:?}, the answer is {range:?}",
            arrived.n_bytes, self.announced.size
        )))
    }

    /// Appends a body to the file, at most the announced size and a chunk.
    fn append(
        &self,
        body: &mut dyn Read,
        out: &mut File,
        arrived: &mut Arrived,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<(), Failure> {
        let mut chunk = vec![0; 256 << 10];
        loop {
            let n = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::Transient { why: error.to_string(), wait: None });
                }
            };
            out.write_all(&chunk[..n])
                .map_err(|error| Failure::Fatal(HubError::io(self.blob)(error)))?;
            arrived.hash.update(&chunk[..n]);
            arrived.n_bytes += n as u64;
            if self.announced.size.is_some_and(|size| arrived.n_bytes > size) {
                // `verify` reports both sizes, so reading on is useless.
                return Ok(());
            }
            progress(HubProgress {
                file: self.file,
                done_bytes: arrived.n_bytes,
                total_bytes: self.announced.size,
            });
        }
        match self.announced.size {
            Some(size) if arrived.n_bytes < size => Err(Failure::Transient {
                why: format!("the stream ended at {} of {size} bytes", arrived.n_bytes),
                wait: None,
            }),
            _ => Ok(()),
        }
    }
}
