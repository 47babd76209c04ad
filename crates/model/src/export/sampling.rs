//! How the model's authors would have tokens chosen: `generation_config.json` as GGUF keys.

use std::path::Path;

use pelton_tensor::{GgufArray, GgufValue};

use super::read_json;
use crate::error::ModelError;

/// A field of `generation_config.json` and its GGUF key.
struct Field {
    name: &'static str,
    key: &'static str,
    store: fn(f64) -> GgufValue,
}

const FIELDS: &[Field] = &[
    float("temperature", "general.sampling.temp"),
    Field { name: "top_k", key: "general.sampling.top_k", store: |x| GgufValue::I32(x as i32) },
    float("top_p", "general.sampling.top_p"),
    float("min_p", "general.sampling.min_p"),
    float("repetition_penalty", "general.sampling.penalty_repeat"),
];

const fn float(name: &'static str, key: &'static str) -> Field {
    Field { name, key, store: |x| GgufValue::F32(x as f32) }
}

/// The keys for what the folder recommends and forbids; none when it says nothing.
pub(super) fn recommended(folder: &Path) -> Result<Vec<(&'static str, GgufValue)>, ModelError> {
    let config = read_json(&folder.join("generation_config.json"))?.unwrap_or_default();
    let said = |field: &Field| config[field.name].as_f64().map(|x| (field.key, (field.store)(x)));
    let mut keys: Vec<_> = FIELDS.iter().filter_map(said).collect();
    if let Some(tokens) = config["suppress_tokens"].as_array().filter(|list| !list.is_empty()) {
        let ids = tokens.iter().filter_map(|id| i32::try_from(id.as_i64()?).ok()).collect();
        keys.push(("tokenizer.ggml.suppress_tokens", GgufValue::Array(GgufArray::I32(ids))));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_folder_recommends_becomes_keys_and_silence_stays_silence() {
        let folder = tempfile::tempdir().expect("temp");
        assert_eq!(recommended(folder.path()).expect("no file"), Vec::new());
        let file = folder.path().join("generation_config.json");
        std::fs::write(
            &file,
            br#"{"temperature": 0.5, "top_k": 40, "eos_token_id": 2, "suppress_tokens": [3]}"#,
        )
        .expect("written");
        let expected = vec![
            ("general.sampling.temp", GgufValue::F32(0.5)),
            ("general.sampling.top_k", GgufValue::I32(40)),
            ("tokenizer.ggml.suppress_tokens", GgufValue::Array(GgufArray::I32(vec![3]))),
        ];
        assert_eq!(recommended(folder.path()).expect("well formed"), expected);
        std::fs::write(&file, b"[").expect("written");
        assert!(recommended(folder.path()).is_err());
    }
}
