//! Every golden decoder is quantized, or refused for a reason: what is written loads, and computes
//! nearly what the source computes.

use std::path::Path;

use pelton_base::TokenId;
use pelton_kernels::Cpu;
use pelton_model::{ExportOptions, ModelFiles, export};
use pelton_quantize::{
    Imatrix, Job, MatrixReport, Method, Options, QuantizeError, Report, Samples, Target, Watch,
    quantize,
};
use pelton_testkit::golden::{GoldenDecoder, NOT_IN_GGUF, decoder_named, decoders};

/// Root of the mean square error of all logits, relative to that of the logits, of 8 bits and less.
const BOUND: f64 = 0.08;
const BOUND_OF_4_BITS: f64 = 0.5;

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let delta: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let whole: f64 = expected.iter().map(|x| square(*x)).sum();
    (delta / whole).sqrt()
}

fn samples(files: &ModelFiles) -> Samples {
    let vocab = files.config().vocab_size as u32;
    let length = files.spec().expect("a spec").max_context.min(24);
    let text: Vec<TokenId> = (0..400_u32).map(|i| TokenId(i * 7919 % vocab)).collect();
    Samples::choose(&text, &[], length, 8, 0).expect("samples")
}

fn write(
    files: &mut ModelFiles,
    options: &Options,
    samples: Option<&Samples>,
    out: &Path,
) -> Result<Report, QuantizeError> {
    let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
    let job = Job { options, samples, resume: false, command: "", data: None };
    let cpu = Cpu::new(Some(1)).expect("kernels");
    quantize(files, &job, cpu, out, watch).map(|report| report.expect("not stopped"))
}

/// The error of what was written.
fn error_of(out: &Path, golden: &GoldenDecoder) -> f64 {
    let files = ModelFiles::open(out).expect("opens");
    error(&golden.logits_of(&files).expect("loads"), &golden.logits.concat())
}

/// A golden Llama, opened from a folder inside `folder`, and samples of its vocabulary.
fn llama(folder: &Path) -> (GoldenDecoder, ModelFiles, Samples) {
    let golden = decoder_named("llama");
    let source = folder.join("source");
    golden.checkpoint.write_bare_folder(&source);
    let files = ModelFiles::open(&source).expect("opens");
    let samples = samples(&files);
    (golden, files, samples)
}

#[test]
fn the_importance_of_inputs_is_the_same_in_a_folder_and_in_the_file_that_is_made_of_it() {
    let temp = tempfile::tempdir().expect("temp");
    let mut n_seen = 0;
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let source = temp.path().join(&name);
        golden.checkpoint.write_bare_folder(&source);
        let folder = ModelFiles::open(&source).expect(&name);
        let is_said = NOT_IN_GGUF.iter().all(|(other, _)| *other != name);
        // Layers of RWKV-7 read the values of the first, which a walk from layer to layer does not keep.
        if !is_said || !folder.arch().is_exported() || name == "rwkv7" {
            continue;
        }
        let out = temp.path().join(format!("{name}.gguf"));
        let written = export(&folder, &ExportOptions::default(), &out).expect(&name);
        let file = ModelFiles::open(&written.expect("not stopped")[0]).expect(&name);
        let samples = samples(&folder);
        let [of_folder, of_file] = [&folder, &file].map(|files| {
            let cpu = Cpu::new(Some(1)).expect("kernels");
            let measured = Imatrix::measure(files, &samples, "text", cpu, &|| false, &|_, _| ());
            measured.expect(&name).expect("not stopped").importance()
        });
        assert!(of_folder.keys().eq(of_file.keys()), "{name}");
        for (tensor, values) in &of_folder {
            let error = error(&of_file[tensor], values);
            assert!(error < 0.03, "{name}: {tensor}: {error}");
        }
        n_seen += 1;
    }
    assert!(n_seen >= 44, "{n_seen} fixtures");
}

#[test]
fn every_family_is_quantized_or_refused_for_a_reason() {
    let temp = tempfile::tempdir().expect("temp");
    let (mut n_solved, mut n_partly, mut n_rounded, mut bad) = (0, 0, 0, Vec::new());
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let source = temp.path().join(&name);
        golden.checkpoint.write_bare_folder(&source);
        let mut files = ModelFiles::open(&source).expect(&name);
        let samples = samples(&files);
        for method in [Method::Gptq, Method::Rtn] {
            let out = temp.path().join(format!("{name}-{}", method.name()));
            let mut options = Options::new(method);
            (options.grid.bits, options.grid.group) = (8, None);
            let samples = method.needs_calibration().then_some(&samples);
            match write(&mut files, &options, samples, &out) {
                Ok(report) => {
                    let error = error_of(&out, &golden);
                    // Experts and latent attention are rounded and named, all else is solved.
                    let of_gptq = method == Method::Gptq;
                    let is_wrong = |matrix: &&MatrixReport| {
                        matrix.is_unsolved != (of_gptq && matrix.error.is_none())
                    };
                    if let Some(wrong) = report.matrices.iter().find(is_wrong) {
                        bad.push(format!("{name} {}: {wrong:?}", method.name()));
                    }
                    n_partly += usize::from(report.unsolved().is_some());
                    // A state keeps what rounding changed, and what follows may choose other experts.
                    let is_recurrent = files.spec().expect(&name).is_recurrent();
                    let bound = if is_recurrent { 1.5 * BOUND } else { BOUND };
                    if error.is_nan() || error > bound {
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
    println!("{n_solved} solved, {n_partly} in part, {n_rounded} rounded");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(n_solved >= 35 && n_rounded >= n_solved, "{n_solved} solved, {n_rounded} rounded");
    assert!(n_partly >= 5, "{n_partly} solved in part");
}

#[test]
fn every_method_writes_a_folder_that_loads_and_computes_nearly_the_same() {
    let temp = tempfile::tempdir().expect("temp");
    let (golden, mut files, samples) = llama(temp.path());
    for method in Method::ALL {
        let out = temp.path().join(method.name());
        let mut options = Options::new(method);
        match method {
            Method::Rtn | Method::Gptq | Method::Awq => options.grid.group = Some(16),
            Method::Hqq => options.grid.group = Some(32),
            // The bounds are those of 4 bits. 96 inputs have no transform.
            Method::Quip => {
                options.grid.bits = 4;
                options.keep = vec!["down_proj".to_owned()];
            }
            Method::Aqlm => options.grid.bits = 3,
            _ => {}
        }
        let name = method.name();
        let report = write(&mut files, &options, Some(&samples), &out).expect(name);
        let error = error_of(&out, &golden);
        println!("{}: {error:.4}, {:.2} bits", method.name(), report.bits_per_weight);
        let bound = if options.grid.bits == 8 { BOUND } else { BOUND_OF_4_BITS };
        assert!(error > 0.0 && error < bound, "{}: {error}", method.name());
        for matrix in &report.matrices {
            assert!(matrix.weight_error < 0.05, "{}: {matrix:?}", method.name());
            assert!(matrix.error.is_some_and(|error| error < 0.05), "{matrix:?}");
        }
    }
}

#[test]
fn a_budget_is_kept_and_kept_modules_stay_as_they_are() {
    let temp = tempfile::tempdir().expect("temp");
    let (golden, mut files, samples) = llama(temp.path());
    let mut options = Options::new(Method::Rtn);
    options.grid.group = Some(16);
    options.target = Some(Target::BitsPerWeight(5.5));
    options.keep = vec!["down_proj".to_owned()];
    let out = temp.path().join("mixed");
    let report = write(&mut files, &options, Some(&samples), &out).expect("writes");
    assert!(report.bits_per_weight <= 5.5, "{}", report.bits_per_weight);
    assert!(report.bits_per_weight > 4.8, "{}", report.bits_per_weight);
    let widths: std::collections::BTreeSet<u64> =
        report.matrices.iter().map(|matrix| matrix.bits.round() as u64).collect();
    assert!(widths.len() > 1, "{widths:?}");
    assert!(report.matrices.iter().all(|matrix| !matrix.module.contains("down_proj")));
    let error = error_of(&out, &golden);
    assert!(error < BOUND_OF_4_BITS, "{error}");

    options.target = Some(Target::BitsPerWeight(2.0));
    let error = write(&mut files, &options, Some(&samples), &temp.path().join("none"));
    let error = error.expect_err("too small").to_string();
    assert!(error.contains("--target-bpw") && error.contains("3"), "{error}");
    assert!(!temp.path().join("none").exists());
}

#[test]
fn every_family_with_a_plain_stream_is_rotated_and_computes_the_same() {
    let temp = tempfile::tempdir().expect("temp");
    let (mut n_rotated, mut n_refused, mut bad) = (0, 0, Vec::new());
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let source = temp.path().join(&name);
        golden.checkpoint.write_bare_folder(&source);
        let mut files = ModelFiles::open(&source).expect(&name);
        let mut options = Options::new(Method::Rtn);
        (options.grid.bits, options.grid.group, options.rotate) = (8, None, true);
        options.keep = vec!["down_proj".to_owned(), "layers.1".to_owned()];
        let out = temp.path().join(format!("{name}-out"));
        let mut written = write(&mut files, &options, None, &out);
        if let Err(QuantizeError::Option(_)) = written {
            options.keep.clear();
            written = write(&mut files, &options, None, &out);
        }
        match written {
            Ok(_) => {
                n_rotated += 1;
                let error = error_of(&out, &golden);
                if error.is_nan() || error > BOUND {
                    bad.push(format!("{name}: error {error:.3}"));
                }
            }
            Err(QuantizeError::Source { why, .. }) => {
                n_refused += usize::from(why.contains("--rotate"));
                if !why.contains("--rotate") && !why.contains("several experts") {
                    bad.push(format!("{name}: {why}"));
                }
            }
            Err(QuantizeError::Shape { .. }) => {}
            Err(error) => bad.push(format!("{name}: {error}")),
        }
        std::fs::remove_dir_all(&source).expect("removed");
    }
    println!("{n_rotated} rotated, {n_refused} refused");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(n_rotated >= 12 && n_refused >= 12, "{n_rotated} rotated, {n_refused} refused");
}

/// All files of a folder but times, by name.
fn contents(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        if name == "quantization_report.json" {
            let mut report: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            let matrices = report["matrices"].as_array_mut().expect("matrices");
            for matrix in matrices {
                assert!(matrix["seconds"].take().as_f64().is_some());
            }
            bytes = report.to_string().into_bytes();
        }
        (name, bytes)
    };
    entries.map(read).collect()
}

#[test]
fn a_run_that_ended_in_the_middle_is_gone_on_with_to_the_same_bytes() {
    let temp = tempfile::tempdir().expect("temp");
    let (_, mut files, samples) = llama(temp.path());
    for method in [Method::Awq, Method::Gptq, Method::Nf4, Method::Quip, Method::Aqlm] {
        let mut options = Options::new(method);
        if let Method::Awq | Method::Gptq = method {
            options.grid.group = Some(16);
        }
        if method == Method::Quip {
            options.keep = vec!["down_proj".to_owned()];
        }
        options.rotate = method == Method::Awq;
        let whole = temp.path().join(format!("whole-{}", method.name()));
        write(&mut files, &options, Some(&samples), &whole).expect("writes");

        let out = temp.path().join(format!("out-{}", method.name()));
        let partial = temp.path().join(format!(".out-{}.pelton-partial", method.name()));
        let job = |resume| Job {
            options: &options,
            samples: Some(&samples),
            resume,
            command: "",
            data: None,
        };
        let mut run = |job: &Job<'_>, n_matrices: usize| {
            let n_done = std::cell::Cell::new(0);
            let watch = Watch {
                is_stopped: &|| n_done.get() >= n_matrices,
                progress: &|_, _| n_done.set(n_done.get() + 1),
            };
            let cpu = Cpu::new(Some(1)).expect("kernels");
            quantize(&mut files, job, cpu, &out, watch)
        };
        // In the second layer: nothing is left without `resume`, and one layer with it.
        let n_layer = 7 - options.keep.len();
        assert!(run(&job(false), n_layer + 2).expect("stops").is_none());
        assert!(!partial.exists());
        assert!(run(&job(true), n_layer + 2).expect("stops").is_none());
        assert!(partial.join("pelton-progress.json").exists() && !out.exists());
        // As a kill leaves it: half a file.
        std::fs::write(partial.join("model-00003-of-00003.safetensors"), "half").expect("written");

        let error = run(&job(false), usize::MAX).expect_err("in the way").to_string();
        assert!(error.contains("--resume"), "{error}");
        let other = Job { samples: None, ..job(true) };
        if method == Method::Nf4 {
            let error = run(&other, usize::MAX).expect_err("other work").to_string();
            assert!(error.contains("another source, text or options"), "{error}");
        }
        let report = run(&job(true), usize::MAX).expect("ends").expect("not stopped");
        assert_eq!((report.n_resumed_layers, report.matrices.len()), (1, 2 * n_layer));
        assert!(!partial.exists());
        let (found, expected) = (contents(&out), contents(&whole));
        assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
        for (name, bytes) in found {
            // The card has the name of its folder.
            assert!(name == "README.md" || bytes == expected[&name], "{method:?}: {name} differs");
        }
    }
}
