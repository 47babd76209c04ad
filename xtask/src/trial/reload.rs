//! A model that is loaded anew again and again while clients ask it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::client::{ask, connect, post};
use super::server::Server;

const CLIENTS: usize = 8;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Time between two reloads, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of reloads.
    #[arg(long, default_value_t = 5)]
    times: usize,
    /// Model that is served.
    #[arg(long, default_value = "crates/cli/model/story-draft-q8_0.gguf")]
    model: PathBuf,
    /// Highest TTFT P99 during a reload, as a multiple of that without one; without this flag any.
    #[arg(long, value_name = "R")]
    most_ratio: Option<f64>,
}

/// When a request began, and when its first event came.
#[derive(Clone, Copy)]
struct First {
    at: Instant,
    ttft: Duration,
}

pub(super) fn run(binary: &Path, args: &Args) -> anyhow::Result<()> {
    let Args { seconds, times, ref model, most_ratio } = *args;
    let model = model.to_str().context("the path is UTF-8")?;
    let mut server = Server::start(binary, &["-m", model, "--max-context", "1024"])?;
    let address = server.address.clone();
    let (stop, firsts) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let rest = Duration::from_secs(seconds);
    let reloads = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (address, stop, firsts) = (&address, &stop, &firsts);
                scope.spawn(move || -> anyhow::Result<()> {
                    for round in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let first = one(address, client, round)?;
                        firsts.lock().expect("no panic").push(first);
                    }
                    Ok(())
                })
            })
            .collect();
        let reloads = reload(&address, rest, times);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client does not panic")?;
        }
        reloads
    })?;
    server.check_alive()?;
    let firsts = firsts.into_inner().expect("no panic");
    let is_during = |first: &First| {
        let end = first.at + first.ttft;
        reloads.iter().any(|&(from, to)| first.at <= to && end >= from)
    };
    let (during, before): (Vec<First>, Vec<First>) = firsts.iter().partition(|it| is_during(it));
    println!("{} requests, {times} reloads, no failure", firsts.len());
    let before = p99("without a reload", &before)?;
    let ratio = p99("during a reload", &during)?.as_secs_f64() / before.as_secs_f64();
    println!("TTFT P99 during a reload is {ratio:.2} times that without");
    let took: Duration = reloads.iter().map(|&(from, to)| to - from).sum();
    println!("a reload takes {:.2} s", took.as_secs_f64() / times as f64);
    if let Some(most) = most_ratio {
        ensure!(ratio <= most, "{ratio:.2} times the TTFT P99 without a reload: more than {most}");
    }
    Ok(())
}

/// Prints how fast these requests began; their TTFT P99.
fn p99(name: &str, firsts: &[First]) -> anyhow::Result<Duration> {
    let mut ttft: Vec<Duration> = firsts.iter().map(|first| first.ttft).collect();
    ttft.sort_unstable();
    ensure!(!ttft.is_empty(), "no request began {name}");
    let at = |percent: usize| ttft[(ttft.len() * percent).div_ceil(100).max(1) - 1];
    let (p50, p99) = (at(50), at(99));
    println!(
        "{name:>17}: {:>4} requests, TTFT P50 {} ms, P99 {} ms",
        ttft.len(),
        p50.as_millis(),
        p99.as_millis()
    );
    Ok(p99)
}

/// Reloads the model several times, with pauses before, between and after.
fn reload(address: &str, rest: Duration, times: usize) -> anyhow::Result<Vec<(Instant, Instant)>> {
    let (_, models) = super::client::get(address, "/v1/models")?;
    let models: Value = serde_json::from_str(&models)?;
    let name = models["data"][0]["id"].clone();
    let mut reloads = Vec::new();
    std::thread::sleep(rest);
    for _ in 0..times {
        let from = Instant::now();
        let (status, text) = ask(address, "/models/reload", &json!({"model": name}))?;
        ensure!(status == 200, "{status}: {text}");
        reloads.push((from, Instant::now()));
        std::thread::sleep(rest);
    }
    Ok(reloads)
}

/// Asks once and reads the whole answer.
fn one(address: &str, client: usize, round: usize) -> anyhow::Result<First> {
    let body = json!({
        "prompt": format!("Letter {round} from traveller {client}: the house stood"),
        "max_tokens": 24, "ignore_eos": true, "stream": true,
    });
    let at = Instant::now();
    let mut stream = connect(address)?;
    stream.write_all(post(address, "/v1/completions", &body.to_string()).as_bytes())?;
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().context("an answer")??;
    ensure!(status.starts_with("HTTP/1.1 200"), "request {round} of client {client}: {status}");
    let (mut ttft, mut is_done) = (None, false);
    for line in lines {
        let line = line?;
        if let Some(data) = line.strip_prefix("data: ") {
            ensure!(!data.contains("\"error\""), "{data}");
            ttft.get_or_insert(at.elapsed());
            is_done |= data == "[DONE]";
        }
    }
    ensure!(is_done, "request {round} of client {client} ends without [DONE]");
    Ok(First { at, ttft: ttft.context("an event")? })
}
