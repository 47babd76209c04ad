//! Traces and logs of `pelton serve`, through the real binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{command, pelton, signal};
use serde_json::{Value, json};

/// Time in which a batch of spans comes, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A collector that answers with these statuses, one after the other, and then with the last one.
fn collector(statuses: &'static [u16]) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (send, bodies) = channel();
    std::thread::spawn(move || {
        for (i, connection) in listener.incoming().enumerate() {
            let mut connection = BufReader::new(connection.expect("connected"));
            let (mut head, mut n_bytes) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if connection.read_line(&mut line).expect("a head") == 0 || line == "\r\n" {
                    break;
                }
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    n_bytes = n.trim().parse().expect("a number");
                }
                head.push_str(&line);
            }
            let mut body = vec![0; n_bytes];
            connection.read_exact(&mut body).expect("a body");
            let status = statuses[i.min(statuses.len() - 1)];
            let answer = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
            );
            connection.get_mut().write_all(answer.as_bytes()).expect("answered");
            let body = serde_json::from_slice(&body).expect("JSON");
            if status == 200 && send.send((head, body)).is_err() {
                return;
            }
        }
    });
    (url, bodies)
}

/// Asks for an answer, with more lines in the head.
fn ask(server: &Server, lines: &str) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": true});
    assert_eq!(status(server, "/v1/completions", lines, &body), 200);
}

/// The status of the answer to a body, with more lines in the head.
fn status(server: &Server, path: &str, lines: &str, body: &Value) -> u16 {
    let body = body.to_string();
    let n = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\
         content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    );
    let mut answer = String::new();
    server.send(&request).read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {answer}"))
}

/// Waits until the metrics have this line.
fn await_series(server: &Server, line: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !server.get("/metrics", "host: localhost\r\n").lines().any(|found| found == line) {
        assert!(Instant::now() < deadline, "no `{line}` in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The value of an attribute.
fn attribute(span: &Value, key: &str) -> Value {
    let attributes = span["attributes"].as_array().expect("a list");
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"].clone()
}

#[test]
fn a_request_is_a_span_under_the_span_of_its_client_and_leaves_the_sandbox() {
    let (url, bodies) = collector(&[503, 200]);
    let flags = ["--threads", "1", "--otlp-endpoint", &url, "--sandbox", "auto"];
    let mut command = command(&[&["serve", "--port", "0"], &flags[..]].concat());
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b").env("OTEL_SERVICE_NAME", "stories");
    let server = Server::start_by(command).expect("it listens");
    ask(
        &server,
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx-request-id: r1\r\n",
    );
    ask(&server, "traceparent: 00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-00f067aa0ba902b7-00\r\n");
    let (head, body) =
        bodies.recv_timeout(PATIENCE).expect("a batch, after the collector was busy");
    assert!(head.starts_with("POST /v1/traces"), "{head}");
    assert!(head.contains("x-tenant: a b"), "{head}");
    let resource = &body["resourceSpans"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), json!({"stringValue": "stories"}));
    let spans = resource["scopeSpans"][0]["spans"].as_array().expect("a list");
    assert_eq!(spans.len(), 1, "the client of the second did not want a trace: {spans:?}");
    let span = &spans[0];
    assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(span["spanId"].as_str().map(str::len), Some(16));
    assert_eq!((&span["name"], &span["kind"]), (&json!("text_completion story"), &json!(2)));
    for (key, expected) in [
        ("gen_ai.operation.name", json!({"stringValue": "text_completion"})),
        ("gen_ai.request.model", json!({"stringValue": "story"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "4"})),
        ("gen_ai.request.max_tokens", json!({"intValue": "4"})),
        (
            "gen_ai.response.finish_reasons",
            json!({"arrayValue": {"values": [{"stringValue": "length"}]}}),
        ),
        ("pelton.request.id", json!({"stringValue": "r1"})),
        ("pelton.tenant", json!({"stringValue": "default"})),
    ] {
        assert_eq!(attribute(span, key), expected, "{key}");
    }
    let ttft = &attribute(span, "gen_ai.response.time_to_first_chunk")["doubleValue"];
    assert!(ttft.as_f64() > Some(0.0), "{span}");
    let time = |key: &str| span[key].as_str().and_then(|ns| ns.parse::<u128>().ok());
    let (begin, end) = (time("startTimeUnixNano"), time("endTimeUnixNano"));
    assert!(begin > Some(1_600_000_000_000_000_000) && begin < end, "{span}");
    assert_eq!(span["events"][0]["name"], "gen_ai.first_token");
    await_series(&server, "pelton_spans_sent_total 1");
    await_series(&server, "pelton_spans_lost_total 0");
}

#[test]
fn a_span_has_what_its_request_states_and_nothing_that_it_leaves_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("serve.yaml");
    let list = "models: [{name: tales, model: story, aliases: [gpt-4o]}]\n\
                auto: [{to: tales}]\nthreads: 1\n";
    std::fs::write(&config, list).expect("written");
    let (url, bodies) = collector(&[200]);
    let config = config.to_str().expect("UTF-8");
    let server = Server::start(&["--config", config, "--otlp-endpoint", &url]).expect("it listens");
    let said = json!([{"role": "user", "content": "Hi"}]);
    let stated = json!({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7});
    let with = |mut body: Value, more: &Value| {
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        body
    };
    let penalties = json!({"frequency_penalty": 0.1, "presence_penalty": -0.2, "stop": ["zz"]});
    let prompt = json!({"model": "gpt-4o", "prompt": "Once", "max_tokens": 2});
    let chat = json!({"model": "auto", "messages": said, "max_tokens": 2});
    let message = with(chat.clone(), &json!({"stop_sequences": ["zz"]}));
    let response = json!({"model": "tales", "input": "Hi", "max_output_tokens": 2});
    let ids = [
        ("/v1/completions", with(with(prompt, &stated), &penalties)),
        ("/v1/chat/completions", with(with(chat, &stated), &penalties)),
        ("/v1/messages", with(message, &stated)),
        ("/v1/responses", with(response, &stated)),
        ("/v1/completions", json!({"prompt": "Once", "max_tokens": 2})),
    ]
    .map(|(path, body)| server.post(path, &body).expect("an answer")["id"].clone());
    signal("TERM", server.pid());
    let (_, body) = bodies.recv_timeout(PATIENCE).expect("a batch at the end");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("a list");
    let names: Vec<&Value> = spans.iter().map(|span| &span["name"]).collect();
    let expected =
        ["text_completion gpt-4o", "chat auto", "chat auto", "chat tales", "text_completion tales"];
    assert_eq!(names, expected);
    for (i, span) in spans.iter().enumerate() {
        let has = |key: &str| span.to_string().contains(&format!("\"{key}\""));
        assert_eq!(attribute(span, "gen_ai.response.id"), json!({"stringValue": ids[i]}));
        assert_eq!(attribute(span, "gen_ai.response.model"), json!({"stringValue": "tales"}));
        let double = |value: f64| json!({ "doubleValue": value });
        for (key, value, is_stated) in [
            ("gen_ai.request.temperature", double(0.7), i < 4),
            ("gen_ai.request.top_p", double(0.9), i < 4),
            ("gen_ai.request.top_k", double(40.0), i < 4),
            ("gen_ai.request.seed", json!({"intValue": "7"}), i < 4),
            ("gen_ai.request.frequency_penalty", double(0.1), i < 2),
            ("gen_ai.request.presence_penalty", double(-0.2), i < 2),
            (
                "gen_ai.request.stop_sequences",
                json!({"arrayValue": {"values": [{"stringValue": "zz"}]}}),
                i < 3,
            ),
        ] {
            assert_eq!(has(key), is_stated, "{key} of {span}");
            if is_stated {
                assert_eq!(attribute(span, key), value, "{key}");
            }
        }
    }
}

#[test]
fn requests_for_vectors_and_refused_requests_have_spans() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("serve.yaml");
    let list = "models: [{name: tales, model: story}, {name: vectors, model: story, embeddings: true}]\n\
                threads: 1\ntenants:\n- {name: blue, api_keys: [secret]}\n";
    std::fs::write(&config, list).expect("written");
    let (url, bodies) = collector(&[200]);
    let config = config.to_str().expect("UTF-8");
    let server = Server::start(&["--config", config, "--otlp-endpoint", &url]).expect("it listens");
    let ask = |path: &str, key: &str, body: &Value| {
        status(&server, path, &format!("x-api-key: {key}\r\n"), body)
    };
    let said = json!([{"role": "user", "content": "Hi"}]);
    let n = |n: i64| json!({"intValue": n.to_string()});
    let text = |text: &str| json!({"stringValue": text});
    let cases = [
        ("/v1/embeddings", "secret", json!({"model": "vectors", "input": "Hi"}), 200),
        ("/rerank", "secret", json!({"model": "vectors", "query": "a", "documents": ["b"]}), 200),
        ("/v1/score", "secret", json!({"model": "vectors", "text_1": "a", "text_2": "b"}), 200),
        ("/classify", "secret", json!({"model": "vectors", "input": "a"}), 400),
        ("/v1/embeddings", "secret", json!({"model": "nothing", "input": "Hi"}), 404),
        ("/v1/completions", "secret", json!({"model": "tales", "prompt": "Hi", "n": 0}), 400),
        ("/v1/messages", "secret", json!({"model": "tales", "messages": said}), 400),
        ("/v1/chat/completions", "wrong", json!({"model": "tales", "messages": said}), 401),
    ];
    for (path, key, body, status) in &cases {
        assert_eq!(ask(path, key, body), *status, "{path}");
    }
    // Neither asks a model.
    assert_eq!(ask("/tokenize", "secret", &json!({"model": "tales", "prompt": "Hi"})), 200);
    assert_eq!(ask("/v1/nothing", "secret", &json!({})), 404);
    signal("TERM", server.pid());
    let (_, body) = bodies.recv_timeout(PATIENCE).expect("a batch at the end");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("a list");
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    let expected = [
        "embeddings vectors",
        "rerank vectors",
        "score vectors",
        "classify vectors",
        "embeddings nothing",
        "text_completion tales",
        "chat",
        "chat",
    ];
    assert_eq!(names, expected);
    for (span, (path, key, _, status)) in spans.iter().zip(&cases) {
        let has = |key: &str| span.to_string().contains(&format!("\"{key}\""));
        assert_eq!(attribute(span, "http.route"), text(path));
        assert_eq!(attribute(span, "http.response.status_code"), n(i64::from(*status)), "{span}");
        assert_eq!(has("error.type"), *status != 200, "{span}");
        assert_eq!(has("gen_ai.usage.input_tokens"), *status == 200, "{span}");
        assert_eq!(has("pelton.tenant"), *key == "secret", "{span}");
        assert_eq!(span["status"], json!({}), "the client's fault: {span}");
    }
    assert_eq!(attribute(&spans[0], "gen_ai.response.model"), text("vectors"));
    assert_eq!(attribute(&spans[0], "pelton.tenant"), text("blue"));
    assert_eq!(attribute(&spans[4], "error.type"), text("model_not_found"));
    assert_eq!(attribute(&spans[7], "error.type"), text("invalid_api_key"));
}

#[test]
fn a_server_that_ends_sends_what_waits_and_a_lost_collector_is_counted() {
    let (url, bodies) = collector(&[200]);
    let server = Server::start(&["--threads", "1", "--otlp-endpoint", &url]).expect("it listens");
    ask(&server, "");
    signal("TERM", server.pid());
    let (_, body) = bodies.recv_timeout(PATIENCE).expect("a batch at the end");
    assert!(body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["parentSpanId"].is_null());

    let nowhere = Server::start(&["--threads", "1", "--otlp-endpoint", "http://127.0.0.1:9"]);
    let nowhere = nowhere.expect("it serves without its collector");
    ask(&nowhere, "");
    await_series(&nowhere, "pelton_spans_lost_total 1");
    pelton(&["serve", "--otlp-endpoint", "collector"]).assert_refused(&["--otlp-endpoint", "http"]);
}

#[test]
fn logs_for_programs_are_one_object_for_each_line() {
    let flags = ["serve", "--port", "0", "--threads", "1", "--log-format", "json", "-v"];
    let mut child =
        command(&flags).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
    let mut next = || lines.next().expect("it goes on").expect("UTF-8");
    let address = loop {
        let line = next();
        if let Some(address) = line.strip_prefix("listening on http://") {
            break address.trim_end_matches('/').to_owned();
        }
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "no object: {line}");
    };
    let body = json!({"prompt": "Once", "max_tokens": 3, "ignore_eos": true}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: r7\r\n\
         traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = std::net::TcpStream::connect(address).expect("it listens");
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    let object = loop {
        let line = next();
        let Ok(object) = serde_json::from_str::<Value>(&line) else { continue };
        if object["message"] == "request" {
            break object;
        }
        assert!(!line.contains("POST /v1/completions 200"), "the text form is left out: {line}");
    };
    for (key, expected) in [
        ("request_id", json!("r7")),
        ("trace_id", json!("4bf92f3577b34da6a3ce929d0e0e4736")),
        ("method", json!("POST")),
        ("path", json!("/v1/completions")),
        ("status", json!(200)),
        ("tenant", json!("default")),
        ("model", json!("story")),
        ("completion_tokens", json!(3)),
        ("finish_reason", json!("length")),
    ] {
        assert_eq!(object[key], expected, "{key} in {object}");
    }
    assert!(object["ttft_seconds"].as_f64() > Some(0.0), "{object}");
    let _ = child.kill();
    let _ = child.wait();
}
