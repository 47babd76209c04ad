//! A crowd of streams that wait, beside streams that run: each gets its own answer, whole.
//!
//! The server runs on two processors, however many the machine has.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::client::{ask, connect, post, read};
use super::look::Look;
use super::server::Server;

/// Streams that run at the same time.
const ACTIVE: usize = 64;
/// Requests that each of them sends, one after the other.
const ROUNDS: usize = 3;
/// Different requests; each has an answer of its own.
const KINDS: usize = 32;
/// Most memory of a waiting stream, in bytes.
const MOST_BYTES: u64 = 30 << 10;

pub(super) fn run(binary: &Path, n_waiting: usize) -> anyhow::Result<()> {
    println!("the server runs on two processors at most");
    memory(binary, n_waiting)?;
    answers(binary, n_waiting)
}

/// Starts a server that runs `n_running` requests at a time; urgent requests pass those that wait.
fn start(binary: &Path, n_waiting: usize, n_running: usize) -> anyhow::Result<Server> {
    let n = (n_waiting + 3 * ACTIVE).to_string();
    let running = n_running.to_string();
    let flags = [
        ["--max-connections", &n],
        ["--max-connections-per-address", &n],
        ["--max-running", &running],
        ["--max-waiting", &n],
        ["--policy", "priority"],
        ["--kv-memory", "256MiB"],
        ["--max-context", "1280"],
    ];
    Server::start_on_two_processors(binary, &flags.concat())
}

/// Measures the memory of waiting streams. Only one stream runs, because keys and values take memory
/// as they are written.
fn memory(binary: &Path, n_waiting: usize) -> anyhow::Result<()> {
    let server = start(binary, n_waiting, 1)?;
    let holders = hold(&server.address, 1)?;
    let before = Look::at(server.pid())?;
    let waiting = wait(&server.address, n_waiting)?;
    let with = Look::at(server.pid())?;
    drop((holders, waiting));
    let each = with.resident.saturating_sub(before.resident) / n_waiting as u64;
    println!("{n_waiting} waiting streams: {:.1} KiB each", each as f64 / 1024.0);
    ensure!(each <= MOST_BYTES, "a waiting stream takes {each} bytes, more than {MOST_BYTES}");
    Ok(())
}

/// Compares the answers of all streams with those that each request gets alone.
fn answers(binary: &Path, n_waiting: usize) -> anyhow::Result<()> {
    let mut server = start(binary, n_waiting, ACTIVE)?;
    let address = server.address.clone();
    let expected = (0..KINDS).map(|kind| alone(&address, kind)).collect::<Result<Vec<_>, _>>()?;
    let holders = hold(&address, ACTIVE)?;
    let waiting = wait(&address, n_waiting)?;
    run_active(&address, &expected)?;
    println!("{} streams beside them, {ACTIVE} at a time: each its own answer", ACTIVE * ROUNDS);
    // Places are free now, and all that waited run.
    drop(holders);
    for (number, stream) in waiting.into_iter().enumerate() {
        let text = streamed(stream).with_context(|| format!("the waiting stream {number}"))?;
        let expected = &expected[number % KINDS];
        ensure!(text == *expected, "stream {number}: {text:?} instead of {expected:?}");
    }
    println!("{n_waiting} streams that waited: each its own answer");
    server.check_alive()
}

/// Streams that hold all places for a long time.
fn hold(address: &str, n: usize) -> anyhow::Result<Vec<TcpStream>> {
    let endless = json!({
        "prompt": "Again", "max_tokens": 1000, "ignore_eos": true, "stream": true, "priority": 1,
    });
    let holders = (0..n).map(|_| open(address, &endless)).collect::<Result<Vec<_>, _>>()?;
    // Their first steps make buffers.
    std::thread::sleep(Duration::from_millis(500));
    Ok(holders)
}

/// Streams that wait behind those that hold all places.
fn wait(address: &str, n_waiting: usize) -> anyhow::Result<Vec<TcpStream>> {
    let waiting = (0..n_waiting).map(|number| {
        let mut body = request(number % KINDS);
        body["priority"] = json!(2);
        open(address, &body)
    });
    waiting.collect()
}

/// Sends the requests of the running streams, and compares each answer with its own.
fn run_active(address: &str, expected: &[String]) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let client = |client: usize| {
            move || -> anyhow::Result<()> {
                for round in 0..ROUNDS {
                    let kind = (client + round * 7) % KINDS;
                    let text = streamed(open(address, &request(kind))?)?;
                    ensure!(text == expected[kind], "{text:?} instead of {:?}", expected[kind]);
                }
                Ok(())
            }
        };
        let clients: Vec<_> = (0..ACTIVE).map(|n| scope.spawn(client(n))).collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, anyhow::Result<()>>| {
            client.join().expect("a client does not panic")
        };
        clients.into_iter().try_for_each(join)
    })
}

/// A request of this kind.
fn request(kind: usize) -> Value {
    json!({
        "prompt": format!("There were {kind} moths in the house"), "max_tokens": 12 + kind,
        "temperature": 0.8, "seed": kind, "stream": true,
    })
}

/// The answer to a request of this kind without neighbours.
fn alone(address: &str, kind: usize) -> anyhow::Result<String> {
    let mut body = request(kind);
    body["stream"] = json!(false);
    let (status, text) = ask(address, "/v1/completions", &body)?;
    ensure!(status == 200, "{status}: {text}");
    let answer: Value = serde_json::from_str(&text)?;
    Ok(answer["choices"][0]["text"].as_str().context("a text")?.to_owned())
}

/// Sends a request and waits until its answer begins.
fn open(address: &str, body: &Value) -> anyhow::Result<TcpStream> {
    let mut stream = connect(address)?;
    stream.write_all(post(address, "/v1/completions", &body.to_string()).as_bytes())?;
    // One byte of the head: the request is accepted. Every answer begins with the same.
    let mut first = [0];
    stream.read_exact(&mut first).context("the begin of an answer")?;
    ensure!(first == *b"H", "an answer begins with HTTP");
    Ok(stream)
}

/// The text of a stream that [`open`] began.
fn streamed(stream: TcpStream) -> anyhow::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(300)))?;
    let (status, body) = read(stream)?;
    ensure!(status == 200, "{status}: {body}");
    let mut text = String::new();
    let mut is_done = false;
    for data in body.lines().filter_map(|line| line.strip_prefix("data: ")) {
        if data == "[DONE]" {
            is_done = true;
            continue;
        }
        ensure!(!is_done, "something follows [DONE]: {data}");
        let chunk: Value = serde_json::from_str(data).with_context(|| data.to_owned())?;
        text.push_str(chunk["choices"][0]["text"].as_str().unwrap_or(""));
    }
    ensure!(is_done, "the stream ends without [DONE]: {body}");
    Ok(text)
}
