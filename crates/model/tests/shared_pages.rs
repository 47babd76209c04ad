//! Layers that read the keys and values of other layers, and keys and values of two sizes in one pool: what
//! they cost, and configs that say nonsense.

use pelton_model::{CpuDevice, KvDtype, KvFootprint, ModelFiles, check, parse_config};
use serde_json::{Value, json};

use crate::common::golden;

/// A config in the shape of the small models of Gemma 4: of 35 layers the last 20 store nothing.
fn small() -> Value {
    let kind = |layer: usize| if layer % 5 == 4 { "full_attention" } else { "sliding_attention" };
    let kinds: Vec<&str> = (0..35).map(kind).collect();
    json!({
        "architectures": ["Gemma4ForCausalLM"], "hidden_size": 1536, "intermediate_size": 6144,
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "global_head_dim": 512, "vocab_size": 262_144, "max_position_embeddings": 131_072,
        "sliding_window": 512, "layer_types": kinds, "num_kv_shared_layers": 20,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 256,
    })
}

/// As the large models: keys and values of layers with a window are twice as large.
fn large() -> Value {
    let kind = |layer: usize| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
    let kinds: Vec<&str> = (0..60).map(kind).collect();
    json!({
        "architectures": ["Gemma4ForCausalLM"], "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true,
        "vocab_size": 262_144, "max_position_embeddings": 262_144, "sliding_window": 1024,
        "layer_types": kinds, "hidden_size_per_layer_input": 0,
    })
}

fn spec(config: &Value) -> pelton_model::ArchSpec {
    let config = parse_config(config.to_string().as_bytes()).expect("a config");
    let arch = pelton_model::arch::find(&config.architecture).expect("registered");
    (arch.spec)(&config).expect("a spec")
}

/// Bytes of a block of 32 tokens in bf16, and of the blocks of 32,768 tokens, with windows and without.
fn bytes(config: &Value) -> [usize; 3] {
    let mut spec = spec(config);
    let all = KvFootprint::new::<CpuDevice>(&spec, KvDtype::Bf16, 32);
    spec.group_windows();
    let block = KvFootprint::new::<CpuDevice>(&spec, KvDtype::Bf16, 32);
    let of = |own: KvFootprint| own.blocks_of(32_768, 0) * own.block_bytes();
    [block.block_bytes(), of(block), of(all)]
}

#[test]
fn layers_that_store_nothing_cost_nothing_and_narrow_ones_lie_side_by_side() {
    let spec = spec(&small());
    assert_eq!(spec.layers.len(), 35);
    assert_eq!((spec.n_paged_layers(), spec.shares_pages()), (15, true));
    // Two narrow layers take the place of a wide one.
    assert_eq!(spec.n_kv_places(), 3 + 12 / 2);
    assert_eq!(spec.layers[34].mixer.source(), Some(14));
    assert_eq!(spec.layers[33].mixer.source(), Some(13));
    assert_eq!(spec.layers[14].mixer.source(), None);
    // 3 layers of 2 · 512 elements; windows of 512 tokens touch 17 blocks in each of 2 groups.
    let block = 3 * 2 * 512 * 2 * 32;
    assert_eq!(bytes(&small()), [block, (1024 + 2 * 17) * block, 3 * 1024 * block]);
}

#[test]
fn wide_layers_with_a_window_lie_in_the_places_of_two_narrow_ones_without() {
    let spec = spec(&large());
    assert_eq!((spec.n_paged_layers(), spec.n_kv_places()), (60, 50 + 10 / 2));
    // 5 places of 2 · 16 · 256 elements hold 10 layers without a window, and 5 with one.
    let block = 5 * 2 * 16 * 256 * 2 * 32;
    assert_eq!(bytes(&large()), [block, (1024 + 10 * 33) * block, 11 * 1024 * block]);
}

/// Scales take more of narrow keys than of wide ones, so that two narrow layers are a little larger.
#[test]
fn a_place_is_as_large_as_what_lies_in_it_in_every_type() {
    for kv_dtype in KvDtype::ALL {
        let place = KvFootprint::new::<CpuDevice>(&spec(&small()), kv_dtype, 32);
        let per_token = place.block_bytes() / 32 / 9;
        let expected = match kv_dtype {
            KvDtype::F32 => 4096,
            KvDtype::Bf16 | KvDtype::F16 => 2048,
            KvDtype::Fp8 => 1024,
            // Two layers of two heads with a scale each.
            KvDtype::Int8 => 1024 + 4 * 4,
        };
        assert_eq!(per_token, expected, "{kv_dtype}");
    }
}

#[test]
fn nonsense_is_refused_by_the_name_of_its_field() {
    let refusal = |edit: &dyn Fn(&mut Value)| {
        let mut config = small();
        edit(&mut config);
        let config = match parse_config(config.to_string().as_bytes()) {
            Ok(config) => config,
            Err(error) => return error.to_string(),
        };
        let arch = pelton_model::arch::find(&config.architecture).expect("registered");
        (arch.spec)(&config).expect_err("nonsense").to_string()
    };
    let with = |field: &'static str, value: Value| {
        let text = refusal(&|config| config[field] = value.clone());
        assert!(text.contains(field), "{field}: {text}");
        text
    };
    // The first four layers have a window, so that no layer without one stores.
    assert!(with("num_kv_shared_layers", json!(31)).contains("without a window"));
    with("num_kv_shared_layers", json!(35));
    with("num_kv_shared_layers", json!(-1));
    with("global_head_dim", json!(511));
    with("global_head_dim", json!(0));
    with("use_bidirectional_attention", json!("all"));
    with("vocab_size_per_layer_input", json!(1000));
    with("hidden_size_per_layer_input", json!(-5));
    let last = refusal(&|config| config["layer_types"][34] = json!("sliding_attention"));
    assert!(last.contains("layer_types"), "{last}");
    for (heads, expected) in [
        (json!({"4": {"head_dim": 512}}), "same heads in all layers"),
        (json!({"0": {"head_dim": 512}}), "layers without a window"),
        (json!({"4": {"num_key_value_heads": 3}}), "divisor"),
    ] {
        let text = refusal(&|config| config["per_layer_config"] = heads.clone());
        assert!(text.contains("per_layer_config") && text.contains(expected), "{text}");
    }
    let experts = refusal(&|config| {
        config["enable_moe_block"] = json!(true);
        config["num_experts"] = json!(4);
        config["top_k_experts"] = json!(5);
    });
    assert!(experts.contains("top_k_experts"), "{experts}");
}

#[test]
fn tables_of_another_shape_are_refused_with_both_shapes() {
    for (from, to, tensor, shapes) in [
        (
            "\"hidden_size_per_layer_input\": 8",
            "6",
            "per_layer_model_projection",
            [[30, 32], [40, 32]],
        ),
        (
            "\"vocab_size_per_layer_input\": 256",
            "300",
            "embed_tokens_per_layer",
            [[300, 40], [256, 40]],
        ),
    ] {
        let golden = golden("gemma4");
        let file = golden.folder().join("config.json");
        let text = std::fs::read_to_string(&file).expect("config");
        let (field, _) = from.split_once(' ').expect("a value");
        let other = text.replace(from, &format!("{field} {to}"));
        assert_ne!(text, other);
        std::fs::write(&file, other).expect("config");
        let files = ModelFiles::open(golden.folder()).expect("a config");
        let error = check(&files).expect_err("another shape").to_string();
        assert!(error.contains(tensor), "{error}");
        for shape in shapes {
            assert!(error.contains(&format!("{shape:?}")), "{error}");
        }
    }
}
