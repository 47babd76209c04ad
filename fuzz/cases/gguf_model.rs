//! Any bytes are a GGUF model whose spec, tensors and memory agree, with a vocabulary or without, or an
//! error of one line; never a panic, never memory that the metadata merely claims.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use pelton_model::{KvDtype, ModelFiles, check, inspect};
use pelton_text::GgufVocab;

/// A file of this process in memory, where the system has such files.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    root.join(format!("pelton-fuzz-{}.gguf", std::process::id()))
});

pub(crate) fn run(bytes: &[u8]) {
    std::fs::write(&*FILE, bytes).expect("written");
    let files = match ModelFiles::open(&FILE) {
        Ok(files) => files,
        Err(error) => return one_line(&error.to_string()),
    };
    match check(&files) {
        Ok(()) => {
            let facts = inspect(&files, KvDtype::Bf16).expect("what can be loaded can be told");
            assert!(facts.n_layers > 0 && facts.weight_bytes > 0);
        }
        Err(error) => one_line(&error.to_string()),
    }
    let gguf = files.gguf().expect("a GGUF file");
    if let Err(error) = GgufVocab::from_gguf(gguf).and_then(GgufVocab::into_tokenizer) {
        one_line(&error.to_string());
    }
}

fn one_line(text: &str) {
    assert!(!text.contains('\n'), "{text:?}");
}
