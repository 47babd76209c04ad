//! A valid config, spoilt one field at a time.

use super::*;
use serde_json::json;

fn valid() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "eos_token_id": [1, 2],
    })
}

fn parse(value: &Value) -> Result<HfConfig, ConfigError> {
    parse_config(value.to_string().as_bytes())
}

#[test]
fn a_valid_config_is_read_with_its_defaults() {
    let config = parse(&valid()).expect("valid");
    assert_eq!(config.head_dim, 16);
    assert_eq!(config.rope.theta, 5e5);
    assert_eq!(config.eos_tokens, [TokenId(1), TokenId(2)]);
    assert!(!config.tie_word_embeddings);
}

#[test]
fn a_spoilt_field_is_named_with_what_was_found() {
    let rope = |value: Value| value;
    let cases: Vec<(&str, Value)> = vec![
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!(1e300)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!(64.5)),
        ("hidden_size", json!(u64::MAX)),
        ("intermediate_size", json!(null)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(4_000_000_000_u64)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(6)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!(8)),
        ("head_dim", json!(15)),
        ("head_dim", json!(1_i64 << 40)),
        ("vocab_size", json!(0)),
        ("max_position_embeddings", json!(0)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(-1e-5)),
        ("rms_norm_eps", json!("NaN")),
        ("rope_theta", json!(0)),
        ("rope_theta", json!(-10000.0)),
        ("hidden_act", json!("mish")),
        ("sliding_window", json!(0)),
        ("tie_word_embeddings", json!("yes")),
        ("eos_token_id", json!("two")),
        ("layer_types", json!(["full_attention"])),
        ("quantization_config", json!("gptq")),
        ("architectures", json!([])),
        ("architectures", json!("LlamaForCausalLM")),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_scaling", rope(json!("linear"))),
        ("rope_scaling.rope_type", json!({"rope_type": "spiral", "factor": 2.0})),
        ("rope_scaling.rope_type", json!({"factor": 2.0})),
        ("rope_scaling.factor", json!({"type": "linear"})),
        ("rope_scaling.factor", json!({"type": "linear", "factor": 0.0})),
        ("rope_scaling.factor", json!({"type": "dynamic", "factor": -2.0})),
        (
            "rope_scaling.high_freq_factor",
            json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
        ),
        (
            "rope_scaling.long_factor",
            json!({"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1]}),
        ),
    ];
    for (path, found) in cases {
        let mut value = valid();
        let key = path.split('.').next().expect("not empty");
        value[key] = found.clone();
        match parse(&value) {
            Err(ConfigError::Field { field, found, expected }) => {
                assert_eq!(field, path, "found {found}, expected {expected}");
            }
            other => panic!("{path} = {found}: {other:?}"),
        }
    }
}

#[test]
fn a_missing_required_field_is_named() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "architectures",
    ] {
        let mut value = valid();
        value.as_object_mut().expect("object").remove(key);
        let message = parse(&value).expect_err(key).to_string();
        assert!(message.contains(key) && message.contains("missing"), "{message}");
    }
}

#[test]
fn bare_nan_as_python_writes_it_is_named() {
    for word in ["NaN", "Infinity", "-Infinity"] {
        let text = valid().to_string().replace("0.00001", word).replace("1e-5", word);
        let message = parse_config(text.as_bytes()).expect_err(word).to_string();
        assert!(message.contains("rms_norm_eps") && message.contains(word), "{message}");
    }
}

#[test]
fn text_that_is_no_config_is_an_error() {
    let deep = "[".repeat(100_000);
    for text in ["", "{", "null", "[1]", "{\"a\": NaN", "\u{0}", "{\"a\": \"Na", deep.as_str()] {
        assert!(parse_config(text.as_bytes()).is_err(), "{text:.20}");
    }
    assert!(parse_config(&[0xff, 0xfe, b'{']).is_err());
    assert!(parse_config(&vec![b' '; 5 << 20]).is_err());
}

#[test]
fn an_unknown_architecture_is_answered_with_the_known_ones() {
    let mut value = valid();
    value["architectures"] = json!(["RwkvForCausalLM"]);
    let message = parse(&value).expect_err("unknown").to_string();
    for name in ["RwkvForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"] {
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn old_and_new_spelling_of_rope_mean_the_same() {
    let mut old = valid();
    old["rope_scaling"] = json!({"type": "linear", "factor": 4.0});
    let mut new = valid();
    new.as_object_mut().expect("object").remove("rope_theta");
    new["rope_parameters"] = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5});
    assert_eq!(parse(&old).expect("old").rope, parse(&new).expect("new").rope);
}

#[test]
fn any_truncation_or_flipped_byte_is_answered_without_panic() {
    let text = valid().to_string().into_bytes();
    for end in 0..text.len() {
        assert!(parse_config(&text[..end]).is_err());
    }
    for i in 0..text.len() {
        for byte in [0, b'"', b'{', b'9', b'-', b'e', 0xff] {
            let mut spoilt = text.clone();
            spoilt[i] = byte;
            if let Ok(config) = parse_config(&spoilt) {
                let arch = arch::find(&config.architecture).expect("known");
                (arch.spec)(&config).expect("checked");
            }
        }
    }
}

#[test]
fn what_a_family_cannot_do_is_refused_by_the_name_that_its_files_use() {
    let base = |name: &str| {
        let mut value = valid();
        value["architectures"] = json!([name]);
        value["rms_norm_eps"] = Value::Null;
        value
    };
    let cases = [
        ("OPTForCausalLM", "do_layer_norm_before", json!(false)),
        ("OPTForCausalLM", "_remove_final_layer_norm", json!(true)),
        ("OPTForCausalLM", "word_embed_proj_dim", json!(32)),
        ("OPTForCausalLM", "activation_function", json!("mish")),
        ("BloomForCausalLM", "apply_residual_connection_post_layernorm", json!(true)),
        ("BloomForCausalLM", "layer_norm_epsilon", json!(-1.0)),
        ("GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("GPTBigCodeForCausalLM", "multi_query", json!(false)),
        ("GPTJForCausalLM", "rotary_dim", json!(7)),
        ("GemmaForCausalLM", "use_bidirectional_attention", json!(true)),
        ("PhiForCausalLM", "qk_layernorm", json!(true)),
        ("FalconForCausalLM", "num_ln_in_parallel_attn", json!(3)),
        ("MiniCPMForCausalLM", "num_experts", json!(8)),
        ("SmolLM3ForCausalLM", "no_rope_layers", json!([1])),
        ("GlmForCausalLM", "partial_rotary_factor", json!(0.01)),
        ("GPTNeoXForCausalLM", "rotary_pct", json!(1.5)),
        ("OlmoForCausalLM", "clip_qkv", json!(-8.0)),
        ("GraniteForCausalLM", "residual_multiplier", json!("small")),
    ];
    for (name, field, value) in cases {
        let mut config = base(name);
        config["num_ln_in_parallel_attn"] = Value::Null;
        config["new_decoder_architecture"] = json!(true);
        config["rotary_dim"] = json!(8);
        config[field] = value;
        let spec =
            parse(&config).and_then(|config| (arch::find(name).expect("registered").spec)(&config));
        match spec {
            Err(ConfigError::Field { field: named, .. }) => assert_eq!(named, field, "{name}"),
            other => panic!("{name} with {field}: {other:?}"),
        }
    }
}

/// DeepSeek V3 in small, with each field as it may be.
fn latent() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 256, "max_position_embeddings": 128, "q_lora_rank": 48, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    })
}

#[test]
fn a_spoilt_field_of_latent_attention_is_named_with_what_was_found() {
    let spec = |config: &Value| {
        parse(config)
            .and_then(|config| (arch::find("deepseek_v3").expect("registered").spec)(&config))
    };
    spec(&latent()).expect("valid");
    // Widths need not be whole panels: loading pads them.
    for (field, value) in [("kv_lora_rank", 33), ("v_head_dim", 24), ("v_head_dim", 1)] {
        let mut config = latent();
        config[field] = json!(value);
        spec(&config).expect(field);
    }
    for (field, value) in [
        ("kv_lora_rank", json!(0)),
        ("kv_lora_rank", json!(null)),
        ("kv_lora_rank", json!(1_u64 << 40)),
        ("kv_lora_rank", json!(1 << 20)),
        ("q_lora_rank", json!(0)),
        ("q_lora_rank", json!("none")),
        ("qk_nope_head_dim", json!(0)),
        ("qk_nope_head_dim", json!(1 << 20)),
        ("qk_nope_head_dim", json!(-1)),
        ("qk_rope_head_dim", json!(0)),
        ("qk_rope_head_dim", json!(7)),
        ("qk_rope_head_dim", json!(1 << 21)),
        ("v_head_dim", json!(0)),
        ("v_head_dim", json!(1 << 20)),
        ("head_dim", json!(16)),
        ("rope_interleave", json!(2)),
        ("first_k_dense_replace", json!(-1)),
        ("moe_layer_freq", json!(0)),
        ("num_experts_per_tok", json!(9)),
        ("n_shared_experts", json!(1 << 30)),
        ("n_shared_experts", json!(1 << 20)),
        ("n_group", json!(3)),
        ("topk_group", json!(5)),
        ("scoring_func", json!("argmax")),
        ("topk_method", json!("best")),
        ("routed_scaling_factor", json!(0)),
    ] {
        let mut config = latent();
        config[field] = value.clone();
        let text = spec(&config).expect_err(field).to_string();
        assert!(text.contains(&format!("`{field}`")), "{value}: {text}");
        assert!(!text.contains('\n'), "{text}");
    }
    let mut config = latent();
    config["q_lora_rank"] = json!(null);
    config["attention_bias"] = json!(true);
    let text = spec(&config).expect_err("q itself has none").to_string();
    assert!(text.contains("`attention_bias`"), "{text}");
}
