//! Conversations in the dialects of Anthropic and of OpenAI's Responses, through the real binary:
//! with the trained model in it, and with random weights at a temperature at which they say anything.

use std::io::Read;

use crate::common::server::Server;
use serde_json::{Value, json};

/// A model of random weights with room for an answer.
fn random_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    pelton_testkit::TinyModel { max_context: 4096, ..Default::default() }
        .write_folder(folder.path());
    folder
}

fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().expect("a path of this test is UTF-8")
}

/// Both models, served.
fn servers() -> Vec<(&'static str, Server, Option<tempfile::TempDir>)> {
    let folder = random_model();
    let random = Server::start(&["-m", path(&folder)]).expect("it starts");
    let trained = Server::start(&[]).expect("it starts");
    vec![("trained", trained, None), ("random", random, Some(folder))]
}

/// A template whose answers begin inside of a thought.
fn thinking_server() -> (Server, tempfile::TempDir) {
    let folder = random_model();
    let file = folder.path().join("thinks.jinja");
    let template = "{% for message in messages %}{{ message['role'] + ': ' }}\
        {% if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}\
        {{ message['content'] + '\n' }}{% endfor %}\
        {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    std::fs::write(&file, template).expect("written");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start(&["-m", path(&folder), "--chat-template", file]);
    (server.expect("it starts"), folder)
}

/// A schema whose instances are short, whatever the model says.
fn schema() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
        },
        "required": ["name", "tags"],
        "additionalProperties": false
    })
}

fn assert_valid(value: &Value) {
    let keys: Vec<&str> = value.as_object().expect("object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["name", "tags"], "{value}");
    assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 12), "{value}");
}

/// The body of a streamed answer.
fn streamed(server: &Server, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut connection = server.send(&format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.address(),
        body.len()
    ));
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The data of all events of a stream.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

mod messages {
    use super::*;

    const PATH: &str = "/v1/messages";

    fn ask(more: Value) -> Value {
        let mut body = json!({"max_tokens": 600, "temperature": 2,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": "Tell me about Anna."}]});
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        body
    }

    fn tools() -> Value {
        json!([{"name": "get_person", "description": "Finds one.", "input_schema": schema()},
            {"name": "roll", "input_schema": {"type": "object", "properties":
                {"sides": {"enum": [6, 20]}}, "required": ["sides"], "additionalProperties": false}}])
    }

    /// The message that the events of a stream add up to, as Anthropic's client gathers it.
    fn gathered(events: &[Value]) -> Value {
        let mut message = Value::Null;
        let mut json = String::new();
        for event in events {
            let index = event["index"].as_u64().unwrap_or_default() as usize;
            match event["type"].as_str().expect("a type") {
                "message_start" => message = event["message"].clone(),
                "content_block_start" => {
                    let content = message["content"].as_array_mut().expect("blocks");
                    assert_eq!(index, content.len(), "blocks come in order");
                    content.push(event["content_block"].clone());
                    json.clear();
                }
                "content_block_delta" => {
                    let (block, delta) = (&mut message["content"][index], &event["delta"]);
                    let (field, more) = match delta["type"].as_str().expect("a type") {
                        "text_delta" => ("text", &delta["text"]),
                        "thinking_delta" => ("thinking", &delta["thinking"]),
                        "signature_delta" => ("signature", &delta["signature"]),
                        "input_json_delta" => {
                            json.push_str(delta["partial_json"].as_str().expect("text"));
                            continue;
                        }
                        other => panic!("{other}"),
                    };
                    let so_far = block[field].as_str().expect("text");
                    block[field] = format!("{so_far}{}", more.as_str().expect("text")).into();
                }
                "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                    message["content"][index]["input"] =
                        serde_json::from_str(&json).unwrap_or(json!({}));
                }
                "message_delta" => {
                    for field in ["stop_reason", "stop_sequence"] {
                        message[field] = event["delta"][field].clone();
                    }
                    message["usage"] = event["usage"].clone();
                }
                "content_block_stop" | "message_stop" | "ping" => {}
                other => panic!("{other}"),
            }
        }
        message
    }

    /// A message without what differs between two answers to the same request.
    fn bare(mut message: Value) -> Value {
        message["id"].take();
        message["usage"].take();
        for block in message["content"].as_array_mut().into_iter().flatten() {
            if block["type"] == "tool_use" {
                assert!(block["id"].as_str().is_some_and(|id| id.starts_with("toolu_")), "{block}");
                block["id"].take();
            }
        }
        message
    }

    #[test]
    fn calls_are_valid_and_a_stream_adds_up_to_the_whole_message() {
        for (name, server, _folder) in servers() {
            for (seed, choice) in [
                (1, json!({"type": "any", "disable_parallel_tool_use": true})),
                (2, json!({"type": "tool", "name": "get_person"})),
                (3, json!({"type": "any"})),
                (4, json!({"type": "auto"})),
                (5, json!({"type": "none"})),
            ] {
                let mut body = ask(json!({"tools": tools(), "tool_choice": choice, "seed": seed}));
                body["max_tokens"] = if seed < 3 { 600 } else { 60 }.into();
                let whole = server.post(PATH, &body).expect("answered");
                let calls: Vec<&Value> = whole["content"]
                    .as_array()
                    .expect("blocks")
                    .iter()
                    .filter(|block| block["type"] == "tool_use")
                    .collect();
                if seed < 3 {
                    assert_eq!(
                        (calls.len(), &whole["stop_reason"]),
                        (1, &json!("tool_use")),
                        "{name}"
                    );
                    match calls[0]["name"].as_str() {
                        Some("get_person") => assert_valid(&calls[0]["input"]),
                        _ => assert!(seed == 1 && calls[0]["input"]["sides"].is_number()),
                    }
                }
                assert!(seed != 5 || calls.is_empty(), "{name}: {whole}");
                body["stream"] = true.into();
                let stream = gathered(&events(&streamed(&server, PATH, &body)));
                assert_eq!(bare(stream), bare(whole), "{name} {seed}");
            }
        }
    }

    #[test]
    fn a_call_is_answered_and_the_conversation_goes_on_from_the_cache() {
        let server = Server::start(&[]).expect("it starts");
        let choice = json!({"type": "tool", "name": "get_person"});
        let first = ask(json!({"tools": tools(), "tool_choice": choice, "seed": 1}));
        let answer = server.post(PATH, &first).expect("answered");
        let call = &answer["content"][0];
        let mut messages = first["messages"].as_array().expect("messages").clone();
        messages.push(json!({"role": "assistant", "content": answer["content"]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "Anna is 9."}]}));
        let next = ask(json!({"tools": tools(), "messages": messages, "max_tokens": 10}));
        let answer = server.post(PATH, &next).expect("answered");
        let usage = &answer["usage"];
        let read = usage["cache_read_input_tokens"].as_u64().expect("a count");
        assert!(read > 0, "{usage}");
        let conversation = json!({"tools": tools(), "messages": next["messages"],
            "system": next["system"]});
        let count = server.post("/v1/messages/count_tokens", &conversation).expect("counted");
        let all = usage["input_tokens"].as_u64().expect("a count") + read;
        assert_eq!(count, json!({ "input_tokens": all }));
    }

    #[test]
    fn thoughts_are_blocks_within_their_budget_and_come_back_as_thoughts() {
        let (server, _folder) = thinking_server();
        let on = json!({"type": "enabled", "budget_tokens": 9});
        let format = json!({"format": {"type": "json_schema", "schema": schema()}});
        for seed in 0..3 {
            let mut body = ask(json!({"thinking": on, "output_config": format, "seed": seed}));
            let whole = server.post(PATH, &body).expect("answered");
            let content = whole["content"].as_array().expect("blocks");
            let kinds: Vec<&Value> = content.iter().map(|block| &block["type"]).collect();
            assert_eq!(kinds, ["thinking", "text"], "{whole}");
            assert_eq!(content[0]["signature"], "unsigned");
            let text = content[1]["text"].as_str().expect("text");
            assert_valid(&serde_json::from_str(text).expect("JSON"));
            body["stream"] = true.into();
            let stream = gathered(&events(&streamed(&server, PATH, &body)));
            assert_eq!(bare(stream), bare(whole.clone()));

            body["thinking"] = json!({"type": "disabled"});
            body["stream"] = false.into();
            let off = server.post(PATH, &body).expect("answered");
            let content = off["content"].as_array().expect("blocks");
            assert!(content.iter().all(|block| block["type"] == "text"), "{off}");
        }
        let count = |content: Value| {
            let body = json!({"messages": [{"role": "user", "content": "x"},
                {"role": "assistant", "content": content}, {"role": "user", "content": "y"}]});
            let count = server.post("/v1/messages/count_tokens", &body).expect("counted");
            count["input_tokens"].as_u64().expect("a count")
        };
        let text = json!({"type": "text", "text": "so"});
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "unsigned"});
        let (with, without) = (count(json!([thought, text])), count(json!([text])));
        assert!(with > without, "the template shows the thought: {with} and {without} tokens");
    }

    #[test]
    fn blocks_of_text_read_as_their_lines_and_accounts_of_a_client_are_left_out() {
        let (server, _folder) = thinking_server();
        let count = |system: Value, result: Value| {
            let body = json!({"system": system, "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content":
                    [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {"role": "user", "content":
                    [{"type": "tool_result", "tool_use_id": "t", "content": result}]}]});
            let count = server.post("/v1/messages/count_tokens", &body).expect("counted");
            count["input_tokens"].as_u64().expect("a count")
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let expected = count(json!("Be brief."), json!("one\ntwo"));
        let bill = text("x-anthropic-billing-header: cc_version=2.1; cch=abc;");
        let blocks = json!([text("one"), text("two")]);
        assert_eq!(count(json!([bill, text("Be brief.")]), blocks), expected);
        assert!(count(json!("Be brief."), json!("onetwo")) != expected, "the line break counts");
    }
}

mod responses {
    use super::*;

    const PATH: &str = "/v1/responses";

    fn ask(more: Value) -> Value {
        let mut body = json!({"max_output_tokens": 600, "temperature": 2,
            "instructions": "Be brief.", "input": "Tell me about Anna."});
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        body
    }

    fn tools() -> Value {
        json!([{"type": "web_search"},
            {"type": "function", "name": "get_person", "strict": true, "parameters": schema()}])
    }

    /// The items of the output, without what differs between two answers to the same request.
    fn bare(response: &Value) -> Vec<Value> {
        let items = response["output"].as_array().expect("items").iter().cloned();
        items
            .map(|mut item| {
                item["id"].take();
                if item["type"] == "function_call" {
                    item["call_id"].take();
                }
                item
            })
            .collect()
    }

    /// The output that the deltas of a stream add up to, which must be that of its last event.
    fn gathered(events: &[Value]) -> Value {
        let mut output: Vec<Value> = Vec::new();
        let (mut n_parts, mut n_whole) = (0, 0);
        for event in events {
            let index = event["output_index"].as_u64().unwrap_or_default() as usize;
            let text = event["delta"].as_str().unwrap_or_default();
            match event["type"].as_str().expect("a type") {
                "response.output_item.added" => {
                    assert_eq!(index, output.len(), "items come in order");
                    output.push(event["item"].clone());
                }
                "response.content_part.added" => {
                    n_parts += 1;
                    output[index]["content"]
                        .as_array_mut()
                        .expect("parts")
                        .push(event["part"].clone());
                }
                "response.output_text.delta" | "response.reasoning_text.delta" => {
                    let place = &mut output[index]["content"][0]["text"];
                    *place = format!("{}{text}", place.as_str().expect("text")).into();
                }
                "response.function_call_arguments.delta" => {
                    let place = &mut output[index]["arguments"];
                    *place = format!("{}{text}", place.as_str().expect("text")).into();
                }
                "response.output_text.done" | "response.reasoning_text.done" => {
                    n_whole += 1;
                    assert_eq!(output[index]["content"][0]["text"], event["text"]);
                }
                "response.output_item.done" => {
                    output[index]["status"] = event["item"]["status"].clone();
                    assert_eq!(output[index], event["item"], "the deltas add up to the item");
                }
                _ => {}
            }
        }
        let last = events.last().expect("events")["response"].clone();
        assert_eq!(last["output"], Value::from(output));
        assert_eq!(n_whole, n_parts, "each part is sent as a whole, too");
        last
    }

    #[test]
    fn calls_and_forms_are_valid_and_a_stream_adds_up_to_the_whole_response() {
        for (name, server, _folder) in servers() {
            for (seed, more) in [
                (
                    1,
                    json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}),
                ),
                (
                    2,
                    json!({"tools": tools(), "tool_choice": {"type": "function", "name": "get_person"}}),
                ),
                (
                    3,
                    json!({"text": {"format": {"type": "json_schema", "name": "p", "schema": schema()}}}),
                ),
                (4, json!({"tools": tools(), "max_output_tokens": 60})),
                (5, json!({"tools": tools(), "tool_choice": "none", "max_output_tokens": 60})),
            ] {
                let mut body = ask(more);
                body["seed"] = seed.into();
                let whole = server.post(PATH, &body).expect("answered");
                let first = &whole["output"][0];
                match seed {
                    1 | 2 => {
                        assert_eq!(first["type"], "function_call", "{name}: {whole}");
                        let arguments = first["arguments"].as_str().expect("text");
                        assert_valid(&serde_json::from_str(arguments).expect("JSON"));
                    }
                    3 => {
                        let text = first["content"][0]["text"].as_str().expect("text");
                        assert_valid(&serde_json::from_str(text).expect("JSON"));
                    }
                    _ => assert!(matches!(
                        whole["status"].as_str(),
                        Some("completed" | "incomplete")
                    )),
                }
                body["stream"] = true.into();
                let stream = gathered(&events(&streamed(&server, PATH, &body)));
                assert_eq!(bare(&stream), bare(&whole), "{name} {seed}");
                assert_eq!(stream["status"], whole["status"]);
            }
        }
    }

    #[test]
    fn a_stored_conversation_reads_like_one_that_is_sent_whole() {
        let server = Server::start(&[]).expect("it starts");
        let choice = json!({"type": "function", "name": "get_person"});
        let first = ask(json!({"tools": tools(), "tool_choice": choice, "seed": 1}));
        let first = server.post(PATH, &first).expect("answered");
        let call = &first["output"][0];
        let result = json!({"type": "function_call_output", "call_id": call["call_id"],
            "output": "Anna is 9."});
        let next =
            json!({"tools": tools(), "previous_response_id": first["id"], "input": [result]});
        let count = |body: &Value| {
            let count = server.post("/v1/responses/input_tokens", body).expect("counted");
            count["input_tokens"].as_u64().expect("a count")
        };
        let whole = json!({"tools": tools(),
            "input": [{"role": "user", "content": "Tell me about Anna."}, call, result]});
        assert_eq!(count(&next), count(&whole));
        let mut next = ask(next);
        next["instructions"] = Value::Null;
        next["max_output_tokens"] = 5.into();
        let answer = server.post(PATH, &next).expect("answered");
        assert_eq!(answer["usage"]["input_tokens"], count(&whole));
    }

    #[test]
    fn thoughts_are_items_and_come_back_as_thoughts() {
        let (server, _folder) = thinking_server();
        let body = ask(json!({"seed": 1, "max_output_tokens": 40, "include":
            ["reasoning.encrypted_content"]}));
        let whole = server.post(PATH, &body).expect("answered");
        let thought = &whole["output"][0];
        assert_eq!(thought["type"], "reasoning", "{whole}");
        let text = thought["content"][0]["text"].as_str().expect("text");
        assert_eq!(thought["encrypted_content"], format!("pelton:{text}"));
        let usage = &whole["usage"];
        let n_thought = usage["output_tokens_details"]["reasoning_tokens"].as_u64();
        assert!(n_thought > Some(0) && n_thought <= usage["output_tokens"].as_u64(), "{usage}");
        let mut again = body.clone();
        again["stream"] = true.into();
        // It adds a field to items that are done.
        again["include"] = json!([]);
        let streamed = gathered(&events(&streamed(&server, PATH, &again)));
        assert_eq!(streamed["output"][0]["content"], thought["content"]);
        let n_cached = streamed["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
        assert!(n_cached > Some(0), "{}", streamed["usage"]);

        let next = json!({"previous_response_id": whole["id"], "input": "y"});
        let next = server.post("/v1/responses/input_tokens", &next).expect("counted");
        let without: Vec<&Value> = whole["output"]
            .as_array()
            .expect("items")
            .iter()
            .filter(|item| item["type"] != "reasoning")
            .collect();
        let mut input = vec![json!({"role": "user", "content": body["input"]})];
        input.extend(without.into_iter().cloned());
        input.push(json!({"role": "user", "content": "y"}));
        let without = server.post("/v1/responses/input_tokens", &json!({ "input": input }));
        let without = &without.expect("counted")["input_tokens"];
        let with = &next["input_tokens"];
        assert!(with.as_u64() > without.as_u64(), "a stored thought goes on: {with} {without}");
        let count = |item: Value| {
            let body = json!({"input": [{"role": "user", "content": "x"}, item,
                {"role": "assistant", "content": "so"}, {"role": "user", "content": "y"}]});
            let count = server.post("/v1/responses/input_tokens", &body).expect("counted");
            count["input_tokens"].as_u64().expect("a count")
        };
        let with_content = count(thought.clone());
        let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [],
            "encrypted_content": thought["encrypted_content"]});
        assert_eq!(count(sealed), with_content, "either field brings the thought back");
        let foreign = json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"});
        assert!(count(foreign) < with_content, "what cannot be read is left out");
        let off = json!({"seed": 1, "max_output_tokens": 40, "reasoning": {"effort": "none"}});
        let off = server.post(PATH, &ask(off)).expect("answered");
        assert_eq!(off["output"][0]["type"], "message", "{off}");
    }

    #[test]
    fn a_developer_is_to_templates_what_a_system_is() {
        let (server, _folder) = thinking_server();
        let count = |role: &str| {
            let body = json!({"input": [{"role": role, "content": "Be brief."},
                {"role": "user", "content": "x"}]});
            server.post("/v1/responses/input_tokens", &body).expect("counted")
        };
        assert_eq!(count("developer"), count("system"));
        assert!(count("developer") != count("assistant"), "roles have different lengths");
    }
}
