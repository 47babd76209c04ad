//! Texts to tokens and back through the server, in the shapes of vLLM and llama-server.

use crate::harness::parrot::{coding_parrot, opening_parrot, parrot};
use crate::harness::{Running, start};
use serde_json::{Value, json};

async fn ask(server: &Running, path: &str, body: Value) -> Value {
    let answer = server.post(path, body.clone()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()
}

#[tokio::test]
async fn texts_become_tokens_and_come_back() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "aé", "return_token_strs": true});
    let answer = ask(&server, "/tokenize", body).await;
    let expected = json!({"count": 3, "max_model_len": 512, "tokens": [97, 195, 169],
        "token_strs": ["a", "\u{fffd}", "\u{fffd}"]});
    assert_eq!(answer, expected);
    let plain = ask(&server, "/tokenize", json!({"prompt": "", "model": "org/parrot"})).await;
    assert_eq!(plain, json!({"count": 0, "max_model_len": 512, "tokens": [], "token_strs": null}));
    let named = ask(&server, "/tokenize", json!({"prompt": "a<|end|>"})).await;
    assert_eq!(named["tokens"], json!([97, 256]), "a control token by its name");
    let back = ask(&server, "/detokenize", json!({"tokens": [97, 195, 169, 256]})).await;
    assert_eq!(back, json!({"prompt": "aé<|end|>", "content": "aé<|end|>"}));
    // llama-server's shape.
    let answer = ask(&server, "/tokenize", json!({"content": "a<|end|>"})).await;
    assert_eq!(answer, json!({"tokens": [97, 256]}));
    let body = json!({"content": "é<|end|>", "parse_special": false, "with_pieces": true});
    let pieces = ask(&server, "/tokenize", body).await["tokens"].clone();
    assert_eq!(pieces[0], json!({"id": 195, "piece": [195]}));
    assert_eq!(
        (&pieces[2], pieces.as_array().map(Vec::len)),
        (&json!({"id": 60, "piece": "<"}), Some(9))
    );
}

#[tokio::test]
async fn conversations_are_rendered_without_an_answer() {
    let server = start(parrot()).await;
    let chat = json!({"messages": [{"role": "user", "content": "ab"}], "temperature": 0.5});
    let tokens = ask(&server, "/tokenize", chat.clone()).await;
    assert_eq!((&tokens["count"], &tokens["tokens"]), (&json!(2), &json!([97, 98])));
    assert_eq!(ask(&server, "/apply-template", chat.clone()).await, json!({"prompt": "ab"}));
    let rendered = ask(&server, "/v1/chat/completions/render", chat).await;
    assert_eq!(rendered, json!({"prompt": "ab", "prompt_token_ids": [97, 98], "count": 2}));
    let metrics = server.get("/metrics").await.body;
    assert!(!metrics.contains("pelton_requests_total{"), "nothing was generated: {metrics}");
}

#[tokio::test]
async fn the_template_writes_the_special_tokens_unless_the_request_wants_more() {
    let server = start(opening_parrot()).await;
    let mut chat = json!({"messages": [{"role": "user", "content": "ab"}]});
    for (adds, expected) in
        [(None, vec![97, 98]), (Some(false), vec![97, 98]), (Some(true), vec![257, 97, 98])]
    {
        if let Some(adds) = adds {
            chat["add_special_tokens"] = json!(adds);
        }
        for path in ["/v1/chat/completions/render", "/tokenize"] {
            let answer = ask(&server, path, chat.clone()).await;
            let tokens = answer.get("prompt_token_ids").unwrap_or(&answer["tokens"]);
            assert_eq!(tokens, &json!(expected), "{path}: {chat}");
        }
    }
    // A text has no template that writes them.
    let text = ask(&server, "/tokenize", json!({"prompt": "ab"})).await;
    assert_eq!(text["tokens"], json!([257, 97, 98]));
}

#[tokio::test]
async fn the_tokenizer_is_described() {
    let server = start(parrot()).await;
    let info = server.get("/tokenizer_info").await.json();
    assert_eq!((&info["model"], &info["vocab_size"]), (&json!("org/parrot"), &json!(257)));
    assert_eq!((&info["end_token_ids"], &info["fills_gaps"]), (&json!([256]), &json!(false)));
    assert_eq!(info["chat_template"], "{{ messages[-1].content }}");
    assert_eq!(server.get("/tokenizer_info?model=other").await.status, 404);
    let server = start(coding_parrot()).await;
    assert_eq!(server.get("/tokenizer_info").await.json()["fills_gaps"], true);
}

#[tokio::test]
async fn every_refusal_names_its_parameter() {
    let server = start(parrot()).await;
    for (path, param, body) in [
        ("/tokenize", "prompt", json!({})),
        ("/tokenize", "prompt", json!({"prompt": 1})),
        ("/tokenize", "content", json!({"prompt": "a", "content": "a"})),
        ("/tokenize", "with_pieces", json!({"prompt": "a", "with_pieces": true})),
        ("/tokenize", "messages", json!({"messages": []})),
        (
            "/tokenize",
            "chat_template",
            json!({
            "messages": [{"role": "user", "content": "a"}], "chat_template": "x"}),
        ),
        ("/detokenize", "tokens", json!({})),
        ("/detokenize", "tokens", json!({"tokens": [257]})),
        ("/detokenize", "tokens", json!({"tokens": ["a"]})),
        ("/detokenize", "model", json!({"tokens": [], "model": "other"})),
        ("/apply-template", "messages", json!({"prompt": "a"})),
        (
            "/apply-template",
            "nonsense",
            json!({
            "messages": [{"role": "user", "content": "a"}], "nonsense": 1}),
        ),
    ] {
        let answer = server.post(path, body.clone()).await;
        assert!(answer.status == 400 || param == "model", "{body}: {}", answer.body);
        assert_eq!(answer.error().1.as_deref(), Some(param), "{path} {body}: {}", answer.body);
    }
}
