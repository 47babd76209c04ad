//! Parameters that clients know and this server does not honour.
//!
//! A client that asks for JSON and silently gets prose would be misled. Each such parameter is
//! therefore refused by name, unless its value changes nothing.

use serde_json::Value;

use super::Fields;
use crate::error::ApiError;

/// Values of a parameter that change nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accept {
    /// Every value: a label or a hint that changes no token.
    Anything,
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
    ("prompt_cache_key", Accept::Anything),
    ("prompt_cache_retention", Accept::Anything),
    ("cache_prompt", Accept::Anything),
    ("service_tier", Accept::OneOf(&["\"auto\"", "\"default\""])),
    ("store", Accept::Only("false")),
    ("use_beam_search", Accept::Only("false")),
    ("length_penalty", Accept::Only("1")),
    ("include_stop_str_in_output", Accept::Only("false")),
    ("skip_special_tokens", Accept::Only("true")),
    ("spaces_between_special_tokens", Accept::Anything),
    ("truncate_prompt_tokens", Accept::Nothing),
    ("prompt_logprobs", Accept::Nothing),
    ("allowed_token_ids", Accept::Nothing),
    ("bad_words", Accept::Empty),
    ("request_id", Accept::Nothing),
    ("return_token_ids", Accept::Only("false")),
    ("return_tokens_as_token_ids", Accept::Only("false")),
    ("kv_transfer_params", Accept::Nothing),
    ("vllm_xargs", Accept::Empty),
    ("structured_outputs", Accept::Nothing),
    ("structural_tag", Accept::Nothing),
    ("guided_json", Accept::Nothing),
    ("guided_regex", Accept::Nothing),
    ("guided_choice", Accept::Nothing),
    ("guided_grammar", Accept::Nothing),
    ("guided_decoding_backend", Accept::Nothing),
    ("grammar", Accept::Empty),
    ("json_schema", Accept::Nothing),
    ("response_format", Accept::Only("{\"type\":\"text\"}")),
    ("typical_p", Accept::Only("1")),
    ("mirostat", Accept::Only("0")),
];

/// Removes the parameters that are not honoured from `fields`.
///
/// # Errors
///
/// Names the first parameter whose value would change something.
pub(crate) fn check_unhonoured(
    fields: &mut Fields,
    table: &[(&str, Accept)],
) -> Result<(), ApiError> {
    for (name, accept) in table.iter().chain(EVERYWHERE) {
        if let Some(value) = fields.take(name)
            && !accept.accepts(&value)
        {
            return Err(ApiError::unsupported(fields.path(name)));
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
            let mut fields = Fields::new(value.as_object().expect("object").clone());
            check_unhonoured(&mut fields, &[("tools", Accept::Empty)])
                .and_then(|()| fields.finish())
        };
        let fine = json!({
            "tools": [], "user": "me", "metadata": {"a": 1}, "store": false, "mirostat": 0,
            "length_penalty": 1.0, "response_format": {"type": "text"}, "service_tier": "auto",
            "guided_json": null
        });
        assert_eq!(check(fine), Ok(()));
        for (name, value) in [
            ("tools", json!([1])),
            ("store", json!(true)),
            ("mirostat", json!(2)),
            ("response_format", json!({"type": "json_object"})),
            ("service_tier", json!("flex")),
            ("guided_json", json!({})),
        ] {
            let error = check(json!({ name: value })).expect_err(name);
            assert_eq!(error.body.param.as_deref(), Some(name));
            assert_eq!(error.body.code, Some("unsupported_parameter"));
        }
    }
}
