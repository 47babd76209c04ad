//! The span of one request, and its JSON.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Traced;
use super::open::Ended;
use super::parent::fresh;
use crate::metrics::ending;
use crate::outcome::Outcome;

/// A request that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    traced: Traced,
    span: u64,
    name: String,
    begin_ns: u128,
    end_ns: u128,
    first_token_ns: Option<u128>,
    attributes: Vec<(&'static str, Value)>,
    has_failed: bool,
}

impl Span {
    /// The span of a request; `None` where its parent is not sampled.
    pub(crate) fn of(outcome: &Outcome<'_>, tenant: &str) -> Option<Self> {
        let about = outcome.about;
        if !about.traced.is_wanted() {
            return None;
        }
        let (begin_ns, end_ns) = times(about.since);
        let parts = outcome.parts();
        let operation = operation(&about.route).unwrap_or("chat");
        let (usage, model) = (outcome.usage, outcome.model.name());
        // A request that names no model gets that of the server.
        let asked = about.stated.model().unwrap_or(model);
        let reasons: Vec<&str> = outcome.reasons.iter().copied().map(ending).collect();
        let has_failed = reasons.contains(&"error");
        let mut attributes = vec![
            ("gen_ai.operation.name", json!(operation)),
            ("gen_ai.provider.name", json!("pelton")),
            ("gen_ai.request.model", json!(asked)),
            ("gen_ai.response.model", json!(model)),
            ("gen_ai.request.choice.count", json!(outcome.n_choices)),
            ("gen_ai.usage.input_tokens", json!(usage.prompt_tokens)),
            ("gen_ai.usage.output_tokens", json!(usage.completion_tokens)),
            ("gen_ai.usage.cache_read.input_tokens", json!(usage.cached_tokens)),
            ("gen_ai.response.finish_reasons", json!(reasons)),
            ("http.route", json!(*about.route)),
            ("pelton.request.id", json!(*about.id)),
            ("pelton.tenant", json!(tenant)),
        ];
        if let Some(n) = outcome.asked.max_tokens {
            attributes.push(("gen_ai.request.max_tokens", json!(n)));
        }
        attributes.extend(about.stated.attributes());
        for (name, seconds) in [
            ("gen_ai.latency.time_in_queue", parts.queue),
            ("gen_ai.response.time_to_first_chunk", parts.ttft),
            ("gen_ai.latency.time_in_model_prefill", parts.prefill),
            ("gen_ai.latency.time_in_model_decode", parts.decode),
            ("gen_ai.latency.time_in_model_inference", parts.inference),
        ] {
            attributes.extend(seconds.map(|seconds| (name, json!(seconds))));
        }
        if has_failed || !outcome.is_whole() {
            let kind = if has_failed { "server_error" } else { "client_gone" };
            attributes.push(("error.type", json!(kind)));
        }
        let first_token = parts.ttft.and_then(|ttft| Duration::try_from_secs_f64(ttft).ok());
        Some(Self {
            traced: about.traced,
            span: fresh(),
            name: format!("{operation} {asked}"),
            begin_ns,
            end_ns,
            first_token_ns: first_token.map(|ttft| begin_ns + ttft.as_nanos()),
            attributes,
            has_failed,
        })
    }

    /// The span of a request that generated no text: it was for vectors or scores, or was refused, or
    /// its client left before it began.
    pub(super) fn without_text(ended: &Ended<'_>) -> Self {
        let Ended { traced, operation, route, id, since, tenant, stated, status, error } = *ended;
        let (begin_ns, end_ns) = times(since);
        let (asked, read) = (stated.model(), stated.read());
        let answering = read.map(|read| &*read.model);
        let has_failed = status.is_some_and(|status| status >= 500);
        let mut attributes = vec![
            ("gen_ai.operation.name", json!(operation)),
            ("gen_ai.provider.name", json!("pelton")),
            ("http.route", json!(route)),
            ("pelton.request.id", json!(id)),
        ];
        let known = [
            ("gen_ai.request.model", asked.or(answering).map(|model| json!(model))),
            ("gen_ai.response.model", answering.map(|model| json!(model))),
            ("gen_ai.usage.input_tokens", read.map(|read| json!(read.n_tokens))),
            ("http.response.status_code", status.map(|status| json!(status))),
            ("error.type", error.as_ref().map(|error| json!(error))),
            ("pelton.tenant", tenant.map(|tenant| json!(tenant))),
        ];
        attributes.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
        attributes.extend(stated.attributes());
        let name = asked.or(answering).map_or(operation.to_owned(), |m| format!("{operation} {m}"));
        let (span, first_token_ns) = (fresh(), None);
        Self { traced, span, name, begin_ns, end_ns, first_token_ns, attributes, has_failed }
    }

    /// JSON as OTLP has it: ids in hexadecimal digits, 64-bit numbers as text.
    pub(super) fn json(&self) -> Value {
        let mut span = json!({
            "traceId": self.traced.id(),
            "spanId": format!("{:016x}", self.span),
            "name": self.name,
            "kind": 2,
            "startTimeUnixNano": self.begin_ns.to_string(),
            "endTimeUnixNano": self.end_ns.to_string(),
            "attributes": self.attributes.iter().map(|(key, value)| attribute(key, value)).collect::<Vec<_>>(),
            "status": if self.has_failed { json!({"code": 2}) } else { json!({}) },
        });
        if let Some(parent) = self.traced.parent {
            span["parentSpanId"] = json!(format!("{:016x}", parent.span));
        }
        if let Some(at) = self.first_token_ns {
            span["events"] =
                json!([{"timeUnixNano": at.to_string(), "name": "gen_ai.first_token"}]);
        }
        span
    }
}

/// A key and a value as OTLP has them.
pub(super) fn attribute(key: &str, value: &Value) -> Value {
    json!({"key": key, "value": any(value)})
}

fn any(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(is_so) => json!({"boolValue": is_so}),
        Value::Number(n) if n.is_f64() => json!({"doubleValue": n}),
        Value::Number(n) => json!({"intValue": n.to_string()}),
        Value::Array(items) => {
            json!({"arrayValue": {"values": items.iter().map(any).collect::<Vec<_>>()}})
        }
        other => json!({"stringValue": other.to_string()}),
    }
}

/// The operation of a route that asks a model, in the words of the conventions where they have one;
/// `None` for other routes.
pub(super) fn operation(route: &str) -> Option<&'static str> {
    Some(match route {
        "/v1/completions" => "text_completion",
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" => "chat",
        "/v1/embeddings" => "embeddings",
        "/v1/rerank" | "/rerank" | "/v2/rerank" => "rerank",
        "/v1/score" | "/score" => "score",
        "/v1/classify" | "/classify" => "classify",
        _ => return None,
    })
}

/// Beginning and end of a span that ends now, in nanoseconds since 1970.
fn times(since: Instant) -> (u128, u128) {
    let end_ns = nanoseconds(SystemTime::now());
    (end_ns.saturating_sub(since.elapsed().as_nanos()), end_ns)
}

fn nanoseconds(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_that_batches_may_ask_has_an_operation() {
        for url in crate::batch::URLS {
            assert!(operation(url).is_some(), "{url}");
        }
        assert_eq!(operation("/tokenize"), None);
    }
}
