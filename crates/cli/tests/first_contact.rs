//! The first minute with `pelton serve`: the words at the start, the command to try, the log.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};

use crate::common::command;
use serde_json::Value;

/// A server and its words.
struct Started {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    address: String,
}

impl Started {
    fn new(flags: &[&str]) -> Self {
        let args = [&["serve", "--port", "0"], flags].concat();
        let mut child = command(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut started = Self { child, lines, address: String::new() };
        let line = started.line_with("listening on http://");
        started.address = line.trim_start_matches("listening on http://").to_owned();
        started
    }

    /// The next line that contains `part`.
    fn line_with(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.expect("UTF-8");
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
        panic!("no line with {part:?} in {seen:#?}");
    }

    /// Sends a body as `curl -d` does, with these lines in the head.
    fn curl(&self, path: &str, head: &str, body: &str) -> (String, Value) {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{head}\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        connection.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.lines().next().expect("a status").to_owned();
        (status, serde_json::from_str(body).expect("JSON"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path, whether a key is asked for, and body of the command.
fn parse(line: &str, address: &str) -> (String, bool, String) {
    let url = format!("curl http://{address}");
    let (_, rest) = line.split_once(&url).unwrap_or_else(|| panic!("no {url} in {line}"));
    let (head, body) = rest.split_once(" -d '").expect("a body");
    let body = body.strip_suffix('\'').expect("quoted");
    let path = head.split(' ').next().expect("a path");
    (path.to_owned(), head.contains("Authorization: Bearer"), body.to_owned())
}

#[test]
fn the_command_that_the_server_shows_works() {
    let mut server = Started::new(&[]);
    assert!(server.line_with("model").contains("story"));
    assert!(server.line_with("context").contains("tokens"));
    let line = server.line_with("try it");
    let (path, needs_key, body) = parse(&line, &server.address);
    assert!(!needs_key);
    let (status, answer) = server.curl(&path, "", &body);
    assert!(status.contains("200"), "{status}: {answer}");
    assert!(!answer["choices"][0]["message"]["content"].as_str().expect("text").is_empty());
}

#[test]
fn with_keys_the_command_has_a_place_for_one() {
    let mut server = Started::new(&["--api-key", "k"]);
    let line = server.line_with("try it");
    let (path, needs_key, body) = parse(&line, &server.address);
    assert!(needs_key, "{line}");
    assert!(server.curl(&path, "", &body).0.contains("401"));
    assert!(server.curl(&path, "authorization: Bearer k\r\n", &body).0.contains("200"));
}

#[test]
fn each_request_has_one_line_in_the_log() {
    let mut server = Started::new(&["-v"]);
    let ask = r#"{"prompt": "The moth", "max_tokens": 5, "ignore_eos": true}"#;
    let (status, answer) = server.curl("/v1/completions", "x-request-id: mine\r\n", ask);
    assert!(status.contains("200"), "{status}");
    let line = server.line_with("POST /v1/completions");
    let n_prompt = answer["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(line.contains("INFO") && line.contains("id=mine"), "{line}");
    assert!(line.contains("POST /v1/completions 200 in "), "{line}");
    assert!(
        line.contains(&format!("; {n_prompt} prompt tokens (0 cached), first token")),
        "{line}"
    );
    assert!(line.ends_with("5 tokens: length"), "{line}");
    server.curl("/v1/nothing", "", "{}");
    let line = server.line_with("/v1/");
    assert!(line.contains("POST /v1/nothing 404 in "), "no second line for the first one: {line}");
}
