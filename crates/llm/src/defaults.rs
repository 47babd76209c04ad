//! Sampling that the model's authors recommend: in `generation_config.json`, or in the
//! `general.sampling.*` keys of a GGUF file.
//!
//! The end tokens of `generation_config.json` are read with the rest of the checkpoint.

use std::path::Path;

use pelton_base::{Mirostat, SamplingParams, Xtc, limits};
use pelton_tensor::{Gguf, GgufValue, TensorError, TensorSource};

use crate::samplers::SamplerOrder;
use crate::{DEFAULT_MIROSTAT, LlmError};

/// Recommendations of a model; a missing field recommends nothing.
#[derive(Default, PartialEq, serde::Deserialize)]
struct Recommended {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    /// -1 for all tokens; of GGUF files alone, as are all below.
    #[serde(skip)]
    repeat_last_n: Option<i32>,
    #[serde(skip)]
    mirostat: Option<u32>,
    #[serde(skip)]
    mirostat_tau: Option<f32>,
    #[serde(skip)]
    mirostat_eta: Option<f32>,
    /// Names with semicolons between them.
    #[serde(skip)]
    samplers: Option<String>,
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
            typical_p: None,
            top_n_sigma: None,
            xtc_probability: gguf.f32("general.sampling.xtc_probability")?,
            xtc_threshold: gguf.f32("general.sampling.xtc_threshold")?,
            repeat_last_n: match gguf.metadata().get("general.sampling.penalty_last_n") {
                Some(GgufValue::I32(n)) => Some(*n),
                _ => gguf.u32("general.sampling.penalty_last_n")?.map(|n| n.min(1 << 30) as i32),
            },
            mirostat: gguf.u32("general.sampling.mirostat")?,
            mirostat_tau: gguf.f32("general.sampling.mirostat_tau")?,
            mirostat_eta: gguf.f32("general.sampling.mirostat_eta")?,
            samplers: gguf.str("general.sampling.sequence")?.map(str::to_owned),
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
            typical_p: self.typical_p.unwrap_or(plain.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(plain.top_n_sigma),
            xtc: Xtc {
                probability: self.xtc_probability.unwrap_or(plain.xtc.probability),
                threshold: self.xtc_threshold.unwrap_or(plain.xtc.threshold),
            },
            mirostat: self.mirostat.filter(|&version| version > 0).map(|version| Mirostat {
                version: version.min(255) as u8,
                tau: self.mirostat_tau.unwrap_or(DEFAULT_MIROSTAT.tau),
                eta: self.mirostat_eta.unwrap_or(DEFAULT_MIROSTAT.eta),
            }),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            repeat_last_n: self.repeat_last_n.and_then(|n| usize::try_from(n).ok()),
            ..plain
        };
        if let Some(names) = &self.samplers {
            let order = SamplerOrder::named(names.split(';')).map_err(|error| error.to_string())?;
            order.over(&mut sampling);
        }
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
        let typical = parse(br#"{"typical_p":0.9,"top_n_sigma":1.5}"#).expect("well formed");
        let typical = typical.expect("says something");
        assert_eq!((typical.typical_p, typical.top_n_sigma), (0.9, 1.5));
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
        let text = |text: &str| GgufValue::String(text.to_owned());
        let ordered = file(&[
            ("general.sampling.sequence", text("penalties;top_k;temperature")),
            ("general.sampling.penalty_last_n", GgufValue::I32(-1)),
            ("general.sampling.mirostat", GgufValue::I32(2)),
            ("general.sampling.mirostat_tau", GgufValue::F32(4.0)),
            ("general.sampling.xtc_probability", GgufValue::F32(0.5)),
        ]);
        let sampling = recommended_by_gguf(&ordered).expect("well formed").expect("says something");
        use pelton_base::SamplerStage::{Temperature, TopK};
        assert_eq!(sampling.samplers, Some(vec![TopK, Temperature]));
        assert_eq!(sampling.mirostat, Some(Mirostat { tau: 4.0, ..DEFAULT_MIROSTAT }));
        assert_eq!((sampling.repeat_last_n, sampling.xtc.probability), (None, 0.5));
        let unknown = file(&[("general.sampling.sequence", text("penalties;infill"))]);
        let error = recommended_by_gguf(&unknown).expect_err("unknown").to_string();
        assert!(error.contains("`infill`"), "{error}");
        let hot = file(&[("general.sampling.temp", GgufValue::F32(-1.0))]);
        let error = recommended_by_gguf(&hot).expect_err("negative").to_string();
        assert!(error.contains("model.gguf") && error.contains("temperature"), "{error}");
    }
}
