//! `pelton bench kernels` through the real binary, at sizes where everything runs in a moment.

use std::io::Read;
use std::process::Stdio;

use crate::common::{command, pelton, signal};

#[test]
fn json_is_one_object_with_machine_ceilings_and_rows() {
    let args = ["bench", "kernels", "--quick", "--json", "--threads", "2", "--filter", "matmul"];
    let report = pelton(&args).json();
    assert_eq!(report["machine"]["threads"], 2);
    assert!(!report["machine"]["cpu"].as_str().expect("a name").is_empty());
    let threads: Vec<&serde_json::Value> =
        report["ceilings"].as_array().expect("ceilings").iter().map(|c| &c["threads"]).collect();
    assert_eq!(threads, [1, 2]);
    assert!(report["ceilings"][1]["read_bytes_per_s"].as_f64().is_some_and(|x| x > 0.0));
    let rows = report["rows"].as_array().expect("rows");
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row["operation"], "matmul");
        assert!(row["percent"].as_f64().is_some_and(|x| x > 0.0), "{row}");
    }
    assert_eq!(report["interrupted"], false);
    // Reports of other numbers of threads are not compared in silence.
    let args = ["bench", "kernels", "--quick", "--json", "--threads", "1", "--filter", "team"];
    assert_eq!(pelton(&args).json()["report"]["machine"]["threads"], 1);
}

#[test]
fn the_table_is_for_people_and_a_pipe_gets_nothing_else() {
    let outcome = pelton(&["bench", "kernels", "--quick", "--threads", "1", "--filter", "team"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for part in ["kernels ", "1 thread,", "read GB/s", "barrier", "readings: memory"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
    assert_eq!(outcome.stderr, "");
}

#[test]
fn attention_has_the_heads_contexts_and_blocks_of_choice() {
    let sizes = ["--heads", "6/2x24", "--context", "33", "--block-size", "32"];
    let args = ["bench", "kernels", "--quick", "--threads", "1", "--filter", "attention decode"];
    let outcome = pelton(&[&args[..], &sizes].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| line.contains("decode")).collect();
    assert_eq!(lines.len(), 5, "a line for each type: {}", outcome.stdout);
    for line in lines {
        assert!(line.contains("6/2 x 24, 33 tokens, blocks of 32"), "{line}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let bench = |more: &[&str]| pelton(&[&["bench", "kernels"], more].concat());
    bench(&["--filter", "nonsense"]).assert_refused(&["--filter", "nonsense", "matmul q8", "rope"]);
    bench(&["--seconds", "0"]).assert_refused(&["--seconds", "0.001 to 60"]);
    bench(&["--seconds", "nan"]).assert_refused(&["--seconds"]);
    bench(&["--threads", "0"]).assert_refused(&["--threads"]);
    bench(&["--heads", "32x64"]).assert_refused(&["--heads", "32/8x64"]);
    bench(&["--heads", "32/5x64"]).assert_refused(&["32/5x64", "KV heads divide"]);
    bench(&["--context", "0"]).assert_refused(&["--context"]);
    bench(&["--block-size", "5000"]).assert_refused(&["blocks", "1024"]);
    pelton(&["bench"]).assert_refused(&["pelton"]);
    pelton(&["bench", "anything"]).assert_refused(&["anything"]);
}

#[test]
fn ctrl_c_ends_with_what_was_measured() {
    // Some seconds of work; the table's head says that it has begun.
    let args = ["bench", "kernels", "--quick", "--seconds", "0.2", "--threads", "1"];
    let mut child = command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    stdout.read_exact(&mut [0]).expect("the head");
    signal("INT", child.id());
    let mut table = String::new();
    stdout.read_to_string(&mut table).expect("the rest of the table");
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("Interrupted") && table.contains("readings"), "{table}");
}
