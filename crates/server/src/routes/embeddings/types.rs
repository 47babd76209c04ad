//! JSON of `POST /v1/embeddings`: requests and answers.

use pelton_base::limits;
use pelton_llm::{EmbedInput, Embeddings};
use serde::Serialize;

use crate::error::ApiError;
use crate::wire::{Accept, Fields, Forms, check_unhonoured, inputs};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("input_type", Accept::Nothing),
    ("embedding_types", Accept::Nothing),
    // Texts are always computed whole.
    ("cache_prompt", Accept::Only("false")),
];

const INPUTS: Forms<EmbedInput> = Forms { text: EmbedInput::Text, tokens: EmbedInput::Tokens };

/// A request as it was sent; types are right, ranges are not checked.
#[derive(Debug)]
pub(crate) struct EmbeddingsBody {
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<EmbedInput>,
    pub(crate) encoding_format: Option<String>,
    pub(crate) dimensions: Option<usize>,
    pub(crate) prompt_name: Option<String>,
    pub(crate) truncate: bool,
}

impl EmbeddingsBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let input = fields
            .take("input")
            .ok_or_else(|| ApiError::param("input", "`input` is missing: expected a text"))?;
        let body = Self {
            model: fields.string("model")?,
            inputs: inputs("input", input, limits::EMBED_INPUTS, INPUTS)?,
            encoding_format: fields.string("encoding_format")?,
            dimensions: fields.usize("dimensions")?,
            prompt_name: fields.string("prompt_name")?,
            truncate: fields.bool("truncate")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(body)
    }
}

/// Format of the vectors in an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VectorFormat {
    /// As arrays of numbers.
    Float,
    /// As the bytes of f32, little-endian, in base64.
    Base64,
}

/// The answer to a request.
#[derive(Serialize)]
pub(crate) struct EmbeddingsAnswer {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingsUsage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct EmbeddingsUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(crate) fn answer(
    model: String,
    embeddings: Embeddings,
    format: VectorFormat,
) -> EmbeddingsAnswer {
    let n_tokens = embeddings.n_tokens.iter().sum();
    let vector = |vector: Vec<f32>| match format {
        VectorFormat::Float => Vector::Float(vector),
        VectorFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            Vector::Base64(base64(&bytes))
        }
    };
    let data = (embeddings.vectors.into_iter().enumerate())
        .map(|(index, x)| Embedding { object: "embedding", index, embedding: vector(x) })
        .collect();
    let usage = EmbeddingsUsage { prompt_tokens: n_tokens, total_tokens: n_tokens };
    EmbeddingsAnswer { object: "list", data, model, usage }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }
}
