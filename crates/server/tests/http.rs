//! The server over real loopback connections, with a parrot for a model.

#[path = "../../llm/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{CONTEXT, Gate, gated_parrot, parrot};
use pelton_llm::{CompletionRequest, Generation, Llm, LlmError, Prompt};
use pelton_server::{ServeConfig, Server, SignalSender, Signals};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

struct Running {
    address: std::net::SocketAddr,
    signals: SignalSender,
    task: JoinHandle<()>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The `data:` lines of a stream; the last must be `[DONE]`.
    fn chunks(&self) -> Vec<Value> {
        let mut lines: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.body);
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// `(status, param, code)` of an error.
    fn error(&self) -> (u16, Option<String>, Option<String>) {
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.body);
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status, text("param"), text("code"))
    }
}

async fn start_with(llm: Arc<Llm>, config: ServeConfig) -> Running {
    let config = ServeConfig { port: 0, ..config };
    let server = Server::bind(llm, config).await.expect("a free port");
    let address = server.address();
    let (signals, receiver) = Signals::manual();
    let task = tokio::spawn(async move { server.run(receiver).await.expect("served") });
    Running { address, signals, task }
}

async fn start(llm: Arc<Llm>) -> Running {
    start_with(llm, ServeConfig::default()).await
}

impl Running {
    async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream
    }

    async fn raw(&self, request: &str) -> Answer {
        let mut stream = self.connect(request).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("answered");
        let text = String::from_utf8(bytes).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            dechunk(body)
        } else {
            body.to_owned()
        };
        Answer { status, head: head.to_ascii_lowercase(), body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.raw(&post_text(path, &body.to_string())).await
    }

    async fn complete(&self, body: Value) -> Answer {
        self.post("/v1/completions", body).await
    }

    async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    async fn stop(self) {
        self.signals.send();
        self.task.await.expect("stopped");
    }
}

fn post_text(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn dechunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    out
}

fn hello(more: Value) -> Value {
    let mut body =
        json!({"model": "org/parrot", "messages": [{"role": "user", "content": "hey!"}]});
    for (name, value) in more.as_object().expect("object") {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece() {
    let server = start(parrot()).await;
    let answer = server.chat(hello(json!({"logprobs": true, "top_logprobs": 2}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "org/parrot");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "hey!", "refusal": null}));
    assert_eq!(choice["finish_reason"], "stop");
    let logprobs = choice["logprobs"]["content"].as_array().expect("asked for");
    let text: String = logprobs.iter().map(|l| l["token"].as_str().expect("text")).collect();
    assert_eq!(text, "hey!", "the end token is not among them");
    assert_eq!(logprobs[0]["bytes"], json!([104]));
    assert_eq!(logprobs[0]["top_logprobs"][1]["logprob"], -9999.0, "JSON has no infinity");
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(body["usage"], usage);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_is_role_text_finish_usage_done() {
    let server = start(parrot()).await;
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let answer = server.chat(hello(more)).await;
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let n = chunks.len();
    let text: String = chunks[1..n - 2]
        .iter()
        .map(|c| c["choices"][0]["delta"]["content"].as_str().expect("text"))
        .collect();
    assert_eq!(text, "hey!");
    assert_eq!(chunks[n - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[n - 2]["choices"][0]["delta"], json!({}));
    assert_eq!(chunks[n - 1]["choices"], json!([]));
    assert_eq!(chunks[n - 1]["usage"]["completion_tokens"], 5);
    assert!(chunks[..n - 1].iter().all(|c| c["usage"].is_null() && c.get("usage").is_some()));
    let id = &chunks[0]["id"];
    assert!(chunks.iter().all(|c| c["id"] == *id && c["object"] == "chat.completion.chunk"));

    let plain = server.chat(hello(json!({"stream": true}))).await.chunks();
    assert!(plain.iter().all(|c| c.get("usage").is_none()), "usage only when asked for");
    server.stop().await;
}

#[tokio::test]
async fn completions_take_texts_and_tokens_and_streams_equal_whole_answers() {
    let server = start(parrot()).await;
    let body = json!({"prompt": [[97, 98], [99, 100]], "max_tokens": 3, "n": 2, "logprobs": 1,
        "temperature": 1, "seed": 1});
    let whole = server.complete(body.clone()).await.json();
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|c| c["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts, ["bab", "aba", "dcd", "cdc"]);
    assert_eq!(whole["choices"][3]["index"], 3);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"], json!(["b", "a", "b"]));
    assert_eq!(whole["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 2]));
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let mut from_stream = vec![String::new(); 4];
    for chunk in server.complete(streamed).await.chunks() {
        let choice = &chunk["choices"][0];
        let idx = choice["index"].as_u64().expect("index") as usize;
        from_stream[idx].push_str(choice["text"].as_str().expect("text"));
    }
    assert_eq!(from_stream, texts);
    let text = server.complete(json!({"prompt": ["abc", "xyz"], "max_tokens": 2})).await.json();
    assert_eq!(
        (&text["choices"][0]["text"], &text["choices"][1]["text"]),
        (&json!("ab"), &json!("xy"))
    );
    server.stop().await;
}

#[tokio::test]
async fn stop_strings_end_an_answer_and_never_get_out() {
    let server = start(parrot()).await;
    let body =
        json!({"prompt": "one two", "max_tokens": 300, "stop": ["two", "zzz"], "stream": true});
    let chunks = server.complete(body).await.chunks();
    let text: String =
        chunks.iter().map(|c| c["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, "one ");
    assert_eq!(chunks.last().expect("finish")["choices"][0]["finish_reason"], "stop");
    server.stop().await;
}

#[tokio::test]
async fn every_error_is_json_and_names_what_is_wrong() {
    let config = ServeConfig { max_body_bytes: 2000, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let some = |text: &str| Some(text.to_owned());
    let completion = async |body: Value| server.complete(body).await.error();
    assert_eq!(completion(json!({"prompt": ""})).await, (400, some("prompt"), None));
    let long = json!({"prompt": "x".repeat(CONTEXT)});
    let code = some("context_length_exceeded");
    assert_eq!(completion(long).await, (400, some("prompt"), code.clone()));
    assert_eq!(completion(json!({"prompt": [300]})).await, (400, some("prompt"), None));
    let bias = json!({"prompt": "a", "logit_bias": {"300": 1}});
    assert_eq!(completion(bias).await, (400, some("logit_bias"), None));
    let unsupported = some("unsupported_parameter");
    let suffix = json!({"prompt": "a", "suffix": "b"});
    assert_eq!(completion(suffix).await, (400, some("suffix"), unsupported));
    let model = json!({"prompt": "a", "model": "gpt"});
    assert_eq!(completion(model).await, (404, some("model"), some("model_not_found")));
    let failing = json!({"prompt": "a~"});
    assert_eq!(completion(failing).await.0, 500);
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(CONTEXT)}]});
    assert_eq!(server.chat(long).await.error(), (400, some("messages"), code));

    let large = json!({"prompt": "x".repeat(3000)});
    assert_eq!(completion(large).await.0, 413);
    let bad = |body: &str| post_text("/v1/completions", body);
    assert_eq!(server.raw(&bad("{\"prompt\": ")).await.error().0, 400);
    assert_eq!(server.raw(&bad("[]")).await.error().0, 400);
    assert_eq!(server.raw(&bad(&"[".repeat(1500))).await.error().0, 400);
    let wrong_type = bad("{}").replace("application/json", "text/plain");
    assert_eq!(server.raw(&wrong_type).await.error().0, 415);
    assert_eq!(server.get("/v1/nothing").await.error().0, 404);
    assert_eq!(server.get("/v1/completions").await.error().0, 405);
    let chunked = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{chunked}bb8\r\n{}\r\n0\r\n\r\n", " ".repeat(3000));
    assert_eq!(server.raw(&chunked).await.error().0, 413, "without an announced length");
    server.stop().await;
}

#[tokio::test]
async fn a_failure_inside_a_stream_is_an_error_chunk() {
    let server = start(parrot()).await;
    let chunks = server.complete(json!({"prompt": "a~", "stream": true})).await.chunks();
    assert_eq!(chunks.last().expect("an error")["error"]["type"], "server_error");
    server.stop().await;
}

#[tokio::test]
async fn models_are_listed_and_found_by_names_with_slashes() {
    let server = start(parrot()).await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "org/parrot");
    assert_eq!(list["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(server.get("/v1/models/org/parrot").await.json()["object"], "model");
    assert_eq!(server.get("/v1/models/org%2Fparrot").await.status, 200);
    let unknown = server.get("/v1/models/nope").await.error();
    assert_eq!(unknown.2.as_deref(), Some("model_not_found"));
    server.stop().await;
}

#[tokio::test]
async fn a_request_id_is_echoed_and_a_bad_one_replaced() {
    let server = start(parrot()).await;
    let ask = |id: &str| {
        format!("GET /nope HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: {id}\r\n\r\n")
    };
    let answer = server.raw(&ask("abc-1")).await;
    assert!(answer.head.contains("x-request-id: abc-1"), "{}", answer.head);
    let answer = server.raw(&ask("a b")).await;
    assert!(answer.head.contains("x-request-id: req-"), "{}", answer.head);
    server.stop().await;
}

/// Asks for health until it is `expected`, which it must become without any clock.
async fn health_until(server: &Running, expected: impl Fn(&Value) -> bool) -> Value {
    loop {
        let health = server.get("/health").await.json();
        if expected(&health) {
            return health;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_frees_its_request() {
    for is_stream in [true, false] {
        let gate = Gate::closed(1);
        let llm = gated_parrot(&gate, 8);
        let server = start(llm.clone()).await;
        let body = json!({"prompt": "abc", "max_tokens": 500, "stream": is_stream});
        let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
        if is_stream {
            client.read_u8().await.expect("the answer begins");
        }
        health_until(&server, |h| h["running"] == 1).await;
        drop(client);
        // The engine hears of it between two steps; nobody has to wait for the answer's end.
        let freed = loop {
            gate.step();
            let health = server.get("/health").await.json();
            if health["running"] == 0 {
                break health;
            }
        };
        assert_eq!(freed["free_blocks"], freed["total_blocks"], "stream: {is_stream}");
        assert!(llm.metrics().generated_tokens < 250, "stream: {is_stream}");
        gate.open();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_is_429_with_a_time_to_try_again() {
    let gate = Gate::closed(0);
    let server = start(gated_parrot(&gate, 1)).await;
    let body = json!({"prompt": "abc", "max_tokens": 2, "stream": true}).to_string();
    let mut clients = Vec::new();
    let answer = loop {
        // A stream that is accepted answers its head at once; one that is not, in full.
        let mut client = server.connect(&post_text("/v1/completions", &body)).await;
        let mut head = [0; 12];
        client.read_exact(&mut head).await.expect("a status");
        if &head == b"HTTP/1.1 429" {
            let mut rest = String::new();
            client.read_to_string(&mut rest).await.expect("the rest");
            break rest.to_ascii_lowercase();
        }
        assert_eq!(&head, b"HTTP/1.1 200");
        clients.push(client);
        assert!(clients.len() < 40, "never full");
    };
    assert!(answer.contains("retry-after: 1"), "{answer}");
    assert!(answer.contains("rate_limit_exceeded"), "{answer}");
    drop(clients);
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_refuses_the_new_and_finishes_the_running() {
    let gate = Gate::closed(1);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({"prompt": "abc", "max_tokens": 6, "stream": true});
    let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    client.read_u8().await.expect("the answer begins");
    server.signals.send();
    health_until(&server, |h| h["status"] == "draining").await;
    let refused = server.complete(json!({"prompt": "abc"})).await;
    assert_eq!(refused.error().0, 503);
    assert!(refused.head.contains("retry-after"));
    gate.open();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    server.task.await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_and_the_time_limit_abort_what_is_running() {
    for by_signal in [true, false] {
        let gate = Gate::closed(1);
        let drain_timeout = if by_signal { Duration::from_secs(3600) } else { Duration::ZERO };
        let config = ServeConfig { drain_timeout, ..ServeConfig::default() };
        let llm = gated_parrot(&gate, 8);
        let server = start_with(llm.clone(), config).await;
        let body = json!({"prompt": "abc", "max_tokens": 500, "stream": true});
        let mut client = server.connect(&post_text("/v1/completions", &body.to_string())).await;
        client.read_u8().await.expect("the answer begins");
        server.signals.send();
        if by_signal {
            server.signals.send();
        }
        let probe = || CompletionRequest {
            prompts: vec![Prompt::Text("abc".to_owned())],
            generation: Generation::default(),
        };
        while !matches!(llm.complete(probe()), Err(LlmError::Stopped)) {
            tokio::task::yield_now().await;
        }
        gate.open();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.expect("the rest");
        assert!(!rest.contains("\"finish_reason\":\"length\""), "{rest}");
        assert!(rest.contains("shutting_down"), "{rest}");
        server.task.await.expect("stopped");
    }
}
