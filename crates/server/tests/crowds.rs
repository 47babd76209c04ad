//! More connections than there are places for.

use std::time::Duration;

use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{Running, post_text, start_with};
use pelton_server::ServeConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const ASK: &str = "GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A limit of connections, and deadlines that no test reaches.
fn places(max_connections: usize, reserved_connections: usize) -> ServeConfig {
    let long = Duration::from_secs(300);
    ServeConfig {
        max_connections,
        reserved_connections,
        head_timeout: long,
        idle_timeout: long,
        ..ServeConfig::default()
    }
}

/// Connects `n` times without sending anything.
async fn silent(server: &Running, n: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..n {
        silent.push(server.connect("").await);
    }
    silent
}

/// Whether the server closes a connection, which is waited for.
async fn is_closed(client: &mut TcpStream) -> bool {
    client.read(&mut [0]).await.map_or(true, |n| n == 0)
}

/// Whether a connection is open by now.
fn is_open(client: &TcpStream) -> bool {
    let read = client.try_read(&mut [0]);
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// A stream whose first token is there.
async fn begin_stream(server: &Running) -> TcpStream {
    let body = json!({"prompt": "abc", "max_tokens": 6, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    client.read_u8().await.expect("the answer begins");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_nobody_out() {
    let server = start_with(parrot(), places(8, 2)).await;
    let mut crowd = silent(&server, 30).await;
    let mut drip = server.connect("GET /health HT").await;
    crowd.extend(silent(&server, 9).await);
    for _ in 0..5 {
        assert_eq!(server.get("/health").await.status, 200);
        let answer = server.complete(json!({"prompt": "abc", "max_tokens": 2})).await;
        assert_eq!(answer.json()["choices"][0]["text"], "ab");
        crowd.extend(silent(&server, 9).await);
    }
    assert!(is_closed(&mut drip).await, "a begun head keeps no place");
    for early in &mut crowd[..30] {
        assert!(is_closed(early).await);
    }
    server.stop().await;
}

/// The server runs on the thread of its client here: in the step that sends the end of an answer it
/// also notes that the connection pauses, so the client sees no end of an answer before that.
#[tokio::test]
async fn the_longest_pause_ends_and_a_running_answer_does_not() {
    let gate = Gate::closed(1);
    let server = start_with(gated_parrot(&gate, 8), places(2, 1)).await;
    let mut stream = begin_stream(&server).await;
    let mut pausing = server.connect(ASK).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        answer.push(pausing.read_u8().await.expect("the answer"));
    }
    let mut later = server.connect("").await;
    // The third place is taken; each further connection closes the one that waits longest.
    let mut latest = server.connect("").await;
    assert!(is_closed(&mut pausing).await && is_open(&later));
    let mut last = silent(&server, 2).await;
    assert!(is_closed(&mut later).await && is_closed(&mut latest).await);
    gate.open();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("the rest");
    assert!(rest.contains("[DONE]"), "{rest}");
    assert!(is_open(&last.pop().expect("two")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_still_being_read_is_not_cut_off() {
    let server = start_with(parrot(), places(2, 1)).await;
    // A large answer in one piece.
    let body = json!({"messages": [{"role": "user", "content": "hey"}], "n": 16,
        "max_tokens": 500, "logprobs": true, "top_logprobs": 20});
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut client = socket.connect(server.address).await.expect("connected");
    let request = post_text("/v1/chat/completions", &body.to_string());
    client.write_all(request.as_bytes()).await.expect("sent");
    client.read_u8().await.expect("the answer begins");
    let crowd = silent(&server, 9).await;
    assert_eq!(server.get("/health").await.status, 200);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("the rest");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    assert_eq!(length.and_then(|n| n.parse().ok()), Some(body.len()));
    assert!(body.len() > 1 << 20, "{} bytes are too few for this test", body.len());
    drop(crowd);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_places_are_in_requests_operators_get_in_and_users_get_503() {
    let gate = Gate::closed(1);
    let server = start_with(gated_parrot(&gate, 8), places(1, 1)).await;
    let mut stream = begin_stream(&server).await;
    for path in ["/health", "/ready", "/version", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let refused = server.raw("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(refused.error(), (503, None, Some("too_many_connections".to_owned())));
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let metrics = server.get("/metrics").await.body;
    let series =
        "pelton_requests_refused_total{tenant=\"default\",reason=\"too_many_connections\"} 1";
    assert!(metrics.contains(series), "{metrics}");
    gate.open();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("the rest");
    // The place is free once the server has seen the end.
    while server.get("/v1/models").await.status != 200 {}
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_wait_while_every_place_is_in_a_request() {
    let gate = Gate::closed(1);
    let server = start_with(gated_parrot(&gate, 8), places(1, 0)).await;
    let mut first = begin_stream(&server).await;
    let mut second = server.connect(ASK).await;
    // A server without the limit would answer the second in one of these rounds.
    let mut received = String::new();
    for n_tokens in 1..5 {
        while received.matches("\"text\"").count() < n_tokens {
            received.push(char::from(first.read_u8().await.expect("the answer goes on")));
        }
        gate.step();
    }
    assert!(is_open(&second), "not served yet");
    gate.open();
    first.read_to_string(&mut received).await.expect("the rest");
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.expect("answered");
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(second);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_gives_up_its_own_connections_and_is_refused_when_all_are_in_requests() {
    let gate = Gate::closed(1);
    let config = ServeConfig { max_connections_per_address: Some(2), ..places(100, 0) };
    let server = start_with(gated_parrot(&gate, 8), config).await;
    let mut crowd = silent(&server, 3).await;
    assert!(is_closed(&mut crowd[0]).await);
    assert!(is_open(&crowd[1]) && is_open(&crowd[2]));
    let (mut first, mut second) = (begin_stream(&server).await, begin_stream(&server).await);
    assert!(is_closed(&mut crowd[1]).await && is_closed(&mut crowd[2]).await);
    // Both are in requests, so a third connection is closed, and leaves them alone.
    assert!(is_closed(&mut server.connect(ASK).await).await);
    gate.open();
    for stream in [&mut first, &mut second] {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("the rest");
        assert!(rest.contains("[DONE]"), "{rest}");
    }
    server.stop().await;
}
