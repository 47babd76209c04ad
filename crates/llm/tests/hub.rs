//! The hub client against a small hub of our own on the loopback interface.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pelton_llm::hub::{Hub, HubConfig, HubError, HubId};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the small hub holds and how it misbehaves.
#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Extra names in the listing.
    extra_names: Vec<String>,
    /// The bodies of the next answers are cut after so many bytes.
    cuts: Vec<usize>,
    /// The next `GET`s of files answer with this status.
    statuses: Vec<u16>,
    /// Whether `Range` is honoured.
    ranges: bool,
    /// What a range answer claims as its start, when it lies.
    false_start: Option<u64>,
    /// Bytes that really are sent instead of a file.
    swapped: Option<Vec<u8>>,
    /// Replaces every tag.
    false_etag: Option<String>,
    /// `METHOD path range authorization`, one per request.
    log: Vec<String>,
}

struct SmallHub {
    state: Arc<Mutex<State>>,
    endpoint: String,
}

impl SmallHub {
    fn start(state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One request per connection keeps this server small.
                let _ = answer(stream, &shared);
            }
        });
        Self { state, endpoint }
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("not poisoned").log)
    }

    fn client(&self, cache: &Path) -> Hub {
        Hub::new(self.config(cache))
    }

    fn config(&self, cache: &Path) -> HubConfig {
        HubConfig {
            endpoint: self.endpoint.clone(),
            token: Some("secret".to_owned()),
            cache: cache.to_owned(),
            offline: false,
            n_attempts: 3,
            first_wait: Duration::ZERO,
        }
    }
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
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
    let mut state = state.lock().expect("not poisoned");
    state.log.push(format!("{method} {path} {} {token}", range.as_deref().unwrap_or("-")));
    let (mut status, mut headers, mut body) = (200, String::new(), Vec::new());
    if let Some(rest) = path.strip_prefix("/api/models/org/name/revision/") {
        if rest == "main" {
            let siblings: Vec<_> = state
                .files
                .keys()
                .chain(&state.extra_names)
                .map(|name| serde_json::json!({ "rfilename": name }))
                .collect();
            let listing = serde_json::json!({ "sha": COMMIT, "siblings": siblings });
            body = listing.to_string().into_bytes();
        } else {
            status = 404;
        }
    } else if let Some(name) = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/"))
        && let Some(data) = state.files.get(name).cloned()
    {
        let etag = state.false_etag.clone().unwrap_or_else(|| sha256(&data));
        if name.ends_with(".json") {
            headers.push_str(&format!("ETag: \"{}\"\r\n", &etag[..40.min(etag.len())]));
        } else {
            headers.push_str(&format!("X-Linked-Etag: \"{etag}\"\r\n"));
            headers.push_str(&format!("X-Linked-Size: {}\r\n", data.len()));
        }
        if method == "GET" {
            body = state.swapped.clone().unwrap_or_else(|| data.clone());
            if !state.statuses.is_empty() {
                status = state.statuses.remove(0);
                body.clear();
            } else if let Some(range) = range.filter(|_| state.ranges) {
                let start: usize = range
                    .trim_start_matches("bytes=")
                    .trim_end_matches('-')
                    .parse()
                    .expect("open range");
                status = 206;
                let claimed = state.false_start.unwrap_or(start as u64);
                let (end, total) = (data.len() - 1, data.len());
                headers.push_str(&format!("Content-Range: bytes {claimed}-{end}/{total}\r\n"));
                body = body.split_off(start);
            }
        } else {
            body = data;
        }
    } else {
        status = 404;
    }
    let mut out = stream;
    write!(out, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n", body.len())?;
    write!(out, "Connection: close\r\n\r\n")?;
    if method == "GET" {
        if path.contains("/resolve/") && !state.cuts.is_empty() {
            body.truncate(state.cuts.remove(0));
        }
        out.write_all(&body)?;
    }
    Ok(())
}

fn folder_model() -> State {
    let mut files = BTreeMap::new();
    files.insert("config.json".to_owned(), br#"{"model_type":"llama"}"#.to_vec());
    files.insert("tokenizer.json".to_owned(), b"{}".to_vec());
    let weights: Vec<u8> = (0..100_000_u32).map(|i| (i * 31 % 251) as u8).collect();
    files.insert("model.safetensors".to_owned(), weights);
    State { files, ranges: true, ..State::default() }
}

fn id() -> HubId {
    HubId::parse("org/name").expect("well formed")
}

fn download(hub: &Hub) -> Result<std::path::PathBuf, HubError> {
    hub.download(&id(), &mut |_| {})
}

#[test]
fn a_folder_arrives_in_the_usual_layout_and_is_not_fetched_twice() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let folder = download(&hub.client(cache.path())).expect("downloads");
    let repo = cache.path().join("models--org--name");
    assert_eq!(folder, repo.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).expect("ref"), COMMIT);
    let weights = folder_model().files["model.safetensors"].clone();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("linked"), weights);
    let target = std::fs::read_link(folder.join("model.safetensors")).expect("a link");
    assert_eq!(target, Path::new("../../blobs").join(sha256(&weights)));
    assert!(hub.log().iter().all(|line| line.ends_with("Bearer secret")), "the token is sent");

    download(&hub.client(cache.path())).expect("again");
    assert_eq!(hub.log().len(), 1, "only the listing is asked for");
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    assert_eq!(download(&Hub::new(offline)).expect("from the cache"), folder);
    assert_eq!(hub.log(), [""; 0]);
}

#[test]
fn a_cut_stream_goes_on_where_it_stopped() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let (small, big) = (1 << 20, 40_000);
    // config.json, model.safetensors twice cut, tokenizer.json
    hub.state.lock().expect("not poisoned").cuts = vec![small, small, big, 10_000];
    let mut seen = Vec::new();
    let folder = hub
        .client(cache.path())
        .download(&id(), &mut |p| {
            assert!(p.total_bytes.is_none_or(|total| p.done_bytes <= total));
            seen.push(p.file.to_owned());
        })
        .expect("downloads");
    let weights = &folder_model().files["model.safetensors"];
    assert_eq!(&std::fs::read(folder.join("model.safetensors")).expect("whole"), weights);
    let ranges: Vec<String> = hub
        .log()
        .iter()
        .filter(|line| line.starts_with("GET") && line.contains("safetensors"))
        .map(|line| line.split(' ').nth(2).expect("range").to_owned())
        .collect();
    assert_eq!(ranges, ["-", "bytes=40000-", "bytes=50000-"]);
    assert!(seen.iter().any(|file| file == "model.safetensors"));
}

#[test]
fn what_an_earlier_process_left_is_continued() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let weights = folder_model().files["model.safetensors"].clone();
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).expect("created");
    let partial = blobs.join(format!("{}.incomplete", sha256(&weights)));
    std::fs::write(&partial, &weights[..70_000]).expect("written");
    let folder = download(&hub.client(cache.path())).expect("downloads");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("whole"), weights);
    assert!(hub.log().iter().any(|line| line.contains("bytes=70000-")));
    assert!(!partial.exists());
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(State { ranges: false, ..folder_model() });
    hub.state.lock().expect("not poisoned").cuts = vec![1 << 20, 1 << 20, 40_000];
    let folder = download(&hub.client(cache.path())).expect("downloads");
    let weights = &folder_model().files["model.safetensors"];
    assert_eq!(&std::fs::read(folder.join("model.safetensors")).expect("whole"), weights);
}

#[test]
fn an_answer_that_starts_elsewhere_is_not_appended() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(State { false_start: Some(7), ..folder_model() });
    hub.state.lock().expect("not poisoned").cuts = vec![1 << 20, 1 << 20, 40_000];
    let error = download(&hub.client(cache.path())).expect_err("a lie").to_string();
    assert!(error.contains("bytes 7-"), "{error}");
}

#[test]
fn bytes_that_are_not_what_the_tag_says_are_refused_and_forgotten() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let n = folder_model().files["model.safetensors"].len();
    let mut state = folder_model();
    state.files.retain(|name, _| name == "model.safetensors");
    state.files.insert("config.json".to_owned(), vec![b' '; n]);
    state.swapped = Some(vec![b' '; n]);
    *hub.state.lock().expect("not poisoned") = state;
    let error = download(&hub.client(cache.path())).expect_err("wrong bytes");
    assert!(matches!(error, HubError::Corrupt { what: "sha256", .. }), "{error}");
    let blobs = cache.path().join("models--org--name/blobs");
    let left: Vec<_> = std::fs::read_dir(blobs)
        .expect("there")
        .map(|e| e.expect("entry").file_name().into_string().expect("text"))
        .filter(|name| name.ends_with(".incomplete"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_file_longer_than_announced_is_refused() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(State { swapped: Some(vec![1; 300_000]), ..folder_model() });
    let error = download(&hub.client(cache.path())).expect_err("too long");
    assert!(matches!(error, HubError::Corrupt { what: "size", .. }), "{error}");
}

#[test]
fn errors_of_the_server_are_tried_again_but_not_for_ever() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    hub.state.lock().expect("not poisoned").statuses = vec![503, 500];
    download(&hub.client(cache.path())).expect("the third attempt succeeds");
    let other = tempfile::tempdir().expect("temp");
    hub.state.lock().expect("not poisoned").statuses = vec![503; 3];
    let error = download(&hub.client(other.path())).expect_err("three failures");
    assert!(matches!(error, HubError::Network { n_attempts: 3, .. }), "{error}");
}

#[test]
fn hostile_names_and_tags_never_become_paths() {
    for (name, etag) in
        [("model.safetensors", Some("../../../evil")), ("model.safetensors", Some("a/b/c/d/e/f/g"))]
    {
        let cache = tempfile::tempdir().expect("temp");
        let mut state = folder_model();
        state.false_etag = etag.map(str::to_owned);
        state.files.retain(|file, _| file == name || file == "config.json");
        let hub = SmallHub::start(state);
        let error = download(&hub.client(cache.path())).expect_err("hostile");
        assert!(matches!(error, HubError::Protocol { .. }), "{error}");
    }
    let cache = tempfile::tempdir().expect("temp");
    let extra_names = vec!["../../../evil.gguf".to_owned()];
    let state = State { extra_names, ..State::default() };
    let hub = SmallHub::start(state);
    let error = download(&hub.client(cache.path())).expect_err("hostile").to_string();
    assert!(error.contains("no file name"), "{error}");
}

#[test]
fn a_sharded_model_brings_every_shard_and_offline_misses_none() {
    let cache = tempfile::tempdir().expect("temp");
    let mut state = folder_model();
    state.files.remove("model.safetensors");
    let index = r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    state.files.insert("model.safetensors.index.json".to_owned(), index.as_bytes().to_vec());
    state.files.insert("m-1.safetensors".to_owned(), vec![1; 10]);
    state.files.insert("m-2.safetensors".to_owned(), vec![2; 10]);
    let hub = SmallHub::start(state);
    let folder = download(&hub.client(cache.path())).expect("downloads");
    assert_eq!(std::fs::read(folder.join("m-2.safetensors")).expect("shard"), [2; 10]);
    std::fs::remove_file(folder.join("m-2.safetensors")).expect("removed");
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    let error = download(&Hub::new(offline)).expect_err("incomplete").to_string();
    assert!(error.contains("m-2.safetensors"), "{error}");
}

/// A model in three parts, as `.gguf` files of random bytes would be.
fn split_model() -> (State, Vec<String>) {
    let names: Vec<String> = (1..=3).map(|i| format!("q/m-Q8_0-{i:05}-of-00003.gguf")).collect();
    let data = |i: usize| (0..30_000).map(|j| (i * 7 + j * 31 % 251) as u8).collect::<Vec<u8>>();
    let files = names.iter().enumerate().map(|(i, name)| (name.clone(), data(i))).collect();
    (State { files, ranges: true, ..State::default() }, names)
}

#[test]
fn every_part_of_a_split_file_is_fetched_and_a_cut_one_goes_on() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, names) = split_model();
    let files = state.files.clone();
    let hub = SmallHub::start(state);
    // The second part stops early.
    hub.state.lock().expect("not poisoned").cuts = vec![1 << 20, 12_000];
    let first = download(&hub.client(cache.path())).expect("downloads");
    assert!(first.ends_with(&names[0]), "{}", first.display());
    let folder = first.parent().and_then(Path::parent).expect("a snapshot").to_owned();
    for (name, data) in &files {
        assert_eq!(&std::fs::read(folder.join(name)).expect(name), data, "{name}");
    }
    let gets: Vec<String> = hub
        .log()
        .iter()
        .filter(|line| line.starts_with("GET") && line.contains("resolve"))
        .map(|line| line.split(' ').nth(2).expect("range").to_owned())
        .collect();
    assert_eq!(gets, ["-", "-", "bytes=12000-", "-"]);
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    assert_eq!(download(&Hub::new(offline.clone())).expect("from the cache"), first);

    std::fs::remove_file(folder.join(&names[1])).expect("removed");
    let error = download(&Hub::new(offline)).expect_err("incomplete").to_string();
    assert!(error.contains(&names[1]), "{error}");
    // Its bytes are still there; only its name is asked for.
    assert_eq!(download(&hub.client(cache.path())).expect("again"), first);
    assert!(hub.log().iter().all(|line| line.starts_with("HEAD") || line.contains("/api/")));
}

#[test]
fn a_split_file_with_a_damaged_or_missing_part_is_no_model() {
    let cache = tempfile::tempdir().expect("temp");
    let (mut state, names) = split_model();
    state.files.remove(&names[2]);
    let hub = SmallHub::start(state);
    let error = download(&hub.client(cache.path())).expect_err("incomplete").to_string();
    assert!(error.contains(&names[2]), "{error}");
    assert!(hub.log().iter().all(|line| !line.contains("resolve")), "nothing was fetched");

    let (mut state, _) = split_model();
    state.swapped = Some(vec![9; 30_000]);
    *hub.state.lock().expect("not poisoned") = state;
    let error = download(&hub.client(cache.path())).expect_err("damaged");
    assert!(matches!(error, HubError::Corrupt { what: "sha256", .. }), "{error}");
}

#[test]
fn an_unknown_model_says_what_to_do_and_an_unreachable_hub_uses_the_cache() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let unknown = HubId::parse("org/name@nope").expect("well formed");
    let error = hub.client(cache.path()).download(&unknown, &mut |_| {}).expect_err("404");
    assert!(matches!(error, HubError::Refused { status: 404, .. }), "{error}");

    let folder = download(&hub.client(cache.path())).expect("downloads");
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("free").port();
    let gone =
        HubConfig { endpoint: format!("http://127.0.0.1:{port}"), ..hub.config(cache.path()) };
    assert_eq!(download(&Hub::new(gone.clone())).expect("cached"), folder);
    let empty = tempfile::tempdir().expect("temp");
    let error = download(&Hub::new(HubConfig { cache: empty.path().to_owned(), ..gone }));
    assert!(matches!(error, Err(HubError::Network { .. })));
}
