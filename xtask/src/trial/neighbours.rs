//! Clients that do their worst beside the one that is watched.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::bail;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::client;

const WORDS: &[&str] =
    &["the", "moth", "and", "a", "lamp", "saw", "her", "under", "river", "stone", "quietly", "ran"];

/// Counts of all neighbours.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pub(super) stop: AtomicBool,
    pub(super) n_requests: AtomicU64,
    /// Answers with a status of 500 or more, which no client may provoke, but for refusals while
    /// there are more connections than places.
    failures: Mutex<Vec<String>>,
}

impl Neighbours {
    /// Starts `n` clients, which go on until they are stopped.
    pub(super) fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        address: &'env str,
        seed: u64,
        n: u64,
    ) -> Vec<ScopedJoinHandle<'scope, ()>> {
        let client = |i| {
            move || {
                let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(1000) + i);
                while !self.stop.load(Ordering::Relaxed) {
                    self.n_requests.fetch_add(1, Ordering::Relaxed);
                    if let Some((status @ 500.., text)) = act(address, &mut random)
                        && !text.contains("too_many_connections")
                    {
                        self.failures.lock().expect("plain").push(format!("{status}: {text}"));
                    }
                }
            }
        };
        (0..n).map(|i| scope.spawn(client(i))).collect()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Fails where the server has, with the first of its failures.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let failures = self.failures.lock().expect("plain");
        match failures.first() {
            None => Ok(()),
            Some(first) => bail!("{} answers such as this one: {first}", failures.len()),
        }
    }
}

fn words(random: &mut SmallRng, n: usize) -> String {
    let word = |_| WORDS[random.random_range(0..WORDS.len())];
    (0..n).map(word).collect::<Vec<_>>().join(" ")
}

/// One request of some kind; status and body, where an answer was read.
fn act(address: &str, random: &mut SmallRng) -> Option<(u16, String)> {
    let n_words = [3, 20, 90][random.random_range(0..3)];
    let prompt = words(random, n_words);
    let body = json!({
        "prompt": prompt,
        "max_tokens": random.random_range(1..24),
        "temperature": f64::from(random.random_range(0..3_u8)) / 2.0,
        "seed": random.random::<u16>(),
        "n": random.random_range(1..3),
        "priority": random.random_range(-2..3),
        "stream": random.random::<bool>(),
    });
    match random.random_range(0..10) {
        // Complete requests, read to the end.
        0..5 => client::ask(address, "/v1/completions", &body).ok(),
        5 => {
            let messages = json!([{ "role": "user", "content": prompt }]);
            let chat = json!({ "messages": messages, "max_tokens": 8 });
            client::ask(address, "/v1/chat/completions", &chat).ok()
        }
        // Gone in the middle of the answer.
        6 | 7 => {
            let mut stream = client::connect(address).ok()?;
            stream
                .write_all(client::post(address, "/v1/completions", &body.to_string()).as_bytes())
                .ok()?;
            let mut some = [0; 64];
            let _ = stream.read(&mut some);
            None
        }
        // Gone in the middle of the request, or silent for a while before.
        8 => {
            let mut stream = client::connect(address).ok()?;
            let text = client::post(address, "/v1/completions", &body.to_string());
            stream.write_all(&text.as_bytes()[..random.random_range(0..text.len())]).ok()?;
            std::thread::sleep(Duration::from_millis(random.random_range(0..50)));
            None
        }
        // Nonsense.
        _ => {
            let body = match random.random_range(0..4) {
                0 => "{".repeat(100_000),
                1 => format!("{{\"prompt\":[{}0]}}", "1,".repeat(50_000)),
                2 => "{\"prompt\":\"a\",\"max_tokens\":-1}".to_owned(),
                _ => format!("{{\"prompt\":\"a\",\"stop\":[{}\"x\"]}}", "\"y\",".repeat(1000)),
            };
            let mut stream = client::connect(address).ok()?;
            stream.write_all(client::post(address, "/v1/completions", &body).as_bytes()).ok()?;
            client::read(stream).ok()
        }
    }
}
