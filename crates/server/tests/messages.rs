//! `POST /v1/messages` and its count of tokens, with a parrot for a model.

use crate::harness::parrot::{CONTEXT, parrot};
use crate::harness::{Answer, Running, post_text, start, start_with};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

/// A request with this text of the user, and these fields.
fn ask(text: &str, more: Value) -> Value {
    let mut body = json!({"max_tokens": 100, "messages": [{"role": "user", "content": text}]});
    for (name, value) in more.as_object().expect("object") {
        body[name] = value.clone();
    }
    body
}

/// Names and data of the events of a stream.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    let frames = answer.body.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let read = |frame: &str| {
        let (name, data) = frame.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(data["type"], name.as_str(), "the name is the type");
        (name, data)
    };
    frames.map(read).collect()
}

/// Status, kind and message of an error, whose envelope must be whole.
fn failure(answer: &Answer) -> (u16, String, String) {
    let body = answer.json();
    let fields: Vec<&str> = body.as_object().expect("object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["type", "error", "request_id"], "{body}");
    assert_eq!(body["type"], "error");
    let id = body["request_id"].as_str().expect("a name");
    assert!(answer.head.contains(&format!("\r\nrequest-id: {id}")), "{}", answer.head);
    let text = |name: &str| body["error"][name].as_str().expect(name).to_owned();
    (answer.status, text("type"), text("message"))
}

#[tokio::test]
async fn a_message_is_answered_in_one_piece() {
    let server = start(parrot()).await;
    let body = ask("hey!", json!({"model": "org/parrot", "system": "be a parrot"}));
    let answer = server.post("/v1/messages?beta=true", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut body = answer.json();
    let id = body["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with("msg_")), "{id}");
    let expected = json!({"id": null, "type": "message", "role": "assistant",
        "model": "org/parrot", "content": [{"type": "text", "text": "hey!"}],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 4, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "output_tokens": 5}});
    assert_eq!(body, expected);
    assert!(answer.head.contains("\r\nrequest-id: req-"), "{}", answer.head);
    assert!(!answer.head.contains("x-pelton-ignored:"), "{}", answer.head);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_the_events_of_the_dialect_in_their_order() {
    let server = start(parrot()).await;
    let answer = server.post(PATH, ask("hey!", json!({"stream": true}))).await;
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let events = events(&answer);
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    let message = &events[0].1["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(message["usage"]["input_tokens"], 4, "the prompt is counted before it is computed");
    let block = json!({"type": "text", "text": ""});
    assert_eq!((&events[2].1["index"], &events[2].1["content_block"]), (&json!(0), &block));
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    let text: String =
        deltas.map(|(_, data)| data["delta"]["text"].as_str().expect("text")).collect();
    assert_eq!(text, "hey!");
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    assert_eq!(last["usage"]["output_tokens"], 5);
    server.stop().await;
}

#[tokio::test]
async fn the_reason_of_the_end_is_told() {
    let server = start(parrot()).await;
    let end = async |body: Value| {
        let body = server.post(PATH, body).await.json();
        let text = body["content"][0]["text"].as_str().expect("text").to_owned();
        (text, body["stop_reason"].clone(), body["stop_sequence"].clone())
    };
    let stop = json!({"stop_sequences": ["zzz", "two"]});
    let stopped = ("one ".to_owned(), json!("stop_sequence"), json!("two"));
    assert_eq!(end(ask("one two", stop)).await, stopped);
    let cut = ("one".to_owned(), json!("max_tokens"), Value::Null);
    assert_eq!(end(ask("one two", json!({"max_tokens": 3}))).await, cut);
    let (text, reason, _) = end(ask("one two", json!({"max_tokens": 100_000}))).await;
    assert_eq!((text.len(), reason), (CONTEXT - 7, json!("model_context_window_exceeded")));
    server.stop().await;
}

#[tokio::test]
async fn texts_and_blocks_are_the_same_and_tokens_are_counted_without_an_answer() {
    let server = start(parrot()).await;
    let blocks = json!({"system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=abc;"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "first"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"},
                {"type": "text", "text": "well"},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": [
                    {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"type": "text", "text": "he", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "y!"}]}]});
    let answer = server.post(PATH, ask("", blocks.clone())).await.json();
    assert_eq!(answer["content"][0]["text"], "he\ny!", "texts of one turn are lines");
    let count = server.post("/v1/messages/count_tokens", blocks).await;
    assert_eq!((count.status, count.json()), (200, json!({"input_tokens": 5})));
    assert_eq!(answer["usage"]["input_tokens"], 5);
    let continued = json!({"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "say!"}]});
    let answer = server.post(PATH, ask("", continued)).await.json();
    assert_eq!(answer["content"][0]["text"], "say!", "the answer goes on from the last message");
    let last_is_result = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": "no!"}]}]});
    let answer = server.post(PATH, ask("", last_is_result)).await.json();
    let text = answer["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("Error: no!"), "an error is marked: {text}");
    server.stop().await;
}

#[tokio::test]
async fn fields_that_ask_for_nothing_are_accepted_and_the_others_are_listed() {
    let server = start(parrot()).await;
    let claude_code = json!({
        "metadata": {"user_id": "user_1_account__session_2"}, "temperature": 1,
        "thinking": {"type": "enabled", "budget_tokens": 99}, "service_tier": "standard_only",
        "cache_control": {"type": "ephemeral"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    });
    let answer = server.post(PATH, ask("hey!", claude_code)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ignored = "\r\nx-pelton-ignored: thinking, output_config.effort\r\n";
    assert!(answer.head.contains(ignored), "this model does not think: {}", answer.head);
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_by_its_path_in_the_envelope_of_the_dialect() {
    let server = start(parrot()).await;
    let message = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let said = |content: Value| json!({"messages": [{"role": "assistant", "content": content}]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let plain = json!({"name": "f", "input_schema": {"type": "object"}});
    let many = vec![json!({"type": "text", "text": ""}); 5000];
    for (path, fields) in [
        ("max_tokens", json!({"max_tokens": null})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("max_tokens", json!({"max_tokens": "many"})),
        ("messages", json!({"messages": null})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "hi"})),
        (
            "messages[0].content",
            json!({"system": "s", "messages": [{"role": "user", "content": []}]}),
        ),
        (
            "messages[1].content",
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": []},
                {"role": "user", "content": "y"}]}),
        ),
        ("messages[0]", json!({"messages": ["hi"]})),
        ("messages[0].role", json!({"messages": [{"content": "x"}]})),
        ("messages[0].role", json!({"messages": [{"role": "system", "content": "x"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        ("messages[0].content", message(json!(1))),
        ("messages[0].content", message(json!(many))),
        ("messages[0].content[0].type", message(json!([{"text": "x"}]))),
        ("messages[0].content[0].text", message(json!([{"type": "text"}]))),
        ("messages[0].content[0].x", message(json!([{"type": "text", "text": "", "x": 1}]))),
        ("messages[0].content[0].type", message(json!([{"type": "image", "source": {}}]))),
        ("messages[0].content[0].type", message(json!([{"type": "document", "source": {}}]))),
        ("messages[0].content[0].type", message(json!([{"type": "thinking", "thinking": ""}]))),
        ("messages[0].content[0].tool_use_id", message(json!([{"type": "tool_result"}]))),
        (
            "messages[0].content[0].content[0].type",
            message(json!([{"type": "tool_result", "tool_use_id": "t",
                "content": [{"type": "image"}]}])),
        ),
        ("messages[0].content[0].type", said(json!([{"type": "redacted_thinking", "data": ""}]))),
        (
            "messages[0].content[0].input",
            said(json!([{"type": "tool_use", "id": "t", "name": "f", "input": [1]}])),
        ),
        ("messages", said(json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]))),
        ("system", json!({"system": 1})),
        ("system[0].type", json!({"system": [{"type": "image"}]})),
        ("tools[0].input_schema", tool(json!({"name": "f"}))),
        ("tools[0].input_schema", tool(json!({"name": "f", "input_schema": "x"}))),
        ("tools[0].input_schema.type", tool(json!({"name": "f", "input_schema": {"type": "x"}}))),
        ("tools[0].name", tool(json!({"name": "a b", "input_schema": {}}))),
        ("tools[0].type", tool(json!({"name": "bash", "type": "bash_20250124"}))),
        ("tools[1].name", json!({"tools": [plain, plain]})),
        ("tool_choice.type", json!({"tools": [plain], "tool_choice": {"type": "required"}})),
        (
            "tool_choice.name",
            json!({"tools": [plain], "tool_choice": {"type": "tool", "name": "g"}}),
        ),
        ("tool_choice", json!({"tool_choice": {"type": "any"}})),
        ("thinking.type", json!({"thinking": {"type": "on"}})),
        ("thinking.budget_tokens", json!({"thinking": {"type": "enabled"}})),
        ("thinking.budget_tokens", json!({"thinking": {"type": "enabled", "budget_tokens": 100}})),
        ("thinking.display", json!({"thinking": {"type": "adaptive", "display": "omitted"}})),
        ("stop_sequences[1]", json!({"stop_sequences": ["a", ""]})),
        ("stop_sequences", json!({"stop_sequences": vec!["x"; 17]})),
        ("output_config.effort", json!({"output_config": {"effort": "much"}})),
        ("output_config.format.type", json!({"output_config": {"format": {"type": "xml"}}})),
        (
            "output_config.format.schema.enum",
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"enum": []}}}}),
        ),
        ("context_management.edits[0]", json!({"context_management": {"edits": [{"type": "x"}]}})),
        ("mcp_servers", json!({"mcp_servers": [{"url": "x"}]})),
        ("container", json!({"container": "c"})),
        ("temperature", json!({"temperature": "hot"})),
        ("top_p", json!({"top_p": 0})),
        ("n", json!({"n": 2})),
        ("response_format", json!({"response_format": {"type": "json_object"}})),
        ("max_completion_tokens", json!({"max_completion_tokens": 3})),
    ] {
        let answer = server.post(PATH, ask("x", fields.clone())).await;
        let (status, kind, message) = failure(&answer);
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{path}: {message}");
        assert!(message.contains(&format!("`{path}`")), "{path}: {message}");
    }
    // The last answer may be empty: it is the one that is asked for.
    let last =
        [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": []})];
    let answer = server.post(PATH, ask("x", json!({"messages": last}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.stop().await;
}

#[tokio::test]
async fn an_error_of_the_library_has_the_names_of_the_dialect() {
    let server = start(parrot()).await;
    let (status, _, message) =
        failure(&server.post(PATH, ask(&"x".repeat(CONTEXT), json!({}))).await);
    assert_eq!(status, 400);
    assert!(message.starts_with("the prompt has 512 tokens"), "a word and no name: {message}");
    let tools = json!({"tools": [{"name": "f", "input_schema": {"type": "object",
        "properties": {"a": {"enum": []}}}}], "tool_choice": {"type": "any"}});
    let (status, _, message) = failure(&server.post(PATH, ask("x", tools)).await);
    let path = "`tools[0].input_schema.properties.a.enum`";
    assert!(status == 400 && message.contains(path), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_are_hostile_are_refused_and_the_next_one_is_answered() {
    let server = start(parrot()).await;
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (path, body) in [
        ("the body is not valid JSON", "{".to_owned()),
        ("the body is JSON but no object", "[]".to_owned()),
        ("`messages[0].content[0]`", format!(
            r#"{{"max_tokens": 1, "messages": [{{"role": "user", "content": {deep}}}]}}"#
        )),
        ("`messages[0].content[0].input.a`", r#"{"max_tokens": 1, "messages": [{"role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1, "a": 2}}]}]}"#
            .to_owned()),
        ("`max_tokens`", r#"{"max_tokens": 1, "max_tokens": 2, "messages": []}"#.to_owned()),
        ("`metadata`", format!(
            r#"{{"max_tokens": 1, "metadata": {deep}, "messages": [{{"role": "user", "content": "x"}}]}}"#
        )),
        ("`tools[0].input_schema", format!(
            r#"{{"max_tokens": 1, "tools": [{{"name": "f", "input_schema": {{"x": {deep}}}}}],
            "messages": [{{"role": "user", "content": "x"}}]}}"#
        )),
        ("`messages` has more than", format!(
            r#"{{"max_tokens": 1, "messages": [{}1]}}"#,
            r#"{"role":"user","content":""},"#.repeat(20_000)
        )),
    ] {
        let answer = server.raw(&post_text(PATH, &body)).await;
        let (status, _, message) = failure(&answer);
        assert_eq!(status, 400, "{path}: {message}");
        assert!(message.contains(path) && message.len() < 1000, "{path}: {message}");
    }
    let fine = server.post(PATH, ask("hey!", json!({}))).await;
    assert_eq!(fine.status, 200, "{}", fine.body);
    server.stop().await;
}

/// Sends a request by its head, with further lines.
async fn with_head(server: &Running, head: &str, lines: &str, body: &str) -> Answer {
    let n = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {n}\r\n{lines}\r\n{body}"
    );
    server.raw(&text).await
}

#[tokio::test]
async fn errors_of_layers_have_the_envelope_and_a_key_may_come_in_either_header() {
    let key = ApiKey::new("sk-1").expect("a key");
    let tenant = Tenant { name: "default".to_owned(), priority: 0, keys: vec![key] };
    let access = Access::new(vec![tenant]).expect("one tenant");
    let config = ServeConfig { access, max_body_bytes: 1000, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let json = "content-type: application/json\r\n";
    let (post, ok) = (format!("POST {PATH}"), ask("hey!", json!({})).to_string());
    for (status, kind, head, lines, body) in [
        (401, "authentication_error", post.as_str(), json.to_owned(), ok.as_str()),
        (401, "authentication_error", &post, format!("{json}x-api-key: sk-2\r\n"), &ok),
        (405, "invalid_request_error", "GET /v1/messages", "x-api-key: sk-1\r\n".to_owned(), ""),
        (404, "not_found_error", "POST /v1/messages/x", "x-api-key: sk-1\r\n".to_owned(), ""),
        (413, "request_too_large", &post, format!("{json}x-api-key: sk-1\r\n"), &"x".repeat(1001)),
        (415, "invalid_request_error", &post, "x-api-key: sk-1\r\n".to_owned(), &ok),
        (
            404,
            "not_found_error",
            &post,
            format!("{json}x-api-key: sk-1\r\n"),
            &ask("x", json!({"model": "claude"})).to_string(),
        ),
    ] {
        let answer = with_head(&server, head, &lines, body).await;
        let (got, got_kind, message) = failure(&answer);
        assert_eq!((got, got_kind.as_str()), (status, kind), "{head} {message}");
    }
    for lines in
        ["x-api-key: sk-1\r\nanthropic-version: 2023-06-01\r\n", "authorization: Bearer sk-1\r\n"]
    {
        let answer = with_head(&server, &post, &format!("{json}{lines}"), &ok).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let other = with_head(&server, "POST /v1/messagesx", "x-api-key: sk-1\r\n", "").await;
    assert_eq!(other.error().0, 404, "another path has the form of OpenAI");
    server.stop().await;
}

#[tokio::test]
async fn a_failure_in_a_stream_is_its_last_event() {
    let server = start(parrot()).await;
    let answer = server.post(PATH, ask("fail ~", json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let events = events(&answer);
    let (name, data) = events.last().expect("events");
    assert_eq!((name.as_str(), &data["error"]["type"]), ("error", &json!("api_error")));
    assert!(data["request_id"].as_str().is_some_and(|id| id.starts_with("req-")), "{data}");
    assert!(events.iter().all(|(name, _)| name != "message_stop"), "it has no end");
    let whole = server.post(PATH, ask("fail ~", json!({}))).await;
    assert_eq!(failure(&whole).1, "api_error");
    server.stop().await;
}

#[tokio::test]
async fn models_have_the_shape_of_the_dialect_of_their_client() {
    let server = start(parrot()).await;
    let get = async |path: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             anthropic-version: 2023-06-01\r\n\r\n"
        );
        server.raw(&request).await
    };
    let list = get("/v1/models?limit=20").await.json();
    let created_at = list["data"][0]["created_at"].clone();
    let model = json!({"type": "model", "id": "org/parrot", "display_name": "org/parrot",
        "created_at": created_at});
    let expected = json!({"data": [model], "has_more": false, "first_id": "org/parrot",
        "last_id": "org/parrot"});
    assert_eq!(list, expected);
    assert_eq!(get("/v1/models/org/parrot").await.json(), model);
    let (status, kind, message) = failure(&get("/v1/models/none").await);
    assert_eq!((status, kind.as_str()), (404, "not_found_error"), "{message}");

    // Without the header all of it is OpenAI's.
    let plain = server.get("/v1/models").await;
    let created = plain.json()["data"][0]["created"].as_u64().expect("seconds");
    assert_eq!(created_at, pelton_gateway::date_time(created));
    let model =
        format!(r#"{{"id":"org/parrot","object":"model","created":{created},"owned_by":"pelton","#);
    assert!(
        plain.body.starts_with(&format!(r#"{{"object":"list","data":[{model}"#)),
        "{}",
        plain.body
    );
    let one = server.get("/v1/models/org/parrot").await;
    assert!(one.body.starts_with(&model), "{}", one.body);
    assert_eq!(plain.body, format!(r#"{{"object":"list","data":[{}]}}"#, one.body));
    let code = Some("model_not_found".to_owned());
    assert_eq!(server.get("/v1/models/none").await.error(), (404, Some("model".to_owned()), code));
    server.stop().await;
}
