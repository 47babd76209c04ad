//! Fetching: the commit, the tags, the bytes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pelton_base::limits;
use pelton_tensor::read_limited;
use ureq::Agent;

use super::blob::{Announced, Job, TagKind};
use super::cache::{RepoCache, is_commit};
use super::http::{self, Failure};
use super::id::{is_safe_etag, is_safe_path};
use super::select::{Wanted, select, shards};
use super::{HubConfig, HubError, HubId};

/// Largest answer that lists a repository's files, in bytes.
const LISTING_BYTES: u64 = 64 << 20;
/// Most redirects within the hub, which follow after a repository was renamed.
const REDIRECTS: usize = 5;

/// Silence of the hub after which a person is told what is being waited for.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct HubProgress<'a> {
    /// The file being fetched.
    pub file: &'a str,
    /// Bytes of the model that have arrived, over all files that are fetched.
    pub done_bytes: u64,
    /// Size of these files together, where the hub announces it.
    pub total_bytes: Option<u64>,
}

/// A client of one hub with one cache.
#[derive(Clone, Debug)]
pub struct Hub {
    pub(crate) config: HubConfig,
    /// Follows no redirects; for requests to the endpoint itself.
    direct: Agent,
    /// Follows redirects to the storage of the bytes.
    pub(crate) follow: Agent,
}

/// A snapshot that is being filled.
pub(super) struct Snapshot<'a> {
    pub(super) id: &'a HubId,
    pub(super) cache: &'a RepoCache,
    pub(super) commit: &'a str,
}

impl Snapshot<'_> {
    /// Refuses a model of several files that lacks one.
    pub(super) fn expect_listed(&self, parts: &[String], files: &[String]) -> Result<(), HubError> {
        let Some(missing) = parts.iter().find(|part| !files.contains(part)) else { return Ok(()) };
        let why = format!("{missing}, a part of the model, is not there");
        Err(HubError::NoModel { id: self.id.to_string(), why })
    }
}

/// A file that is not in its snapshot yet.
struct Missing<'a> {
    file: &'a str,
    url: String,
    announced: Announced,
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
        let (direct, follow) = (http::agent(&config, 0), http::agent(&config, 10));
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
        let (commit, files) = match self.commit_and_files(id) {
            Ok(listing) => listing,
            Err(error @ HubError::Network { .. }) => {
                let Ok(path) = self.cached(id, &cache) else { return Err(error) };
                tracing::warn!("{error}; using what is in the cache of {id}");
                return Ok(path);
            }
            Err(error) => return Err(error),
        };
        let snapshot = Snapshot { id, cache: &cache, commit: &commit };
        let folder = cache.snapshot(&commit);
        let path = match select(id, &files)? {
            Wanted::Gguf(parts) => {
                snapshot.expect_listed(&parts, &files)?;
                self.fetch(&snapshot, &parts, progress)?;
                folder.join(&parts[0])
            }
            Wanted::Folder { mut side_files, weights } => {
                if weights.ends_with(".json") {
                    self.fetch(&snapshot, std::slice::from_ref(&weights), &mut |_| {})?;
                    side_files.extend(indexed_shards(id, &folder.join(&weights))?);
                } else {
                    side_files.push(weights);
                }
                self.fetch(&snapshot, &side_files, progress)?;
                folder
            }
        };
        cache.write_ref(&id.revision, &commit)?;
        Ok(path)
    }

    /// The answer from the cache alone.
    pub(super) fn cached(&self, id: &HubId, cache: &RepoCache) -> Result<PathBuf, HubError> {
        let offline = |missing: Option<&str>| HubError::Offline {
            id: id.to_string(),
            cache: self.config.cache.clone(),
            missing: missing.map(str::to_owned),
            partial_bytes: cache.partial_bytes(),
        };
        let commit = cache.commit(&id.revision).ok_or_else(|| offline(None))?;
        let folder = cache.snapshot(&commit);
        let wanted = select(id, &cache.files(&commit)).map_err(|error| match error {
            HubError::NoModel { id, why } => {
                HubError::NoModel { id, why: format!("{why} (in the cache)") }
            }
            error => error,
        })?;
        match wanted {
            Wanted::Gguf(parts) => match parts.iter().find(|part| !folder.join(part).exists()) {
                Some(missing) => Err(offline(Some(missing))),
                None => Ok(folder.join(&parts[0])),
            },
            Wanted::Folder { weights, .. } => {
                if weights.ends_with(".json") {
                    let shards = indexed_shards(id, &folder.join(&weights))?;
                    if let Some(missing) = shards.iter().find(|file| !folder.join(file).exists()) {
                        return Err(offline(Some(missing)));
                    }
                }
                Ok(folder)
            }
        }
    }

    pub(crate) fn request<T>(
        &self,
        mut request: ureq::RequestBuilder<T>,
    ) -> ureq::RequestBuilder<T> {
        // Sizes and tags must be those of the stored file and not of a compressed copy.
        request = request.header("accept-encoding", "identity");
        match &self.config.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// The commit that an id stands for and the names of its files; says what is being waited for
    /// where it takes long.
    pub(super) fn commit_and_files(&self, id: &HubId) -> Result<(String, Vec<String>), HubError> {
        let (done, waiting) = channel::<()>();
        let endpoint = self.config.endpoint.clone();
        // Without a thread there is no notice, and nothing else is lost.
        let _ = std::thread::Builder::new().name("notice".to_owned()).spawn(move || {
            if waiting.recv_timeout(NOTICE_AFTER) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(
                    "no answer from {endpoint} yet; HF_HUB_OFFLINE=1 uses what is on this machine"
                );
            }
        });
        let listing = self.listing(id);
        drop(done);
        let Listing { sha, siblings } = listing?;
        Ok((sha, siblings.into_iter().map(|sibling| sibling.rfilename).collect()))
    }

    fn listing(&self, id: &HubId) -> Result<Listing, HubError> {
        let HubConfig { endpoint, token, .. } = &self.config;
        let revision = http::encode_path(&id.revision).replace('/', "%2F");
        let url = format!("{endpoint}/api/models/{}/revision/{revision}", id.repo);
        let listing: Listing =
            http::with_retries(&self.config, &url, |_| {
                let sent = self.request(self.follow.get(&url)).call();
                if let Err(error) = &sent
                    && http::is_unreachable(error)
                {
                    // The first request of all: there is no network, and trying again is waiting.
                    return Err(http::unreachable(&url, error));
                }
                let mut response = http::check(&url, token.is_some(), sent)?;
                let text =
                    response.body_mut().with_config().limit(LISTING_BYTES).read_to_vec().map_err(
                        |error| Failure::Transient { why: error.to_string(), wait: None },
                    )?;
                if http::is_web_page(response.headers()) || text.trim_ascii().starts_with(b"<") {
                    let why = http::WEB_PAGE.to_owned();
                    return Err(Failure::Fatal(HubError::Protocol { url: url.clone(), why }));
                }
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
    pub(super) fn announced(&self, url: &str) -> Result<Announced, HubError> {
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
            if linked.is_none() && http::is_web_page(headers) && !url.ends_with(".html") {
                return Err(protocol(http::WEB_PAGE.to_owned()));
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
            let kind = TagKind::of(&etag, linked.is_some());
            return Ok(Announced { etag, size, kind });
        }
        Err(protocol(format!("more than {REDIRECTS} redirects")))
    }

    /// Fetches those of the files that are not in the snapshot yet.
    pub(super) fn fetch(
        &self,
        snapshot: &Snapshot<'_>,
        files: &[String],
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<(), HubError> {
        let mut missing = Vec::new();
        for file in files {
            missing.extend(self.missing(snapshot, file)?);
        }
        self.check_space(snapshot, &missing)?;
        let total_bytes = missing.iter().map(|file| file.announced.size).sum::<Option<u64>>();
        let mut n_done = 0;
        for Missing { file, url, announced } in &missing {
            let Snapshot { id, cache, commit } = *snapshot;
            let (blob, lock) = (cache.blob(&announced.etag), cache.lock(&announced.etag));
            if !blob.is_file() {
                let job = Job { id, file, url, announced, blob: &blob, lock: &lock };
                self.fetch_blob(&job, &mut |n_bytes| {
                    let done_bytes = n_done + n_bytes;
                    progress(HubProgress { file, done_bytes, total_bytes });
                })?;
            }
            cache.link(commit, file, &announced.etag)?;
            n_done += announced.size.unwrap_or(0);
        }
        Ok(())
    }

    /// Refuses files that the disk has no space for, as far as the hub announces their sizes.
    ///
    /// Another program may take the space later; writing then fails.
    fn check_space(
        &self,
        snapshot: &Snapshot<'_>,
        missing: &[Missing<'_>],
    ) -> Result<(), HubError> {
        let to_come = |file: &Missing<'_>| {
            let size = file.announced.size?;
            Some(size.saturating_sub(snapshot.cache.arrived_bytes(&file.announced.etag)))
        };
        let needed_bytes = missing.iter().filter_map(to_come).fold(0, u64::saturating_add);
        let cache = &self.config.cache;
        match free_bytes(cache) {
            Some(free_bytes) if needed_bytes > free_bytes => Err(HubError::NoSpace {
                id: snapshot.id.to_string(),
                cache: cache.clone(),
                needed_bytes,
                free_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// The hub's facts about a file; `None` where the snapshot has it.
    fn missing<'a>(
        &self,
        snapshot: &Snapshot<'_>,
        file: &'a str,
    ) -> Result<Option<Missing<'a>>, HubError> {
        let url = self.address(snapshot, file)?;
        if snapshot.cache.snapshot(snapshot.commit).join(file).is_file() {
            return Ok(None);
        }
        let announced = self.announced(&url)?;
        Ok(Some(Missing { file, url, announced }))
    }

    /// The address of a file.
    pub(super) fn address(&self, snapshot: &Snapshot<'_>, file: &str) -> Result<String, HubError> {
        let Snapshot { id, commit, .. } = *snapshot;
        if !is_safe_path(file) {
            let why = format!("the hub lists a file named {file:?}, which is no file name");
            return Err(HubError::NoModel { id: id.to_string(), why });
        }
        let (endpoint, path) = (&self.config.endpoint, http::encode_path(file));
        Ok(format!("{endpoint}/{}/resolve/{commit}/{path}", id.repo))
    }
}

/// Bytes that the disk of a folder, or of its nearest parent, has for us; `None` where the system does
/// not say.
fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(there).ok()?;
    // Some file systems in memory or of other machines know no size.
    (disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The shards that an index in the cache names.
fn indexed_shards(id: &HubId, index: &Path) -> Result<Vec<String>, HubError> {
    let bytes = read_limited(index, limits::SAFETENSORS_INDEX_BYTES);
    let bytes = bytes.map_err(HubError::io(index))?;
    shards(&bytes).map_err(|why| HubError::NoModel { id: id.to_string(), why })
}
