//! One request, from sending to its last event.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use pelton_sim::trace::TraceRequest;
use serde_json::Value;

use super::client::Client;
use super::events::{Events, Said, Usage, message, read};
use super::report::Trouble;
use crate::pace::since;

/// Longest body of an error that is read, in bytes.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// How a request ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) request: TraceRequest,
    /// When it was sent, in nanoseconds from the start, as the other times.
    pub(super) sent_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) outcome: Outcome,
}

/// The parts of an answer that came back.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(Answer),
    /// The server has no place now: status 429 or 503.
    Refused(StatusCode),
    Failed(Trouble),
}

/// A whole answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    /// Times between events with text.
    pub(super) gaps_ns: Vec<u64>,
    /// Events with text.
    pub(super) n_events: u32,
    pub(super) usage: Option<Usage>,
    finish: Option<String>,
    is_done: bool,
}

impl Answer {
    fn take(&mut self, said: Said, now_ns: u64) {
        if said.has_text {
            match self.first_ns {
                None => self.first_ns = Some(now_ns),
                Some(_) => self.gaps_ns.push(now_ns - self.last_ns),
            }
            self.last_ns = now_ns;
            self.n_events += 1;
        }
        self.usage = said.usage.or(self.usage);
        self.finish = said.finish.or(self.finish.take());
    }
}

/// Sends a request and reads its answer; `started` is the moment that all times count from.
pub(super) async fn follow(
    client: Client,
    route: &'static str,
    body: String,
    request: TraceRequest,
    (started, timeout): (Instant, Duration),
) -> Ended {
    let sent_ns = since(started, Instant::now());
    let asked = tokio::time::timeout(timeout, ask(&client, route, &body, started)).await;
    let outcome = match asked {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(trouble)) => Outcome::Failed(trouble),
        Err(_) => {
            let why = format!("no end after {} s", timeout.as_secs());
            Outcome::Failed(Trouble::new("timed out", why))
        }
    };
    Ended { request, sent_ns, ended_ns: since(started, Instant::now()), outcome }
}

async fn ask(
    client: &Client,
    route: &str,
    body: &str,
    started: Instant,
) -> Result<Outcome, Trouble> {
    let (response, connection) = client.send(route, Some(body)).await?;
    let status = response.status();
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return Ok(Outcome::Refused(status));
    }
    if status != StatusCode::OK {
        let kind = format!("status {}", status.as_u16());
        return Err(Trouble::new(kind, error_text(response).await));
    }
    let answer = read_answer(response, started).await?;
    connection.give_back();
    Ok(Outcome::Answered(answer))
}

async fn read_answer(response: Response<Incoming>, started: Instant) -> Result<Answer, Trouble> {
    let mut body = response.into_body();
    let (mut events, mut answer) = (Events::default(), Answer::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Trouble::new("stream cut off", error.to_string()))?;
        let Ok(bytes) = frame.into_data() else { continue };
        let now_ns = since(started, Instant::now());
        events.push(&bytes, |data| {
            if data == b"[DONE]" {
                answer.is_done = true;
            } else {
                answer.take(read(data)?, now_ns);
            }
            Ok(())
        })?;
    }
    if !answer.is_done && answer.finish.is_none() {
        return Err(Trouble::new("stream ended early", "neither a finish_reason nor [DONE] came"));
    }
    Ok(answer)
}

/// The message of an error, or the begin of its body.
async fn error_text(response: Response<Incoming>) -> String {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        bytes.extend_from_slice(&data);
        if bytes.len() > MOST_ERROR_BYTES {
            break;
        }
    }
    let value = serde_json::from_slice::<Value>(&bytes).ok();
    match value.as_ref().and_then(|value| value.get("error")) {
        Some(error) => message(error),
        None => message(&Value::String(String::from_utf8_lossy(&bytes).into_owned())),
    }
}
