//! `kill -9` at random moments of start and service, with packed weights on disk.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::client::answer;
use super::neighbours::Neighbours;
use super::server::Server;

pub(super) fn run(binary: &Path, seed: u64, times: usize, model: &Path) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(seed);
    let folder = std::env::temp_dir().join(format!("pelton-kill-{}", std::process::id()));
    let outcome = within(&folder, binary, &mut random, times, model);
    // Left behind only where the system refuses.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn within(
    folder: &Path,
    binary: &Path,
    random: &mut SmallRng,
    times: usize,
    model: &Path,
) -> anyhow::Result<()> {
    let packed = folder.join("packed");
    std::fs::create_dir_all(&packed).with_context(|| folder.display().to_string())?;
    let cache = format!("--packed-cache={}", packed.display());
    let model = model.to_str().context("the model's path is UTF-8")?;
    let flags = ["-m", model, cache.as_str(), "--max-context", "256"];
    let started = Instant::now();
    let expected = answer(&Server::start(binary, &flags)?.address)?;
    let start_time = started.elapsed();
    let (mut n_early, mut n_serving) = (0, 0);
    for i in 0..times {
        // Without its file the next start writes one.
        if random.random::<bool>() {
            for file in std::fs::read_dir(&packed)? {
                std::fs::remove_file(file?.path())?;
            }
        }
        if random.random::<bool>() {
            let mut child = Server::spawn(binary, &flags)?;
            std::thread::sleep(start_time.mul_f64(random.random_range(0.0..1.1)));
            child.kill()?;
            child.wait()?;
            n_early += 1;
        } else {
            let server = Server::start(binary, &flags)?;
            let address = server.address.clone();
            let neighbours = Neighbours::default();
            std::thread::scope(|scope| {
                neighbours.start(scope, &address, i as u64, 3);
                server.kill(Duration::from_millis(random.random_range(0..200)));
                neighbours.stop();
            });
            n_serving += 1;
        }
        let again =
            answer(&Server::start(binary, &flags)?.address).with_context(|| format!("kill {i}"))?;
        ensure!(again == expected, "after kill {i}: {again} instead of {expected}");
    }
    let left: Vec<_> = std::fs::read_dir(&packed)?.collect::<Result<_, _>>()?;
    println!(
        "{times} kills, {n_early} during the start and {n_serving} in service: every restart gave \
         the same answer; files left: {}",
        left.len()
    );
    Ok(())
}
