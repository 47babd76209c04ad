//! Rules that choose the model of a request, over HTTP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::harness::loading::{Parrots, spec};
use crate::harness::parrot::Gate;
use crate::harness::{Answer, Running, post_text, series, start_models};
use pelton_server::{
    Access, ApiKey, AutoRule, Catalog, Condition, DegradeRule, Routing, ServeConfig, Tenant,
};
use serde_json::{Value, json};

fn rule(to: &str, when: Condition) -> AutoRule {
    AutoRule { to: to.to_owned(), when }
}

/// A server of the models `a`, `b` and `c` under these rules.
async fn server(routing: Routing, config: ServeConfig) -> (Running, [Arc<Parrots>; 3]) {
    let loaders: [Arc<Parrots>; 3] = std::array::from_fn(|_| Arc::default());
    let [a, b, c] = &loaders;
    let models = vec![spec("a", a), spec("b", b), spec("c", c)];
    let catalog = Catalog::new(models, None).expect("names differ").routed(routing);
    (start_models(catalog, config).await, loaders)
}

/// The header that names the rule.
fn routed(answer: &Answer) -> Option<&str> {
    answer.head.lines().find_map(|line| line.strip_prefix("x-pelton-routed: "))
}

/// The request with a key.
fn signed(request: &str, key: &str) -> String {
    request.replacen("\r\n", &format!("\r\nauthorization: Bearer {key}\r\n"), 1)
}

/// Waits until so many requests have no token yet.
async fn waiting(server: &Running, n: usize) {
    let ask = "GET /v1/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let come = async {
        while server.raw(&signed(ask, "sk-red")).await.json()["total"]["waiting"] != n {
            tokio::task::yield_now().await;
        }
    };
    let hang = Duration::from_secs(60);
    tokio::time::timeout(hang, come).await.unwrap_or_else(|_| panic!("{n} requests never wait"));
}

fn tool() -> Value {
    json!({"name": "ping", "parameters": {"type": "object", "properties": {}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_is_the_model_of_the_first_rule_that_fits_in_every_dialect() {
    let all = Condition::default;
    let auto = vec![
        rule("c-alias", Condition { tools: Some(true), ..all() }),
        rule("b", Condition { min_characters: Some(20), ..all() }),
        rule("b", Condition { min_turns: Some(2), ..all() }),
        rule("a", all()),
    ];
    let (server, _) = server(Routing { auto, ..Routing::default() }, ServeConfig::default()).await;
    let (short, long) = ("abc", "abcdefghijklmnopqrstuvwxyz");
    let chat = |texts: &[&str]| {
        let turns = texts.iter().map(|text| json!({"role": "user", "content": text}));
        let between = json!({"role": "assistant", "content": "yes"});
        let mut messages: Vec<Value> = turns.flat_map(|turn| [turn, between.clone()]).collect();
        messages.pop();
        json!({"model": "auto", "messages": messages, "max_tokens": 2})
    };
    let with = |mut body: Value, key: &str, value: Value| {
        body[key] = value;
        body
    };
    let function = json!([{"type": "function", "function": tool()}]);
    let flat = json!([{"type": "function", "name": "ping", "parameters": tool()["parameters"]}]);
    let claude = json!([{"name": "ping", "input_schema": tool()["parameters"]}]);
    let input = |text: &str| json!({"model": "auto", "input": text, "max_output_tokens": 2});
    let prompt = |text: &str| json!({"model": "auto", "prompt": text, "max_tokens": 2});
    for (path, body, model, index) in [
        ("/v1/completions", prompt(short), "a", 3),
        ("/v1/completions", prompt(long), "b", 1),
        ("/v1/chat/completions", chat(&[short]), "a", 3),
        ("/v1/chat/completions", chat(&[long]), "b", 1),
        ("/v1/chat/completions", chat(&[short, short]), "b", 2),
        ("/v1/chat/completions", with(chat(&[short]), "tools", function), "c", 0),
        ("/v1/messages", chat(&[short]), "a", 3),
        ("/v1/messages", chat(&[long]), "b", 1),
        ("/v1/messages", with(chat(&[short]), "tools", claude), "c", 0),
        ("/v1/responses", input(short), "a", 3),
        ("/v1/responses", input(long), "b", 1),
        ("/v1/responses", with(input(short), "tools", flat), "c", 0),
    ] {
        let answer = server.post(path, body).await;
        let by = routed(&answer).unwrap_or_else(|| panic!("{path}: {}", answer.body));
        assert!(by.starts_with("auto to ") && by.ends_with(&format!("auto[{index}]")), "{by}");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.json()["model"], model, "{path}");
    }
    // A history counts as well as the new turn.
    let first = server.post("/v1/responses", input(short)).await.json();
    let next = with(input(short), "previous_response_id", first["id"].clone());
    let next = server.post("/v1/responses", next).await;
    assert_eq!(next.json()["model"], "b", "{}", next.body);
    for (path, mut body) in
        [("/v1/messages/count_tokens", chat(&[long])), ("/v1/responses/input_tokens", input(long))]
    {
        body.as_object_mut().expect("an object").retain(|key, _| !key.starts_with("max_"));
        let answer = server.post(path, body).await;
        assert_eq!(routed(&answer), Some("auto to b by auto[1]"), "{path}: {}", answer.body);
    }
    let list = server.get("/v1/models").await.json();
    let ids = list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone());
    assert_eq!(ids.collect::<Vec<_>>(), ["a", "b", "c", "auto"]);
    assert_eq!(server.get("/v1/models/auto").await.json()["state"], "rules");
    let metrics = server.get("/metrics").await.body;
    let chosen = r#"pelton_routed_requests_total{rule="auto[0]",from="auto",model="c-alias"}"#;
    assert_eq!(series(&metrics, chosen), Some(3.0), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_needs_rules_and_texts() {
    let auto = vec![rule("a", Condition::default())];
    let (server, _) = server(Routing { auto, ..Routing::default() }, ServeConfig::default()).await;
    for (key, value) in [
        ("prompt", json!([1, 2, 3])),
        ("logit_bias", json!({"3": -100})),
        ("stop_token_ids", json!([1])),
        ("allowed_token_ids", json!([1])),
    ] {
        let mut body = json!({"model": "auto", "prompt": "abc", "max_tokens": 2});
        body[key] = value;
        let refused = server.complete(body.clone()).await;
        assert_eq!(refused.error().0, 400, "{key}: {}", refused.body);
        assert!(refused.body.contains("token ids") && refused.body.contains("`auto`"), "{key}");
        body["model"] = json!("a");
        let named = server.complete(body).await;
        assert_eq!((named.status, routed(&named)), (200, None), "{key}: {}", named.body);
    }
    let chat = json!({"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2});
    let response = json!({"input": "abc", "max_output_tokens": 2});
    for (path, mut body) in [("/v1/chat/completions", chat), ("/v1/responses", response)] {
        (body["model"], body["logit_bias"]) = (json!("auto"), json!({"3": -100}));
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.error().0, 400, "{path}: {}", refused.body);
        body["model"] = json!("a");
        assert_eq!(server.post(path, body).await.status, 200, "{path}");
    }
    // No rule chose a model for a request that was refused.
    let metrics = server.get("/metrics").await.body;
    let chosen = r#"pelton_routed_requests_total{rule="auto[0]",from="auto",model="a"}"#;
    assert_eq!(series(&metrics, chosen), Some(0.0), "{metrics}");
    // Vectors of different models cannot be compared, so no rule chooses among those.
    let body = json!({"model": "auto", "input": "abc"});
    assert_eq!(server.post("/v1/embeddings", body).await.error().0, 404);
    server.stop().await;

    let (server, _) = self::server(Routing::default(), ServeConfig::default()).await;
    let body = json!({"model": "auto", "prompt": "abc", "max_tokens": 2});
    assert_eq!(server.complete(body).await.error().0, 404);
    assert!(!server.get("/metrics").await.body.contains("routed_requests"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_class_move_while_their_model_has_too_much_to_do() {
    let keys = |key: &str| vec![ApiKey::new(key).expect("a key")];
    let tenant =
        |name: &str, key: &str| Tenant { name: name.to_owned(), priority: 0, keys: keys(key) };
    let access = Access::new(vec![tenant("default", "sk-red metrics"), tenant("blue", "sk-blue")]);
    let config = ServeConfig { access: access.expect("two tenants"), ..ServeConfig::default() };
    let degrade = vec![DegradeRule {
        from: "a-alias".to_owned(),
        to: "b".to_owned(),
        waiting_above: Some(1),
        headroom_below: None,
        when: Condition { tenants: vec!["blue".to_owned()], ..Condition::default() },
    }];
    let (server, [a, b, _]) = server(Routing { degrade, ..Routing::default() }, config).await;
    let gate = Gate::closed(0);
    *a.gate.lock().expect("no panic") = gate.clone();
    let ask =
        |key: &str, body: Value| signed(&post_text("/v1/completions", &body.to_string()), key);
    let body = json!({"model": "a", "prompt": "abc", "max_tokens": 2});
    let first: Vec<_> = (0..2).map(|_| server.raw_later(ask("sk-red", body.clone()))).collect();
    waiting(&server, 2).await;
    // `b` is not loaded, and is not loaded for this.
    let third = server.raw_later(ask("sk-blue", body.clone()));
    waiting(&server, 3).await;
    assert_eq!(b.n_loads.load(Ordering::SeqCst), 0);
    let of_b = json!({"model": "b", "prompt": "abc", "max_tokens": 2});
    assert_eq!(server.raw(&ask("sk-red", of_b)).await.status, 200);
    let moved = server.raw(&ask("sk-blue", body.clone())).await;
    assert_eq!(moved.status, 200, "{}", moved.body);
    assert_eq!(routed(&moved), Some("a-alias to b by degrade[0]"));
    assert_eq!(moved.json()["model"], "b", "the answer says who spoke");
    // Another tenant waits for the model that it asked for, and so do token ids, and what not every
    // model can do.
    let ids = json!({"model": "a", "prompt": [1, 2], "max_tokens": 2});
    let scored = json!({"model": "a", "prompt": "abc", "max_tokens": 2, "prompt_logprobs": 1});
    let others = [ask("sk-red", body.clone()), ask("sk-blue", ids), ask("sk-blue", scored)];
    let others: Vec<_> = others.map(|request| server.raw_later(request)).into_iter().collect();
    waiting(&server, 6).await;
    gate.open();
    for later in first.into_iter().chain([third]).chain(others) {
        let answer = later.await.expect("no panic");
        assert_eq!((&answer.json()["model"], routed(&answer)), (&json!("a"), None));
    }
    let calm = server.raw(&ask("sk-blue", body)).await;
    assert_eq!(calm.json()["model"], "a", "the load is over");
    server.stop().await;
}
