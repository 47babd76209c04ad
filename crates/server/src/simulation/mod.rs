//! The whole server in one thread, under a schedule that a seed decides, with faults.
//!
//! ```text
//!   seed ──▶ world     scheduling choices, KV memory, drafts, faults and their rates
//!        ──▶ schedule  the next to act: a client, the engine, the clock, the operator
//!
//!   clients ─▶ router ─▶ library ─▶ mailbox ─▶ engine, turn by turn ─▶ executor with faults
//! ```
//!
//! After every seed these hold:
//!
//! - every request has ended exactly once: with an answer, an error or its client's departure;
//! - an answer that says it is complete equals the answer of an undisturbed engine;
//! - without a fault there is no error of the server;
//! - no request is counted as running, and every KV block is free;
//! - `/health` and `/ready` said the truth whenever they were asked.
//!
//! A failing seed is printed; `PELTON_SIMULATION_SEED=N cargo test --workspace --lib simulation` runs it
//! alone, and `PELTON_SIMULATION_SEEDS=N` changes how many are run.

mod client;
#[path = "../../../engine/tests/fake/mod.rs"]
#[allow(dead_code)]
mod fake;
mod faults;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use pelton_sim::Random;

use world::{Deeds, World};

/// Seeds of one run of the tests; CI runs 10,000.
const SEEDS: u64 = 2_000;
/// Turns of the engine after which a world without new requests must be quiet.
const MOST_TURNS: usize = 20_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs one world to its end.
fn run(seed: u64) -> Deeds {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // One thread does its work in order, so waiting for the last piece waits for all of it.
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut world = World::new(seed);
        while world.act().await {}
        world.finish(MOST_TURNS).await
    })
}

#[test]
fn every_request_ends_once_and_right_whatever_fails() {
    // Panics are part of the schedule; their messages would bury the one that matters.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_planned = info.payload_as_str().is_some_and(|text| text.contains(faults::PLANNED));
        if !is_planned {
            hook(info);
        }
    }));
    if let Some(seed) = number("PELTON_SIMULATION_SEED") {
        println!("seed {seed}: {:?}", run(seed));
        return;
    }
    let n_seeds = number("PELTON_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    // More than there are processors, because a server waits for its rooms.
    let n_threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    let all = std::thread::scope(|scope| {
        let work = || {
            let mut sum = Deeds::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= n_seeds {
                    return sum;
                }
                let outcome = std::panic::catch_unwind(|| run(seed));
                match outcome {
                    Ok(deeds) => sum.add(&deeds),
                    Err(panic) => {
                        eprintln!("PELTON_SIMULATION_SEED={seed} fails");
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        };
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        let mut all = Deeds::default();
        threads.into_iter().for_each(|it| all.add(&it.join().expect("no seed fails")));
        all
    });
    println!("{n_seeds} seeds: {all:?}");
    if n_seeds >= SEEDS {
        all.check_coverage();
    }
}

/// `true` once in `n`.
fn one_in(random: &mut Random, n: u64) -> bool {
    random.below(n) == 0
}
