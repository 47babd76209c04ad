//! `GET /v1/live`: what the server does at this moment, and who may see it.

use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{Running, post_text, start, start_with};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

fn with_tenants(tenants: &[(&str, &[&str])]) -> ServeConfig {
    let tenant = |(name, keys): &(&str, &[&str])| Tenant {
        name: (*name).to_owned(),
        priority: 0,
        keys: keys.iter().map(|key| ApiKey::new(key).expect("a key")).collect(),
    };
    let access = Access::new(tenants.iter().map(tenant).collect()).expect("they fit together");
    ServeConfig { access, ..ServeConfig::default() }
}

async fn live(server: &Running, headers: &str) -> Value {
    let request =
        format!("GET /v1/live HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n");
    server.raw(&request).await.json()
}

async fn live_until(server: &Running, expected: impl Fn(&Value) -> bool) -> Value {
    loop {
        let live = live(server, "").await;
        if expected(&live) {
            return live;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_runs_and_ends_before_the_eyes_of_the_operator() {
    let gate = Gate::closed(0);
    let server = start(gated_parrot(&gate, 64)).await;
    let idle = live(&server, "").await;
    assert_eq!((&idle["status"], &idle["view"]), (&json!("ok"), &json!("all")));
    assert_eq!(idle["total"]["ttft_seconds"], Value::Null, "without an answer there is no time");

    let body = json!({"prompt": "abc", "max_tokens": 40, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    live_until(&server, |l| l["total"]["waiting"] == 1).await;
    while live(&server, "").await["total"]["running"] != 1 {
        gate.step_once();
    }
    gate.open();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    let done = live_until(&server, |l| {
        l["total"]["ended"]["length"] == 1 && l["models"][0]["engine"]["running"] == 0
    })
    .await;
    let total = &done["total"];
    assert_eq!((&total["running"], &total["waiting"]), (&json!(0), &json!(0)));
    assert_eq!((&total["prompt_tokens"], &total["generated_tokens"]), (&json!(3), &json!(40)));
    for times in ["ttft_seconds", "tpot_seconds", "e2e_seconds", "queue_seconds"] {
        assert_eq!(total[times]["n"], 1, "{times}: {total}");
        assert!(total[times]["p99"].as_f64() > Some(0.0), "{times}: {total}");
    }
    let model = &done["models"][0];
    assert_eq!((&model["name"], &model["kind"]), (&json!("org/parrot"), &json!("text")));
    assert_eq!(model["generated_tokens"], 40);
    assert!(model["engine"]["step"]["steps"].as_u64() >= Some(40), "{model}");
    assert!(model["engine"]["kv"]["blocks"].as_u64() > Some(0), "{model}");
    assert_eq!(done["tenants"][0]["name"], "default");
    assert_eq!(done["total"]["history"]["generated_tokens"].as_array().map(Vec::len), Some(60));
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_requests_alone() {
    let config = with_tenants(&[
        ("default", &[]),
        ("blue", &["sk-b"]),
        ("red", &["sk-r", "sk-ops metrics"]),
    ]);
    let server = start_with(parrot(), config).await;
    for (key, n) in [("sk-b", 2), ("sk-r", 5)] {
        let body = json!({"prompt": "abc", "max_tokens": n}).to_string();
        let head = format!("\r\nauthorization: Bearer {key}\r\n");
        let request = post_text("/v1/completions", &body).replacen("\r\n", &head, 1);
        assert_eq!(server.raw(&request).await.status, 200);
    }
    let own = live(&server, "authorization: Bearer sk-b\r\n").await;
    assert_eq!((&own["view"], &own["total"]["generated_tokens"]), (&json!("tenant"), &json!(2)));
    assert_eq!(own["models"][0]["generated_tokens"], 2);
    assert_eq!(own["models"][0]["engine"], Value::Null, "the engine works for all tenants");
    assert!(!own.to_string().contains("red"), "{own}");
    let all = live(&server, "authorization: Bearer sk-ops\r\n").await;
    assert_eq!((&all["view"], &all["total"]["generated_tokens"]), (&json!("all"), &json!(7)));
    let names: Vec<_> = all["tenants"].as_array().expect("a list").iter().collect();
    assert_eq!(
        (names.len(), &names[0]["name"], &names[1]["name"]),
        (2, &json!("blue"), &json!("red"))
    );
    assert_eq!(server.get("/v1/live").await.status, 401);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_a_snapshot_a_second_and_ends_when_the_server_drains() {
    let server = start(parrot()).await;
    let stream =
        server.connect("GET /v1/live?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut lines = BufReader::new(stream).lines();
    let mut times = Vec::new();
    while times.len() < 2 {
        let line = lines.next_line().await.expect("a line").expect("it goes on");
        if let Some(data) = line.strip_prefix("data: ") {
            let snapshot: Value = serde_json::from_str(data).expect("JSON");
            times.push(snapshot["time"].as_f64().expect("seconds"));
        }
    }
    let apart = times[1] - times[0];
    assert!((0.5..30.0).contains(&apart), "{apart} s from one snapshot to the next");
    server.signals.send();
    let (mut last, mut is_whole) = (String::new(), false);
    while let Some(line) = lines.next_line().await.expect("a line") {
        if line == "0" {
            is_whole = true;
            break;
        }
        if line.starts_with("data: ") {
            last = line;
        }
    }
    assert!(is_whole, "the stream was cut off after {last}");
    assert!(last.contains("\"status\":\"draining\""), "{last}");
    server.task.await.expect("stopped").expect("asked to stop");
}

#[tokio::test]
async fn an_unknown_parameter_of_the_query_is_named() {
    let server = start(parrot()).await;
    let error = server.get("/v1/live?steam=true").await.error();
    assert_eq!((error.0, error.1.as_deref()), (400, Some("steam")));
    server.stop().await;
}
