//! Parameters that clients know and this server does not honour.
//!
//! A client that asks for JSON and silently gets prose would be misled. Each such parameter is
//! therefore refused by name, unless its value changes nothing.

use serde_json::Value;

use super::record::Expected;
use super::{Fields, json, lenient};
use crate::error::ApiError;
use crate::limits;

/// Values of a parameter that change nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accept {
    /// Every value: a label or a hint that changes no token.
    Anything,
    /// Every text: a label or a hint that changes no token.
    Text,
    /// No value.
    Nothing,
    /// This value.
    Only(&'static str),
    /// One of these values, written as JSON.
    OneOf(&'static [&'static str]),
    /// `[]`, `{}` or `""`.
    Empty,
}

impl Accept {
    fn accepts(self, value: &Value) -> bool {
        let is = |json: &str| {
            serde_json::from_str::<Value>(json)
                .is_ok_and(|expected| expected == *value || is_same_number(&expected, value))
        };
        match self {
            Self::Anything => true,
            Self::Text => value.is_string(),
            Self::Nothing => false,
            Self::Only(json) => is(json),
            Self::OneOf(list) => list.iter().any(|json| is(json)),
            Self::Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
        }
    }
}

/// `1` and `1.0` are the same to a client.
fn is_same_number(a: &Value, b: &Value) -> bool {
    matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

/// Parameters that clients may send to every generating endpoint.
const EVERYWHERE: &[(&str, Accept)] = &[
    ("user", Accept::Anything),
    ("metadata", Accept::Anything),
    ("safety_identifier", Accept::Anything),
    // Requests of the same key are to meet the same cache, and a server has one.
    ("prompt_cache_key", Accept::Text),
    ("prompt_cache_retention", Accept::OneOf(&["\"in_memory\"", "\"in-memory\""])),
    ("service_tier", Accept::OneOf(&["\"auto\"", "\"default\""])),
    ("store", Accept::Only("false")),
    // Special tokens that are part of a text have no spaces of their own.
    ("spaces_between_special_tokens", Accept::OneOf(&["true", "false"])),
    // Code of the client's in the server.
    ("logits_processors", Accept::Empty),
    ("kv_transfer_params", Accept::Nothing),
    ("vllm_xargs", Accept::Empty),
    // SGLang's; its router adds some of them to every request.
    ("return_hidden_states", Accept::Only("false")),
    ("return_routed_experts", Accept::Only("false")),
    ("lora_path", Accept::Empty),
    ("session_params", Accept::Empty),
    ("custom_logit_processor", Accept::Empty),
    ("custom_params", Accept::Empty),
    ("custom_labels", Accept::Anything),
    ("extra_key", Accept::Empty),
    ("rid", Accept::Text),
    ("bootstrap_host", Accept::Empty),
    ("bootstrap_port", Accept::Nothing),
    ("bootstrap_room", Accept::Nothing),
];

/// SGLang's parameters of thoughts, on endpoints other than chat: a completion is plain text, and
/// the answers of other dialects have a place of their own for thoughts.
pub(crate) const THOUGHTS: &[(&str, Accept)] =
    &[("separate_reasoning", Accept::Only("true")), ("stream_reasoning", Accept::Only("true"))];

/// Removes the parameters that are not honoured from `fields`.
///
/// # Errors
///
/// Names the first parameter whose value would change something.
pub(crate) fn check_unhonoured(
    fields: &mut Fields<'_>,
    table: &[(&str, Accept)],
) -> Result<(), ApiError> {
    for (name, accept) in table.iter().chain(EVERYWHERE) {
        let Some(raw) = fields.expect(name, Expected::Nothing(*accept)) else { continue };
        let path = fields.path(name);
        let is_accepted = match accept {
            Accept::Nothing => false,
            // One of a few values is short.
            Accept::Only(_) | Accept::OneOf(_) | Accept::Empty
                if raw.get().len() > limits::FREE_JSON_BYTES =>
            {
                false
            }
            _ => accept.accepts(&json::free(&path, raw)?),
        };
        if !is_accepted && !lenient::ignores(&path) {
            return Err(ApiError::unsupported(path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_asks_for_nothing_passes_and_any_other_is_named() {
        let check = |value: Value| {
            let text = value.to_string();
            let mut fields = Fields::of_body(text.as_bytes()).expect("an object");
            check_unhonoured(&mut fields, &[("tools", Accept::Empty)])
                .and_then(|()| fields.finish())
        };
        let fine = json!({
            "tools": [], "user": "me", "metadata": {"a": 1}, "store": false,
            "service_tier": "auto", "prompt_cache_key": "a", "prompt_cache_retention": "in_memory",
            "spaces_between_special_tokens": false
        });
        assert_eq!(check(fine), Ok(()));
        for (name, value) in [
            ("tools", json!([1])),
            ("store", json!(true)),
            ("service_tier", json!("flex")),
            ("prompt_cache_key", json!(1)),
            ("prompt_cache_retention", json!("24h")),
            ("spaces_between_special_tokens", json!(1)),
            ("tools", json!(["x".repeat(limits::FREE_JSON_BYTES)])),
        ] {
            let error = check(json!({ name: value })).expect_err(name);
            assert_eq!(error.body.param.as_deref(), Some(name));
            assert_eq!(error.body.code, Some("unsupported_parameter"));
        }
    }
}
