//! A server with few file descriptors, little address space, or both, and one that can write no file.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::client::{self, answer};
use super::neighbours::Neighbours;
use super::server::Server;

/// Commands of the shell that limit the server, and words for them.
const LIMITS: [(&str, &str); 4] = [
    ("ulimit -n 48", "48 open files"),
    ("ulimit -v 1500000", "1.5 GB of address space"),
    ("ulimit -n 48; ulimit -v 1500000; ulimit -u 4096", "both, and 4,096 processes"),
    (READ_ONLY, "all file systems read-only"),
];
/// Goes on in a mount namespace of its own, where every file system is read-only.
const READ_ONLY: &str = r#"exec unshare -r -m sh -c '
    while read -r _ _ _ _ place _; do mount -o remount,bind,ro "$place"; done \
        </proc/self/mountinfo 2>/dev/null
    if [ -w / ] || [ -w "${HOME:-/}" ]; then echo "files can still be written" >&2; exit 1; fi
    exec "$0" "$@"' "$0" "$@""#;
/// Silent connections, more than there are descriptors.
const SILENT: usize = 200;

pub(super) fn run(binary: &Path, seed: u64, seconds: u64) -> anyhow::Result<()> {
    let flags = ["--kv-memory", "16MiB", "--max-context", "256"];
    let free = Server::start(binary, &flags)?;
    let expected = answer(&free.address)?;
    drop(free);
    for (limit, words) in LIMITS {
        if limit == READ_ONLY && !is_possible(limit) {
            println!("NOTE: file systems cannot be made read-only here, so not tried: {words}");
            continue;
        }
        let mut server = Server::start_within(limit, binary, &flags)?;
        let neighbours = Neighbours::default();
        let slowest = std::thread::scope(|scope| {
            let clients = neighbours.start(scope, &server.address, seed, 6);
            let silent: Vec<_> = (0..SILENT).map(|_| client::connect(&server.address)).collect();
            let outcome = watch(&server.address, seconds, &expected);
            neighbours.stop();
            drop(silent);
            clients.into_iter().for_each(|it| it.join().expect("a client does not panic"));
            outcome
        });
        let slowest = slowest.with_context(|| format!("with {words}"))?;
        server.check_alive()?;
        neighbours.check().with_context(|| format!("with {words}"))?;
        println!(
            "{words}: {} requests beside {SILENT} silent connections, slowest /health {} ms",
            neighbours.n_requests.into_inner(),
            slowest.as_millis()
        );
    }
    Ok(())
}

/// Whether a program can be started within this limit.
fn is_possible(limit: &str) -> bool {
    Command::new("sh").args(["-c", limit, "true"]).output().is_ok_and(|it| it.status.success())
}

/// Asks for health and for an answer until the time is up; the slowest answer of `/health`.
fn watch(address: &str, seconds: u64, expected: &Value) -> anyhow::Result<Duration> {
    let (start, mut slowest) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < Duration::from_secs(seconds) {
        let asked = Instant::now();
        let (status, text) = client::get(address, "/health")?;
        ensure!(status == 200, "/health answers {status}: {text}");
        slowest = slowest.max(asked.elapsed());
        let found = answer(address)?;
        ensure!(found == *expected, "{found} instead of {expected}");
    }
    Ok(slowest)
}
