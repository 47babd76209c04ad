//! `pelton bench sim` and `pelton bench load` through the real binary, with a moment's worth of work.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{command, pelton, signal};

#[test]
fn a_simulation_is_the_same_every_time_and_tells_every_variant() {
    let args = [
        "bench",
        "sim",
        "--workload",
        "tenants",
        "-n",
        "60",
        "--policy",
        "fcfs,fair",
        "--policy",
        "sla",
        "--batching",
        "static,continuous",
        "--tenant-weight",
        "many=1,few=2",
        "--check",
        "--noise",
        "0.1",
        "--json",
    ];
    // The head has the time of the run.
    let run = || {
        let mut report = pelton(&args).json();
        report.as_object_mut().expect("an object").shift_remove("report");
        report
    };
    let report = run();
    assert_eq!(report, run());
    let variants = report["variants"].as_array().expect("variants");
    let names: Vec<&str> = variants.iter().map(|v| v["name"].as_str().expect("a name")).collect();
    let expected = [
        "fcfs static",
        "fcfs continuous",
        "fair static",
        "fair continuous",
        "sla static",
        "sla continuous",
    ];
    assert_eq!(names, expected);
    for variant in variants {
        let report = &variant["report"];
        assert_eq!((&report["offered"], &report["unfinished"]), (&60.into(), &0.into()));
        assert!(report["all"]["ttft_ms"]["p99"].as_f64().is_some_and(|x| x > 0.0), "{report}");
        assert_eq!(report["tenants"].as_array().map(Vec::len), Some(2));
    }
    assert_eq!(report["interrupted"], false);
}

#[test]
fn the_age_of_the_queue_does_not_void_a_fair_order_and_the_longest_step_is_kept() {
    let sim = |more: &[&str]| {
        let common = ["bench", "sim", "--json", "--policy"];
        pelton(&[&common, more].concat()).json()["variants"].clone()
    };
    let tenants = ["fair", "--workload", "tenants", "-n", "700", "--max-wait", "5,3600"];
    let variants = sim(&[&tenants[..], &["--tenant-weight", "many=1,few=1"]].concat());
    assert_eq!(variants[0]["name"], "max-wait 5");
    assert_eq!(variants[0]["report"], variants[1]["report"]);
    let ttft = |tenant: usize| &variants[0]["report"]["tenants"][tenant]["ttft_ms"];
    assert!(ttft(0)["p50"].as_f64() > Some(10_000.0), "many: {}", ttft(0));
    assert!(ttft(1)["p50"].as_f64() < Some(600.0), "few: {}", ttft(1));

    let variants = sim(&["fcfs", "--workload", "mixed", "-n", "100", "--max-step-ms", "0,100"]);
    let slowest = [0, 1].map(|i| variants[i]["report"]["all"]["tpot_ms"]["p99"].as_f64());
    assert!(slowest[0] > Some(250.0) && slowest[1] <= Some(101.0), "{slowest:?}");
}

#[test]
fn a_saved_workload_is_simulated_like_the_workload() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    let path = path.to_str().expect("UTF-8");
    let made = ["bench", "sim", "--workload", "bursty", "-n", "40", "--save-trace", path, "--json"];
    let made = pelton(&made).json();
    let read = pelton(&["bench", "sim", "--trace", path, "--json"]).json();
    assert_eq!(made["variants"], read["variants"]);
    let some = pelton(&["bench", "sim", "--trace", path, "-n", "7", "--json"]).json();
    assert_eq!(some["variants"][0]["report"]["offered"], 7);
}

#[test]
fn one_run_is_a_report_and_several_are_a_table() {
    let one = pelton(&["bench", "sim", "-n", "30"]);
    one.assert_answered();
    for part in ["poisson, 30 requests", "30 offered, 30 finished", "TTFT", "preemptions"] {
        assert!(one.stdout.contains(part), "`{part}` is missing in: {}", one.stdout);
    }
    assert_eq!(one.stderr, "");
    let two = pelton(&["bench", "sim", "-n", "30", "--prefix-cache", "on,off"]);
    two.assert_answered();
    for part in ["variant", "\ncache", "\nno cache", "x1.00"] {
        assert!(two.stdout.contains(part), "`{part}` is missing in: {}", two.stdout);
    }
}

#[test]
fn prices_come_from_a_file_and_flags_win() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prices.json");
    std::fs::write(&path, r#"{"base_ms": 2, "token_ms": 0.5}"#).expect("written");
    let path = path.to_str().expect("UTF-8");
    let sim =
        |more: &[&str]| pelton(&[&["bench", "sim", "-n", "5", "--prices", path], more].concat());
    let told = sim(&["--token-ms", "0.25"]);
    told.assert_answered();
    assert!(told.stdout.contains("step of 2 ms + 0.25 per token + 0.05"), "{}", told.stdout);
    sim(&["--base-ms", "-1"]).assert_refused(&["base_ms", "-1"]);
    std::fs::write(path, r#"{"base": 2}"#).expect("written");
    sim(&[]).assert_refused(&["prices.json", "base"]);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let sim = |more: &[&str]| pelton(&[&["bench", "sim"], more].concat());
    sim(&["--policy", "lifo"]).assert_refused(&["--policy", "lifo", "fair"]);
    sim(&["--workload", "none"]).assert_refused(&["--workload", "long-tail"]);
    sim(&["--rate", "0"]).assert_refused(&["--rate"]);
    sim(&["--rate", "nan"]).assert_refused(&["--rate"]);
    sim(&["--scale", "1e9"]).assert_refused(&["--scale"]);
    sim(&["--noise", "2"]).assert_refused(&["--noise"]);
    sim(&["--ttft-target", "0"]).assert_refused(&["--ttft-target"]);
    sim(&["--max-step-ms", "1.5"]).assert_refused(&["--max-step-ms", "from 0 to 86400000"]);
    sim(&["--block-size", "0"]).assert_refused(&["--block-size"]);
    sim(&["--blocks", "1", "--block-size", "1"]).assert_refused(&["--blocks"]);
    sim(&["--tenant-weight", "acme=1"]).assert_refused(&["--tenant-weight", "acme"]);
    sim(&["--tenant-weight", "acme"]).assert_refused(&["--tenant-weight", "NAME=N"]);
    sim(&["--trace", "/absent"]).assert_refused(&["/absent"]);
    sim(&["--trace", "x", "--rate", "2"]).assert_refused(&["--trace", "--rate"]);
    sim(&["--no-prefix-cache", "--prefix-cache", "on"]).assert_refused(&["--prefix-cache"]);
    sim(&["-n", "0"]).assert_refused(&["--requests"]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    std::fs::write(&path, "0 10 10\n1 10 ten\n").expect("written");
    let path = path.to_str().expect("UTF-8");
    sim(&["--trace", path]).assert_refused(&["trace.txt, line 2", "output_tokens", "ten"]);
}

#[test]
fn the_real_engine_serves_a_workload_by_the_clock_and_by_concurrency() {
    let load = |more: &[&str]| {
        let common = ["bench", "load", "--scale", "0.05", "-n", "8", "--threads", "2", "--json"];
        pelton(&[&common, more].concat()).json()
    };
    for (more, words) in
        [(["--rate", "50"], ", 50 per second"), (["--concurrency", "3"], ", 3 clients")]
    {
        let told = load(&more);
        let workload = told["workload"].as_str().expect("words");
        assert!(workload.contains(words), "{workload}");
        assert_eq!(workload.contains("per second"), more[0] == "--rate", "{workload}");
        let report = &told["variants"][0]["report"];
        assert_eq!((&report["offered"], &report["all"]["finished"]), (&8.into(), &8.into()));
        assert!(report["totals"]["steps"].as_u64().is_some_and(|n| n > 0), "{report}");
        assert!(report["all"]["end_to_end_ms"]["p50"].as_f64().is_some_and(|x| x > 0.0));
        assert_eq!(told["interrupted"], false);
    }
    let told = load(&["--workload", "tenants", "--rate", "50"]);
    let finished = &told["variants"][0]["report"]["all"]["finished"];
    assert_eq!(finished, 8);
}

#[test]
fn a_load_without_any_answer_is_a_failure_with_the_reason() {
    let drive = ["bench", "load", "-n", "2", "--lengths", "4000:4000", "--threads", "1"];
    let simulate = ["bench", "sim", "-n", "2", "--max-context", "8"];
    for args in [&drive[..], &simulate] {
        let outcome = pelton(args);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("2 refused"), "{}", outcome.stdout);
        assert!(outcome.stderr.contains("error: no request was answered: "), "{}", outcome.stderr);
    }
    let clocked = ["bench", "load", "--concurrency", "2", "--arrivals", "bursty"];
    pelton(&clocked).assert_refused(&["--concurrency", "--arrivals"]);
}

#[test]
fn ctrl_c_ends_a_simulation_with_what_there_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    let saved = path.to_str().expect("UTF-8");
    let args = ["bench", "sim", "-n", "100000", "--save-trace", saved, "--check"];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the binary starts");
    // The command listens for Ctrl-C before it writes the file.
    while !path.exists() {
        std::thread::yield_now();
    }
    signal("INT", child.id());
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("finished") && text.contains("Interrupted"), "{text}");
}

#[test]
fn ctrl_c_ends_a_load_with_what_was_served() {
    // At this rate the first request comes after a quarter of an hour or so.
    let args = ["bench", "load", "--scale", "0.05", "--rate", "0.001", "--threads", "1"];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("stderr is piped");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.starts_with("serving"), "{line}");
    signal("INT", child.id());
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("0 offered") && text.contains("Interrupted"), "{text}");
}
