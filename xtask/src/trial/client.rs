//! HTTP by hand, so that a client can do what a library would not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Time after which a client gives up, far above any answer's.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).context("connecting")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The bytes of a request with a body.
pub(super) fn post(address: &str, path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and reads the whole answer: its status and its body.
pub(super) fn ask(address: &str, path: &str, body: &Value) -> anyhow::Result<(u16, String)> {
    let mut stream = connect(address)?;
    stream.write_all(post(address, path, &body.to_string()).as_bytes()).context("sending")?;
    read(stream)
}

/// Asks a route without a body.
pub(super) fn get(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = connect(address)?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).context("sending")?;
    read(stream)
}

/// The choices of a greedy answer, the same on every server of a model.
pub(super) fn answer(address: &str) -> anyhow::Result<Value> {
    let body = json!({ "prompt": "The moth", "max_tokens": 8, "temperature": 0, "logprobs": 1 });
    match ask(address, "/v1/completions", &body)? {
        (200, text) => Ok(serde_json::from_str::<Value>(&text)?["choices"].take()),
        (status, text) => bail!("{status}: {text}"),
    }
}

/// Reads an answer to its end.
pub(super) fn read(mut stream: TcpStream) -> anyhow::Result<(u16, String)> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("reading the answer")?;
    let text = String::from_utf8(bytes).context("the answer is UTF-8")?;
    let mut rest = text.as_str();
    loop {
        let (head, body) = rest.split_once("\r\n\r\n").context("the answer has a head")?;
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("a status")?;
        // The server asks with an interim answer whether a client that says no more still listens.
        if status != 100 {
            return Ok((status, body.to_owned()));
        }
        rest = body;
    }
}
