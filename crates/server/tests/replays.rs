//! Requests in the shapes of agents and libraries, replayed: Claude Code, Codex, LangChain, LiteLLM and
//! Open WebUI. The files of `replays` are written after the public shapes of these clients.

use crate::harness::parrot::parrot;
use crate::harness::ranker::{serve_vectors, start_ranker};
use crate::harness::{Answer, Running, start};
use pelton_server::ServeConfig;
use pelton_testkit::TinyEncoder;
use serde_json::Value;

async fn send(server: &Running, request: &Value) -> Answer {
    let path = request["path"].as_str().expect("a path");
    let method = request["method"].as_str().unwrap_or("POST");
    let body = request.get("body").map(Value::to_string).unwrap_or_default();
    let headers = request["headers"].as_object().expect("headers").iter();
    let headers =
        headers.map(|(name, value)| format!("{name}: {}\r\n", value.as_str().expect("text")));
    let headers: String = headers.collect();
    let n = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {n}\r\n{headers}\r\n"
    );
    server.raw(&(head + &body)).await
}

/// Sends a request to a server of its own with the model that it needs.
async fn send_to_vectors(request: &Value, kind: &str) -> Answer {
    let (_folder, server) = match kind {
        "ranker" => start_ranker("bert").await,
        "vectors" => {
            let folder = tempfile::tempdir().expect("a folder");
            TinyEncoder::default().write_folder(folder.path());
            serve_vectors(folder, ServeConfig::default()).await
        }
        other => panic!("no server of the kind {other}"),
    };
    let answer = send(&server, request).await;
    server.stop().await;
    answer
}

/// Panics unless an answer is the one that the file expects.
fn check(request: &Value, answer: &Answer, context: &str) {
    let status = request["status"].as_u64().unwrap_or(200);
    assert_eq!(u64::from(answer.status), status, "{context}");
    for (pointer, expected) in request["expect"].as_object().into_iter().flatten() {
        assert_eq!(answer.json().pointer(pointer), Some(expected), "{pointer} of {context}");
    }
    if let Some(text) = request["text"].as_str() {
        let chunks = answer.chunks();
        let said = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
        assert_eq!(said.collect::<String>(), text, "{context}");
    }
    for pointer in request["base64"].as_array().into_iter().flatten() {
        let body = answer.json();
        let text = body.pointer(pointer.as_str().expect("a pointer")).and_then(Value::as_str);
        // Whole floats of four bytes; 4 letters are 3 bytes.
        let text = text.unwrap_or_else(|| panic!("{pointer} of {context}"));
        let n_bytes = text.trim_end_matches('=').len() * 3 / 4;
        assert_eq!(n_bytes, 4 * TinyEncoder::DIMENSIONS, "{context}");
    }
    if let Some(expected) = request["order"].as_array() {
        let body = answer.json();
        let results = body["results"].as_array().expect("results");
        let order: Vec<&Value> = results.iter().map(|result| &result["index"]).collect();
        assert_eq!(order, expected.iter().collect::<Vec<_>>(), "{context}");
    }
    if let Some(expected) = request["events"].as_array() {
        let names = answer.body.lines().filter_map(|line| line.strip_prefix("event: "));
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        assert_eq!(names, expected.iter().collect::<Vec<_>>(), "{context}");
    }
    if let Some(header) = request["header"].as_array() {
        let text = |i: usize| header[i].as_str().expect("text");
        let line = format!("\r\n{}: {}\r\n", text(0), text(1));
        assert!(answer.head.contains(&line), "{line} is not in {}", answer.head);
    }
    let is_stream = request["body"]["stream"] == true && status == 200;
    assert_eq!(is_stream, answer.head.contains("text/event-stream"), "{context}");
}

/// Replays a file; every request must be answered as the file says.
async fn replay(name: &str, text: &str) {
    let server = start(parrot()).await;
    let file: Value = serde_json::from_str(text).expect("JSON");
    for (i, request) in file["requests"].as_array().expect("requests").iter().enumerate() {
        let answer = match request["server"].as_str() {
            None => send(&server, request).await,
            Some(kind) => send_to_vectors(request, kind).await,
        };
        check(request, &answer, &format!("{name} {i}: {}", answer.body));
    }
    server.stop().await;
}

macro_rules! replays {
    ($($test:ident: $name:literal;)+) => {$(
        #[tokio::test]
        async fn $test() {
            replay($name, include_str!(concat!("replays/", $name, ".json"))).await;
        }
    )+};
}
replays! {
    claude_code_gets_answers_to_all_its_requests: "claude_code";
    codex_gets_answers_to_all_its_requests: "codex";
    langchain_gets_answers_to_all_its_requests: "langchain";
    litellm_gets_answers_to_all_its_requests: "litellm";
    open_webui_gets_answers_to_all_its_requests: "open_webui";
}
