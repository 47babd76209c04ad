//! The same request, a thousand times, under each policy, among neighbours: one answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};

use super::client;
use super::neighbours::Neighbours;
use super::server::Server;

const POLICIES: [&str; 5] = ["fcfs", "priority", "lpm", "sla", "fair"];
/// Clients that ask the watched requests, and neighbours.
const ASKING: usize = 4;
const NEIGHBOURS: u64 = 4;

/// The watched requests: greedy with log probabilities, and sampled with a seed.
fn requests() -> [Value; 2] {
    let prompt = "The moth flew to the lamp and";
    [
        json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2 }),
        json!({ "prompt": prompt, "max_tokens": 12, "temperature": 1, "seed": 7, "n": 2 }),
    ]
}

/// Times that each answer came, by request.
type Answers = BTreeMap<(usize, String), usize>;

pub(super) fn run(binary: &Path, seed: u64, times: usize) -> anyhow::Result<()> {
    let mut all = Answers::new();
    for policy in POLICIES {
        // Little memory and short steps, so that requests are preempted and cut into chunks.
        let memory = ["--kv-memory", "24MiB", "--max-context", "512"];
        let steps = ["--max-batch-tokens", "96", "--max-running", "12", "--spec", "suffix"];
        let flags = [&["--policy", policy][..], &memory, &steps].concat();
        let server = Server::start(binary, &flags)?;
        let answers = under(&server, seed, times)?;
        println!("{policy}: {} answers, {} different ones", 2 * times, answers.len());
        for (answer, n) in answers {
            *all.entry(answer).or_default() += n;
        }
    }
    let n_kinds = requests().len();
    if all.len() != n_kinds {
        for ((request, answer), n) in &all {
            println!("request {request}, {n} times: {answer}");
        }
    }
    ensure!(all.len() == n_kinds, "{} answers to {n_kinds} requests", all.len());
    Ok(())
}

/// Asks each request `times` times.
fn under(server: &Server, seed: u64, times: usize) -> anyhow::Result<Answers> {
    let (neighbours, next) = (Neighbours::default(), AtomicUsize::new(0));
    let answers = Mutex::new(Answers::new());
    let requests = requests();
    let ask = || -> anyhow::Result<()> {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= times * requests.len() {
                return Ok(());
            }
            let kind = i % requests.len();
            let choices = patiently(&server.address, &requests[kind])?;
            let mut answers = answers.lock().expect("plain");
            *answers.entry((kind, choices.to_string())).or_default() += 1;
        }
    };
    std::thread::scope(|scope| {
        let beside = neighbours.start(scope, &server.address, seed, NEIGHBOURS);
        let asking: Vec<_> = (0..ASKING).map(|_| scope.spawn(ask)).collect();
        let outcome: anyhow::Result<()> =
            asking.into_iter().try_for_each(|it| it.join().expect("a client does not panic"));
        neighbours.stop();
        beside.into_iter().for_each(|it| it.join().expect("a neighbour does not panic"));
        outcome
    })?;
    neighbours.check()?;
    Ok(answers.into_inner().expect("plain"))
}

/// The choices of an answer; a busy server is asked again.
fn patiently(address: &str, body: &Value) -> anyhow::Result<Value> {
    loop {
        let (status, text) = client::ask(address, "/v1/completions", body)?;
        match status {
            200 => return Ok(serde_json::from_str::<Value>(&text)?["choices"].take()),
            429 => std::thread::sleep(Duration::from_millis(20)),
            _ => bail!("{status}: {text}"),
        }
    }
}
