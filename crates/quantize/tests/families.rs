//! Every golden decoder is quantized, or refused for a reason: what is written loads, and computes
//! nearly what the source computes.

use pelton_base::TokenId;
use pelton_kernels::Cpu;
use pelton_model::{
    BlockTables, Compute, ForwardInput, ForwardSequence, LoadOptions, ModelFiles, load_cpu,
};
use pelton_quant::solve::{Grid, gptq};
use pelton_quantize::{Method, Options, QuantizeError, Samples, Watch, quantize};
use pelton_testkit::golden::{GoldenDecoder, decoders};

/// Root of the mean square error of all logits, relative to that of the logits.
const BOUND: f64 = 0.08;

fn logits(files: &ModelFiles, golden: &GoldenDecoder) -> Vec<f32> {
    let options = LoadOptions {
        compute: Compute::F32,
        n_threads: Some(1),
        max_context: golden.max_context,
        ..LoadOptions::default()
    };
    let mut decoder = load_cpu(files, &options).expect("loads");
    let tokens = golden.tokens();
    let n_blocks = tokens.len().div_ceil(16);
    let mut kv = decoder.new_kv(n_blocks, 16);
    let n_groups = decoder.spec().n_kv_groups();
    let tables: Vec<u32> = (0..n_groups).flat_map(|_| 0..n_blocks as u32).collect();
    let sequence = ForwardSequence {
        rows: 0..tokens.len(),
        first_position: 0,
        block_tables: BlockTables::new(&tables, n_groups),
        tree: None,
    };
    let all: Vec<usize> = (0..tokens.len()).collect();
    let input = ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &all };
    let mut logits = Vec::new();
    decoder.forward(&mut kv, &input, &mut logits);
    logits
}

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let delta: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let whole: f64 = expected.iter().map(|x| square(*x)).sum();
    (delta / whole).sqrt()
}

#[test]
fn every_family_is_quantized_or_refused_for_a_reason() {
    let temp = tempfile::tempdir().expect("temp");
    let (mut n_solved, mut n_rounded, mut bad) = (0, 0, Vec::new());
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let source = temp.path().join(&name);
        golden.checkpoint.write_bare_folder(&source);
        let mut files = ModelFiles::open(&source).expect(&name);
        let vocab = files.config().vocab_size as u32;
        let length = files.spec().expect("a spec").max_context.min(24);
        let text: Vec<TokenId> = (0..400_u32).map(|i| TokenId(i * 7919 % vocab)).collect();
        let samples = Samples::choose(&text, &[], length, 8, 0).expect("samples");
        let grid = Grid { bits: 8, group: None, symmetric: true };
        for method in [Method::Gptq, Method::Rtn] {
            let out = temp.path().join(format!("{name}-{}", method.name()));
            let options = Options { method, grid, gptq: gptq::Options::default() };
            let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
            let samples = method.needs_calibration().then_some(&samples);
            let cpu = Cpu::new(Some(1)).expect("kernels");
            match quantize(&mut files, &options, samples, cpu, &out, watch) {
                Ok(_) => {
                    let found = logits(&ModelFiles::open(&out).expect(&name), &golden);
                    let error = error(&found, &golden.logits.concat());
                    if error.is_nan() || error > BOUND {
                        bad.push(format!("{name} {}: error {error:.3}", method.name()));
                    }
                    let is_rounded = method == Method::Rtn;
                    *(if is_rounded { &mut n_rounded } else { &mut n_solved }) += 1;
                }
                Err(QuantizeError::Source { why, .. })
                    if why.contains("several experts") || why.contains("latent attention") => {}
                Err(QuantizeError::Shape { .. }) => {}
                Err(error) => bad.push(format!("{name} {}: {error}", method.name())),
            }
        }
        std::fs::remove_dir_all(&source).expect("removed");
    }
    println!("{n_solved} solved, {n_rounded} rounded");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(n_solved >= 35 && n_rounded > n_solved, "{n_solved} solved, {n_rounded} rounded");
}
