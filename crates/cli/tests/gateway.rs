//! Keys, quotas, usage and kept results of the real server.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::server::Server;
use crate::common::{self, pelton, signal};
use serde_json::{Value, json};

/// A folder with a key file and a usage file.
struct House {
    folder: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Makes a key and returns its text.
    fn key(&self, words: &[&str]) -> String {
        let keys = self.path("keys");
        let made = pelton(&[&["key", "new", "--key-file", &keys], words].concat());
        made.assert_answered();
        made.stdout.trim_end().to_owned()
    }

    fn serve(&self, flags: &[&str]) -> Server {
        let (keys, usage) = (self.path("keys"), self.path("usage"));
        let own = ["--key-file", &keys, "--usage-file", &usage];
        Server::start(&[&own, flags].concat()).expect("it listens")
    }
}

/// Status, head and body of the answer to a completion.
fn complete(server: &Server, key: &str, body: &Value) -> (u16, String, String) {
    use std::io::{Read, Write};
    let body = body.to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    // A server that was killed answers nothing.
    if let Ok(mut connection) = std::net::TcpStream::connect(server.address()) {
        let _ = connection.write_all(request.as_bytes());
        let _ = connection.read_to_string(&mut answer);
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn total(body: &str) -> u64 {
    let body: Value = serde_json::from_str(body).expect("JSON");
    body["usage"]["total_tokens"].as_u64().expect("a number")
}

fn ask(max_tokens: usize) -> Value {
    json!({"prompt": "The moth", "max_tokens": max_tokens, "temperature": 0})
}

#[test]
fn tokens_that_were_answered_are_counted_after_a_kill() {
    let house = House::new();
    let key = house.key(&["--id", "k", "--tokens-per-month", "1000000"]);
    let mut n_answered = 0;
    for round in 0..5 {
        let server = house.serve(&[]);
        n_answered += std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    let (server, key) = (&server, &key);
                    scope.spawn(move || {
                        let mut n_tokens = 0;
                        loop {
                            match complete(server, key, &ask(4)) {
                                (200, _, body) if serde_json::from_str::<Value>(&body).is_ok() => {
                                    n_tokens += total(&body);
                                }
                                _ => return n_tokens,
                            }
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(150 + 130 * round));
            signal("KILL", server.pid());
            clients.into_iter().map(|client| client.join().expect("it ends")).sum::<u64>()
        });
    }
    let report = pelton(&["usage", "--usage-file", &house.path("usage"), "--json"]).json();
    let n = |name: &str| report["total"][name].as_u64().expect("a number");
    let n_counted = n("prompt_tokens") + n("completion_tokens");
    assert!(n_answered > 0);
    assert!(n_counted >= n_answered, "{n_counted} of {n_answered} are counted");
    // At most the requests of the four clients that were not answered when each kill came.
    let n_each = n_counted / n("requests");
    assert!(n_counted <= n_answered + 5 * 4 * n_each, "{n_counted} for {n_answered}");
}

/// Asks for four tokens at a time until the server is gone or the quota used up; half of the clients
/// ask for streams. Adds the tokens of whole answers; says whether the quota was used up.
fn ask_until_refused(server: &Server, key: &str, is_stream: bool, n_answered: &AtomicU64) -> bool {
    let mut body = ask(4);
    if is_stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    loop {
        let (status, _, text) = complete(server, key, &body);
        let n_tokens = match status {
            // It was killed before it answered.
            0 => return false,
            429 => {
                assert!(text.contains("insufficient_quota"), "{text}");
                return true;
            }
            200 if is_stream => {
                let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
                let is_whole = text.contains("[DONE]");
                events
                    .filter(|event| is_whole && event.contains("\"total_tokens\""))
                    .map(total)
                    .sum()
            }
            200 => match serde_json::from_str::<Value>(&text) {
                Ok(_) => total(&text),
                Err(_) => 0,
            },
            _ => panic!("{status}: {text}"),
        };
        n_answered.fetch_add(n_tokens, Ordering::SeqCst);
    }
}

#[test]
fn a_crowd_gets_no_more_than_its_quota_however_often_the_server_is_killed() {
    const N_CLIENTS: u64 = 64;
    const N_KILLS: u64 = 3;
    /// Of one request: prompt and answer.
    const MOST: u64 = 7;
    const QUOTA: u64 = 8_000;
    let house = House::new();
    let key = house.key(&["--id", "k", "--tokens-total", &QUOTA.to_string()]);
    let n_answered = AtomicU64::new(0);
    for round in 0..=N_KILLS {
        let mut server = house.serve(&[]);
        let n_refused = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..N_CLIENTS)
                .map(|i| {
                    let (server, key, n_answered) = (&server, &key, &n_answered);
                    scope.spawn(move || ask_until_refused(server, key, i % 2 == 0, n_answered))
                })
                .collect();
            // Two answers for each client, on average; then a kill, which comes amid others.
            let enough = n_answered.load(Ordering::SeqCst) + 2 * N_CLIENTS * MOST;
            if round < N_KILLS {
                while n_answered.load(Ordering::SeqCst) < enough {
                    std::thread::sleep(Duration::from_millis(1));
                }
                signal("KILL", server.pid());
            }
            clients
                .into_iter()
                .map(|client| u64::from(client.join().expect("it ends")))
                .sum::<u64>()
        });
        let expected = if round < N_KILLS { 0 } else { N_CLIENTS };
        assert_eq!(n_refused, expected, "the quota binds at the end of round {round}");
        if round == N_KILLS {
            signal("TERM", server.pid());
        }
        server.wait();
    }
    let report = pelton(&["usage", "--usage-file", &house.path("usage"), "--json"]).json();
    let n = |name: &str| report["total"][name].as_u64().expect("a number");
    let n_counted = n("prompt_tokens") + n("completion_tokens");
    let n_answered = n_answered.into_inner();
    assert!(n_answered <= n_counted, "{n_counted} of {n_answered} are counted");
    assert!(n_counted <= QUOTA, "{n_counted} tokens of {QUOTA}");
    assert!(n_counted > QUOTA - MOST, "{n_counted} tokens of {QUOTA}, and a request was refused");
    // At most the requests of all clients that were not answered when each kill came.
    let n_lost = N_KILLS * N_CLIENTS * MOST;
    assert!(n_counted <= n_answered + n_lost, "{n_counted} for {n_answered}");
}

#[test]
fn the_sandboxed_server_counts_and_a_report_needs_it_stopped() {
    let house = House::new();
    let key = house.key(&["--id", "k", "--tokens-total", "40"]);
    let mut server = house.serve(&["--sandbox", "required"]);
    let (status, head, body) = complete(&server, &key, &ask(4));
    assert_eq!(status, 200, "{body}");
    assert!(!head.contains("\nx-ratelimit"), "only limits per minute have headers");
    let n_tokens = total(&body);
    let (status, _, body) = complete(&server, &key, &ask(40));
    assert_eq!(status, 429, "{body}");
    assert!(body.contains("insufficient_quota") && body.contains("tokens_total"), "{body}");
    let usage = house.path("usage");
    pelton(&["usage", "--usage-file", &usage]).assert_refused(&["another process", "pelton serve"]);
    signal("TERM", server.pid());
    assert!(server.wait().success());
    let table = pelton(&["usage", "--usage-file", &usage]).stdout;
    assert!(table.contains("story") && table.lines().count() == 4, "{table}");
    let report = pelton(&["usage", "--usage-file", &usage, "--json", "--model", "story"]).json();
    let n = |name: &str| report["total"][name].as_u64().expect("a number");
    assert_eq!(n("prompt_tokens") + n("completion_tokens"), n_tokens);
    pelton(&["usage", "--usage-file", "missing"]).assert_refused(&["missing", "--usage-file"]);
    let days = ["--since", "2026-11-02", "--until", "2026-11-01"];
    pelton(&[&["usage", "--usage-file", &usage], &days[..]].concat())
        .assert_refused(&["`--since` is 2026-11-02", "`--until` 2026-11-01"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_takes_no_usage_refuses_quotas_until_it_does() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let house = House::new();
    let limited = house.key(&["--id", "limited", "--tokens-total", "1000000"]);
    let free = house.key(&["--id", "free"]);
    let mut server = house.serve(&[]);
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a small number"));
    // A write to any file is then beyond the limit.
    let set_most_bytes = |current| {
        let limit = Rlimit { current, maximum: None };
        prlimit(pid, Resource::Fsize, limit).expect("it is our own process");
    };
    set_most_bytes(Some(0));
    let (status, _, first) = complete(&server, &limited, &ask(4));
    assert_eq!(status, 200, "nothing has failed yet: {first}");
    let (status, _, body) = complete(&server, &limited, &ask(4));
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("usage_unavailable"), "{body}");
    let (status, _, second) = complete(&server, &free, &ask(4));
    assert_eq!(status, 200, "a key without a quota needs no count: {second}");
    set_most_bytes(None);
    let third = loop {
        let (status, _, body) = complete(&server, &limited, &ask(4));
        match status {
            200 => break body,
            status => assert_eq!(status, 503, "{body}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    signal("TERM", server.pid());
    assert!(server.wait().success());
    let report = pelton(&["usage", "--usage-file", &house.path("usage"), "--json"]).json();
    let n = |name: &str| report["total"][name].as_u64().expect("a number");
    let expected = [first, second, third].iter().map(|body| total(body)).sum::<u64>();
    assert_eq!(n("prompt_tokens") + n("completion_tokens"), expected, "nothing was lost");
}

#[test]
fn a_kept_result_is_the_computed_one_and_no_other_tenants() {
    let house = House::new();
    let config = house.path("serve.yaml");
    std::fs::write(&config, "tenants: [{name: red}, {name: blue}]\n").expect("written");
    let red = house.key(&["--tenant", "red"]);
    let blue = house.key(&["--tenant", "blue"]);
    let server = house.serve(&["--config", &config, "--result-cache", "1MiB"]);
    let plain = |body: &str| {
        let mut body: Value = serde_json::from_str(body).expect("JSON");
        for name in ["id", "created"] {
            body.as_object_mut().expect("an object").remove(name);
        }
        let usage = body["usage"]["prompt_tokens_details"]["cached_tokens"].take();
        (body, usage)
    };
    let run = |key: &str, body: &Value| {
        let (status, head, body) = complete(&server, key, body);
        assert_eq!(status, 200, "{body}");
        let word = head.lines().find_map(|line| line.strip_prefix("x-pelton-result-cache: "));
        (word.map(str::to_owned), body)
    };
    let with = |more: Value| {
        let mut body = ask(12);
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        body
    };
    for body in [
        with(json!({})),
        with(json!({"logprobs": 3, "n": 2})),
        with(json!({"temperature": 1, "seed": 7})),
        with(json!({"stop": ["e"]})),
    ] {
        let (first, computed) = run(&red, &body);
        let (second, kept) = run(&red, &body);
        assert_eq!((first.as_deref(), second.as_deref()), (Some("miss"), Some("hit")), "{body}");
        let ((computed, _), (kept, n_cached)) = (plain(&computed), plain(&kept));
        assert_eq!(computed, kept, "{body}");
        assert_eq!(n_cached, computed["usage"]["prompt_tokens"]);
        assert_eq!(run(&blue, &body).0.as_deref(), Some("miss"), "of another tenant");
    }
    for (name, value) in [("max_tokens", json!(13)), ("seed", json!(8)), ("prompt", json!("The"))] {
        let mut body = with(json!({"temperature": 1, "seed": 7}));
        body[name] = value;
        assert_eq!(run(&red, &body).0.as_deref(), Some("miss"), "{name} changes tokens");
    }
    let drawn = with(json!({"temperature": 1}));
    for _ in 0..2 {
        assert_eq!(run(&red, &drawn).0, None, "nobody chose the seed");
    }
    // A stream is told again token by token.
    let stream = with(json!({"stream": true, "stop": ["e"]}));
    let events = |text: String| -> Vec<Value> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let texts = lines.map(|line| serde_json::from_str(&format!("{{{line}")).expect("JSON"));
        texts.map(|event: Value| event["choices"].clone()).collect()
    };
    let (word, kept) = run(&red, &stream);
    assert_eq!(word.as_deref(), Some("hit"), "the same tokens as in one piece");
    let (word, computed) =
        run(&blue, &with(json!({"stream": true, "stop": ["e"], "cache_salt": "x"})));
    assert_eq!(word.as_deref(), Some("miss"));
    assert_eq!(events(kept), events(computed));
    // A thousand probes of another tenant find nothing that this one asked for.
    let server = &server;
    for i in 0..1000 {
        let prompt = json!({"prompt": format!("The moth {i}"), "max_tokens": 1, "temperature": 0});
        if i % 50 == 0 {
            assert_eq!(run(&red, &prompt).0.as_deref(), Some("miss"));
        }
        let (_, head, body) = complete(server, &blue, &prompt);
        assert!(head.contains("x-pelton-result-cache: miss"), "{head}");
        assert!(body.contains("\"cached_tokens\":0"), "probe {i} meets a cached prefix: {body}");
    }
}

#[test]
fn settings_of_something_that_is_not_there_are_refused() {
    for [flag, value, other, path] in [
        ["--result-cache-ttl", "60", "--result-cache", "1MiB"],
        ["--usage-failures", "accept", "--usage-file", "usage"],
        ["--unix-socket-access", "all", "--unix-socket", "socket"],
    ] {
        let lone = ["serve", "--check-config", flag, value];
        pelton(&lone).assert_refused(&[&format!("`{flag}` changes nothing without"), other]);
        pelton(&[&lone[..], &[other, path]].concat()).assert_answered();
    }
    // The default may be named.
    pelton(&["serve", "--check-config", "--usage-failures", "refuse"]).assert_answered();
}

#[test]
fn answers_that_drafts_change_are_not_kept() {
    let house = House::new();
    let contradicts = |outcome: common::Outcome, place: &str| {
        let parts = ["--result-cache", "--spec-verify typical-lossy", "--spec-verify match", place];
        outcome.assert_refused(&parts);
    };
    let pair =
        ["serve", "--check-config", "--result-cache", "1MiB", "--spec-verify", "typical-lossy"];
    for method in ["ngram", "auto", "draft:embedded"] {
        contradicts(pelton(&[&pair[..], &["--spec", method]].concat()), "error");
    }
    let config = house.path("serve.yaml");
    let text = "result_cache: 1MiB\nmodels:\n  - {model: embedded, name: a}\n  \
                - {model: embedded, name: b, spec: ngram, spec_verify: typical-lossy}\n";
    std::fs::write(&config, text).expect("written");
    contradicts(pelton(&["serve", "--config", &config, "--check-config"]), "`b`");
    // Without drafts there is nothing to judge.
    pelton(&[&pair[..], &["--spec", "off"]].concat()).assert_answered();

    // Rejection keeps greedy answers and changes the tokens of others.
    let key = house.key(&["--id", "k"]);
    let flags = ["--result-cache", "1MiB", "--spec", "ngram", "--spec-verify", "rejection"];
    let server = house.serve(&flags);
    let word = |more: Value| {
        let mut body = ask(4);
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        let (status, head, body) = complete(&server, &key, &body);
        assert_eq!(status, 200, "{body}");
        let word = head.lines().find_map(|line| line.strip_prefix("x-pelton-result-cache: "));
        word.map(str::to_owned)
    };
    assert_eq!(word(json!({})).as_deref(), Some("miss"));
    assert_eq!(word(json!({})).as_deref(), Some("hit"));
    let seeded = json!({"temperature": 1, "seed": 7});
    assert_eq!(word(seeded.clone()), None);
    let mut alone = seeded;
    alone["speculation"] = json!({"method": "off"});
    assert_eq!(word(alone.clone()).as_deref(), Some("miss"));
    assert_eq!(word(alone).as_deref(), Some("hit"));
}

#[test]
fn a_report_of_usage_leaves_an_empty_file_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("usage");
    std::fs::write(&file, "").expect("written");
    let path = file.to_str().expect("UTF-8");
    pelton(&["usage", "--usage-file", path]).assert_refused(&[path, "empty", "--usage-file"]);
    assert_eq!(std::fs::metadata(&file).expect("there").len(), 0);
}
