//! Time of one step of the scheduler: `cargo bench -p pelton-sched --bench step`.
//!
//! 256 requests run and 10,000 wait, as in a server under a heavy load. The time is that of
//! `schedule` and `update` together, without the model in between.

use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, Slo, TenantId, TokenId};
use pelton_sched::{
    Choices, PolicyKind, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepCost,
    StepOutput, StepUpdates, TenantConfig, Tick,
};
use std::time::{Duration, Instant};

const N_RUNNING: usize = 256;
const N_WAITING: u64 = 10_000;
const N_STEPS: usize = 1000;

fn request(id: u64) -> Request {
    let mut state = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut token = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        TokenId((state % 50_000) as u32)
    };
    Request {
        id: RequestId(id),
        ask: Ask {
            prompt: (0..500).map(|_| token()).collect(),
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens: 1_000_000,
            stop_tokens: Vec::new(),
            service: ServiceParams {
                tenant: TenantId((id % 8) as u32),
                slo: Slo { ttft: Some(Duration::from_secs(1)), tpot: Some(Duration::from_secs(1)) },
                ..ServiceParams::default()
            },
            prediction: Vec::new(),
            constraint: None,
        },
    }
}

fn tenant(number: usize) -> TenantConfig {
    TenantConfig { name: format!("tenant-{number}"), ..TenantConfig::default() }
}

fn main() {
    println!("{N_RUNNING} running, {N_WAITING} waiting; microseconds per step");
    println!("{:>10} {:>10} {:>10} {:>10}", "policy", "median", "p99", "worst");
    for &policy in PolicyKind::ALL {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            choices: Choices {
                max_running: N_RUNNING,
                max_batch_tokens: 2048,
                max_chunk_tokens: Some(512),
                policy,
                max_wait: Duration::from_secs(1 << 30),
                tenants: (0..8).map(tenant).collect(),
                ..Choices::default()
            },
            ..SchedulerConfig::new(40_000, 16)
        });
        for id in 0..N_RUNNING as u64 + N_WAITING {
            scheduler.add(request(id));
        }
        let cost = StepCost {
            base_ps: 18_000_000_000,
            token_ps: 1_300_000_000,
            sample_ps: 50_000_000,
            attended_ps: 300_000,
            moved_block_ps: 20_000_000,
        };
        let signals = Signals { cost, ..Signals::default() };
        let (mut plan, mut answer) = (SchedulerOutput::default(), StepOutput::default());
        let mut updates = StepUpdates::default();
        let mut now = 0;
        let mut times = Vec::new();
        let mut n_steady = 0;
        while n_steady < N_STEPS {
            let started = Instant::now();
            scheduler.schedule(Tick(now), &signals, &mut plan);
            let planned = started.elapsed();
            now += cost.step_ns(&plan.load);
            answer.clear();
            let samples = plan.sequences.iter().filter(|share| share.samples);
            answer.sampled.extend(samples.map(|share| (share.id, TokenId(7))));
            let started = Instant::now();
            scheduler.update(&answer, &mut updates);
            if answer.sampled.len() == N_RUNNING {
                times.push((planned + started.elapsed()).as_secs_f64() * 1e6);
                n_steady += 1;
            }
        }
        times.sort_by(f64::total_cmp);
        let [median, p99] = [N_STEPS / 2, N_STEPS * 99 / 100].map(|i| times[i]);
        let worst = times[N_STEPS - 1];
        println!("{:>10} {median:>10.1} {p99:>10.1} {worst:>10.1}", policy.name());
    }
}
