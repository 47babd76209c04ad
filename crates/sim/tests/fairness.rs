//! A small tenant beside a flood, and a flood beside old requests, over an hour of simulated service.

use pelton_base::TenantId;
use pelton_sched::{Choices, PolicyKind, SchedulerConfig, TenantConfig};
use pelton_sim::report::{Ledger, RequestRecord, percentile};
use pelton_sim::trace::{TraceRequest, Workload, WorkloadKind};
use pelton_sim::{Prices, SimConfig, SimProgress, simulate};
use std::ops::ControlFlow;
use std::time::Duration;

/// The tenants of the workload of this name.
const MANY: TenantId = TenantId(1);
const FEW: TenantId = TenantId(2);

fn choices(policy: PolicyKind, max_wait_s: u64) -> Choices {
    let tenant = |name: &str| TenantConfig { name: name.to_owned(), ..TenantConfig::default() };
    Choices {
        policy,
        max_wait: Duration::from_secs(max_wait_s),
        tenants: ["default", "many", "few"].map(tenant).to_vec(),
        ..Choices::default()
    }
}

/// Serves requests as `pelton bench sim` does by default.
fn serve(choices: Choices, requests: &[TraceRequest]) -> Ledger {
    let scheduler = SchedulerConfig { choices, ..SchedulerConfig::new(4_096, 16) };
    let cost = Prices::default().cost().expect("good prices");
    let config = SimConfig { check: false, ..SimConfig::new(scheduler, cost) };
    let mut watch = |_: SimProgress| ControlFlow::Continue(());
    simulate(&config, requests.iter().copied().map(Ok), &mut watch).expect("it gets to its end")
}

fn flood() -> Vec<TraceRequest> {
    Workload::new(WorkloadKind::Tenants, 5_000, 0).requests().collect()
}

/// The requests of a tenant, in order of arrival.
fn of(tenant: TenantId, ledger: &Ledger) -> Vec<RequestRecord> {
    let mut records = ledger.records.clone();
    records.retain(|record| record.tenant == tenant);
    records.sort_unstable_by_key(|record| record.arrived_ns);
    records
}

/// The median time to the first token, in milliseconds.
fn median_ttft(records: &[RequestRecord]) -> u64 {
    let mut times: Vec<u64> = records.iter().map(RequestRecord::ttft_ns).collect();
    times.sort_unstable();
    percentile(&times, 50) / 1_000_000
}

#[test]
fn a_small_tenant_beside_a_flood_waits_at_most_twice_as_long_as_alone() {
    let requests = flood();
    let few: Vec<_> = requests.iter().copied().filter(|r| r.tenant == FEW).collect();
    let alone = of(FEW, &serve(choices(PolicyKind::Fair, 60), &few));
    let ledger = serve(choices(PolicyKind::Fair, 60), &requests);
    let longest = of(MANY, &ledger).iter().map(RequestRecord::ttft_ns).max();
    assert!(longest.is_some_and(|ns| ns > 300_000_000_000), "the queue is not old: {longest:?}");
    // The queue of the flood grows all the time, so each third of the run sees an older one.
    let beside = of(FEW, &ledger);
    assert!(beside.len() == alone.len() && alone.len() > 400, "{} requests", beside.len());
    let third = alone.len().div_ceil(3);
    for (alone, beside) in alone.chunks(third).zip(beside.chunks(third)) {
        let (alone, beside) = (median_ttft(alone), median_ttft(beside));
        println!("first token after {beside} ms, alone after {alone} ms");
        assert!(beside <= 2 * alone, "{beside} ms, alone {alone} ms");
    }
}

#[test]
fn a_fair_order_does_not_depend_on_the_longest_wait() {
    let requests = flood();
    let ledger = |max_wait_s| serve(choices(PolicyKind::Fair, max_wait_s), &requests);
    assert_eq!(ledger(1).records, ledger(86_400).records);
}

#[test]
fn under_priorities_old_requests_get_a_tenth_of_the_service_and_all_of_them_start() {
    // A hundred requests that are not urgent, and after them twice as many urgent ones as fit.
    let urgent = Workload::new(WorkloadKind::Poisson, 10_000, 0).at_rate(6.0).expect("a rate");
    let old = (0..100).map(|i| TraceRequest { tenant: FEW, ..TraceRequest::new(i, 200, 50) });
    let urgent = urgent.requests().map(|r| TraceRequest { tenant: MANY, priority: -1, ..r });
    let requests: Vec<_> = old.chain(urgent).collect();
    let ledger = serve(choices(PolicyKind::Priority, 60), &requests);
    let old = of(FEW, &ledger);
    assert_eq!(old.len(), 100);
    // The service until the last arrival: while there are always urgent requests.
    let last_arrival = requests.last().expect("some").at_ns;
    let last = old.iter().map(|record| record.ended_ns).max().expect("some");
    assert!(last < last_arrival, "old requests starve: {last} ns");
}
