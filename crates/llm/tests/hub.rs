//! The hub client against a small hub of our own on the loopback interface.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crate::small_hub::{COMMIT, SmallHub, State, sha256};
use pelton_llm::hub::{Description, Hub, HubConfig, HubError, HubId};
use pelton_tensor::{DType, Gguf, GgufValue, GgufWriter};

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
fn a_small_file_is_checked_by_its_name_in_git() {
    let cache = tempfile::tempdir().expect("temp");
    let mut state = folder_model();
    let n = state.files["config.json"].len();
    state.swapped = Some(vec![b' '; n]);
    let hub = SmallHub::start(state);
    let error = download(&hub.client(cache.path())).expect_err("wrong bytes");
    assert!(matches!(error, HubError::Corrupt { what: "sha1", .. }), "{error}");
    hub.change(|state| state.swapped = None);
    download(&hub.client(cache.path())).expect("the right bytes");
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

/// A model of one GGUF file of this many bytes.
fn large_model(n_bytes: u32) -> (State, Vec<u8>) {
    let data: Vec<u8> = (0..n_bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let files = BTreeMap::from([("m-Q8_0.gguf".to_owned(), data.clone())]);
    (State { files, ranges: true, ..State::default() }, data)
}

/// A client that fetches 50,000 bytes at a time in three streams.
fn in_lanes(hub: &SmallHub, cache: &Path) -> Hub {
    Hub::new(HubConfig { n_streams: 3, lane_bytes: 50_000, ..hub.config(cache) })
}

#[test]
fn a_large_file_comes_in_several_streams_and_goes_on_after_cuts() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, data) = large_model(1_010_000);
    let hub = SmallHub::start(state);
    hub.change(|state| state.cuts = vec![10_000, 50_000, 0, 20_000]);
    let mut last = 0;
    let path = in_lanes(&hub, cache.path()).download(&id(), &mut |progress| {
        assert_eq!(progress.total_bytes, Some(1_010_000));
        assert!(last <= progress.done_bytes && progress.done_bytes <= 1_010_000);
        last = progress.done_bytes;
    });
    assert_eq!(std::fs::read(path.expect("downloads")).expect("whole"), data);
    assert_eq!(last, 1_010_000);
    let ranges: Vec<String> = hub.log().into_iter().filter(|l| l.starts_with("GET /org")).collect();
    // 21 lanes, and three that were cut short and asked again.
    assert_eq!(ranges.len(), 24, "{ranges:?}");
    assert!(ranges.iter().all(|line| line.contains("bytes=")), "{ranges:?}");
}

#[test]
fn what_an_earlier_process_left_is_continued_in_streams() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, data) = large_model(400_000);
    let hub = SmallHub::start(state);
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).expect("created");
    let partial = blobs.join(format!("{}.incomplete", sha256(&data)));
    std::fs::write(&partial, &data[..123_456]).expect("written");
    let path = in_lanes(&hub, cache.path()).download(&id(), &mut |_| {}).expect("downloads");
    assert_eq!(std::fs::read(path).expect("whole"), data);
    let log = hub.log();
    assert!(log.iter().any(|line| line.contains("bytes=123456-173455")), "{log:?}");
    assert!(!log.iter().any(|line| line.contains("bytes=0-")), "{log:?}");
}

#[test]
fn streams_without_ranges_become_one_and_damage_is_found() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, data) = large_model(400_000);
    let hub = SmallHub::start(State { ranges: false, ..state });
    let path = in_lanes(&hub, cache.path()).download(&id(), &mut |_| {}).expect("downloads");
    assert_eq!(std::fs::read(path).expect("whole"), data);

    let cache = tempfile::tempdir().expect("temp");
    hub.change(|state| (state.ranges, state.swapped) = (true, Some(vec![7; 400_000])));
    let error = in_lanes(&hub, cache.path()).download(&id(), &mut |_| {}).expect_err("damaged");
    assert!(matches!(error, HubError::Corrupt { what: "sha256", .. }), "{error}");
}

#[test]
fn a_disk_without_space_is_named_before_any_byte_is_fetched() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, _) = large_model(100_000);
    let size = u64::MAX / 4;
    let hub = SmallHub::start(State { false_size: Some(size as usize), ..state });
    let error = hub.client(cache.path()).download(&id(), &mut |_| {}).expect_err("too large");
    let HubError::NoSpace { needed_bytes, free_bytes, .. } = &error else { panic!("{error}") };
    assert!(*needed_bytes >= size && (1..size).contains(free_bytes), "{error}");
    let words = error.to_string();
    assert!(words.contains(&format!("needs {needed_bytes} bytes")), "{words}");
    assert!(words.contains(&format!("{free_bytes} bytes")), "{words}");
    assert!(!hub.log().iter().any(|line| line.contains("GET") && line.contains("resolve")));
    assert!(!cache.path().join("models--org--name/blobs").exists(), "nothing is left behind");
}

#[test]
fn a_hub_that_lies_about_a_size_is_refused_soon() {
    for (size, in_streams) in [(50_000, false), (200_000, false), (390_000, true), (410_000, true)]
    {
        let cache = tempfile::tempdir().expect("temp");
        let (state, _) = large_model(if in_streams { 400_000 } else { 100_000 });
        let hub = SmallHub::start(State { false_size: Some(size), ..state });
        let client =
            if in_streams { in_lanes(&hub, cache.path()) } else { hub.client(cache.path()) };
        let error = client.download(&id(), &mut |_| {}).expect_err("a lie").to_string();
        assert!(error.contains(&size.to_string()), "{size}: {error}");
        assert!(hub.log().len() < 20, "{size}: it is not asked for ever");
    }
    // A body that ends too soon every time, behind a header that agrees with the lie.
    let cache = tempfile::tempdir().expect("temp");
    let (state, _) = large_model(100_000);
    let hub = SmallHub::start(State { ranges: false, cuts: vec![60_000; 50], ..state });
    let error = hub.client(cache.path()).download(&id(), &mut |_| {}).expect_err("never whole");
    assert!(error.to_string().contains("60000 of 100000 bytes"), "{error}");
    assert!(hub.log().len() < 10, "it is not asked for ever");
}

#[test]
fn a_web_page_is_not_taken_for_an_answer() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(State { is_web_page: true, ..folder_model() });
    let error = download(&hub.client(cache.path())).expect_err("a page").to_string();
    assert!(error.contains("a web page came"), "{error}");
    assert_eq!(hub.log().len(), 1, "it is not asked again");
}

#[test]
fn a_hub_that_stops_sending_is_left_and_what_came_is_kept() {
    for n_streams in [1, 3] {
        let cache = tempfile::tempdir().expect("temp");
        let (state, data) = large_model(400_000);
        let hub = SmallHub::start(State { stall_after: Some(20_000), ..state });
        let config = HubConfig {
            patience: Duration::from_secs(1),
            n_attempts: 1,
            n_streams,
            lane_bytes: 50_000,
            ..hub.config(cache.path())
        };
        let error = Hub::new(config).download(&id(), &mut |_| {}).expect_err("stalls").to_string();
        assert!(error.contains("the hub stopped sending"), "{error}");
        let partial = format!("models--org--name/blobs/{}.incomplete", sha256(&data));
        let kept = std::fs::read(cache.path().join(partial)).expect("kept");
        assert_eq!(kept, data[..20_000], "{n_streams} streams");
    }
    let hub = SmallHub::start(State { is_silent: true, ..State::default() });
    let cache = tempfile::tempdir().expect("temp");
    let patience = Duration::from_secs(1);
    let config = HubConfig { patience, n_attempts: 1, ..hub.config(cache.path()) };
    let error = download(&Hub::new(config)).expect_err("silent").to_string();
    assert!(error.contains("the hub stopped sending"), "{error}");
}

#[test]
fn two_downloads_of_one_model_do_not_disturb_each_other() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, data) = large_model(400_000);
    let hub = SmallHub::start(State { pause: Duration::from_millis(50), ..state });
    let paths: Vec<_> = std::thread::scope(|scope| {
        let download = || in_lanes(&hub, cache.path()).download(&id(), &mut |_| {});
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(download)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for path in paths {
        assert_eq!(std::fs::read(path.expect("downloads")).expect("whole"), data);
    }
    let n_first = hub.log().iter().filter(|line| line.contains("bytes=0-")).count();
    assert_eq!(n_first, 1, "one download waits for another");
}

#[test]
fn what_is_only_partly_there_is_said_and_the_rest_is_fetched() {
    let cache = tempfile::tempdir().expect("temp");
    let (state, data) = large_model(100_000);
    let hub = SmallHub::start(State { statuses: vec![403], ..state });
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).expect("created");
    std::fs::write(blobs.join(format!("{}.incomplete", sha256(&data))), &data[..99]).expect("left");
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    let error = download(&Hub::new(offline)).expect_err("incomplete");
    assert!(matches!(error, HubError::Offline { partial_bytes: 99, .. }), "{error}");
    assert!(error.to_string().contains("only partly"), "{error}");
    download(&hub.client(cache.path())).expect_err("refused once");
    let path = download(&hub.client(cache.path())).expect("goes on");
    assert_eq!(std::fs::read(path).expect("whole"), data);
    assert!(hub.log().iter().any(|line| line.contains("bytes=99-")));
}

/// The files that are fetched, each with the range that was asked for.
fn fetched(hub: &SmallHub) -> Vec<String> {
    let gets = hub.log().into_iter().filter(|line| line.starts_with("GET /org/name/"));
    let words = gets.map(|line| {
        let mut words = line.split(' ').skip(1);
        let file = words.next().and_then(|path| path.rsplit('/').next()).expect("a file");
        format!("{file} {}", words.next().expect("a range"))
    });
    words.collect()
}

#[test]
fn a_folder_is_described_by_its_configuration_alone_which_the_cache_keeps() {
    let cache = tempfile::tempdir().expect("temp");
    let hub = SmallHub::start(folder_model());
    let describe = |hub: &Hub| match hub.describe(&id())? {
        Description::Config(path) => Ok::<_, HubError>(path),
        other => panic!("{other:?}"),
    };
    let path = describe(&hub.client(cache.path())).expect("described");
    assert_eq!(
        path,
        cache.path().join("models--org--name/snapshots").join(COMMIT).join("config.json")
    );
    assert_eq!(fetched(&hub), ["config.json -"]);
    describe(&hub.client(cache.path())).expect("again");
    assert_eq!(fetched(&hub), [""; 0]);
    let offline = HubConfig { offline: true, ..hub.config(cache.path()) };
    assert_eq!(describe(&Hub::new(offline.clone())).expect("from the cache"), path);
    let nowhere =
        HubConfig { endpoint: "http://127.0.0.1:1".to_owned(), ..hub.config(cache.path()) };
    assert_eq!(describe(&Hub::new(nowhere)).expect("from the cache"), path);
    let empty = tempfile::tempdir().expect("temp");
    let offline = HubConfig { cache: empty.path().to_owned(), ..offline };
    let error = describe(&Hub::new(offline)).expect_err("nothing is there");
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    // Weights that cannot be loaded do not matter.
    hub.change(|state| {
        let weights = state.files.remove("model.safetensors").expect("there");
        state.files.insert("pytorch_model.bin".to_owned(), weights);
    });
    let error = hub.client(empty.path()).download(&id(), &mut |_| {}).expect_err("no weights");
    assert!(matches!(error, HubError::NoModel { .. }), "{error}");
    describe(&hub.client(empty.path())).expect("described");
}

/// A GGUF file whose header takes somewhat more than `n_bytes`, before weights of 4 MiB.
fn gguf_with_header_of(n_bytes: usize) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata("a.long.text", GgufValue::String("x".repeat(n_bytes)));
    writer.tensor("t", DType::F32, &[1 << 20]);
    let mut data = writer.start(Vec::new(), "m.gguf").expect("begun");
    data.tensor_data(&vec![7; 4 << 20]).expect("written");
    data.finish().expect("finished")
}

#[test]
fn of_a_gguf_file_only_as_much_is_fetched_as_its_header_takes() {
    let cache = tempfile::tempdir().expect("temp");
    let model = gguf_with_header_of(5 << 20);
    let files = BTreeMap::from([("m-Q8_0.gguf".to_owned(), model.clone())]);
    let hub = SmallHub::start(State { files, ranges: true, ..State::default() });
    let id = HubId::parse("org/name:q8_0").expect("well formed");
    let describe = |hub: &Hub| match hub.describe(&id)? {
        Description::Headers(heads) => Ok::<_, HubError>(heads),
        other => panic!("{other:?}"),
    };
    let heads = describe(&hub.client(cache.path())).expect("described");
    let mib = |n: usize| n << 20;
    assert_eq!((heads.len(), heads[0].file.as_str()), (1, "m-Q8_0.gguf"));
    assert_eq!(heads[0].n_bytes, model.len() as u64);
    assert!(heads[0].start == model[..mib(8)], "its first 8 MiB");
    let ranges = [(0, 2), (2, 4), (4, 8)];
    let asked = ranges.map(|(from, to)| format!("m-Q8_0.gguf bytes={}-{}", mib(from), mib(to) - 1));
    assert_eq!(fetched(&hub), asked);
    assert!(!cache.path().join("models--org--name/snapshots").exists(), "half a file is no model");

    // A cut stream goes on; a server without ranges begins anew, and is not read to the end.
    hub.change(|state| state.cuts = vec![1000, 5000]);
    assert!(describe(&hub.client(cache.path())).expect("cut")[0].start == model[..mib(8)], "cut");
    assert_eq!(fetched(&hub)[1], format!("m-Q8_0.gguf bytes=1000-{}", mib(2) - 1));
    hub.change(|state| state.ranges = false);
    assert!(
        describe(&hub.client(cache.path())).expect("whole")[0].start == model[..mib(8)],
        "whole"
    );

    hub.change(|state| (state.ranges, state.false_start) = (true, Some(7)));
    let error = describe(&hub.client(cache.path())).expect_err("bytes from elsewhere").to_string();
    assert!(error.contains("asked for bytes 0-"), "{error}");
    let short = model[..mib(1)].to_vec();
    hub.change(|state| {
        state.false_start = None;
        state.files.insert("m-Q8_0.gguf".to_owned(), short);
    });
    let error = describe(&hub.client(cache.path())).expect_err("a cut header").to_string();
    assert!(error.contains("the header does not end within 1048576 bytes"), "{error}");
    hub.change(|state| drop(state.files.insert("m-Q8_0.gguf".to_owned(), b"not a model".to_vec())));
    let error = describe(&hub.client(cache.path())).expect_err("no model").to_string();
    assert!(error.contains("m-Q8_0.gguf") && error.contains("`GGUF`"), "{error}");

    // A model that is in the cache is described there.
    hub.change(|state| drop(state.files.insert("m-Q8_0.gguf".to_owned(), model)));
    let path = hub.client(cache.path()).download(&id, &mut |_| {}).expect("downloads");
    fetched(&hub);
    let described = hub.client(cache.path()).describe(&id).expect("described");
    assert!(matches!(described, Description::Whole(whole) if whole == path));
    assert_eq!(fetched(&hub), [""; 0]);
    Gguf::open(&path).expect("whole");
}
