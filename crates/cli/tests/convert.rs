//! `pelton convert`, through the real binary: what comes out says what went in.

use std::path::Path;

use crate::common::pelton;
use pelton_testkit::TinyModel;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is UTF-8")
}

/// A tiny model in `folder/tiny`.
fn tiny(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("tiny");
    std::fs::create_dir(&path).expect("a folder");
    TinyModel::default().write_folder(&path);
    path
}

/// The greedy tokens that a model continues a text with.
fn tokens(model: &Path) -> serde_json::Value {
    let flags = ["--raw", "--temperature", "0", "--json", "-n", "8", "--ignore-eos", "-m"];
    let args = [&["run", "the moth"][..], &flags, &[text(model)]].concat();
    pelton(&args).json()["tokens"].clone()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

#[test]
fn a_folder_becomes_a_file_and_the_file_parts_and_all_give_the_same_tokens() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let expected = tokens(&model);
    let whole = folder.path().join("whole.gguf");
    let report = pelton(&["convert", text(&model), text(&whole), "--json"]).json();
    assert_eq!(report["outputs"], serde_json::json!([text(&whole)]));
    assert_eq!(report["architecture"], "LlamaForCausalLM");
    assert_eq!(tokens(&whole), expected);

    let part = folder.path().join("part.gguf");
    let args = ["convert", text(&whole), text(&part), "--split-max-size", "40k", "--json"];
    let report = pelton(&args).json();
    let parts = report["outputs"].as_array().expect("files");
    assert!(parts.len() > 1 && !part.exists(), "{parts:?}");
    for part in parts {
        assert_eq!(tokens(Path::new(part.as_str().expect("a path"))), expected);
    }
    let last = parts[parts.len() - 1].as_str().expect("a path");
    let again = folder.path().join("again.gguf");
    pelton(&["convert", last, text(&again)]).assert_answered();
    assert_eq!(tokens(&again), expected);

    std::fs::remove_file(last).expect("removed");
    let first = parts[0].as_str().expect("a path");
    pelton(&["run", "-m", first, "x"]).assert_refused(&[last, "is missing"]);
}

#[test]
fn a_format_is_told_by_the_table_and_by_the_file() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let out = folder.path().join("out.gguf");
    let outcome = pelton(&["convert", text(&model), text(&out), "--format", "q8_0"]);
    outcome.assert_answered();
    for part in ["out.gguf", "LlamaForCausalLM", "of type Q8_0", "of type F32", "bits per weight"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
    let flags = ["--embedding-format", "f16", "--force", "--json"];
    let args = [&["convert", text(&out), text(&out), "--format", "q4_0"][..], &flags].concat();
    let report = pelton(&args).json();
    assert_eq!(report["tensors"]["F16"]["n_tensors"], 1);
    assert!(report["tensors"]["Q4_0"]["n_tensors"].as_u64() > Some(4), "{report}");
    assert_eq!(report["tensors"]["Q8_0"], serde_json::Value::Null);
    pelton(&["inspect", text(&out)]).assert_answered();
}

#[test]
fn what_cannot_be_converted_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let out = folder.path().join("out.gguf");
    let (input, output) = (text(&model), text(&out));
    let refused = |more: &[&str], parts: &[&str]| {
        pelton(&[&["convert"][..], more].concat()).assert_refused(parts);
        assert_eq!(names(folder.path()), ["tiny"], "{more:?}");
    };
    refused(&[input, "out.bin"], &["out.bin", "ends in .gguf"]);
    refused(&[input], &["OUTPUT"]);
    refused(&[input, output, "--format", "q9_9"], &["q9_9", "Q4_K"]);
    refused(&[input, output, "--head-format", "q6_k"], &["head is its embedding table"]);
    refused(&[input, output, "--split-max-size", "none"], &["--split-max-size", "500M"]);
    refused(&[input, output, "--split-max-size", "0"], &["--split-max-size"]);
    refused(&["nothing-here/at-all/x", output], &["nothing-here"]);
    refused(&[input, text(&folder.path().join("no/out.gguf"))], &["no/out.gguf"]);

    std::fs::write(&out, "precious").expect("written");
    pelton(&["convert", input, output]).assert_refused(&["out.gguf", "already", "--force"]);
    assert_eq!(std::fs::read_to_string(&out).expect("there"), "precious");
    pelton(&["convert", input, output, "--force"]).assert_answered();
    assert_eq!(names(folder.path()), ["out.gguf", "tiny"]);
}
