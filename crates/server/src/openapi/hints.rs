//! Hints that a reader cannot give for a field: the shape of a value that it takes as JSON, with
//! examples, and words.

use serde_json::Value;

/// Shapes of fields by their path.
const SHAPES: &[(&str, &str)] = &[
    (
        "prompt",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}}], "examples": ["Once upon a time", ["a", "b"], [1, 2], [[1], [2]]]}"#,
    ),
    (
        "stop",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 16}], "examples": ["x", ["x", "y"]]}"#,
    ),
    (
        "stop_token_ids",
        r#"{"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 1024, "examples": [[1, 2]]}"#,
    ),
    (
        "allowed_token_ids",
        r#"{"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 65536, "examples": [[1, 2]]}"#,
    ),
    ("bad_words", r#"{"type": "array", "items": {"type": "string"}, "examples": [["x"]]}"#),
    (
        "dry_sequence_breakers",
        r#"{"type": "array", "items": {"type": "string"}, "examples": [["x"]]}"#,
    ),
    (
        "logit_bias",
        r#"{"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "array"}}], "examples": [{"1": -100}, [[1, 5]]]}"#,
    ),
    (
        "samplers",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": [["top_k", "temperature"]]}"#,
    ),
    ("length_penalty", r#"{"type": "number", "examples": [1]}"#),
    ("early_stopping", r#"{"enum": [true, false, "never", null], "examples": [false]}"#),
    (
        "guided_json",
        r#"{"anyOf": [{"type": "object"}, {"type": "string"}, {"const": true}], "examples": [{"type": "boolean"}]}"#,
    ),
    (
        "json_schema",
        r#"{"anyOf": [{"type": "object"}, {"type": "string"}, {"const": true}], "examples": [{"type": "boolean"}]}"#,
    ),
    ("guided_regex", r#"{"type": "string", "examples": ["[ab]+"]}"#),
    ("guided_grammar", r#"{"type": "string", "examples": ["root ::= \"a\""]}"#),
    ("grammar", r#"{"type": "string", "examples": ["root ::= \"a\""]}"#),
    (
        "guided_choice",
        r#"{"type": "array", "items": {"type": "string"}, "minItems": 1, "examples": [["yes", "no"]]}"#,
    ),
    ("structural_tag", r#"{"anyOf": [{"type": "object"}, {"type": "string"}]}"#),
    (
        "response_format",
        r#"{"type": "object", "properties": {"type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]}}, "required": ["type"], "examples": [{"type": "json_object"}]}"#,
    ),
    ("structured_outputs", r#"{"type": "object", "examples": [{"choice": ["yes", "no"]}]}"#),
    ("tool_choice", r#"{"anyOf": [{"type": "string"}, {"type": "object"}]}"#),
    (
        "prediction",
        r#"{"type": "object", "properties": {"type": {"const": "content"}, "content": {}}, "required": ["type", "content"], "examples": [{"type": "content", "content": "a"}]}"#,
    ),
    ("chat_template_kwargs", r#"{"type": "object", "examples": [{"enable_thinking": false}]}"#),
    (
        "messages[].content",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}"#,
    ),
    ("messages[].role", r#"{"type": "string", "examples": ["user"]}"#),
    (
        "slo",
        r#"{"type": "object", "properties": {"ttft_ms": {"type": "number", "exclusiveMinimum": 0}, "tpot_ms": {"type": "number", "exclusiveMinimum": 0}}, "additionalProperties": false, "examples": [{"ttft_ms": 500}]}"#,
    ),
    (
        "input",
        r#"{"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}, {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}, {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}], "examples": ["a cat", ["a", "b"], [1, 2], [[1], [2]]]}"#,
    ),
    (
        "tokens",
        r#"{"type": "array", "items": {"type": "integer", "minimum": 0}, "examples": [[1, 2]]}"#,
    ),
    (
        "metadata",
        r#"{"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 16, "examples": [{"a": "b"}]}"#,
    ),
    (
        "system",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}], "examples": ["Be brief."]}"#,
    ),
];

/// Words about fields by their last name.
const WORDS: &[(&str, &str)] = &[
    ("model", "Name or alias of a model; the first model where it is absent"),
    ("messages", "The conversation, its first message first"),
    ("temperature", "0 always takes the likeliest token; higher values make answers more varied"),
    ("top_p", "Least share of probability that is kept; 1 keeps everything"),
    ("top_k", "Most tokens to choose from; 0 and -1 are all"),
    ("min_p", "Least probability of a token, as a share of the likeliest one's"),
    ("max_tokens", "Most tokens of an answer"),
    ("max_completion_tokens", "Most tokens of an answer"),
    ("min_tokens", "Least tokens of an answer"),
    ("seed", "The same seed gives the same answer"),
    ("stop", "Texts before which an answer ends"),
    ("n", "Answers per prompt"),
    ("stream", "Whether the answer comes as server-sent events"),
    ("include_usage", "Whether the last event has `usage`"),
    ("prompt_progress", "Whether comments say how far the prompt is computed"),
    ("response_format", "Form of the answer: JSON, or JSON of a schema"),
    ("priority", "Urgency under `--policy priority`"),
    ("cache_salt", "Limits the sharing of cached prefixes to requests with the same salt"),
    ("prompt", "Text, token ids, or several of either"),
    ("input", "Text, token ids, or several of either"),
    ("tools", "Functions that the model may call"),
    ("query", "The question for which documents are ranked"),
    ("documents", "The documents to rank"),
    ("top_n", "Most results; 0 is all"),
    ("truncate", "Whether a text that is too long is cut"),
    ("use_activation", "False for logits, true for their sigmoid"),
    ("input_file_id", "The file with the lines"),
    ("endpoint", "The only `url` of the lines"),
    ("completion_window", "Hours from `1h` to `720h`, by default `24h`"),
    ("metadata", "Labels that are sent back"),
    ("previous_response_id", "The stored response from which this one goes on"),
];

/// The shape of the field at a path, where a reader cannot tell it.
pub(super) fn shape(path: &str) -> Option<Value> {
    SHAPES.iter().find(|(known, _)| *known == path).map(|(_, text)| json(text))
}

/// Words about the field of a name.
pub(super) fn about(name: &str) -> Option<&'static str> {
    WORDS.iter().find(|(known, _)| *known == name).map(|(_, words)| *words)
}

/// The value of a text of this folder.
pub(super) fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("invariant: tests read every text")
}
