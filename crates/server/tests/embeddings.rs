//! `POST /v1/embeddings`, and what a server of one kind says to who wants the other.

use std::sync::Arc;

use crate::harness::parrot::{one_thread, parrot};
use crate::harness::{self, Running, post_text, start};
use pelton_llm::{EmbedOptions, Embedder, ModelRef};
use pelton_server::{ServeConfig, Server, Signals};
use pelton_testkit::TinyEncoder;
use serde_json::{Value, json};

async fn start_embedder(config: ServeConfig) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    let model = ModelRef::parse(folder.path().to_str().expect("UTF-8")).expect("a folder");
    let name = Some("tiny".to_owned());
    let options = EmbedOptions { name, ..EmbedOptions::default() };
    let embedder: Arc<Embedder> =
        Embedder::load(&one_thread(), &model, &options, &mut |_| {}).expect("loads");
    let config = ServeConfig { port: Some(0), ..config };
    let server = Server::bind_embedder(embedder, config).await.expect("a free port");
    let address = server.address().expect("a port");
    let (signals, receiver) = Signals::manual();
    let task = tokio::spawn(server.run(receiver));
    (folder, Running { address, signals, task })
}

async fn ask(server: &Running, body: Value) -> harness::Answer {
    server.post("/v1/embeddings", body).await
}

fn vector(answer: &Value, index: usize) -> Vec<f32> {
    let items = answer["data"][index]["embedding"].as_array().expect("an array");
    items.iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// The floats of base64 text, by the table of RFC 4648.
fn floats(text: &str) -> Vec<f32> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let n = group.iter().filter(|letter| **letter != b'=').count();
        let word = group.iter().fold(0_u32, |word, letter| word << 6 | u32::from(value(*letter)));
        bytes.extend_from_slice(&word.to_be_bytes()[1..n]);
    }
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[tokio::test]
async fn every_form_of_input_is_answered() {
    let (_folder, server) = start_embedder(ServeConfig::default()).await;
    let one = ask(&server, json!({"model": "tiny", "input": "cat", "user": "me"})).await;
    assert_eq!(one.status, 200, "{}", one.body);
    let one = one.json();
    assert_eq!(one["object"], "list");
    assert_eq!(one["model"], "tiny");
    assert_eq!(one["data"][0]["object"], "embedding");
    assert_eq!(one["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
    let cat = vector(&one, 0);
    assert_eq!(cat.len(), TinyEncoder::DIMENSIONS);

    let many = ask(&server, json!({"input": ["dog", "cat"]})).await.json();
    assert_eq!(many["data"][1]["index"], 1);
    assert_eq!(vector(&many, 1), cat, "the same alone and among others");
    assert_ne!(vector(&many, 0), cat);
    for tokens in [json!([2, 6, 40, 59, 3]), json!([[2, 6, 40, 59, 3]])] {
        assert_eq!(vector(&ask(&server, json!({"input": tokens})).await.json(), 0), cat);
    }
    let text = ask(&server, json!({"input": "cat", "encoding_format": "base64"})).await.json();
    assert_eq!(floats(text["data"][0]["embedding"].as_str().expect("text")), cat);
    let short = ask(&server, json!({"input": "cat", "dimensions": 4})).await.json();
    assert_eq!(vector(&short, 0).len(), 4);
    let query = ask(&server, json!({"input": "cat", "prompt_name": "query"})).await.json();
    let by_hand = ask(&server, json!({"input": "query: cat"})).await.json();
    assert_eq!(query["data"], by_hand["data"]);
    let long = "a ".repeat(100);
    let cut = ask(&server, json!({"input": long, "truncate": true})).await;
    assert_eq!(cut.json()["usage"]["prompt_tokens"], 64);
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_embedded_names_its_parameter() {
    let (_folder, server) = start_embedder(ServeConfig::default()).await;
    let too_many = json!(vec!["a"; 2049]);
    for (param, body) in [
        ("input", json!({})),
        ("input", json!({"input": ""})),
        ("input", json!({"input": []})),
        ("input", json!({"input": ["a", ""]})),
        ("input", json!({"input": ["a", 1]})),
        ("input", json!({"input": [[1], "a"]})),
        ("input", json!({"input": [[1], []]})),
        ("input", json!({"input": [-1]})),
        ("input", json!({"input": [80]})),
        ("input", json!({"input": {"text": "a"}})),
        ("input", json!({"input": too_many})),
        ("dimensions", json!({"input": "a", "dimensions": 0})),
        ("dimensions", json!({"input": "a", "dimensions": 33})),
        ("dimensions", json!({"input": "a", "dimensions": "many"})),
        ("encoding_format", json!({"input": "a", "encoding_format": "int8"})),
        ("prompt_name", json!({"input": "a", "prompt_name": "poem"})),
        ("truncate", json!({"input": "a", "truncate": "yes"})),
        ("input_type", json!({"input": "a", "input_type": "query"})),
        ("temperature", json!({"input": "a", "temperature": 1})),
    ] {
        let answer = ask(&server, body.clone()).await;
        let (status, found, _) = answer.error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{body} {}", answer.body);
    }
    let long = ask(&server, json!({"input": ["a", "a ".repeat(100)]})).await;
    let (status, param, code) = long.error();
    assert_eq!((status, param.as_deref()), (400, Some("input")));
    assert_eq!(code.as_deref(), Some("context_length_exceeded"));
    let message = long.json()["error"]["message"].as_str().expect("text").to_owned();
    assert!(["input 1", "64", "truncate"].iter().all(|part| message.contains(part)), "{message}");
    let other = ask(&server, json!({"model": "huge", "input": "a"})).await;
    assert_eq!(other.error().0, 404);
    server.stop().await;
}

#[tokio::test]
async fn each_kind_of_server_refuses_what_is_the_others() {
    let (_folder, server) = start_embedder(ServeConfig::default()).await;
    let chat = json!({"messages": [{"role": "user", "content": "abc"}]});
    for answer in [server.chat(chat).await, server.complete(json!({"prompt": "abc"})).await] {
        let (status, param, code) = answer.error();
        assert_eq!((status, param.as_deref()), (400, Some("model")));
        assert_eq!(code.as_deref(), Some("model_not_supported"));
        assert!(answer.body.contains("embedding model"), "{}", answer.body);
    }
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["max_model_len"], 64);
    assert_eq!(server.get("/health").await.status, 200);
    server.stop().await;

    let server = start(parrot()).await;
    let answer = ask(&server, json!({"input": "abc"})).await;
    let (status, param, code) = answer.error();
    assert_eq!((status, param.as_deref()), (400, Some("model")));
    assert_eq!(code.as_deref(), Some("model_not_supported"));
    assert!(answer.body.contains("--embeddings"), "{}", answer.body);
    server.stop().await;
}

#[tokio::test]
async fn requests_at_the_same_time_are_all_answered_and_counted() {
    let (_folder, server) = start_embedder(ServeConfig::default()).await;
    let alone = vector(&ask(&server, json!({"input": "text 7"})).await.json(), 0);
    let mut asked = Vec::new();
    for i in 0..24 {
        let body = json!({"input": [format!("text {i}"), "text 7"]}).to_string();
        asked.push(server.raw_later(post_text("/v1/embeddings", &body)));
    }
    for answer in asked {
        let answer = answer.await.expect("asked");
        assert_eq!(vector(&answer.json(), 1), alone);
    }
    let metrics = server.get("/metrics").await.body;
    for (name, expected) in
        [("pelton_embedding_texts_total", 49.0), ("pelton_embedding_requests_finished_total", 25.0)]
    {
        assert_eq!(harness::series(&metrics, name), Some(expected), "{name} in\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let config = ServeConfig { max_body_bytes: 1000, ..ServeConfig::default() };
    let (_folder, server) = start_embedder(config).await;
    let answer = ask(&server, json!({"input": "a".repeat(2000)})).await;
    assert_eq!(answer.status, 413);
    server.stop().await;
}
