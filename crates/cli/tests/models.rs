//! `pelton pull`, `list`, `show` and `rm`, against a small hub of our own and caches of the test.

#[path = "../../llm/tests/small_hub/mod.rs"]
mod small_hub;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Outcome, bare_config, command, outcome, signal};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use serde_json::json;
use small_hub::{SmallHub, State, sha256};

/// A user's home without any cache.
struct Home {
    folder: tempfile::TempDir,
    endpoint: String,
}

impl Home {
    /// A home whose hub is at this address; port 1 answers to nobody.
    fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, endpoint: endpoint.to_owned() }
    }

    fn without_network() -> Self {
        Self::new("http://127.0.0.1:1")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in ["HF_HOME", "HF_TOKEN", "XDG_CACHE_HOME", "OLLAMA_MODELS", "LLAMA_CACHE"] {
            command.env_remove(name);
        }
        command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", &self.endpoint);
        command.env("HOME", self.folder.path()).env("HF_HUB_CACHE", self.cache());
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        outcome(&self.command(args).output().expect("the binary starts"))
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    /// Sizes of unfinished downloads.
    fn partial_bytes(&self) -> Vec<u64> {
        let blobs = std::fs::read_dir(self.cache().join("models--org--name/blobs"));
        let entries = blobs.into_iter().flatten().flatten();
        let partial = entries.filter(|e| e.path().extension().is_some_and(|e| e == "incomplete"));
        partial.map(|entry| entry.metadata().map_or(0, |m| m.len())).collect()
    }
}

/// A small model as the bytes of a GGUF file.
fn tiny_gguf() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    TinyModel::default().write_gguf(&path, DType::Q8_0);
    std::fs::read(path).expect("written")
}

/// A hub with this model in two formats.
fn hub(model: &[u8]) -> SmallHub {
    let file = |name: &str| (name.to_owned(), model.to_vec());
    let files = BTreeMap::from([file("tiny-Q4_K_M.gguf"), file("tiny-Q8_0.gguf")]);
    SmallHub::start(State { files, ranges: true, ..State::default() })
}

/// Waits until something is so.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_model_is_pulled_listed_shown_run_and_removed() {
    let model = tiny_gguf();
    let hub = hub(&model);
    let home = Home::new(&hub.endpoint);
    assert_eq!(home.run(&["list", "--json"]).json(), serde_json::json!([]));
    let pulled = home.run(&["pull", "org/name:q8_0"]);
    pulled.assert_answered();
    let path = PathBuf::from(pulled.stdout.trim_end());
    assert_eq!(std::fs::read(&path).expect("the path that is printed"), model);
    assert!(pulled.stderr.contains("`pelton run -m org/name:q8_0`"), "{}", pulled.stderr);
    let again = home.run(&["pull", "org/name:Q8_0", "--json"]).json();
    assert_eq!(again["fetched_bytes"], 0, "{again}");

    let list = home.run(&["list"]);
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", list.stdout);
    for word in ["org/name:Q8_0", "GGUF Q8_0", "Hugging Face"] {
        assert!(lines[1].contains(word), "{word}: {}", lines[1]);
    }
    let show = home.run(&["show", "org/name"]);
    for word in ["org/name:Q8_0", "LlamaForCausalLM", "256 tokens", small_hub::COMMIT] {
        assert!(show.stdout.contains(word), "{word}: {}", show.stdout);
    }
    assert_eq!(home.run(&["show", "org/name:Q8_0", "--json"]).json()["model"]["n_layers"], 2);

    // The format is found in the cache, and nothing is asked of the hub.
    let run = ["run", "-m", "org/name:Q8_0", "--raw", "-n", "1", "-q", "x"];
    let offline = home.command(&run).env("HF_HUB_OFFLINE", "1").output().expect("it starts");
    outcome(&offline).assert_answered();
    home.run(&["rm", "org/name:Q4_K_M"]).assert_refused(&["Q4_K_M"]);
    let removed = home.run(&["rm", "org/name:Q8_0"]);
    removed.assert_answered();
    assert!(removed.stdout.starts_with("removed org/name:Q8_0 ("), "{}", removed.stdout);
    assert!(!path.exists() && !home.cache().join("models--org--name").exists());
    home.run(&["rm", "org/name"]).assert_refused(&["not on this machine", "pelton list"]);
}

#[test]
fn ctrl_c_leaves_what_the_next_pull_goes_on_with() {
    let model = tiny_gguf();
    let hub = hub(&model);
    hub.change(|state| state.stall_after = Some(10_000));
    let home = Home::new(&hub.endpoint);
    for args in [&["pull", "org/name:Q8_0"][..], &["run", "-m", "org/name:Q8_0", "x"]] {
        let mut pull = home
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        wait_until("the first bytes", || {
            home.partial_bytes().first().is_some_and(|n| *n >= 10_000)
        });
        // `run` listens from the first byte that arrives in this process.
        if args[0] == "run" {
            wait_until("a request for the rest", || hub.log().iter().any(|l| l.contains("bytes=")));
            std::thread::sleep(Duration::from_millis(500));
        }
        signal("INT", pull.id());
        let status = pull.wait().expect("it ends");
        let mut said = String::new();
        pull.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(said.contains("is kept, and the same command goes on"), "{said}");
    }
    let list = home.run(&["list"]).stdout;
    assert!(
        list.contains("org/name") && list.contains("not whole: `pelton pull` goes on"),
        "{list}"
    );
    let offline = ["run", "-m", "org/name:Q8_0", "x"];
    let offline = home.command(&offline).env("HF_HUB_OFFLINE", "1").output().expect("it starts");
    outcome(&offline).assert_refused(&["only partly", "pelton pull org/name:Q8_0"]);

    hub.change(|state| state.stall_after = None);
    hub.log();
    let pulled = home.run(&["pull", "org/name:Q8_0"]);
    pulled.assert_answered();
    assert_eq!(std::fs::read(pulled.stdout.trim_end()).expect("whole"), model);
    let ranges = hub.log().into_iter().filter(|line| line.starts_with("GET /org"));
    assert!(ranges.clone().all(|line| !line.contains(" - ")), "{:?}", ranges.collect::<Vec<_>>());
}

#[test]
fn two_pulls_of_one_model_both_end_with_it() {
    let model = tiny_gguf();
    let hub = hub(&model);
    hub.change(|state| state.pause = Duration::from_millis(300));
    let home = Home::new(&hub.endpoint);
    let pulls: Vec<_> = (0..3)
        .map(|_| {
            let mut command = home.command(&["pull", "org/name:Q8_0"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        })
        .collect();
    for pull in pulls {
        let outcome = outcome(&pull.wait_with_output().expect("it ends"));
        outcome.assert_answered();
        let path = outcome.stdout.trim_end().to_owned();
        assert_eq!(std::fs::read(path).expect("whole"), model);
    }
    let n_fetched = hub.log().iter().filter(|line| line.starts_with("GET /org")).count();
    assert_eq!(n_fetched, 1);
    assert_eq!(home.partial_bytes(), [0_u64; 0]);
}

#[test]
fn a_hub_that_is_not_there_or_no_hub_is_one_line() {
    let home = Home::without_network();
    for args in [&["pull", "org/name"][..], &["run", "-m", "org/name", "x"]] {
        home.run(args).assert_refused(&["127.0.0.1:1", "refused", "pelton list"]);
    }
    let mut impatient = home.command(&["pull", "org/name"]);
    impatient.env("HF_HUB_DOWNLOAD_TIMEOUT", "0");
    let said = outcome(&impatient.output().expect("the binary starts")).stderr;
    assert!(said.contains("HF_HUB_DOWNLOAD_TIMEOUT=0: expected seconds from 1"), "{said}");
    let nowhere = Home::new("http://hub.invalid").run(&["pull", "org/name"]);
    assert_eq!(nowhere.code, Some(2), "{}", nowhere.stderr);
    assert!(nowhere.stderr.contains("there is no such host, or no network"), "{}", nowhere.stderr);
    assert!(!nowhere.stderr.contains("trying again"), "{}", nowhere.stderr);
    let hub = SmallHub::start(State { is_web_page: true, ..State::default() });
    Home::new(&hub.endpoint).run(&["pull", "org/name"]).assert_refused(&["a web page came"]);
    let hub = SmallHub::start(State::default());
    Home::new(&hub.endpoint).run(&["pull", "org/name"]).assert_refused(&["neither config.json"]);
    Home::new(&hub.endpoint).run(&["pull", "org/none"]).assert_refused(&["404", "HF_TOKEN"]);
    home.run(&["pull", "qwen3:0.6b"]).assert_refused(&["pelton pull Qwen/Qwen3-0.6B-GGUF:Q8_0"]);
}

#[test]
fn a_model_of_the_hub_is_planned_without_its_weights() {
    let model = tiny_gguf();
    let hub = hub(&model);
    let config = std::fs::read(bare_config(tempfile::tempdir().expect("temp").path()));
    hub.change(|state| {
        state.files.insert("config.json".to_owned(), config.expect("written"));
        state.files.insert("model.safetensors".to_owned(), vec![0; 1 << 20]);
    });
    let home = Home::new(&hub.endpoint);
    let temporary = tempfile::tempdir().expect("temp");
    let plan = |more: &[&str]| {
        let args = [&["plan", "--hardware", "h100-sxm", "--json"], more].concat();
        let mut command = home.command(&args);
        outcome(&command.env("TMPDIR", temporary.path()).output().expect("the binary starts"))
    };
    let told = plan(&["org/name"]).json();
    assert_eq!(
        (&told["model"]["name"], &told["weights"]["format"]),
        (&json!("org/name"), &json!("bf16"))
    );
    assert_eq!(told["kv"]["token_bytes"], 128 << 10);
    let weights =
        |log: Vec<String>| log.into_iter().filter(|line| line.contains("safetensors")).count();
    assert_eq!(weights(hub.log()), 0);
    assert_eq!(home.run(&["list", "--json"]).json(), json!([]), "a configuration is no model");

    let named = plan(&["org/name:Q8_0", "--context", "64"]).json();
    let path = home.folder.path().join("tiny.gguf");
    std::fs::write(&path, &model).expect("written");
    let local = plan(&[path.to_str().expect("UTF-8"), "--context", "64"]).json();
    assert_eq!(named["model"]["name"], "org/name:Q8_0");
    for part in ["weights", "kv", "fit", "formats", "times"] {
        assert_eq!(named[part], local[part], "{part}");
    }
    let advice = ["plan", "advise", "org/name", "--hardware", "h100-sxm", "--json"];
    assert_eq!(home.run(&advice).json()["model"], "org/name");

    // A fetched file is there without the hub; any other is refused in one line.
    let offline = |name: &str| {
        let args = ["plan", name, "--hardware", "h100-sxm"];
        outcome(&home.command(&args).env("HF_HUB_OFFLINE", "1").output().expect("it starts"))
    };
    offline("org/name").assert_answered();
    offline("org/name:Q8_0").assert_refused(&["(in the cache)"]);
    offline("org/none").assert_refused(&["org/none", "HF_HUB_OFFLINE", "config.json"]);
    plan(&["org/none"]).assert_refused(&["404", "HF_TOKEN"]);
    plan(&["org/name:Q3_K"]).assert_refused(&["Q3_K", "tiny-Q8_0.gguf"]);
    let nowhere = Home::without_network();
    nowhere.run(&["plan", "org/name"]).assert_refused(&["127.0.0.1:1", "refused"]);
    hub.change(|state| drop(state.files.insert("tiny-Q8_0.gguf".to_owned(), b"<html>".to_vec())));
    plan(&["org/name:Q8_0"]).assert_refused(&["tiny-Q8_0.gguf", "magic"]);
    let left = std::fs::read_dir(temporary.path()).expect("listed").count();
    assert_eq!(left, 0, "headers are not kept");
}

#[test]
fn models_of_ollama_and_llama_cpp_are_listed_and_run_where_they_lie() {
    let home = Home::without_network();
    let model = tiny_gguf();
    let write = |path: &str, bytes: &[u8]| {
        let path = home.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, bytes).expect("written");
    };
    let (hash, n) = (sha256(&model), model.len());
    let manifest = serde_json::json!({
        "config": { "mediaType": "x", "digest": format!("sha256:{hash}"), "size": n },
        "layers": [{
            "mediaType": "application/vnd.ollama.image.model",
            "digest": format!("sha256:{hash}"),
            "size": n,
        }],
    });
    let ollama = ".ollama/models";
    write(
        &format!("{ollama}/manifests/registry.ollama.ai/library/tiny/1b"),
        manifest.to_string().as_bytes(),
    );
    write(&format!("{ollama}/blobs/sha256-{hash}"), &model);
    write(".cache/llama.cpp/org_tiny-Q8_0.gguf", &model);

    let list = home.run(&["list", "--json"]).json();
    let facts: Vec<_> = (list.as_array().expect("an array").iter())
        .map(|m| (m["name"].as_str(), m["store"].as_str(), m["n_bytes"].as_u64()))
        .collect();
    let n = Some(n as u64);
    assert_eq!(
        facts,
        [(Some("tiny:1b"), Some("ollama"), n), (Some("org_tiny-Q8_0.gguf"), Some("llama-cpp"), n)]
    );
    for name in ["tiny:1b", "org_tiny-Q8_0.gguf"] {
        let run = ["run", "-m", name, "--raw", "-n", "1", "--json", "x"];
        assert_eq!(home.run(&run).json()["model"], name);
        home.run(&["rm", name]).assert_refused(&["belongs to"]);
    }
    home.run(&["rm", "tiny:1b"]).assert_refused(&["ollama rm tiny:1b"]);
    home.run(&["inspect", "tiny:2b"]).assert_refused(&["did you mean `tiny:1b`"]);
    assert!(Path::new(&home.folder.path().join(ollama)).exists());
}
