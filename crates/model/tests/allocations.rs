//! A forward pass in steady state allocates nothing, in any weight layout.
//!
//! The worker of a team of two takes its scratch when it first comes to help, and when that is
//! depends on the machine. So its allocations must only come to an end: one of a few runs has none,
//! while a pass that allocates each time, or at each border of a chunk, does so in every run.

mod common;
mod counting;

use std::path::Path;

use counting::count;
use pelton_base::TokenId;
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{
    BlockTables, CHUNK_TOKENS, Compute, CpuDevice, Decoder, ForwardInput, ForwardSequence,
    GreedyRows, Lane, LoadOptions, ModelFiles, load,
};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

const N_STEPS: usize = 50;
/// Steps that may allocate; the first with 8 rows, the first with 1, and the first that begins a chunk
/// of recurrent layers are among them.
const N_WARM_UP: usize = 2;
/// Rows of the passes, one world after the other.
const ROWS: [usize; 4] = [1, 5, 8, 1];
/// Runs after which a worker has its scratch, however late it first came to help.
const N_RUNS_WITH_WORKER: usize = 10;
const BLOCK: usize = 16;
const N_BLOCKS: usize = (2 * CHUNK_TOKENS + N_STEPS).div_ceil(BLOCK);

const FORMATS: [(DType, Compute); 6] = [
    (DType::F32, Compute::F32),
    (DType::F16, Compute::Auto),
    (DType::Bf16, Compute::Auto),
    (DType::Q8_0, Compute::Auto),
    (DType::Q4_0, Compute::Auto),
    (DType::Q4_0, Compute::F32),
];

/// `m` sequences decode side by side, each in blocks of its own; returns the allocations of all
/// steps but the first ones.
fn decode(decoder: &mut Decoder<CpuDevice>, m: usize) -> u64 {
    let tables: Vec<[u32; N_BLOCKS]> =
        (0..m).map(|s| std::array::from_fn(|b| (b * m + s) as u32)).collect();
    let tokens: Vec<TokenId> = (0..m as u32).map(|s| TokenId(s * 7)).collect();
    let rows: Vec<usize> = (0..m).collect();
    let mut sequences: Vec<ForwardSequence<'_>> = (0..m)
        .map(|s| ForwardSequence {
            rows: s..s + 1,
            n_source: 0,
            first_position: 0,
            block_tables: BlockTables::one(&tables[s]),
            lane: None,
            tree: None,
        })
        .collect();
    let is_recurrent = decoder.spec().is_recurrent();
    let mut kv = decoder.try_new_kv_for(m * N_BLOCKS, BLOCK, m, 0).expect("memory");
    let (mut logits, mut likeliest) = (Vec::new(), Vec::new());
    let (n_layers, n_sampled) = (decoder.spec().layers.len(), decoder.spec().vocab_size);
    let mut n_allocations = 0;
    for step in 0..N_WARM_UP + N_STEPS {
        for (s, sequence) in sequences.iter_mut().enumerate() {
            // Recurrent layers begin a chunk among the first steps, and another one among the rest.
            sequence.first_position = match (is_recurrent, step < N_WARM_UP) {
                (false, _) => step,
                (true, true) => CHUNK_TOKENS - 1 + step,
                (true, false) => CHUNK_TOKENS * 3 / 2 + step,
            };
            sequence.lane = is_recurrent.then(|| Lane::at(s, sequence.first_position));
        }
        if step == N_WARM_UP {
            n_allocations = 0;
        }
        let input = ForwardInput { tokens: &tokens, sequences: &sequences, logits_rows: &rows };
        // As many rows want logits as want none, or one more.
        let greedy = GreedyRows { n_rows: m / 2, n_sampled, tokens: &mut likeliest };
        count(&mut n_allocations, || decoder.forward(&mut kv, &input, &mut logits));
        count(&mut n_allocations, || {
            decoder.forward_greedy(n_layers, &mut kv, &input, &mut logits, greedy);
        });
    }
    n_allocations
}

fn check(label: &str, files: &ModelFiles, compute: Compute) {
    for kernels in Kernels::available() {
        for (n_threads, n_runs) in [(1, 1), (2, N_RUNS_WITH_WORKER)] {
            let backend = CpuDevice::new(Cpu::with(kernels, n_threads));
            let options = LoadOptions { compute, ..LoadOptions::default() };
            let mut decoder = load(files, backend, &options).expect("it loads");
            for m in ROWS {
                let mut n_allocations = Vec::new();
                while n_allocations.len() < n_runs && n_allocations.last() != Some(&0) {
                    n_allocations.push(decode(&mut decoder, m));
                }
                assert_eq!(
                    n_allocations.last(),
                    Some(&0),
                    "{label} {compute:?} {}, {n_threads} threads: runs of {N_STEPS} passes of {m} \
                     rows had {n_allocations:?} allocations",
                    kernels.name
                );
            }
        }
    }
}

fn a_forward_pass_in_steady_state_allocates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for (dtype, compute) in FORMATS {
        let file = folder.path().join("model.gguf");
        TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&file, dtype);
        check(dtype.name(), &ModelFiles::open(&file).expect("a model"), compute);
    }
    // Inputs in another order, and in blocks.
    for name in ["gptq-4-act", "fp8-block"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name);
        check(name, &common::open(&folder).files(), Compute::Auto);
    }
}

/// Norms after mixers, mixers beside each other, streams beside each other, learned positions,
/// slopes, experts, states: each has its buffers.
fn what_families_do_differently_allocates_nothing() {
    for name in [
        "gemma2",
        "gemma3n",
        "olmo2",
        "stablelm-parallel",
        "gpt2",
        "bloom",
        "qwen2-moe",
        "gpt-oss",
        "llama4",
        "deepseek-v2-lite",
        "deepseek-v2",
        "qwen3-next",
        "granite-hybrid",
        "nemotron-h",
        "jamba",
        "falcon-h1",
        "lfm2",
        "rwkv7",
    ] {
        let golden = common::golden(name);
        let mut decoder = golden.load(&golden.files(), Compute::Auto);
        let n_allocations = ROWS.map(|m| decode(&mut decoder, m));
        assert_eq!(n_allocations, [0; ROWS.len()], "{name}");
    }
}

fn main() {
    a_forward_pass_in_steady_state_allocates_nothing();
    what_families_do_differently_allocates_nothing();
}
