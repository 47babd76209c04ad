//! A body of 15 MB takes at most four times its size, whatever is in it, and many at once take no more
//! than the room for large bodies and one that is read.

#[path = "../../model/tests/counting/mod.rs"]
mod counting;
mod harness;

use counting::peak;
use harness::parrot::parrot;
use harness::{post_text, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MB: usize = 1_000_000;
const BODY: usize = 15 * MB;
/// Size of most bodies; the limits are in proportion.
const SMALLER_BODY: usize = 3 * MB;
/// Largest body that a server takes by default.
const LARGEST: usize = 16 << 20;
/// Connections, tasks, and what the client holds.
const SLACK: usize = 2 * MB;
const N_AT_ONCE: usize = 12;

/// A body of 3 MB: `pattern` again and again between `before` and `after`.
fn body(before: &str, pattern: &str, after: &str) -> String {
    body_of(SMALLER_BODY, before, pattern, after)
}

fn body_of(size: usize, before: &str, pattern: &str, after: &str) -> String {
    let n = (size - before.len() - after.len()) / pattern.len();
    format!("{before}{}{after}", pattern.repeat(n))
}

/// Path, body, and the start of the parameter that the answer must name.
fn bodies() -> Vec<(&'static str, String, &'static str)> {
    let (chat, text, vectors) = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings");
    let message = r#"{"role":"user","content":""},"#;
    let names: String = (0..).map(|i| format!("\"{i}\":0,")).take(300_000).collect();
    vec![
        (chat, body_of(BODY, "{\"messages\":[0", ",0", "]}"), "messages[0]"),
        (chat, body("{\"messages\":[", message, "0]}"), "messages"),
        (
            chat,
            body("{\"messages\":[{\"role\":\"user\",\"content\":\"", "\\n", "\"}]}"),
            "messages",
        ),
        (chat, body("{\"metadata\":", "[", "}"), ""),
        (chat, body("{\"messages\":[],\"metadata\":{\"a\":[0", ",[]", "]}}"), "metadata"),
        (chat, body("{\"messages\":[],\"tools\":[0", ",{}", "]}"), "tools"),
        (text, body("{\"prompt\":[0", ",0", "]}"), "prompt"),
        (text, body("{\"prompt\":[[0]", ",[0]", "]}"), "prompt"),
        (text, body("{\"prompt\":[\"\"", ",\"\"", "]}"), "prompt"),
        (text, body("{\"prompt\":\"", "\\u0041", "\"}"), "prompt"),
        (text, body("{\"prompt\":\"a\",\"stop\":[\"a\"", ",\"a\"", "]}"), "stop"),
        (text, body("{\"prompt\":\"a\",\"stop_token_ids\":[1", ",1", "]}"), "stop_token_ids"),
        (text, format!("{{\"prompt\":\"a\",\"logit_bias\":{{{names}\"x\":0}}}}"), "logit_bias"),
        (text, format!("{{{names}\"x\":0}}"), ""),
        (text, body("{\"", "k", "\":0}"), ""),
        (vectors, body("{\"input\":[[]", ",[]", "]}"), "input"),
    ]
}

/// Sends a request; the parameter that the answer names.
async fn ask(address: std::net::SocketAddr, request: &'static [u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(request).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.len() < 2000, "an answer repeats what was sent: {} bytes", answer.len());
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let error: serde_json::Value = serde_json::from_str(body).expect("JSON");
    error["error"]["param"].as_str().unwrap_or_default().to_owned()
}

/// Sends `n` requests at once.
async fn send(address: std::net::SocketAddr, request: &'static [u8], n: usize) -> Vec<String> {
    let asked: Vec<_> = (0..n).map(|_| tokio::spawn(ask(address, request))).collect();
    let mut params = Vec::new();
    for asked in asked {
        params.push(asked.await.expect("answered"));
    }
    params
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(start(parrot()));
    for (i, (path, body, param)) in bodies().into_iter().enumerate() {
        let n_bytes = body.len();
        assert!((SMALLER_BODY - 100..LARGEST).contains(&n_bytes), "{param}: {n_bytes}");
        let request: &'static [u8] = post_text(path, &body).leak().as_bytes();
        drop(body);
        for n in if i == 0 { &[1, N_AT_ONCE][..] } else { &[1] } {
            let (params, most) = peak(|| runtime.block_on(send(server.address, request, *n)));
            for named in params {
                assert!(named.starts_with(param), "{named} instead of {param}");
            }
            let room = if *n == 1 { 4 * n_bytes } else { 4 * LARGEST + 3 * n_bytes };
            assert!(most as usize <= room + SLACK, "{path} {param}: {most} of {room} bytes");
        }
    }
    runtime.block_on(server.stop());
}
