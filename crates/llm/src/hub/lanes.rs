//! A large file in several streams at once, written in order.
//!
//! ```text
//!   |=== written ===|~ lane 1 ~~~~~~|~ lane 2 ~~~~~~|~ lane 3 ~~~~~~|   not asked for yet   |
//!                    written as it   wait in memory until the lanes
//!                    arrives         before are whole
//! ```
//!
//! Each lane asks with `Range` for its bytes and repeats what fails by itself. The first lane's
//! bytes go to the file as they arrive; when it is whole, the next lane is the first, and one more
//! begins. So the file is always a beginning of the whole, and its hash needs no second reading.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::blob::{Arrived, Job};
use super::http::{self, Failure};
use super::{Hub, HubError};

/// Bytes that pass from a lane to the writer at once.
const PIECE_BYTES: u64 = 256 << 10;
/// Longest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A piece of a lane, or the error that ended it.
type Piece = Result<Vec<u8>, HubError>;

/// The data that all lanes of a file share.
struct Source {
    hub: Hub,
    url: String,
    size: u64,
    /// Bytes that have arrived in any lane.
    received: AtomicU64,
    /// Whether the server answered a range with the whole file.
    sends_no_ranges: AtomicBool,
}

impl Hub {
    /// Fetches the rest of a large file in several streams.
    ///
    /// Returns whether it did: a small rest, a file of unknown size, and a server that sends no
    /// ranges are left to one stream.
    pub(crate) fn fetch_in_lanes(
        &self,
        job: &Job<'_>,
        out: &mut File,
        arrived: &mut Arrived,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, HubError> {
        let (n_streams, lane_bytes) = (self.config.n_streams, self.config.lane_bytes.max(1));
        let Some(size) = job.announced.size else { return Ok(false) };
        let left = size.saturating_sub(arrived.n_bytes);
        if n_streams < 2 || left <= 2 * lane_bytes {
            return Ok(false);
        }
        let source = Arc::new(Source {
            hub: self.clone(),
            url: job.url.to_owned(),
            size,
            received: AtomicU64::new(arrived.n_bytes),
            sends_no_ranges: AtomicBool::new(false),
        });
        let mut next = arrived.n_bytes;
        let mut lanes = VecDeque::new();
        loop {
            while lanes.len() < n_streams && next < size {
                let end = (next + lane_bytes).min(size);
                lanes.push_back(source.start(next..end).map_err(HubError::io(job.blob))?);
                next = end;
            }
            let Some(lane) = lanes.front() else { return Ok(true) };
            match lane.recv_timeout(REPORT_EVERY) {
                Ok(Ok(bytes)) => arrived.append(&bytes, out).map_err(HubError::io(job.blob))?,
                Ok(Err(_)) if source.sends_no_ranges.load(Ordering::Relaxed) => return Ok(false),
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Timeout) => {}
                // The lane is whole.
                Err(RecvTimeoutError::Disconnected) => drop(lanes.pop_front()),
            }
            progress(source.received.load(Ordering::Relaxed));
        }
    }
}

impl Source {
    /// Starts a lane on a thread of its own, which ends when the lane is whole, has failed, or is
    /// no longer listened to.
    fn start(self: &Arc<Self>, range: Range<u64>) -> std::io::Result<Receiver<Piece>> {
        let (sender, receiver) = channel();
        let source = Arc::clone(self);
        std::thread::Builder::new()
            .name("download".to_owned())
            .spawn(move || source.run(range, &sender))?;
        Ok(receiver)
    }

    fn run(&self, range: Range<u64>, pieces: &Sender<Piece>) {
        let mut at = range.start;
        let outcome = http::with_retries(&self.hub.config, &self.url, |made_progress| {
            let before = at;
            let result = self.read(&mut at, range.end, pieces);
            *made_progress = at > before;
            result
        });
        if let Err(error) = outcome {
            // Nobody may be listening any more.
            let _ = pieces.send(Err(error));
        }
    }

    /// One attempt: asks for the bytes from `at` to `end` and passes on what comes.
    fn read(&self, at: &mut u64, end: u64, pieces: &Sender<Piece>) -> Result<(), Failure> {
        let has_token = self.hub.config.token.is_some();
        let request = self.hub.request(self.hub.follow.get(&self.url));
        let sent = request.header("range", format!("bytes={at}-{}", end - 1)).call();
        let mut response = http::check(&self.url, has_token, sent)?;
        if response.status().as_u16() != 206 {
            self.sends_no_ranges.store(true, Ordering::Relaxed);
            return Err(self.protocol("the server sends no parts of files".to_owned()));
        }
        let range = http::header(response.headers(), "content-range");
        let is_ours = |(start, total): (u64, Option<u64>)| {
            start == *at && total.is_none_or(|total| total == self.size)
        };
        if !range.and_then(http::content_range).is_some_and(is_ours) {
            let size = self.size;
            let why = format!("asked for bytes {at}- of {size}, the answer is {range:?}");
            return Err(self.protocol(why));
        }
        let mut body = response.body_mut().as_reader();
        while *at < end {
            let n_wanted = PIECE_BYTES.min(end - *at);
            let mut piece = Vec::with_capacity(n_wanted as usize);
            // The bytes before an error are kept.
            let outcome = body.by_ref().take(n_wanted).read_to_end(&mut piece);
            let n_bytes = piece.len() as u64;
            *at += n_bytes;
            self.received.fetch_add(n_bytes, Ordering::Relaxed);
            if pieces.send(Ok(piece)).is_err() {
                return Err(self.protocol("the download has ended".to_owned()));
            }
            outcome.map_err(http::body_failure)?;
            if n_bytes < n_wanted && *at < end {
                let why = format!("the stream ended at byte {at} of {end}");
                return Err(Failure::Transient { why, wait: None });
            }
        }
        Ok(())
    }

    fn protocol(&self, why: String) -> Failure {
        Failure::Fatal(HubError::Protocol { url: self.url.clone(), why })
    }
}
