//! `pelton plan` and `pelton doctor` through the real binary.

use std::path::Path;

use crate::common::{self, Outcome, bare_config, command, outcome, pelton};
use pelton_model::KvDtype;
use pelton_testkit::golden::decoders;
use serde_json::{Value, json};

/// The binary with an own cache folder.
fn with_cache(cache: &Path, args: &[&str]) -> Outcome {
    let mut command = command(args);
    command.env("XDG_CACHE_HOME", cache).env_remove("PELTON_TUNING");
    outcome(&command.output().expect("the binary starts"))
}

#[test]
fn every_family_is_planned_as_inspect_and_the_server_count_it() {
    for golden in decoders() {
        let temp = tempfile::tempdir().expect("temp");
        let folder = temp.path().join("model");
        golden.checkpoint.write_folder(&folder);
        let path = folder.to_str().expect("UTF-8");
        let name = golden.checkpoint.name();
        // Each golden has one of the types here; the tests of the crate go through all.
        let kv_dtype = KvDtype::ALL[name.len() % KvDtype::ALL.len()];
        let common = ["--json", "--context", "20", "--kv-dtype", kv_dtype.name(), path];
        let told = pelton(&[&["plan", "--batch", "3"], &common[..]].concat()).json();
        let facts = pelton(&[&["inspect", "--requests", "3"], &common[..]].concat()).json();
        let bytes = |part: &str| facts["memory"][part].as_u64().expect("bytes");
        let kept_bytes = bytes("kv_bytes") + bytes("state_bytes");
        assert_eq!(told["fit"]["kv_bytes"], kept_bytes, "{name}");
        assert_eq!(told["fit"]["weight_bytes"], facts["memory"]["weight_bytes"], "{name}");
        assert_eq!(told["kv"]["token_bytes"], facts["kv_bytes_per_token"], "{name}");
    }
}

#[test]
fn a_configuration_alone_is_enough() {
    let folder = tempfile::tempdir().expect("temp");
    let path = bare_config(folder.path());
    let args =
        ["plan", &path, "--hardware", "h100-sxm", "--batch", "32", "--price-per-hour", "2.5"];
    let text = pelton(&args);
    text.assert_answered();
    for part in [
        "8.03 G parameters",
        "128.0 KiB per token",
        "1.0 GiB per sequence of 8192",
        "yes; 64 ",
        "cost",
    ] {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    let told = pelton(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(told["weights"]["format"], "bf16");
    assert_eq!(told["kv"]["sequence_bytes"], 1 << 30);
    assert_eq!(told["times"]["is_measured"], false);
    assert_eq!(told["times"]["decode_limit"], "bandwidth");
    let sources = told["hardware"]["sources"].as_array().expect("sources");
    assert!(sources.len() >= 2);
    let formats = told["formats"].as_array().expect("formats");
    assert_eq!(formats.len(), pelton_quant::FORMATS.len());
    // A folder is its configuration, and weights of another format are fewer bytes.
    let smaller = pelton(&[
        "plan",
        folder.path().to_str().expect("UTF-8"),
        "--weights",
        "Q4_K",
        "--hardware",
        "h100-sxm",
        "--json",
    ])
    .json();
    let bytes = |told: &Value| told["weights"]["n_bytes"].as_u64().expect("bytes");
    assert!(bytes(&smaller) * 3 < bytes(&told));
}

#[test]
fn a_plan_that_does_not_fit_is_an_answer() {
    let folder = tempfile::tempdir().expect("temp");
    let path = bare_config(folder.path());
    let args = ["plan", &path, "--hardware", "rtx-4090", "--batch", "16", "--context", "8192"];
    let text = pelton(&args);
    text.assert_answered();
    for part in
        ["no; ", "missing", "would fit", "--batch 8", "--context ", "--weights ", "--ranks 2"]
    {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    let told = pelton(&[&args[..], &["--json"]].concat()).json();
    let shortage = &told["fit"]["shortage"];
    let missing = shortage["missing_bytes"].as_u64().expect("bytes");
    let total = told["fit"]["total_bytes"].as_u64().expect("bytes");
    assert_eq!(total - missing, 24 << 30);
    for way in shortage["ways"].as_array().expect("ways") {
        let flag = match way["change"].as_str().expect("a change") {
            "batch" => format!("--batch={}", way["batch"]),
            "context" => format!("--context={}", way["context"]),
            "weights" => format!("--weights={}", way["format"].as_str().expect("a name")),
            "kv_dtype" => format!("--kv-dtype={}", way["kv_dtype"].as_str().expect("a name")),
            "ranks" => format!("--ranks={}", way["ranks"]),
            "memory" => format!("--memory={}", way["memory_bytes"]),
            other => panic!("{other}"),
        };
        let name = flag.split('=').next().expect("a name");
        let rest: Vec<&str> = match args.iter().position(|arg| *arg == name) {
            Some(at) => [&args[..at], &args[at + 2..]].concat(),
            None => args.to_vec(),
        };
        let changed = pelton(&[&rest[..], &[flag.as_str(), "--json"]].concat()).json();
        assert_eq!(changed["fit"]["shortage"], Value::Null, "{flag}");
    }
}

#[test]
fn a_table_has_formats_in_rows_and_contexts_in_columns() {
    let folder = tempfile::tempdir().expect("temp");
    let path = bare_config(folder.path());
    let args = ["plan", &path, "--hardware", "rtx-4090", "--table", "--weights", "bf16,q4_k"];
    let text = pelton(&[&args[..], &["--context", "8192,131072"]].concat());
    text.assert_answered();
    let row = |name: &str| {
        let line = text.stdout.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("weights")[3..], ["8192", "131072"]);
    assert_eq!(row("bf16")[4..], ["8", "-"]);
    assert_eq!(row("q4_k")[1], "4.50");
    let told = pelton(&[&args[..], &["--json"]].concat()).json();
    // Four contexts up to what the model reaches.
    assert_eq!(told["table"].as_array().expect("cells").len(), 8);
}

#[test]
fn what_cannot_be_planned_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("temp");
    let path = bare_config(folder.path());
    let refused = |args: &[&str], parts: &[&str]| {
        pelton(&[&["plan", path.as_str()], args].concat()).assert_refused(parts);
    };
    refused(&["--hardware", "v100"], &["--hardware v100", "h100-sxm", "mi300x", "pelton doctor"]);
    refused(&["--hardware", "h100"], &["did you mean `h100-sxm`?"]);
    refused(&["--weights", "q4_m"], &["--weights q4_m", "q4_k"]);
    refused(&["--weights", "q4_k,q8_0"], &["--weights", "--table"]);
    refused(&["--context", "200000"], &["--context 200000", "131072"]);
    refused(&["--context", "100", "--input", "90", "--output", "20"], &["110 tokens", "--context"]);
    refused(&["--memory", "much"], &["--memory", "4GiB"]);
    refused(&["--ranks", "0"], &["--ranks"]);
    refused(&["--ranks", "33", "--split", "pipeline"], &["--split pipeline", "32 layers"]);
    refused(&["--ranks", "2", "--split", "experts"], &["--split experts", "no experts"]);
    refused(&["--split", "halves"], &["--split", "pipeline"]);
    refused(&["--split", "pipeline"], &["`--split pipeline`", "one machine", "--ranks"]);
    for flag in ["--input", "--output", "--price-per-hour"] {
        refused(&["--table", flag, "8"], &["--table", flag]);
    }
    refused(&["--batch", "0"], &["--batch"]);
    refused(&["--price-per-hour", "-1"], &["--price-per-hour"]);
    pelton(&["plan", "owner/nothing"]).assert_refused(&[
        "owner/nothing",
        "HF_HUB_OFFLINE",
        "config.json",
    ]);
    let quantized = folder.path().join("quantized");
    std::fs::create_dir(&quantized).expect("created");
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("read")).expect("JSON");
    config["quantization_config"] =
        json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false});
    std::fs::write(quantized.join("config.json"), config.to_string()).expect("written");
    let path = quantized.to_str().expect("UTF-8");
    pelton(&["plan", path]).assert_refused(&["GPTQ", "--weights"]);
    pelton(&["plan", path, "--weights", "q4_0"]).assert_answered();
    // Experts that are known by their tensors alone, once these are there.
    config["quantization_config"] = json!({"quant_method": "mxfp4"});
    std::fs::write(quantized.join("config.json"), config.to_string()).expect("written");
    pelton(&["plan", path]).assert_refused(&["mxfp4", "experts of 4 bits", "--weights"]);
    pelton(&["plan", path, "--weights", "q4_0"]).assert_answered();
}

#[test]
fn without_a_record_there_are_sizes_and_no_times() {
    let cache = tempfile::tempdir().expect("temp");
    let text = with_cache(cache.path(), &["plan", "story"]);
    text.assert_answered();
    assert!(text.stdout.contains("unknown: `pelton doctor` measures"), "{}", text.stdout);
    let priced = with_cache(cache.path(), &["plan", "story", "--price-per-hour", "2"]);
    priced.assert_refused(&["`--price-per-hour`", "pelton doctor"]);
    let told = with_cache(cache.path(), &["plan", "story", "--json"]).json();
    assert_eq!(told["times"], Value::Null);
    assert!(told["weights"]["n_bytes"].as_u64().is_some_and(|n| n > 1 << 20));
}

#[test]
fn facts_and_advice_need_no_measurement() {
    let cache = tempfile::tempdir().expect("temp");
    let text = with_cache(cache.path(), &["doctor", "--no-measure"]);
    text.assert_answered();
    for part in ["processor", "memory", "huge pages", "governor", "what limits inference here"] {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    let told = with_cache(cache.path(), &["doctor", "--no-measure", "--json"]).json();
    assert_eq!((&told["measured"], &told["record"]), (&Value::Null, &Value::Null));
    assert!(told["machine"]["n_processors"].as_u64().is_some_and(|n| n > 0));
    // The scalar kernels run everywhere, and are the best of no machine that is tested.
    let mut forced = command(&["doctor", "--no-measure"]);
    forced.env("XDG_CACHE_HOME", cache.path()).env("PELTON_KERNELS", "scalar");
    let forced = outcome(&forced.output().expect("the binary starts"));
    for part in ["the kernels `scalar` are forced", "unset PELTON_KERNELS"] {
        assert!(forced.stdout.contains(part), "`{part}` is missing in\n{}", forced.stdout);
    }
}

#[test]
fn a_quick_measurement_has_everything_and_keeps_no_record() {
    let cache = tempfile::tempdir().expect("temp");
    let told = with_cache(cache.path(), &["doctor", "--quick", "--threads", "2", "--json"]).json();
    let measured = &told["measured"];
    for figure in ["read_bytes_per_s", "barrier_s", "disk_read_bytes_per_s"] {
        assert!(measured[figure].as_f64().is_some_and(|x| x > 0.0), "{figure}: {measured}");
    }
    let ceilings = measured["ceilings"].as_array().expect("by threads");
    assert_eq!(ceilings.len(), 2);
    for reading in ceilings {
        let peak = &reading["f16_ops_per_s"];
        // Which kernels have it is a test of the kernels.
        assert!(peak.is_null() || peak.as_f64().is_some_and(|x| x > 0.0), "{reading}");
    }
    assert!(measured["is_noisy"].is_boolean() && measured["products"].as_array().is_some());
    assert_eq!(told["record"], Value::Null);
    let left = cache.path().join("pelton");
    let files = std::fs::read_dir(&left).map_or(0, Iterator::count);
    assert_eq!(files, 0, "something is left in {}", left.display());
}

#[test]
fn ctrl_c_prints_the_ceilings_and_keeps_no_record() {
    let cache = tempfile::tempdir().expect("temp");
    let stop = |more: &[&str]| {
        let mut command = common::command(&[&["doctor", "--threads", "1"], more].concat());
        command.env("XDG_CACHE_HOME", cache.path());
        common::stopped(command, "measuring")
    };
    let told: Value = serde_json::from_str(&stop(&["--json"]).stdout).expect("JSON");
    let ceilings = told["ceilings_until_stop"].as_array().expect("by threads");
    assert!(ceilings[0]["read_bytes_per_s"].as_f64().is_some_and(|x| x > 0.0), "{told}");
    assert_eq!((&told["measured"], &told["record"]), (&Value::Null, &Value::Null));
    let text = stop(&[]).stdout;
    for part in ["read GB/s", "f16 GOP/s", "interrupted", "no record is kept"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!cache.path().join("pelton/machine.json").exists());
}

/// A record as `pelton doctor` writes it, with round numbers in place of measured ones.
fn write_record(cache: &Path, is_noisy: bool, read_bandwidth: f64) {
    let kernels = pelton_kernels::Kernels::best().name;
    let product = |rows: usize, bytes_per_s: f64| json!({"layout": "q8", "rows": rows, "bytes_per_s": bytes_per_s});
    let record = json!({"version": 1, "machines": [{
        "fingerprint": {
            "cpu": pelton_kernels::cpu_model(), "kernels": kernels,
            "threads": pelton_kernels::default_threads(),
        },
        "measured_at": 1, "is_noisy": is_noisy, "spread_percent": 1.0,
        "hardware": {
            "name": "here", "words": "a processor of this test", "kind": "processor",
            "memory_bytes": 1_u64 << 34, "read_bandwidth": read_bandwidth,
            "peaks": {"f32": 1e11, "int8": 4e11}, "quantized_by": "int8",
            "sources": ["memory, bandwidth, peaks: this test"], "barrier_s": 0.0,
            "products": [product(1, 1e10), product(512, 1e8)],
        },
    }]});
    std::fs::create_dir_all(cache.join("pelton")).expect("created");
    std::fs::write(cache.join("pelton/machine.json"), record.to_string()).expect("written");
}

#[test]
fn a_plan_uses_the_record_of_this_machine_and_says_when_it_is_noisy() {
    let (folder, cache) = (tempfile::tempdir().expect("temp"), tempfile::tempdir().expect("temp"));
    let path = bare_config(folder.path());
    let args = ["plan", &path, "--weights", "q8_0"];
    write_record(cache.path(), false, 1e10);
    let text = with_cache(cache.path(), &args);
    text.assert_answered();
    assert!(text.stdout.contains("products as measured on this machine"), "{}", text.stdout);
    assert!(!text.stdout.contains("noisy"));
    let told = with_cache(cache.path(), &[&args[..], &["--json"]].concat()).json();
    assert_eq!(told["times"]["is_measured"], true);
    // Every byte of the step at the speed of one row, and the keys and values.
    let read = told["weights"]["step_bytes"].as_f64().expect("bytes") + 576.0 * 131072.0;
    let tpot = told["times"]["tpot_s"].as_f64().expect("seconds");
    assert!((tpot / (read / 1e10) - 1.0).abs() < 0.01, "{tpot}");
    write_record(cache.path(), true, 1e10);
    let noisy = with_cache(cache.path(), &args);
    assert!(noisy.stdout.contains("noisy minute"), "{}", noisy.stdout);
    // A profile that is named wins.
    let named = with_cache(cache.path(), &[&args[..], &["--hardware", "h200", "--json"]].concat());
    assert_eq!(named.json()["hardware"]["name"], "h200");
}

#[test]
fn a_benchmark_says_that_memory_has_another_speed_than_in_the_record() {
    let cache = tempfile::tempdir().expect("temp");
    // No machine is as slow as that.
    write_record(cache.path(), false, 1e6);
    let args = ["bench", "kernels", "--quick", "--filter", "norm"];
    let text = with_cache(cache.path(), &args);
    text.assert_answered();
    let words = "GB/s meanwhile, and 0.0 when `pelton doctor` measured this machine";
    assert!(text.stdout.contains(words), "{}", text.stdout);
    let told = with_cache(cache.path(), &[&args[..], &["--json"]].concat()).json();
    let reads = &told["report"]["reads"];
    assert_eq!(reads["baseline_bytes_per_s"], 1e6);
    assert!(reads["bytes_per_s"].as_f64().is_some_and(|speed| speed > 1e8), "{reads}");
}
