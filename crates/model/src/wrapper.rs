//! Models that wrap a text model in something more: an encoder of images and what leads from it to
//! the text.
//!
//! ```text
//! config.json     { "architectures": ["Gemma3ForConditionalGeneration"],
//!                   "text_config": { what a text model's config.json says }, "vision_config": .. }
//!
//! tensors         language_model.model.layers.0. ..   language_model.lm_head    as first written
//!                 model.language_model.layers.0. ..   lm_head                   since transformers 4.52
//!                 model.text_model.layers.0. ..       lm_head                   Idefics
//!                 vision_tower. ..  multi_modal_projector. ..                   not read
//! ```
//!
//! Without an image such a model is its text model, and as that it is loaded: the config is that of
//! the text with what stands around it, the tensors have a longer prefix, the rest is ignored and
//! [`inspect`](crate::inspect()) says so. The list holds only wrappers for which this is true. It
//! lacks PaliGemma, which attends to its prompt in both directions, and Mllama, which has layers of
//! its own for images.

use serde_json::{Map, Value, json};

use crate::fields::{ConfigError, Field};

/// Values of `architectures[0]`.
const WRAPPERS: &[&str] = &[
    "AyaVisionForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
];

/// Fields that are taken from the outer config where the text's part lacks them.
const OUTER_FIELDS: [&str; 4] =
    ["tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"];

/// Prefixes of the tensors of the text: that of every name, and that which takes the place of the
/// family's own before all names but the head's.
pub(crate) const PREFIXES: &[(&str, Option<&str>)] = &[
    ("language_model.", None),
    ("", Some("model.language_model.")),
    ("", Some("model.text_model.")),
];

/// The text's part of a wrapper's config, and the wrapper's name; `None` where this is no wrapper.
///
/// # Errors
///
/// When a wrapper has no `text_config`.
pub(crate) fn text_part(config: &Value) -> Result<Option<(Value, String)>, ConfigError> {
    let root = Field::new("", Some(config));
    let name = config.pointer("/architectures/0").and_then(Value::as_str);
    let Some(name) = name.filter(|name| WRAPPERS.contains(name)) else { return Ok(None) };
    let text = root.get("text_config");
    let Some(Value::Object(fields)) = text.value() else {
        return Err(text.error("the configuration of the text model"));
    };
    let mut fields = fields.clone();
    for field in OUTER_FIELDS {
        let is_said = fields.get(field).is_some_and(|value| !value.is_null());
        if let (false, Some(value)) = (is_said, config.get(field)) {
            fields.insert(field.to_owned(), value.clone());
        }
    }
    leave_in(&mut fields);
    Ok(Some((Value::Object(fields), name.to_owned())))
}

/// Fills in the fields that these configs leave out because they equal the library's defaults.
fn leave_in(fields: &mut Map<String, Value>) {
    let usual = match fields.get("model_type").and_then(Value::as_str) {
        Some("llama") => json!({
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
        }),
        Some("mistral") => json!({
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
            "max_position_embeddings": 131_072,
        }),
        Some("gemma3_text") => json!({
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        }),
        Some("gemma3n_text") => json!({
            "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 262_400,
            "max_position_embeddings": 32_768,
        }),
        Some(name @ ("gemma4_text" | "gemma4_unified_text")) => json!({
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_144,
            "max_position_embeddings": if name == "gemma4_text" { 131_072 } else { 262_144 },
        }),
        _ => return,
    };
    for (name, value) in usual.as_object().expect("invariant: an object") {
        fields.entry(name).or_insert_with(|| value.clone());
    }
}

/// The same error about a field of the text's part.
pub(crate) fn in_text(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Field { field, expected, found } => {
            ConfigError::Field { field: format!("text_config.{field}"), expected, found }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;

    #[test]
    fn a_sparse_text_config_is_that_of_the_published_model() {
        // As in the config of Gemma 3 4B.
        let config = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        });
        let config = parse_config(config.to_string().as_bytes()).expect("a text model");
        assert_eq!((config.num_attention_heads, config.num_key_value_heads), (8, 4));
        assert_eq!((config.head_dim, config.vocab_size), (256, 262_208));
        assert_eq!(config.eos_tokens.len(), 2);
        assert!(config.tie_word_embeddings);
        assert_eq!(config.wrapper.as_deref(), Some("Gemma3ForConditionalGeneration"));
    }

    #[test]
    fn errors_name_the_field_by_where_it_stands() {
        let error = |text: Value| {
            let config =
                json!({"architectures": ["LlavaForConditionalGeneration"], "text_config": text});
            parse_config(config.to_string().as_bytes()).expect_err("nonsense").to_string()
        };
        assert!(error(Value::Null).contains("`text_config`"));
        assert!(error(json!([])).contains("`text_config`"));
        assert!(error(json!({})).contains("`text_config.architectures`"), "{}", error(json!({})));
        let wide = error(json!({"model_type": "llama", "hidden_size": -1}));
        assert!(wide.contains("`text_config.hidden_size`"), "{wide}");
        let unknown = error(json!({"model_type": "abacus"}));
        assert!(unknown.contains("`abacus`"), "{unknown}");
        // A wrapper inside of a wrapper is no text model.
        let nested = json!({"architectures": ["LlavaForConditionalGeneration"], "text_config": {}});
        assert!(error(nested).contains("unknown architecture"));
    }
}
