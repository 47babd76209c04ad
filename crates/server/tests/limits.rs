//! Clients that are slow, silent, greedy or broken.

use std::time::Duration;

use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{Running, health_until, post_text, start, start_with};
use pelton_server::ServeConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
    content-type: application/json\r\n";

/// Answers of [`ask_for_much`].
const N_ANSWERS: usize = 32;
/// Tokens of each.
const N_TOKENS: usize = 500;

/// Asks for a stream of some 10 MB, more than the system buffers, and reads none of it.
async fn ask_for_much(server: &Running) -> TcpStream {
    let body = json!({"prompt": ["abc", "xyz"], "n": N_ANSWERS / 2, "max_tokens": N_TOKENS,
        "logprobs": 2, "stream": true, "user": "u"});
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut client = socket.connect(server.address).await.expect("connected");
    let request = post_text("/v1/completions", &body.to_string());
    client.write_all(request.as_bytes()).await.expect("sent");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_delays_nobody() {
    let server = start(parrot()).await;
    let mut stalled = ask_for_much(&server).await;
    health_until(&server, |h| h["generated_tokens"].as_u64() > Some(0)).await;
    let other = server.complete(json!({"prompt": "abc", "max_tokens": 3})).await;
    assert_eq!(other.json()["choices"][0]["text"], "abc");
    // The engine goes on to the end at its own pace, and what it made waits for the client.
    let n_all = (N_ANSWERS * N_TOKENS + 3) as u64;
    health_until(&server, |h| h["generated_tokens"] == n_all).await;
    let mut answer = Vec::new();
    stalled.read_to_end(&mut answer).await.expect("the answer");
    let text = String::from_utf8(answer).expect("UTF-8");
    assert_eq!(text.matches("\"finish_reason\":\"length\"").count(), N_ANSWERS);
    assert!(text.contains("[DONE]"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_loses_its_request() {
    let config = ServeConfig {
        write_timeout: Duration::from_millis(1),
        drain_timeout: Duration::from_secs(3600),
        ..ServeConfig::default()
    };
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 64), config).await;
    let _stalled = ask_for_much(&server).await;
    // Far more than the system buffers, but not all: the gate keeps the answers from their end.
    let n_tokens = (N_ANSWERS * N_TOKENS * 4 / 5) as u64;
    health_until(&server, |h| {
        gate.step();
        let n_generated = h["generated_tokens"].as_u64();
        let is_cut_off = n_generated > Some(0) && h["running"] == 0 && h["waiting"] == 0;
        is_cut_off || n_generated >= Some(n_tokens)
    })
    .await;
    // A drain waits for whoever holds a request, so this one has lost it.
    server.signals.send();
    server.task.await.expect("stopped").expect("asked to stop");
    gate.open();
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed() {
    let config = ServeConfig { head_timeout: Duration::from_millis(1), ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    for head in ["", "GET /hea", "GET /health HTTP/1.1\r\nhost: localhost\r\n"] {
        let mut client = server.connect(head).await;
        let mut rest = Vec::new();
        // Closed or reset, but not kept.
        let _ = client.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{head:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_connection_may_pause_between_requests_but_not_for_ever() {
    for (head_ms, idle_ms) in [(3_600_000, 1), (1, 3_600_000)] {
        let config = ServeConfig {
            head_timeout: Duration::from_millis(head_ms),
            idle_timeout: Duration::from_millis(idle_ms),
            ..ServeConfig::default()
        };
        let server = start_with(parrot(), config).await;
        // A head that comes in one piece is in time, unless this machine is very busy.
        let mut client = loop {
            let mut client =
                server.connect("GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            if client.read_u8().await.is_ok() {
                break client;
            }
        };
        let mut answer = Vec::new();
        if idle_ms == 1 {
            let _ = client.read_to_end(&mut answer).await;
        } else {
            while !answer.ends_with(b"}") {
                answer.push(client.read_u8().await.expect("the answer"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let early = client.try_read(&mut [0; 1]).expect_err("it may pause");
            assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
            // Once its next request begins, its time is that of a head.
            client.write_all(b"GET /ver").await.expect("sent");
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{rest:?}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_refused_in_json() {
    let config = ServeConfig { body_timeout: Duration::from_millis(1), ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    for body in ["content-length: 100\r\n\r\n{", "transfer-encoding: chunked\r\n\r\n5\r\n{"] {
        let answer = server.raw(&format!("{HEAD}{body}")).await;
        let (status, _, code) = answer.error();
        assert_eq!((status, code.as_deref()), (408, Some("body_too_slow")));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_that_do_not_arrive_keep_no_others_out() {
    let config = ServeConfig {
        max_body_bytes: 1 << 20,
        body_timeout: Duration::from_secs(3600),
        ..ServeConfig::default()
    };
    let server = start_with(parrot(), config).await;
    let begun = format!("{HEAD}content-length: 1000000\r\n\r\n{}", " ".repeat(100_000));
    // As many as have room.
    let mut stalled = Vec::new();
    for _ in 0..2 {
        stalled.push(server.connect(&begun).await);
    }
    let body = json!({"prompt": "abc", "max_tokens": 3}).to_string() + &" ".repeat(900_000);
    let answer = server.raw(&post_text("/v1/completions", &body)).await;
    assert_eq!(answer.json()["choices"][0]["text"], "abc");
    drop(stalled);
    server.stop().await;
}

#[tokio::test]
async fn malformed_chunks_are_refused_in_json_and_the_server_goes_on() {
    let server = start(parrot()).await;
    for body in ["zz\r\n{}\r\n0\r\n\r\n", "2\r\n{}XX0\r\n\r\n", "ffffffffffffffffff\r\n{", "\r\n"] {
        let request = format!("{HEAD}transfer-encoding: chunked\r\n\r\n{body}");
        let answer = server.raw(&request).await;
        assert_eq!(answer.error().0, 400, "{body:?}");
    }
    let body = json!({"prompt": "abc", "max_tokens": 2}).to_string();
    let (a, b) = body.split_at(7);
    let chunked = format!("{:x}\r\n{a}\r\n{:x};x=y\r\n{b}\r\n0\r\n\r\n", a.len(), b.len());
    let answer = server.raw(&format!("{HEAD}transfer-encoding: chunked\r\n\r\n{chunked}")).await;
    assert_eq!(answer.json()["choices"][0]["text"], "ab");
    server.stop().await;
}
