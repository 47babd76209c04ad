//! `pelton batch`, and files and batches of the real server, where they are interrupted or have no
//! room.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use crate::common::server::Server;
use crate::common::{command, command_after, outcome, pelton, signal};
use serde_json::{Value, json};

/// Lines of a batch that is interrupted.
const N: usize = 60;

fn line(i: usize, max_tokens: usize) -> String {
    let body = json!({"prompt": format!("Tale {i}"), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": true});
    let line = json!({"custom_id": format!("line-{i}"), "method": "POST",
        "url": "/v1/completions", "body": body});
    format!("{line}\n")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn results(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect()
}

fn n_results(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn a_batch_that_ctrl_c_stops_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let lines: String = (0..N).map(|i| line(i, 24)).collect();
    std::fs::write(&input, lines).expect("written");
    let args = ["batch", text(&input), text(&output), "--parallel", "2", "--json"];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the binary starts");
    while n_results(&output) < 3 {
        std::thread::yield_now();
    }
    signal("INT", child.id());
    let stopped = outcome(&child.wait_with_output().expect("it ends"));
    assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("the same command answers"), "{}", stopped.stderr);
    let summary: Value = serde_json::from_str(&stopped.stdout).expect("JSON");
    let kept = std::fs::read_to_string(&output).expect("results");
    let n_kept = results(&output).len();
    assert!((3..N).contains(&n_kept), "{n_kept}");
    assert_eq!(
        (&summary["ended"], &summary["lines"]["completed"]),
        (&json!("stopped"), &json!(n_kept))
    );
    let rest = pelton(&args).json();
    assert_eq!(rest["ended"], "whole");
    assert_eq!(rest["lines"]["kept"], n_kept, "{rest}");
    assert_eq!(rest["lines"]["completed"], N - n_kept, "{rest}");
    let whole = std::fs::read_to_string(&output).expect("results");
    assert!(whole.starts_with(&kept), "finished lines stay as they are");
    let mut names: Vec<String> =
        results(&output).iter().map(|result| result["custom_id"].to_string()).collect();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), results(&output).len()), (N, N), "each line once");
    // Another model keeps them, and its user reads whose they are.
    let other = pelton(&["batch", text(&input), text(&output), "-m", "story-draft"]);
    other.assert_answered();
    let note =
        "has answers of `story`, which are kept; `story-draft` answers the lines that are left";
    assert!(other.stderr.contains(note), "{}", other.stderr);
    assert!(!pelton(&args).stderr.contains("has answers of"), "they are its own");
}

/// Lines that come one by one are answered one by one, and Ctrl-C ends a batch that waits for the
/// next.
#[test]
fn a_batch_of_a_pipe_answers_each_line_at_once_and_ctrl_c_ends_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out.jsonl");
    pelton(&["batch", "-", "-"]).assert_refused(&["`-`", "need a file"]);
    let args = ["batch", "-", text(&output)];
    let mut command = command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut lines = child.stdin.take().expect("a pipe");
    for i in 0..3 {
        lines.write_all(line(i, 2).as_bytes()).expect("taken");
        while n_results(&output) < i + 1 {
            assert!(child.try_wait().expect("a child").is_none(), "it waits for more lines");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    signal("INT", child.id());
    let stopped = outcome(&child.wait_with_output().expect("it ends"));
    assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
    assert_eq!(results(&output).len(), 3);
    drop(lines);
}

#[test]
fn a_batch_without_room_keeps_whole_lines_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let lines: String = (0..N).map(|i| line(i, 2)).collect();
    std::fs::write(&input, lines).expect("written");
    let args = ["batch", text(&input), text(&output), "--parallel", "2"];
    // Blocks of 512 bytes.
    let full = command_after("ulimit -f 20", &args).env("PELTON_TUNING", "off").output();
    let full = outcome(&full.expect("a shell starts"));
    assert_eq!(full.code, Some(1), "{}", full.stderr);
    for part in ["cannot write ", "out.jsonl: File too large", "results are kept; make room"] {
        assert!(full.stderr.contains(part), "`{part}` is missing in: {}", full.stderr);
    }
    let n_kept = results(&output).len();
    assert!((1..N).contains(&n_kept), "{n_kept}");
    let rest = pelton(&[&args[..], &["--json"]].concat()).json();
    assert_eq!((&rest["lines"]["kept"], results(&output).len()), (&json!(n_kept), N));
}

/// Sends a request and returns status and body.
fn ask(server: &Server, method: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(server.address()).expect("it listens");
    // A server that refuses a body need not read all of it.
    let _ = connection.write_all(request.as_bytes());
    let mut answer = Vec::new();
    // Its connection then ends with a reset, behind the answer.
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn upload(server: &Server, content: &str) -> (u16, String) {
    let body = format!(
        "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{content}\r\n\
         --edge--\r\n"
    );
    ask(server, "POST", "/v1/files", "multipart/form-data; boundary=edge", &body)
}

fn json_of(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).expect("JSON")
}

#[test]
fn a_server_without_room_for_files_says_so_and_keeps_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    let args = ["serve", "--port", "0", "--threads", "1", "--files", text(&files)];
    let mut command = command_after("ulimit -f 40", &args);
    command.env("PELTON_TUNING", "off");
    let server = Server::start_by(command).expect("it listens");
    let (status, body) = upload(&server, &"x".repeat(100_000));
    assert_eq!(status, 507, "{body}");
    for part in ["storage_full", "no room under `--files`", "File too large", "delete files"] {
        assert!(body.contains(part), "`{part}` is missing in: {body}");
    }
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&files).expect("a folder");
        entries.map(|entry| entry.expect("one").file_name().into_string().expect("UTF-8")).collect()
    };
    assert_eq!(names(), ["lock"]);
    // The results of these lines are longer than a file may be.
    let lines: String = (0..90).map(|i| line(i, 1)).collect();
    assert!(lines.len() < 18_000, "{}", lines.len());
    let file = json_of(upload(&server, &lines));
    let body = json!({"input_file_id": file["id"], "endpoint": "/v1/completions"}).to_string();
    let kind = "application/json";
    let mut batch = json_of(ask(&server, "POST", "/v1/batches", kind, &body));
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));
    while ["validating", "in_progress", "finalizing"].iter().any(|way| batch["status"] == *way) {
        batch = json_of(ask(&server, "GET", &path, kind, ""));
    }
    assert_eq!(batch["status"], "failed", "{batch}");
    let message = batch["errors"]["data"][0]["message"].as_str().expect("a text");
    assert!(message.contains("a result cannot be written: File too large"), "{message}");
    let output = batch["output_file_id"].as_str().expect("results so far");
    let (_, content) = ask(&server, "GET", &format!("/v1/files/{output}/content"), kind, "");
    let n_lines = content.lines().flat_map(serde_json::from_str::<Value>).count();
    assert_eq!(n_lines, content.lines().count(), "whole lines");
    assert!((1..90).contains(&n_lines), "{n_lines}");
}
