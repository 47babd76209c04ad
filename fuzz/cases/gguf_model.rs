//! Any bytes are a GGUF model whose spec, tensors and memory agree, with a vocabulary or without,
//! or an error of one line; never a panic, never memory that the metadata merely claims.

use pelton_model::{KvDtype, ModelFiles, check, inspect};
use pelton_testkit::MemoryFolder;
use pelton_text::GgufVocab;

pub(crate) fn run(bytes: &[u8]) {
    let folder = MemoryFolder::new();
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, bytes).expect("written");
    let files = match ModelFiles::open(&file) {
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
