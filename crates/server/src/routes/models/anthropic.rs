//! Models in the shape that Anthropic's clients read: they send the header `anthropic-version`.

use axum::http::HeaderMap;
use pelton_gateway::date_time;

/// One model.
#[derive(serde::Serialize)]
pub(crate) struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    /// As RFC 3339 has it.
    created_at: String,
}

/// All models, in one page.
#[derive(serde::Serialize)]
pub(crate) struct AnthropicModels {
    data: Vec<AnthropicModel>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// Whether a client is one of Anthropic's.
pub(crate) fn asks(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

impl AnthropicModel {
    pub(crate) fn new(id: String, created: u64) -> Self {
        let display_name = id.clone();
        Self { kind: "model", id, display_name, created_at: date_time(created) }
    }
}

impl AnthropicModels {
    pub(crate) fn new(data: Vec<AnthropicModel>) -> Self {
        let first_id = data.first().map(|model| model.id.clone());
        let last_id = data.last().map(|model| model.id.clone());
        Self { data, has_more: false, first_id, last_id }
    }
}
