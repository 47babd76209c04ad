//! Requests in the shapes of agents and libraries, replayed: Claude Code, Codex, LangChain, LiteLLM and
//! Open WebUI. The files of `replays` are written after the public shapes of these clients.

mod harness;

use harness::parrot::parrot;
use harness::{Answer, Running, start};
use serde_json::Value;

async fn send(server: &Running, request: &Value) -> Answer {
    let (path, body) = (request["path"].as_str().expect("a path"), request["body"].to_string());
    let headers = request["headers"].as_object().expect("headers").iter();
    let headers =
        headers.map(|(name, value)| format!("{name}: {}\r\n", value.as_str().expect("text")));
    let headers: String = headers.collect();
    let n = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {n}\r\n{headers}\r\n"
    );
    server.raw(&(head + &body)).await
}

/// Replays a file; every request must be answered as the file says.
async fn replay(name: &str, text: &str) {
    let server = start(parrot()).await;
    let file: Value = serde_json::from_str(text).expect("JSON");
    for (i, request) in file["requests"].as_array().expect("requests").iter().enumerate() {
        let answer = send(&server, request).await;
        let context = format!("{name} {i}: {}", answer.body);
        assert_eq!(answer.status, 200, "{context}");
        for (pointer, expected) in request["expect"].as_object().into_iter().flatten() {
            assert_eq!(answer.json().pointer(pointer), Some(expected), "{pointer} of {context}");
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
        let is_stream = request["body"]["stream"] == true;
        assert_eq!(is_stream, answer.head.contains("text/event-stream"), "{context}");
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
