//! Requests and answers of `pelton serve`, through the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::server::Server;
use serde_json::{Value, json};

/// Status and body of the answer to a request of these bytes.
fn ask(server: &Server, head: &str, body: &[u8]) -> (u16, String) {
    let mut connection = TcpStream::connect(server.address()).expect("connected");
    let (host, n) = (server.address(), body.len());
    let head = format!("{head}host: {host}\r\nconnection: close\r\ncontent-length: {n}\r\n\r\n");
    connection.write_all(head.as_bytes()).expect("sent");
    connection.write_all(body).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("answered");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    (status.expect("a status"), body.to_owned())
}

fn get(server: &Server, path: &str, key: &str) -> (u16, String) {
    ask(server, &format!("GET {path} HTTP/1.1\r\nauthorization: Bearer {key}\r\n"), b"")
}

/// Status and error of the answer to a JSON text.
fn refusal(server: &Server, path: &str, headers: &str, body: &[u8]) -> (u16, Value) {
    let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json\r\n{headers}");
    let (status, body) = ask(server, &head, body);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    (status, body["error"].clone())
}

#[test]
fn bodies_of_15_mb_are_refused_in_little_memory_and_an_answer_goes_on_beside_them() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let prompt = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0,
        "ignore_eos": true});
    let alone = server.post("/v1/completions", &prompt).expect("answered");
    let body = format!("{{\"messages\":[0{}]}}", ",0".repeat(7_500_000));
    let before = most_memory(&server);
    std::thread::scope(|scope| {
        let hostile: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| refusal(&server, "/v1/chat/completions", "", body.as_bytes())))
            .collect();
        let beside = server.post("/v1/completions", &prompt).expect("answered");
        assert_eq!(beside["choices"], alone["choices"]);
        for refused in hostile {
            let (status, error) = refused.join().expect("answered");
            assert_eq!((status, &error["param"]), (400, &json!("messages[0]")), "{error}");
        }
    });
    let grown = most_memory(&server) - before;
    assert!(grown < 300 << 20, "{grown} bytes for bodies of {}", body.len());
}

/// The most bytes of memory that the server ever used.
fn most_memory(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

#[test]
fn what_would_be_ignored_in_silence_is_refused_by_name_and_what_is_accepted_is_honoured() {
    let server = Server::start(&[]).expect("it listens");
    let complete = |headers: &str, body: &str| {
        let (status, error) = refusal(&server, "/v1/completions", headers, body.as_bytes());
        (status, error["param"].as_str().unwrap_or_default().to_owned())
    };
    for (param, body) in [
        ("max_tokens", r#"{"prompt": "a", "max_tokens": 1, "max_tokens": 2}"#),
        (
            "stream_options.include_usage",
            r#"{"prompt": "a", "stream": true, "stream_options":
            {"include_usage": true, "include_usage": false}}"#,
        ),
        ("logit_bias", r#"{"prompt": "a", "logit_bias": {"+1": 5}}"#),
        ("prompt_cache_retention", r#"{"prompt": "a", "prompt_cache_retention": "24h"}"#),
        ("prompt_cache_key", r#"{"prompt": "a", "prompt_cache_key": 1}"#),
        ("cache_prompt", r#"{"prompt": "a", "cache_prompt": "yes"}"#),
        (
            "spaces_between_special_tokens",
            r#"{"prompt": "a",
            "spaces_between_special_tokens": "yes"}"#,
        ),
    ] {
        assert_eq!(complete("", body), (400, param.to_owned()), "{body}");
    }
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    for encoding in ["gzip", "br", "identity, gzip"] {
        let headers = format!("content-encoding: {encoding}\r\n");
        assert_eq!(complete(&headers, body), (415, "Content-Encoding".to_owned()));
    }
    assert_eq!(complete("content-encoding: Identity\r\n", body).0, 200);

    let long =
        "Once upon a time there was a little girl who liked to play with her toys. ".repeat(3);
    let cached = |cache_prompt: bool| {
        let body = json!({"prompt": long, "max_tokens": 1, "cache_prompt": cache_prompt,
            "prompt_cache_key": "a", "prompt_cache_retention": "in_memory"});
        let answer = server.post("/v1/completions", &body).expect("answered");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    assert_eq!(cached(true), 0, "the first of its kind");
    assert!(cached(true) > 0);
    assert_eq!(cached(false), 0);
    assert_eq!(cached(false), 0, "nor does it find what its like has left");
    assert!(cached(true) > 0);
}

#[test]
fn a_key_file_says_which_key_sees_all_tenants() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    write("keys", "# of the monitor\nsk-ops metrics\nsk-a\n");
    let config = "tenants:\n  - {name: a, api_keys_file: keys}\n  - {name: b, api_keys: [sk-b]}\n";
    let config = write("serve.yaml", config);
    let server = Server::start(&["--config", &config]).expect("it listens");
    for key in ["sk-a", "sk-b"] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nauthorization: Bearer {key}\r\n\
            content-type: application/json\r\n"
        );
        let (status, body) = ask(&server, &head, br#"{"prompt": "a", "max_tokens": 1}"#);
        assert_eq!(status, 200, "{body}");
    }
    let (status, own) = get(&server, "/metrics", "sk-a");
    assert_eq!(status, 200);
    assert!(own.contains("tenant=\"a\"") && !own.contains("tenant=\"b\""), "{own}");
    assert!(!own.contains("generation_tokens") && !own.contains("running"), "{own}");
    let (_, all) = get(&server, "/metrics", "sk-ops");
    for part in ["tenant=\"a\"", "tenant=\"b\"", "pelton_generation_tokens_total"] {
        assert!(all.contains(part), "{part} is missing in {all}");
    }
    let only_status = json!({"status": "ok"}).to_string();
    assert_eq!(get(&server, "/health", "sk-a"), (200, only_status.clone()));
    assert_eq!(ask(&server, "GET /health HTTP/1.1\r\n", b""), (200, only_status));
    assert!(get(&server, "/health", "sk-ops").1.contains("total_blocks"));

    write("keys", "sk-ops root\n");
    let error = Server::start(&["--config", &config]).err().expect("an unknown scope");
    assert!(error.contains("keys:1") && !error.contains("sk-ops"), "{error}");
}

/// Offsets of tokens count characters of the text, control tokens of the prompt and characters of
/// several tokens included; a stream has the numbers of the whole answer.
#[test]
fn offsets_and_log_probabilities_of_completions_are_those_of_the_text() {
    let server = Server::start(&["--threads", "1"]).expect("it listens");
    for prompt in ["a<|im_end|>b", "\u{65e5}\u{672c} !", "plain"] {
        let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": true,
            "logprobs": 1});
        let choice = &server.post("/v1/completions", &body).expect("answered")["choices"][0];
        let chars: Vec<char> = choice["text"].as_str().expect("text").chars().collect();
        let logprobs = &choice["logprobs"];
        let list = |name: &str| logprobs[name].as_array().expect("a list").clone();
        let offsets: Vec<usize> =
            list("text_offset").iter().map(|n| n.as_u64().expect("a number") as usize).collect();
        assert_eq!(offsets[0], 0);
        assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]), "{offsets:?}");
        for (token, &offset) in list("tokens").iter().zip(&offsets) {
            let token = token.as_str().expect("text");
            // Parts of a character have no text of their own.
            if !token.contains('\u{fffd}') {
                let rest: String = chars[offset..].iter().collect();
                assert!(rest.starts_with(token), "{token:?} at {offset} of {chars:?}");
            }
        }
        let whole: Vec<Value> = list("token_logprobs");
        for (own, top) in whole.iter().zip(list("top_logprobs")) {
            let is_there = |top: &serde_json::Map<String, Value>| top.values().any(|x| x == own);
            assert!(own.is_null() || top.as_object().is_some_and(is_there), "{own} in {top}");
        }
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let head = "POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\n";
        let (_, text) = ask(&server, head, streamed.to_string().as_bytes());
        // Read back as the whole answer was: digits of a number that was read may differ.
        let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let parts = events.flat_map(|event| {
            let event: Value = serde_json::from_str(&format!("{{{event}")).expect("JSON");
            event["choices"][0]["logprobs"]["token_logprobs"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        });
        assert_eq!(parts.collect::<Vec<_>>(), whole, "{text}");
    }
}

/// Three answers that find no last token, unless they are cut before.
#[test]
fn a_request_whose_answers_fail_has_the_failure_of_the_first_whatever_ends_first() {
    let failures = |flags: &[&str]| -> Vec<(u16, Value)> {
        let server = Server::start(flags).expect("it listens");
        let failure = |seed: u32| {
            let body = json!({"prompt": "Once", "max_tokens": 30, "temperature": 1.5, "n": 3,
                "seed": seed, "guided_regex": "(a|b|cc|dd|e[fg]){1,20}h", "bad_words": ["h"]});
            refusal(&server, "/v1/completions", "", body.to_string().as_bytes())
        };
        (0..20).map(failure).collect()
    };
    let expected = failures(&[]);
    let n_failed = expected.iter().filter(|(_, error)| error["code"] == "no_allowed_token").count();
    assert!(n_failed > 10, "{expected:?}");
    assert_eq!(failures(&["--max-running", "1"]), expected);
}
