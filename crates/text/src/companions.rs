//! `tokenizer_config.json` and `special_tokens_map.json`, which complete a `tokenizer.json`.

use std::path::Path;

use pelton_base::limits;
use serde_json::{Map, Value};

use crate::error::{TextError, read_optional};

/// The two small files beside a `tokenizer.json`, either of which may be missing.
#[derive(Debug, Default)]
pub(crate) struct Companions {
    config: Map<String, Value>,
    special_tokens: Map<String, Value>,
}

impl Companions {
    pub(crate) fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let object = |name: &str| -> Result<Map<String, Value>, TextError> {
            let path = folder.join(name);
            match read_optional(&path, limits::TOKENIZER_BYTES)? {
                Some(bytes) => parse_object(&bytes, &path.display().to_string()),
                None => Ok(Map::new()),
            }
        };
        Ok(Self {
            config: object("tokenizer_config.json")?,
            special_tokens: object("special_tokens_map.json")?,
        })
    }

    /// From the bytes of a `tokenizer_config.json` alone.
    pub(crate) fn from_config(bytes: &[u8], origin: &str) -> Result<Self, TextError> {
        Ok(Self { config: parse_object(bytes, origin)?, special_tokens: Map::new() })
    }

    /// The text of a named special token (`bos_token`, `eos_token`, ...).
    pub(crate) fn token(&self, field: &str) -> Option<&str> {
        [&self.config, &self.special_tokens].into_iter().find_map(|file| match file.get(field)? {
            Value::String(text) => Some(text.as_str()),
            Value::Object(token) => token.get("content")?.as_str(),
            _ => None,
        })
    }

    /// A flag of `tokenizer_config.json`.
    pub(crate) fn flag(&self, field: &str) -> Option<bool> {
        self.config.get(field)?.as_bool()
    }

    /// A text of `tokenizer_config.json`.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.config.get(field)?.as_str()
    }

    /// An object of `tokenizer_config.json`.
    pub(crate) fn object(&self, field: &str) -> Option<&Map<String, Value>> {
        self.config.get(field)?.as_object()
    }

    pub(crate) fn chat_template(&self) -> Option<&Value> {
        self.config.get("chat_template").filter(|template| !template.is_null())
    }
}

fn parse_object(bytes: &[u8], origin: &str) -> Result<Map<String, Value>, TextError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(TextError::malformed(origin, "expected a JSON object")),
        Err(error) => Err(TextError::malformed(origin, error)),
    }
}
