//! A server on a loopback port, and a client that sends bytes.
// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../llm/tests/common/mod.rs"]
pub mod parrot;

pub mod house;
pub mod loading;
pub mod ranker;

use std::sync::Arc;

use pelton_llm::Llm;
use pelton_server::{Catalog, Renew, ServeConfig, ServeError, Server, SignalSender, Signals};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub struct Running {
    pub address: std::net::SocketAddr,
    pub signals: SignalSender,
    pub task: JoinHandle<Result<(), ServeError>>,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The `data:` lines of a stream; the last must be `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let mut lines: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.body);
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// `(status, param, code)` of an error.
    pub fn error(&self) -> (u16, Option<String>, Option<String>) {
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.body);
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status, text("param"), text("code"))
    }
}

pub async fn start_with(llm: Arc<Llm>, config: ServeConfig) -> Running {
    let config = ServeConfig { port: Some(0), ..config };
    run(Server::bind(llm, config).await.expect("a free port"))
}

/// A server of several models.
pub async fn start_models(catalog: Catalog, config: ServeConfig) -> Running {
    let config = ServeConfig { port: Some(0), ..config };
    run(Server::bind_models(catalog, config).await.expect("a free port"))
}

/// A server that reads its settings anew.
pub async fn start_renewed(catalog: Catalog, renew: Renew) -> Running {
    let config = ServeConfig { port: Some(0), ..ServeConfig::default() };
    let server = Server::bind_models(catalog, config).await.expect("a free port");
    run(server.renewed_by(renew))
}

/// Runs a server that listens.
pub fn run(server: Server) -> Running {
    let address = server.address().expect("a port");
    let (signals, receiver) = Signals::manual();
    let task = tokio::spawn(server.run(receiver));
    Running { address, signals, task }
}

pub async fn start(llm: Arc<Llm>) -> Running {
    start_with(llm, ServeConfig::default()).await
}

impl Running {
    pub async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream
    }

    /// Asks without waiting for the answer.
    pub fn raw_later(&self, request: String) -> JoinHandle<Answer> {
        tokio::spawn(raw_to(self.address, request))
    }

    pub async fn raw(&self, request: &str) -> Answer {
        raw_to(self.address, request.to_owned()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
            .await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.raw(&post_text(path, &body.to_string())).await
    }

    pub async fn complete(&self, body: Value) -> Answer {
        self.post("/v1/completions", body).await
    }

    pub async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    pub async fn stop(self) {
        self.signals.send();
        self.task.await.expect("stopped").expect("asked to stop");
    }
}

/// Sends a request on a connection of its own and reads the answer.
async fn raw_to(address: std::net::SocketAddr, request: String) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("answered");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        dechunk(body)
    } else {
        body.to_owned()
    };
    Answer { status, head: head.to_ascii_lowercase(), body }
}

/// The value of the first series of the metrics with this name and, among others, these labels.
pub fn series(metrics: &str, wanted: &str) -> Option<f64> {
    let split = |text: &str| -> (String, Vec<String>) {
        let (name, labels) = text.split_once('{').unwrap_or((text, ""));
        let labels = labels.trim_end_matches('}').split("\",");
        let label = |label: &str| label.trim_end_matches('"').to_owned();
        (name.to_owned(), labels.filter(|label| !label.is_empty()).map(label).collect())
    };
    let (name, labels) = split(wanted);
    metrics.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (found, value) = line.rsplit_once(' ')?;
        let (found_name, found_labels) = split(found);
        let is_it = found_name == name && labels.iter().all(|label| found_labels.contains(label));
        is_it.then(|| value.parse().expect("a number"))
    })
}

pub fn post_text(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub fn dechunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    out
}

/// Asks for health until it is `expected`, which it must become without any clock.
pub async fn health_until(server: &Running, expected: impl Fn(&Value) -> bool) -> Value {
    loop {
        let health = server.get("/health").await.json();
        if expected(&health) {
            return health;
        }
        tokio::task::yield_now().await;
    }
}
