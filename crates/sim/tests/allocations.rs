//! The simulator adds no allocation to a step: a thousand more of them cost no more memory than the
//! buffers that grow to their size.

#[path = "../../model/tests/counting/mod.rs"]
mod counting;

use counting::count;
use pelton_sched::{Choices, SchedulerConfig, StepCost};
use pelton_sim::trace::TraceRequest;
use pelton_sim::{SimConfig, SimProgress, simulate};
use std::ops::ControlFlow;

/// Allocations of eight requests with answers of this length, and their steps.
fn allocations(n_output: usize) -> (u64, u64) {
    let cost = StepCost { base_ps: 1_000_000, ..StepCost::default() };
    let scheduler = SchedulerConfig {
        choices: Choices { prefix_cache: false, ..Choices::default() },
        ..SchedulerConfig::new(2_000, 16)
    };
    let config = SimConfig { check: false, ..SimConfig::new(scheduler, cost) };
    let requests = (0..8).map(|i| Ok(TraceRequest::new(i, 40, n_output)));
    let mut watch = |_: SimProgress| ControlFlow::Continue(());
    let mut n = 0;
    let ledger = count(&mut n, || simulate(&config, requests, &mut watch).expect("runs"));
    (n, ledger.totals.steps)
}

fn main() {
    let ((n_few, few), (n_many, many)) = (allocations(500), allocations(1_500));
    assert_eq!(many - few, 1_000);
    // Plans grow with the block tables, each doubling once or twice.
    assert!(n_many <= n_few + 8, "{n_few} allocations in {few} steps, {n_many} in {many}");
}
