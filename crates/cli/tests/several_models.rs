//! Several models in one `pelton serve`, through the real binary: the list of the file, and its
//! mistakes.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::server::Server;
use common::{Outcome, command, outcome, signal};
use serde_json::{Value, json};

const LIST: &str = "
max_context: 128
models:
  - {name: tales, model: story, aliases: [gpt-4o]}
  - {name: draft, model: story-draft, preload: false, max_context: 64, spec: suffix}
  - {name: vectors, model: story, embeddings: true, preload: false}
";

/// Writes a file of settings; the folder goes when it is dropped.
fn config(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

fn run(args: &[&str]) -> Outcome {
    outcome(&command(args).output().expect("the binary starts"))
}

/// The models by name, with one of their fields.
fn field(server: &Server, name: &str) -> Vec<Value> {
    let host = format!("host: {}\r\n", server.address());
    let answer = server.get("/v1/models", &host);
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let list: Value = serde_json::from_str(body).expect("JSON");
    let list = list["data"].as_array().expect("a list").clone();
    list.iter().map(|model| model[name].clone()).collect()
}

#[test]
fn text_drafts_and_vectors_come_from_one_server() {
    let (_folder, path) = config(LIST);
    let server = Server::start(&["--config", &path]).expect("it listens");
    assert_eq!(field(&server, "state"), ["loaded", "unloaded", "unloaded"]);
    let complete = |model: &str| {
        let body = json!({"model": model, "prompt": "Once", "max_tokens": 5, "temperature": 0});
        server.post("/v1/completions", &body).expect("answered")
    };
    let tale = complete("gpt-4o");
    assert_eq!(tale["model"], "tales");
    assert_eq!(complete("draft")["model"], "draft");
    let body = json!({"model": "vectors", "input": "Once"});
    let vectors = server.post("/v1/embeddings", &body).expect("answered");
    assert_eq!(vectors["model"], "vectors", "{vectors}");
    assert_eq!(field(&server, "state"), ["loaded", "loaded", "loaded"]);
    assert_eq!(field(&server, "max_model_len"), [128, 64, 128]);
    let reloaded = server.post("/models/reload", &json!({"model": "tales"})).expect("reloaded");
    assert_eq!(reloaded["version"], 2);
    assert_eq!(complete("tales")["choices"], tale["choices"], "the same weights");
}

#[test]
fn rules_of_the_file_choose_a_model() {
    let (_folder, path) = config(
        "
max_context: 128
models:
  - {name: small, model: story-draft}
  - {name: big, model: story}
auto:
  - {to: big, when: {min_characters: 30}}
  - {to: small}
degrade:
  - {from: big, to: small, headroom_below: -1}
",
    );
    let checked = run(&["serve", "--config", &path, "--check-config"]);
    checked.assert_answered();
    for line in ["auto:", "    min_characters: 30", "degrade:", "- from: big"] {
        assert!(checked.stdout.lines().any(|printed| printed == line), "{}", checked.stdout);
    }
    let server = Server::start(&["--config", &path]).expect("it listens");
    for (prompt, model) in [("Once", "small"), ("Once upon a time there was a king", "big")] {
        let body = json!({"model": "auto", "prompt": prompt, "max_tokens": 3});
        let answer = server.post("/v1/completions", &body).expect("answered");
        assert_eq!(answer["model"], model, "{answer}");
    }
}

#[test]
fn a_model_that_is_not_here_yet_is_mentioned_when_settings_are_checked() {
    let (_folder, path) = config("models: [{model: story}, {model: ./nothing, name: b}]");
    let checked = run(&["serve", "--config", &path, "--check-config"]);
    checked.assert_answered();
    let notes: Vec<&str> = checked.stderr.lines().collect();
    assert!(
        matches!(notes[..], [note] if note.starts_with("note: no model `./nothing`")),
        "{notes:?}"
    );
}

/// Steps of each engine so far.
fn steps(server: &Server) -> [u64; 2] {
    let metrics = server.get("/metrics", "host: localhost\r\n");
    ["a", "b"].map(|name| {
        let series = format!("pelton_scheduler_steps_total{{model_name=\"{name}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {series} in {metrics}"))
    })
}

#[test]
fn a_model_with_one_client_gets_as_many_turns_as_one_with_many() {
    let (_folder, path) = config(
        "{threads: 2, max_context: 512, prefix_cache: false,
          models: [{name: a, model: story}, {name: b, model: story}]}",
    );
    let server = &Server::start(&["--config", &path]).expect("it listens");
    let is_over = &AtomicBool::new(false);
    let ask = |model: &'static str| {
        move || {
            while !is_over.load(Ordering::SeqCst) {
                let body = json!({"model": model, "prompt": "Once", "max_tokens": 200,
                    "ignore_eos": true, "temperature": 0});
                let answer = server.post("/v1/completions", &body).expect("answered");
                assert_eq!(answer["usage"]["completion_tokens"], 200, "{answer}");
            }
        }
    };
    std::thread::scope(|scope| {
        for model in ["a", "a", "a", "a", "b"] {
            scope.spawn(ask(model));
        }
        // Both are at work before the turns are counted.
        while steps(server).contains(&0) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = steps(server);
        std::thread::sleep(Duration::from_millis(1500));
        let after = steps(server);
        is_over.store(true, Ordering::SeqCst);
        let [a, b] = [after[0] - before[0], after[1] - before[1]];
        assert!(a.min(b) > 10, "{a} and {b} steps");
        // Turns alternate while both have requests; b has none between two of them. Between two turns
        // a has four tokens to sample and to send, and b takes the turns that a is not ready for.
        assert!(a <= 2 * b && b <= 5 * a, "{a} and {b} steps");
    });
}

#[test]
fn a_single_model_is_loaded_anew_on_demand_too() {
    let server = Server::start(&["--max-context", "64"]).expect("it listens");
    let reloaded = server.post("/models/reload", &json!({"model": "story"})).expect("reloaded");
    assert_eq!((&reloaded["version"], &reloaded["state"]), (&json!(2), &json!("loaded")));
}

/// Puts a file in the place of another one, whose bytes stay for the server that has it open.
fn replace(path: &str, bytes: &[u8]) {
    // Never half a file, which the server might read.
    let draft = format!("{path}.new");
    std::fs::write(&draft, bytes).expect("written");
    std::fs::rename(draft, path).expect("renamed");
}

#[test]
fn a_file_that_ends_early_leaves_the_loaded_version_in_place() {
    let whole = concat!(env!("CARGO_MANIFEST_DIR"), "/model/story-q8_0.gguf");
    let whole = std::fs::read(whole).expect("a model");
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("story.gguf");
    let path = path.to_str().expect("UTF-8");
    std::fs::write(path, &whole).expect("written");
    let server = Server::start(&["-m", path, "--max-context", "64"]).expect("it listens");
    let tokens = || {
        let body = json!({"prompt": "The moth", "max_tokens": 9, "temperature": 0,
                          "return_token_ids": true});
        let answer = server.post("/v1/completions", &body).expect("answered");
        answer["choices"][0]["token_ids"].clone()
    };
    let reload = || server.post("/models/reload", &json!({"model": "story"}));
    let expected = tokens();
    assert_eq!(expected.as_array().expect("a list").len(), 9);
    // In its head, in the first tensors, and in the last one.
    for n_bytes in [100, whole.len() / 2, whole.len() - 1] {
        replace(path, &whole[..n_bytes]);
        let refused = reload().expect_err("a file without its end");
        let (head, body) = refused.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 503"), "{refused}");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["error"]["code"], "model_not_loaded", "{body}");
        let message = body["error"]["message"].as_str().expect("text");
        assert!(message.contains("story.gguf"), "{message}");
        assert_eq!(tokens(), expected, "after {message}");
        assert_eq!(field(&server, "state"), ["loaded"]);
        assert_eq!(field(&server, "version"), [1]);
        let trouble = field(&server, "trouble");
        assert!(message.contains(trouble[0].as_str().expect("text")), "{trouble:?}: {message}");
    }
    replace(path, &whole);
    assert_eq!(reload().expect("a whole file")["version"], 2);
    assert_eq!(tokens(), expected);
    assert_eq!(field(&server, "trouble"), [Value::Null]);
}

#[cfg(unix)]
#[test]
fn sighup_reads_the_file_anew_and_a_mistake_in_it_changes_nothing() {
    let (_folder, path) = config("max_context: 128\nmodels: [{name: a, model: story}]\n");
    let server = Server::start(&["--config", &path]).expect("it listens");
    let hang_up = |text: &str| {
        replace(&path, text.as_bytes());
        signal("HUP", server.pid());
    };
    let until = |expected: &[&str]| {
        for _ in 0..500 {
            if field(&server, "id") == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{:?} instead of {expected:?}", field(&server, "id"));
    };
    hang_up("models: [{name: a, modle: story}]\n");
    hang_up("max_context: 64\nmodels: [{name: a, model: story}, {name: b, model: story-draft}]\n");
    until(&["a", "b"]);
    assert_eq!(field(&server, "max_model_len"), [64, 64]);
    assert_eq!(field(&server, "version"), [2, 1]);
    hang_up("max_context: 64\nmodels: [{name: b, model: story-draft}]\n");
    until(&["b"]);
    let body = json!({"model": "b", "prompt": "Once", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &body).expect("answered")["model"], "b");
}

#[cfg(unix)]
#[test]
fn sighup_names_the_changed_settings_that_need_a_restart() {
    let models = "models: [{name: a, model: story}]\n";
    let (_folder, path) = config(&format!("max_context: 128\n{models}"));
    let mut server = Server::start(&["--config", &path]).expect("it listens");
    let pid = server.pid();
    let mut hang_up = |text: &str, end: &str| {
        replace(&path, text.as_bytes());
        signal("HUP", pid);
        server.log_until(end)
    };
    let needs_restart = |lines: &[String]| -> Vec<String> {
        let keys = lines.iter().filter_map(|line| line.trim_end().split_once("needs a restart: "));
        keys.map(|(_, key)| key.to_owned()).collect()
    };
    let lines = hang_up("models: [{name: a, modle: story}]\n", "the settings stay as they are");
    assert!(lines.concat().contains("did you mean `model`?"), "{lines:?}");
    let lines = hang_up("", "the settings stay as they are");
    assert!(lines.concat().contains("the file is empty"), "{lines:?}");
    let end = "the settings were read anew";
    let changed = "max_waiting: 9\ntenants: [{name: red}]\n";
    let lines = hang_up(&format!("max_context: 64\n{changed}{models}"), end);
    assert_eq!(needs_restart(&lines), ["max_waiting", "tenants"], "{lines:?}");
    let lines = hang_up(&format!("max_context: 64\n{models}"), end);
    assert!(needs_restart(&lines).is_empty(), "they are those of the start again: {lines:?}");
}

#[test]
fn the_settings_of_each_model_are_printed() {
    let (_folder, path) = config(LIST);
    let checked = run(&["serve", "--config", &path, "--check-config"]);
    checked.assert_answered();
    for line in ["- name: tales", "- name: draft", "  max_context: 64", "  spec: suffix"] {
        assert!(checked.stdout.lines().any(|printed| printed == line), "{}", checked.stdout);
    }
}

#[test]
fn mistakes_in_the_list_name_the_model_and_the_way_out() {
    for (text, parts) in [
        ("models: [{name: a, model: story}, {name: a, model: story}]", &["`a`", "two models"][..]),
        (
            "models: [{name: a, model: story, aliases: [b]}, {name: b, model: story}]",
            &["`b`", "two models"],
        ),
        ("models: [{name: a}]", &["model `a`", "`model` is missing"]),
        ("models: [{model: story}, {aliases: [x]}]", &["`models[1]`", "`model` is missing"]),
        ("models: [{name: a, model: ./nowhere.gguf}, {model: story}]", &["model `a`", "nowhere"]),
        ("models: [{name: a, modle: story}]", &[":1:", "did you mean `model`?"]),
        ("models: [{name: a, model: story, port: 1}]", &["`port`", "outside of `models`"]),
        ("models: [{name: a, model: story, threads: 1}]", &["`threads`", "outside of `models`"]),
        ("models: [{name: a, model: story, max_context: 1}]", &["--max-context", "at least 2"]),
        ("models: [{name: a, model: story, keep_alive: -1}]", &["`keep_alive`", "seconds"]),
        ("models: [{name: a, model: story, keep_alive: soon}]", &[":1:"]),
        ("models: [story]", &[":1:10", "expected mapping"]),
        ("model: story-draft\nmodels: [{model: story}]", &["`models`", "`--model`", "entry"]),
        (
            "models_memory: 1MiB\nmodels: [{name: a, model: story}]",
            &["weights need", "MiB", "`models_memory` is 1 MiB"],
        ),
        ("auto: [{to: stroy}]", &["`auto[0]`", "no model `stroy`", "`story`"]),
        ("auto: [{to: story, when: {tools: true}}]", &["`auto[0]`", "last rule"]),
        ("auto: [{to: story, when: {min_chars: 3}}]", &[":1:", "min_chars", "min_characters"]),
        ("degrade: [{from: story, to: story, waiting_above: 1}]", &["`degrade[0]`", "same model"]),
        ("degrade: [{from: story, to: story, waiting_above: -1}]", &[":1:"]),
    ] {
        let (_folder, path) = config(text);
        let refused = run(&["serve", "--port", "0", "--config", &path]);
        refused.assert_refused(parts);
    }
}
