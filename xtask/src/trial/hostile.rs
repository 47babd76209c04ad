//! Hostile requests, one kind after the other: each gets its right error, while the answers of a
//! neighbour stay equal and memory stays level.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::client::{answer, connect, post, read};
use super::look::Look;
use super::server::Server;

/// Requests of a flood.
const FLOOD: usize = 300;

/// How long it goes on, and what is level.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Rounds over all kinds before memory is compared: lists of bounded length fill.
    #[arg(long, default_value_t = 45)]
    warm_up: usize,
    /// Rounds after them.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Most growth of memory over the latter, in per cent.
    #[arg(long, default_value_t = 5.0)]
    growth: f64,
    /// Only the kinds whose name contains this text.
    #[arg(long)]
    kind: Option<String>,
}

/// Time without requests before a look at the memory, after which the server has given back what is
/// free.
const QUIET: Duration = Duration::from_secs(6);

/// A kind of hostile client: its name, and what it does and demands.
type Kind = (&'static str, fn(&str) -> anyhow::Result<()>);

const KINDS: &[Kind] = &[
    ("a body of 100 MB", |address| {
        let text = "x".repeat(1 << 20);
        let mut stream = connect(address)?;
        let head = post(address, "/v1/completions", "").replace("length: 0", "length: 104857600");
        stream.write_all(head.as_bytes())?;
        // The server closes before it has read everything, which may cost the client the answer.
        let _ = (0..100).try_for_each(|_| stream.write_all(text.as_bytes()));
        match read(stream) {
            Ok((413, _)) | Err(_) => Ok(()),
            Ok((status, text)) => bail!("{status}: {text}"),
        }
    }),
    ("JSON nested 100,000 times", |address| {
        demand(address, &format!("{{\"prompt\":{}", "[".repeat(100_000)), 400, "")
    }),
    ("objects nested 100,000 times", |address| {
        demand(address, &"{\"a\":".repeat(100_000), 400, "")
    }),
    ("a huge number of choices", |address| {
        demand(address, r#"{"prompt":"a","n":1000000000}"#, 400, "`n`")
    }),
    ("a number that no machine holds", |address| {
        demand(address, r#"{"prompt":"a","max_tokens":1e999}"#, 400, "")
    }),
    ("doubled keys", |address| {
        demand(address, r#"{"prompt":"a","max_tokens":1,"max_tokens":2}"#, 400, "max_tokens")
    }),
    ("a million stop strings", |address| {
        let stops = "\"y\",".repeat(1_000_000);
        demand(address, &format!("{{\"prompt\":\"a\",\"stop\":[{stops}\"x\"]}}"), 400, "stop")
    }),
    ("bytes that are no UTF-8", |address| {
        let body = b"{\"prompt\":\"\xff\xfe\"}";
        let head = post(address, "/v1/completions", "");
        let head = head.replace("length: 0", &format!("length: {}", body.len()));
        let mut stream = connect(address)?;
        stream.write_all(&[head.as_bytes(), body].concat())?;
        expect(read(stream)?, 400, "")
    }),
    ("a template that never ends", |address| {
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"messages": messages, "max_tokens": 1, "chat_template": endless});
        let mut stream = connect(address)?;
        stream.write_all(post(address, "/v1/chat/completions", &body.to_string()).as_bytes())?;
        expect(read(stream)?, 400, "template")
    }),
    ("a regular expression that explodes", |address| {
        let body = json!({"prompt": "a", "max_tokens": 4, "guided_regex": "(a|a|b){1000}{1000}"});
        demand(address, &body.to_string(), 400, "")
    }),
    ("a head without end", |address| {
        let mut stream = connect(address)?;
        let line = format!("x-{}: y\r\n", "a".repeat(500));
        let head = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n{}", line.repeat(2000));
        // The server closes before it has read everything, which may cost the client the answer.
        let _ = stream.write_all(head.as_bytes());
        match read(stream) {
            Ok((431, _)) | Err(_) => Ok(()),
            Ok((status, text)) => bail!("{status}: {text}"),
        }
    }),
    ("two lengths of one body", |address| {
        let mut stream = connect(address)?;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: 2\r\n\
             content-length: 3\r\n\r\n{{}}"
        );
        stream.write_all(head.as_bytes())?;
        expect(read(stream)?, 400, "")
    }),
    ("a head that comes byte by byte", |address| {
        let mut stream = connect(address)?;
        for byte in b"GET /health HT" {
            // The server may have given up on it.
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(120));
        }
        let mut rest = Vec::new();
        // Closed, with or without a word.
        let _ = stream.read_to_end(&mut rest);
        let text = String::from_utf8_lossy(&rest);
        ensure!(rest.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
        Ok(())
    }),
    ("a client that says no more but listens", |address| {
        let mut stream = connect(address)?;
        let body = json!({"prompt": "The moth", "max_tokens": 8}).to_string();
        stream.write_all(post(address, "/v1/completions", &body).as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        expect(read(stream)?, 200, "\"choices\"")
    }),
    ("a client that reads byte by byte", |address| {
        let mut stream = connect(address)?;
        let body = json!({"prompt": "The moth", "max_tokens": 12, "stream": true}).to_string();
        stream.write_all(post(address, "/v1/completions", &body).as_bytes())?;
        let (mut text, mut byte) = (Vec::new(), [0]);
        while stream.read(&mut byte)? == 1 {
            text.push(byte[0]);
        }
        ensure!(String::from_utf8_lossy(&text).contains("data: [DONE]"), "the stream is cut off");
        Ok(())
    }),
    ("clients that leave in the middle", |address| {
        let body =
            json!({"prompt": "The moth", "max_tokens": 200, "ignore_eos": true, "stream": true});
        for _ in 0..20 {
            let mut stream = connect(address)?;
            stream.write_all(post(address, "/v1/completions", &body.to_string()).as_bytes())?;
            stream.read_exact(&mut [0; 64])?;
        }
        Ok(())
    }),
    ("a flood", |address| {
        let body = json!({"prompt": "The moth", "max_tokens": 4}).to_string();
        let request = post(address, "/v1/completions", &body);
        let mut streams = Vec::new();
        for _ in 0..FLOOD {
            let mut stream = connect(address)?;
            stream.write_all(request.as_bytes())?;
            streams.push(stream);
        }
        for stream in streams {
            let (status, text) = read(stream)?;
            ensure!(matches!(status, 200 | 429), "{status}: {text}");
        }
        Ok(())
    }),
];

pub(super) fn run(binary: &Path, args: &Args) -> anyhow::Result<()> {
    ensure!(args.warm_up > 0, "--warm-up: at least one round");
    let n_rounds = args.warm_up + args.rounds;
    let flags = ["--kv-memory", "4MiB", "--max-context", "256", "--head-timeout", "1"];
    let flags =
        [&flags[..], &["--trust-request-chat-template", "--max-connections-per-address", "1024"]];
    let mut server = Server::start(binary, &flags.concat())?;
    let (address, pid) = (server.address.clone(), server.pid());
    let expected = answer(&address)?;
    let n_equal = AtomicU64::new(0);
    let is_wanted = |(name, _): &&Kind| args.kind.as_ref().is_none_or(|part| name.contains(part));
    let kinds: Vec<&Kind> = KINDS.iter().filter(is_wanted).collect();
    ensure!(!kinds.is_empty(), "--kind: no kind has this text in its name");
    let phase = |n_rounds| {
        beside_neighbour(&address, &expected, &n_equal, || rounds(&address, &kinds, n_rounds))?;
        std::thread::sleep(QUIET);
        Look::at(pid)
    };
    let (before, after) = (phase(args.warm_up)?, phase(args.rounds)?);
    server.check_alive()?;
    println!("{} kinds, {n_rounds} rounds: each its right answer", kinds.len());
    println!("{} answers of a neighbour: equal", n_equal.into_inner());
    let mib = |look: &Look| look.resident as f64 / f64::from(1 << 20);
    let (before, after) = (mib(&before), mib(&after));
    println!("memory: {before:.1} MiB after the warm-up, {after:.1} MiB at the end");
    let growth = 100.0 * (after / before - 1.0);
    ensure!(growth <= args.growth, "memory grew by {growth:.1} %");
    Ok(())
}

/// Does the work while a neighbour asks the same again and again and compares its answers.
fn beside_neighbour(
    address: &str,
    expected: &Value,
    n_equal: &AtomicU64,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| -> anyhow::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let found = answer(address).context("the neighbour's request")?;
                ensure!(found == *expected, "the neighbour got {found} instead of {expected}");
                n_equal.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        neighbour.join().expect("the neighbour does not panic").and(done)
    })
}

/// Goes through all kinds again and again.
fn rounds(address: &str, kinds: &[&Kind], n_rounds: usize) -> anyhow::Result<()> {
    for _ in 0..n_rounds {
        for (name, kind) in kinds {
            kind(address).with_context(|| format!("{name} is not answered as it should"))?;
        }
    }
    Ok(())
}

/// Sends a body and demands this status, and this text in the answer.
fn demand(address: &str, body: &str, status: u16, part: &str) -> anyhow::Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(post(address, "/v1/completions", body).as_bytes())?;
    expect(read(stream)?, status, part)
}

fn expect((found, text): (u16, String), status: u16, part: &str) -> anyhow::Result<()> {
    ensure!(found == status && text.contains(part), "{found}: {text}");
    Ok(())
}
