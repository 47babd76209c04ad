//! `--packed-cache`, through the real binary: what it says and that it changes no token.

use std::path::{Path, PathBuf};

use crate::common::{Outcome, command, pelton};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

fn model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    TinyModel::default().write_gguf(&path, DType::Q8_0);
    path
}

/// A short greedy answer as JSON, with more flags.
fn answer(model: &Path, more: &[&str]) -> Outcome {
    let model = model.to_str().expect("text");
    let mut args = vec!["run", "the moth", "--raw", "--temperature", "0", "--json", "-m", model];
    args.extend(["--max-tokens", "6", "--ignore-eos"]);
    args.extend(more);
    pelton(&args)
}

#[test]
fn the_second_start_says_that_it_hits_and_generates_the_same() {
    let folder = tempfile::tempdir().expect("temp");
    let model = model(folder.path());
    let plain = answer(&model, &[]).json()["tokens"].clone();
    let cache = folder.path().join("tiny.gguf.pelton-packed");
    assert!(!cache.exists(), "off unless asked for");
    for said in ["no cache yet", "cache hit"] {
        let outcome = answer(&model, &["--packed-cache", "-v"]);
        assert!(outcome.stderr.contains(said), "`{said}` is missing in: {}", outcome.stderr);
        assert!(outcome.stderr.contains("tiny.gguf.pelton-packed"), "{}", outcome.stderr);
        assert_eq!(outcome.json()["tokens"], plain);
    }
    let quiet = answer(&model, &["--packed-cache"]);
    assert_eq!(quiet.stderr, "", "a hit is no news");
}

#[test]
fn a_cache_that_is_not_used_or_not_written_is_one_warning() {
    let folder = tempfile::tempdir().expect("temp");
    let model = model(folder.path());
    let plain = answer(&model, &[]).json()["tokens"].clone();
    let cache = folder.path().join("tiny.gguf.pelton-packed");
    std::fs::write(&cache, "nonsense").expect("written");
    let inside_a_file = format!("--packed-cache={}", model.join("x").display());
    for (flag, said) in [
        ("--packed-cache", "is not used: length"),
        (&inside_a_file, "are not kept: Not a directory"),
    ] {
        let outcome = answer(&model, &[flag]);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        for part in ["WARN", "tiny.gguf", said] {
            assert!(outcome.stderr.contains(part), "`{part}` is missing in: {}", outcome.stderr);
        }
        assert_eq!(outcome.json()["tokens"], plain);
    }
}

#[test]
fn the_variable_works_like_the_flag() {
    let folder = tempfile::tempdir().expect("temp");
    let model = model(folder.path());
    let home = folder.path().join("home");
    let table = [("", false), (home.to_str().expect("text"), true)];
    for (value, is_kept) in table {
        let model = model.to_str().expect("text");
        let mut command = command(&["run", "x", "--raw", "-q", "-n", "1", "-m", model]);
        let output = command.env("PELTON_PACKED_CACHE", value).output().expect("the binary starts");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(home.exists(), is_kept, "`{value}`");
    }
}
