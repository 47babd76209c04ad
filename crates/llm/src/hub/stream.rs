//! One blob from the hub into the cache: under its lock, from where an earlier attempt stopped, and
//! verified before it gets its name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};

use super::blob::{Arrived, Job};
use super::cache::{create_parent, partial};
use super::http::{self, Failure};
use super::{Hub, HubError};

impl Hub {
    /// Downloads one blob into the cache; `progress` gets the bytes of it that have arrived.
    pub(crate) fn fetch_blob(
        &self,
        job: &Job<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        create_parent(job.blob)?;
        let _lock = lock(job)?;
        // Another process may have downloaded it while this one waited.
        if job.blob.is_file() {
            return Ok(());
        }
        let partial = partial(job.blob);
        let io = || HubError::io(&partial);
        let mut out = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&partial)
            .map_err(io())?;
        let mut arrived = Arrived::read(&mut out).map_err(io())?;
        if job.announced.size.is_some_and(|size| arrived.n_bytes > size) {
            arrived = Arrived::restart(&mut out).map_err(io())?;
        }
        let is_whole = job.announced.size == Some(arrived.n_bytes) && arrived.n_bytes > 0;
        if !is_whole && !self.fetch_in_lanes(job, &mut out, &mut arrived, progress)? {
            self.fetch_in_one_stream(job, &mut out, &mut arrived, progress)?;
        }
        if let Err(error) = job.verify(arrived, &mut out) {
            // A wrong partial file must not be continued by the next attempt.
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
        out.sync_all().map_err(io())?;
        std::fs::rename(&partial, job.blob).map_err(HubError::io(job.blob))
    }

    fn fetch_in_one_stream(
        &self,
        job: &Job<'_>,
        out: &mut File,
        arrived: &mut Arrived,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let mut furthest = arrived.n_bytes;
        http::with_retries(&self.config, job.url, |made_progress| {
            let result = self.stream(job, out, arrived, progress);
            // Beginning anew is none: a server that stops at the same byte would be asked for ever.
            *made_progress = arrived.n_bytes > furthest;
            furthest = furthest.max(arrived.n_bytes);
            result
        })
    }

    /// One attempt: asks for the rest of the file and appends the bytes that come.
    fn stream(
        &self,
        job: &Job<'_>,
        out: &mut File,
        arrived: &mut Arrived,
        progress: &mut dyn FnMut(u64),
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
        if http::is_web_page(response.headers()) && !job.file.ends_with(".html") {
            return Err(job.protocol(http::WEB_PAGE.to_owned()));
        }
        match response.status().as_u16() {
            200 => {
                job.check_length(response.headers())?;
                *arrived = Arrived::restart(out).map_err(io)?;
            }
            206 => job.check_range(response.headers(), arrived)?,
            status => return Err(job.protocol(format!("unexpected status {status}"))),
        }
        job.append(&mut response.body_mut().as_reader(), out, arrived, progress)
    }
}

/// Takes the lock of a blob, which is held until the file is dropped.
fn lock(job: &Job<'_>) -> Result<File, HubError> {
    create_parent(job.lock)?;
    let io = || HubError::io(job.lock);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(job.lock);
    let file = file.map_err(io())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let file_name = job.file;
            tracing::warn!("another process downloads {file_name} already; waiting for it");
            file.lock().map_err(io())?;
        }
        Err(TryLockError::Error(error)) => return Err(io()(error)),
    }
    Ok(file)
}

impl Job<'_> {
    fn protocol(&self, why: String) -> Failure {
        Failure::Fatal(HubError::Protocol { url: self.url.to_owned(), why })
    }

    /// Checks that a whole answer has the announced length.
    fn check_length(&self, headers: &ureq::http::HeaderMap) -> Result<(), Failure> {
        let length: Option<u64> =
            http::header(headers, "content-length").and_then(|text| text.parse().ok());
        match (length, self.announced.size) {
            (Some(got), Some(size)) if got != size => {
                let (got, expected) = (got.to_string(), size.to_string());
                Err(Failure::Fatal(self.corrupt("size", got, expected)))
            }
            _ => Ok(()),
        }
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
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let mut chunk = vec![0; 256 << 10];
        loop {
            let n = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(http::body_failure(error)),
            };
            arrived
                .append(&chunk[..n], out)
                .map_err(|error| Failure::Fatal(HubError::io(self.blob)(error)))?;
            if self.announced.size.is_some_and(|size| arrived.n_bytes > size) {
                // `verify` reports both sizes, so reading on is useless.
                return Ok(());
            }
            progress(arrived.n_bytes);
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
