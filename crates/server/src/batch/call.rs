//! A request that comes from inside: through the server's router, without a connection.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::value::RawValue;

pub(crate) use crate::access::Caller;
use crate::error::{ApiError, SHOULD_RETRY};
use crate::gateway::Ticket;

/// Longest answer, in bytes.
const ANSWER_BYTES: usize = 1 << 30;
/// Time to wait before another try where the answer names none, and the longest one, in seconds.
const WAIT_SECONDS: [u64; 2] = [1, 30];

/// The answer to a line.
#[derive(Debug)]
pub(super) enum Answer {
    /// Status and body.
    Whole(u16, Box<RawValue>),
    /// The queue is full: again after this time.
    Later(std::time::Duration),
    /// Nothing is answered any more.
    Stopped(String),
    /// The caller may not ask any more.
    Forbidden(String),
}

/// Asks a route for a caller, who was let in before, under the limits of the ticket.
pub(super) async fn call(
    router: &Router,
    (caller, ticket): (Caller, Arc<Ticket>),
    url: &'static str,
    id: &str,
    body: Vec<u8>,
) -> Answer {
    let request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, body.len())
        .header("x-request-id", id)
        .extension(caller)
        .extension(ticket)
        .body(Body::from(body));
    let request = request.expect("invariant: a known path and plain headers");
    let response = match TowerToHyperService::new(router.clone()).call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status();
    let seconds = response.headers().get(header::RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let [least, most] = WAIT_SECONDS;
    let wait = std::time::Duration::from_secs(seconds.unwrap_or(least).clamp(least, most));
    let is_worth_trying = response.headers().get(SHOULD_RETRY).is_none_or(|value| value != "false");
    let bytes = to_bytes(response.into_body(), ANSWER_BYTES).await;
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    let body = text.and_then(|text| RawValue::from_string(text).ok());
    let Some(body) = body else {
        let error = ApiError::internal("the answer is no JSON, or too long for a batch");
        let body = serde_json::to_string(&error.envelope()).expect("invariant: plain data");
        let body = RawValue::from_string(body).expect("invariant: just written");
        return Answer::Whole(error.status.as_u16(), body);
    };
    match status {
        // A line that will never be let through, or whose model can never be loaded, is answered with
        // its refusal.
        StatusCode::TOO_MANY_REQUESTS if is_worth_trying => Answer::Later(wait),
        StatusCode::SERVICE_UNAVAILABLE if is_final(&body) => Answer::Stopped(message(&body)),
        StatusCode::SERVICE_UNAVAILABLE if is_worth_trying => Answer::Later(wait),
        status => Answer::Whole(status.as_u16(), body),
    }
}

fn field(body: &RawValue, name: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(body.get()).unwrap_or_default();
    value["error"][name].as_str().unwrap_or_default().to_owned()
}

fn is_final(body: &RawValue) -> bool {
    ["shutting_down", "engine_failed"].contains(&field(body, "code").as_str())
}

fn message(body: &RawValue) -> String {
    field(body, "message")
}
