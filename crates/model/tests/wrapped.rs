//! A text model inside of a model of more than text is the text model, whatever its tensors are called.

use std::path::Path;

use crate::common::{Golden, bits, golden, run_whole};
use pelton_model::{Compute, KvDtype, ModelFiles, inspect};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use serde_json::{Value, json};

/// The inner name of a tensor of the text.
type Rename = fn(&str) -> String;

/// As first written, since transformers 4.52, and by Idefics.
const MANNERS: [Rename; 3] = [
    |name| format!("language_model.{name}"),
    |name| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    },
    |name| match name.strip_prefix("model.") {
        Some(rest) => format!("model.text_model.{rest}"),
        None => name.to_owned(),
    },
];

/// Writes the fixture as a part of something.
fn wrap(golden: &Golden, class: &str, rename: Rename, into: &Path) {
    let read = |name: &str| std::fs::read(golden.folder().join(name)).expect(name);
    let mut text: Value = serde_json::from_slice(&read("config.json")).expect("JSON");
    text.as_object_mut().expect("an object").remove("architectures");
    let config = json!({
        "architectures": [class], "text_config": text, "vision_config": {"hidden_size": 7},
    });
    std::fs::write(into.join("config.json"), config.to_string()).expect("written");
    let weights =
        Safetensors::open_file(&golden.folder().join("model.safetensors")).expect("opens");
    let views: Vec<_> = weights.names().into_iter().filter_map(|name| weights.get(name)).collect();
    let mut names: Vec<String> = views.iter().map(|view| rename(view.name)).collect();
    names.extend(
        ["vision_tower.patch.weight", "model.multi_modal_projector.norm.weight"].map(Into::into),
    );
    let zeros = [0_u8; 24];
    let other = |_| TensorView { name: "", dtype: DType::F32, shape: &[2, 3], data: &zeros };
    let views = views.iter().copied().chain([0, 1].map(other));
    let views: Vec<_> =
        names.iter().zip(views).map(|(name, view)| TensorView { name, ..view }).collect();
    write_safetensors(&into.join("model.safetensors"), &views, &Default::default())
        .expect("written");
}

#[test]
fn the_text_of_a_wrapped_model_has_the_logits_of_the_model_alone() {
    let cases = [
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("mistral", "Mistral3ForConditionalGeneration"),
        ("llama", "LlavaForConditionalGeneration"),
        ("qwen2", "LlavaOnevisionForConditionalGeneration"),
        ("cohere2", "AyaVisionForConditionalGeneration"),
    ];
    for (name, class) in cases {
        let golden = golden(name);
        let alone =
            bits(&run_whole(&mut golden.load(&golden.files(), Compute::F32), &golden.tokens()));
        for rename in MANNERS {
            let folder = tempfile::tempdir().expect("temp");
            wrap(&golden, class, rename, folder.path());
            let files = ModelFiles::open(folder.path()).expect(name);
            let inside = run_whole(&mut golden.load(&files, Compute::F32), &golden.tokens());
            assert_eq!(bits(&inside), alone, "{name} in {class}, {}", rename("model.x"));
        }
    }
}

#[test]
fn inspection_says_what_is_not_run() {
    let golden = golden("gemma3");
    for rename in MANNERS {
        let folder = tempfile::tempdir().expect("temp");
        wrap(&golden, "Gemma3ForConditionalGeneration", rename, folder.path());
        let files = ModelFiles::open(folder.path()).expect("opens");
        let facts = inspect(&files, KvDtype::Bf16).expect("a text model");
        let ignored = facts.ignored.expect("a wrapped model");
        assert_eq!(ignored.wrapper, "Gemma3ForConditionalGeneration");
        let parts: Vec<_> =
            ignored.parts.iter().map(|(name, totals)| (name.as_str(), totals.n_bytes)).collect();
        assert_eq!(parts, [("multi_modal_projector", 24), ("vision_tower", 24)]);
        let alone = inspect(&golden.files(), KvDtype::Bf16).expect("a text model");
        assert_eq!((alone.ignored, alone.weight_bytes), (None, facts.weight_bytes));
    }
}

#[test]
fn a_wrapper_of_another_kind_is_refused_by_name() {
    let golden = golden("gemma");
    let folder = tempfile::tempdir().expect("temp");
    wrap(&golden, "PaliGemmaForConditionalGeneration", MANNERS[0], folder.path());
    let error = ModelFiles::open(folder.path()).expect_err("another kind").to_string();
    assert!(error.contains("PaliGemmaForConditionalGeneration"), "{error}");
}
