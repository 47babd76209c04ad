//! Wrong sources and flags, full disks, Ctrl-C and kills of `pelton quantize`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{World, change};
use crate::common::{self, command, pelton, signal};

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
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut line).expect("a line");
    assert!(line.starts_with("calibration: "), "{line}");
    signal("INT", child.id());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("the rest");
    let code = child.wait().expect("ends").code();
    // It may have been done before the signal came, or before it was listened to.
    match code {
        Some(0) => assert!(Path::new(&out).join("config.json").exists()),
        code => {
            assert!(code == Some(130) || code.is_none(), "{code:?}");
            let is_said = rest.contains("interrupted: nothing was written (hint: with `--resume` ");
            assert!(is_said || code.is_none(), "{rest}");
            assert_eq!(world.names(), before);
        }
    }
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
