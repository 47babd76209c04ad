//! What the model's authors recommend: `generation_config.json`.
//!
//! Its end tokens are read with the rest of the checkpoint; here is how tokens are chosen.

use std::path::Path;

use pelton_base::{SamplingParams, limits};

use crate::LlmError;

#[derive(Default, PartialEq, serde::Deserialize)]
struct File {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// Reads `generation_config.json` of a folder; `None` when there is none, or none that says a word
/// about sampling.
pub(crate) fn recommended_sampling(folder: &Path) -> Result<Option<SamplingParams>, LlmError> {
    let path = folder.join("generation_config.json");
    let bad = |why: String| LlmError::GenerationConfig { path: path.clone(), why };
    let size = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(bad(error.to_string())),
    };
    if size > limits::CONFIG_BYTES {
        return Err(bad(format!("{size} bytes; expected at most {}", limits::CONFIG_BYTES)));
    }
    let text = std::fs::read(&path).map_err(|error| bad(error.to_string()))?;
    parse(&text).map_err(bad)
}

fn parse(text: &[u8]) -> Result<Option<SamplingParams>, String> {
    let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file == File::default() {
        return Ok(None);
    }
    let plain = SamplingParams::default();
    let mut sampling = SamplingParams {
        temperature: file.temperature.unwrap_or(plain.temperature),
        top_k: file.top_k.unwrap_or(plain.top_k),
        top_p: file.top_p.unwrap_or(plain.top_p),
        min_p: file.min_p.unwrap_or(plain.min_p),
        repetition_penalty: file.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    };
    if file.do_sample == Some(false) && file.temperature.is_none() {
        sampling.temperature = 0.0;
    }
    sampling.validate().map_err(|error| error.to_string())?;
    Ok(Some(sampling))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommended_values_are_taken() {
        let text = br#"{"temperature":0.6,"top_k":20,"top_p":0.95,"eos_token_id":[7,9],"x":1}"#;
        let sampling = parse(text).expect("well formed").expect("says something");
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.6, 20, 0.95));
        let greedy = parse(br#"{"do_sample":false}"#).expect("greedy").expect("says something");
        assert_eq!(greedy.temperature, 0.0);
    }

    #[test]
    fn plain_sampling_recommended_is_not_silence() {
        let plain = parse(br#"{"temperature":1.0}"#).expect("plain");
        assert_eq!(plain, Some(SamplingParams::default()));
        assert_eq!(parse(br#"{"eos_token_id":2}"#).expect("no word of sampling"), None);
        let folder = tempfile::tempdir().expect("temp");
        assert_eq!(recommended_sampling(folder.path()).expect("absent"), None);
    }

    #[test]
    fn nonsense_is_refused_by_field() {
        let error = parse(br#"{"top_p":7}"#).expect_err("out of range");
        assert!(error.contains("top_p"), "{error}");
        assert!(parse(b"[").is_err());
        let folder = tempfile::tempdir().expect("temp");
        std::fs::write(folder.path().join("generation_config.json"), b"{\"top_k\":-1}")
            .expect("written");
        let error = recommended_sampling(folder.path()).expect_err("negative").to_string();
        assert!(error.contains("generation_config.json"), "{error}");
    }
}
