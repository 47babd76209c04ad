//! Parts of operations that the table of routes lacks: a summary, the reader of the body with a
//! sample, and the names of answers.

use serde_json::Value;

use super::hints;
use crate::error::ApiError;
use crate::routes;

/// A reader's verdict on a body.
pub(super) type Reads = Result<(), ApiError>;

/// A body in JSON.
pub(super) struct Body {
    /// Reads it as the handler does, as far as the reading does not depend on the model.
    pub(super) reader: fn(&[u8]) -> Reads,
    /// A small body that is accepted.
    pub(super) sample: &'static str,
    /// Further bodies, with the fields of objects inside.
    pub(super) more: &'static [&'static str],
    /// Groups of names, of each of which a body has one.
    pub(super) either: &'static [&'static [&'static str]],
    /// Shapes of fields by their path, where this body has others than those of [`hints`].
    pub(super) shapes: &'static [(&'static str, &'static str)],
}

impl Body {
    /// All samples.
    pub(super) fn samples(&self) -> impl Iterator<Item = &'static str> {
        [self.sample].into_iter().chain(self.more.iter().copied())
    }
}

/// The value of a sample.
pub(super) fn sample(text: &str) -> Value {
    hints::json(text)
}

/// The description of one route.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<Body>,
    /// Media type and schema of a body that is not JSON.
    pub(super) takes: Option<(&'static str, &'static str)>,
    /// Name, schema and words of each parameter of the query.
    pub(super) query: &'static [(&'static str, &'static str, &'static str)],
    /// Media type and, for JSON, the name of the schema.
    pub(super) answer: (&'static str, &'static str),
    /// A second media type, such as that of server-sent events.
    pub(super) or_media: Option<&'static str>,
    /// Further statuses and the names of their schemas.
    pub(super) also: &'static [(&'static str, &'static str)],
    /// Name of the schema of errors.
    pub(super) error: &'static str,
}

const JSON: &str = "application/json";

impl Operation {
    const fn new(
        method: &'static str,
        path: &'static str,
        tag: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            tag,
            summary,
            body: None,
            takes: None,
            query: &[],
            answer: (JSON, "Object"),
            or_media: None,
            also: &[],
            error: "Error",
        }
    }

    const fn get(path: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Self::new("GET", path, tag, summary)
    }

    const fn post(path: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Self::new("POST", path, tag, summary)
    }

    const fn delete(path: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Self::new("DELETE", path, tag, summary)
    }

    /// A body that is not JSON.
    const fn takes(mut self, media: &'static str, schema: &'static str) -> Self {
        self.takes = Some((media, schema));
        self
    }

    const fn body(mut self, reader: fn(&[u8]) -> Reads, sample: &'static str) -> Self {
        self.body = Some(Body { reader, sample, more: &[], either: &[], shapes: &[] });
        self
    }

    const fn more(mut self, more: &'static [&'static str]) -> Self {
        if let Some(body) = &mut self.body {
            body.more = more;
        }
        self
    }

    const fn either(mut self, groups: &'static [&'static [&'static str]]) -> Self {
        if let Some(body) = &mut self.body {
            body.either = groups;
        }
        self
    }

    const fn shapes(mut self, shapes: &'static [(&'static str, &'static str)]) -> Self {
        if let Some(body) = &mut self.body {
            body.shapes = shapes;
        }
        self
    }

    const fn answers(mut self, schema: &'static str) -> Self {
        self.answer = (JSON, schema);
        self
    }

    const fn media(mut self, media: &'static str) -> Self {
        self.answer = (media, "");
        self
    }

    const fn streams(self) -> Self {
        self.or_media("text/event-stream")
    }

    /// A second media type of the answer.
    const fn or_media(mut self, media: &'static str) -> Self {
        self.or_media = Some(media);
        self
    }

    const fn query(mut self, query: &'static [(&'static str, &'static str, &'static str)]) -> Self {
        self.query = query;
        self
    }

    const fn also(mut self, also: &'static [(&'static str, &'static str)]) -> Self {
        self.also = also;
        self
    }

    const fn error(mut self, schema: &'static str) -> Self {
        self.error = schema;
        self
    }
}

const STRING: &str = r#"{"type": "string"}"#;
const DAY: &str = r#"{"type": "string", "format": "date"}"#;
const ORDER: &str = r#"{"enum": ["asc", "desc"]}"#;
const PAGE: &str = r#"{"type": "integer", "minimum": 1, "maximum": 10000}"#;
const RANKED: &str = r#"{"query": "a cat", "documents": ["a dog", "a cat"]}"#;
/// Shapes of a query or a document that is ranked.
const RANKED_SHAPES: &[(&str, &str)] = &[
    (
        "query",
        r#"{"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}], "examples": ["a cat", {"text": "a cat"}]}"#,
    ),
    (
        "documents",
        r#"{"type": "array", "minItems": 1, "maxItems": 2048, "items": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}]}, "examples": [["a", "b"], [{"text": "a", "id": 1}]]}"#,
    ),
];
const SCORED: &str = r#"{"text_1": "a cat", "text_2": ["a dog", "a cat"]}"#;
/// Other names of the same fields.
const SCORED_MORE: &[&str] = &[
    r#"{"queries": ["a"], "documents": ["b"]}"#,
    r#"{"query": "a", "items": ["b"]}"#,
    r#"{"data_1": "a", "data_2": "b"}"#,
];
const TEXTS: &str = r#"{"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"type": "string", "minLength": 1}}], "examples": ["a", ["a"]]}"#;
const SCORED_SHAPES: &[(&str, &str)] = &[
    ("text_1", TEXTS),
    ("queries", TEXTS),
    ("query", TEXTS),
    ("data_1", TEXTS),
    ("text_2", TEXTS),
    ("documents", TEXTS),
    ("items", TEXTS),
    ("data_2", TEXTS),
];
const CLASSIFIED: &str = r#"{"input": ["a cat"]}"#;
/// The parts of a conversation of Responses whose shapes no reader tells.
const RESPONSE_SHAPES: &[(&str, &str)] = &[
    (
        "input",
        r#"{"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "object"}}], "examples": ["Tell me a story.", [{"role": "user", "content": "a"}]]}"#,
    ),
    (
        "tools",
        r#"{"type": "array", "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}, "examples": [[{"type": "function", "name": "f", "parameters": {"type": "object"}}], [{"type": "web_search"}]]}"#,
    ),
    (
        "include",
        r#"{"type": "array", "items": {"enum": ["message.output_text.logprobs", "reasoning.encrypted_content", "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url", "web_search_call.action.sources", "web_search_call.results"]}, "examples": [["reasoning.encrypted_content"]]}"#,
    ),
    (
        "text.format",
        r#"{"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}}}"#,
    ),
];
/// A form with a file, as OpenAI's clients send it.
const FILE_FORM: &str = r#"{"type": "object", "required": ["file", "purpose"], "additionalProperties": false, "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream", "minLength": 1}, "purpose": {"const": "batch"}}}"#;
/// Statuses of routes that keep files.
const KEEPS: &[(&str, &str)] = &[("500", "Error"), ("507", "Error")];
const CONVERSATION: &str = r#"{"messages": [{"role": "user", "content": "Tell me a story."}]}"#;
const BOOL: &str = r#"{"type": "boolean"}"#;

/// Routes by method and path; a route that a build lacks is not part of its document.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation::get("/health", "operation", "Whether the process should live, and its load")
        .answers("Health")
        .also(&[("503", "Health")]),
    Operation::get("/ready", "operation", "Whether a new request would be accepted")
        .answers("Ready")
        .also(&[("503", "Ready")]),
    Operation::get("/version", "operation", "The version of the server").answers("Version"),
    Operation::get("/metrics", "operation", "Figures for Prometheus")
        .media("text/plain"),
    Operation::get("/openapi.json", "operation", "This document").answers("Document"),
    Operation::get("/v1/live", "operation", "The server at this moment")
        .answers("Live")
        .query(&[("stream", BOOL, "Whether it comes once a second")])
        .streams(),
    Operation::get("/", "page", "The web page").media("text/html"),
    Operation::get("/page/{file}", "page", "A file of the web page").media("*/*"),
    Operation::get("/v1/models", "models", "The models of the server")
        .answers("ModelsOfDialect"),
    Operation::get("/v1/models/{*id}", "models", "A model by name or alias")
        .answers("ModelOfDialect"),
    Operation::post("/models/load", "models", "Loads a model")
        .body(routes::models::read_only, r#"{"model": "story"}"#)
        .answers("Model"),
    Operation::post("/models/unload", "models", "Takes a model out of memory")
        .body(routes::models::read_only, r#"{"model": "story"}"#)
        .answers("Model"),
    Operation::post("/models/reload", "models", "Loads a model anew from its files")
        .body(routes::models::read_only, r#"{"model": "story"}"#)
        .answers("Model"),
    Operation::post("/v1/chat/completions", "OpenAI", "Answers a conversation")
        .body(
            routes::chat::read_only,
            r#"{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 2}"#,
        )
        .more(&[
            r#"{"messages": [{"role": "user", "content": "a"}], "stream": true, "stream_options": {}, "speculation": {}, "slo": {}, "reasoning": {}}"#,
            r#"{"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f"}}]}"#,
        ])
        .answers("ChatAnswer")
        .streams(),
    Operation::post("/v1/completions", "OpenAI", "Continues texts")
        .body(
            routes::completions::read_only,
            r#"{"prompt": "Once upon a time", "max_tokens": 2}"#,
        )
        .more(&[
            r#"{"prompt": "a", "stream": true, "stream_options": {}, "speculation": {}, "slo": {}}"#,
        ])
        .answers("CompletionAnswer")
        .streams(),
    Operation::post("/v1/embeddings", "OpenAI", "Makes vectors of texts")
        .body(routes::embeddings::read_only, r#"{"input": "a cat"}"#)
        .answers("Embeddings"),
    Operation::post("/v1/messages", "Anthropic", "Answers a conversation")
        .body(
            routes::messages::read_only,
            r#"{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 2}"#,
        )
        .more(&[
            r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "speculation": {}, "slo": {}, "output_config": {}, "tools": [{"name": "f", "input_schema": {}}]}"#,
        ])
        .answers("Message")
        .streams()
        .error("MessagesError"),
    Operation::post("/v1/messages/count_tokens", "Anthropic", "Counts the tokens of a conversation")
        .body(
            routes::messages::read_only_count,
            r#"{"messages": [{"role": "user", "content": "Tell me a story."}]}"#,
        )
        .answers("MessagesCount")
        .error("MessagesError"),
    Operation::post("/tokenize", "tokens", "The tokens of a text or of a conversation")
        .body(routes::tokens::read_tokenize, r#"{"prompt": "Once upon a time"}"#)
        .more(&[r#"{"content": "a"}"#, CONVERSATION])
        .either(&[&["prompt", "content", "messages"]])
        .shapes(&[("prompt", STRING)])
        .answers("Tokens"),
    Operation::post("/detokenize", "tokens", "The text of tokens")
        .body(routes::tokens::read_detokenize, r#"{"tokens": [1, 2]}"#)
        .answers("Detokenized"),
    Operation::get("/tokenizer_info", "tokens", "Facts about the tokenizer")
        .query(&[("model", STRING, "Name of a model")])
        .answers("TokenizerInfo")
        .also(&[("404", "Error"), ("500", "Error")]),
    Operation::post("/apply-template", "tokens", "The prompt of a conversation")
        .body(routes::tokens::read_rendered, CONVERSATION)
        .answers("Prompt"),
    Operation::post("/v1/chat/completions/render", "tokens", "The prompt of a chat and its tokens")
        .body(routes::tokens::read_rendered, CONVERSATION)
        .answers("PromptTokens"),
    Operation::post("/v1/responses", "OpenAI", "Answers a conversation that may be stored")
        .body(
            routes::responses::read_only,
            r#"{"input": "Tell me a story.", "max_output_tokens": 2}"#,
        )
        .more(&[
            r#"{"input": "a", "stream": true, "stream_options": {}, "speculation": {}, "slo": {}, "reasoning": {}, "text": {}}"#,
        ])
        .shapes(RESPONSE_SHAPES)
        .answers("Response")
        .streams(),
    Operation::get("/v1/responses/{id}", "OpenAI", "A stored answer")
        .query(&[
            ("stream", BOOL, "Whether its events come as a stream"),
            ("starting_after", r#"{"type": "integer", "minimum": 0}"#, "Number of the last event that is known"),
        ])
        .answers("Response")
        .streams(),
    Operation::delete("/v1/responses/{id}", "OpenAI", "Removes a stored answer")
        .answers("ResponseDeleted"),
    Operation::post("/v1/responses/{id}/cancel", "OpenAI", "Ends an answer in the background")
        .answers("Response"),
    Operation::get("/v1/responses/{id}/input_items", "OpenAI", "The input of a stored answer")
        .query(&[
            ("limit", r#"{"type": "integer", "minimum": 1, "maximum": 100}"#, "Most items"),
            ("order", ORDER, "Newest or oldest first"),
            ("after", STRING, "Id of the item before the first"),
        ])
        .answers("InputItems"),
    Operation::post("/v1/responses/input_tokens", "OpenAI", "Counts the tokens of an input")
        .body(routes::responses::read_only_count, r#"{"input": "Tell me a story."}"#)
        .more(&[r#"{"input": "a", "reasoning": {}, "text": {}}"#])
        .shapes(RESPONSE_SHAPES)
        .answers("InputTokens"),
    Operation::post("/v1/rerank", "ranking", "Documents in the order of their relevance")
        .body(routes::rerank::read_only, RANKED)
        .shapes(RANKED_SHAPES)
        .answers("Ranking"),
    Operation::post("/rerank", "ranking", "Documents in the order of their relevance")
        .body(routes::rerank::read_only, RANKED)
        .shapes(RANKED_SHAPES)
        .answers("Ranking"),
    Operation::post("/v2/rerank", "ranking", "Documents in the order of their relevance")
        .body(routes::rerank::read_only, RANKED)
        .shapes(RANKED_SHAPES)
        .answers("Ranking"),
    Operation::post("/v1/score", "ranking", "Scores of pairs of texts")
        .body(routes::score::read_only, SCORED)
        .more(SCORED_MORE)
        .either(routes::score::SIDES)
        .shapes(SCORED_SHAPES)
        .answers("Scores"),
    Operation::post("/score", "ranking", "Scores of pairs of texts")
        .body(routes::score::read_only, SCORED)
        .more(SCORED_MORE)
        .either(routes::score::SIDES)
        .shapes(SCORED_SHAPES)
        .answers("Scores"),
    Operation::post("/v1/classify", "ranking", "Labels of texts")
        .body(routes::classify::read_only, CLASSIFIED)
        .answers("Labels"),
    Operation::post("/classify", "ranking", "Labels of texts")
        .body(routes::classify::read_only, CLASSIFIED)
        .answers("Labels"),
    Operation::get("/v1/files", "batches", "The files of the caller")
        .query(&[
            ("purpose", r#"{"enum": ["batch", "batch_output"]}"#, "Only files for this"),
            ("limit", PAGE, "Most files"),
            ("order", ORDER, "Newest or oldest first"),
            ("after", STRING, "Id of the file before the first"),
        ])
        .answers("Files")
        .also(&[("404", "Error")]),
    Operation::post("/v1/files", "batches", "Takes a file")
        .takes("multipart/form-data", FILE_FORM)
        .answers("File")
        .also(KEEPS),
    Operation::get("/v1/files/{id}", "batches", "Facts about a file").answers("File"),
    Operation::delete("/v1/files/{id}", "batches", "Removes a file")
        .answers("FileDeleted")
        .also(&[("500", "Error")]),
    Operation::get("/v1/files/{id}/content", "batches", "A file")
        .media("application/octet-stream")
        .also(&[("500", "Error")]),
    Operation::get("/v1/batches", "batches", "The batches of the caller")
        .query(&[
            ("limit", PAGE, "Most batches"),
            ("order", ORDER, "Newest or oldest first"),
            ("after", STRING, "Id of the batch before the first"),
        ])
        .answers("Batches")
        .also(&[("404", "Error")]),
    Operation::post("/v1/batches", "batches", "Begins a batch")
        .body(
            routes::batches::read_only,
            r#"{"input_file_id": "file-1", "endpoint": "/v1/completions"}"#,
        )
        .answers("Batch")
        .also(KEEPS),
    Operation::get("/v1/batches/{id}", "batches", "How a batch stands").answers("Batch"),
    Operation::post("/v1/batches/{id}/cancel", "batches", "Ends a batch").answers("Batch"),
    Operation::get("/v1/usage", "operation", "Tokens by key, tenant, model and day")
        .query(&[
            ("since", DAY, "The first day"),
            ("until", DAY, "The last day"),
            ("key", STRING, "Only this key"),
            ("tenant", STRING, "Only this tenant"),
            ("model", STRING, "Only this model"),
            ("format", r#"{"enum": ["json", "csv"]}"#, "JSON, or CSV"),
        ])
        .answers("UsageReport")
        .or_media("text/csv"),
    Operation::get("/v1/requests/{id}/timeline", "operation", "The course of a request")
        .answers("ChromeTrace"),
];
