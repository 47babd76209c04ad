//! Folders in every format, and budgets of bits that matrices share.

use super::{World, config};
use crate::common::pelton;
use serde_json::Value;

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
