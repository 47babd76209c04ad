//! From the JSON of a request to a request that can be run.

use pelton_llm::EmbedRequest;
use serde_json::Value;

use super::types::{EmbeddingsBody, VectorFormat};
use crate::error::ApiError;
use crate::wire::json::wrong;

/// Checks everything that does not depend on the model.
pub(crate) fn check(body: EmbeddingsBody) -> Result<(EmbedRequest, VectorFormat), ApiError> {
    let format = match body.encoding_format.as_deref() {
        None | Some("float") => VectorFormat::Float,
        Some("base64") => VectorFormat::Base64,
        Some(other) => {
            let expected = "\"float\" or \"base64\"";
            return Err(wrong("encoding_format", expected, &Value::from(other).to_string()));
        }
    };
    let request = EmbedRequest {
        inputs: body.inputs,
        dimensions: body.dimensions,
        prompt_name: body.prompt_name,
        truncate: body.truncate,
    };
    Ok((request, format))
}
