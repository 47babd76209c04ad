//! Mixtures of experts: what configs may not say, and what is told of them.

use crate::common::{Golden, golden, run_whole};
use pelton_model::arch::Mlp;
use pelton_model::{Compute, KvDtype, ModelFiles, check, inspect};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use serde_json::{Value, json};

/// The error with one field of the config changed.
fn refusal(name: &str, key: &str, value: Value) -> String {
    let golden = golden(name);
    let file = golden.folder().join("config.json");
    let text = std::fs::read(&file).expect("config");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config[key] = value;
    std::fs::write(file, config.to_string()).expect("config");
    let error = match ModelFiles::open(golden.folder()) {
        Err(error) => error,
        Ok(files) => check(&files).expect_err("refused"),
    };
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_spoilt_field_is_named() {
    let cases = [
        ("mixtral", "num_local_experts", json!(0)),
        ("mixtral", "num_local_experts", json!(-1)),
        ("mixtral", "num_local_experts", json!(1_u64 << 60)),
        ("mixtral", "num_local_experts", json!(2)),
        ("mixtral", "num_experts_per_tok", json!(0)),
        ("mixtral", "num_experts_per_tok", json!(9)),
        ("mixtral", "num_experts_per_tok", json!(1e300)),
        ("qwen2-moe", "num_experts", json!("8")),
        ("qwen2-moe", "moe_intermediate_size", json!(0)),
        ("qwen2-moe", "shared_expert_intermediate_size", json!(1_u64 << 40)),
        ("qwen2-moe", "decoder_sparse_step", json!(0)),
        ("qwen2-moe", "mlp_only_layers", json!([3])),
        ("qwen2-moe", "mlp_only_layers", json!("all")),
        ("qwen2-moe", "norm_topk_prob", json!(1)),
        ("granite-moe-shared", "shared_intermediate_size", json!(-2)),
        ("gpt-oss", "swiglu_limit", json!(0)),
        ("gpt-oss", "swiglu_alpha", json!(1.5)),
        ("olmoe", "clip_qkv", json!(2.0)),
        ("glm4-moe", "n_group", json!(3)),
        ("glm4-moe", "n_group", json!(9)),
        ("glm4-moe", "topk_group", json!(1)),
        ("glm4-moe", "topk_group", json!(5)),
        ("glm4-moe", "n_shared_experts", json!(1_u64 << 50)),
        ("llama4", "attention_chunk_size", json!(0)),
        ("llama4", "floor_scale", json!(0)),
        ("llama4", "no_rope_layers", json!([1, 1])),
        ("llama4", "moe_layers", json!([4])),
        ("llama4", "layer_types", json!(["chunked_attention"])),
    ];
    for (name, key, value) in cases {
        let text = refusal(name, key, value.clone());
        let named = if value == json!(2) { "num_experts_per_tok" } else { key };
        assert!(text.contains(&format!("`{named}`")), "{name} {key} {value}: {text}");
    }
}

#[test]
fn another_number_of_experts_than_there_are_is_seen_by_the_tensors() {
    for (name, tensor) in [
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("granite-moe", "model.layers.0.block_sparse_moe.router.layer.weight"),
        ("gpt-oss-mxfp4", "model.layers.0.mlp.router.weight"),
    ] {
        for n in [7, 16_384] {
            let text = refusal(name, "num_local_experts", json!(n));
            let expected = text.contains(tensor) && text.contains(&format!("[{n}, 32]"));
            assert!(expected && text.contains("[8, 32]"), "{text}");
        }
    }
}

/// Writes the folder's tensors anew, but for those that `change` leaves out or alters.
fn rewrite(golden: &Golden, change: &dyn Fn(&mut TensorView<'_>) -> bool) {
    let file = golden.folder().join("model.safetensors");
    let bytes: Vec<_> = {
        let source = Safetensors::open_file(&file).expect("fixture");
        let views = source.names().into_iter().filter_map(|name| source.get(name));
        let owned =
            |v: TensorView<'_>| (v.name.to_owned(), v.dtype, v.shape.to_vec(), v.data.to_vec());
        views.map(owned).collect()
    };
    std::fs::remove_file(&file).expect("removed");
    let mut views: Vec<TensorView<'_>> = bytes
        .iter()
        .map(|(name, dtype, shape, data)| TensorView { name, dtype: *dtype, shape, data })
        .collect();
    views.retain_mut(change);
    write_safetensors(&file, &views, &Default::default()).expect("written");
}

#[test]
fn experts_with_a_hole_are_refused_by_name() {
    let cases: [(&str, &str); 5] = [
        ("mixtral", "model.layers.2.block_sparse_moe.experts.5.w3.weight"),
        ("gpt-oss", "model.layers.1.mlp.experts.down_proj"),
        ("gpt-oss-mxfp4", "model.layers.1.mlp.experts.gate_up_proj_scales"),
        ("gpt-oss", "model.layers.0.mlp.experts.gate_up_proj_bias"),
        ("gpt-oss", "model.layers.0.self_attn.sinks"),
    ];
    for (name, tensor) in cases {
        let golden = golden(name);
        rewrite(&golden, &|view| view.name != tensor);
        let text = check(&golden.files()).expect_err("refused").to_string();
        let stem = tensor.trim_end_matches("_bias");
        assert!(text.contains(stem) && text.contains("missing"), "{tensor}: {text}");
    }
}

#[test]
fn codes_of_another_type_are_refused() {
    let golden = golden("gpt-oss-mxfp4");
    let tensor = "model.layers.0.mlp.experts.down_proj_blocks";
    rewrite(&golden, &|view| {
        if view.name == tensor {
            view.dtype = DType::I8;
        }
        true
    });
    let text = check(&golden.files()).expect_err("refused").to_string();
    assert!(text.contains(tensor) && text.contains("U8"), "{text}");
}

#[test]
fn inspection_tells_what_a_token_goes_through() {
    // Codes of four bits are weights, and their scales are none.
    let facts = inspect(&golden("gpt-oss-mxfp4").files(), KvDtype::Bf16).expect("inspects");
    assert_eq!(facts.n_parameters, 112_356);
    // Three layers, 8 experts of 3 matrices [32, 64], 3 of them chosen.
    let facts = inspect(&golden("mixtral").files(), KvDtype::Bf16).expect("inspects");
    assert_eq!(facts.n_parameters - facts.n_active_parameters, 3 * 5 * 3 * 32 * 64);
    // Biases of experts are parameters, too.
    let facts = inspect(&golden("gpt-oss").files(), KvDtype::Bf16).expect("inspects");
    let expert = 3 * 32 * 64 + 2 * 64 + 32;
    assert_eq!(facts.n_parameters - facts.n_active_parameters, 3 * 5 * expert);
    let facts = inspect(&golden("llama").files(), KvDtype::Bf16).expect("inspects");
    assert_eq!(facts.n_parameters, facts.n_active_parameters);
}

#[test]
fn a_token_reads_the_experts_that_are_chosen() {
    let golden = golden("mixtral");
    let decoder = golden.load(&golden.files(), Compute::F32);
    let spec = decoder.spec();
    let attention =
        |i: usize| spec.layers[i].mixer.query_width() + spec.layers[i].mixer.out_width();
    let n_weights: usize =
        (0..3).map(|i| 32 * attention(i) + spec.layers[i].mlp.n_active_weights(32)).sum::<usize>()
            + 32 * spec.vocab_size;
    // The router's panel is padded from 8 rows to 16.
    assert_eq!(decoder.weight_bytes(), 4 * (n_weights + 3 * 8 * 32));
    let Mlp::Moe(moe) = &spec.layers[0].mlp else { panic!("experts") };
    assert_eq!((moe.router.n_experts, moe.router.top_k), (8, 3));
}

#[test]
fn experts_in_the_arithmetic_of_serving_stay_close_to_the_reference() {
    for (name, bound) in [
        ("mixtral", 0.02),
        ("qwen3-moe", 0.02),
        ("granite-moe-shared", 0.02),
        ("gpt-oss-mxfp4", 0.08),
        ("llama4-scout", 0.02),
    ] {
        let golden = golden(name);
        let rows = run_whole(&mut golden.load(&golden.files(), Compute::Auto), &golden.tokens());
        let error = golden.mean_error(&rows);
        println!("{name:24} {error:.1e}");
        assert!(error < bound, "{name}: {error:e}");
    }
}
