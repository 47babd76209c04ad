//! `GET /v1/requests/{id}/timeline`: the steps of a request that has ended.

use crate::harness::parrot::parrot;
use crate::harness::{Answer, Running, post_text, start, start_with};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde_json::{Value, json};

async fn ask(server: &Running, headers: &str, body: Value) -> Answer {
    let request = post_text("/v1/completions", &body.to_string());
    server.raw(&request.replacen("\r\n", &format!("\r\n{headers}"), 1)).await
}

async fn timeline(server: &Running, id: &str, headers: &str) -> Answer {
    let path = format!("/v1/requests/{id}/timeline");
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n");
    server.raw(&head).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_has_every_step_of_every_answer_in_order() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "abcdef", "max_tokens": 5, "n": 2, "temperature": 1, "seed": 3});
    assert_eq!(ask(&server, "x-request-id: mine-1\r\n", body).await.status, 200);
    let trace = timeline(&server, "mine-1", "").await.json();
    assert_eq!(trace["displayTimeUnit"], "ms");
    let other = &trace["otherData"];
    assert_eq!((&other["request_id"], &other["model"]), (&json!("mine-1"), &json!("org/parrot")));
    assert_eq!((&other["tenant"], &other["completion_tokens"]), (&json!("default"), &json!(10)));
    let events = trace["traceEvents"].as_array().expect("a list");
    let named = |name: &str| {
        let found = events.iter().filter(|event| event["name"] == name);
        found.cloned().collect::<Vec<Value>>()
    };
    let ts = |event: &Value| event["ts"].as_u64().expect("microseconds");
    let end = |event: &Value| ts(event) + event["dur"].as_u64().expect("microseconds");
    let one = |name: &str| named(name).pop().unwrap_or_else(|| panic!("no {name} in {trace}"));
    assert_eq!(ts(&one("arrival")), 0);
    assert_eq!(end(&one("queue")), ts(&one("prompt")));
    assert_eq!(end(&one("prompt")), ts(&one("first token")));
    assert_eq!(end(&one("answer")), ts(&one("end")));
    for row in [1, 2] {
        let mut steps: Vec<Value> =
            events.iter().filter(|e| e["tid"] == row && e["ph"] == "X").cloned().collect();
        steps.sort_by_key(&ts);
        assert_eq!(steps[0]["name"], "prefill", "{trace}");
        let tokens: u64 =
            steps.iter().map(|step| step["args"]["tokens"].as_u64().expect("a count")).sum();
        assert_eq!(tokens, 5, "{trace}");
        assert!(steps[1..].iter().all(|step| step["name"] == "decode"), "{trace}");
        assert!(steps.windows(2).all(|pair| end(&pair[0]) <= ts(&pair[1])), "{trace}");
        assert!(end(&steps[steps.len() - 1]) <= ts(&one("end")), "{trace}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_timeline_is_its_tenants_own() {
    let tenant = |name: &str, key: &str| Tenant {
        name: name.to_owned(),
        priority: 0,
        keys: vec![ApiKey::new(key).expect("a key")],
    };
    let access = Access::new(vec![tenant("default", "sk-d"), tenant("blue", "sk-b metrics")]);
    let access = access.expect("they fit together");
    let server = start_with(parrot(), ServeConfig { access, ..ServeConfig::default() }).await;
    let own = "authorization: Bearer sk-d\r\n";
    let body = json!({"prompt": "abc", "max_tokens": 2});
    let asked = ask(&server, &format!("{own}x-request-id: a\r\n"), body).await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    assert_eq!(timeline(&server, "a", own).await.status, 200);
    for (id, headers) in [("a", "authorization: Bearer sk-b\r\n"), ("b", own)] {
        let error = timeline(&server, id, headers).await.error();
        assert_eq!((error.0, error.2.as_deref()), (404, Some("request_not_found")), "{id}");
    }
    assert_eq!(timeline(&server, "a", "").await.status, 401);
    server.stop().await;
}
