//! Fields of requests beside the choice of tokens: the prompt, the end and the parts of an answer.
//!
//! The parrot answers with its prompt over and over, and its chat template writes the last message.

use crate::harness::parrot::{coding_parrot, parrot};
use crate::harness::{Answer, Running, start, start_with};
use pelton_server::ServeConfig;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn ask(server: &Running, path: &str, body: Value) -> Value {
    let answer = server.post(path, body.clone()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()
}

/// The parameter that is refused, and the code.
async fn refusal(server: &Running, path: &str, body: Value) -> (String, Option<String>) {
    let answer = server.post(path, body.clone()).await;
    assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    let (_, param, code) = answer.error();
    (param.expect("a parameter"), code)
}

fn merged(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn said(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

#[tokio::test]
async fn an_answer_shows_its_end_as_it_is_asked_to() {
    let server = start(parrot()).await;
    let choice = async |more: Value| {
        let body = merged(json!({"prompt": "abc!", "max_tokens": 9}), more);
        ask(&server, COMPLETIONS, body).await["choices"][0].clone()
    };
    for (more, text, stop_reason) in [
        (json!({"stop": "c"}), "ab", json!("c")),
        (json!({"stop": "c", "include_stop_str_in_output": true}), "abc", json!("c")),
        (json!({"stop": "bc", "no_stop_trim": true}), "abc", json!("bc")),
        (json!({"stop": "c", "no_stop_trim": false}), "ab", json!("c")),
        (json!({"stop_token_ids": [98]}), "ab", json!(98)),
        (json!({}), "abc!", Value::Null),
        (json!({"skip_special_tokens": false}), "abc!", Value::Null),
        (
            json!({"skip_special_tokens": false, "include_stop_str_in_output": true}),
            "abc!<|end|>",
            Value::Null,
        ),
    ] {
        let choice = choice(more.clone()).await;
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("stop")));
        assert_eq!(choice["stop_reason"], stop_reason, "{more}");
    }
    let contradiction = json!({"no_stop_trim": true, "include_stop_str_in_output": false});
    let body = merged(json!({"prompt": "a"}), contradiction);
    assert_eq!(refusal(&server, COMPLETIONS, body).await.0, "no_stop_trim");
}

#[tokio::test]
async fn a_long_prompt_is_cut_at_its_beginning() {
    let server = start(parrot()).await;
    let long = "x".repeat(600);
    for (prompt, truncate, n_prompt, text) in [
        (json!("abcdef"), 3, 3, "defdefdef"),
        (json!([97, 98, 99]), 2, 2, "bcbcbcbcb"),
        (json!("ab"), 7, 2, "ababababa"),
        (json!(long), -1, 503, "xxxxxxxxx"),
    ] {
        let body = json!({"prompt": prompt, "truncate_prompt_tokens": truncate, "max_tokens": 9});
        let answer = ask(&server, COMPLETIONS, body).await;
        assert_eq!(answer["choices"][0]["text"], text);
        assert_eq!(answer["usage"]["prompt_tokens"], n_prompt);
    }
    // The echo is what the model read.
    let body =
        json!({"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": true, "max_tokens": 1});
    assert_eq!(ask(&server, COMPLETIONS, body).await["choices"][0]["text"], "efe");
    let body = merged(said(&long), json!({"truncate_prompt_tokens": 4, "max_tokens": 1}));
    assert_eq!(ask(&server, CHAT, body).await["usage"]["prompt_tokens"], 4);
}

#[tokio::test]
async fn tokens_are_listed_by_id_where_they_are_asked_for() {
    let server = start(parrot()).await;
    let more = json!({"return_token_ids": true, "max_tokens": 9});
    let completion = merged(json!({"prompt": "b!"}), more.clone());
    let answer = ask(&server, COMPLETIONS, completion.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["token_ids"], json!([98, 33, 256]), "the end is a token");
    assert_eq!(choice["prompt_token_ids"], json!([98, 33]));
    let chat = merged(said("b!"), more);
    let answer = ask(&server, CHAT, chat.clone()).await;
    assert_eq!(answer["prompt_token_ids"], json!([98, 33]));
    assert_eq!(answer["choices"][0]["token_ids"], json!([98, 33, 256]));
    for (path, body) in [(COMPLETIONS, completion), (CHAT, chat)] {
        let body = merged(body, json!({"stream": true}));
        let chunks = server.post(path, body).await.chunks();
        let mut ids = Vec::new();
        for chunk in &chunks {
            let new = chunk["choices"][0]["token_ids"].as_array();
            ids.extend(new.into_iter().flatten().cloned());
        }
        assert_eq!(ids, [98, 33, 256], "{path}");
        let first = &chunks[0];
        let prompt = [&first["prompt_token_ids"], &first["choices"][0]["prompt_token_ids"]];
        assert!(prompt.contains(&&json!([98, 33])), "{first}");
    }
    let more = json!({"logprobs": 1, "return_tokens_as_token_ids": true, "max_tokens": 1});
    let answer = ask(&server, COMPLETIONS, merged(json!({"prompt": "b"}), more)).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["token_id:98"]));
    assert_eq!(logprobs["top_logprobs"], json!([{"token_id:98": -0.5}]));
}

#[tokio::test]
async fn chunks_count_and_hide_what_they_are_asked_to() {
    let server = start(parrot()).await;
    let options =
        json!({"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": true});
    for (path, body) in [(COMPLETIONS, json!({"prompt": "ab"})), (CHAT, said("ab"))] {
        let more = json!({
            "stream": true, "stream_options": options, "max_tokens": 3, "timings_per_token": true,
            "return_progress": true, "request_id": "mine-1"
        });
        let chunks = server.post(path, merged(body, more)).await.chunks();
        let tokens = chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64());
        let counts: Vec<u64> = tokens.map(|n| n.expect("in each chunk")).collect();
        assert!(
            counts.is_sorted() && counts.contains(&1) && counts.last() == Some(&3),
            "{counts:?}"
        );
        for chunk in &chunks {
            assert_eq!(chunk["usage"]["prompt_tokens"], 2, "{chunk}");
            assert!(chunk["id"].as_str().expect("an id").ends_with("cmpl-mine-1"), "{chunk}");
            let letters = chunk["obfuscation"].as_str().expect("letters").len();
            let text = [&chunk["choices"][0]["text"], &chunk["choices"][0]["delta"]["content"]];
            let text = text.into_iter().find_map(Value::as_str).unwrap_or_default().len();
            assert!(letters > 0 && (letters + text).is_multiple_of(16), "{chunk}");
        }
        let timings = &chunks.last().expect("chunks")["timings"];
        assert_eq!((&timings["prompt_n"], &timings["predicted_n"]), (&json!(2), &json!(3)));
    }
    let lonely = json!({"prompt": "a", "stream": true,
        "stream_options": {"continuous_usage_stats": true}});
    let param = refusal(&server, COMPLETIONS, lonely).await.0;
    assert_eq!(param, "stream_options.continuous_usage_stats");
}

#[tokio::test]
async fn the_last_message_is_continued_and_echoed() {
    let server = start(parrot()).await;
    let messages = json!([
        {"role": "user", "content": "Say it"}, {"role": "assistant", "content": "ab "}
    ]);
    let more = json!({"messages": messages, "continue_final_message": true, "max_tokens": 3});
    let answer = ask(&server, CHAT, merged(more.clone(), json!({"return_token_ids": true}))).await;
    assert_eq!(answer["prompt_token_ids"], json!([97, 98, 32]), "spaces that the template keeps");
    assert_eq!(answer["choices"][0]["message"]["content"], "ab ");
    let answer = ask(&server, CHAT, merged(more.clone(), json!({"echo": true}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "ab ab ");
    let both = merged(more, json!({"add_generation_prompt": true}));
    assert_eq!(refusal(&server, CHAT, both).await.0, "continue_final_message");
    let documents = merged(said("a"), json!({"documents": [{"text": "x"}]}));
    assert_eq!(refusal(&server, CHAT, documents).await.0, "documents");
}

#[tokio::test]
async fn a_template_of_a_request_needs_trust_and_runs_under_limits() {
    let with =
        |template: &str| merged(said("ab"), json!({"chat_template": template, "max_tokens": 4}));
    let strict = start(parrot()).await;
    assert_eq!(refusal(&strict, CHAT, with("x")).await.0, "chat_template");
    let config = ServeConfig { trust_request_chat_template: true, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let answer = ask(&server, CHAT, with("<{{ messages[0].content }}>")).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "<ab>");
    for evil in [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ messages",
        "{{ raise_exception('no') }}",
        "{% include '/etc/passwd' %}",
    ] {
        assert_eq!(refusal(&server, CHAT, with(evil)).await.0, "chat_template", "{evil}");
    }
    let body = merged(with("{{ documents[0].text }}"), json!({"documents": [{"text": "zz"}]}));
    assert_eq!(ask(&server, CHAT, body).await["choices"][0]["message"]["content"], "zzzz");
}

#[tokio::test]
async fn a_gap_is_filled_where_the_vocabulary_has_tokens_for_it() {
    let body = |suffix: Value| {
        json!({"prompt": "ab", "suffix": suffix, "max_tokens": 6,
        "skip_special_tokens": false, "return_token_ids": true})
    };
    let unsupported = ("suffix".to_owned(), Some("unsupported_parameter".to_owned()));
    let server = start(parrot()).await;
    assert_eq!(refusal(&server, COMPLETIONS, body(json!("c"))).await, unsupported);
    assert!(ask(&server, COMPLETIONS, body(json!(""))).await["choices"].is_array());
    let server = start(coding_parrot()).await;
    let choice = ask(&server, COMPLETIONS, body(json!("<fim_prefix>"))).await["choices"][0].clone();
    let suffix: Vec<u32> = "<fim_prefix>".bytes().map(u32::from).collect();
    let expected = [&[257, 97, 98, 258], &suffix[..], &[259]].concat();
    assert_eq!(choice["prompt_token_ids"], json!(expected), "names of control tokens are text");
    assert_eq!(choice["text"], "<fim_prefix>ab<fim_suffix><f");
}

/// Everything that SGLang's router writes into the requests of its clients.
#[tokio::test]
async fn requests_through_sglangs_router_are_answered() {
    let server = start(parrot()).await;
    let chat = json!({
        "model": "org/parrot", "logprobs": false, "stream": false, "no_stop_trim": false,
        "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true,
        "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
        "max_tokens": 2
    });
    ask(&server, CHAT, merged(said("ab"), chat)).await;
    let completion = json!({
        "model": "org/parrot", "prompt": "ab", "stream": false, "echo": false,
        "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true,
        "return_hidden_states": false, "max_tokens": 2, "sampling_seed": 3
    });
    ask(&server, COMPLETIONS, completion).await;
}

#[tokio::test]
async fn sglangs_fields_of_thoughts_may_ask_every_dialect_for_nothing() {
    let server = start(parrot()).await;
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": "ab"})),
        ("/v1/responses", json!({"input": "ab"})),
        ("/v1/messages", merged(said("ab"), json!({"max_tokens": 2}))),
    ] {
        let fine = json!({"separate_reasoning": true, "stream_reasoning": true});
        ask(&server, path, merged(body.clone(), fine)).await;
        for name in ["separate_reasoning", "stream_reasoning"] {
            let answer = server.post(path, merged(body.clone(), json!({ name: false }))).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            assert!(answer.body.contains(&format!("`{name}`")), "{path}: {}", answer.body);
        }
    }
}

fn ignored(answer: &Answer) -> Option<&str> {
    answer.head.lines().find_map(|line| line.strip_prefix("x-pelton-ignored: "))
}

#[tokio::test]
async fn a_lenient_server_ignores_what_it_does_not_honour_and_says_so() {
    let body = json!({
        "prompt": "ab", "max_tokens": 2, "colour": "red", "logits_processors": ["a.b"],
        "stream": true, "stream_options": {"include_usage": true, "x": 1}, "wild\ncard": null
    });
    let strict = start(parrot()).await;
    let refused = strict.post(COMPLETIONS, body.clone()).await;
    assert_eq!((refused.status, ignored(&refused)), (400, None));
    let config = ServeConfig { lenient: true, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let answer = server.post(COMPLETIONS, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(ignored(&answer), Some("logits_processors, stream_options.x, colour"));
    let plain = server.post(COMPLETIONS, json!({"prompt": "ab"})).await;
    assert_eq!((plain.status, ignored(&plain)), (200, None));
    let chat = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2,
        "truncation_side": "right", "best_of": 2});
    assert_eq!(strict.post("/v1/chat/completions", chat.clone()).await.status, 400);
    let answer = server.post("/v1/chat/completions", chat).await;
    assert_eq!((answer.status, ignored(&answer)), (200, Some("truncation_side, best_of")));
    // So is what the template of the model does not know.
    let thinking = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2,
        "reasoning_effort": "low", "thinking_budget": 9, "documents": [{"text": "a"}],
        "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(strict.post("/v1/chat/completions", thinking.clone()).await.status, 400);
    let answer = server.post("/v1/chat/completions", thinking).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let all = "chat_template_kwargs.enable_thinking, documents, reasoning_effort, thinking_budget";
    assert_eq!(ignored(&answer), Some(all));
    // Pages may read it.
    let exposed =
        answer.head.lines().find(|line| line.starts_with("access-control-expose-headers"));
    let exposed = exposed.expect("it serves pages of this machine");
    assert!(
        exposed.contains("x-pelton-ignored") && exposed.contains("x-pelton-routed"),
        "{exposed}"
    );
    // A value out of range is no field that the server does not know.
    let wrong = server.post(COMPLETIONS, json!({"prompt": "ab", "top_p": 7, "y": 1})).await;
    assert_eq!((wrong.status, ignored(&wrong)), (400, Some("y")));
}
