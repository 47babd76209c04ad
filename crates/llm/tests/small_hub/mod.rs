//! A small hub of our own on the loopback interface, which can misbehave.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pelton_llm::hub::{Hub, HubConfig};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of every model.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of the small hub, and how it misbehaves.
#[derive(Clone, Default)]
pub struct State {
    /// The files of `org/name`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Extra names in the listing.
    pub extra_names: Vec<String>,
    /// The bodies of the next answers are cut after so many bytes.
    pub cuts: Vec<usize>,
    /// The next `GET`s of files answer with this status.
    pub statuses: Vec<u16>,
    /// Whether `Range` is honoured.
    pub ranges: bool,
    /// The start that a range answer claims, when it lies.
    pub false_start: Option<u64>,
    /// The size that is announced of files in large-file storage, when it lies.
    pub false_size: Option<usize>,
    /// Bytes that really are sent instead of a file.
    pub swapped: Option<Vec<u8>>,
    /// Replaces every tag.
    pub false_etag: Option<String>,
    /// Everything is a web page, as behind a login page.
    pub is_web_page: bool,
    /// So many bytes of large files are sent, and then nothing more.
    pub stall_after: Option<usize>,
    /// Nothing at all is answered.
    pub is_silent: bool,
    /// Pause before the body of a large file.
    pub pause: Duration,
    /// `METHOD path range authorization`, one per request.
    pub log: Vec<String>,
}

/// The hub and what it holds.
pub struct SmallHub {
    /// Changes take effect with the next request.
    pub state: Arc<Mutex<State>>,
    /// Its address.
    pub endpoint: String,
}

impl SmallHub {
    /// Serves `state` on a free port.
    pub fn start(state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One request per connection keeps this server small.
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { state, endpoint }
    }

    /// The requests since the last look.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("not poisoned").log)
    }

    /// Changes what it holds or how it misbehaves.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("not poisoned"));
    }

    /// A client with this cache.
    pub fn client(&self, cache: &Path) -> Hub {
        Hub::new(self.config(cache))
    }

    /// The settings of such a client.
    pub fn config(&self, cache: &Path) -> HubConfig {
        HubConfig {
            endpoint: self.endpoint.clone(),
            token: Some("secret".to_owned()),
            cache: cache.to_owned(),
            offline: false,
            n_attempts: 3,
            first_wait: Duration::ZERO,
            patience: Duration::from_secs(60),
            n_streams: 4,
            lane_bytes: 16 << 20,
        }
    }
}

/// The SHA-256 of some bytes, in hexadecimal digits.
pub fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
}

/// The name of some bytes in git, in hexadecimal digits.
fn git_blob(data: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", data.len()));
    hash.update(data);
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// `bytes=5-` and `bytes=5-9` as the part of `size` bytes.
fn range_of(text: &str, size: usize) -> std::ops::Range<usize> {
    let (start, last) = text.trim_start_matches("bytes=").split_once('-').expect("a range");
    let end = if last.is_empty() { size } else { last.parse::<usize>().expect("a number") + 1 };
    start.parse().expect("a number")..end
}

/// An answer before it is sent.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// Whether it is a file in large-file storage.
    is_large: bool,
}

/// The answer to `path`; the state counts what it answered.
fn compose(state: &mut State, method: &str, path: &str, range: Option<&str>) -> Answer {
    let mut answer =
        Answer { status: 200, headers: String::new(), body: Vec::new(), is_large: false };
    if state.is_web_page {
        answer.headers.push_str("Content-Type: text/html; charset=utf-8\r\n");
        answer.body = b"<html>Please log in</html>".to_vec();
        return answer;
    }
    if let Some(rest) = path.strip_prefix("/api/models/org/name/revision/") {
        if rest == "main" {
            let names = state.files.keys().chain(&state.extra_names);
            let siblings: Vec<_> =
                names.map(|name| serde_json::json!({ "rfilename": name })).collect();
            let listing = serde_json::json!({ "sha": COMMIT, "siblings": siblings });
            answer.body = listing.to_string().into_bytes();
        } else {
            answer.status = 404;
        }
        return answer;
    }
    let name = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/"));
    let Some((name, data)) = name.and_then(|name| Some((name, state.files.get(name)?.clone())))
    else {
        answer.status = 404;
        return answer;
    };
    answer.is_large = !name.ends_with(".json");
    let true_etag = if answer.is_large { sha256(&data) } else { git_blob(&data) };
    let etag = state.false_etag.clone().unwrap_or(true_etag);
    if answer.is_large {
        let size = state.false_size.unwrap_or(data.len());
        answer.headers = format!("X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {size}\r\n");
    } else {
        answer.headers = format!("ETag: \"{etag}\"\r\n");
    }
    answer.body = data;
    if method == "GET" {
        if let Some(swapped) = &state.swapped {
            answer.body = swapped.clone();
        }
        if !state.statuses.is_empty() {
            answer.status = state.statuses.remove(0);
            answer.body.clear();
        } else if let Some(range) = range.filter(|_| state.ranges) {
            let size = answer.body.len();
            let range = range_of(range, size);
            if range.start >= size {
                answer.status = 416;
                answer.body.clear();
                return answer;
            }
            let end = range.end.min(size);
            let claimed = state.false_start.unwrap_or(range.start as u64);
            answer.status = 206;
            let last = end - 1;
            answer.headers.push_str(&format!("Content-Range: bytes {claimed}-{last}/{size}\r\n"));
            answer.body = answer.body[range.start..end].to_vec();
        }
    }
    answer
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut range, mut token) = (None, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => token = value.to_owned(),
            _ => {}
        }
    }
    let mut words = first.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (mut answer, stall_after, is_silent, pause) = {
        let mut state = state.lock().expect("not poisoned");
        state.log.push(format!("{method} {path} {} {token}", range.as_deref().unwrap_or("-")));
        let answer = compose(&mut state, method, path, range.as_deref());
        (answer, state.stall_after, state.is_silent, state.pause)
    };
    if is_silent {
        return wait_for_end(reader);
    }
    let (status, n) = (answer.status, answer.body.len());
    let mut out = stream;
    write!(out, "HTTP/1.1 {status} X\r\n{}Content-Length: {n}\r\n", answer.headers)?;
    write!(out, "Connection: close\r\n\r\n")?;
    if method != "GET" {
        return Ok(());
    }
    if path.contains("/resolve/") {
        let mut state = state.lock().expect("not poisoned");
        if !state.cuts.is_empty() {
            answer.body.truncate(state.cuts.remove(0));
        }
    }
    if answer.is_large {
        std::thread::sleep(pause);
        if let Some(n_bytes) = stall_after.filter(|n_bytes| *n_bytes < answer.body.len()) {
            out.write_all(&answer.body[..n_bytes])?;
            return wait_for_end(reader);
        }
    }
    out.write_all(&answer.body)
}

/// Waits until the client closes the connection.
fn wait_for_end(mut reader: impl Read) -> std::io::Result<()> {
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).map(|_| ())
}
