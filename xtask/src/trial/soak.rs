//! Mixed traffic for a time, and a look at the process once a second.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::look::Look;
use super::neighbours::Neighbours;
use super::server::Server;

const CLIENTS: u64 = 12;
/// Growth of memory after the warm-up that is still level: caches fill, the allocator keeps pieces.
const LEVEL_BYTES: u64 = 16 << 20;
/// Further threads that the pool for blocking work may start.
const LEVEL_THREADS: u64 = 4;

pub(super) fn run(binary: &Path, seed: u64, seconds: u64) -> anyhow::Result<()> {
    let mut server = Server::start(binary, &["--kv-memory", "32MiB", "--max-context", "512"])?;
    let address = server.address.clone();
    let (pid, neighbours) = (server.pid(), Neighbours::default());
    let look_for = |seconds: u64| -> anyhow::Result<Look> {
        let (start, mut most) = (Instant::now(), Look::default());
        while start.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_secs(1));
            most = most.max(Look::at(pid)?);
        }
        Ok(most)
    };
    let idle = Look::at(pid)?;
    let looks = std::thread::scope(|scope| {
        let clients = neighbours.start(scope, &address, seed, CLIENTS);
        // The last third is compared with the first one after the warm-up.
        let looks = look_for(seconds / 5).and_then(|_| {
            let first = look_for(seconds / 3)?;
            look_for(seconds / 3)?;
            Ok((first, look_for(seconds / 3)?))
        });
        neighbours.stop();
        clients.into_iter().for_each(|it| it.join().expect("a client does not panic"));
        looks
    });
    let (first, last) = looks?;
    server.check_alive()?;
    std::thread::sleep(Duration::from_secs(1));
    let after = Look::at(pid)?;
    println!("{} requests", neighbours.n_requests.load(Ordering::Relaxed));
    for (name, look) in [("idle", idle), ("first", first), ("last", last), ("after", after)] {
        let Look { resident, n_files, n_threads } = look;
        println!("{name:>6}: {:>5} MiB, {n_files} files, {n_threads} threads", resident >> 20);
    }
    neighbours.check()?;
    let growth = last.resident.saturating_sub(first.resident);
    ensure!(growth <= LEVEL_BYTES, "memory grew by {} MiB", growth >> 20);
    ensure!(after.n_files <= idle.n_files, "open files: {idle:?}, then {after:?}");
    let n_more = last.n_threads.saturating_sub(first.n_threads);
    ensure!(n_more <= LEVEL_THREADS, "threads: {first:?}, then {last:?}");
    Ok(())
}
