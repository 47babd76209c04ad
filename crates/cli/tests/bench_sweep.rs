//! `pelton bench sweep` against servers whose limit is known, and against a Pelton.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::mock::{Delays, Mock};
use common::server::Server;
use common::{command, interrupted, pelton};
use serde_json::Value;

fn sweep(address: &str, more: &[&str]) -> Value {
    let common = ["bench", "sweep", "--url", address, "--lengths", "5:6", "--json"];
    pelton(&[&common, more].concat()).json()
}

/// The limit that is found between one client and several.
fn limit(delays: Delays) -> Value {
    limit_of(delays, "1,4,16")
}

fn limit_of(delays: Delays, clients: &str) -> Value {
    let mock = Mock::start(delays);
    sweep(&mock.address, &["--clients", clients, "-n", "48"])
}

#[test]
fn slow_prompts_are_a_limit_of_arithmetic() {
    let told = limit(Delays { prefill_ms: 25, ..Delays::default() });
    assert_eq!(told["limit"]["cause"], "compute", "{told}");
    // Prompts wait for each other as soon as there are two.
    assert_eq!(told["knee"], 0, "{told}");
}

#[test]
fn slow_tokens_are_a_limit_of_bandwidth() {
    let told = limit(Delays { token_ms: 20, lanes: 4, ..Delays::default() });
    assert_eq!(told["limit"]["cause"], "bandwidth", "{told}");
    // Tokens of four clients come side by side, and those of sixteen in four turns.
    assert_eq!(told["knee"], 1, "{told}");
}

#[test]
fn slow_masks_are_a_limit_of_the_grammar() {
    let told = limit(Delays { token_ms: 20, lanes: 4, mask_ms: 12, ..Delays::default() });
    assert_eq!(told["limit"]["cause"], "grammar", "{told}");
    let evidence = told["limit"]["evidence"][0].as_str().expect("words");
    assert!(evidence.starts_with("60 % of the time of steps"), "{evidence}");
}

#[test]
fn few_places_are_a_limit_of_running_requests() {
    let told = limit(Delays { token_ms: 20, slots: 4, ..Delays::default() });
    assert_eq!(told["limit"]["cause"], "running_requests", "{told}");
    assert!(told["limit"].to_string().contains("--max-running"), "{told}");
    // Four clients fill the slots, and sixteen only wait.
    assert_eq!(told["knee"], 1, "{told}");
}

#[test]
fn few_blocks_are_a_limit_of_memory() {
    let told = limit_of(Delays { token_ms: 20, blocks: 2, ..Delays::default() }, "1,2,8");
    assert_eq!(told["limit"]["cause"], "kv_memory", "{told}");
    assert_eq!(told["knee"], 1, "{told}");
}

#[test]
fn a_slow_queue_is_named_although_the_machine_is_free() {
    let told = limit(Delays { gate_ms: 40, ..Delays::default() });
    assert_eq!(told["limit"]["cause"], "queue", "{told}");
    // The gate opens as often for one client as for all.
    assert_eq!(told["knee"], 0, "{told}");
}

#[test]
fn a_client_that_cannot_keep_up_is_named_and_not_the_server() {
    let mock = Mock::start(Delays { prefill_ms: 0, token_ms: 0, ..Delays::default() });
    let told = sweep(&mock.address, &["--rates", "20,200,200000", "-n", "300"]);
    assert_eq!(told["limit"]["cause"], "client", "{told}");
    assert_eq!(told["points"][0]["load"]["rate"], 20.0);
    // Ten times the answers in the same time, and then requests wait to be sent.
    assert_eq!(told["knee"], 1, "{told}");
}

#[test]
fn a_pelton_is_swept_and_publishes_its_counters() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let told = sweep(server.address(), &["--clients", "2,1", "-n", "6"]);
    assert_eq!(told["report"]["kind"], "sweep");
    let points = told["points"].as_array().expect("points");
    let clients: Vec<u64> =
        points.iter().filter_map(|point| point["load"]["clients"].as_u64()).collect();
    assert_eq!(clients, [1, 2], "from the lowest");
    for point in points {
        assert_eq!((&point["answered"], &point["offered"]), (&6.into(), &6.into()));
        let counters = &point["counters"];
        assert!(counters["step_s"].as_f64().is_some_and(|s| s > 0.0), "{counters}");
        assert_eq!(counters["mask_s"], 0.0, "no request has a rule");
        for phase in ["queue", "prefill", "decode"] {
            assert_eq!(counters[phase]["n"], 6.0, "{phase}: {counters}");
        }
    }
    let text = pelton(&[
        "bench",
        "sweep",
        "--url",
        server.address(),
        "--clients",
        "1",
        "-n",
        "2",
        "--scale",
        "0.05",
    ]);
    text.assert_answered();
    assert!(text.stdout.contains("knee") && text.stdout.contains("power"), "{}", text.stdout);
}

/// The limit of a Pelton with one client and with eight; with enough requests that even a fast machine is
/// looked at several times.
fn limit_of_a_pelton(flags: &[&str]) -> Value {
    let server = Server::start(&[&["--threads", "1"], flags].concat()).expect("it listens");
    let common = ["bench", "sweep", "--url", server.address(), "--lengths", "20:60", "--json"];
    let told = pelton(&[&common[..], &["--clients", "1,8", "-n", "160"]].concat()).json();
    told["limit"].clone()
}

#[test]
fn a_pelton_that_runs_one_request_at_a_time_is_limited_by_that() {
    let limit = limit_of_a_pelton(&["--max-running", "1"]);
    assert_eq!(limit["cause"], "running_requests", "{limit}");
    assert!(limit.to_string().contains("`--max-running`"), "{limit}");
}

#[test]
fn a_pelton_with_few_blocks_is_limited_by_memory() {
    // Two requests of the sweep: with eight clients, most wait or lose their blocks.
    let limit = limit_of_a_pelton(&["--max-context", "160", "--kv-memory", "480KiB"]);
    assert_eq!(limit["cause"], "kv_memory", "{limit}");
}

#[test]
fn masks_that_steps_of_a_pelton_wait_for_are_counted() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("schema.json");
    // Masks of a pattern over the whole vocabulary.
    let schema = r#"{"type": "string", "pattern": "^([a-z]+ ){5,}[a-z]+$"}"#;
    let schema = format!(
        r#"{{"type": "object", "properties": {{"words": {schema}}}, "required": ["words"]}}"#
    );
    std::fs::write(&path, schema).expect("written");
    let schema = ["--chat", "--schema", path.to_str().expect("UTF-8")];
    let told = sweep(server.address(), &[&["--clients", "1", "-n", "4"], &schema[..]].concat());
    let counters = &told["points"][0]["counters"];
    let seconds = |name: &str| counters[name].as_f64().expect("seconds");
    assert!(seconds("mask_s") > 0.0 && seconds("mask_s") < seconds("step_s"), "{counters}");
}

#[test]
fn a_sweep_of_nothing_is_refused() {
    pelton(&["bench", "sweep", "--rates", "0"]).assert_refused(&["--rates", "0.000001"]);
    pelton(&["bench", "sweep", "--rates", "1", "--clients", "1"]).assert_refused(&["--clients"]);
    // Flags that no load of the sweep has a use for.
    let refused = |flags: &[&str], part: &str| {
        pelton(&[&["bench", "sweep"], flags].concat()).assert_refused(&[part]);
    };
    refused(&["--clients", "1", "--rate", "3"], "`--rate`: ");
    refused(&["--rate", "3"], "`--rate`: ");
    refused(&["--clients", "1", "--arrivals", "bursty"], "`--arrivals`: ");
    refused(&["--save-trace", "/nowhere"], "`--save-trace`: ");
    let args = ["bench", "sweep", "--url", "http://127.0.0.1:9"];
    pelton(&args).assert_refused(&["does not answer"]);
}

#[test]
fn a_server_that_refuses_or_fails_every_request_has_no_knee() {
    for status in [429, 500] {
        let mock = Mock::start(Delays { status, ..Delays::default() });
        let common = ["bench", "sweep", "--url", &mock.address, "--lengths", "5:6"];
        let run = |more: &[&str]| pelton(&[&common, more].concat());
        let outcome = run(&["--clients", "1,2", "-n", "4", "--json"]);
        let reason = format!("status {status}");
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        let line = format!("error: no request was answered: {reason}");
        assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);
        let text = run(&["--clients", "1", "-n", "1"]).stdout;
        assert!(text.contains(&format!("none: nothing was answered: {reason}")), "{text}");
        let told: Value = serde_json::from_str(&outcome.stdout).expect("a report");
        assert_eq!((&told["knee"], &told["limit"]), (&Value::Null, &Value::Null), "{told}");
        for point in told["points"].as_array().expect("points") {
            assert_eq!((&point["offered"], &point["answered"]), (&4.into(), &0.into()));
        }
    }
}

/// The metrics of a server.
fn metrics(mock: &Mock) -> String {
    let mut stream = TcpStream::connect(&mock.address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("written");
    let mut bytes = vec![0; 4096];
    let n = stream.read(&mut bytes).expect("an answer");
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

#[test]
fn an_error_of_a_load_keeps_the_loads_that_are_done() {
    let mock = Mock::start(Delays { prefill_ms: 0, token_ms: 50, ..Delays::default() });
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("trace");
    std::fs::write(&path, "0 5 24\n1 5 24\n").expect("written");
    let trace = path.to_str().expect("UTF-8");
    let args = ["bench", "sweep", "--url", &mock.address, "--json", "--trace", trace];
    let mut command = command(&[&args[..], &["--clients", "1,2"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let mut line = String::new();
    while !line.starts_with("1 client") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("readable") > 0, "ended early");
    }
    // Once a request is there, the first load has read the file; the second one finds another.
    while !metrics(&mock).contains("num_requests_running{model_name=\"mock\"} 1") {
        std::thread::yield_now();
    }
    std::fs::write(&path, "nonsense\n").expect("written");
    line.clear();
    stderr.read_to_string(&mut line).expect("readable");
    let output = child.wait_with_output().expect("the binary ends");
    assert!(line.contains("error: 2 clients: ") && line.contains("line 1"), "{line}");
    assert_eq!(output.status.code(), Some(2));
    let told: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(told["points"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!(
        (&told["points"][0]["answered"], &told["report"]["interrupted"]),
        (&2.into(), &true.into())
    );
}

#[test]
fn ctrl_c_keeps_the_loads_that_are_done() {
    let mock = Mock::start(Delays { prefill_ms: 0, token_ms: 50, ..Delays::default() });
    let args = ["bench", "sweep", "--url", &mock.address, "--json", "-n", "4", "--lengths", "5:24"];
    let mut command = command(&[&args[..], &["--rates", "100,100000"]].concat());
    command.args(["--timeout", "600"]);
    let told = interrupted(command, "100000 per second");
    assert_eq!(told["points"].as_array().map(Vec::len), Some(1), "{told}");
}
