//! Crowds of connections, signals and strangers at `pelton serve`, through the real binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{command_after, signal};
use serde_json::json;

/// A request for tokens, with a key if `key` has one.
fn completion(address: &str, key: &str, n_tokens: usize, is_stream: bool) -> String {
    let body = format!(
        "{{\"prompt\": \"The moth\", \"max_tokens\": {n_tokens}, \"temperature\": 0, \
         \"ignore_eos\": true, \"stream\": {is_stream}}}"
    );
    let n = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{key}\
         content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    )
}

/// Connects `n` times without sending anything, or as often as this process may open files.
fn crowd(server: &Server, n: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    while crowd.len() < n {
        match TcpStream::connect(server.address()) {
            Ok(connection) => crowd.push(connection),
            Err(_) => {
                // The requests of the test need files, too.
                crowd.truncate(crowd.len().saturating_sub(8));
                break;
            }
        }
    }
    crowd
}

#[test]
fn eleven_hundred_silent_connections_keep_nobody_out() {
    let server = Server::start(&["--api-key", "sk-1", "--head-timeout", "600"]).expect("listens");
    let key = "authorization: Bearer sk-1\r\n";
    let host = format!("host: {}\r\n", server.address());
    let of_key = format!("{host}{key}");
    let crowd = crowd(&server, 1100);
    for (path, lines) in [("/health", &host), ("/ready", &host), ("/v1/models", &of_key)] {
        let begun = Instant::now();
        let answer = server.get(path, lines);
        let took = begun.elapsed();
        println!("{path} beside {} silent connections: {took:?}", crowd.len());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // Without eviction it takes the rest of a head's time: minutes.
        assert!(took < Duration::from_secs(20), "{path} took {took:?}");
    }
    let begun = Instant::now();
    let mut answer = String::new();
    let request = completion(server.address(), key, 4, false);
    server.send(&request).read_to_string(&mut answer).expect("an answer");
    println!("a completion of 4 tokens: {:?}", begun.elapsed());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_server_without_more_files_closes_the_idlest_connection() {
    let args = ["serve", "--port", "0", "--head-timeout", "600"];
    let server = Server::start_by(command_after("ulimit -n 64", &args)).expect("listens");
    let crowd = crowd(&server, 200);
    let host = format!("host: {}\r\n", server.address());
    for _ in 0..3 {
        let answer = server.get("/health", &host);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(crowd);
}

#[test]
fn a_closed_terminal_drains_the_server_unless_it_was_to_ignore_that() {
    let args = ["serve", "--port", "0"];
    // These tests may run where SIGHUP is ignored.
    let heeded = "exec env --default-signal=HUP \"$0\" \"$@\"";
    let mut server = Server::start_by(command_after(heeded, &args)).expect("it listens");
    let mut stream = BufReader::new(server.send(&completion(server.address(), "", 200, true)));
    let mut line = String::new();
    while !line.contains("\"text\"") {
        line.clear();
        stream.read_line(&mut line).expect("the answer begins");
    }
    signal("HUP", server.pid());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.wait().code(), Some(0));

    let mut server = Server::start_by(command_after("trap '' HUP", &args)).expect("it listens");
    signal("HUP", server.pid());
    signal("HUP", server.pid());
    let host = format!("host: {}\r\n", server.address());
    let answer = server.get("/ready", &host);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    signal("TERM", server.pid());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_client_that_will_send_no_more_gets_its_answer() {
    let server = Server::start(&[]).expect("it listens");
    for is_stream in [false, true] {
        let mut client = server.send(&completion(server.address(), "", 100, is_stream));
        client.shutdown(Shutdown::Write).expect("its half is closed");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        let whole = if is_stream { "[DONE]" } else { "\"completion_tokens\":100" };
        assert!(answer.contains("HTTP/1.1 200") && answer.contains(whole), "{answer}");
    }
}

#[test]
fn a_page_under_another_name_reaches_no_server_of_this_machine_alone() {
    let status = |server: &Server, host: &str| {
        let answer = server.get("/v1/models", &format!("host: {host}\r\n"));
        answer.split(' ').nth(1).map(str::to_owned).expect("a status")
    };
    let server = Server::start(&[]).expect("it listens");
    assert_eq!(status(&server, server.address()), "200");
    assert_eq!(status(&server, "evil.example"), "403");
    assert!(server.get("/v1/models", "").starts_with("HTTP/1.1 400"));
    let flags = ["--allowed-host", "a.example,b.example", "--allowed-host", "[::1]"];
    let server = Server::start(&flags).expect("it listens");
    for (host, expected) in [("a.example", "200"), ("b.example:80", "200"), ("[::1]", "200")] {
        assert_eq!(status(&server, host), expected, "{host}");
    }
    assert_eq!(status(&server, "localhost"), "403");
    let server = Server::start(&["--host", "0.0.0.0"]).expect("it listens");
    let port = server.address().rsplit(':').next().expect("a port");
    let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let request = "GET /v1/models HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn an_operator_bounds_bodies_their_time_and_the_number_of_answers() {
    let flags = ["--max-body", "2KiB", "--body-timeout", "0.3", "--max-choices", "2"];
    let server = Server::start(&flags).expect("it listens");
    let ask = |n: usize, key: &str, prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 1, key: n});
        server.post("/v1/completions", &body)
    };
    let two = ask(2, "n", "The moth").expect("as many as allowed");
    assert_eq!(two["choices"].as_array().map(Vec::len), Some(2));
    for key in ["n", "best_of"] {
        let refused = ask(3, key, "The moth").expect_err("too many");
        let place = format!("\"param\":\"{key}\"");
        assert!(refused.starts_with("HTTP/1.1 400") && refused.contains(&place), "{refused}");
        assert!(refused.contains("`--max-choices`"), "{refused}");
    }
    let refused = ask(1, "n", &"a".repeat(2048)).expect_err("too large");
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    // The rest of this body never comes.
    let request = completion(server.address(), "", 1, false);
    let mut answer = String::new();
    let sent = request.strip_suffix('}').expect("a body");
    server.send(sent).read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}
