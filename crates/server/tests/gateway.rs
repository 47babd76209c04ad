//! Keys of a key file, limits, quotas and usage, over the wire.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use crate::harness::house::{House, get, header, request};
use crate::harness::parrot::parrot;
use crate::harness::{Answer, Running};
use pelton_gateway::{Limit, Limits, Scope, Scopes, SecretHash};
use pelton_server::{GatewayConfig, KeysError, ServeConfig, Server, UsageFile, change_keys};
use serde_json::{Value, json};

async fn complete(server: &Running, key: &str, body: Value) -> Answer {
    server.raw(&request("POST", "/v1/completions", key, &body.to_string())).await
}

/// Three prompt tokens and `max_tokens` of an answer.
fn ask(max_tokens: usize) -> Value {
    json!({"prompt": "abc", "max_tokens": max_tokens})
}

fn used(server_usage: &Value) -> u64 {
    let total = &server_usage["total"];
    let n = |name: &str| total[name].as_u64().expect("a number");
    n("prompt_tokens") + n("completion_tokens")
}

#[tokio::test]
async fn a_key_opens_what_its_scopes_say_until_it_expires_or_is_revoked() {
    let house = House::new();
    house.add("user", |_| {});
    house.add("metrics", |key| key.scopes = Scopes::of(&[Scope::Metrics]));
    house.add("admin", |key| key.scopes = Scopes::of(&[Scope::Admin]));
    house.add("old", |key| key.expires = Some(1000));
    house.add("gone", |key| key.revoked = Some(1000));
    let server = house.serve().await;
    for (key, models, metrics) in
        [("user", 200, 200), ("metrics", 403, 200), ("admin", 200, 200), ("wrong", 401, 401)]
    {
        assert_eq!(get(&server, "/v1/models", key).await.status, models, "{key}");
        assert_eq!(get(&server, "/metrics", key).await.status, metrics, "{key}");
        assert_eq!(get(&server, "/health", key).await.status, 200, "{key}");
    }
    for (key, code) in [("old", "expired_api_key"), ("gone", "revoked_api_key")] {
        let answer = get(&server, "/v1/models", key).await;
        assert_eq!(answer.error(), (401, None, Some(code.to_owned())));
        assert_eq!(get(&server, "/health", key).await.status, 200, "{key}");
    }
    assert!(get(&server, "/metrics", "metrics").await.body.contains("pelton_build_info"));
    assert!(!get(&server, "/metrics", "user").await.body.contains("pelton_build_info"));
    for (key, view) in [("metrics", "all"), ("user", "tenant")] {
        let live = get(&server, "/v1/live", key).await;
        assert_eq!((live.status, &live.json()["view"]), (200, &json!(view)), "{key}");
    }
    // A new key opens the door without a restart, and a revoked one does so no more.
    house.add("new", |_| {});
    change_keys(&house.keys(), |file| {
        file.key_mut("user").expect("it is there").revoked = Some(2000);
        Ok::<(), KeysError>(())
    })
    .expect("revoked");
    while get(&server, "/v1/models", "new").await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(get(&server, "/v1/models", "user").await.status, 401);
    // A broken file changes nothing.
    std::fs::write(house.keys(), "no keys\n").expect("written");
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(get(&server, "/v1/models", "new").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_cannot_be_used_keeps_no_revoked_key_alive() {
    let house = House::new();
    house.add("leaked", |_| {});
    house.add("fine", |_| {});
    let server = house.serve().await;
    assert_eq!(get(&server, "/v1/models", "leaked").await.status, 200);
    house.add("lost", |key| key.tenant = "nowhere".to_owned());
    let revoke = |id: &str| {
        change_keys(&house.keys(), |file| {
            file.key_mut(id).expect("it is there").revoked = Some(2000);
            Ok::<(), KeysError>(())
        })
        .expect("revoked");
    };
    revoke("leaked");
    while get(&server, "/v1/models", "leaked").await.status != 401 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for (key, status) in [("fine", 200), ("lost", 401)] {
        assert_eq!(get(&server, "/v1/models", key).await.status, status, "{key}");
    }
    server.stop().await;
    // A server that starts names it; one that is revoked does not matter.
    let refused = Server::bind(parrot(), house.config()).await.expect_err("no such tenant");
    assert!(refused.to_string().contains("`lost`"), "{refused}");
    revoke("lost");
    let server = house.serve().await;
    let code = Some("revoked_api_key".to_owned());
    assert_eq!(get(&server, "/v1/models", "lost").await.error(), (401, None, code));
    server.stop().await;
}

#[tokio::test]
async fn a_slow_key_works_and_a_flood_of_guesses_delays_no_health_check() {
    let house = House::new();
    house.add("slow", |key| key.hash = SecretHash::slow("pelton_slow_secret", [5; 16]));
    house.add("fast", |_| {});
    let server = house.serve().await;
    assert_eq!(get(&server, "/v1/models", "slow").await.status, 200);
    let guess = |i: usize| {
        format!(
            "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             x-api-key: pelton_slow_{i}\r\n\r\n"
        )
    };
    let guesses: Vec<_> = (0..200).map(|i| server.raw_later(guess(i))).collect();
    for key in ["slow", "fast"] {
        assert_eq!(get(&server, "/health", key).await.status, 200);
        assert_eq!(get(&server, "/v1/models", key).await.status, 200);
    }
    let n_waiting = guesses.iter().filter(|guess| !guess.is_finished()).count();
    assert!(n_waiting > 0, "known keys and health checks wait for no guess");
    let mut n_refused = 0;
    for guess in guesses {
        match guess.await.expect("answered").status {
            429 => n_refused += 1,
            status => assert_eq!(status, 401),
        }
    }
    assert!(n_refused > 0, "more guesses than may wait");
    server.stop().await;
}

#[tokio::test]
async fn limits_per_minute_are_told_and_kept() {
    let house = House::new();
    house.limited("k", &[(Limit::RequestsPerMinute, 3), (Limit::TokensPerMinute, 30)]);
    let server = house.serve().await;
    let first = complete(&server, "k", ask(5)).await;
    assert_eq!(first.status, 200, "{}", first.body);
    for (name, value) in [
        ("x-ratelimit-limit-requests", "3"),
        ("x-ratelimit-remaining-requests", "2"),
        ("x-ratelimit-limit-tokens", "30"),
        ("x-ratelimit-remaining-tokens", "22"),
    ] {
        assert_eq!(header(&first, name), Some(value), "{}", first.head);
    }
    assert!(header(&first, "x-ratelimit-reset-requests").expect("told").ends_with('s'));
    let too_long = complete(&server, "k", ask(20)).await;
    assert_eq!(too_long.error().2.as_deref(), Some("rate_limit_exceeded"), "{}", too_long.body);
    assert!(header(&too_long, "retry-after").is_some());
    let never = complete(&server, "k", ask(40)).await;
    assert_eq!((never.status, header(&never, "x-should-retry")), (429, Some("false")));
    assert_eq!(header(&never, "retry-after"), None);
    let fourth = complete(&server, "k", ask(1)).await;
    let wait: u64 = header(&fourth, "retry-after").expect("told").parse().expect("seconds");
    assert!(fourth.status == 429 && (1..=61).contains(&wait), "{wait} {}", fourth.body);
    assert!(fourth.json()["error"]["message"].as_str().expect("a text").contains("3 requests"));
    server.stop().await;
}

#[tokio::test]
async fn an_answer_without_a_stated_length_ends_where_the_quota_does() {
    let house = House::new();
    house.limited("k", &[(Limit::TokensTotal, 20)]);
    let server = house.serve().await;
    let chat = json!({"prompt": "abc", "min_tokens": 1, "max_tokens": 17});
    let answer = complete(&server, "k", chat).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 20);
    let refused = complete(&server, "k", ask(1)).await;
    assert_eq!(refused.error().2.as_deref(), Some("insufficient_quota"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_clients_of_one_key_use_its_quota_to_the_token_and_no_more() {
    let house = House::new();
    // 8 tokens each: 3 of the prompt, 5 of the answer.
    house.limited("k", &[(Limit::TokensPerDay, 1000), (Limit::TokensPerMinute, 100_000)]);
    let server = Arc::new(house.serve().await);
    let clients: Vec<_> = (0..64)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let mut n_answered = 0;
                for _ in 0..6 {
                    let answer = complete(&server, "k", ask(5)).await;
                    match answer.status {
                        200 => {
                            n_answered +=
                                answer.json()["usage"]["total_tokens"].as_u64().expect("n")
                        }
                        status => assert_eq!(status, 429, "{}", answer.body),
                    }
                }
                n_answered
            })
        })
        .collect();
    let mut n_tokens = 0;
    for client in clients {
        n_tokens += client.await.expect("it ends");
    }
    assert_eq!(n_tokens, 1000, "125 requests of 8 tokens fit");
    let usage = get(&server, "/v1/usage", "k").await.json();
    assert_eq!((used(&usage), &usage["total"]["requests"]), (1000, &125.into()));
    assert_eq!(usage["total"]["refused"], 64 * 6 - 125);
    Arc::into_inner(server).expect("no client is left").stop().await;
    // The quota outlives the server.
    let server = house.serve().await;
    assert_eq!(complete(&server, "k", ask(5)).await.status, 429);
    assert_eq!(used(&get(&server, "/v1/usage", "k").await.json()), 1000);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_reservation_back() {
    let house = House::new();
    house.limited("k", &[(Limit::TokensTotal, 1000), (Limit::ConcurrentRequests, 1)]);
    let server = house.serve().await;
    let body = json!({"prompt": "abc", "max_tokens": 900, "stream": true, "ignore_eos": true});
    let text = request("POST", "/v1/completions", "k", &body.to_string());
    drop(server.connect(&text).await);
    let answer = loop {
        let answer = complete(&server, "k", ask(50)).await;
        if answer.status == 200 {
            break answer;
        }
        assert_eq!(answer.status, 429);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(answer.json()["usage"]["completion_tokens"], 50);
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_fails_after_its_reservation_gives_it_back() {
    let house = House::new();
    house.limited("k", &[(Limit::TokensTotal, 100)]);
    let server = house.serve().await;
    for _ in 0..10 {
        let bad = json!({"prompt": "abc", "max_tokens": 50, "guided_regex": "("});
        let refused = complete(&server, "k", bad).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    assert_eq!(complete(&server, "k", ask(50)).await.status, 200, "nothing was used");
    server.stop().await;
}

#[tokio::test]
async fn usage_is_shown_to_its_owner_and_all_of_it_to_an_admin() {
    let house = House::new();
    house.add("a", |_| {});
    house.add("b", |key| key.tenant = "blue".to_owned());
    house.add("root", |key| key.scopes = Scopes::of(&[Scope::Admin]));
    let server = house.serve().await;
    for key in ["a", "a", "b"] {
        assert_eq!(complete(&server, key, ask(5)).await.status, 200);
    }
    let of_a = get(&server, "/v1/usage", "a").await.json();
    assert_eq!((of_a["data"].as_array().map(Vec::len), used(&of_a)), (Some(1), 16));
    assert_eq!((&of_a["data"][0]["key"], &of_a["data"][0]["requests"]), (&"a".into(), &2.into()));
    assert_eq!(get(&server, "/v1/usage?key=b", "a").await.status, 400);
    assert_eq!(get(&server, "/v1/usage?tenant=default", "b").await.status, 400);
    let all = get(&server, "/v1/usage", "root").await.json();
    assert_eq!((all["data"].as_array().map(Vec::len), used(&all)), (Some(2), 24));
    let csv = get(&server, "/v1/usage?format=csv&tenant=blue", "root").await;
    assert_eq!(header(&csv, "content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(csv.body.lines().count(), 2, "{}", csv.body);
    server.stop().await;
}

#[tokio::test]
async fn what_contradicts_is_named_before_the_server_listens() {
    let fails = async |config: ServeConfig, words: &[&str]| {
        let error = Server::bind(parrot(), config).await.expect_err("a contradiction").to_string();
        for word in words {
            assert!(error.contains(word), "{word} is missing: {error}");
        }
    };
    let house = House::new();
    fails(house.config(), &["keys"]).await;
    house.add("k", |key| key.tenant = "red".to_owned());
    fails(house.config(), &["`k`", "`red`", "`blue`"]).await;
    let house = House::new();
    house.limited("k", &[(Limit::TokensPerDay, 5)]);
    let without = GatewayConfig { usage_file: None, ..house.config().gateway };
    fails(ServeConfig { gateway: without, ..house.config() }, &["`k`", "--usage-file"]).await;
    let mut limits = Limits::default();
    limits.set(Limit::TokensTotal, NonZeroU64::new(5));
    let tenant_limits = vec![("blue".to_owned(), limits)];
    let of_tenant = GatewayConfig { tenant_limits, ..GatewayConfig::default() };
    fails(ServeConfig { gateway: of_tenant, ..house.config() }, &["`blue`", "--usage-file"]).await;
    let _open = UsageFile::open(Path::new(&house.usage())).expect("free");
    fails(house.config(), &["usage", "another process"]).await;
}
