//! Every seed of the fuzz targets, as a plain test.

#[path = "../../../fuzz/cases/checkpoint.rs"]
mod checkpoint;
#[path = "../../../fuzz/cases/config.rs"]
mod config;
#[path = "../../../fuzz/cases/gguf.rs"]
mod gguf;
#[path = "../../../fuzz/cases/gguf_model.rs"]
mod gguf_model;
#[path = "../../../fuzz/cases/packed_cache.rs"]
mod packed_cache;
#[path = "../../../fuzz/cases/safetensors.rs"]
mod safetensors;
#[path = "../../../fuzz/cases/split_gguf.rs"]
mod split_gguf;
#[path = "../../../fuzz/cases/template.rs"]
mod template;
#[path = "../../../fuzz/cases/tokenizer.rs"]
mod tokenizer;
#[path = "../../../fuzz/cases/tokenizer_folder.rs"]
mod tokenizer_folder;
#[path = "../../../fuzz/cases/tool_parser.rs"]
mod tool_parser;
#[path = "../../../fuzz/cases/trace.rs"]
mod trace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A function that runs a target on an input.
type Run = fn(&[u8]);

/// A target, and the folder of its seeds.
const TARGETS: [(&str, Run); 11] = [
    ("checkpoint", checkpoint::run),
    ("config", config::run),
    ("gguf_model", gguf_model::run),
    ("packed_cache", packed_cache::run),
    ("safetensors", safetensors::run),
    ("split_gguf", split_gguf::run),
    ("template", template::run),
    ("tokenizer", tokenizer::run),
    ("tokenizer_folder", tokenizer_folder::run),
    ("tool_parser", tool_parser::run),
    ("trace", trace::run),
];
/// Replayed by tests inside of their crates.
const ELSEWHERE: [&str; 10] = [
    "chat_body",
    "completions_body",
    "embeddings_body",
    "grammar",
    "messages_body",
    "rerank_body",
    "responses_body",
    "score_body",
    "serve_yaml",
    "sse",
];

fn fuzz(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(folder)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8").to_owned()
}

/// Each seed, and each with its end cut off.
fn replay(run: Run, folder: &Path) {
    for seed in entries(folder) {
        let bytes = std::fs::read(&seed).expect("a seed");
        println!("{}", seed.display());
        run(&bytes);
        run(&bytes[..bytes.len() / 2]);
    }
}

#[test]
fn no_seed_makes_a_target_panic() {
    for (target, run) in TARGETS {
        replay(run, &fuzz("seeds").join(target));
    }
    replay(gguf::run, &fuzz("seeds/gguf_model"));
}

#[test]
fn every_folder_of_seeds_is_replayed() {
    let folders: BTreeSet<String> = entries(&fuzz("seeds")).iter().map(|path| stem(path)).collect();
    let targets = TARGETS.iter().map(|(target, _)| *target).chain(ELSEWHERE);
    assert_eq!(folders, targets.map(str::to_owned).collect());
}
