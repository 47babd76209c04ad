//! Clients: one request each, and the way in which they read the answer.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use pelton_sim::Random;
use serde_json::{Value, json};

use super::fake::VOCAB;
use super::one_in;

/// Tokens that no fault is tied to.
const N_PLAIN: u64 = VOCAB as u64 - 3;

/// A client's request and its manners.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) body: Value,
    pub(super) is_stream: bool,
    /// Pieces of the answer after which the client goes away.
    leaves_after: Option<u64>,
    /// Time for which it reads nothing after its first piece.
    stalls: Option<Duration>,
}

impl Plan {
    pub(super) fn of(random: &mut Random) -> Self {
        let n_prompt = 1 + random.below(30);
        // Few prompts, so that some share a prefix.
        let start = random.below(3);
        let prompt: Vec<u64> = (0..n_prompt).map(|i| (start + i * 5) % N_PLAIN).collect();
        let is_stream = one_in(random, 2);
        let n = 1 + random.below(3) / 2;
        let mut body = json!({
            "prompt": prompt,
            "max_tokens": 1 + random.below(24),
            "temperature": random.below(3) as f64 / 2.0,
            "seed": random.below(5),
            "n": n,
            "stream": is_stream,
            "priority": random.below(3),
        });
        if one_in(random, 6) {
            body["stop"] = json!(["c"]);
        }
        if one_in(random, 6) {
            body["logprobs"] = json!(2);
        }
        let leaves_after = one_in(random, 5).then(|| random.below(6));
        let stalls = one_in(random, 8).then(|| Duration::from_secs(random.below(300)));
        Self { body, is_stream, leaves_after, stalls }
    }
}

impl Plan {
    /// The same request of a client that waits for the whole answer.
    pub(super) fn undisturbed(&self) -> Self {
        Self { leaves_after: None, stalls: None, ..self.clone() }
    }
}

/// The end of a request, as its client saw it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Texts of all choices, and why each ended.
    Answer(Vec<(String, String)>),
    /// Status and code, the status of a stream that broke off being 200.
    Error(u16, String),
    /// The client went away.
    Left,
}

/// One request to a route without a body.
pub(super) async fn get(router: Router, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path).header(header::HOST, "localhost").body(Body::empty());
    let request = request.expect("a request");
    let Ok(answer) = TowerToHyperService::new(router).call(request).await;
    let status = answer.status();
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Sends a request and reads its answer as the plan says.
pub(super) async fn ask(router: Router, plan: Plan) -> End {
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::HOST, "localhost")
        .body(Body::from(plan.body.to_string()))
        .expect("a request");
    let answering = TowerToHyperService::new(router).call(request);
    let leaves_at_once = plan.leaves_after == Some(0);
    let answer = tokio::select! {
        biased;
        Ok(answer) = answering => answer,
        () = tokio::time::sleep(Duration::from_millis(1)), if leaves_at_once => return End::Left,
    };
    let status = answer.status();
    let mut pieces = answer.into_body().into_data_stream();
    let (mut bytes, mut n_pieces) = (Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.expect("a body does not break"));
        n_pieces += 1;
        if plan.leaves_after == Some(n_pieces) && status == StatusCode::OK {
            return End::Left;
        }
        if let Some(time) = plan.stalls.filter(|_| n_pieces == 1) {
            tokio::time::sleep(time).await;
        }
    }
    let text = String::from_utf8(bytes).expect("UTF-8");
    if status != StatusCode::OK || !plan.is_stream {
        return whole(status, &text);
    }
    let n = plan.body["n"].as_u64().expect("asked") as usize;
    streamed(n, &text)
}

fn code_of(body: &Value) -> String {
    let error = &body["error"];
    assert!(error["message"].is_string(), "{body}");
    error["code"].as_str().unwrap_or("none").to_owned()
}

fn whole(status: StatusCode, text: &str) -> End {
    let body: Value = serde_json::from_str(text).expect("JSON");
    if status != StatusCode::OK {
        return End::Error(status.as_u16(), code_of(&body));
    }
    let choices = body["choices"].as_array().expect("choices");
    let text = |choice: &Value, name: &str| choice[name].as_str().expect("text").to_owned();
    End::Answer(choices.iter().map(|it| (text(it, "text"), text(it, "finish_reason"))).collect())
}

fn streamed(n: usize, text: &str) -> End {
    let mut lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(lines.pop(), Some("[DONE]"), "a stream has one end: {text}");
    let mut choices = vec![(String::new(), None); n];
    for line in lines {
        let chunk: Value = serde_json::from_str(line).expect("JSON");
        if !chunk["error"].is_null() {
            return End::Error(200, code_of(&chunk));
        }
        for choice in chunk["choices"].as_array().expect("choices") {
            let (text, finish) = &mut choices[choice["index"].as_u64().expect("index") as usize];
            assert!(finish.is_none(), "nothing comes after the end of a choice: {line}");
            text.push_str(choice["text"].as_str().expect("text"));
            *finish = choice["finish_reason"].as_str().map(str::to_owned);
        }
    }
    End::Answer(choices.into_iter().map(|(text, end)| (text, end.expect("an end"))).collect())
}
