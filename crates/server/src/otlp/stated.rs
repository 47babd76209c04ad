//! Parts of a request and of its answer that only a span repeats.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pelton_base::TenantId;
use serde_json::{Value, json};

/// Filled while a request is read and answered.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    model: OnceLock<Box<str>>,
    parameters: OnceLock<Parameters>,
    answer: OnceLock<Box<str>>,
    tenant: OnceLock<TenantId>,
    read: OnceLock<Read>,
    has_span: AtomicBool,
}

/// The outcome of a request that generates no text, such as one for vectors.
#[derive(Clone, Debug)]
pub(super) struct Read {
    /// The model that answered.
    pub(super) model: Box<str>,
    pub(super) n_tokens: usize,
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

    /// Notes that the request was let in, and for whom.
    pub(crate) fn note_tenant(&self, tenant: TenantId) {
        let _ = self.tenant.set(tenant);
    }

    /// Notes the model that read the request's texts, and the number of their tokens.
    pub(crate) fn note_read(&self, model: &str, n_tokens: usize) {
        let _ = self.read.set(Read { model: model.into(), n_tokens });
    }

    /// Whether the caller is the first that wants to send a span of this request.
    pub(crate) fn claim_span(&self) -> bool {
        !self.has_span.swap(true, Ordering::Relaxed)
    }

    pub(super) fn tenant(&self) -> Option<TenantId> {
        self.tenant.get().copied()
    }

    pub(super) fn read(&self) -> Option<&Read> {
        self.read.get()
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
