//! Answers of a form, calls of tools and thoughts, through the real binary: with the trained model in
//! it, and with random weights at a temperature at which they say anything.

use std::io::Read;

use crate::common::pelton;
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

/// An object whose instances are short, whatever the model says.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false
    })
}

fn parsed(content: &str) -> Value {
    serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content:?}"))
}

fn assert_valid(value: &Value, context: &str) {
    let object = value.as_object().unwrap_or_else(|| panic!("{context}: {value}"));
    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(keys, ["name", "age", "tags"], "{context}: order as given");
    let name = value["name"].as_str().expect(context);
    assert!(name.chars().count() <= 12, "{context}: {name}");
    assert!(value["age"].as_u64().is_some_and(|age| age <= 150), "{context}: {value}");
    let tags = value["tags"].as_array().expect(context);
    assert!(tags.len() <= 3 && tags.iter().all(|tag| tag == "a" || tag == "b"), "{context}");
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_person", "parameters": schema()}},
        {"type": "function", "function": {"name": "roll", "description": "Rolls dice.",
            "parameters": {"type": "object", "properties": {"sides": {"enum": [6, 20]}},
                "required": ["sides"], "additionalProperties": false}}}
    ])
}

fn ask(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me about Anna."}],
        "temperature": 2, "max_tokens": 1000
    });
    let own = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(own);
    body
}

fn chat(server: &Server, fields: Value) -> Value {
    let answer = server.post("/v1/chat/completions", &ask(fields)).expect("answered");
    answer["choices"][0].clone()
}

/// The error of a request that is refused: its `param` and its message.
fn refusal(server: &Server, fields: Value) -> (Value, String) {
    let answer = server.post("/v1/chat/completions", &ask(fields)).expect_err("refused");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let error: Value = serde_json::from_str(body).expect("JSON");
    let message = error["error"]["message"].as_str().expect("a message").to_owned();
    (error["error"]["param"].clone(), message)
}

/// Both models, served.
fn servers() -> Vec<(&'static str, Server, Option<tempfile::TempDir>)> {
    let folder = random_model();
    let random = Server::start(&["-m", path(&folder)]).expect("it starts");
    let trained = Server::start(&[]).expect("it starts");
    vec![("trained", trained, None), ("random", random, Some(folder))]
}

#[test]
fn every_form_is_kept_whatever_the_weights_say() {
    for (name, server, _folder) in servers() {
        for seed in 0..8 {
            let context = format!("{name} {seed}");
            let strict = json!({"type": "json_schema",
                "json_schema": {"name": "x", "strict": true, "schema": schema()}});
            for fields in [
                json!({"seed": seed, "response_format": strict}),
                json!({"seed": seed, "structured_outputs": {"json": schema()}}),
                json!({"seed": seed, "json_schema": schema(), "logprobs": true}),
            ] {
                let choice = chat(&server, fields);
                assert_eq!(choice["finish_reason"], "stop", "{context}: {choice}");
                let content = choice["message"]["content"].as_str().expect("text");
                assert_valid(&serde_json::from_str(content).expect("JSON"), &context);
            }
            let compact = json!({"json": schema(), "disable_any_whitespace": true});
            let choice = chat(&server, json!({"seed": seed, "structured_outputs": compact}));
            let content = choice["message"]["content"].as_str().expect("text");
            let value: Value = serde_json::from_str(content).expect("JSON");
            assert_eq!(content, value.to_string(), "{context}: no white space");
            let format = json!({"type": "sequence", "elements": [
                {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[xy]{3}"},
                    "end": "</a>"},
                {"type": "or", "elements": [{"type": "const_string", "value": "!"},
                    {"type": "json_schema", "json_schema": {"type": "boolean"}}]}]});
            let tags = json!({"type": "structural_tag", "format": format});
            let choice = chat(&server, json!({"seed": seed, "response_format": tags}));
            let content = choice["message"]["content"].as_str().expect("text");
            let (inner, rest) = content
                .strip_prefix("<a>")
                .and_then(|text| text.split_once("</a>"))
                .expect(content);
            assert!(inner.len() == 3 && ["!", "true", "false"].contains(&rest), "{content}");
            let texts = [
                (json!({"guided_choice": ["red", "green", "blue"]}), "red green blue"),
                (json!({"guided_regex": "(red|blue)"}), "red blue"),
                (json!({"grammar": "root ::= \"red\" | \"green\""}), "red green"),
                (json!({"guided_grammar": "start: \"red\" | /gr[e]{2}n/"}), "red green"),
            ];
            for (mut fields, known) in texts {
                fields["seed"] = seed.into();
                let choice = chat(&server, fields);
                let content = choice["message"]["content"].as_str().expect("text");
                assert!(known.split(' ').any(|text| text == content), "{context}: {content}");
            }
        }
        let object = chat(&server, json!({"response_format": {"type": "json_object"}, "seed": 1}));
        let content = object["message"]["content"].as_str().expect("text");
        assert!(content.starts_with('{'), "{content}");
        if object["finish_reason"] == "stop" {
            assert!(serde_json::from_str::<Value>(content).is_ok_and(|value| value.is_object()));
        }
    }
}

#[test]
fn a_required_call_is_valid_in_every_format() {
    let folder = random_model();
    for format in pelton_parse::TOOL_FORMATS {
        let format = format.name();
        let server = Server::start(&["-m", path(&folder), "--tool-parser", format]);
        let server = server.expect("it starts");
        for seed in 0..3 {
            let context = format!("{format} {seed}");
            for (choose, expected) in [
                (json!("required"), None),
                (json!({"type": "function", "function": {"name": "roll"}}), Some("roll")),
            ] {
                let fields = json!({"tools": tools(), "tool_choice": choose, "seed": seed,
                    "parallel_tool_calls": false});
                let choice = chat(&server, fields);
                // Harmony allows words before a call, and random weights may never end them.
                if format == "openai" && choice["finish_reason"] == "length" {
                    continue;
                }
                assert_eq!(choice["finish_reason"], "tool_calls", "{context}: {choice}");
                let calls = choice["message"]["tool_calls"].as_array().expect("calls");
                assert_eq!(calls.len(), 1, "{context}: {choice}");
                let function = &calls[0]["function"];
                let arguments = function["arguments"].as_str().expect("text");
                let arguments: Value = serde_json::from_str(arguments).expect("JSON");
                match function["name"].as_str().expect("a name") {
                    "get_person" => assert_valid(&arguments, &context),
                    "roll" => {
                        assert!([6, 20].iter().any(|n| arguments["sides"] == *n), "{context}")
                    }
                    other => panic!("{context}: {other}"),
                }
                assert!(expected.is_none_or(|name| function["name"] == name), "{context}");
            }
        }
    }
}

/// The answer that the chunks of a stream add up to.
fn streamed(server: &Server, fields: Value) -> Value {
    let mut body = ask(fields);
    body["stream"] = true.into();
    let body = body.to_string();
    let mut connection = server.send(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.address(),
        body.len()
    ));
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let mut reason = Value::Null;
    for line in answer.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{line}")).expect("JSON");
        let choice = &chunk["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().expect("an index") as usize;
            if let Some(name) = piece["function"]["name"].as_str() {
                assert_eq!(index, calls.len(), "calls come in order");
                assert!(piece["id"].is_string() && piece["type"] == "function");
                calls.push((name.to_owned(), String::new()));
            }
            calls[index].1.push_str(piece["function"]["arguments"].as_str().expect("text"));
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    json!({"content": content, "calls": calls, "reason": reason})
}

#[test]
fn a_stream_adds_up_to_the_whole_answer_and_drafts_change_nothing() {
    for (name, server, _folder) in servers() {
        for fields in [
            json!({"tools": tools(), "tool_choice": "required", "seed": 3,
                "parallel_tool_calls": false}),
            json!({"tools": tools(), "tool_choice": "auto", "seed": 4, "max_tokens": 60}),
            json!({"json_schema": schema(), "seed": 5}),
            json!({"json_schema": schema(), "seed": 5, "temperature": 0}),
        ] {
            let whole = chat(&server, fields.clone());
            let message = &whole["message"];
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let calls: Vec<(String, String)> = calls
                .map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"])))
                .collect();
            let content = message["content"].as_str().unwrap_or_default();
            let whole = json!({"content": content, "calls": calls,
                "reason": whole["finish_reason"]});
            assert_eq!(streamed(&server, fields.clone()), whole, "{name}: {fields}");
            for drafts in [json!({"max_drafts": 0}), json!({"always": true})] {
                let mut fields = fields.clone();
                fields["speculation"] = drafts;
                assert_eq!(streamed(&server, fields.clone()), whole, "{name}: {fields}");
            }
        }
    }
}

/// A template whose answers begin inside of a thought, or may begin with one.
fn thinking(folder: &tempfile::TempDir, opens: bool) -> String {
    let file = folder.path().join(format!("thinks-{opens}.jinja"));
    let open = if opens { "<think>\\n" } else { "{# <think> #}" };
    let open = open.replace("\\n", "\n");
    let text = format!(
        "{{% for message in messages %}}{{{{ message['role'] + ': ' + message['content'] + '\n' }}}}\
         {{% endfor %}}{{% if enable_thinking is not defined or enable_thinking %}}{open}{{% endif %}}"
    );
    std::fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_thought_comes_before_the_form_and_ends_within_its_budget() {
    let folder = random_model();
    let template = thinking(&folder, true);
    let server = Server::start(&["-m", path(&folder), "--chat-template", &template]);
    let server = server.expect("it starts");
    for seed in 0..4 {
        let fields = json!({"json_schema": schema(), "seed": seed, "thinking_budget": 9});
        let body = server.post("/v1/chat/completions", &ask(fields.clone())).expect("answered");
        let message = &body["choices"][0]["message"];
        let content = message["content"].as_str().expect("text");
        assert_valid(&parsed(content), content);
        let details = &body["usage"]["completion_tokens_details"];
        let n_thought = details["reasoning_tokens"].as_u64().expect("a count");
        // The budget, and the tokens of the mark that ends the thought.
        assert!((9..=30).contains(&n_thought), "{n_thought}");
        assert_eq!(message["reasoning"], message["reasoning_content"]);
        assert!(message["reasoning"].is_string(), "{message}");

        let mut hidden = fields.clone();
        hidden["include_reasoning"] = false.into();
        let hidden = chat(&server, hidden);
        assert_eq!(hidden["message"]["content"], message["content"]);
        assert!(hidden["message"].get("reasoning").is_none(), "{hidden}");
        let mut raw = fields.clone();
        raw["reasoning_format"] = "none".into();
        let raw = chat(&server, raw);
        let text = raw["message"]["content"].as_str().expect("text");
        assert!(text.contains("</think>") && text.ends_with(content), "{text}");
        let off = json!({"json_schema": schema(), "seed": seed, "thinking_budget": 4,
            "chat_template_kwargs": {"enable_thinking": false}});
        // Where no thought is opened, one may still come.
        let off = chat(&server, off);
        let content = off["message"]["content"].as_str().expect("text");
        assert_valid(&parsed(content), content);
    }
    let (param, _) = refusal(&server, json!({"chat_template_kwargs": {"nothing": 1}}));
    assert_eq!(param, "chat_template_kwargs");
    let off = json!({"json_schema": schema(), "reasoning_effort": "none", "seed": 2,
        "thinking_budget": 4});
    assert!(chat(&server, off)["message"]["content"].is_string());
}

#[test]
fn contradictions_and_impossible_forms_are_named() {
    let server = Server::start(&[]).expect("it starts");
    for (fields, param) in [
        (json!({"json_schema": schema(), "ignore_eos": true}), "ignore_eos"),
        (json!({"json_schema": schema(), "min_tokens": 3}), "min_tokens"),
        (json!({"json_schema": schema(), "guided_regex": "a"}), "json_schema"),
        (
            json!({"json_schema": schema(), "tools": tools(), "tool_choice": "required"}),
            "tool_choice",
        ),
        (
            json!({"structural_tag": {"format": {"type": "sequence", "elements": [
                {"type": "any_text"}, {"type": "const_string", "value": "x"}]}}}),
            "structural_tag.format.elements[0]",
        ),
        (json!({"thinking_budget": 5}), "thinking_budget"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort"),
    ] {
        let (got, message) = refusal(&server, fields);
        assert_eq!(got, param, "{message}");
    }
    let biased = json!({"guided_choice": ["yes"], "logit_bias": {}, "seed": 1});
    assert_eq!(chat(&server, biased)["message"]["content"], "yes");
}

#[test]
fn run_has_the_same_forms_and_calls() {
    let folder = random_model();
    let schema = schema().to_string();
    let file = folder.path().join("tools.json");
    std::fs::write(&file, tools().to_string()).expect("written");
    let file = file.to_str().expect("UTF-8");
    for model in [&["--seed", "3"][..], &["--seed", "3", "-m", path(&folder)]] {
        let run = |more: &[&str]| {
            pelton(&[&["run", "--json", "--temperature", "2"], model, more, &["Anna"]].concat())
        };
        let answer = run(&["--json-schema", &schema]).json();
        let text = answer["text"].as_str().expect("text");
        assert_valid(&serde_json::from_str(text).expect("JSON"), text);
        let answer = run(&["--choice", "yes", "--choice", "no"]).json();
        assert!(answer["text"] == "yes" || answer["text"] == "no", "{answer}");
        let answer = run(&["--regex", "[0-9]{3}"]).json();
        assert!(answer["text"].as_str().is_some_and(|text| text.parse::<u16>().is_ok()));
        let answer = run(&["--tools", file, "--tool-choice", "roll"]).json();
        assert_eq!(answer["tool_calls"][0]["name"], "roll", "{answer}");
    }
    let plain =
        pelton(&["run", "-q", "--tools", file, "--tool-choice", "roll", "--seed", "1", "x"]);
    assert!(plain.stdout.starts_with("roll({"), "{}", plain.stdout);
    let refused = |more: &[&str], parts: &[&str]| {
        pelton(&[&["run"], more, &["x"]].concat()).assert_refused(parts);
    };
    refused(&["--json-schema", "{"], &["--json-schema"]);
    refused(&["--json-schema", "no/such/file"], &["--json-schema", "no/such/file"]);
    refused(&["--regex", "a", "--choice", "b"], &["--regex", "--choice"]);
    refused(&["--tools", file, "--tool-choice", "fly"], &["--tool-choice", "fly", "roll"]);
    refused(&["--tool-parser", "nope", "--chat"], &["tool", "nope", "hermes"]);
    refused(&["--choice", "a", "--ignore-eos"], &["ignore"]);
}

#[test]
fn an_answer_that_its_form_completes_is_the_same_with_any_drafts() {
    let drafts = [&["--spec", "early-exit:2"][..], &["--spec", "draft:story-draft"]];
    for flags in drafts {
        let server = Server::start(flags).expect("it starts");
        for (temperature, seed) in [(0, 0), (1, 1), (1, 2), (1, 3)] {
            let with = |speculation: Value| {
                let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "seed": seed,
                    "temperature": temperature, "speculation": speculation,
                    "structured_outputs": {"regex": "(cat|dog)[0-9]{2}"}});
                server.post("/v1/completions", &body).expect("answered")["choices"][0].clone()
            };
            let plain = with(json!({"method": "off"}));
            assert_eq!(plain["finish_reason"], "stop", "{plain}");
            assert_eq!(with(json!({"always": true})), plain, "{flags:?}, seed {seed}");
        }
    }
}

#[test]
fn white_space_before_an_answer_without_a_thought_is_no_thought() {
    let server = Server::start(&["--reasoning-parser", "deepseek_r1"]).expect("it starts");
    let newline = server.post("/tokenize", &json!({"prompt": "\n", "add_special_tokens": false}));
    let newline = newline.expect("tokens")["tokens"][0].to_string();
    let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2,
        "temperature": 0, "logit_bias": {newline: 100}});
    let body = server.post("/v1/chat/completions", &body).expect("answered");
    assert_eq!(body["choices"][0]["message"]["content"], "\n\n");
    assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0, "{body}");
}
