//! Sampling that the model's authors recommend: in `generation_config.json`, or in the
//! `general.sampling.*` keys of a GGUF file.
//!
//! The end tokens of `generation_config.json` are read with the rest of the checkpoint.

use std::path::Path;

use pelton_base::{SamplingParams, limits};
use pelton_tensor::{Gguf, TensorError, TensorSource};

use crate::LlmError;

/// Recommendations of a model; a missing field recommends nothing.
#[derive(Default, PartialEq, serde::Deserialize)]
struct Recommended {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// Reads the `general.sampling.*` keys of a GGUF file; `None` when there are none.
pub(crate) fn recommended_by_gguf(gguf: &Gguf) -> Result<Option<SamplingParams>, LlmError> {
    let read = || -> Result<Recommended, TensorError> {
        Ok(Recommended {
            do_sample: None,
            temperature: gguf.f32("general.sampling.temp")?,
            top_k: gguf.u32("general.sampling.top_k")?,
            top_p: gguf.f32("general.sampling.top_p")?,
            min_p: gguf.f32("general.sampling.min_p")?,
            repetition_penalty: gguf.f32("general.sampling.penalty_repeat")?,
        })
    };
    let bad = |why: String| LlmError::GenerationConfig { path: gguf.origin().to_owned(), why };
    let recommended = read().map_err(|error| bad(error.to_string()))?;
    recommended.sampling().map_err(|why| bad(format!("general.sampling: {why}")))
}

/// Reads `generation_config.json` of a folder; `None` where the file is missing or says nothing
/// about sampling.
pub(crate) fn recommended_sampling(folder: &Path) -> Result<Option<SamplingParams>, LlmError> {
    let path = folder.join("generation_config.json");
    let bad = |why: String| LlmError::GenerationConfig { path: path.clone(), why };
    match pelton_tensor::read_limited(&path, limits::CONFIG_BYTES) {
        Ok(text) => parse(&text).map_err(bad),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(error.to_string())),
    }
}

fn parse(text: &[u8]) -> Result<Option<SamplingParams>, String> {
    let recommended: Recommended =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    recommended.sampling()
}

impl Recommended {
    /// The parameters, with plain sampling where a field is missing; `None` where all are missing.
    fn sampling(self) -> Result<Option<SamplingParams>, String> {
        if self == Self::default() {
            return Ok(None);
        }
        let plain = SamplingParams::default();
        let mut sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_k: self.top_k.unwrap_or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
            min_p: self.min_p.unwrap_or(plain.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            ..plain
        };
        if self.do_sample == Some(false) && self.temperature.is_none() {
            sampling.temperature = 0.0;
        }
        sampling.validate().map_err(|error| error.to_string())?;
        Ok(Some(sampling))
    }
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
    #[test]
    fn a_gguf_file_recommends_by_its_own_keys() {
        use pelton_tensor::{DType, GgufValue, GgufWriter, MappedFile};
        let file = |pairs: &[(&str, GgufValue)]| {
            let mut writer = GgufWriter::new();
            for (key, value) in pairs {
                writer.metadata(*key, value.clone());
            }
            writer.tensor("x", DType::F32, &[1]);
            let mut bytes = Vec::new();
            let mut data = writer.start(&mut bytes, "memory").expect("started");
            data.tensor_data(&[0; 4]).expect("written");
            data.finish().expect("finished");
            Gguf::from_mapped(MappedFile::from_vec("model.gguf", bytes)).expect("well formed")
        };
        assert_eq!(recommended_by_gguf(&file(&[])).expect("silent"), None);
        let warm = file(&[
            ("general.sampling.temp", GgufValue::F32(0.5)),
            ("general.sampling.top_k", GgufValue::I32(7)),
        ]);
        let sampling = recommended_by_gguf(&warm).expect("well formed").expect("says something");
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.5, 7, 1.0));
        let hot = file(&[("general.sampling.temp", GgufValue::F32(-1.0))]);
        let error = recommended_by_gguf(&hot).expect_err("negative").to_string();
        assert!(error.contains("model.gguf") && error.contains("temperature"), "{error}");
    }
}
