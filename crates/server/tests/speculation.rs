//! Wishes of requests about drafts, and what is counted of them.

use crate::harness::parrot::{CONTEXT, Gate, drafting_parrot, parrot};
use crate::harness::{self, Running, health_until, start};
use pelton_base::Drafting;
use pelton_llm::{SpecConfig, SpecMethod};
use serde_json::{Value, json};

/// A server that verifies whatever the longest match in the session offers.
async fn drafting(gate: &Gate) -> Running {
    let (method, is_forced) = (SpecMethod::Suffix, true);
    let spec = SpecConfig { method, is_forced, max_drafts: 4, ..SpecConfig::default() };
    start(drafting_parrot(gate, 64, spec)).await
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "abcdefgh"}], "max_tokens": 16});
    for (name, value) in more.as_object().expect("object") {
        body[name] = value.clone();
    }
    body
}

fn counted(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().expect("a count");
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

#[tokio::test]
async fn a_request_says_how_far_its_tokens_are_guessed() {
    let gate = Gate::default();
    let server = drafting(&gate).await;
    let all = |most, by| Drafting { most, by, always: false };
    for (sent, expected) in [
        (json!({}), all(None, None)),
        (json!({"method": "auto", "max_drafts": 3}), all(Some(3), None)),
        (json!({"method": "suffix"}), all(None, Some("suffix"))),
        (json!({"method": "off"}), all(Some(0), None)),
        (json!({"max_drafts": 0}), all(Some(0), None)),
    ] {
        let completion = json!({"prompt": "abc", "max_tokens": 2, "speculation": sent});
        assert_eq!(server.complete(completion).await.status, 200);
        assert_eq!(server.chat(chat(json!({"speculation": sent}))).await.status, 200);
        for request in &gate.heard()[gate.heard().len() - 2..] {
            assert_eq!(request.ask.service.drafting, expected, "{sent}");
        }
    }
    let plain = server.chat(chat(json!({"speculation": {"method": "off"}}))).await.json();
    let guessed = server.chat(chat(json!({}))).await.json();
    assert_eq!(plain["choices"], guessed["choices"]);
    assert_eq!(counted(&plain), (0, 0));
    assert!(counted(&guessed).0 > 0, "{guessed}");
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_guessed_by_is_refused_by_name() {
    let gate = Gate::default();
    let server = drafting(&gate).await;
    for (param, sent) in [
        ("speculation", json!("off")),
        ("speculation.method", json!({"method": "magic"})),
        ("speculation.method", json!({"method": 1})),
        ("speculation.method", json!({"method": "draft"})),
        ("speculation.max_drafts", json!({"max_drafts": -1})),
        ("speculation.max_drafts", json!({"max_drafts": "many"})),
        ("speculation.max_drafts", json!({"method": "off", "max_drafts": 2})),
        ("speculation.most", json!({"most": 2})),
    ] {
        let answer = server.chat(chat(json!({"speculation": sent}))).await;
        let (status, named, _) = answer.error();
        assert_eq!((status, named.as_deref()), (400, Some(param)), "{sent}");
    }
    let sent = json!({"prompt": "a", "speculation": {"method": "magic"}});
    let body = server.complete(sent).await.body;
    for method in SpecMethod::ALL {
        assert!(body.contains(method.name()), "{} is missing in {body}", method.name());
    }
    let sent = json!({"prompt": "a", "speculation": {"method": "draft"}});
    let body = server.complete(sent).await.body;
    assert!(
        body.contains("`draft` was not loaded") && body.contains("off, auto, suffix"),
        "{body}"
    );
    assert!(gate.heard().is_empty(), "nothing was computed");
    server.stop().await;
}

#[tokio::test]
async fn a_prediction_is_taken_up_where_it_is_right_and_changes_no_answer() {
    let gate = Gate::default();
    let server = drafting(&gate).await;
    let prediction = |content: Value| json!({"type": "content", "content": content});
    // The parrot says `abcdefghabcdefgh`; nothing in the session tells that it begins so.
    let right = json!([{"type": "text", "text": "abcdef"}, {"type": "text", "text": "ghab"}]);
    let off = json!({"method": "off"});
    let plain = server.chat(chat(json!({"speculation": off}))).await.json();
    for content in [right.clone(), json!("nothing of it"), json!("")] {
        let answer = server.chat(chat(json!({"prediction": prediction(content)}))).await.json();
        assert_eq!(answer["choices"], plain["choices"]);
    }
    let heard = gate.heard();
    let text = |i: usize| {
        let tokens = heard[i].ask.prediction.iter().map(|token| token.0 as u8);
        String::from_utf8(tokens.collect()).expect("a byte per token")
    };
    assert_eq!([text(1), text(2), text(3)], ["abcdefghab", "nothing of it", ""]);
    let first = json!({"prediction": prediction(right), "max_tokens": 6});
    let answer = server.chat(chat(first)).await.json();
    // One token, then four guesses that are right and one token more.
    assert_eq!(counted(&answer), (4, 0), "{answer}");

    let long = json!({"prediction": prediction(json!("x".repeat(CONTEXT + 1)))});
    assert_eq!(server.chat(chat(long)).await.error().1.as_deref(), Some("prediction"));
    let longer = json!({"prediction": prediction(json!("x".repeat(1 << 16)))});
    assert_eq!(server.chat(chat(longer)).await.error().1.as_deref(), Some("prediction"));
    server.stop().await;

    let server = start(parrot()).await;
    let content = json!({"prediction": prediction(json!("abcdef"))});
    let answer = server.chat(chat(content)).await;
    assert_eq!(answer.status, 200, "nobody guesses here, which is no error: {}", answer.body);
    assert_eq!(counted(&answer.json()), (0, 0));
    server.stop().await;
}

#[tokio::test]
async fn metrics_tell_guesses_by_place() {
    let gate = Gate::default();
    let server = drafting(&gate).await;
    let prediction = json!({"type": "content", "content": "abcdefghabcdefgh"});
    // One token; four guesses and one token more.
    let body = chat(json!({"prediction": prediction, "max_tokens": 6}));
    assert_eq!(counted(&server.chat(body).await.json()), (4, 0));
    // The figures of the last step are published a moment after its tokens.
    health_until(&server, |health| health["running"] == 0 && health["waiting"] == 0).await;
    let metrics = server.get("/metrics").await.body;
    let value = |series: &str| -> f64 {
        harness::series(&metrics, series).unwrap_or_else(|| panic!("no {series} in\n{metrics}"))
    };
    for kind in ["draft", "accepted"] {
        for position in 1..=4 {
            let name = format!("pelton_spec_position_{kind}_tokens_total");
            let series = format!("{name}{{position=\"{position}\"}}");
            assert_eq!(value(&series), 1.0, "{series}");
        }
    }
    assert!(!metrics.contains("position=\"5\""), "{metrics}");
    // vLLM counts positions from 0.
    let accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"3\"}";
    assert_eq!((value(accepted), value("vllm:spec_decode_num_drafts_total")), (1.0, 1.0));
    assert_eq!(value("pelton_spec_verified_rows_total"), 1.0);
    assert_eq!(value("pelton_spec_tokens_per_step"), 5.0);
    assert!(value("pelton_spec_draft_seconds_total") > 0.0);
    assert!(value("pelton_spec_saved_seconds").is_finite());
    server.stop().await;
}
