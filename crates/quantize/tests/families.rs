//! Every golden decoder is quantized, or refused for a reason: what is written loads, and computes
//! nearly what the source computes.

use std::path::Path;

use pelton_base::TokenId;
use pelton_kernels::Cpu;
use pelton_model::embed::EmbedSpec;
use pelton_model::{ExportOptions, ModelFiles, export};
use pelton_quant::solve::Group;
use pelton_quantize::{
    Imatrix, Job, LEAST_EXPERT_ROWS, MatrixReport, Method, Options, QuantizeError, Report, Samples,
    Target, Watch, quantize,
};
use pelton_tensor::{DType, TensorView, write_safetensors};
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::{GoldenDecoder, NOT_IN_GGUF, decoder_named, decoders};

/// Root of the mean square error of all logits, relative to that of the logits, of 8 bits and less.
const BOUND: f64 = 0.08;
const BOUND_OF_4_BITS: f64 = 0.5;
const BOUND_OF_3_NUMBERS: f64 = 1.5;

/// [`BOUND`], but for the model whose router goes other ways once attention alone is rounded.
fn bound_of(name: &str) -> f64 {
    if name == "gemma4-experts" { 5.0 * BOUND } else { BOUND }
}

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let delta: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let whole: f64 = expected.iter().map(|x| square(*x)).sum();
    (delta / whole).sqrt()
}

fn samples(files: &ModelFiles) -> Samples {
    samples_of(files, 400)
}

/// Samples of so many tokens, at most eight windows.
fn samples_of(files: &ModelFiles, n_tokens: u32) -> Samples {
    let vocab = files.config().vocab_size as u32;
    let length = files.spec().expect("a spec").max_context.min(24);
    let text: Vec<TokenId> = (0..n_tokens).map(|i| TokenId(i * 7919 % vocab)).collect();
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
    write_with(files, &job, (1, watch), out)
}

fn write_with(
    files: &mut ModelFiles,
    job: &Job<'_>,
    (n_threads, watch): (usize, Watch<'_>),
    out: &Path,
) -> Result<Report, QuantizeError> {
    let cpu = Cpu::new(Some(n_threads)).expect("kernels");
    quantize(files, job, cpu, out, watch).map(|report| report.expect("not stopped"))
}

/// The error of what was written.
fn error_of(out: &Path, golden: &GoldenDecoder) -> f64 {
    let files = ModelFiles::open(out).expect("opens");
    error(&golden.rows_of(&files).expect("loads").concat(), &golden.logits.concat())
}

/// A golden Llama, opened from a folder inside `folder`, and samples of its vocabulary.
fn llama(folder: &Path) -> (GoldenDecoder, ModelFiles, Samples) {
    family(folder, "llama")
}

/// A golden model of this name, likewise.
fn family(folder: &Path, name: &str) -> (GoldenDecoder, ModelFiles, Samples) {
    let golden = decoder_named(name);
    let source = folder.join(format!("source-{name}"));
    golden.checkpoint.write_bare_folder(&source);
    let files = ModelFiles::open(&source).expect("opens");
    let samples = samples(&files);
    (golden, files, samples)
}

#[test]
fn the_importance_of_inputs_is_the_same_in_a_folder_and_in_the_file_that_is_made_of_it() {
    let temp = tempfile::tempdir().expect("temp");
    let (mut n_seen, mut n_mixtures, mut n_latents) = (0, 0, 0);
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
        n_mixtures += usize::from(of_folder.keys().any(|tensor| tensor.contains("_exps")));
        n_latents += usize::from(of_folder.keys().any(|tensor| tensor.contains("attn_v_b")));
        for (tensor, values) in &of_folder {
            // A number per input, of each expert where the tensor has several.
            let shape = file.tensors().get(tensor).expect(tensor).shape;
            let n_experts = if shape.len() > 2 && tensor.contains("_exps") { shape[0] } else { 1 };
            assert_eq!(values.len(), n_experts * shape[shape.len() - 1], "{name}: {tensor}");
            let error = error(&of_file[tensor], values);
            assert!(error < 0.03, "{name}: {tensor}: {error}");
        }
        n_seen += 1;
    }
    assert!(n_seen >= 44, "{n_seen} fixtures");
    assert!(n_mixtures >= 12 && n_latents >= 4, "{n_mixtures} mixtures, {n_latents} with latents");
}

#[test]
fn groups_that_do_not_fit_are_refused_with_flags_that_do() {
    let folder = tempfile::tempdir().expect("temp");
    let (_, mut files, _) = family(folder.path(), "jamba");
    let out = folder.path().join("out");
    let mut refused = |options: &Options| {
        write(&mut files, options, None, &out).expect_err("does not fit").to_string()
    };
    let mut options = Options::new(Method::Rtn);
    let error = refused(&options);
    assert!(error.contains("`--group 32` divides them"), "{error}");
    assert!(error.contains("`--keep in_proj`"), "{error}");
    // The time steps have 8 inputs.
    options.grid.group = Group::Inputs(32);
    let error = refused(&options);
    assert!(error.contains("`--group 8` divides them"), "{error}");
    options.keep = vec!["dt_proj".to_owned()];
    write(&mut files, &options, None, &out).expect("fits");
    let mut refused = |group: usize| {
        options.grid.group = Group::Inputs(group);
        let out = folder.path().join("none");
        write(&mut files, &options, None, &out).expect_err("does not fit").to_string()
    };
    // The flag that is named is never the one that does not fit.
    for (group, fits) in [(3, 2), (5, 4), (6, 4), (7, 4), (12, 8), (24, 16), (100, 32)] {
        let error = refused(group);
        assert!(error.contains(&format!("`--group {fits}` divides them")), "{group}: {error}");
    }

    // A number alone is a layer, too; without activations no group helps.
    let (_, mut shifts, _) = family(folder.path(), "rwkv7");
    let mut options = Options::new(Method::Rtn);
    options.grid.group = Group::Inputs(32);
    let mut refused = |options: &Options| {
        write(&mut shifts, options, None, &folder.path().join("shifts"))
            .expect_err("does not fit")
            .to_string()
    };
    let error = refused(&options);
    assert!(error.contains("`--keep lora.2` leaves"), "{error}");
    options.method = Method::Gptq;
    let error = refused(&options);
    assert!(error.contains("token shifts"), "{error}");

    // The group of this method is what it is.
    let mut options = Options::new(Method::Mxfp4);
    let error = write(&mut files, &options, None, &folder.path().join("other"))
        .expect_err("does not fit")
        .to_string();
    assert!(!error.contains("--group") && error.contains("`--keep dt_proj`"), "{error}");
    options.keep = vec!["dt_proj".to_owned()];
    write(&mut files, &options, None, &folder.path().join("other")).expect("fits");
}

#[test]
fn an_encoder_keeps_the_modules_that_make_its_vectors() {
    let folder = tempfile::tempdir().expect("temp");
    let [source, out] = ["encoder", "quantized"].map(|name| folder.path().join(name));
    TinyEncoder { pooling: "cls_token", ..TinyEncoder::default() }.write_folder(&source);
    let n = TinyEncoder::DIMENSIONS;
    std::fs::create_dir(source.join("3_Dense")).expect("made");
    std::fs::write(
        source.join("modules.json"),
        r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
            {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}]"#,
    )
    .expect("written");
    let sizes = format!(r#"{{"in_features": {n}, "out_features": 2, "bias": false}}"#);
    std::fs::write(source.join("3_Dense/config.json"), sizes).expect("written");
    let data: Vec<u8> = (0..2 * n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let shape = [2, n];
    let weight =
        TensorView { name: "linear.weight", dtype: DType::F32, shape: &shape, data: &data };
    let file = source.join("3_Dense/model.safetensors");
    write_safetensors(&file, &[weight], &Default::default()).expect("written");
    // Neither read by Pelton nor named by the list.
    std::fs::write(source.join("3_Dense/pytorch_model.bin"), "pickled").expect("written");
    std::fs::create_dir(source.join("4_Other")).expect("made");
    std::fs::write(source.join("4_Other/config.json"), "{}").expect("written");

    let mut files = ModelFiles::open(&source).expect("the encoder");
    let mut options = Options::new(Method::Rtn);
    options.grid.group = Group::Inputs(32);
    write(&mut files, &options, None, &out).expect("a folder");
    let spec = |folder: &Path| {
        let files = ModelFiles::open(folder).expect("a model");
        EmbedSpec::read(&files, &files.spec().expect("a spec")).expect("modules")
    };
    assert_eq!(spec(&out), spec(&source));
    assert_eq!(spec(&out).dense.len(), 1);
    assert!(!out.join("4_Other").exists() && !out.join("3_Dense/pytorch_model.bin").exists());
}

#[test]
fn every_family_is_quantized_or_refused_for_a_reason() {
    let temp = tempfile::tempdir().expect("temp");
    let (mut n_solved, mut n_partly, mut n_rounded, mut bad) = (0, 0, 0, Vec::new());
    let mut n_experts = 0;
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let source = temp.path().join(&name);
        golden.checkpoint.write_bare_folder(&source);
        let mut files = ModelFiles::open(&source).expect(&name);
        let samples = samples(&files);
        for method in [Method::Gptq, Method::Rtn] {
            let out = temp.path().join(format!("{name}-{}", method.name()));
            let mut options = Options::new(method);
            (options.grid.bits, options.grid.group) = (8, Group::Row);
            let samples = method.needs_calibration().then_some(&samples);
            match write(&mut files, &options, samples, &out) {
                Ok(report) => {
                    let error = error_of(&out, &golden);
                    // Matrices whose inputs are not gathered are rounded and named, all else is solved.
                    let of_gptq = method == Method::Gptq;
                    let is_wrong = |matrix: &&MatrixReport| {
                        matrix.is_unsolved != (of_gptq && matrix.error.is_none())
                            || matrix.is_few && matrix.n_rows >= Some(LEAST_EXPERT_ROWS)
                    };
                    let of_experts =
                        report.matrices.iter().filter(|m| m.module.contains(".experts."));
                    let solved = of_experts.filter(|m| of_gptq && !m.is_unsolved && !m.is_few);
                    n_experts += usize::from(solved.count() > 0);
                    if let Some(wrong) = report.matrices.iter().find(is_wrong) {
                        bad.push(format!("{name} {}: {wrong:?}", method.name()));
                    }
                    n_partly += usize::from(report.unsolved().is_some());
                    // A state keeps what rounding changed, and what follows may choose other experts.
                    let is_recurrent = files.spec().expect(&name).is_recurrent();
                    let bound = if is_recurrent { 1.5 * BOUND } else { bound_of(&name) };
                    if error.is_nan() || error > bound {
                        bad.push(format!("{name} {}: error {error:.3}", method.name()));
                    }
                    let is_rounded = method == Method::Rtn;
                    *(if is_rounded { &mut n_rounded } else { &mut n_solved }) += 1;
                }
                Err(QuantizeError::Source { why, .. })
                    if why.contains("token shifts") || why.contains("expected weights of f32") => {}
                Err(QuantizeError::Shape { .. }) => {}
                Err(error) => bad.push(format!("{name} {}: {error}", method.name())),
            }
        }
        std::fs::remove_dir_all(&source).expect("removed");
    }
    println!(
        "{n_solved} solved, {n_partly} in part, {n_rounded} rounded, {n_experts} with experts"
    );
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(n_solved >= 35 && n_rounded >= n_solved, "{n_solved} solved, {n_rounded} rounded");
    assert!(n_partly >= 5, "{n_partly} solved in part");
    assert!(n_experts >= 20, "experts of {n_experts} models are solved");
}

#[test]
fn too_little_damping_is_raised_until_no_matrix_is_worse_than_rounded() {
    let folder = tempfile::tempdir().expect("temp");
    let (_, mut files, _) = llama(folder.path());
    // The same few tokens again and again: without damping their Hessian has next to no inverse.
    let text: Vec<TokenId> = (0..96).map(|i| TokenId(i % 4)).collect();
    let samples = Samples::choose(&text, &[], 8, 8, 0).expect("samples");
    for method in [Method::Gptq, Method::Fp8] {
        let mut options = Options::new(method);
        options.gptq.damping = 0.0;
        if method == Method::Gptq {
            options.grid.group = Group::Inputs(32);
        }
        let out = folder.path().join(method.name());
        let report = write(&mut files, &options, Some(&samples), &out).expect("solves");
        for matrix in &report.matrices {
            let MatrixReport { module, error, error_rounded, damping, is_worse, .. } = matrix;
            assert!(error <= error_rounded, "{module}: {error:?} of {error_rounded:?}");
            assert_eq!(
                damping.is_none(),
                *is_worse,
                "{module}: solved, or rounded because of that"
            );
        }
        let card = std::fs::read_to_string(out.join("README.md")).expect("a card");
        let damped = report.damped(0.0).expect("some need more");
        assert!(card.contains(&format!("more damping than asked for | {damped}")), "{card}");
        assert_eq!(report.damped(1.0), None);
    }
}

#[test]
fn every_method_writes_a_folder_that_loads_and_computes_nearly_the_same() {
    let temp = tempfile::tempdir().expect("temp");
    let (golden, mut files, samples) = llama(temp.path());
    for method in Method::ALL {
        let out = temp.path().join(method.name());
        let mut options = Options::new(method);
        match method {
            Method::Rtn | Method::Gptq | Method::Awq => options.grid.group = Group::Inputs(16),
            Method::Hqq => options.grid.group = Group::Inputs(32),
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
        let (bound, most) = match method {
            // Only a model that was trained for three numbers keeps its outputs with them.
            Method::BitNet => (BOUND_OF_3_NUMBERS, 0.35),
            _ if options.grid.bits == 8 => (BOUND, 0.05),
            _ => (BOUND_OF_4_BITS, 0.05),
        };
        assert!(error > 0.0 && error < bound, "{}: {error}", method.name());
        for matrix in &report.matrices {
            assert!(matrix.weight_error < most, "{}: {matrix:?}", method.name());
            assert!(matrix.error.is_some_and(|error| error < most), "{matrix:?}");
        }
    }
}

#[test]
fn a_budget_is_kept_and_kept_modules_stay_as_they_are() {
    let temp = tempfile::tempdir().expect("temp");
    let (golden, mut files, samples) = llama(temp.path());
    let mut options = Options::new(Method::Rtn);
    options.grid.group = Group::Inputs(16);
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
        (options.grid.bits, options.grid.group, options.rotate) = (8, Group::Row, true);
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
                if !why.contains("--rotate") && !why.contains("expected weights of f32") {
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
            options.grid.group = Group::Inputs(16);
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

#[test]
fn experts_and_latents_give_the_same_bytes_on_any_number_of_threads_and_when_gone_on_with() {
    let temp = tempfile::tempdir().expect("temp");
    for (name, method) in [
        ("deepseek-v2", Method::Gptq),
        ("deepseek-v2", Method::Awq),
        ("granite-moe", Method::Gptq),
        ("gpt-oss", Method::Int8),
    ] {
        let (_, mut files, samples) = family(temp.path(), name);
        let mut options = Options::new(method);
        options.grid.group = if method == Method::Int8 { Group::Row } else { Group::Inputs(8) };
        let at = |part: &str| temp.path().join(format!("{name}-{}-{part}", method.name()));
        let job = Job {
            options: &options,
            samples: Some(&samples),
            resume: false,
            command: "",
            data: None,
        };
        let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
        for (part, n_threads) in [("one", 1), ("three", 3)] {
            write_with(&mut files, &job, (n_threads, watch), &at(part)).expect(name);
        }
        let out = at("resumed");
        let n_done = std::cell::Cell::new(0);
        // Somewhere in the second layer.
        let stopping = Watch {
            is_stopped: &|| n_done.get() >= 40,
            progress: &|_, _| n_done.set(n_done.get() + 1),
        };
        let job = Job { resume: true, ..job };
        let cpu = Cpu::new(Some(1)).expect("kernels");
        assert!(quantize(&mut files, &job, cpu, &out, stopping).expect("stops").is_none());
        let report = write_with(&mut files, &job, (2, watch), &out).expect("ends");
        assert!(report.n_resumed_layers > 0, "{name}");
        let expected = contents(&at("one"));
        for part in ["three", "resumed"] {
            let found = contents(&at(part));
            assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
            for (file, bytes) in found {
                let is_same = file == "README.md" || bytes == expected[&file];
                assert!(is_same, "{name} {}, {part}: {file} differs", method.name());
            }
        }
    }
}

#[test]
fn experts_that_saw_few_rows_are_named_and_the_model_still_computes() {
    let temp = tempfile::tempdir().expect("temp");
    let (golden, mut files, samples) = family(temp.path(), "mixtral");
    let few = samples_of(&files, 64);
    let mut options = Options::new(Method::Gptq);
    (options.grid.bits, options.grid.group) = (8, Group::Row);
    let out = temp.path().join("few");
    let report = write(&mut files, &options, Some(&few), &out).expect("writes");
    let named: Vec<&MatrixReport> = report.matrices.iter().filter(|m| m.is_few).collect();
    assert!(named.len() >= 9, "{} matrices of few rows", named.len());
    for matrix in &named {
        assert!(matrix.n_rows < Some(LEAST_EXPERT_ROWS), "{matrix:?}");
        // Gate and up are solved for the rows of all experts, down cannot be.
        assert_eq!(matrix.is_unsolved, matrix.module.ends_with("w2"), "{matrix:?}");
        assert_eq!(matrix.error.is_none(), matrix.is_unsolved, "{matrix:?}");
    }
    let words = report.few().expect("some");
    assert!(words.starts_with(&format!("{} matrices: ", named.len())), "{words}");
    assert_eq!(report.unsolved(), None);
    let card = std::fs::read_to_string(out.join("README.md")).expect("a card");
    assert!(card.contains(&words) && card.contains("less than 16 rows"), "{card}");
    assert!(error_of(&out, &golden) < BOUND, "{}", error_of(&out, &golden));

    let out = temp.path().join("enough");
    let report = write(&mut files, &options, Some(&samples), &out).expect("writes");
    assert!(report.matrices.iter().filter(|m| m.is_few).count() < named.len());
}

#[test]
fn stacked_experts_are_written_apart_and_those_that_are_kept_keep_their_values() {
    let temp = tempfile::tempdir().expect("temp");
    for (name, kept, stack) in [
        ("granite-moe", "layers.1.block_sparse_moe.experts.2.down_proj", "output_linear.weight"),
        ("gemma4-experts", "layers.1.experts.2.down_proj", "experts.down_proj"),
        ("gpt-oss", "layers.1.mlp.experts.2.up_proj", "experts.gate_up_proj"),
        ("llama4", "layers.1.feed_forward.experts.2.gate_proj", "experts.gate_up_proj"),
    ] {
        let (golden, mut files, samples) = family(temp.path(), name);
        let mut options = Options::new(Method::Gptq);
        (options.grid.bits, options.grid.group) = (8, Group::Row);
        options.keep = vec![kept.to_owned()];
        let out = temp.path().join(name);
        let report = write(&mut files, &options, Some(&samples), &out).expect(name);
        assert!(report.matrices.iter().all(|m| !m.module.ends_with(kept)), "{name}");
        let written = ModelFiles::open(&out).expect(name);
        let names = written.tensors().names();
        assert!(!names.iter().any(|own| own.ends_with(stack)), "{name}: `{stack}` is left");
        let plain = names.iter().find(|own| own.ends_with(&format!("{kept}.weight")));
        let view = written.tensors().get(plain.expect(name)).expect(name);
        // The same element of the stack, wherever it lies there.
        let stored = files.tensors().names().into_iter();
        let in_layer = stored.filter(|own| own.ends_with(stack) && own.contains("layers.1."));
        let all = in_layer.filter_map(|own| files.tensors().get(own)).next().expect(name);
        let size = view.data.len() / view.n_elements();
        let first = &view.data[..size];
        assert!(all.data.chunks(size).any(|element| element == first), "{name}");
        assert_eq!(view.dtype, all.dtype, "{name}");
        let error = error_of(&out, &golden);
        assert!(error < bound_of(name), "{name}: {error}");
    }
}
