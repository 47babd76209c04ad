//! Parts of a request and of its answer that only a span repeats.

use std::sync::OnceLock;

use serde_json::{Value, json};

/// Filled while a request is read and answered.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    model: OnceLock<Box<str>>,
    parameters: OnceLock<Parameters>,
    answer: OnceLock<Box<str>>,
}

/// Parameters as the request states them; the model's defaults are not among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
}

impl Stated {
    /// Notes the name of the model that was asked for.
    pub(crate) fn note_model(&self, asked: Option<&str>) {
        if let Some(asked) = asked {
            let _ = self.model.set(asked.into());
        }
    }

    pub(crate) fn note_parameters(&self, parameters: Parameters) {
        let _ = self.parameters.set(parameters);
    }

    /// Notes the id of the answer.
    pub(crate) fn note_answer(&self, id: &str) {
        let _ = self.answer.set(id.into());
    }

    pub(super) fn model(&self) -> Option<&str> {
        self.model.get().map(AsRef::as_ref)
    }

    /// Attributes of those parts that are known, but for the model.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let parameters = self.parameters.get().cloned().unwrap_or_default();
        let decimal = |value: Option<f32>| value.map(|value| json!(shortest(value)));
        let stop = (!parameters.stop.is_empty()).then(|| json!(parameters.stop));
        let answer = self.answer.get().map(|id| json!(id));
        [
            ("gen_ai.request.temperature", decimal(parameters.temperature)),
            ("gen_ai.request.top_p", decimal(parameters.top_p)),
            // The conventions have it as a decimal number.
            ("gen_ai.request.top_k", parameters.top_k.map(|k| json!(k as f64))),
            ("gen_ai.request.frequency_penalty", decimal(parameters.frequency_penalty)),
            ("gen_ai.request.presence_penalty", decimal(parameters.presence_penalty)),
            ("gen_ai.request.seed", parameters.seed.map(|seed| json!(seed))),
            ("gen_ai.request.stop_sequences", stop),
            ("gen_ai.response.id", answer),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// The number that the client wrote: 0.7, not the 0.699999988 that is nearest to it in 32 bits.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}
