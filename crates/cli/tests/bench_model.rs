//! `pelton bench model`, through the real binary and with the model inside it, at tiny sizes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{command, pelton};
use serde_json::Value;

/// As little as can be measured.
const TINY: [&str; 14] = [
    "bench",
    "model",
    "--prompt",
    "24",
    "--generate",
    "3",
    "--batch",
    "1,2",
    "--verify",
    "2",
    "--context",
    "20,40",
    "--rounds",
    "2",
];

/// All numbers of a JSON value.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Number(number) => vec![number.as_f64().expect("a double")],
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::Object(fields) => fields.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_variant_asked_for_is_measured_once_per_round() {
    let report = pelton(&[&TINY[..], &["--threads", "2", "--json"]].concat()).json();
    let figures = report["figures"].as_array().expect("figures");
    let names: Vec<&str> = figures.iter().map(|x| x["name"].as_str().expect("a name")).collect();
    let expected = [
        "prefill 24",
        "decode batch 1",
        "decode batch 2",
        "decode context 20",
        "decode context 40",
        "verify rows 1",
        "verify rows 2",
        "verify rows 3",
    ];
    assert_eq!(names, expected);
    for figure in figures {
        for summary in ["step_s", "tokens_per_s"] {
            let rounds = numbers(&figure[summary]["rounds"]);
            assert_eq!(rounds.len(), 2, "{figure}");
            let median = figure[summary]["median"].as_f64().expect("a median");
            assert!((median - (rounds[0] + rounds[1]) / 2.0).abs() <= median * 1e-9, "{figure}");
        }
        assert!(numbers(figure).iter().all(|x| x.is_finite() && *x > 0.0), "{figure}");
        let is_prompt = figure["name"] == "prefill 24";
        assert_eq!(figure["kv_bytes"].is_null(), is_prompt, "{figure}");
        assert_eq!(figure["bandwidth_percent"].is_null(), is_prompt, "{figure}");
    }
    assert_eq!(numbers(&figures[1]["ratio"]["rounds"]), [1.0, 1.0]);
    assert_eq!(numbers(&figures[5]["ratio"]["rounds"]), [1.0, 1.0]);
    assert_eq!(report["threads"], 2);
    assert_eq!(report["interrupted"], false);
    let bandwidths = numbers(&report["read_bandwidth"]["rounds"]);
    assert_eq!(bandwidths.len(), 2, "{report}");
    assert!(bandwidths.iter().all(|x| *x > 0.0), "{report}");
    // Twice the context is twice the keys and values, but for the steps in the middle.
    let kv = |idx: usize| figures[idx]["kv_bytes"].as_f64().expect("bytes");
    assert_eq!(kv(4) / kv(3), 48.0 / 28.0);
}

#[test]
fn the_table_goes_to_stdout_and_progress_to_stderr() {
    let outcome = pelton(&TINY);
    outcome.assert_answered();
    for part in ["story", "read bandwidth", "prefill 24", "decode batch 2", "verify rows 3"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
    assert_eq!(outcome.stderr.lines().count(), 2 * 8, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("round 2 of 2  verify rows 3"), "{}", outcome.stderr);
}

#[test]
fn what_cannot_be_measured_is_refused_by_flag() {
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--prompt", "0"], &["--prompt"]),
        (&["--prompt", "3000"], &["--prompt", "2048", "hint"]),
        (&["--generate", "2048"], &["--generate", "2048"]),
        (&["--context", "128,5000"], &["--context", "5000", "2032"]),
        (&["--verify", "3000"], &["--verify"]),
        (&["--batch", "1,x"], &["--batch", "`x`"]),
        (&["--batch", "1000000000"], &["--batch", "1000000000"]),
        (&["--rounds", "0"], &["--rounds"]),
        (&["-m", "no-such.gguf"], &["no-such.gguf"]),
    ];
    for (flags, parts) in cases {
        pelton(&[&["bench", "model"], flags].concat()).assert_refused(parts);
    }
    pelton(&["bench"]).assert_refused(&["needs a command"]);
}

#[test]
fn ctrl_c_prints_what_was_measured() {
    // So many rounds never end by themselves in the time it takes to interrupt.
    let mut child = command(&[&TINY[..12], &["--rounds", "1000000", "--json"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let mut heard = lines.by_ref().map(|line| line.expect("text"));
    assert!(heard.any(|line| line.starts_with("round 2 ")), "it ended early");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill starts").success());
    // Writing to a closed pipe fails, so the test listens to the end.
    heard.for_each(drop);
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(report["interrupted"], true);
    let figures = report["figures"].as_array().expect("figures");
    assert_eq!(figures.len(), 8);
    assert!(figures.iter().all(|figure| !numbers(&figure["step_s"]).is_empty()));
}

#[test]
fn a_profile_has_every_operation_of_a_step_and_a_trace() {
    let folder = tempfile::tempdir().expect("temp");
    let file = folder.path().join("trace.json");
    let path = file.to_str().expect("UTF-8");
    let offline = [
        "bench",
        "offline",
        "--batch",
        "2",
        "--lengths",
        "24:6",
        "--rounds",
        "1",
        "--threads",
        "1",
    ];
    let model = [&TINY[..], &["--threads", "1"]].concat();
    for (args, names) in [
        (&model[..], &["prefill 24", "decode batch 1", "decode batch 2"][..]),
        (&offline, &["2 x 24 + 6, prompts", "2 x 24 + 6, generation"]),
    ] {
        let told = pelton(&[args, &["--json", "--profile", path]].concat()).json();
        let profiles = told["profiles"].as_array().expect("profiles");
        let found: Vec<&str> = profiles.iter().filter_map(|step| step["name"].as_str()).collect();
        assert_eq!(found, names);
        let trace: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        for (row, step) in profiles.iter().enumerate() {
            let ops = step["ops"].as_array().expect("operations");
            for op in ["embed", "qkv", "attention", "out", "norm", "mlp", "gather", "head"] {
                assert_eq!(ops.iter().filter(|x| x["op"] == op).count(), 1, "{op}: {step}");
            }
            let sum = |name: &str| ops.iter().filter_map(|op| op[name].as_f64()).sum::<f64>();
            assert!((sum("share_percent") - 100.0).abs() < 1e-6, "{step}");
            let step_s = step["step_s"].as_f64().expect("seconds");
            let laps = events.iter().filter(|event| event["tid"] == row && event["ph"] == "X");
            let micros = laps.clone().filter_map(|event| event["dur"].as_f64()).sum::<f64>();
            assert!((micros / 1e6 / step_s - 1.0).abs() < 1e-3, "{micros} {step_s}");
            assert_eq!(laps.count() as f64, sum("calls"), "{step}");
        }
        // After the attention of the last layer one row of a prompt goes on, the one with logits.
        let mlp = |step: &Value| {
            let ops = step["ops"].as_array().expect("operations");
            let found = ops.iter().find(|op| op["op"] == "mlp").expect("a perceptron");
            found["operations"].as_f64().expect("a number")
        };
        if names[0] == "prefill 24" {
            let layers = pelton(&["plan", "--json"]).json()["model"]["n_layers"].as_f64();
            let layers = layers.expect("layers");
            let rows = mlp(&profiles[0]) / mlp(&profiles[1]);
            assert!((rows - (24.0 * (layers - 1.0) + 1.0) / layers).abs() < 1e-9, "{rows}");
        }
        // Weights of all products are read once in a step that decodes.
        let last = profiles.last().and_then(|step| step["ops"].as_array()).expect("operations");
        let read = last.iter().filter(|op| op["op"] != "attention");
        let read = read.filter_map(|op| op["n_bytes"].as_u64()).sum::<u64>();
        assert_eq!(Some(read), told["weight_bytes"].as_u64());
    }
    let plain = pelton(&[&model[..], &["--json"]].concat()).json();
    assert!(plain["profiles"].is_null(), "{}", plain["profiles"]);
    let text = pelton(&[&offline[..], &["--profile", path]].concat());
    text.assert_answered();
    assert!(text.stdout.contains("of the step") && text.stdout.contains("mlp"), "{}", text.stdout);
}
