//! A step that only decodes allocates nothing, from the plan to the updates: requests run on, none
//! comes or goes. New blocks are part of it, each request fills several; so is one more request,
//! which waits for more blocks than are ever free.
//!
//! Log probabilities are not asked for: they are handed over to the client, and are new memory each
//! time. So is the event that carries a token, after the updates; it is not part of this either.
//! One thread: each worker of a larger team takes its scratch when it first comes to help.

#[path = "../../model/tests/counting/mod.rs"]
mod counting;

use counting::count;
use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, Slo, TokenId};
use pelton_engine::{
    Charts, Controller, ControllerConfig, CostFit, Execution, Executor, Extras, KvMemory, Limits,
    ModelExecutor, ModelExecutorConfig,
};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{Compute, CpuDevice, LoadOptions, ModelFiles, load};
use pelton_sched::{
    Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepLoad, StepUpdates, Tick,
};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use pelton_testkit::golden::decoder_named;
use std::time::Duration;

const N_STEPS: usize = 50;
/// Prefill, and the first decode step.
const N_WARM_UP: usize = 2;
const BLOCK: usize = 16;
/// Just enough for eight requests to the end of the test.
const N_BLOCKS: u32 = 41;

/// Allocations of each phase, over all steps that count.
#[derive(Debug, Default, PartialEq)]
struct Phases {
    schedule: u64,
    execute: u64,
    update: u64,
}

/// Ways of choosing tokens; each has its own path through the sampler.
fn samplings() -> [(&'static str, SamplingParams); 7] {
    let (plain, greedy) = (SamplingParams::default(), SamplingParams::greedy());
    [
        ("greedy", greedy.clone()),
        ("from all", SamplingParams { min_p: 0.01, ..plain.clone() }),
        ("top-k and top-p", SamplingParams { top_k: 20, top_p: 0.9, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.95, temperature: 0.4, ..plain.clone() }),
        (
            "with penalties and bias",
            SamplingParams {
                top_k: 40,
                repetition_penalty: 1.2,
                presence_penalty: 0.3,
                frequency_penalty: 0.2,
                logit_bias: vec![(TokenId(9), -1.0)],
                ..plain
            },
        ),
        ("greedy with penalties", SamplingParams { repetition_penalty: 1.2, ..greedy.clone() }),
        // Free of its mask from the middle on.
        ("greedy with a least length", SamplingParams { min_tokens: N_STEPS / 2, ..greedy }),
    ]
}

/// `n` requests that last longer than the test, each of a prompt and a prompt length of its own, and
/// one that does not fit beside them.
fn requests(sampling: &[SamplingParams], n: usize) -> Vec<Request> {
    let n_prompt = |i| if i < n { 3 + 5 * i } else { (N_BLOCKS as usize - 1) * BLOCK };
    (0..=n)
        .map(|i| Request {
            id: RequestId(i as u64),
            ask: Ask {
                prompt: (0..n_prompt(i) as u32)
                    .map(|j| TokenId((j * 11 + 7 * i as u32) % 250))
                    .collect(),
                sampling: SamplingParams { seed: i as u64, ..sampling[i % sampling.len()].clone() },
                choice: 0,
                max_tokens: 2 * (N_WARM_UP + N_STEPS),
                stop_tokens: vec![TokenId(1000)],
                service: ServiceParams::default(),
                prediction: Vec::new(),
                constraint: None,
            },
        })
        .collect()
}

fn run(file: &ModelFiles, requests: Vec<Request>, n_blocks: u32) -> Phases {
    let options = LoadOptions { compute: Compute::Auto, ..LoadOptions::default() };
    let backend = CpuDevice::new(Cpu::with(Kernels::best(), 1));
    let decoder = load(file, backend, &options).expect("it loads");
    let config = ModelExecutorConfig {
        block_size: BLOCK,
        memory: KvMemory::Blocks(n_blocks),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers: None,
        verification: Default::default(),
        states: Default::default(),
    };
    let mut executor = ModelExecutor::new(decoder, config).expect("KV memory");
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_context: executor.max_context_tokens(),
        states: executor.kv_capacity().states,
        windows: executor.kv_capacity().windows,
        ..SchedulerConfig::new(executor.kv_capacity().n_blocks, BLOCK)
    });
    let n_running = requests.len() - 1;
    for request in requests {
        executor.add(&request, Extras::default()).expect("no rule panics");
        scheduler.add(request);
    }
    let (mut plan, mut execution) = (SchedulerOutput::default(), Execution::default());
    let mut updates = StepUpdates::default();
    let mut phases = Phases::default();
    for step in 0..N_WARM_UP + N_STEPS {
        if step == N_WARM_UP {
            phases = Phases::default();
        }
        let now = Tick(step as u64);
        count(&mut phases.schedule, || scheduler.schedule(now, &Signals::default(), &mut plan));
        count(&mut phases.execute, || {
            execution.clear();
            executor.launch(&plan);
            executor.collect(&plan, &mut execution).expect("it computes");
        });
        count(&mut phases.update, || scheduler.update(&execution.step, &mut updates));
        assert_eq!(updates.tokens.len(), n_running, "everyone who runs gets a token");
        assert!(updates.sequences.iter().all(|update| update.finish.is_none()), "and goes on");
        assert!(plan.preempted.is_empty() && scheduler.n_waiting() == 1, "{scheduler}");
    }
    phases
}

fn a_step_that_only_decodes_allocates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for dtype in [DType::Bf16, DType::Q8_0] {
        let file = folder.path().join("model.gguf");
        TinyModel { tokenizer: false, max_context: 1024, ..TinyModel::default() }
            .write_gguf(&file, dtype);
        let files = ModelFiles::open(&file).expect("a model");
        let mut worlds: Vec<(&str, Vec<SamplingParams>)> =
            samplings().into_iter().map(|(name, sampling)| (name, vec![sampling])).collect();
        worlds.push(("all sorts", samplings().map(|(_, sampling)| sampling).to_vec()));
        for (name, sampling) in &worlds {
            for n_requests in [1, 8] {
                let Phases { schedule, execute, update } =
                    run(&files, requests(sampling, n_requests), N_BLOCKS);
                assert_eq!(
                    schedule + execute + update,
                    0,
                    "{dtype:?}, {n_requests} requests, {name}: allocations in {N_STEPS} steps: \
                     {schedule} in schedule, {execute} in execute, {update} in update"
                );
            }
        }
    }
}

/// Layers with a window, behind which blocks are freed meanwhile; some read the pages of others, and have
/// vectors of tokens, residual streams or experts beside perceptrons.
fn a_step_that_only_decodes_with_windows_allocates_nothing() {
    // Blocks that do not hold the long request: two groups of layers with a window, or one.
    let fixtures = [("gemma3", 100), ("gemma4", 75), ("gemma4-experts", 100), ("gemma3n", 100)];
    for (fixture, n_blocks) in fixtures {
        let folder = tempfile::tempdir().expect("a folder");
        decoder_named(fixture).checkpoint.write_bare_folder(folder.path());
        let config = folder.path().join("config.json");
        let text = std::fs::read_to_string(&config).expect("config");
        let (short, long) =
            ("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 4096");
        std::fs::write(&config, text.replace(short, long)).expect("config");
        let files = ModelFiles::open(folder.path()).expect("a model");
        assert!(files.spec().expect("a spec").kv_windows().is_some());
        for n_requests in [1, 7] {
            let sampling = samplings().map(|(_, sampling)| sampling);
            let Phases { schedule, execute, update } =
                run(&files, requests(&sampling, n_requests), n_blocks);
            assert_eq!([schedule, execute, update], [0; 3], "{fixture}: {n_requests} requests");
        }
    }
}

/// Layers with states, whose chunks begin and end meanwhile.
fn a_step_that_only_decodes_with_states_allocates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    decoder_named("qwen3-next").checkpoint.write_bare_folder(folder.path());
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("config");
    let (short, long) = ("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 4096");
    std::fs::write(&config, text.replace(short, long)).expect("config");
    let files = ModelFiles::open(folder.path()).expect("a model");
    for n_requests in [1, 7] {
        let sampling = samplings().map(|(_, sampling)| sampling);
        let Phases { schedule, execute, update } =
            run(&files, requests(&sampling, n_requests), N_BLOCKS);
        assert_eq!([schedule, execute, update], [0; 3], "{n_requests} requests");
    }
}

/// The loop measures steps and makes decisions, for as many steps as make it decide.
fn measuring_and_steering_allocate_nothing() {
    const MS: u64 = 1_000_000;
    let slo = Slo { ttft: None, tpot: Some(Duration::from_millis(50)) };
    let most = Limits { batch_tokens: 512, running: 64 };
    let (mut fit, mut charts) = (CostFit::default(), Charts::default());
    let mut controller = Controller::new(slo, most, ControllerConfig::default());
    let (mut n_allocations, mut n_decisions) = (0, 0);
    for step in 1..300 {
        let now = step * 100 * MS;
        count(&mut n_allocations, || {
            let mut load = StepLoad::default();
            load.add_rows(step as usize, 1 + step as usize % 7, 1);
            fit.observe(&load, (80 + step % 50) * MS);
            charts.step.record(now, 100 * MS, 1);
            charts.tpot.record(now, 100 * MS, 8);
            n_decisions += u32::from(controller.look(now, &charts, 8).is_some());
            assert!(charts.snapshot(0).step.p99_ns > 90 * MS);
        });
    }
    assert!(n_decisions > 2 && fit.cost().is_known());
    assert_eq!(n_allocations, 0, "measuring and steering");
}

fn main() {
    a_step_that_only_decodes_allocates_nothing();
    a_step_that_only_decodes_with_states_allocates_nothing();
    a_step_that_only_decodes_with_windows_allocates_nothing();
    measuring_and_steering_allocate_nothing();
}
