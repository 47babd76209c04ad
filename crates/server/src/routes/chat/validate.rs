//! From the JSON of a request to a request that can be run.

use pelton_llm::{ChatOptions, ChatRequest, Generation};
use pelton_text::Message;
use serde_json::{Map, Value};

use super::tools::{Tools, calls};
use super::types::ChatBody;
use crate::error::ApiError;
use crate::limits;
use crate::wire::json::{Kind, RawValue, brief, each, string, wrong};
use crate::wire::{Accept, Ask, Fields, Shown, check_unhonoured, generation, lenient};

/// Checks every range.
pub(crate) fn check(body: ChatBody, defaults: Generation) -> Result<(ChatRequest, Ask), ApiError> {
    if body.messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` is empty: expected at least one"));
    }
    let max_tokens = match (body.max_tokens, body.max_completion_tokens) {
        (Some(a), Some(b)) if a != b => {
            let message = "`max_tokens` and `max_completion_tokens` contradict each other";
            return Err(ApiError::param("max_tokens", message));
        }
        (_, Some(0)) => {
            let message = "`max_completion_tokens` must be at least 1, got 0";
            return Err(ApiError::param("max_completion_tokens", message));
        }
        (a, b) => b.or(a),
    };
    let max_tokens = match (max_tokens, body.n_predict) {
        (Some(one), Some(other)) if other != Some(one) => {
            let message = "`n_predict` is another name of `max_completion_tokens`: give one";
            return Err(ApiError::param("n_predict", message));
        }
        (max_tokens, n_predict) => max_tokens.or(n_predict.flatten()),
    };
    let logprobs = match (body.logprobs, body.top_logprobs) {
        (false, Some(1..)) => {
            let message = "`top_logprobs` needs `logprobs` to be true";
            return Err(ApiError::param("top_logprobs", message));
        }
        (false, _) => body.n_probs.filter(|n| *n > 0),
        (true, n) => Some(n.or(body.n_probs).unwrap_or(0)),
    };
    let prompt_logprobs = body.generation.prompt_logprobs();
    if body.stream.is_some() && prompt_logprobs.is_some() {
        let message = "`prompt_logprobs` is not possible with `stream`";
        return Err(ApiError::param("prompt_logprobs", message));
    }
    let shown = Shown { prompt_logprobs, ..body.shown };
    let beams = body.generation.beams();
    beams.check_stream(body.stream.is_some())?;
    // The width of a beam search; other answers are not ranked here.
    if body.best_of.is_some_and(|best_of| best_of != 1)
        && !beams.is_on()
        && !lenient::ignores("best_of")
    {
        return Err(ApiError::unsupported("best_of"));
    }
    let best_of = body.best_of.filter(|_| beams.is_on());
    let defaults = Generation { prediction: body.prediction, best_of, ..defaults };
    let generation = generation(body.generation, max_tokens, logprobs, defaults)?;
    let hides_thoughts = body.thinking.is_hidden;
    let ask = Ask { stream: body.stream, logprobs: logprobs.is_some(), hides_thoughts, shown };
    let Tools { tools, choice, parallel } = body.tools;
    let mut options = ChatOptions { tools, tool_choice: choice, ..ChatOptions::default() };
    options.parallel_tool_calls = parallel.unwrap_or(options.parallel_tool_calls);
    body.thinking.over(&mut options);
    body.rendering.over(&mut options);
    Ok((ChatRequest { messages: body.messages, generation, options }, ask))
}

/// Reads the predicted answer as one text; its parts are joined without a break.
pub(crate) fn prediction(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(raw) = fields.take("prediction") else { return Ok(None) };
    let mut inner = Fields::nested("prediction", raw)?;
    match inner.string("type")?.as_deref() {
        Some("content") => {}
        other => {
            let got = other.map_or(Value::Null, |kind| Value::String(kind.to_owned()));
            return Err(wrong(&inner.path("type"), "\"content\"", &got.to_string()));
        }
    }
    let path = inner.path("content");
    let text = match inner.take("content") {
        Some(raw) => content(&path, raw, "")?,
        None => return Err(wrong(&path, TEXT_OR_PARTS, "null")),
    };
    inner.finish()?;
    Ok(Some(text))
}

const TEXT_OR_PARTS: &str = "a string or an array of parts";

/// Reads a text, or parts that are joined with `between`.
fn content(path: &str, raw: &RawValue, between: &str) -> Result<String, ApiError> {
    match Kind::of(raw) {
        Kind::String => string(path, raw),
        Kind::Array => {
            let mut all = String::new();
            each(path, raw, limits::CONTENT_PARTS, |i, part| {
                all.push_str(if i > 0 { between } else { "" });
                all.push_str(&text_part(&format!("{path}[{i}]"), part)?);
                Ok(())
            })?;
            Ok(all)
        }
        _ => Err(wrong(path, TEXT_OR_PARTS, raw.get())),
    }
}

/// Parts of a message that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("function_call", Accept::Nothing),
    ("audio", Accept::Nothing),
    ("annotations", Accept::Anything),
    ("refusal", Accept::Nothing),
];

/// Reads one message; `path` names it.
pub(crate) fn message(path: &str, raw: &RawValue) -> Result<Message, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let role_path = fields.path("role");
    let role = fields
        .string("role")?
        .ok_or_else(|| ApiError::param(&role_path, format!("`{role_path}` is missing")))?;
    let role = match role.as_str() {
        "system" | "user" | "assistant" => role,
        // Templates know the older name.
        "developer" => "system".to_owned(),
        "tool" => role,
        _ => {
            let expected = match role.as_str() {
                "function" => "tool, the newer role of what a function answers",
                _ => "system, developer, user, assistant or tool",
            };
            return Err(wrong(&role_path, expected, &Value::String(role).to_string()));
        }
    };
    check_unhonoured(&mut fields, UNHONOURED)?;
    let mut extra = Map::new();
    let texts: &[&str] = match role.as_str() {
        "assistant" => &["name", "reasoning_content", "reasoning"],
        "tool" => &["name", "tool_call_id"],
        _ => &["name"],
    };
    for name in texts {
        if let Some(text) = fields.string(name)? {
            extra.insert((*name).to_owned(), Value::String(text));
        }
    }
    if role == "assistant"
        && let Some(calls) = calls(&mut fields)?
    {
        extra.insert("tool_calls".to_owned(), calls);
    }
    let content_path = fields.path("content");
    let content = match fields.take("content") {
        Some(raw) => Value::String(content(&content_path, raw, "\n")?),
        // An answer of calls alone has no text.
        None if extra.contains_key("tool_calls") => Value::Null,
        None => {
            return Err(ApiError::param(&content_path, format!("`{content_path}` is missing")));
        }
    };
    fields.finish()?;
    Ok(Message { role, content, extra })
}

/// Reads one part of a content; only text is understood.
fn text_part(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    match fields.string("type")?.as_deref() {
        Some("text") => {}
        Some(other) => {
            let other = brief(other);
            let message = format!("`{kind_path}`: parts of type `{other}` are not supported yet");
            return Err(ApiError::param(kind_path, message));
        }
        None => return Err(ApiError::param(&kind_path, format!("`{kind_path}` is missing"))),
    }
    let text_path = fields.path("text");
    let text = fields
        .string("text")?
        .ok_or_else(|| ApiError::param(&text_path, format!("`{text_path}` is missing")))?;
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(value: Value) -> Result<(ChatRequest, Ask), ApiError> {
        super::super::parse(value.to_string().as_bytes(), Generation::default())
    }

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body[name] = value;
        body
    }

    #[test]
    fn parts_are_joined_and_developers_are_the_system() {
        let (request, ask) = run(json!({
            "messages": [
                {"role": "developer", "content": "short", "name": "d"},
                {"role": "user", "content": [
                    {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ],
            "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2,
            "tools": [], "response_format": {"type": "text"}, "parallel_tool_calls": true,
        }))
        .expect("valid");
        assert_eq!(request.messages[0].role, "system");
        assert_eq!(request.messages[0].extra["name"], "d");
        assert_eq!(request.messages[1].content, "a\nb");
        assert_eq!(request.generation.max_tokens, Some(5));
        assert_eq!(request.generation.sampling.logprobs, Some(2));
        assert!(ask.logprobs && ask.stream.is_none());
    }

    #[test]
    fn messages_and_parts_are_counted() {
        let part = json!({"type": "text", "text": ""});
        let parts = vec![part; limits::CONTENT_PARTS + 1];
        let message = json!({"role": "user", "content": ""});
        let messages = vec![message; limits::MESSAGES + 1];
        for (param, body) in [
            ("messages", json!({ "messages": messages })),
            ("messages[0].content", json!({"messages": [{"role": "user", "content": parts}]})),
        ] {
            let error = run(body).map(drop).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused_by_its_path() {
        for (param, text) in [
            ("messages", r#"{"messages": [], "messages": []}"#),
            (
                "messages[1].role",
                r#"{"messages": [{"role": "user", "content": "a"},
                {"role": "user", "content": "b", "role": "system"}]}"#,
            ),
            (
                "messages[0].content[0].text",
                r#"{"messages": [{"role": "user", "content":
                [{"type": "text", "text": "a", "text": "b"}]}]}"#,
            ),
            ("logit_bias.5", r#"{"messages": [], "logit_bias": {"5": 1, "5": 2}}"#),
            ("metadata.a.b", r#"{"messages": [], "metadata": {"a": {"b": 1, "b": 2}}}"#),
            (
                "response_format.type",
                r#"{"messages": [], "response_format":
                {"type": "json_object", "type": "text"}}"#,
            ),
            ("slo.ttft_ms", r#"{"messages": [], "slo": {"ttft_ms": 1, "ttft_ms": 9}}"#),
        ] {
            let error = ChatBody::read(text.as_bytes()).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
            assert!(error.body.message.contains("twice"), "{}", error.body.message);
        }
    }

    #[test]
    fn every_refusal_names_its_parameter() {
        let message = |message: Value| json!({ "messages": [message] });
        let mut too_short = with("min_tokens", json!(6));
        too_short["max_completion_tokens"] = json!(5);
        let cases = [
            ("messages", json!({})),
            ("messages", json!({"messages": []})),
            ("messages", json!({"messages": "hi"})),
            ("messages[0]", json!({"messages": ["hi"]})),
            ("messages[0].role", message(json!({"content": "x"}))),
            ("messages[0].role", message(json!({"role": "king", "content": "x"}))),
            ("messages[0].role", message(json!({"role": "function", "content": "x"}))),
            (
                "messages[0].tool_calls",
                message(json!({"role": "user", "content": "x", "tool_calls": []})),
            ),
            ("messages[0].content", message(json!({"role": "user"}))),
            ("messages[0].content", message(json!({"role": "user", "content": 1}))),
            (
                "messages[0].content[0].type",
                message(json!({"role": "user", "content": [{"type": "image_url"}]})),
            ),
            (
                "messages[0].content[0].text",
                message(json!({"role": "user", "content": [{"type": "text"}]})),
            ),
            ("messages[0].x", message(json!({"role": "user", "content": "x", "x": 1}))),
            ("tools[0].function", with("tools", json!([{"type": "function"}]))),
            ("tool_choice", with("tool_choice", json!("required"))),
            ("response_format.type", with("response_format", json!({"type": "xml"}))),
            ("prediction", with("prediction", json!("the answer"))),
            ("prediction.type", with("prediction", json!({"content": "a"}))),
            ("prediction.type", with("prediction", json!({"type": "text", "content": "a"}))),
            ("prediction.content", with("prediction", json!({"type": "content"}))),
            ("prediction.content", with("prediction", json!({"type": "content", "content": 1}))),
            (
                "prediction.content[1].type",
                with(
                    "prediction",
                    json!({"type": "content", "content":
                        [{"type": "text", "text": "a"}, {"type": "image_url"}]}),
                ),
            ),
            ("prediction.x", with("prediction", json!({"type": "content", "content": "", "x": 1}))),
            ("prompt_cache_options", with("prompt_cache_options", json!({"mode": "explicit"}))),
            ("modalities", with("modalities", json!(["text", "audio"]))),
            ("functions", with("functions", json!([1]))),
            ("stream_reasoning", with("stream_reasoning", json!(false))),
            ("return_hidden_states", with("return_hidden_states", json!(true))),
            ("logits_processors", with("logits_processors", json!(["a.b"]))),
            ("n_predict", with("n_predict", json!(-5))),
            ("sampling_seed", with("sampling_seed", json!("x"))),
            ("reasoning_effort", with("reasoning_effort", json!("some"))),
            ("web_search_options", with("web_search_options", json!({}))),
            ("store", with("store", json!(true))),
            ("top_logprobs", with("top_logprobs", json!(3))),
            ("max_completion_tokens", with("max_completion_tokens", json!(0))),
            ("min_tokens", with("min_tokens", json!("few"))),
            ("min_tokens", too_short),
            ("max_tokens", with("max_tokens", json!(0))),
            ("max_tokens", with("max_tokens", json!("many"))),
            ("nonsense", with("nonsense", json!(1))),
        ];
        for (param, body) in cases {
            let error = run(body).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
            assert_eq!(error.status, 400);
        }
    }
}
