//! Pauses of the server and of the client in the times of `pelton bench serve`.

mod common;

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use common::mock::{Delays, Mock};
use common::{command, pelton, signal};
use serde_json::Value;

const DELAYS: Delays = Delays {
    prefill_ms: 0,
    token_ms: 1,
    lanes: 1_000,
    slots: 1_000,
    blocks: 1_000,
    gate_ms: 0,
    pause: None,
    mask_ms: 0,
    status: 200,
};
/// Three seconds of requests at equal distances.
const OPEN: [&str; 8] =
    ["--lengths", "5:2", "-n", "300", "--rate", "100", "--arrivals", "constant"];

/// The report of a run, or its text without `--json`.
fn run(mock: &Mock, more: &[&str]) -> common::Outcome {
    pelton(&[&["bench", "serve", "--url", &mock.address], more].concat())
}

fn report(told: &Value) -> &Value {
    &told["variants"][0]["report"]
}

fn ms(times: &Value, which: &str) -> f64 {
    times[which].as_f64().unwrap_or_else(|| panic!("no {which}: {times}"))
}

#[test]
fn a_pause_of_the_server_is_in_the_tail_by_the_clock_and_hidden_in_a_closed_loop() {
    let pausing = Delays { pause: Some((150, 600)), ..DELAYS };
    let told = run(&Mock::start(pausing), &[&OPEN[..], &["--json"]].concat()).json();
    let open = &report(&told)["all"]["ttft_ms"];
    // A fifth of the requests come during the pause.
    assert!(ms(open, "p99") >= 500.0 && ms(open, "p50") < 100.0, "{open}");
    let closed = ["--lengths", "5:2", "-n", "300", "--concurrency", "1", "--json"];
    let told = run(&Mock::start(pausing), &closed).json();
    let closed = &report(&told)["all"]["ttft_ms"];
    // The one client waits and sends nothing, so a single request sees the pause.
    assert!(ms(closed, "max") >= 600.0 && ms(closed, "p99") < 100.0, "{closed}");
    assert!(report(&told)["sent_ttft_ms"].is_null(), "a closed loop has no planned arrivals");
}

#[test]
fn a_pause_of_the_client_is_in_the_times_from_the_planned_arrival_and_not_from_sending() {
    let mock = Mock::start(DELAYS);
    let common = ["bench", "serve", "--url", &mock.address, "--json"];
    let mut command = command(&[&common[..], &OPEN].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let child = child.expect("the binary starts");
    mock.wait_for(150);
    signal("STOP", child.id());
    sleep(Duration::from_millis(600));
    signal("CONT", child.id());
    let output = child.wait_with_output().expect("the binary ends");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let report = report(&told);
    for (planned, sent) in [
        (&report["all"]["ttft_ms"], &report["sent_ttft_ms"]),
        (&report["all"]["end_to_end_ms"], &report["sent_end_to_end_ms"]),
    ] {
        assert_eq!((&planned["n"], &sent["n"]), (&300.into(), &300.into()));
        assert!(ms(planned, "p99") >= 400.0, "{planned}");
        assert!(ms(sent, "p99") < 200.0, "{sent}");
    }
    assert!(ms(&report["sent_late_ms"], "p99") >= 400.0, "{report}");
}

#[test]
fn both_times_are_printed_by_the_clock() {
    let mock = Mock::start(DELAYS);
    let open = run(&mock, &["--lengths", "5:2", "-n", "5", "--rate", "200"]);
    open.assert_answered();
    for row in ["\nTTFT ", "\nTTFT, sent ", "\nend to end ", "\ne2e, sent "] {
        assert!(open.stdout.contains(row), "`{row}` is missing in\n{}", open.stdout);
    }
    let closed = run(&mock, &["--lengths", "5:2", "-n", "5", "--concurrency", "2"]);
    assert!(!closed.stdout.contains(", sent"), "{}", closed.stdout);
}

#[test]
fn requests_without_an_answer_are_named_beside_the_percentiles() {
    for (status, is_warned) in [(200, false), (429, true), (500, true)] {
        let mock = Mock::start(Delays { status, ..DELAYS });
        let told = run(&mock, &["--lengths", "5:2", "-n", "4", "--concurrency", "2"]);
        let warning = told.stdout.lines().find(|line| line.starts_with("warning"));
        let is_counted = warning.is_some_and(|line| line.contains("4 requests without one"));
        assert_eq!(is_counted, is_warned, "{status}: {}", told.stdout);
    }
}
