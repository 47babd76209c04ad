//! Clients that come and go, a full house, and the end of the server.

use std::time::Duration;

use crate::harness::parrot::{Gate, gated_parrot};
use crate::harness::{self, health_until, post_text, start, start_with};
use pelton_llm::{CompletionRequest, Generation, LlmError, Prompt};
use pelton_server::{ServeConfig, ServeError};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_frees_its_request() {
    for is_stream in [true, false] {
        let gate = Gate::closed(1);
        let llm = gated_parrot(&gate, 8);
        let server = start(llm.clone()).await;
        let body = json!({"prompt": "abc", "max_tokens": 500, "stream": is_stream});
        let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
        if is_stream {
            client.read_u8().await.expect("the answer begins");
        }
        health_until(&server, |h| h["running"] == 1).await;
        drop(client);
        // The engine hears of it between two steps; nobody has to wait for the answer's end.
        let freed = loop {
            gate.step();
            let health = server.get("/health").await.json();
            if health["running"] == 0 {
                break health;
            }
        };
        assert_eq!(freed["free_blocks"], freed["total_blocks"], "stream: {is_stream}");
        assert!(llm.metrics().generated_tokens < 250, "stream: {is_stream}");
        gate.open();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_after_what_it_has_read_frees_its_request() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({"prompt": "abc", "max_tokens": 500, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    // Nothing is left unread, so that its system sends no reset when it goes.
    let mut received = Vec::new();
    while !received.ends_with(b"}\n\n\r\n") {
        received.push(client.read_u8().await.expect("the answer begins"));
    }
    drop(client);
    let freed = loop {
        gate.step();
        let health = server.get("/health").await.json();
        if health["running"] == 0 {
            break health;
        }
    };
    assert_eq!(freed["free_blocks"], freed["total_blocks"]);
    assert!(freed["generated_tokens"].as_u64() < Some(250), "{freed}");
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_before_the_first_token_is_noticed() {
    let gate = Gate::closed(0);
    let config = ServeConfig { keep_alive: Duration::from_secs(3600), ..ServeConfig::default() };
    let server = start_with(gated_parrot(&gate, 8), config).await;
    let body = json!({"prompt": "abc", "max_tokens": 5, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("the answer begins"));
    }
    drop(client);
    // Nothing is computed meanwhile, and no comment line is due.
    let series = "pelton_request_success_total{tenant=\"default\",finished_reason=\"abort\"}";
    while harness::series(&server.get("/metrics").await.body, series) != Some(1.0) {}
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_will_send_no_more_gets_its_answer() {
    for is_stream in [true, false] {
        let gate = Gate::closed(1);
        let server = start(gated_parrot(&gate, 8)).await;
        let body = json!({"prompt": "abc", "max_tokens": 6, "stream": is_stream});
        let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
        client.shutdown().await.expect("its half is closed");
        health_until(&server, |h| h["running"] == 1).await;
        if !is_stream {
            // Before the answer begins the server asks whether the client is still there.
            let mut asked = [0; 25];
            client.read_exact(&mut asked).await.expect("an interim answer");
            assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        gate.open();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let last = if is_stream { "[DONE]" } else { "\"text\":\"abcabc\"" };
        assert!(answer.contains(last), "{answer}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_made_at_once_go_to_clients_that_will_send_no_more() {
    let server = start(gated_parrot(&Gate::default(), 8)).await;
    let cut_short = post_text("/v1/completions", "{}").replace("length: 2", "length: 3");
    for (request, status) in [
        ("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", "HTTP/1.1 200"),
        ("GET /health HTTP/1.0\r\n\r\n", "HTTP/1.0 200"),
        (&cut_short, "HTTP/1.1 400"),
    ] {
        let mut client = server.connect(request).await;
        client.shutdown().await.expect("its half is closed");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the answer");
        assert!(answer.starts_with(status), "{request}: {answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_that_goes_away_frees_its_request() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({"prompt": "abc", "max_tokens": 500});
    let request = post_text("/v1/completions", &body.to_string()).replacen("/1.1", "/1.0", 1);
    let client = server.connect(&request).await;
    health_until(&server, |h| h["running"] == 1).await;
    drop(client);
    let freed = health_until(&server, |h| {
        gate.step();
        h["running"] == 0
    });
    assert!(freed.await["generated_tokens"].as_u64() < Some(250));
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_is_429_with_a_time_to_try_again() {
    let gate = Gate::closed(0);
    let server = start(gated_parrot(&gate, 1)).await;
    let body = json!({"prompt": "abc", "max_tokens": 2, "stream": true}).to_string();
    let mut clients = Vec::new();
    let answer = loop {
        // A stream that is accepted answers its head at once; one that is not, in full.
        let mut client = server.connect(&post_text("/v1/completions", &body)).await;
        let mut head = [0; 12];
        client.read_exact(&mut head).await.expect("a status");
        if &head == b"HTTP/1.1 429" {
            let mut rest = String::new();
            client.read_to_string(&mut rest).await.expect("the rest");
            break rest.to_ascii_lowercase();
        }
        assert_eq!(&head, b"HTTP/1.1 200");
        clients.push(client);
        assert!(clients.len() < 40, "never full");
    };
    assert!(answer.contains("retry-after: 1"), "{answer}");
    assert!(answer.contains("rate_limit_exceeded"), "{answer}");
    drop(clients);
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_refuses_the_new_and_finishes_the_running() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({"prompt": "abc", "max_tokens": 6, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    client.read_u8().await.expect("the answer begins");
    server.signals.send();
    health_until(&server, |h| h["status"] == "draining").await;
    let refused = server.complete(json!({"prompt": "abc"})).await;
    assert_eq!(refused.error().0, 503);
    assert!(refused.head.contains("retry-after"));
    gate.open();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    server.task.await.expect("stopped").expect("asked to stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_and_the_time_limit_abort_what_is_running() {
    for by_signal in [true, false] {
        let gate = Gate::closed(1);
        let drain_timeout = if by_signal { Duration::from_secs(3600) } else { Duration::ZERO };
        let config = ServeConfig { drain_timeout, ..ServeConfig::default() };
        let llm = gated_parrot(&gate, 8);
        let server = start_with(llm.clone(), config).await;
        let body = json!({"prompt": "abc", "max_tokens": 500, "stream": true});
        let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
        client.read_u8().await.expect("the answer begins");
        server.signals.send();
        if by_signal {
            server.signals.send();
        }
        let probe = || CompletionRequest {
            prompts: vec![Prompt::Text("abc".to_owned())],
            generation: Generation::default(),
        };
        while !matches!(llm.complete(probe()), Err(LlmError::Stopped)) {
            tokio::task::yield_now().await;
        }
        gate.open();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.expect("the rest");
        assert!(!rest.contains("\"finish_reason\":\"length\""), "{rest}");
        assert!(rest.contains("shutting_down"), "{rest}");
        server.task.await.expect("stopped").expect("asked to stop");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_has_begun_to_arrive_is_let_in_before_a_drain() {
    let server = start(gated_parrot(&Gate::default(), 8)).await;
    let request =
        post_text("/v1/completions", &json!({"prompt": "abc", "max_tokens": 2}).to_string());
    let request = request.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    let (head, body) = request.split_at(request.find('{').expect("a body"));
    let mut client = server.connect(head).await;
    let mut go_on = [0; 25];
    client.read_exact(&mut go_on).await.expect("an interim answer");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.signals.send();
    health_until(&server, |h| h["status"] == "draining").await;
    client.write_all(body.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("the answer");
    assert!(answer.contains("200 OK") && answer.contains("\"text\":\"ab\""), "{answer}");
    server.task.await.expect("stopped").expect("asked to stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_cut_short_still_counts_its_tokens() {
    let gate = Gate::closed(2);
    let llm = gated_parrot(&gate, 8);
    let server = start(llm.clone()).await;
    let body = json!({"prompt": "abc", "max_tokens": 500, "stream": true,
        "stream_options": {"include_usage": true}});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    // The second token is there, so that the abort comes between two steps.
    let mut received = String::new();
    while received.matches("\"text\"").count() < 2 {
        received.push(char::from(client.read_u8().await.expect("the answer goes on")));
    }
    llm.shutdown(false);
    gate.open();
    client.read_to_string(&mut received).await.expect("the rest");
    let usage = received.find("\"completion_tokens\"").expect("usage");
    let error = received.find("shutting_down").expect("an error");
    assert!(usage < error && error < received.find("[DONE]").expect("an end"), "{received}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_engine_costs_its_requests_and_a_second_one_ends_the_server() {
    let server = start(gated_parrot(&Gate::default(), 8)).await;
    let expected = server.complete(json!({"prompt": "abc", "max_tokens": 9})).await.json();
    let hurt = server.complete(json!({"prompt": "ab|"})).await;
    assert_eq!(hurt.error().0, 500);
    assert!(hurt.body.contains("a step of the engine panicked"), "{}", hurt.body);
    for path in ["/health", "/ready"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let after = server.complete(json!({"prompt": "abc", "max_tokens": 9})).await.json();
    assert_eq!(after["choices"], expected["choices"]);
    let metrics = server.get("/metrics").await.body;
    assert_eq!(harness::series(&metrics, "pelton_engine_restarts_total"), Some(1.0));
    assert_eq!(server.complete(json!({"prompt": "ab|"})).await.error().0, 500);
    let health = server.get("/health").await;
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("failed")));
    assert_eq!(server.get("/ready").await.status, 503);
    let (status, _, code) = server.complete(json!({"prompt": "abc"})).await.error();
    assert_eq!((status, code.as_deref()), (503, Some("engine_failed")));
    // No signal is needed; one ends the wait.
    server.signals.send();
    let outcome = server.task.await.expect("no panic");
    assert!(matches!(outcome, Err(ServeError::EngineFailed)), "{outcome:?}");
}
