//! `pelton quantize`, through the real binary: the folders load, and lose as little as they should.

use std::path::Path;

use crate::common::{self, Outcome, command, pelton, signal};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use pelton_testkit::TinyModel;
use pelton_testkit::golden::encoder_decoders;
use serde_json::Value;

/// A model whose norms let a few inputs through much larger than others, and two texts.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::with_layers(TinyModel::default().n_layers)
    }

    fn with_layers(n_layers: usize) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let model = folder.path().join("tiny");
        TinyModel { n_layers, ..TinyModel::default() }.write_folder(&model);
        change(&model, |name, values| {
            if name.contains("layernorm") {
                values.iter_mut().step_by(29).for_each(|w| *w *= 12.0);
            }
        });
        let words = ["moth", "lamp", "river", "the", "of", "stone", "a", "under", "quick", "sky"];
        let text = |seed: usize| -> String {
            let word = |i: usize| words[(i * i * 31 + i * seed + i / 7) % words.len()];
            (0..700).map(|i| format!("{} ", word(i))).collect()
        };
        std::fs::write(folder.path().join("seen"), text(3)).expect("written");
        std::fs::write(folder.path().join("held-out"), text(8)).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn quantize(&self, out: &str, flags: &[&str]) -> Outcome {
        let (input, out, text) = (self.path("tiny"), self.path(out), self.path("seen"));
        let args = ["quantize", &input, &out, "--calibration", &text, "--sample-length", "128"];
        pelton(&[&args[..], &["--group", "32", "--json"], flags].concat())
    }

    /// Divergence from the source on the other text, of the weights alone.
    fn kl(&self, model: &str) -> f64 {
        let (model, source, text) = (self.path(model), self.path("tiny"), self.path("held-out"));
        let args = ["eval", &model, "--reference", &source, "--text", &text, "--compute", "f32"];
        let report = pelton(&[&args[..], &["--json"]].concat()).json();
        report["against"]["kl_divergence"]["value"].as_f64().expect("a number")
    }

    /// Names of everything in the folder, hidden names included.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

/// Changes the weights of a folder.
fn change(model: &Path, change: impl Fn(&str, &mut [f32])) {
    let file = model.join("model.safetensors");
    let stored = Safetensors::open_file(&file).expect("weights");
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for name in stored.names() {
        let view = stored.get(name).expect(name);
        let mut values: Vec<f32> =
            view.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        change(name, &mut values);
        tensors.push((name.to_owned(), view.shape.to_vec(), values));
    }
    drop(stored);
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape, _), data)| TensorView { name, dtype: DType::F32, shape, data })
        .collect();
    std::fs::remove_file(&file).expect("removed");
    write_safetensors(&file, &views, &Default::default()).expect("written");
}

fn config(model: &str) -> Value {
    let text = std::fs::read_to_string(Path::new(model).join("config.json")).expect("a config");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_page_replaces_neither_the_model_nor_the_text() {
    let world = World::new();
    let read = |name: &str| std::fs::read(world.path(name)).expect("there");
    let files = ["tiny/model.safetensors", "tiny/config.json", "seen"];
    let before = files.map(read);
    for (name, input) in files.iter().zip(["`INPUT`", "`INPUT`", "`--calibration`"]) {
        let outcome = world.quantize("out", &["--method", "rtn", "--html", &world.path(name)]);
        outcome.assert_refused(&["`--html`", input, name, "would replace"]);
    }
    let outcome = world.quantize("out", &["--method", "rtn", "--html", &world.path("out")]);
    outcome.assert_refused(&["`--html` is the output"]);
    assert!(files.map(read) == before);
}

#[test]
fn every_method_writes_a_folder_that_runs_and_solvers_beat_rounding() {
    let world = World::new();
    let methods = [
        ("rtn", &["--method", "rtn"][..]),
        ("rtn-zeros", &["--method", "rtn", "--asymmetric"]),
        ("gptq", &["--method", "gptq"]),
        ("gptq-act", &["--method", "gptq", "--act-order"]),
        ("awq", &["--method", "awq"]),
    ];
    let mut kl = std::collections::BTreeMap::new();
    for (out, flags) in methods {
        let report = world.quantize(out, flags).json();
        assert_eq!(report["matrices"].as_array().expect("matrices").len(), 14, "{out}");
        assert!(report["n_bytes"].as_u64() < report["n_source_bytes"].as_u64(), "{report}");
        let bits = report["bits_per_weight"].as_f64().expect("a number");
        assert!((4.5..5.2).contains(&bits), "{out}: {bits}");
        let args = ["run", "-m", &world.path(out), "--raw", "--json", "-n", "4", "the moth"];
        pelton(&args).json();
        kl.insert(out, world.kl(out));
    }
    println!("{kl:?}");
    assert!(kl["rtn"] > 1e-5, "{kl:?}");
    for (solved, rounded) in [("gptq", "rtn"), ("gptq-act", "rtn"), ("awq", "rtn-zeros")] {
        assert!(kl[solved] < 0.7 * kl[rounded], "{solved}: {kl:?}");
    }
    let gptq = config(&world.path("gptq-act"))["quantization_config"].clone();
    for (field, value) in [("quant_method", "gptq"), ("checkpoint_format", "gptq")] {
        assert_eq!(gptq[field], value);
    }
    // gptqmodel refuses zero points in the format of version 1.
    let zeros = config(&world.path("rtn-zeros"))["quantization_config"].clone();
    assert_eq!(zeros["checkpoint_format"], "gptq_v2");
    assert_eq!([&gptq["bits"], &gptq["group_size"]], [4, 32]);
    assert_eq!([&gptq["desc_act"], &gptq["sym"]], [true, true]);
    let beside = std::fs::read_to_string(world.folder.path().join("gptq/quantize_config.json"));
    assert_eq!(serde_json::from_str::<Value>(&beside.expect("a file")).expect("JSON")["bits"], 4);
    let awq = config(&world.path("awq"))["quantization_config"].clone();
    assert_eq!([&awq["quant_method"], &awq["version"]], ["awq", "gemm"]);
    assert!(world.folder.path().join("awq/tokenizer_config.json").exists());
    assert!(world.names().iter().all(|name| !name.starts_with('.')), "{:?}", world.names());
}

#[test]
fn every_width_loads_and_more_bits_lose_less() {
    let world = World::new();
    let mut last = f64::INFINITY;
    for bits in ["2", "3", "4", "8"] {
        let out = format!("rtn-{bits}");
        world.quantize(&out, &["--method", "rtn", "--bits", bits]).assert_answered();
        let kl = world.kl(&out);
        assert!(kl < last, "{bits} bits: {kl} after {last}");
        last = kl;
        let inspected = pelton(&["inspect", &world.path(&out)]);
        inspected.assert_answered();
        assert!(inspected.stdout.contains(&format!("GPTQ, {bits} bits")), "{}", inspected.stdout);
    }
    assert!(last < 1e-3, "8 bits: {last}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_other_ones() {
    let world = World::new();
    let bytes = |out: &str, flags: &[&str]| {
        let flags = [&["--method", "gptq", "--samples", "2"], flags].concat();
        world.quantize(out, &flags).assert_answered();
        let file = format!("{out}/model-00002-of-00003.safetensors");
        std::fs::read(world.folder.path().join(file)).expect("the first layer")
    };
    let first = bytes("a", &["--threads", "1"]);
    assert!(first == bytes("b", &["--threads", "3"]), "threads change no byte");
    assert!(first != bytes("c", &["--seed", "5"]), "the seed chooses the windows");
}

#[test]
fn sources_and_flags_that_cannot_be_are_refused_and_leave_nothing() {
    let world = World::new();
    let before = world.names();
    let refused = |flags: &[&str], parts: &[&str]| {
        let outcome = world.quantize("out", flags);
        assert_eq!(outcome.code, Some(2), "{flags:?}: {}", outcome.stderr);
        let error = outcome.stderr.lines().last().expect("a line");
        assert!(error.starts_with("error: "), "{flags:?}: {}", outcome.stderr);
        for part in parts {
            assert!(error.contains(part), "{flags:?}: `{part}` is missing in: {error}");
        }
        assert_eq!(world.names(), before, "{flags:?}");
    };
    refused(&["--method", "magic"], &["--method", "rtn, gptq, awq"]);
    refused(&["--method", "rtn", "--bits", "5"], &["--bits", "2, 3, 4 or 8"]);
    refused(&["--method", "awq", "--bits", "3"], &["--bits", "expected 4"]);
    refused(&["--method", "awq", "--symmetric"], &["--symmetric", "zero points"]);
    refused(&["--method", "rtn", "--act-order"], &["--act-order"]);
    refused(&["--method", "awq", "--damping", "0.5"], &["--damping", "awq"]);
    let (input, out) = (world.path("tiny"), world.path("x"));
    let plain = ["quantize", &input, &out, "--method", "rtn"];
    for flag in ["--samples", "--sample-length", "--seed"] {
        pelton(&[&plain[..], &[flag, "3"]].concat()).assert_refused(&["--calibration"]);
    }
    refused(&["--method", "gptq", "--damping", "2"], &["--damping"]);
    refused(&["--method", "fp8"], &["--group", "`row`", "128"]);
    refused(&["--method", "fp8", "--fp8-type", "e3m4"], &["--fp8-type", "e5m2"]);
    refused(&["--method", "gptq", "--fp8-type", "e5m2"], &["--fp8-type", "only `fp8`"]);
    refused(&["--method", "int8"], &["--group", "`row` or `tensor`", "int8"]);
    for method in ["gptq", "awq", "llm-int8", "hqq"] {
        let flags = ["--method", method, "--group", "tensor"];
        let outcome =
            pelton(&[&["quantize", &world.path("tiny"), &world.path("out")][..], &flags].concat());
        assert!(
            outcome.code == Some(2) && outcome.stderr.contains("`--group` is tensor"),
            "{}",
            outcome.stderr
        );
    }
    refused(&["--method", "awq", "--alpha", "0.5"], &["--alpha", "only `smoothquant`"]);
    refused(&["--method", "smoothquant", "--alpha", "1.5"], &["--alpha", "0 to 1"]);
    refused(&["--method", "mxfp4", "--bits", "8"], &["--bits", "expected 4", "mxfp4"]);
    refused(&["--method", "hqq", "--symmetric"], &["--symmetric", "zero points"]);
    refused(&["--method", "rtn", "--type", "q4_k"], &["--type", "gguf"]);
    refused(&["--method", "rtn", "--keep", "gate"], &["--keep gate", "names no matrix"]);
    refused(&["--method", "awq", "--target-bpw", "5"], &["--target-bpw", "rtn", "gptq"]);
    refused(&["--method", "rtn", "--target-bpw", "0"], &["--target-bpw", "1 to 16"]);
    let least = ["--target-bpw", "least", "3.5"];
    refused(&["--method", "rtn", "--target-bpw", "3"], &least);
    let least = ["--target-size", "least"];
    refused(&["--method", "rtn", "--target-size", "20k"], &least);
    let (tiny, out) = (world.path("tiny"), world.path("out"));
    let plain = |flags: &[&str], parts: &[&str]| {
        pelton(&[&["quantize", &tiny, &out], flags].concat()).assert_refused(parts);
        assert_eq!(world.names(), before, "{flags:?}");
    };
    plain(&["--method", "gptq"], &["--calibration", "gptq"]);
    let long = ["--method", "gptq", "--calibration", &world.path("seen"), "--sample-length", "257"];
    plain(&long, &["--sample-length", "256"]);
    plain(&["--method", "rtn", "--group", "40"], &["q_proj", "--group", "64 inputs", "40"]);
    let page = world.path("nowhere/page.html");
    plain(&["--method", "rtn", "--group", "32", "--html", &page], &["cannot write", &page]);
    let nowhere = world.path("nowhere/out");
    let args = ["quantize", &tiny, &nowhere, "--method", "rtn", "--group", "32"];
    pelton(&args).assert_refused(&["nowhere/out"]);

    std::fs::write(world.folder.path().join("short"), "a moth").expect("written");
    let short = world.path("short");
    let args = ["quantize", &tiny, &out, "--method", "gptq", "--calibration", &short];
    pelton(&args).assert_refused(&["short", "5 tokens", "at least 64"]);

    let args = ["quantize", "story", &out, "--method", "rtn"];
    pelton(&args).assert_refused(&["expected a folder", "pelton convert"]);
    world.quantize("done", &["--method", "rtn"]).assert_answered();
    let args = ["quantize", &world.path("done"), &out, "--method", "rtn", "--group", "32"];
    pelton(&args).assert_refused(&["not quantized yet", "GPTQ, 4 bits"]);
    let again = ["quantize", &tiny, &world.path("done"), "--method", "rtn", "--group", "32"];
    pelton(&again).assert_refused(&["done", "already"]);
}

#[test]
fn weights_that_are_no_numbers_are_named_and_zeros_are_kept() {
    let world = World::new();
    let model = world.folder.path().join("tiny");
    change(&model, |name, values| {
        if name == "model.layers.1.mlp.down_proj.weight" {
            values[96 * 3 + 7] = f32::NAN;
        }
    });
    let args = ["quantize", &world.path("tiny"), &world.path("out"), "--method", "rtn"];
    let parts = ["model.layers.1.mlp.down_proj", "output 3 and input 7"];
    pelton(&[&args[..], &["--group", "32"]].concat()).assert_refused(&parts);
    assert_eq!(world.names(), ["held-out", "seen", "tiny"]);

    // Half of a layer's inputs, and all of a matrix.
    change(&model, |name, values| match name {
        "model.layers.1.mlp.down_proj.weight" => values.fill(0.0),
        "model.layers.0.input_layernorm.weight" => values[..32].fill(0.0),
        _ => {}
    });
    for method in ["gptq", "awq"] {
        world.quantize(method, &["--method", method]).assert_answered();
        assert!(world.kl(method) < 0.1, "{method}: {}", world.kl(method));
    }
}

#[test]
fn a_full_disk_and_ctrl_c_leave_nothing_behind() {
    let world = World::new();
    let before = world.names();
    let (tiny, out, text) = (world.path("tiny"), world.path("out"), world.path("seen"));
    let rtn = ["quantize", &tiny, &out, "--method", "rtn", "--group", "32"];
    // Files of at most 64 KiB, and no signal about it.
    let limited = common::command_after("trap '' XFSZ; ulimit -f 64", &rtn);
    let mut limited = limited;
    let outcome = common::outcome(&limited.output().expect("sh starts"));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("error: "), "{}", outcome.stderr);
    assert_eq!(world.names(), before);

    let args =
        ["quantize", &tiny, &out, "--method", "gptq", "--group", "32", "--calibration", &text];
    let mut child = command(&args).stderr(std::process::Stdio::piped()).spawn().expect("starts");
    // The first line comes before the work.
    let mut line = String::new();
    let stderr = child.stderr.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut line).expect("a line");
    assert!(line.starts_with("calibration: "), "{line}");
    signal("INT", child.id());
    let code = child.wait().expect("ends").code();
    // It may have been done before the signal came, or before it was listened to.
    match code {
        Some(0) => assert!(Path::new(&out).join("config.json").exists()),
        code => {
            assert!(code == Some(130) || code.is_none(), "{code:?}");
            assert_eq!(world.names(), before);
        }
    }
}

#[test]
fn every_format_is_written_runs_and_loses_what_its_bits_say() {
    let world = World::new();
    // The most that it may lose, in nats per token; measured, and half as much again.
    let no_down = ["--method", "quip", "--keep", "down_proj"];
    let [quip, quip_3, quip_4] =
        ["2", "3", "4"].map(|bits| [&no_down[..], &["--bits", bits]].concat());
    let (tensor, e5m2) = (["--group", "tensor"], ["--method", "fp8", "--fp8-type", "e5m2"]);
    let formats: [(&str, &[&str], f64); 21] = [
        ("fp8", &["--method", "fp8"], 0.016),
        ("fp8-block", &["--method", "fp8", "--group", "128"], 0.025),
        ("fp8-tensor", &["--method", "fp8", "--group", "tensor"], 0.016),
        ("fp8-e5m2-tensor", &[&e5m2[..], &tensor].concat(), 0.1),
        ("fp8-e5m2", &e5m2, 0.1),
        ("int8", &["--method", "int8"], 4e-4),
        ("int8-tensor", &[&["--method", "int8"][..], &tensor].concat(), 4e-4),
        ("llm-int8", &["--method", "llm-int8"], 4e-4),
        ("smoothquant", &["--method", "smoothquant"], 8e-4),
        ("smoothquant-tensor", &[&["--method", "smoothquant"][..], &tensor].concat(), 8e-4),
        ("rtn-tensor", &[&["--method", "rtn", "--bits", "8"][..], &tensor].concat(), 4e-4),
        ("nf4", &["--method", "nf4"], 0.13),
        ("mxfp4", &["--method", "mxfp4"], 0.18),
        ("nvfp4", &["--method", "nvfp4"], 0.13),
        ("hqq", &["--method", "hqq", "--group", "32"], 0.07),
        // 96 inputs have no Hadamard transform.
        ("quip", &quip, 0.25),
        ("quip-3", &quip_3, 0.07),
        ("quip-4", &quip_4, 0.023),
        ("aqlm", &["--method", "aqlm"], 0.005),
        ("aqlm-3", &["--method", "aqlm", "--bits", "3"], 0.001),
        // Not trained for three numbers.
        ("bitnet", &["--method", "bitnet"], 2.0),
    ];
    let words = |name: &str| {
        let inspected = pelton(&["inspect", &world.path(name)]);
        inspected.assert_answered();
        inspected.stdout
    };
    for &(out, flags, most) in &formats {
        let (input, output, text) = (world.path("tiny"), world.path(out), world.path("seen"));
        let args = ["quantize", &input, &output, "--calibration", &text, "--json"];
        let report = pelton(&[&args[..], flags].concat()).json();
        let n_matrices = if out.starts_with("quip") { 12 } else { 14 };
        assert_eq!(report["matrices"].as_array().expect("matrices").len(), n_matrices, "{out}");
        let args = ["run", "-m", &output, "--raw", "--json", "-n", "4", "the moth"];
        pelton(&args).json();
        let kl = world.kl(out);
        println!("{out}: {kl:.2e}, {:.2} bits", report["bits_per_weight"].as_f64().expect("bits"));
        assert!(kl > 0.0 && kl < most, "{out}: {kl}");
    }
    let (input, output, text) = (world.path("tiny"), world.path("given"), world.path("seen"));
    let args = ["quantize", &input, &output, "--calibration", &text, "--json", "--method"];
    let report = pelton(&[&args[..], &["smoothquant", "--alpha", "0.25"]].concat()).json();
    let alphas = report["matrices"].as_array().expect("matrices").iter();
    let alphas: Vec<&Value> = alphas.map(|matrix| &matrix["alpha"]).collect();
    assert!(alphas.iter().all(|alpha| alpha.is_null() || **alpha == 0.25), "{alphas:?}");
    assert!(alphas.iter().any(|alpha| **alpha == 0.25), "{alphas:?}");
    // The command gives a text, so errors are made good.
    for name in ["fp8", "int8", "smoothquant", "mxfp4", "nvfp4", "bitnet"] {
        let report = std::fs::read(world.folder.path().join(name).join("quantization_report.json"));
        let report: Value = serde_json::from_slice(&report.expect("a report")).expect("JSON");
        let matrices = report["matrices"].as_array().expect("matrices");
        let sum = |error: fn(&Value) -> &Value| -> f64 {
            matrices.iter().map(|matrix| error(matrix).as_f64().expect("an error")).sum()
        };
        // Rounded to nearest, behind SmoothQuant's factors where there are some.
        let rounded = sum(|matrix| match &matrix["error_scaled"] {
            Value::Null => &matrix["error_rounded"],
            scaled => scaled,
        });
        let own = sum(|matrix| &matrix["error"]);
        assert!(own < 0.9 * rounded, "{name}: {own} {rounded}");
    }
    let e5m2 = config(&world.path("fp8-e5m2"))["quantization_config"].clone();
    assert_eq!([&e5m2["quant_method"], &e5m2["fmt"]], ["fp8", "e5m2"]);
    // These run in the test of the solvers, and `gguf` is no folder.
    let others = ["rtn", "gptq", "awq"];
    for method in pelton_quantize::Method::ALL {
        let name = method.name();
        let is_run = others.contains(&name) || formats.iter().any(|(_, flags, _)| flags[1] == name);
        assert!(is_run, "`{name}` does not run through the binary");
    }
    assert!(words("fp8").contains("float-quantized"), "{}", words("fp8"));
    assert!(words("fp8-block").contains("blocks of 128 x 128"), "{}", words("fp8-block"));
    for name in ["fp8-tensor", "int8-tensor", "smoothquant-tensor"] {
        assert!(words(name).contains("a scale per matrix"), "{}", words(name));
    }
    assert!(words("nf4").contains("4-bit floats"), "{}", words("nf4"));
    assert!(words("hqq").contains("HQQ"), "{}", words("hqq"));
    assert!(words("aqlm").contains("AQLM, 2x8"), "{}", words("aqlm"));
    assert!(words("bitnet").contains("BitNet"), "{}", words("bitnet"));
    assert!(words("quip-3").contains("QuIP#"), "{}", words("quip-3"));
}

#[test]
fn a_rotated_model_loses_less_where_some_inputs_are_much_larger() {
    let world = World::new();
    // The same model with its large numbers in the matrices in place of the norms before them.
    change(&world.folder.path().join("tiny"), |name, values| {
        if name.contains("layernorm") {
            values.iter_mut().step_by(29).for_each(|w| *w /= 12.0);
        }
        if ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"].iter().any(|it| name.contains(it))
        {
            let rows = values.chunks_exact_mut(64);
            rows.for_each(|row| row.iter_mut().step_by(29).for_each(|w| *w *= 12.0));
        }
    });
    for (out, rotate) in [("plain", &[][..]), ("turned", &["--rotate"])] {
        let flags = ["--method", "rtn", "--group", "row"];
        let (input, output) = (world.path("tiny"), world.path(out));
        pelton(&[&["quantize", &input, &output][..], &flags, rotate].concat()).assert_answered();
    }
    let (plain, turned) = (world.kl("plain"), world.kl("turned"));
    println!("{plain} {turned}");
    assert!(turned < 0.7 * plain, "{turned} {plain}");
    let card = std::fs::read_to_string(world.folder.path().join("turned/README.md"));
    let card = card.expect("a card");
    assert!(card.contains("rotated") && card.contains("--rotate"), "{card}");
    assert_eq!(config(&world.path("turned"))["tie_word_embeddings"], false);

    let (tiny, out) = (world.path("tiny"), world.path("none"));
    let args = ["quantize", &tiny, &out, "--method", "rtn", "--target-bpw", "4.5", "--rotate"];
    let refused = pelton(&args);
    assert!(refused.stderr.contains("`--target-bpw` or `--target-size` with `--rotate`"));
    let args = ["quantize", &tiny, "none.gguf", "--method", "gguf", "--type", "q4_0", "--rotate"];
    assert!(pelton(&args).stderr.contains("`--rotate` with `gguf`"));
}

#[test]
fn a_calibration_is_a_file_a_folder_chats_or_the_sample() {
    let world = World::new();
    let texts = world.folder.path().join("texts");
    std::fs::create_dir(&texts).expect("a folder");
    let seen = std::fs::read_to_string(world.folder.path().join("seen")).expect("a text");
    let (first, second) = seen.split_at(seen.len() / 2);
    std::fs::write(texts.join("a.txt"), first).expect("written");
    std::fs::write(texts.join("left-out.csv"), "the moth").expect("written");
    let tokens = |calibration: &str| {
        let (input, output) = (world.path("tiny"), world.path("out"));
        let args = ["quantize", &input, &output, "--method", "gptq", "--group", "32", "--json"];
        let args = [&args[..], &["--sample-length", "16", "--samples", "100000"]].concat();
        let report = pelton(&[&args[..], &["--calibration", calibration]].concat()).json();
        let card = std::fs::read_to_string(Path::new(&output).join("README.md")).expect("a card");
        std::fs::remove_dir_all(&output).expect("removed");
        (report["calibration_tokens"].as_u64().expect("a number"), card)
    };
    let (n_half, _) = tokens(&world.path("texts"));
    let (n_whole, _) = tokens(&world.path("seen"));
    assert!(n_half > 100 && n_half < n_whole, "{n_half} {n_whole}");
    let line = serde_json::json!({ "text": second });
    std::fs::write(texts.join("b.jsonl"), format!("{line}\n\n")).expect("written");
    let (n_both, card) = tokens(&world.path("texts"));
    assert!(n_both.abs_diff(n_whole) <= 16, "{n_both} {n_whole}");
    assert!(card.contains("of `texts`, SHA-256"), "{card}");

    // A chat has the tokens of its template beside those of its messages.
    let file = texts.join("chats.jsonl");
    let path = world.path("texts/chats.jsonl");
    let messages = serde_json::json!([
        { "role": "user", "content": first }, { "role": "assistant", "content": second },
    ]);
    let shared = serde_json::json!([
        { "from": "human", "value": first }, { "from": "gpt", "value": second },
    ]);
    let mut found = Vec::new();
    for line in [
        serde_json::json!({ "messages": messages }),
        serde_json::json!({ "conversations": shared }),
        serde_json::json!({ "prompt": format!("{first}{second}") }),
    ] {
        std::fs::write(&file, line.to_string()).expect("written");
        found.push(tokens(&path).0);
    }
    assert!(found[0] == found[1] && found[0] > found[2], "{found:?}");

    let (n_sample, card) = tokens("sample");
    assert!(n_sample > 20_000 && card.contains("of `sample`"), "{n_sample} {card}");

    let refused = |calibration: &str, parts: &[&str]| {
        let (input, output) = (world.path("tiny"), world.path("out"));
        let args = ["quantize", &input, &output, "--method", "gptq", "--group", "32"];
        pelton(&[&args[..], &["--calibration", calibration]].concat()).assert_refused(parts);
    };
    for (line, part) in [
        ("{\"text\": 3}", "`conversations`"),
        ("{\"text\": ", "EOF"),
        ("{\"messages\": []}", "`messages`"),
        ("{\"messages\": [{\"content\": \"a\"}]}", "`role`"),
        ("{\"conversations\": [{\"from\": \"human\"}]}", "`from`"),
    ] {
        std::fs::write(&file, format!("{{\"text\": \"a moth\"}}\n{line}\n")).expect("written");
        refused(&path, &["chats.jsonl", "line 2", part]);
    }
    refused(&world.path("tiny"), &[".txt, .md or .jsonl"]);
    refused(&world.path("nowhere"), &["nowhere"]);
    std::fs::write(&file, "the moth\u{0}").expect("written");
    refused(&path, &["chats.jsonl", "line 1"]);
}

#[test]
fn a_card_and_a_report_say_how_a_folder_was_made() {
    let world = World::new();
    let page = world.path("page.html");
    let flags = ["--method", "gptq", "--keep", "down_proj", "--html", &page];
    world.quantize("gptq", &flags).assert_answered();
    let page = std::fs::read_to_string(page).expect("a page");
    for part in ["<svg", "Error of each matrix", "rounded to nearest", "bits per weight"] {
        assert!(page.contains(part), "`{part}` is missing in the page");
    }
    let folder = world.folder.path().join("gptq");
    let card = std::fs::read_to_string(folder.join("README.md")).expect("a card");
    let seen = std::fs::read(world.folder.path().join("seen")).expect("a text");
    let hash: String = <sha2::Sha256 as sha2::Digest>::digest(&seen)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let command = "pelton quantize tiny gptq --method gptq --bits 4 --group 32 --keep down_proj \
                   --calibration seen --samples 128 --sample-length 128 --seed 0 --damping 0.01";
    for part in [&hash[..], command, "gptq, 4 bits, groups of 32", "mean error of outputs"] {
        assert!(card.contains(part), "`{part}` is missing in: {card}");
    }
    let report = std::fs::read(folder.join("quantization_report.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let matrices = report["matrices"].as_array().expect("matrices");
    assert_eq!(matrices.len(), 12, "down stays as it is");
    for matrix in matrices {
        for field in ["bits", "error", "error_rounded", "weight_error", "n_outliers", "seconds"] {
            assert!(matrix[field].is_number(), "{field}: {matrix}");
        }
    }
    assert!(world.kl("gptq") < 0.1);
}

#[test]
fn a_budget_that_each_matrix_shares_loses_less_than_the_same_bits_for_all() {
    let world = World::new();
    let target = ["--method", "rtn", "--target-bpw", "4.5"];
    let report = world.quantize("mixed", &target).json();
    let bits = report["bits_per_weight"].as_f64().expect("bits");
    assert!(bits <= 4.5 && bits > 4.3, "{bits}");
    world.quantize("same", &["--method", "rtn", "--bits", "4"]).assert_answered();
    let (mixed, same) = (world.kl("mixed"), world.kl("same"));
    println!("{mixed} {same}");
    assert!(mixed < same, "{mixed} {same}");
    let config = config(&world.path("mixed"))["quantization_config"].clone();
    assert_eq!(config["quant_method"], "compressed-tensors");

    let tiny = world.folder.path().join("tiny/model.safetensors");
    let n_bytes = std::fs::metadata(tiny).expect("a file").len() * 6 / 10;
    let size = ["--method", "rtn", "--target-size", &n_bytes.to_string()];
    let report = world.quantize("sized", &size).json();
    let written = report["n_bytes"].as_u64().expect("bytes");
    assert!(written <= n_bytes, "{written} {n_bytes}");
}

#[test]
fn an_importance_matrix_is_measured_written_read_and_helps() {
    let world = World::new();
    let (tiny, seen) = (world.path("tiny"), world.path("seen"));
    let gguf = |out: &str, flags: &[&str]| {
        let out = world.path(out);
        pelton(&[&["quantize", &tiny, &out, "--method", "gguf"], flags].concat())
    };
    let imatrix = world.path("imatrix.gguf");
    let flags = ["--type", "iq4_nl", "--calibration", &seen, "--save-imatrix", &imatrix];
    gguf("measured.gguf", &[&flags[..], &["--sample-length", "128"]].concat()).assert_answered();
    gguf("read.gguf", &["--type", "iq4_nl", "--imatrix", &imatrix]).assert_answered();
    gguf("plain.gguf", &["--type", "iq4_nl"]).assert_answered();
    let bytes = |name: &str| std::fs::read(world.path(name)).expect("a file");
    assert!(bytes("measured.gguf") == bytes("read.gguf"), "the file says the same");
    let kl = ["plain.gguf", "read.gguf"].map(|name| world.kl(name));
    println!("{kl:?}");
    assert!(kl[1] < 0.9 * kl[0], "{kl:?}");

    let refused = |out: &str, flags: &[&str], parts: &[&str]| {
        gguf(out, flags).assert_refused(parts);
    };
    refused("x.gguf", &[], &["--type", "q4_k"]);
    refused("x.gguf", &["--type", "q9"], &["--type", "q9", "IQ4_NL"]);
    refused("x", &["--type", "q4_k"], &[".gguf"]);
    refused("plain.gguf", &["--type", "q4_k"], &["plain.gguf", "already"]);
    refused("x.gguf", &["--type", "q8_0", "--imatrix", &imatrix], &["--type q8_0"]);
    refused("x.gguf", &["--type", "q4_k", "--bits", "4"], &["--bits"]);
    refused("x.gguf", &["--type", "iq4_nl", "--imatrix", &seen], &["seen", "importance matrix"]);
    let other = world.folder.path().join("other");
    TinyModel { n_layers: 1, ..TinyModel::default() }.write_folder(&other);
    let (other, out) = (world.path("other"), world.path("x.gguf"));
    let args = ["quantize", &other, &out, "--method", "gguf", "--type", "iq4_nl"];
    let outcome = pelton(&[&args[..], &["--imatrix", &imatrix]].concat());
    outcome.assert_refused(&["blk.1.", "importance matrix of this model"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_run_that_was_killed_goes_on_to_the_same_bytes() {
    // So many layers that the first is written long before the last.
    let world = World::with_layers(12);
    let (tiny, text) = (world.path("tiny"), world.path("seen"));
    for method in ["gptq", "awq"] {
        let (out, whole) = (world.path(method), world.path("whole"));
        let args = |out: &str| {
            let flags = ["--method", method, "--group", "32", "--calibration", &text];
            [&["quantize", &tiny, out][..], &flags]
                .concat()
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let (own, other): (Vec<String>, Vec<String>) = (args(&out), args(&whole));
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let other: Vec<&str> = other.iter().map(String::as_str).collect();
        let mut child = command(&own).stderr(std::process::Stdio::null()).spawn().expect("starts");
        let partial = world.folder.path().join(format!(".{method}.pelton-partial"));
        while !partial.join("pelton-progress.json").exists() {
            assert!(child.try_wait().expect("asked").is_none(), "{method}: it ended by itself");
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("ends");
        assert!(!Path::new(&out).exists(), "{method}: it was done before it was killed");
        pelton(&own).assert_refused(&["--resume", &format!(".{method}.pelton-partial")]);
        let seed = [&own[..], &["--resume", "--seed", "7"]].concat();
        // Refused behind the line that names the calibration.
        let outcome = pelton(&seed);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let part = "another source, text or options";
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
        let resumed = pelton(&[&own[..], &["--resume", "--json"]].concat()).json();
        let n_resumed = resumed["n_resumed_layers"].as_u64().expect("layers");
        assert!((1..12).contains(&n_resumed), "{n_resumed}");
        assert!(!partial.exists());
        pelton(&other).assert_answered();
        for number in 1..=13 {
            let name = format!("model-{number:05}-of-00013.safetensors");
            let read = |folder: &str| std::fs::read(Path::new(folder).join(&name)).expect("a file");
            assert!(read(&out) == read(&whole), "{method}: {name} differs");
        }
        std::fs::remove_dir_all(&whole).expect("removed");
    }
}

#[test]
fn the_least_budget_is_named_and_can_be_met() {
    let world = World::new();
    // The number behind "can have is".
    let least = |flag: &str, asked: &str| -> String {
        let outcome = world.quantize("none", &["--method", "rtn", flag, asked]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let (_, number) = outcome.stderr.split_once("can have is ").expect("the least");
        number.split_whitespace().next().expect("a number").to_owned()
    };
    let bits = least("--target-bpw", "3");
    let report = world.quantize("bits", &["--method", "rtn", "--target-bpw", &bits]).json();
    let written = report["bits_per_weight"].as_f64().expect("bits");
    let wanted: f64 = bits.parse().expect("bits");
    assert!(written <= wanted && written > wanted - 0.002, "{written} {wanted}");
    let below = format!("{:.3}", wanted - 0.002);
    assert_eq!(least("--target-bpw", &below), bits);

    let size = least("--target-size", "20k");
    let report = world.quantize("size", &["--method", "rtn", "--target-size", &size]).json();
    assert_eq!(report["n_bytes"].as_u64(), size.parse().ok(), "{report}");
    let below = size.parse::<u64>().expect("bytes") - 1;
    assert_eq!(least("--target-size", &below.to_string()), size);
}

#[test]
fn modules_that_are_kept_keep_their_bytes() {
    let world = World::new();
    let kept =
        ["--keep", "down_proj", "--keep", "layers.1", "--keep", "model.layers.0.mlp.up_proj"];
    let report = world.quantize("out", &[&["--method", "rtn"][..], &kept].concat()).json();
    let modules: Vec<&str> = report["matrices"]
        .as_array()
        .expect("matrices")
        .iter()
        .map(|matrix| matrix["module"].as_str().expect("a name"))
        .collect();
    let expected = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let expected = expected.into_iter().chain(["mlp.gate_proj"]);
    let expected: Vec<String> = expected.map(|name| format!("model.layers.0.{name}")).collect();
    assert_eq!(modules, expected);
    let open =
        |file: &str| Safetensors::open_file(&world.folder.path().join(file)).expect("weights");
    let source = open("tiny/model.safetensors");
    for (file, names) in [
        (
            "out/model-00002-of-00003.safetensors",
            &["layers.0.mlp.down_proj", "layers.0.mlp.up_proj"][..],
        ),
        (
            "out/model-00003-of-00003.safetensors",
            &["layers.1.mlp.down_proj", "layers.1.self_attn.q_proj", "layers.1.input_layernorm"],
        ),
    ] {
        let written = open(file);
        for name in names {
            let name = format!("model.{name}.weight");
            let (own, theirs) = (source.get(&name).expect(&name), written.get(&name).expect(&name));
            assert!(own.data == theirs.data && own.dtype == theirs.dtype, "{name}");
        }
    }
    let args = ["run", "-m", &world.path("out"), "--raw", "--json", "-n", "4", "the moth"];
    pelton(&args).json();
}

/// A layer of a decoder with cross-attention is two layers of one name: its tensors are written
/// once.
#[test]
fn models_of_an_encoder_and_a_decoder_are_quantized_whole() {
    for golden in encoder_decoders() {
        let name = golden.checkpoint.name();
        let folder = tempfile::tempdir().expect("temp");
        let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        golden.checkpoint.write_bare_folder(at("source").as_ref());
        for method in ["rtn", "fp8"] {
            let flags = ["--method", method, "--group", "row"];
            let flags = if method == "rtn" { &flags[..] } else { &flags[..2] };
            let outcome = pelton(&[&["quantize", &at("source"), &at(method)][..], flags].concat());
            assert_eq!(outcome.code, Some(0), "{name} by {method}: {}", outcome.stderr);
            let args = ["run", "-m", &at(method), "--tokens", "5,6,7", "-n", "6", "-q"];
            let outcome = pelton(&[&args[..], &["--temperature", "0"]].concat());
            assert_eq!(outcome.code, Some(0), "{name} by {method}: {}", outcome.stderr);
        }
    }
}

/// Windows of a calibration may be longer than the vocabulary is large.
#[test]
fn a_calibration_with_windows_longer_than_the_vocabulary() {
    let world = World::new();
    let (model, out, text) = (world.path("long"), world.path("out"), world.path("seen"));
    let tiny = TinyModel { max_context: 512, n_layers: 1, ..TinyModel::default() };
    std::fs::create_dir(&model).expect("a folder");
    tiny.write_folder(Path::new(&model));
    let args = ["quantize", &model, &out, "--method", "gptq", "--group", "32"];
    let windows = ["--calibration", &text, "--sample-length", "400", "--samples", "2"];
    pelton(&[&args[..], &windows].concat()).assert_answered();
}
