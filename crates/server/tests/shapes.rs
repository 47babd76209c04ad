//! Requests of odd shapes, byte by byte: what is refused, what is read, and where a request ends.
//!
//! A proxy and a server that disagree about the end of a request can be made to see different
//! requests (request smuggling). So each shape either is read as RFC 9112 says, or ends its
//! connection: bytes behind a refused request are never answered as a request of their own.

use crate::harness::parrot::parrot;
use crate::harness::{Running, dechunk, start};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const H: &str = "host: localhost\r\n";
const POST: &str = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
    content-type: application/json\r\n";
/// A request behind another one.
const NEXT: &str = "GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Statuses and bodies of all answers to these bytes.
async fn answers(server: &Running, bytes: &[u8]) -> Vec<(u16, String)> {
    let mut client = TcpStream::connect(server.address).await.expect("connected");
    // The server may refuse the first bytes and close the connection before it gets the others.
    let _ = client.write_all(bytes).await;
    let _ = client.shutdown().await;
    let mut received = Vec::new();
    let _ = client.read_to_end(&mut received).await;
    let text = String::from_utf8(received).expect("UTF-8");
    let mut rest = text.as_str();
    let mut answers = Vec::new();
    while let Some((head, after)) = rest.split_once("\r\n\r\n") {
        let head = head.to_ascii_lowercase();
        let status: u16 = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |n| n.parse().expect("a length"));
        let (body, after) = after.split_at(length);
        if head.contains("transfer-encoding: chunked") {
            answers.push((status, dechunk(after)));
            break;
        }
        rest = after;
        if status != 100 {
            answers.push((status, body.to_owned()));
        }
    }
    answers
}

async fn check(server: &Running, shapes: &[(&str, String, &[u16])]) {
    let mut wrong = Vec::new();
    for (name, bytes, expected) in shapes {
        let found: Vec<u16> =
            answers(server, bytes.as_bytes()).await.iter().map(|(status, _)| *status).collect();
        if found != *expected {
            wrong.push(format!("{name}: expected {expected:?}, got {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn get(headers: &str) -> String {
    format!("GET /version HTTP/1.1\r\n{H}{headers}\r\n{NEXT}")
}

/// A request with these headers and this body, and another one behind it.
fn post(headers: &str, body: &str) -> String {
    format!("{POST}{headers}\r\n{body}{NEXT}")
}

#[tokio::test]
async fn the_length_of_a_body_is_never_in_doubt() {
    let server = start(parrot()).await;
    let chunked = "transfer-encoding: chunked\r\n";
    // The body `{}` lacks a prompt, so it is 400 as well; the next request shows whether the
    // server knows where the body ends.
    check(
        &server,
        &[
            ("a length", post("content-length: 2\r\n", "{}"), &[400, 200]),
            (
                "the same length twice",
                post("content-length: 2\r\ncontent-length: 2\r\n", "{}"),
                &[400, 200],
            ),
            ("two lengths", post("content-length: 2\r\ncontent-length: 3\r\n", "{}"), &[400]),
            ("a list of lengths", post("content-length: 2, 2\r\n", "{}"), &[400]),
            ("a sign", post("content-length: +2\r\n", "{}"), &[400]),
            ("below zero", post("content-length: -1\r\n", "{}"), &[400]),
            ("another base", post("content-length: 0x2\r\n", "{}"), &[400]),
            ("no length", post("content-length: \r\n", "{}"), &[400]),
            ("beyond 64 bits", post("content-length: 18446744073709551617\r\n", "{}"), &[400]),
            ("a space before the colon", post("content-length : 2\r\n", "{}"), &[400]),
            (
                "length and chunks",
                post(&format!("content-length: 9\r\n{chunked}"), "2\r\n{}\r\n0\r\n\r\n"),
                &[400],
            ),
            (
                "chunks and length",
                post(&format!("{chunked}content-length: 9\r\n"), "2\r\n{}\r\n0\r\n\r\n"),
                &[400],
            ),
            ("chunks", post(chunked, "2\r\n{}\r\n0\r\n\r\n"), &[400, 200]),
            (
                "chunks in capitals",
                post("Transfer-Encoding: CHUNKED\r\n", "2\r\n{}\r\n0\r\n\r\n"),
                &[400, 200],
            ),
            ("chunks twice", post(&format!("{chunked}{chunked}"), "2\r\n{}\r\n0\r\n\r\n"), &[501]),
            (
                "chunks in chunks",
                post("transfer-encoding: chunked, chunked\r\n", "0\r\n\r\n"),
                &[501],
            ),
            (
                "compressed chunks",
                post("transfer-encoding: gzip, chunked\r\n", "0\r\n\r\n"),
                &[501],
            ),
            ("chunks not last", post("transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n"), &[400]),
            (
                "chunks, then not",
                post(&format!("{chunked}transfer-encoding: identity\r\n"), "0\r\n\r\n"),
                &[400],
            ),
            ("almost chunks", post("transfer-encoding: xchunked\r\n", "0\r\n\r\n"), &[400]),
            ("quoted chunks", post("transfer-encoding: \"chunked\"\r\n", "0\r\n\r\n"), &[400]),
            (
                "a tab in front of chunks",
                post("transfer-encoding: \x0bchunked\r\n", "0\r\n\r\n"),
                &[400],
            ),
            ("chunks in HTTP/1.0", post(chunked, "0\r\n\r\n").replacen("/1.1", "/1.0", 1), &[400]),
            (
                "a body of GET",
                format!(
                    "GET /version HTTP/1.1\r\n{H}content-length: {}\r\n\r\n{NEXT}{NEXT}",
                    NEXT.len()
                ),
                &[200, 200],
            ),
            ("a length without a body", post("content-length: 500\r\n", "{}"), &[400]),
        ],
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn chunks_are_read_to_the_letter() {
    let server = start(parrot()).await;
    let post = |body: &str| post("transfer-encoding: chunked\r\n", body);
    let extension = |n| format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(n));
    check(
        &server,
        &[
            ("an extension", post("2;name=value\r\n{}\r\n0\r\n\r\n"), &[400, 200]),
            ("a quoted extension", post("2;name=\"a;b\"\r\n{}\r\n0\r\n\r\n"), &[400, 200]),
            ("an extension of the last chunk", post("2\r\n{}\r\n0;x=y\r\n\r\n"), &[400, 200]),
            ("an endless extension", post(&extension(20_000)), &[400]),
            ("a line feed in an extension", post("2;x\nGET\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("leading zeros", post("0002\r\n{}\r\n000\r\n\r\n"), &[400, 200]),
            ("trailers", post("2\r\n{}\r\n0\r\nx-a: b\r\n\r\n"), &[400, 200]),
            ("another base", post("0x2\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("a sign", post("+2\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("below zero", post("-2\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("beyond 64 bits", post("10000000000000002\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("no size", post("\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("too long a chunk", post("2\r\n{}}\r\n0\r\n\r\n"), &[400]),
            ("too short a chunk", post("3\r\n{}\r\n0\r\n\r\n"), &[400]),
            ("a bare line feed after a size", post("2\n{}\r\n0\r\n\r\n"), &[400]),
            ("a bare line feed after a chunk", post("2\r\n{}\n0\r\n\r\n"), &[400]),
            ("a bare line feed at the end", post("2\r\n{}\r\n0\n\n"), &[400]),
            ("no last chunk", post("2\r\n{}\r\n"), &[400]),
        ],
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn heads_are_read_to_the_letter() {
    let server = start(parrot()).await;
    let many = "x: y\r\n".repeat(100);
    check(
        &server,
        &[
            ("a plain one", get(""), &[200, 200]),
            ("an empty line before it", format!("\r\n{NEXT}"), &[200]),
            ("bare line feeds", get("x: y\r\n").replace("\r\n", "\n"), &[200, 200]),
            ("a folded header", get("x: y\r\n z\r\n"), &[400]),
            (
                "a folded host",
                format!("GET /version HTTP/1.1\r\nhost:\r\n localhost\r\n\r\n{NEXT}"),
                &[400],
            ),
            ("a header without a colon", get("x\r\n"), &[400]),
            ("a header without a name", get(": x\r\n"), &[400]),
            ("a space in a name", get("x y: z\r\n"), &[400]),
            ("a header that begins with a space", get(" x: y\r\n").replacen(H, "", 1), &[400]),
            ("a bare carriage return", get("x: y\rz: a\r\n"), &[400]),
            ("a null byte", get("x: \0\r\n"), &[400]),
            ("too many headers", get(&many), &[431]),
            ("too large a head", get(&format!("x: {}\r\n", "y".repeat(70_000))), &[431]),
            (
                "too long a path",
                format!("GET /{} HTTP/1.1\r\n{H}\r\n{NEXT}", "x".repeat(70_000)),
                &[431],
            ),
            ("two spaces", NEXT.replacen(' ', "  ", 1), &[400]),
            ("a word too many", NEXT.replacen("/1.1", "/1.1 x", 1), &[400]),
            ("HTTP/0.9", "GET /version\r\n\r\n".to_owned(), &[400]),
            ("HTTP/1.2", NEXT.replacen("/1.1", "/1.2", 1), &[400]),
            ("HTTP/2.0", NEXT.replacen("/1.1", "/2.0", 1), &[400]),
            ("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), &[]),
            ("a method in small letters", NEXT.replacen("GET", "get", 1), &[405]),
            ("a tunnel", format!("CONNECT localhost:80 HTTP/1.1\r\n{H}\r\n"), &[404]),
            ("no path", NEXT.replacen("/version", "*", 1), &[404]),
            ("a host for a path", NEXT.replacen("/version", "version", 1), &[403]),
        ],
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_request_names_its_host_once_and_well() {
    let server = start(parrot()).await;
    let hosts = |lines: &str| format!("GET /version HTTP/1.1\r\n{lines}\r\n{NEXT}");
    let port = server.address.port();
    check(
        &server,
        &[
            ("its address", hosts(&format!("host: 127.0.0.1:{port}\r\n")), &[200, 200]),
            ("the address ::1", hosts(&format!("host: [::1]:{port}\r\n")), &[200, 200]),
            ("none", hosts(""), &[400]),
            ("none, and many headers", hosts("accept: */*\r\nx-host: localhost\r\n"), &[400]),
            ("none in HTTP/1.0", hosts("").replacen("/1.1", "/1.0", 1), &[200]),
            ("two", hosts(&format!("{H}host: evil.example\r\n")), &[400]),
            ("twice the same", hosts(&format!("{H}{H}")), &[400]),
            ("two in HTTP/1.0", hosts(&format!("{H}{H}")).replacen("/1.1", "/1.0", 1), &[400]),
            ("an empty one", hosts("host: \r\n"), &[400]),
            ("a list", hosts("host: localhost, evil.example\r\n"), &[400]),
            ("a path", hosts("host: localhost/\r\n"), &[400]),
            ("a user", hosts("host: user@localhost\r\n"), &[400]),
            ("a word for a port", hosts("host: localhost:http\r\n"), &[400]),
            ("another name", hosts("host: evil.example\r\n"), &[403, 200]),
            ("a longer name", hosts("host: localhost.evil.example\r\n"), &[403, 200]),
            (
                "a name in the first line",
                hosts(H).replacen("/v", "http://evil.example/v", 1),
                &[403, 200],
            ),
            (
                "its name in the first line",
                hosts("host: evil.example\r\n").replacen("/v", "http://localhost/v", 1),
                &[200, 200],
            ),
        ],
    )
    .await;
    let evil = answers(&server, hosts("host: evil.example\r\n").as_bytes()).await;
    for word in ["host_not_allowed", "`evil.example`", "--allowed-host"] {
        assert!(evil[0].1.contains(word), "{}", evil[0].1);
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_in_a_row_are_answered_in_their_order() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "abc", "max_tokens": 2}).to_string();
    let slow = format!("{POST}content-length: {}\r\n\r\n{body}", body.len());
    let missing = format!("GET /nothing HTTP/1.1\r\n{H}\r\n");
    let row = [&slow, NEXT, &missing, &slow].concat().repeat(10);
    let answers_to_row = answers(&server, row.as_bytes()).await;
    let statuses: Vec<u16> = answers_to_row.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 404, 200].repeat(10));
    for of_four in answers_to_row.chunks(4) {
        let has = |i: usize, word: &str| of_four[i].1.contains(word);
        assert!(has(0, "\"ab\"") && has(1, "version") && has(3, "\"ab\""), "{of_four:?}");
    }
    let last = get("connection: close\r\n");
    assert_eq!(answers(&server, last.as_bytes()).await.len(), 1, "nothing after the last one");
    server.stop().await;
}
