//! Tenants and urgency of requests, keys, and what is counted.

use std::time::Duration;

use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{self, Answer, Running, health_until, post_text, start, start_with};
use pelton_base::TenantId;
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

fn tenant(name: &str, keys: &[&str]) -> Tenant {
    let keys = keys.iter().map(|key| ApiKey::new(key).expect("a key")).collect();
    Tenant { name: name.to_owned(), priority: if name == "blue" { 7 } else { 0 }, keys }
}

fn with_tenants(tenants: Vec<Tenant>) -> ServeConfig {
    let access = Access::new(tenants).expect("they fit together");
    ServeConfig { access, ..ServeConfig::default() }
}

/// A request with more in its head.
async fn ask(server: &Running, headers: &str, path: &str, body: Option<Value>) -> Answer {
    let request = match body {
        Some(body) => post_text(path, &body.to_string()),
        None => format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
    };
    server.raw(&request.replacen("\r\n", &format!("\r\n{headers}"), 1)).await
}

/// The value of a line of the metrics.
fn value(metrics: &str, series: &str) -> f64 {
    harness::series(metrics, series).unwrap_or_else(|| panic!("no {series} in\n{metrics}"))
}

#[tokio::test]
async fn priority_targets_and_salt_reach_the_engine_from_both_endpoints() {
    let gate = Gate::default();
    let server = start(gated_parrot(&gate, 64)).await;
    let fields = json!({"priority": -3, "slo": {"ttft_ms": 250, "tpot_ms": 12.5},
        "cache_salt": "pepper", "max_tokens": 2});
    let mut chat = fields.clone();
    chat["messages"] = json!([{"role": "user", "content": "abc"}]);
    let mut completion = fields;
    completion["prompt"] = json!("abc");
    assert_eq!(server.chat(chat).await.status, 200);
    assert_eq!(server.complete(completion).await.status, 200);
    assert_eq!(server.complete(json!({"prompt": "abc", "max_tokens": 2})).await.status, 200);
    let heard: Vec<_> = gate.heard().into_iter().map(|request| request.ask.service).collect();
    assert_eq!(heard[0], heard[1]);
    assert_eq!(heard[0].priority, -3);
    assert_eq!(heard[0].slo.ttft, Some(Duration::from_millis(250)));
    assert_eq!(heard[0].slo.tpot, Some(Duration::from_micros(12_500)));
    assert_ne!(heard[0].namespace, heard[2].namespace);
    assert_eq!(heard[2], pelton_base::ServiceParams::default(), "whoever asks for nothing");
    server.stop().await;
}

#[tokio::test]
async fn what_is_asked_of_the_scheduler_out_of_range_is_named() {
    let server = start(parrot()).await;
    for (param, name, bad) in [
        ("priority", "priority", json!(1.5)),
        ("priority", "priority", json!(1_u64 << 31)),
        ("priority", "priority", json!("high")),
        ("slo", "slo", json!(200)),
        ("slo.ttft_ms", "slo", json!({"ttft_ms": 0})),
        ("slo.ttft_ms", "slo", json!({"ttft_ms": 86_400_001})),
        ("slo.tpot_ms", "slo", json!({"tpot_ms": -1})),
        ("slo.tpot_ms", "slo", json!({"tpot_ms": "fast"})),
        ("slo.ttft", "slo", json!({"ttft": 1})),
        ("cache_salt", "cache_salt", json!("")),
        ("cache_salt", "cache_salt", json!("x".repeat(1025))),
        ("cache_salt", "cache_salt", json!(7)),
        ("service_tier", "service_tier", json!("priority")),
        ("best_of", "best_of", json!(129)),
    ] {
        let mut body = json!({"prompt": "abc"});
        body[name] = bad.clone();
        let error = server.complete(body).await.error();
        assert_eq!((error.0, error.1.as_deref()), (400, Some(param)), "{name}: {bad}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_best_of_several_are_kept_in_order_and_all_are_counted() {
    let server = start(parrot()).await;
    let body = json!({"prompt": ["abcdef", "uvwxyz"], "n": 2, "best_of": 4, "max_tokens": 2,
        "temperature": 1, "seed": 0});
    let answer = server.complete(body).await.json();
    let choice = |i: usize| {
        let choice = &answer["choices"][i];
        assert_eq!((&choice["index"], &choice["logprobs"]), (&json!(i), &Value::Null));
        choice["text"].as_str().expect("text").to_owned()
    };
    // The parrot's choices 0 and 3 are the likeliest, and begin so many letters later.
    assert_eq!([choice(0), choice(1), choice(2), choice(3)], ["ab", "de", "uv", "xy"]);
    assert!(answer["choices"].get(4).is_none());
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    server.stop().await;
}

#[tokio::test]
async fn cached_tokens_are_told_in_streams_and_in_one_piece_on_both_endpoints() {
    let server = start(parrot()).await;
    let chat = json!({"messages": [{"role": "user", "content": "hey!"}]});
    for (path, body) in
        [("/v1/chat/completions", chat), ("/v1/completions", json!({"prompt": "abc"}))]
    {
        let whole = server.post(path, body.clone()).await.json();
        assert!(whole["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64(), "{whole}");
        let mut streamed = body;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let chunks = server.post(path, streamed).await.chunks();
        let usage = &chunks.last().expect("usage")["usage"];
        assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64(), "{usage}");
        assert_eq!(usage["total_tokens"], whole["usage"]["total_tokens"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn with_keys_nobody_gets_in_without_one_but_to_health_and_readiness() {
    let config = with_tenants(vec![
        tenant("default", &[]),
        tenant("blue", &["sk-b"]),
        tenant("red", &["sk-r", "sk-ops metrics"]),
    ]);
    let gate = Gate::default();
    let server = start_with(gated_parrot(&gate, 64), config).await;
    let body = || Some(json!({"prompt": "abc", "max_tokens": 2}));
    for path in ["/v1/models", "/v1/nothing", "/metrics", "/version"] {
        let answer = ask(&server, "", path, None).await;
        assert_eq!(answer.error(), (401, None, Some("missing_api_key".to_owned())), "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
    }
    let answer = ask(&server, "authorization: Bearer sk-x\r\n", "/v1/completions", body()).await;
    assert_eq!(answer.error(), (401, None, Some("invalid_api_key".to_owned())));
    assert!(gate.heard().is_empty(), "nothing was computed");
    for path in ["/health", "/ready"] {
        assert_eq!(ask(&server, "", path, None).await.status, 200);
    }

    for (key, index, priority) in [("sk-b", 1, 7), ("sk-r", 2, 0)] {
        let headers = format!("Authorization: Bearer {key}\r\n");
        let answer = ask(&server, &headers, "/v1/completions", body()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let service = gate.heard().last().expect("heard").ask.service;
        assert_eq!((service.tenant, service.priority), (TenantId(index), priority));
    }
    let [blue, red] = [0, 1].map(|i| gate.heard()[i].ask.service.namespace);
    assert_ne!(blue, red, "tenants share no prefixes");
    let own = json!({"prompt": "abc", "max_tokens": 1, "priority": 1});
    ask(&server, "authorization: bearer sk-b\r\n", "/v1/completions", Some(own)).await;
    assert_eq!(gate.heard()[2].ask.service.priority, 1, "what a request says wins over its tenant");

    let metrics = ask(&server, "authorization: Bearer sk-ops\r\n", "/metrics", None).await.body;
    let refused = "pelton_requests_refused_total{tenant=\"default\",reason=\"invalid_api_key\"}";
    assert_eq!(value(&metrics, refused), 1.0);
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_series_and_a_key_with_the_scope_sees_the_load() {
    let config = with_tenants(vec![
        tenant("default", &[]),
        tenant("blue", &["sk-b"]),
        tenant("red", &["sk-r", "sk-ops metrics"]),
    ]);
    let server = start_with(parrot(), config).await;
    for key in ["sk-b", "sk-r"] {
        let headers = format!("authorization: Bearer {key}\r\n");
        let body = json!({"prompt": "abc", "max_tokens": 2});
        assert_eq!(ask(&server, &headers, "/v1/completions", Some(body)).await.status, 200);
    }
    let get = async |key: &str, path: &str| {
        ask(&server, &format!("authorization: Bearer {key}\r\n"), path, None).await
    };
    let own = get("sk-b", "/metrics").await.body;
    assert_eq!(value(&own, "pelton_e2e_request_latency_seconds_count{tenant=\"blue\"}"), 1.0);
    for line in own.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.contains("tenant=\"blue\""), "{line} is not of this tenant alone");
    }
    // The engine publishes its figures after a step, and so after the step's tokens.
    let all = loop {
        let all = get("sk-ops", "/metrics").await.body;
        if value(&all, "pelton_generation_tokens_total") >= 4.0 {
            break all;
        }
    };
    for tenant in ["blue", "red"] {
        let series = format!("pelton_e2e_request_latency_seconds_count{{tenant=\"{tenant}\"}}");
        assert_eq!(value(&all, &series), 1.0);
    }

    let only_status = json!({"status": "ok"});
    assert_eq!(server.get("/health").await.json(), only_status);
    for key in ["sk-b", "sk-wrong"] {
        assert_eq!(get(key, "/health").await.json(), only_status, "{key}");
    }
    assert_eq!(get("sk-ops", "/health").await.json()["generated_tokens"], 4);
    server.stop().await;
}

#[tokio::test]
async fn without_keys_a_header_names_the_tenant() {
    let config = with_tenants(vec![tenant("default", &[]), tenant("blue", &[])]);
    let gate = Gate::default();
    let server = start_with(gated_parrot(&gate, 64), config).await;
    let body = || Some(json!({"prompt": "abc", "max_tokens": 2}));
    for (headers, index) in [("", 0), ("X-Pelton-Tenant: blue\r\n", 1)] {
        let answer = ask(&server, headers, "/v1/completions", body()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(gate.heard().last().expect("heard").ask.service.tenant, TenantId(index));
    }
    let answer = ask(&server, "x-pelton-tenant: green\r\n", "/v1/completions", body()).await;
    assert_eq!(answer.error().0, 400);
    assert!(answer.body.contains("`default`, `blue`"), "{}", answer.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_of_answers_refusals_and_the_engine() {
    let gate = Gate::closed(0);
    let config = with_tenants(vec![tenant("default", &[]), tenant("blue", &[])]);
    let server = start_with(gated_parrot(&gate, 1), config).await;
    let blue = "x-pelton-tenant: blue\r\n";
    let body = json!({"prompt": "abc", "max_tokens": 3});
    // A request with more answers than may wait, and then another, while nothing goes on.
    let many = json!({"prompt": vec!["abc"; 64], "n": 16, "max_tokens": 2});
    let many = server.raw_later(post_text("/v1/completions", &many.to_string()));
    health_until(&server, |h| h["waiting"].as_u64() > Some(1)).await;
    let answer = ask(&server, blue, "/v1/completions", Some(body.clone())).await;
    assert_eq!(answer.error().2.as_deref(), Some("rate_limit_exceeded"));
    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    gate.open();
    assert_eq!(many.await.expect("no panic").status, 200);
    health_until(&server, |h| h["running"] == 0 && h["waiting"] == 0).await;
    for _ in 0..2 {
        assert_eq!(ask(&server, blue, "/v1/completions", Some(body.clone())).await.status, 200);
    }
    assert_eq!(server.complete(json!({"prompt": "hey!", "max_tokens": 99})).await.status, 200);
    // The engine publishes its figures after a step, and so after the step's tokens.
    health_until(&server, |h| h["generated_tokens"].as_u64() >= Some(11)).await;

    let answer = server.get("/metrics").await;
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    assert!(!answer.body.contains("# EOF"), "the older format has no end");
    let asked = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let answer = ask(&server, asked, "/metrics", None).await;
    assert!(answer.head.contains("content-type: application/openmetrics-text"), "{}", answer.head);
    let metrics = answer.body;
    assert!(metrics.ends_with("# EOF\n"));
    for (series, expected) in [
        ("pelton_request_success_total{tenant=\"blue\",finished_reason=\"length\"}", 2.0),
        ("pelton_request_success_total{tenant=\"default\",finished_reason=\"stop\"}", 1.0),
        ("pelton_requests_refused_total{tenant=\"blue\",reason=\"rate_limit_exceeded\"}", 1.0),
        ("pelton_time_to_first_token_seconds_count{tenant=\"blue\"}", 2.0),
        ("pelton_time_per_output_token_seconds_count{tenant=\"blue\"}", 2.0),
        ("pelton_e2e_request_latency_seconds_count{tenant=\"default\"}", 2.0),
        ("pelton_prefix_cache_queries_total{tenant=\"blue\"}", 6.0),
    ] {
        assert_eq!(value(&metrics, series), expected, "{series}");
    }
    for series in [
        "pelton_num_requests_running",
        "pelton_num_requests_waiting",
        "pelton_kv_cache_usage_ratio",
        "pelton_num_preemptions_total",
        "pelton_scheduler_step_seconds_total",
    ] {
        assert!(value(&metrics, series) >= 0.0, "{series}");
    }
    assert!(value(&metrics, "pelton_generation_tokens_total") >= 11.0);
    assert!(value(&metrics, "pelton_prompt_tokens_total") > 0.0);
    assert!(metrics.contains("model_name=\"org/parrot\""), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_waits_for_counts_as_aborted() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({"prompt": "abc", "max_tokens": 500, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    client.read_u8().await.expect("the answer begins");
    drop(client);
    health_until(&server, |h| {
        gate.step();
        h["running"] == 0 && h["waiting"] == 0
    })
    .await;
    let metrics = server.get("/metrics").await.body;
    let series = "pelton_request_success_total{tenant=\"default\",finished_reason=\"abort\"}";
    assert_eq!(value(&metrics, series), 1.0);
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_ready_until_it_drains_and_tells_its_version() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    assert_eq!(server.get("/ready").await.json(), json!({"status": "ready"}));
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let body = json!({"prompt": "abc", "max_tokens": 6, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    client.read_u8().await.expect("the answer begins");
    server.signals.send();
    health_until(&server, |h| h["status"] == "draining").await;
    let (health, ready) = (server.get("/health").await, server.get("/ready").await);
    assert_eq!(health.status, 200, "a monitor must not end a server that finishes its answers");
    assert_eq!((ready.status, ready.json()), (503, json!({"status": "not ready"})));
    gate.open();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    server.task.await.expect("stopped").expect("asked to stop");
}
