//! Damaged checkpoints: each is answered with one line that names what is wrong.

use std::path::Path;

use pelton_model::{Compute, KvDtype, LoadOptions, ModelFiles, check, inspect, load_cpu};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    TinyModel::default().write_folder(folder.path());
    folder
}

fn edit_config(folder: &Path, key: &str, value: serde_json::Value) {
    let file = folder.join("config.json");
    let text = std::fs::read(&file).expect("config");
    let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    config[key] = value;
    std::fs::write(file, config.to_string()).expect("config");
}

/// The error of opening and loading.
fn refusal(path: &Path) -> String {
    let error = match ModelFiles::open(path) {
        Err(error) => error,
        Ok(files) => check(&files).expect_err("refused"),
    };
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_tiny_model_loads_from_every_kind_of_file() {
    let folder = folder();
    let options = LoadOptions { n_threads: Some(1), ..Default::default() };
    let decoder = load_cpu(&ModelFiles::open(folder.path()).expect("folder"), &options);
    assert_eq!(decoder.expect("loads").spec().vocab_size, 288);
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::Q8_0, DType::Q4_0] {
        let file = folder.path().join(format!("{dtype}.gguf"));
        TinyModel::default().write_gguf(&file, dtype);
        let files = ModelFiles::open(&file).expect("opens");
        let decoder = load_cpu(&files, &options).expect("loads");
        assert_eq!(decoder.spec().eos_tokens.len(), 2);
        let facts = inspect(&files, KvDtype::Bf16).expect("inspects");
        assert_eq!(facts.n_layers, 2);
        assert!(facts.tensors.contains_key(dtype.name()), "{:?}", facts.tensors);
    }
}

#[test]
fn a_missing_tensor_is_named_with_the_shape_expected() {
    let folder = folder();
    edit_config(folder.path(), "tie_word_embeddings", false.into());
    let text = refusal(folder.path());
    assert!(text.contains("lm_head.weight") && text.contains("[288, 64]"), "{text}");
    edit_config(folder.path(), "tie_word_embeddings", true.into());
    edit_config(folder.path(), "num_hidden_layers", 3.into());
    let text = refusal(folder.path());
    assert!(text.contains("model.layers.2.input_layernorm.weight"), "{text}");
}

#[test]
fn a_misshapen_tensor_is_named_with_both_shapes() {
    let folder = folder();
    edit_config(folder.path(), "vocab_size", 4_000_000.into());
    let text = refusal(folder.path());
    assert!(text.contains("embed_tokens") && text.contains("[4000000, 64]"), "{text}");
    assert!(text.contains("[288, 64]"), "{text}");
}

#[test]
fn truncated_files_are_refused() {
    let folder = folder();
    let weights = folder.path().join("model.safetensors");
    let gguf = folder.path().join("model.gguf");
    TinyModel::default().write_gguf(&gguf, DType::Q8_0);
    for file in [&weights, &gguf] {
        let bytes = std::fs::read(file).expect("file");
        for n in [0, 3, 8, 100, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(file, &bytes[..n]).expect("write");
            let path = if file == &weights { folder.path() } else { file.as_path() };
            let text = refusal(path);
            assert!(text.contains("model."), "{n}: {text}");
        }
    }
}

#[test]
fn what_is_not_a_model_is_said_to_be_none() {
    let empty = tempfile::tempdir().expect("temporary folder");
    assert!(refusal(empty.path()).contains("config.json"));
    assert!(refusal(&empty.path().join("nothing")).contains("nothing"));
}

#[test]
fn a_context_beyond_the_model_is_refused_with_the_most_possible() {
    let folder = folder();
    let files = ModelFiles::open(folder.path()).expect("opens");
    let options = LoadOptions {
        compute: Compute::F32,
        n_threads: Some(1),
        max_context: Some(257),
        ..Default::default()
    };
    let text = load_cpu(&files, &options).expect_err("too long").to_string();
    assert!(text.contains("257") && text.contains("256"), "{text}");
}

#[test]
fn progress_ends_with_the_whole_model() {
    let folder = folder();
    let files = ModelFiles::open(folder.path()).expect("opens");
    let last = std::cell::Cell::new(None);
    let progress = |progress| last.set(Some(progress));
    let options =
        LoadOptions { n_threads: Some(1), progress: Some(&progress), ..Default::default() };
    load_cpu(&files, &options).expect("loads");
    let last = last.get().expect("called");
    assert_eq!(last.n_bytes, last.n_total_bytes);
}
