//! Requirements on every checkpoint method; a line in the registry enrols a method here.

use pelton_quant::QuantError;
use pelton_quant::checkpoint::{METHODS, Scheme};
use serde_json::{Value, json};

fn field(error: QuantError) -> String {
    match error {
        QuantError::Setting { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn every_method_is_registered_once_under_lower_case_names() {
    let names: Vec<&str> = METHODS.iter().flat_map(|method| method.names()).copied().collect();
    for name in &names {
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        assert_eq!(*name, name.to_lowercase());
    }
    assert!(METHODS.iter().all(|method| !method.supported().is_empty()));
}

#[test]
fn an_unknown_method_is_answered_with_every_known_one() {
    let error = Scheme::parse(&json!({"quant_method": "eetq"})).expect_err("unknown");
    let text = error.to_string();
    for name in METHODS.iter().flat_map(|method| method.names()) {
        assert!(text.contains(name), "{name} is not in: {text}");
    }
    assert!(text.contains("eetq"), "{text}");
}

#[test]
fn settings_of_the_wrong_type_name_a_field_and_never_panic() {
    let keys = [
        "bits",
        "group_size",
        "desc_act",
        "sym",
        "checkpoint_format",
        "version",
        "zero_point",
        "modules_to_not_convert",
        "weight_block_size",
        "activation_scheme",
        "load_in_4bit",
        "load_in_8bit",
        "format",
        "config_groups",
        "ignore",
        "linear_class",
        "quantization_mode",
        "sparsity_config",
        "dynamic",
        "pack_dtype",
        "backend",
        "fmt",
        "quant_config",
        "skip_modules",
        "in_group_size",
        "out_group_size",
        "num_codebooks",
        "nbits_per_codebook",
        "linear_weights_not_to_quantize",
        "codebook",
        "codebook_version",
        "lora_rank",
        "resid_scale_override",
        "is_marlin_format",
    ];
    let values = [
        json!(-7),
        json!(1e300),
        json!(""),
        json!("x"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"a": 1}),
        json!({"g": {"weights": []}}),
        json!({"weight_quant_params": {"nbits": [], "axis": {}}}),
        json!({"-:(": {}}),
        json!(["re:("]),
        json!(true),
    ];
    for name in METHODS.iter().flat_map(|method| method.names()) {
        for key in keys {
            for value in &values {
                let config: Value = json!({"quant_method": name, key: value});
                if let Err(error) = Scheme::parse(&config) {
                    assert!(field(error).starts_with("quantization_config."), "{config}");
                }
            }
        }
    }
}

#[test]
fn what_changes_the_meaning_of_bits_changes_the_words() {
    let words = |config: Value| Scheme::parse(&config).expect("a scheme").words();
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false});
    let plain = words(gptq.clone());
    for (key, value) in [
        ("bits", json!(8)),
        ("group_size", json!(64)),
        ("desc_act", json!(true)),
        ("checkpoint_format", json!("gptq_v2")),
        ("format", json!("gptq_v2")),
    ] {
        let mut other = gptq.clone();
        other[key] = value;
        assert_ne!(words(other), plain, "{key}");
    }
}
