//! Answers of the server, with a parrot for a model.

use crate::harness::parrot::{CONTEXT, parrot};
use crate::harness::{post_text, start, start_with};
use pelton_server::ServeConfig;
use serde_json::{Value, json};

fn hello(more: Value) -> Value {
    let mut body =
        json!({"model": "org/parrot", "messages": [{"role": "user", "content": "hey!"}]});
    for (name, value) in more.as_object().expect("object") {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece() {
    let server = start(parrot()).await;
    let answer = server.chat(hello(json!({"logprobs": true, "top_logprobs": 2}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "org/parrot");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "hey!", "refusal": null}));
    assert_eq!(choice["finish_reason"], "stop");
    let logprobs = choice["logprobs"]["content"].as_array().expect("asked for");
    let text: String = logprobs.iter().map(|l| l["token"].as_str().expect("text")).collect();
    assert_eq!(text, "hey!", "the end token is not among them");
    assert_eq!(logprobs[0]["bytes"], json!([104]));
    assert_eq!(logprobs[0]["top_logprobs"][1]["logprob"], -9999.0, "JSON has no infinity");
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details":
            {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0, "reasoning_tokens": 0}});
    assert_eq!(body["usage"], usage);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_is_role_text_finish_usage_done() {
    let server = start(parrot()).await;
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let answer = server.chat(hello(more)).await;
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let n = chunks.len();
    let text: String = chunks[1..n - 2]
        .iter()
        .map(|c| c["choices"][0]["delta"]["content"].as_str().expect("text"))
        .collect();
    assert_eq!(text, "hey!");
    assert_eq!(chunks[n - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[n - 2]["choices"][0]["delta"], json!({}));
    assert_eq!(chunks[n - 1]["choices"], json!([]));
    assert_eq!(chunks[n - 1]["usage"]["completion_tokens"], 5);
    assert!(chunks[..n - 1].iter().all(|c| c["usage"].is_null() && c.get("usage").is_some()));
    let id = &chunks[0]["id"];
    assert!(chunks.iter().all(|c| c["id"] == *id && c["object"] == "chat.completion.chunk"));

    let plain = server.chat(hello(json!({"stream": true}))).await.chunks();
    assert!(plain.iter().all(|c| c.get("usage").is_none()), "usage only when asked for");
    server.stop().await;
}

#[tokio::test]
async fn completions_take_texts_and_tokens_and_streams_equal_whole_answers() {
    let server = start(parrot()).await;
    let body = json!({"prompt": [[97, 98], [99, 100]], "max_tokens": 3, "n": 2, "logprobs": 1,
        "temperature": 1, "seed": 1});
    let whole = server.complete(body.clone()).await.json();
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|c| c["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts, ["bab", "aba", "dcd", "cdc"]);
    assert_eq!(whole["choices"][3]["index"], 3);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"], json!(["b", "a", "b"]));
    assert_eq!(whole["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 2]));
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let mut from_stream = vec![String::new(); 4];
    for chunk in server.complete(streamed).await.chunks() {
        let choice = &chunk["choices"][0];
        let idx = choice["index"].as_u64().expect("index") as usize;
        from_stream[idx].push_str(choice["text"].as_str().expect("text"));
    }
    assert_eq!(from_stream, texts);
    let text = server.complete(json!({"prompt": ["abc", "xyz"], "max_tokens": 2})).await.json();
    assert_eq!(
        (&text["choices"][0]["text"], &text["choices"][1]["text"]),
        (&json!("ab"), &json!("xy"))
    );
    server.stop().await;
}

#[tokio::test]
async fn stop_strings_end_an_answer_and_never_get_out() {
    let server = start(parrot()).await;
    let body =
        json!({"prompt": "one two", "max_tokens": 300, "stop": ["two", "zzz"], "stream": true});
    let chunks = server.complete(body).await.chunks();
    let text: String =
        chunks.iter().map(|c| c["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, "one ");
    assert_eq!(chunks.last().expect("finish")["choices"][0]["finish_reason"], "stop");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_has_as_many_tokens_as_it_must_before_anything_ends_it() {
    let server = start(parrot()).await;
    // By itself it ends after a round, which is four tokens and the end token.
    let said = async |body: Value| {
        let body = server.chat(hello(body)).await.json();
        let choice = &body["choices"][0];
        let text = choice["message"]["content"].as_str().expect("text").to_owned();
        let finish = choice["finish_reason"].as_str().expect("a reason").to_owned();
        (text, finish, body["usage"]["completion_tokens"].as_u64().expect("a count"))
    };
    let (stop, length) = ("stop".to_owned(), "length".to_owned());
    for (min_tokens, text, n_tokens) in [(0, "hey!", 5), (4, "hey!", 5), (6, "hey!he", 7)] {
        let answer = said(json!({ "min_tokens": min_tokens })).await;
        assert_eq!(answer, (text.to_owned(), stop.clone(), n_tokens), "at least {min_tokens}");
    }
    let exact = json!({"min_tokens": 7, "max_completion_tokens": 7});
    assert_eq!(said(exact).await, ("hey!hey".to_owned(), length, 7));
    let stopping = json!({"min_tokens": 6, "stop": ["ey!"]});
    assert_eq!(said(stopping).await, ("hey!he".to_owned(), stop, 7));

    // A stop string that ends too early is text, one that begins there and goes on is not.
    let body = json!({"prompt": "hey?", "max_tokens": 20, "min_tokens": 6, "stop": "ey"});
    assert_eq!(server.complete(body).await.json()["choices"][0]["text"], "hey?h");
    let body = json!({"prompt": "ab!", "max_tokens": 9, "min_tokens": 5, "stream": true});
    let chunks = server.complete(body).await.chunks();
    let text: String =
        chunks.iter().map(|c| c["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, "ab!ab");

    let named = (400, Some("min_tokens".to_owned()), None);
    for body in [
        json!({"prompt": "ab!", "max_tokens": 3, "min_tokens": 4}),
        json!({"prompt": "ab!", "min_tokens": 17}),
        json!({"prompt": "ab!", "min_tokens": -1}),
        json!({"prompt": "ab!", "max_tokens": 9999, "min_tokens": CONTEXT - 2}),
    ] {
        assert_eq!(server.complete(body.clone()).await.error(), named, "{body}");
    }
    let room = json!({"min_tokens": CONTEXT - 3});
    assert_eq!(server.chat(hello(room)).await.error(), named, "beyond the context");
    server.stop().await;
}

#[tokio::test]
async fn every_error_is_json_and_names_what_is_wrong() {
    let config = ServeConfig { max_body_bytes: 2000, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let some = |text: &str| Some(text.to_owned());
    let completion = async |body: Value| server.complete(body).await.error();
    assert_eq!(completion(json!({"prompt": ""})).await, (400, some("prompt"), None));
    let long = json!({"prompt": "x".repeat(CONTEXT)});
    let code = some("context_length_exceeded");
    assert_eq!(completion(long).await, (400, some("prompt"), code.clone()));
    assert_eq!(completion(json!({"prompt": [300]})).await, (400, some("prompt"), None));
    let bias = json!({"prompt": "a", "logit_bias": {"300": 1}});
    assert_eq!(completion(bias).await, (400, some("logit_bias"), None));
    let unsupported = some("unsupported_parameter");
    let suffix = json!({"prompt": "a", "suffix": "b"});
    assert_eq!(completion(suffix).await, (400, some("suffix"), unsupported));
    let model = json!({"prompt": "a", "model": "gpt"});
    assert_eq!(completion(model).await, (404, some("model"), some("model_not_found")));
    let failing = json!({"prompt": "a~"});
    assert_eq!(completion(failing).await.0, 500);
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(CONTEXT)}]});
    assert_eq!(server.chat(long).await.error(), (400, some("messages"), code));

    let large = json!({"prompt": "x".repeat(3000)});
    assert_eq!(completion(large).await.0, 413);
    let bad = |body: &str| post_text("/v1/completions", body);
    assert_eq!(server.raw(&bad("{\"prompt\": ")).await.error().0, 400);
    assert_eq!(server.raw(&bad("[]")).await.error().0, 400);
    assert_eq!(server.raw(&bad(&"[".repeat(1500))).await.error().0, 400);
    let wrong_type = bad("{}").replace("application/json", "text/plain");
    assert_eq!(server.raw(&wrong_type).await.error().0, 415);
    let message = async |path: &str| server.get(path).await.json()["error"]["message"].clone();
    assert_eq!(server.get("/v1/nothing").await.error().0, 404);
    for (path, way) in [
        ("/v1/nothing", ""),
        ("/models", "; a base URL that ends in /v1 leads to /v1/models"),
        ("/v1/version", "; a base URL without /v1 at its end leads to /version"),
        ("/v1/models/", "; did you mean /v1/models?"),
    ] {
        assert_eq!(message(path).await, format!("there is nothing at {path}{way}"));
    }
    assert_eq!(server.get("/v1/completions").await.error().0, 405);
    let but = "/v1/completions does not answer to GET, but to POST";
    assert_eq!(message("/v1/completions").await, but);
    let compact = server.post("/v1/responses/compact", json!({})).await.json();
    let but = "/v1/responses/compact does not answer to POST, but to GET and DELETE";
    assert_eq!(compact["error"]["message"], but);
    let chunked = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
        content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{chunked}bb8\r\n{}\r\n0\r\n\r\n", " ".repeat(3000));
    assert_eq!(server.raw(&chunked).await.error().0, 413, "without an announced length");
    server.stop().await;
}

#[tokio::test]
async fn a_failure_inside_a_stream_is_an_error_chunk() {
    let server = start(parrot()).await;
    let chunks = server.complete(json!({"prompt": "a~", "stream": true})).await.chunks();
    assert_eq!(chunks.last().expect("an error")["error"]["type"], "server_error");
    server.stop().await;
}

#[tokio::test]
async fn models_are_listed_and_found_by_names_with_slashes() {
    let server = start(parrot()).await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "org/parrot");
    assert_eq!(list["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(server.get("/v1/models/org/parrot").await.json()["object"], "model");
    assert_eq!(server.get("/v1/models/org%2Fparrot").await.status, 200);
    let unknown = server.get("/v1/models/nope").await.error();
    assert_eq!(unknown.2.as_deref(), Some("model_not_found"));
    server.stop().await;
}

#[tokio::test]
async fn a_request_id_is_echoed_and_a_bad_one_replaced() {
    let server = start(parrot()).await;
    let ask = |id: &str| {
        format!(
            "GET /nope HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: {id}\r\n\r\n"
        )
    };
    let answer = server.raw(&ask("abc-1")).await;
    assert!(answer.head.contains("x-request-id: abc-1"), "{}", answer.head);
    let answer = server.raw(&ask("a b")).await;
    assert!(answer.head.contains("x-request-id: req-"), "{}", answer.head);
    server.stop().await;
}
