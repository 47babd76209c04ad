//! The simulator compared with hand-computed times and with queueing theory, and the promise that
//! every request that is taken ends.

use pelton_base::{Slo, TenantId};
use pelton_sched::{
    Batching, Choices, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder,
    SchedulerConfig, StepCost, TenantConfig,
};
use pelton_sim::Random;
use pelton_sim::report::{Grouping, Ledger, Report};
use pelton_sim::trace::{Prefix, Tenants, Trace, TraceRequest, Workload, WorkloadKind};
use pelton_sim::{SimConfig, SimProgress, simulate};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

/// 1,000 ns a step, 100 ns a token, 10 ns a sample, 1 ns a pair, 50 ns a block.
const COST: StepCost = StepCost {
    base_ps: 1_000_000,
    token_ps: 100_000,
    sample_ps: 10_000,
    attended_ps: 1_000,
    moved_block_ps: 50_000,
};

fn scheduler(n_blocks: u32, block_size: usize, choices: Choices) -> SchedulerConfig {
    SchedulerConfig { choices, ..SchedulerConfig::new(n_blocks, block_size) }
}

fn config(scheduler: SchedulerConfig) -> SimConfig {
    SimConfig { check: true, ..SimConfig::new(scheduler, COST) }
}

fn serve(config: &SimConfig, requests: &[TraceRequest]) -> Ledger {
    let mut watch = |_: SimProgress| ControlFlow::Continue(());
    simulate(config, requests.iter().copied().map(Ok), &mut watch).expect("nobody is stuck")
}

fn report(ledger: &Ledger) -> Report {
    let grouping = Grouping { tenants: &Tenants::default(), long_prompt_tokens: 1_024 };
    Report::new(ledger, grouping)
}

#[test]
fn three_requests_take_the_time_that_a_hand_computes() {
    let requests = [
        TraceRequest::new(0, 10, 3),
        TraceRequest::new(500, 20, 2),
        TraceRequest::new(1_000_000, 5, 1),
    ];
    let ledger = serve(&config(SchedulerConfig::new(100, 16)), &requests);
    // 1: ten tokens of A.              1000 + 10 x 100 + 10 +       55       = 2065, until 2065
    // 2: one of A and twenty of B.     1000 + 21 x 100 + 20 + 11 + 210       = 3341, until 5406
    // 3: one of each.                  1000 +  2 x 100 + 20 + 12 +  21       = 1253, until 6659
    // 4: five of C.                    1000 +  5 x 100 + 10 +       15       = 1525, until 1001525
    let moments: Vec<[u64; 4]> = ledger
        .records
        .iter()
        .map(|r| [r.arrived_ns, r.started_ns, r.first_ns, r.ended_ns])
        .collect();
    let a = [0, 0, 2_065, 6_659];
    let b = [500, 2_065, 5_406, 6_659];
    let c = [1_000_000, 1_000_000, 1_001_525, 1_001_525];
    assert_eq!(moments, [a, b, c]);
    let tpot: Vec<Option<u64>> = ledger.records.iter().map(|r| r.tpot_ns()).collect();
    assert_eq!(tpot, [Some(2_297), Some(1_253), None]);
    assert_eq!(ledger.totals.steps, 4);
    assert_eq!(ledger.totals.computed_tokens, 10 + 21 + 2 + 5);
    assert_eq!(ledger.totals.recomputed_tokens, Some(0));
    assert!((ledger.totals.busy_s - 8_184e-9).abs() < 1e-15);
    // One ran for 2065 and 1525 ns, two for 3341 and 1253.
    let running = (2_065.0 + 1_525.0 + 2.0 * (3_341.0 + 1_253.0)) / 8_184.0;
    assert!((ledger.totals.mean_running.expect("counted") - running).abs() < 1e-12);
    let told = report(&ledger);
    assert_eq!((told.offered, told.all.finished, told.unfinished), (3, 3, 0));
    assert!((told.all.ttft_ms.expect("three").p50 - 2_065e-6).abs() < 1e-12);
}

#[test]
fn one_server_with_equal_work_queues_as_long_as_theory_says() {
    // M/D/1: the mean wait is load x service / (2 (1 - load)). One token in, one out, alone.
    const SERVICE_NS: f64 = 1_000.0 + 100.0 + 10.0 + 1.0;
    let scheduler = scheduler(8, 16, Choices { max_running: 1, ..Choices::default() });
    let config = SimConfig { check: false, ..config(scheduler) };
    for load in [0.4, 0.7] {
        let mut random = Random::new(11, 0);
        let mut now = 0.0;
        let requests: Vec<TraceRequest> = (0..60_000)
            .map(|_| {
                now += random.exponential(SERVICE_NS / load);
                TraceRequest::new(now as u64, 1, 1)
            })
            .collect();
        let told = report(&serve(&config, &requests));
        let wait = told.all.queue_ms.expect("requests").mean * 1e6;
        let theory = load * SERVICE_NS / (2.0 * (1.0 - load));
        assert!((wait / theory - 1.0).abs() < 0.05, "load {load}: {wait} ns, theory {theory} ns");
        let busy_share = told.busy_share.expect("the simulator sees all steps");
        assert!((busy_share / load - 1.0).abs() < 0.02, "{busy_share}");
    }
}

#[test]
fn the_same_trace_gives_the_same_ledger_and_noise_has_a_seed() {
    let requests: Vec<_> = Workload::new(WorkloadKind::Bursty, 200, 4).requests().collect();
    let cost = StepCost { base_ps: 18_000_000_000, token_ps: 1_300_000_000, ..StepCost::default() };
    let scheduler = SchedulerConfig::new(400, 16);
    let run = |noise, seed| {
        let config = SimConfig { noise, seed, ..SimConfig::new(scheduler.clone(), cost) };
        let ledger = serve(&config, &requests);
        assert_eq!(ledger.records.len(), 200);
        (ledger.records, ledger.totals)
    };
    assert_eq!(run(0.0, 1), run(0.0, 2));
    assert_eq!(run(0.2, 1), run(0.2, 1));
    assert_ne!(run(0.2, 1), run(0.2, 2));
    assert_ne!(run(0.2, 1), run(0.0, 1));
}

#[test]
fn a_small_pool_preempts_and_what_is_lost_is_counted() {
    let choices = Choices {
        preemption: PreemptionMode::Recompute,
        prefix_cache: false,
        ..Choices::default()
    };
    let scheduler = scheduler(12, 4, choices);
    let requests: Vec<_> = (0..6).map(|i| TraceRequest::new(i, 8, 24)).collect();
    let ledger = serve(&config(scheduler), &requests);
    assert_eq!(ledger.records.len(), 6);
    assert!(ledger.records.iter().all(|record| record.is_complete && record.n_output == 24));
    assert!(ledger.totals.preemptions > 0);
    let n_again = ledger.totals.recomputed_tokens.expect("counted");
    assert!(n_again > 0);
    assert_eq!(ledger.totals.recomputed_preemptions, Some(ledger.totals.preemptions));
    assert_eq!(ledger.totals.restored_preemptions, Some(0));
    // The last token of each is sampled and never computed.
    assert_eq!(ledger.totals.computed_tokens, 6 * (8 + 24 - 1) + n_again);
}

#[test]
fn who_cannot_be_served_in_time_is_refused_and_counted_against_goodput() {
    let slo = Slo { ttft: Some(Duration::from_micros(10)), tpot: None };
    let tenant = TenantConfig { slo, ..TenantConfig::default() };
    let choices = Choices { tenants: vec![tenant], max_running: 1, ..Choices::default() };
    let scheduler = scheduler(100, 16, choices);
    // The first takes 7 us; of those that come meanwhile not all can begin within ten.
    let mut requests = vec![TraceRequest::new(0, 50, 1)];
    requests.extend((0..5).map(|i| TraceRequest::new(100 + i, 30, 1)));
    requests.push(TraceRequest::new(200, 5_000, 1));
    let open = SimConfig { admission: false, ..config(scheduler.clone()) };
    let (strict, open) = (serve(&config(scheduler), &requests), serve(&open, &requests));
    let (strict, open) = (report(&strict), report(&open));
    assert_eq!(strict.refused["prompt too long"], 1);
    assert!(strict.refused["deadline unreachable"] >= 2, "{:?}", strict.refused);
    let n_refused = strict.refused.values().sum::<u64>() as usize;
    assert_eq!(strict.all.finished + n_refused, 7);
    assert_eq!((open.all.finished, open.refused["prompt too long"]), (6, 1));
    for told in [&strict, &open] {
        assert!(told.all.goodput_share < 1.0);
        assert!(told.all.goodput_share * 7.0 >= 1.0 - 1e-9);
    }
}

#[test]
fn prompts_that_wait_delay_a_newcomer_by_what_of_them_is_not_cached() {
    let choices = Choices { max_running: 1, ..Choices::default() };
    let config = config(scheduler(1_000, 16, choices));
    let refused = |prefix_of: fn(u64) -> u64| {
        let request = |number: u64, at_us: u64| {
            let prefix = Prefix { id: prefix_of(number), n_tokens: 640 };
            TraceRequest::new(1_000 * at_us, 650, 100).with_prefix(prefix).expect("room")
        };
        // The first computes its prompt within 300 us, and then the others wait for its answer.
        let mut requests: Vec<_> = (0..5).map(|i| request(i, 400 * i.min(1))).collect();
        requests.push(request(5, 410));
        requests[5].slo.ttft = Some(Duration::from_micros(100));
        report(&serve(&config, &requests)).refused
    };
    assert_eq!(refused(|_| 7), BTreeMap::new(), "ten tokens of each");
    assert_eq!(refused(|number| number)["deadline unreachable"], 1);
    // Its own prompt is cached, and those that wait are not.
    assert_eq!(refused(|number| number % 5)["deadline unreachable"], 1);
}

#[test]
fn a_tenant_with_too_many_waiting_is_refused_and_the_other_is_not() {
    let named = |name: &str, max_waiting| TenantConfig {
        name: name.to_owned(),
        max_waiting,
        ..TenantConfig::default()
    };
    let tenants = vec![named("default", 2), named("free", usize::MAX)];
    let choices = Choices { tenants, max_running: 1, ..Choices::default() };
    let scheduler = scheduler(100, 16, choices);
    let of = |at_ns, tenant| TraceRequest {
        tenant: TenantId(tenant),
        ..TraceRequest::new(at_ns, 100, 10)
    };
    let requests: Vec<_> = (0..10).flat_map(|i| [of(i, 0), of(i, 1)]).collect();
    let mut tenants = Tenants::default();
    tenants.number("free").expect("room");
    let ledger = serve(&config(scheduler), &requests);
    let told = Report::new(&ledger, Grouping { tenants: &tenants, long_prompt_tokens: 1_024 });
    let [default, free] = &told.tenants[..] else { panic!("two tenants") };
    assert_eq!((free.finished, free.refused), (10, 0));
    assert_eq!(default.finished + default.refused, 10);
    assert_eq!(told.refused["queue full"], default.refused as u64);
    assert!(default.refused >= 7, "{}", default.refused);
}

#[test]
fn service_until_the_last_arrival_is_shared_out() {
    let requests: Vec<_> = Workload::new(WorkloadKind::Tenants, 300, 2).requests().collect();
    let names = ["default", "many", "few"];
    let tenants: Vec<TenantConfig> = names
        .iter()
        .map(|name| TenantConfig { name: (*name).to_owned(), ..TenantConfig::default() })
        .collect();
    let choices = Choices { tenants, ..Choices::default() };
    let ledger = serve(&config(scheduler(4_000, 16, choices)), &requests);
    // So cheap are these steps that everyone gets what it asks for: ten to one.
    let [default, many, few] = ledger.service[..] else { panic!("three tenants") };
    assert_eq!(default, 0.0);
    assert!((6.0..16.0).contains(&(many / few)), "{many} to {few}");
}

#[test]
fn whoever_watches_may_break_off() {
    let trace = Trace::Workload(Workload::new(WorkloadKind::Poisson, 100_000, 1));
    let config = SimConfig { check: false, ..config(SchedulerConfig::new(4_000, 16)) };
    let mut n_looks = 0;
    let mut watch = |_: SimProgress| {
        n_looks += 1;
        if n_looks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ledger = simulate(&config, trace.requests().expect("made"), &mut watch).expect("runs");
    let told = report(&ledger);
    assert_eq!(ledger.totals.steps, 3 * 1_024);
    assert!(told.offered > 0 && told.offered < 100_000);
    assert_eq!(told.offered, told.unfinished + told.all.finished as u64);
}

fn any_config() -> impl Strategy<Value = SchedulerConfig> {
    let choices = (
        prop::sample::select(PolicyKind::ALL),
        prop::sample::select(PriorityOrder::ALL),
        prop::sample::select(Batching::ALL),
        prop::sample::select(KvAllocation::ALL),
        prop::sample::select(PreemptionMode::ALL),
        prop::sample::select(Eviction::ALL),
        any::<bool>(),
    );
    let sizes = (2..24_u32, 1..6_usize, 0..16_u32, 1..24_usize, 1..12_usize, 1..6_usize);
    (choices, sizes, (4..60_usize, 1..50_u64, prop::bool::ANY)).prop_map(
        |(choices, sizes, (max_context, max_wait, is_targeted))| {
            let (policy, priority_order, batching, kv_allocation, preemption, eviction, cached) =
                choices;
            let (n_blocks, block_size, n_host_blocks, batch, chunk, max_running) = sizes;
            let target = is_targeted.then_some(Duration::from_micros(40));
            let tenant = |name: &str, weight, max_waiting| TenantConfig {
                name: name.to_owned(),
                weight,
                max_waiting,
                slo: Slo { ttft: target, tpot: target },
            };
            let choices = Choices {
                max_batch_tokens: batch,
                max_running,
                max_chunk_tokens: Some(chunk),
                policy,
                priority_order,
                max_wait: Duration::from_micros(max_wait),
                batching,
                kv_allocation,
                prefix_cache: cached,
                eviction,
                preemption,
                tenants: vec![tenant("default", 1, 100), tenant("b", 3, 5)],
                ..Choices::default()
            };
            SchedulerConfig {
                n_host_blocks,
                max_context,
                ..scheduler(n_blocks, block_size, choices)
            }
        },
    )
}

fn any_requests() -> impl Strategy<Value = Vec<TraceRequest>> {
    let request = (0..9_000_u64, 1..40_usize, 1..20_usize, 0..3_u32, -3..3_i32, 0..4_u64);
    prop::collection::vec(request, 1..30).prop_map(|requests| {
        let mut at_ns = 0;
        let made = requests.into_iter().map(|(gap, n_prompt, n_output, tenant, priority, text)| {
            at_ns += gap;
            let plain = TraceRequest {
                tenant: TenantId(tenant),
                priority,
                ..TraceRequest::new(at_ns, n_prompt, n_output)
            };
            let prefix = pelton_sim::trace::Prefix { id: text, n_tokens: n_prompt * 2 / 3 };
            if text == 0 { plain } else { plain.with_prefix(prefix).expect("shorter") }
        });
        made.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every request ends or is refused, whatever the limits and choices.
    #[test]
    fn every_request_ends(scheduler in any_config(), requests in any_requests(), admission: bool) {
        let context = scheduler.context_tokens();
        let config = SimConfig { admission, ..config(scheduler) };
        let ledger = serve(&config, &requests);
        prop_assert_eq!(ledger.records.len() + ledger.refusals.len(), requests.len());
        for record in &ledger.records {
            prop_assert!(record.is_complete);
            prop_assert!((record.n_prompt + record.n_output) as usize <= context);
            prop_assert!(record.arrived_ns <= record.started_ns);
            prop_assert!(record.started_ns < record.first_ns);
            prop_assert!(record.first_ns <= record.ended_ns);
        }
    }
}
