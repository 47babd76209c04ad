//! `pelton bench serve` against a Pelton, and against servers that behave badly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::server::Server;
use crate::common::{Outcome, command, pelton, signal};
use serde_json::Value;

/// Measures the server at this address with short requests.
fn measure(address: &str, more: &[&str]) -> Value {
    run(address, more).json()
}

fn run(address: &str, more: &[&str]) -> Outcome {
    let common = ["bench", "serve", "--url", address, "--scale", "0.05", "-n", "8", "--json"];
    pelton(&[&common, more].concat())
}

#[test]
fn a_pelton_is_measured_by_the_clock_and_by_concurrency_on_both_routes() {
    let server = Server::start(&["--threads", "1", "--api-key", "secret"]).expect("it listens");
    for more in [&["--rate", "50"][..], &["--concurrency", "3", "--chat"]] {
        let told = measure(server.address(), &[more, &["--key", "secret"]].concat());
        let report = &told["variants"][0]["report"];
        assert_eq!((&report["offered"], &report["all"]["finished"]), (&8.into(), &8.into()));
        assert_eq!(told["n_answers"], 8);
        assert_eq!((&told["n_uncounted"], &told["n_short"]), (&0.into(), &0.into()));
        assert_eq!(told["failures"], serde_json::json!({}));
        for times in [&report["all"]["ttft_ms"], &report["all"]["end_to_end_ms"]] {
            assert!(times["p50"].as_f64().is_some_and(|x| x > 0.0), "{report}");
        }
        assert!(report["itl_ms"]["n"].as_u64().is_some_and(|n| n > 0), "{report}");
        let is_by_clock = more[0] == "--rate";
        let words = if is_by_clock { ", 50 per second" } else { ", 3 clients" };
        assert!(told["workload"].as_str().is_some_and(|told| told.contains(words)), "{told}");
        assert_eq!(report["sent_late_ms"]["n"].as_u64(), is_by_clock.then_some(8));
        assert!(report["totals"].is_null() && report["all"]["queue_ms"].is_null());
    }
    let text = pelton(&[
        "bench",
        "serve",
        "--url",
        server.address(),
        "--key",
        "secret",
        "--scale",
        "0.05",
        "-n",
        "3",
        "--rate",
        "50",
        "--ttft-target",
        "1",
    ]);
    text.assert_answered();
    for part in ["story at http://", "3 offered, 3 finished", "ITL", "sent late", "goodput"] {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    measure_refused(server.address(), &["/v1/models", "401", "--key"]);
}

#[test]
fn the_server_tells_the_processor_time_beside_its_models() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let told = measure(server.address(), &["--concurrency", "4"]);
    let seconds = |name: &str| told["processor"][name].as_f64().expect("seconds");
    assert!(seconds("client_s") > 0.0);
    assert!(seconds("server_model_s") > 0.0, "{}", told["processor"]);
    assert!(seconds("server_serving_s") >= 0.0);
}

fn measure_refused(address: &str, parts: &[&str]) {
    pelton(&["bench", "serve", "--url", address, "-n", "2"]).assert_refused(parts);
}

/// A server that answers the n-th post with the n-th of some texts, then closes the connection.
struct Odd {
    address: String,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Odd {
    fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let bodies = Arc::<Mutex<Vec<String>>>::default();
        let (seen, next) = (Arc::clone(&bodies), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Some((head, body)) = read_request(&stream) else { continue };
                let answer = match head.starts_with("GET /v1/models") {
                    true => answer_of(200, "application/json", r#"{"data":[{"id":"odd"}]}"#),
                    false if head.starts_with("GET") => answer_of(404, "text/plain", ""),
                    false => {
                        seen.lock().expect("no panic").push(body);
                        answers[next.fetch_add(1, Ordering::Relaxed) % answers.len()].clone()
                    }
                };
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        Self { address, bodies }
    }
}

fn read_request(stream: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut n_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            n_bytes = length.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; n_bytes];
    reader.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).ok()?))
}

fn answer_of(status: u16, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}")
}

fn stream_of(events: &[&str]) -> String {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    answer_of(200, "text/event-stream", &events)
}

const TEXT: &str = r#"{"choices":[{"text":" a"}]}"#;

#[test]
fn a_run_without_any_answer_is_a_failure() {
    let error = || answer_of(500, "application/json", r#"{"error":{"message":"out of luck"}}"#);
    let odd = Odd::start(vec![error(), error()]);
    let outcome = pelton(&["bench", "serve", "--url", &odd.address, "--scale", "0.05", "-n", "2"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no request was answered"), "{}", outcome.stderr);
    assert!(!outcome.stdout.contains("-0.0"), "{}", outcome.stdout);
}

#[test]
fn without_an_answer_the_reason_is_named_and_no_time_is_that_of_a_request() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let args = ["--url", server.address(), "--model", "nope", "-n", "2", "--lengths", "5:4"];
    let outcome = pelton(&[&["bench", "serve", "--rate", "50"], &args[..]].concat());
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no request was answered: status 404: "), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("processor"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("s a request"), "{}", outcome.stdout);
    let outcome = pelton(&[&["bench", "sweep", "--clients", "1"], &args[..]].concat());
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no request was answered: status 404: "), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("nothing was answered: status 404"), "{}", outcome.stdout);
}

#[test]
fn each_failure_of_a_server_is_counted_by_its_kind() {
    let odd = Odd::start(vec![
        stream_of(&[TEXT, TEXT, "[DONE]"]),
        answer_of(500, "application/json", r#"{"error":{"message":"out of luck"}}"#),
        answer_of(429, "application/json", "{}"),
        stream_of(&[TEXT]),
        stream_of(&["<html>"]),
        stream_of(&[TEXT, r#"{"error":{"message":"lost the thread"}}"#]),
        stream_of(&["[DONE]"]),
        "nonsense".to_owned(),
    ]);
    let told = measure(&odd.address, &["--concurrency", "1"]);
    let report = &told["variants"][0]["report"];
    assert_eq!(report["offered"], 8);
    assert_eq!((&report["all"]["finished"], &report["failed"]), (&1.into(), &6.into()));
    assert_eq!(report["refused"], serde_json::json!({"status 429": 1}));
    assert_eq!((&told["n_tokens"], &told["n_uncounted"]), (&2.into(), &1.into()));
    let failures = told["failures"].as_object().expect("failures");
    for (kind, example) in [
        ("status 500", "out of luck"),
        ("stream ended early", "finish_reason"),
        ("not the JSON of an answer", "<html>"),
        ("error in the stream", "lost the thread"),
        ("no text", "without a single character"),
        ("connection lost", ""),
    ] {
        let failure = failures.get(kind).unwrap_or_else(|| panic!("no `{kind}` in {failures:?}"));
        assert_eq!(failure["n"], 1, "{kind}");
        assert!(failure["example"].as_str().is_some_and(|e| e.contains(example)), "{failure}");
    }
    assert_eq!(failures.len(), 6, "{failures:?}");
    assert!(told["processor"]["server_model_s"].is_null());
    let bodies = odd.bodies.lock().expect("no panic");
    let body: Value = serde_json::from_str(&bodies[0]).expect("JSON");
    assert_eq!((&body["model"], &body["stream"]), (&"odd".into(), &true.into()));
}

#[test]
fn a_schema_is_asked_for_with_each_request() {
    let odd = Odd::start(vec![stream_of(&[TEXT, "[DONE]"])]);
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("schema.json");
    let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    std::fs::write(&path, schema.to_string()).expect("written");
    let path = path.to_str().expect("UTF-8");
    measure(&odd.address, &["--chat", "--schema", path]);
    let bodies = odd.bodies.lock().expect("no panic");
    let body: Value = serde_json::from_str(&bodies[0]).expect("JSON");
    assert_eq!(body["response_format"]["json_schema"]["schema"], schema);
    assert_eq!(body["ignore_eos"], false);
    std::fs::write(path, "[1]").expect("written");
    let args = ["bench", "serve", "--url", &odd.address, "--schema", path];
    pelton(&args).assert_refused(&["--schema", "schema.json", "object"]);
}

#[test]
fn a_server_that_is_not_there_or_cannot_be_asked_is_named() {
    measure_refused("http://127.0.0.1:9", &["does not answer", "refused", "pelton serve"]);
    measure_refused("ftp://127.0.0.1:9", &["--url", "another scheme"]);
    measure_refused("ftp://x", &["--url", "scheme"]);
    let odd = Odd::start(vec![stream_of(&["[DONE]"])]);
    let args = ["bench", "serve", "--url", &odd.address, "--timeout", "0"];
    pelton(&args).assert_refused(&["--timeout"]);
}

#[test]
fn a_server_that_never_ends_is_given_up_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    // Connections are taken by the system, and nobody answers.
    let args = ["--concurrency", "8", "--timeout", "1", "--model", "mute"];
    let outcome = run(&address, &args);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let told: Value = serde_json::from_str(&outcome.stdout).expect("a report");
    assert_eq!(told["failures"]["timed out"]["n"], 8, "{}", told["failures"]);
    drop(listener);
}

#[test]
fn ctrl_c_ends_a_run_with_what_was_answered() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let args = ["bench", "serve", "--url", server.address(), "--rate", "0.001"];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("stderr is piped");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.starts_with("sending"), "{line}");
    signal("INT", child.id());
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("0 offered") && text.contains("Interrupted"), "{text}");
}
