//! `POST /v1/responses` and stored responses, with a parrot for a model.

use std::time::Duration;

use crate::harness::parrot::{Gate, gated_parrot, parrot, templated_parrot};
use crate::harness::{self, Answer, Running, post_text, start, start_with};
use pelton_server::{Access, ApiKey, ResponsesConfig, ServeConfig, Tenant};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn ask(input: &str, more: Value) -> Value {
    let mut body = json!({ "input": input });
    for (name, value) in more.as_object().expect("object") {
        body[name] = value.clone();
    }
    body
}

async fn delete(server: &Running, path: &str) -> Answer {
    let head = format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    server.raw(&head).await
}

fn text_of(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().expect("text")
}

fn id_of(response: &Value) -> String {
    response["id"].as_str().expect("an id").to_owned()
}

/// The events of a stream; numbers must follow from `first`.
fn events(answer: &Answer, first: u64) -> Vec<Value> {
    let frames = answer.body.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let read = |(i, frame): (usize, &str)| {
        let (name, data) = frame.split_once('\n').expect("two lines");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(format!("event: {}", data["type"].as_str().expect("a type")), name);
        assert_eq!(data["sequence_number"], first + i as u64);
        data
    };
    frames.enumerate().map(read).collect()
}

#[tokio::test]
async fn a_response_is_answered_in_one_piece_and_repeats_what_was_asked() {
    let server = start(parrot()).await;
    let more = json!({"model": "org/parrot", "instructions": "be a parrot", "user": "me",
        "metadata": {"a": "b"}, "temperature": 0, "tools": [{"type": "web_search"},
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "max_tool_calls": 3});
    let answer = server.post(PATH, ask("hey!", more)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ignored = "x-pelton-ignored: reasoning.summary, text.verbosity, tools[0], reasoning.effort";
    assert!(answer.head.contains(ignored), "{}", answer.head);
    let body = answer.json();
    assert!(id_of(&body).starts_with("resp_"));
    let item = &body["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    let content =
        json!([{"type": "output_text", "text": "hey!", "annotations": [], "logprobs": []}]);
    assert_eq!(item["content"], content);
    let usage = json!({"input_tokens": 4, "input_tokens_details":
            {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 9});
    assert_eq!(body["usage"], usage);
    let [created, completed] =
        ["created_at", "completed_at"].map(|at| body[at].as_u64().expect("a time"));
    assert!(completed >= created && created > 0, "{created} {completed}");
    for (field, expected) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("be a parrot")),
        ("metadata", json!({"a": "b"})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", json!("k")),
        ("store", json!(true)),
        ("temperature", json!(0.0)),
        ("tool_choice", json!("auto")),
        ("truncation", json!("disabled")),
        ("user", json!("me")),
    ] {
        assert_eq!(body[field], expected, "{field}");
    }
    assert_eq!(body["tools"].as_array().map(Vec::len), Some(1), "what the model may call");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_typed_events_with_numbers_and_ends_with_the_whole_response() {
    let server = start(parrot()).await;
    let more = json!({"stream": true, "include": ["message.output_text.logprobs"],
        "top_logprobs": 1});
    let answer = server.post(PATH, ask("hey!", more)).await;
    let events = events(&answer, 0);
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().expect("a type")).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let deltas = events.iter().filter(|e| e["type"] == "response.output_text.delta");
    let text: String = deltas.clone().map(|e| e["delta"].as_str().expect("text")).collect();
    let n_logprobs: usize = deltas.map(|e| e["logprobs"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!((text.as_str(), n_logprobs), ("hey!", 4));
    let done = &events[events.len() - 4];
    assert_eq!(
        (&done["text"], done["logprobs"].as_array().map(Vec::len)),
        (&json!("hey!"), Some(4))
    );
    let whole = &events.last().expect("events")["response"];
    assert_eq!((text_of(whole), &whole["status"]), ("hey!", &json!("completed")));
    assert_eq!(whole["usage"]["output_tokens"], 5);
    assert!(events.iter().all(|e| e["item_id"].is_null() || e["item_id"] == done["item_id"]));
    let stored = server.get(&format!("{PATH}/{}", id_of(whole))).await;
    assert_eq!(stored.json(), *whole, "what was streamed is stored");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_cut_is_incomplete_and_one_that_fails_has_failed() {
    let server = start(parrot()).await;
    let cut = server.post(PATH, ask("one two", json!({"max_output_tokens": 3}))).await.json();
    assert_eq!((text_of(&cut), &cut["status"]), ("one", &json!("incomplete")));
    assert_eq!(cut["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(cut["output"][0]["status"], "incomplete");
    assert_eq!(cut["completed_at"], Value::Null, "it never was complete");
    let more = json!({"max_output_tokens": 3, "stream": true});
    let answer = server.post(PATH, ask("one two", more)).await;
    let events_of_cut = events(&answer, 0);
    assert_eq!(events_of_cut.last().expect("events")["type"], "response.incomplete");

    let failed = server.post(PATH, ask("fail ~", json!({"stream": true}))).await;
    let events = events(&failed, 0);
    let last = events.last().expect("events");
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert_eq!(server.post(PATH, ask("fail ~", json!({}))).await.error().0, 500);
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_goes_on_from_a_stored_response() {
    let server = start(parrot()).await;
    let first = server.post(PATH, ask("hey!", json!({"instructions": "be brief"}))).await.json();
    let next = json!({"previous_response_id": first["id"]});
    let second = server.post(PATH, ask("you!", next.clone())).await.json();
    assert_eq!(text_of(&second), "you!");
    assert_eq!(second["previous_response_id"], first["id"]);

    let items = server.get(&format!("{PATH}/{}/input_items", id_of(&second))).await.json();
    let item = &items["data"][0];
    assert_eq!((&item["role"], &item["content"][0]["text"]), (&json!("user"), &json!("you!")));
    assert_eq!((&items["first_id"], &items["has_more"]), (&item["id"], &json!(false)));

    // The template shows the last message alone, so the model of this test cannot tell; the
    // history of the real one is in the tests of the binary.
    let count = ask("you!", next.clone());
    let count = server.post("/v1/responses/input_tokens", count).await.json();
    assert_eq!(count, json!({"object": "response.input_tokens", "input_tokens": 4}));

    let gone = delete(&server, &format!("{PATH}/{}", id_of(&first))).await.json();
    assert_eq!(gone, json!({"id": first["id"], "object": "response", "deleted": true}));
    let missing = server.get(&format!("{PATH}/{}", id_of(&first))).await;
    let not_found = Some("response_not_found".to_owned());
    assert_eq!(missing.error(), (404, Some("response_id".to_owned()), not_found));
    let again = server.post(PATH, ask("x", next)).await;
    let not_found = Some("previous_response_not_found".to_owned());
    assert_eq!(again.error(), (400, Some("previous_response_id".to_owned()), not_found));
    let kept = json!({"previous_response_id": second["id"]});
    let third = server.post(PATH, ask("me!", kept)).await;
    assert_eq!(third.status, 200, "a conversation outlives its beginning");
    server.stop().await;
}

#[tokio::test]
async fn a_response_in_the_background_is_polled_followed_and_cancelled() {
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 100), ServeConfig::default()).await;
    let background = |input: &str, more: Value| {
        let mut body = ask(input, more);
        body["background"] = true.into();
        body
    };
    let first = server.post(PATH, background("hey!", json!({}))).await.json();
    let path = format!("{PATH}/{}", id_of(&first));
    assert_eq!((&first["status"], &first["background"]), (&json!("in_progress"), &json!(true)));
    assert_eq!(server.get(&path).await.json()["status"], "in_progress");
    let next = json!({"previous_response_id": first["id"]});
    let early = server.post(PATH, ask("x", next)).await;
    assert_eq!(early.error().1.as_deref(), Some("previous_response_id"), "it is in progress");

    let other = server.post(PATH, background("a long one", json!({}))).await.json();
    let cancel = format!("{PATH}/{}/cancel", id_of(&other));
    let cancelled = server.post(&cancel, json!({})).await.json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(server.post(&cancel, json!({})).await.json()["status"], "cancelled", "it stays so");
    gate.open();
    let done = loop {
        let now = server.get(&path).await.json();
        if now["status"] != "in_progress" {
            break now;
        }
    };
    assert_eq!((text_of(&done), &done["status"]), ("hey!", &json!("completed")));
    let foreground = server.post(PATH, ask("hey!", json!({}))).await.json();
    let refused = server.post(&format!("{PATH}/{}/cancel", id_of(&foreground)), json!({})).await;
    assert_eq!(refused.error().0, 400, "only one in the background");

    let followed = server.post(PATH, background("hey!", json!({"stream": true}))).await;
    let all = events(&followed, 0);
    let whole = &all.last().expect("events")["response"];
    assert_eq!((text_of(whole), &whole["status"]), ("hey!", &json!("completed")));
    let path = format!("{PATH}/{}?stream=true&starting_after=3", id_of(whole));
    assert_eq!(events(&server.get(&path).await, 4), all[4..], "a client that comes back");
    let not_logged = server.get(&format!("{PATH}/{}?stream=true", id_of(&foreground))).await;
    assert_eq!(not_logged.error().1.as_deref(), Some("stream"));
    server.stop().await;
}

#[tokio::test]
async fn a_response_that_is_cancelled_keeps_its_beginning_as_incomplete() {
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 100), ServeConfig::default()).await;
    let body = ask("a long one", json!({"background": true}));
    let path = format!("{PATH}/{}", id_of(&server.post(PATH, body).await.json()));
    let n_answered = async || {
        let metrics = server.get("/metrics").await.body;
        harness::series(&metrics, "pelton_generation_tokens_total{").unwrap_or(0.0)
    };
    while n_answered().await < 3.0 {
        gate.step_once();
    }
    let cancelled = server.post(&format!("{path}/cancel"), json!({})).await.json();
    assert_eq!(cancelled["status"], "cancelled");
    let item = &cancelled["output"][0];
    assert!("a long one".starts_with(text_of(&cancelled)), "{item}");
    assert_eq!(item["status"], "incomplete");
    gate.open();
    server.stop().await;
}

#[tokio::test]
async fn a_thought_that_another_server_sealed_is_left_out_and_named() {
    let server = start(parrot()).await;
    let thought = |sealed: &str| {
        json!({"input": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed},
            {"role": "user", "content": "hey!"}]})
    };
    let other = server.post(PATH, thought("gAAAAA")).await;
    assert_eq!((other.status, text_of(&other.json())), (200, "hey!"));
    let named = "x-pelton-ignored: input[0].encrypted_content\r\n";
    assert!(other.head.contains(named), "{}", other.head);
    let own = server.post(PATH, thought("pelton:hm")).await;
    assert!(!own.head.contains("x-pelton-ignored:"), "{}", own.head);
    server.stop().await;
}

#[tokio::test]
async fn a_choice_among_tools_leaves_their_places_in_errors() {
    let server = start(parrot()).await;
    let tool = |name: &str, kind: &str| {
        json!({"type": "function", "name": name,
        "parameters": {"type": kind}})
    };
    let ask = |allowed: &str| {
        let choice = json!({"type": "allowed_tools", "mode": "auto",
            "tools": [{"type": "function", "name": allowed}]});
        ask(
            "hey!",
            json!({"tools": [tool("good", "object"), tool("bad", "x")],
            "tool_choice": choice}),
        )
    };
    assert_eq!(server.post(PATH, ask("good")).await.status, 200, "the other tool is not read");
    let refused = server.post(PATH, ask("bad")).await;
    assert_eq!(refused.error().1.as_deref(), Some("tools[1].parameters.type"));
    server.stop().await;
}

#[tokio::test]
async fn a_response_that_is_removed_while_it_runs_ends() {
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 100), ServeConfig::default()).await;
    let body = ask("for ever", json!({"background": true}));
    let path = format!("{PATH}/{}", id_of(&server.post(PATH, body).await.json()));
    assert_eq!(delete(&server, &path).await.status, 200);
    // It would say more than 500 tokens, one in each step.
    let mut n_steps = 0;
    loop {
        gate.step();
        n_steps += 1;
        let health = server.get("/health").await.json();
        if health["running"] == 0 && health["waiting"] == 0 {
            break;
        }
    }
    assert!(n_steps < 100, "{n_steps} steps");
    assert_eq!(server.get(&path).await.status, 404, "it does not come back");
    gate.open();
    server.stop().await;
}

/// A server with two tenants of a key each, `sk-1` and `sk-2`.
async fn start_with_tenants(responses: ResponsesConfig) -> Running {
    let tenant = |name: &str, key: &str| {
        let keys = vec![ApiKey::new(key).expect("a key")];
        Tenant { name: name.to_owned(), priority: 0, keys }
    };
    let access = Access::new(vec![tenant("default", "sk-1"), tenant("blue", "sk-2")]);
    let access = access.expect("two tenants");
    start_with(parrot(), ServeConfig { access, responses, ..ServeConfig::default() }).await
}

async fn as_tenant(server: &Running, key: &str, head: &str, body: &str) -> Answer {
    let n = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {n}\r\n\
         content-type: application/json\r\nauthorization: Bearer {key}\r\n\r\n{body}"
    );
    server.raw(&request).await
}

#[tokio::test]
async fn a_response_is_there_for_its_own_tenant_alone() {
    let server = start_with_tenants(ResponsesConfig::default()).await;
    let create = format!("POST {PATH}");
    let body = ask("hey!", json!({"background": true})).to_string();
    let id = id_of(&as_tenant(&server, "sk-1", &create, &body).await.json());
    for head in [
        format!("GET {PATH}/{id}"),
        format!("DELETE {PATH}/{id}"),
        format!("POST {PATH}/{id}/cancel"),
        format!("GET {PATH}/{id}/input_items"),
        format!("GET {PATH}/{id}?stream=true"),
    ] {
        let answer = as_tenant(&server, "sk-2", &head, "").await;
        assert_eq!(answer.status, 404, "{head}: {}", answer.body);
        assert_eq!(as_tenant(&server, "sk-3", &head, "").await.status, 401, "{head}");
    }
    let next = ask("x", json!({ "previous_response_id": id })).to_string();
    assert_eq!(as_tenant(&server, "sk-2", &create, &next).await.status, 400);
    assert_eq!(as_tenant(&server, "sk-1", &format!("GET {PATH}/{id}"), "").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn an_earlier_answer_in_the_input_is_listed_as_output() {
    let server = start(parrot()).await;
    let input = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "hey!"}]);
    let response = server.post(PATH, json!({ "input": input })).await.json();
    let path = format!("{PATH}/{}/input_items?order=asc", id_of(&response));
    let items = server.get(&path).await.json();
    let kinds = items["data"].as_array().expect("a list").iter();
    let kinds: Vec<(&Value, &Value)> =
        kinds.map(|item| (&item["role"], &item["content"][0]["type"])).collect();
    let (asked, answered) = (json!("input_text"), json!("output_text"));
    let [user, assistant] = ["user", "assistant"].map(|role| json!(role));
    assert_eq!(kinds, [(&user, &asked), (&assistant, &answered), (&user, &asked)], "{items}");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_cut_in_a_thought_has_no_message() {
    let server = start(templated_parrot("{# <think> #}{{ messages[-1].content }}")).await;
    for (text, n, status, expected) in [
        ("<think>hm</think>so!", 9, "incomplete", json!(["reasoning"])),
        ("<think>hm</think>so!", 18, "incomplete", json!(["reasoning", "message"])),
        ("<think>hm</think>so!", 99, "completed", json!(["reasoning", "message"])),
        ("<think>hm</think>", 17, "incomplete", json!(["reasoning"])),
        // An answer that ends by itself has a message, if an empty one.
        ("<think>hm!", 99, "completed", json!(["reasoning", "message"])),
    ] {
        let more = json!({"max_output_tokens": n});
        let answer = server.post(PATH, ask(text, more)).await.json();
        let output = answer["output"].as_array().expect("items");
        let kinds: Value = output.iter().map(|item| item["type"].clone()).collect();
        assert_eq!((&answer["status"], kinds), (&json!(status), expected), "{text} {n}");
        assert_eq!(output.last().expect("an item")["status"], status, "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_largest_effort_has_the_name_that_templates_know() {
    let template = "{{ messages[-1].content }}-{{ reasoning_effort }}!";
    let server = start(templated_parrot(template)).await;
    for (effort, expected) in [("max", "hey-xhigh!"), ("xhigh", "hey-xhigh!"), ("low", "hey-low!")]
    {
        let response =
            server.post(PATH, ask("hey", json!({"reasoning": {"effort": effort}}))).await;
        assert_eq!(text_of(&response.json()), expected, "{effort}: {}", response.body);
    }
    server.stop().await;
}

#[tokio::test]
async fn memory_number_and_time_of_stored_responses_are_bounded() {
    let limits = |ttl, memory_bytes, max_stored| ServeConfig {
        responses: ResponsesConfig { ttl, memory_bytes, max_stored },
        ..ServeConfig::default()
    };
    let hour = Duration::from_secs(3600);
    let server = start_with(parrot(), limits(hour, 1 << 20, 2)).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(id_of(&server.post(PATH, ask("hey!", json!({}))).await.json()));
    }
    for (id, status) in ids.iter().zip([404, 200, 200]) {
        assert_eq!(server.get(&format!("{PATH}/{id}")).await.status, status);
    }
    let unstored = server.post(PATH, ask("hey!", json!({"store": false}))).await.json();
    assert_eq!(unstored["store"], false);
    assert_eq!(server.get(&format!("{PATH}/{}", id_of(&unstored))).await.status, 404);
    server.stop().await;

    let server = start_with(parrot(), limits(hour, 3000, 100)).await;
    let large = ask(&"x".repeat(200), json!({"instructions": "y".repeat(3000)}));
    let large = server.post(PATH, large).await.json();
    assert_eq!(large["store"], false, "it does not fit, and says so");
    let small = server.post(PATH, ask("hey!", json!({}))).await.json();
    assert_eq!(small["store"], true);
    server.stop().await;

    let server = start_with(parrot(), limits(Duration::ZERO, 1 << 20, 100)).await;
    let id = id_of(&server.post(PATH, ask("hey!", json!({}))).await.json());
    assert_eq!(server.get(&format!("{PATH}/{id}")).await.status, 404, "its time is over");
    server.stop().await;

    let server = start_with(parrot(), limits(hour, 0, 100)).await;
    assert_eq!(server.post(PATH, ask("hey!", json!({}))).await.json()["store"], false);
    for field in ["store", "background"] {
        let refused = server.post(PATH, ask("hey!", json!({ field: true }))).await;
        assert_eq!(refused.error().1.as_deref(), Some(field));
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_by_its_path() {
    let server = start(parrot()).await;
    let item = |item: Value| json!({"input": [item]});
    let user = |content: Value| json!({"input": [{"role": "user", "content": content}]});
    let function = json!({"type": "function", "name": "f"});
    let many = vec![json!({"type": "input_text", "text": ""}); 5000];
    for (path, body) in [
        ("input", json!({})),
        ("input", json!({"input": 1})),
        ("input", json!({"input": []})),
        ("input[0]", item(json!("hi"))),
        ("input[0].role", item(json!({"content": "x"}))),
        ("input[0].role", item(json!({"role": "king", "content": "x"}))),
        ("input[0].content", item(json!({"role": "user"}))),
        ("input[0].content", user(json!(many))),
        ("input[0].content[0].type", user(json!([{"type": "input_image", "image_url": "x"}]))),
        ("input[0].content[0].type", user(json!([{"type": "input_file", "file_id": "x"}]))),
        ("input[0].content[0].text", user(json!([{"type": "input_text"}]))),
        ("input[0].content[0].x", user(json!([{"type": "input_text", "text": "", "x": 1}]))),
        ("input[0].x", item(json!({"role": "user", "content": "x", "x": 1}))),
        ("input[0].type", item(json!({"type": "item_reference", "id": "msg_1"}))),
        ("input[0].type", item(json!({"type": "computer_call", "id": "c"}))),
        ("input[0].call_id", item(json!({"type": "function_call", "name": "f"}))),
        ("input[0].name", item(json!({"type": "function_call", "call_id": "c"}))),
        (
            "input[0].arguments",
            item(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"})),
        ),
        ("input[0].output", item(json!({"type": "function_call_output", "call_id": "c"}))),
        ("instructions", json!({"input": "x", "instructions": ["a"]})),
        ("tools[0].name", json!({"input": "x", "tools": [{"type": "function"}]})),
        ("tools[0].type", json!({"input": "x", "tools": [{"name": "f"}]})),
        ("tools[1].name", json!({"input": "x", "tools": [function, function]})),
        (
            "tools[1].parameters.type",
            json!({"input": "x", "tools": [{"type": "web_search"},
                {"type": "function", "name": "f", "parameters": {"type": "x"}}]}),
        ),
        ("tool_choice", json!({"input": "x", "tool_choice": "required"})),
        ("tool_choice", json!({"input": "x", "tools": [function], "tool_choice": "any"})),
        ("tool_choice.type", json!({"input": "x", "tool_choice": {"type": "web_search"}})),
        (
            "tool_choice.name",
            json!({"input": "x", "tools": [function], "tool_choice": {"type": "function", "name": "g"}}),
        ),
        ("text.format.type", json!({"input": "x", "text": {"format": {"type": "xml"}}})),
        ("text.format.schema", json!({"input": "x", "text": {"format": {"type": "json_schema"}}})),
        (
            "text.format.schema.enum",
            json!({"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
                "schema": {"enum": []}}}}),
        ),
        ("text.verbosity", json!({"input": "x", "text": {"verbosity": "loud"}})),
        ("reasoning.effort", json!({"input": "x", "reasoning": {"effort": "much"}})),
        ("reasoning.summary", json!({"input": "x", "reasoning": {"summary": "long"}})),
        ("include[0]", json!({"input": "x", "include": ["everything"]})),
        ("truncation", json!({"input": "x", "truncation": "auto"})),
        ("conversation", json!({"input": "x", "conversation": "conv_1"})),
        ("prompt", json!({"input": "x", "prompt": {"id": "p"}})),
        ("max_output_tokens", json!({"input": "x", "max_output_tokens": 0})),
        ("top_logprobs", json!({"input": "x", "top_logprobs": 21})),
        ("metadata", json!({"input": "x", "metadata": {"a": 1}})),
        ("stream_options", json!({"input": "x", "stream_options": {}})),
        (
            "stream_options.include_obfuscation",
            json!({"input": "x", "stream": true, "stream_options": {"include_obfuscation": true}}),
        ),
        ("background", json!({"input": "x", "background": true, "store": false})),
        ("previous_response_id", json!({"input": "x", "previous_response_id": "resp_1"})),
        ("n", json!({"input": "x", "n": 2})),
        ("messages", json!({"input": "x", "messages": []})),
        ("temperature", json!({"input": "x", "temperature": -1})),
    ] {
        let answer = server.post(PATH, body.clone()).await;
        let (status, param, _) = answer.error();
        assert_eq!((status, param.as_deref()), (400, Some(path)), "{}", answer.body);
        let message = answer.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.contains(&format!("`{path}`")), "{path}: {message}");
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_are_hostile_are_refused_and_the_next_one_is_answered() {
    let server = start(parrot()).await;
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (param, body) in [
        (None, "{".to_owned()),
        (Some("input[0]"), format!(r#"{{"input": {deep}}}"#)),
        (Some("input"), r#"{"input": "a", "input": "b"}"#.to_owned()),
        (Some("metadata"), format!(r#"{{"input": "x", "metadata": {deep}}}"#)),
        (
            Some("input[0].arguments.a"),
            r#"{"input": [{"type": "function_call", "call_id": "c", "name": "f",
                "arguments": {"a": 1, "a": 2}}]}"#
                .to_owned(),
        ),
        (
            Some("input"),
            format!(r#"{{"input": [{}1]}}"#, r#"{"role":"user","content":""},"#.repeat(20_000)),
        ),
    ] {
        let answer = server.raw(&post_text(PATH, &body)).await;
        let (status, named, _) = answer.error();
        assert_eq!(status, 400);
        assert!(
            param.is_none_or(|param| named.is_some_and(|named| named.starts_with(param))),
            "{param:?}: {}",
            answer.body
        );
        assert!(answer.body.len() < 1000, "{}", answer.body);
    }
    assert_eq!(server.post(PATH, ask("hey!", json!({}))).await.status, 200);
    server.stop().await;
}
