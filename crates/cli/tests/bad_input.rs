//! Every bad input ends in one clear line on stderr and exit code 2.

mod common;

use std::path::Path;

use common::{pelton, pelton_with_input};

#[test]
fn wrong_flags_are_refused_by_name() {
    let cases: [(&[&str], &[&str]); 10] = [
        (&[], &["no command", "pelton run"]),
        (&["fly"], &["fly"]),
        (&["run", "--temperature", "hot", "x"], &["--temperature", "hot"]),
        (&["run", "--temperature", "-1", "x"], &["--temperature", "from 0 to 100"]),
        (&["run", "--temperature", "nan", "x"], &["--temperature"]),
        (&["run", "--top-p", "1.5", "x"], &["--top-p", "at most 1"]),
        (&["run", "--min-p", "2", "x"], &["--min-p", "from 0 to 1"]),
        (&["run", "--max-tokens", "0", "x"], &["--max-tokens"]),
        (&["run", "Once", "upon"], &["upon", "quotes"]),
        (&["run", "--chat", "--raw", "x"], &["--chat", "--raw"]),
    ];
    for (args, parts) in cases {
        pelton(args).assert_refused(parts);
    }
}

#[test]
fn an_unusable_prompt_is_refused() {
    pelton(&["run", ""]).assert_refused(&["prompt is empty"]);
    pelton(&["run"]).assert_refused(&["prompt is empty"]);
    pelton(&["run", "-"]).assert_refused(&["prompt is empty"]);
    pelton_with_input(&["run"], b"caf\xe9").assert_refused(&["UTF-8", "offset 3"]);
    pelton_with_input(&["run", "-"], b"\xff\xfe").assert_refused(&["UTF-8", "offset 0"]);
    pelton(&["run", "--stop", "", "x"]).assert_refused(&["--stop"]);
}

#[test]
fn unusable_token_ids_are_refused() {
    pelton(&["run", "--tokens", ""]).assert_refused(&["--tokens"]);
    pelton(&["run", "--tokens", "1,x"]).assert_refused(&["--tokens", "`x`"]);
    pelton(&["run", "--tokens", "1", "text"]).assert_refused(&["--tokens"]);
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("nothing-here");
    for command in [["run", "-m"], ["serve", "-m"]] {
        let mut args = command.to_vec();
        args.push(text(&missing));
        if command[0] == "run" {
            args.push("x");
        }
        pelton(&args).assert_refused(&["nothing-here"]);
    }
    pelton(&["inspect", text(&missing)]).assert_refused(&["nothing-here"]);
    pelton(&["inspect", text(&folder.path().join("no.gguf"))]).assert_refused(&["no.gguf"]);
    pelton(&["inspect", text(folder.path())]).assert_refused(&["config.json"]);
}

#[test]
fn broken_model_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    let gguf = folder.path().join("broken.gguf");
    let broken: [&[u8]; 4] = [
        b"",
        b"GGUF",
        b"not a model at all",
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\0\0\0\0\0\0\0\0",
    ];
    for bytes in broken {
        write("broken.gguf", bytes);
        pelton(&["run", "-m", text(&gguf), "x"]).assert_refused(&["broken.gguf"]);
        pelton(&["inspect", text(&gguf)]).assert_refused(&["broken.gguf"]);
    }

    let configs: [(&str, &str); 4] = [
        ("{", "config.json"),
        ("[]", "config.json"),
        (r#"{"architectures": ["AbacusForCausalLM"], "hidden_size": 8}"#, "AbacusForCausalLM"),
        (r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 0}"#, "config.json"),
    ];
    write("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    for (config, part) in configs {
        write("config.json", config.as_bytes());
        pelton(&["run", "-m", text(folder.path()), "x"]).assert_refused(&[part]);
    }
}

#[test]
fn a_hub_model_is_not_fetched_when_offline() {
    let cache = tempfile::tempdir().expect("a folder");
    let output = common::command(&["run", "-m", "nobody/nothing", "x"])
        .env("HF_HUB_CACHE", cache.path())
        .output()
        .expect("the binary starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("HF_HUB_OFFLINE"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is UTF-8")
}
