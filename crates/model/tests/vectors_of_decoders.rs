//! Vectors that decoders make of whole texts, and what files say about them.

use std::path::Path;

use crate::common::golden;
use crate::vectors::{bits, decoder, rename_tensors, rows, worst_error};
use pelton_kernels::Kernels;
use pelton_model::embed::{EmbedSpec, Pooling, VectorModel};
use pelton_model::{ModelError, ModelFiles};
use pelton_tensor::{Safetensors, TensorSource};
use serde_json::json;

/// `[n, k]` of bf16.
fn matrix(folder: &Path, name: &str) -> Vec<f32> {
    let weights = Safetensors::open_folder(folder).expect("weights");
    let words = weights.get(name).expect(name).data.as_chunks::<2>().0.to_vec();
    words
        .into_iter()
        .map(|word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16))
        .collect()
}

#[test]
fn the_head_makes_the_reference_logits_of_the_rows_of_a_decoder() {
    for (name, head) in
        [("llama", "lm_head.weight"), ("qwen3", "lm_head.weight"), ("mistral", "lm_head.weight")]
    {
        let golden = golden(name);
        let mut model = decoder(&golden.files(), Kernels::best(), 1);
        let head = matrix(golden.folder(), head);
        let logits: Vec<Vec<f32>> = rows(&mut model, &golden.tokens())
            .iter()
            .map(|row| {
                let dot = |w: &[f32]| {
                    w.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
                };
                head.chunks_exact(row.len()).map(|w| dot(w) as f32).collect()
            })
            .collect();
        let error = golden.worst_error(&logits);
        assert!(error < 1e-4, "{name}: {error}");
    }
}

#[test]
fn a_decoder_saved_without_its_head_is_the_same_and_generates_nothing() {
    let golden = golden("qwen3");
    let text = golden.tokens();
    let with_head = golden.files();
    assert!(with_head.spec().expect("a spec").generates());
    assert!(!EmbedSpec::is_declared(&with_head).expect("opens"));
    let expected = rows(&mut decoder(&with_head, Kernels::best(), 1), &text);

    let base = tempfile::tempdir().expect("a folder");
    rename_tensors(golden.folder(), base.path(), |name| {
        name.strip_prefix("model.").unwrap_or_default().to_owned()
    });
    let config = std::fs::read(golden.folder().join("config.json")).expect("config");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    config["architectures"] = json!(["Qwen3Model"]);
    std::fs::write(base.path().join("config.json"), config.to_string()).expect("config");
    let files = ModelFiles::open(base.path()).expect("opens");
    assert!(EmbedSpec::is_declared(&files).expect("opens"));
    let got = rows(&mut decoder(&files, Kernels::best(), 1), &text);
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(bits(got), bits(expected));
    }
}

#[test]
fn the_last_token_of_a_decoder_is_its_last_row_in_any_batch() {
    let golden = golden("mistral");
    let text = golden.tokens();
    let expected = rows(&mut decoder(&golden.files(), Kernels::best(), 1), &text);
    let model = decoder(&golden.files(), Kernels::best(), 2);
    let spec = EmbedSpec::read(&golden.files(), model.spec()).expect("a spec");
    assert_eq!(spec.pooling, [Pooling::LastToken]);
    let spec = EmbedSpec { normalise: false, ..spec };
    let mut model = VectorModel::new(model, spec, text.len()).expect("memory");
    for (i, vector) in model.embed(&[&text[..5], &text, &text[..20]]).iter().enumerate() {
        assert_eq!(bits(vector), bits(&expected[[5, text.len(), 20][i] - 1]), "text {i}");
    }
}

/// A folder with the golden Llama and these files beside it.
fn with_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<EmbedSpec, ModelError>) {
    let golden = golden("llama");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.folder().join(name), folder.path().join(name)).expect("copy");
    }
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect(name);
    }
    let model = ModelFiles::open(folder.path()).expect("opens");
    let spec = EmbedSpec::read(&model, &model.spec().expect("a spec"));
    (folder, spec)
}

const POOLING: &str = r#"{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}"#;

#[test]
fn the_files_of_sentence_transformers_are_read() {
    let modules = format!(
        r#"[{{"path": "", "type": "sentence_transformers.models.Transformer"}}, {POOLING},
            {{"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}}]"#
    );
    let (_folder, spec) = with_files(&[
        ("modules.json", &modules),
        (
            "1_Pooling/config.json",
            r#"{"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true}"#,
        ),
        ("sentence_bert_config.json", r#"{"max_seq_length": 32, "do_lower_case": true}"#),
        (
            "config_sentence_transformers.json",
            r#"{"prompts": {"query": "q: ", "passage": ""}, "default_prompt_name": "query"}"#,
        ),
    ]);
    let spec = spec.expect("read");
    assert_eq!(spec.pooling, [Pooling::Cls, Pooling::Max]);
    assert!(spec.normalise && spec.lower_case);
    assert_eq!((spec.max_tokens, spec.n_dimensions(64)), (32, 128));
    assert_eq!(spec.prompts["query"], "q: ");
    assert_eq!(spec.default_prompt.as_deref(), Some("query"));

    let plain = format!("[{POOLING}]");
    let mean = ("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
    let (_folder, spec) = with_files(&[("modules.json", &plain), mean]);
    assert!(!spec.expect("read").normalise, "what is not asked for is not done");
}

#[test]
fn damaged_files_are_named_with_the_field() {
    /// Files by name, and what the error says.
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

    let pooling = format!("[{POOLING}]");
    let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
    let sizes =
        |n_in: usize| format!(r#"{{"in_features": {n_in}, "out_features": 8, "bias": false}}"#);
    let cases: &[Case<'_>] = &[
        (&[("modules.json", "{")], &["modules.json", "not valid JSON"]),
        (&[("modules.json", "{}")], &["modules.json", "a list"]),
        (&[("modules.json", "[7]")], &["modules.json", "[0].type"]),
        (&[("modules.json", r#"[{"type": "x.CLIPModel"}]"#)], &["modules.json", "CLIPModel"]),
        (
            &[("modules.json", r#"[{"type": "Pooling", "path": "../1_Pooling"}]"#)],
            &["modules.json", "[0].path", "beside"],
        ),
        (
            &[("modules.json", r#"[{"type": "Pooling", "path": "/etc"}]"#)],
            &["modules.json", "[0].path"],
        ),
        (&[("modules.json", &pooling)], &["1_Pooling"]),
        (
            &[("modules.json", &pooling), ("1_Pooling/config.json", "{}")],
            &["1_Pooling", "pooling_mode_mean_tokens"],
        ),
        (
            &[
                ("modules.json", &pooling),
                ("1_Pooling/config.json", r#"{"pooling_mode_cls_token": 1}"#),
            ],
            &["pooling_mode_cls_token", "true or false"],
        ),
        (
            &[
                ("modules.json", &pooling),
                ("1_Pooling/config.json", r#"{"pooling_mode": "median"}"#),
            ],
            &["pooling_mode", "median"],
        ),
        (
            &[
                ("modules.json", &pooling),
                ("1_Pooling/config.json", r#"{"include_prompt": false}"#),
            ],
            &["include_prompt"],
        ),
        (
            &[("modules.json", dense), ("2_Dense/config.json", &sizes(32))],
            &["2_Dense", "in_features", "64"],
        ),
        (&[("modules.json", dense), ("2_Dense/config.json", &sizes(64))], &["2_Dense"]),
        (
            &[("sentence_bert_config.json", r#"{"max_seq_length": 0}"#)],
            &["sentence_bert_config.json", "max_seq_length"],
        ),
        (
            &[("config_sentence_transformers.json", r#"{"prompts": ["a"]}"#)],
            &["config_sentence_transformers.json", "prompts"],
        ),
        (
            &[("config_sentence_transformers.json", r#"{"default_prompt_name": "query"}"#)],
            &["default_prompt_name", "query"],
        ),
    ];
    for (files, parts) in cases {
        let (_folder, spec) = with_files(files);
        let text = spec.expect_err(files[0].1).to_string();
        assert!(!text.contains('\n'), "{text}");
        for part in *parts {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }
}

#[test]
fn damaged_configs_of_encoders_are_named() {
    for (name, key, value, part) in [
        ("bert", "position_embedding_type", json!("relative_key"), "position_embedding_type"),
        ("bert", "is_decoder", json!(true), "is_decoder"),
        ("bert", "type_vocab_size", json!(-1), "type_vocab_size"),
        ("bert", "num_attention_heads", json!(5), "num_attention_heads"),
        ("bert", "layer_norm_eps", json!("tiny"), "layer_norm_eps"),
        ("roberta", "pad_token_id", json!(63), "max_position_embeddings"),
        ("roberta", "pad_token_id", json!(1e300), "pad_token_id"),
        ("modernbert", "local_attention", json!(0), "local_attention"),
        ("modernbert", "layer_types", json!(["full_attention"]), "layer_types"),
        ("nomic-bert", "prenorm", json!(true), "prenorm"),
        ("nomic-bert", "rotary_emb_fraction", json!(0.5), "rotary_emb_fraction"),
        ("nomic-bert", "activation_function", json!("gelu"), "activation_function"),
        ("nomic-bert", "moe_every_n_layers", json!(2), "moe_every_n_layers"),
        ("distilbert", "n_heads", json!(0), "n_heads"),
    ] {
        let fixture = crate::vectors::fixture(name);
        fixture.edit_config(key, value);
        let error = match ModelFiles::open(fixture.folder()) {
            Ok(files) => files.spec().expect_err(key).to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(part) && !error.contains('\n'), "{key}: {error}");
    }
}

#[test]
fn a_dense_layer_follows_pooling() {
    let (folder, _) = with_files(&[]);
    let weights: Vec<f32> = (0..8 * 64).map(|i| if i % 65 == 0 { 0.5 } else { 0.0 }).collect();
    let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = pelton_tensor::TensorView {
        name: "linear.weight",
        dtype: pelton_tensor::DType::F32,
        shape: &[8, 64],
        data: &bytes,
    };
    let dense = folder.path().join("2_Dense");
    std::fs::create_dir_all(&dense).expect("a folder");
    let file = dense.join("model.safetensors");
    pelton_tensor::write_safetensors(&file, &[view], &Default::default()).expect("written");
    let config = json!({"in_features": 64, "out_features": 8, "bias": false,
        "activation_function": "torch.nn.modules.activation.Tanh"});
    std::fs::write(dense.join("config.json"), config.to_string()).expect("config");
    let modules = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).expect("modules");

    let files = ModelFiles::open(folder.path()).expect("opens");
    let mut model = decoder(&files, Kernels::best(), 1);
    let text = golden("llama").tokens();
    let last = rows(&mut model, &text).pop().expect("rows");
    let expected: Vec<f32> = last[..8].iter().map(|x| (x * 0.5).tanh()).collect();
    let spec = EmbedSpec::read(&files, model.spec()).expect("a spec");
    let mut model = VectorModel::new(model, spec, text.len()).expect("memory");
    assert_eq!(model.n_dimensions(), 8);
    let error = worst_error(&model.embed(&[&text])[0], &expected);
    assert!(error < 1e-6, "{error}");
}
