//! Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"},
//! "request_id"}`.
//!
//! Most errors are made where nothing knows the dialect: by the layers, by the router, while a body
//! arrives. So an error leaves a note on its answer, and the last layer writes it anew.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::{ApiError, Noted};
use crate::routes::models::anthropic;

/// The name of a request, in the header that Anthropic's clients read.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Beginning of the paths of this dialect.
const PATH: &str = "/v1/messages";
/// Beginning of the paths that it shares with OpenAI's.
const SHARED_PATH: &str = "/v1/models";

/// The object around an error, alone in a body or in a stream.
#[derive(Debug, Serialize)]
pub(crate) struct Failure<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: Body<'a>,
    request_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

impl<'a> Failure<'a> {
    pub(crate) fn new(error: &'a ApiError, request_id: Option<&'a str>) -> Self {
        Self::of(error.status, &error.body.message, request_id)
    }

    fn of(status: StatusCode, message: &'a str, request_id: Option<&'a str>) -> Self {
        Self { kind: "error", error: Body { kind: kind_of(status), message }, request_id }
    }
}

/// The kind of an error by its status.
fn kind_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Whether a path belongs to this dialect.
fn is_here(path: &str) -> bool {
    is_below(PATH, path)
}

fn is_below(beginning: &str, path: &str) -> bool {
    path.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Writes errors of this dialect's paths in its form, and names the request in its header.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_shared = is_below(SHARED_PATH, path) && anthropic::asks(request.headers());
    if !is_here(path) && !is_shared {
        return next.run(request).await;
    }
    let id = request.headers().get("x-request-id").cloned();
    translate(next.run(request).await, id)
}

/// The same for an answer that comes from outside of the layers.
pub(crate) fn of_path(path: &str, response: Response) -> Response {
    if is_here(path) { translate(response, None) } else { response }
}

fn translate(mut response: Response, id: Option<HeaderValue>) -> Response {
    if let Some(Noted(error)) = response.extensions_mut().remove() {
        let text = id.as_ref().and_then(|id| id.to_str().ok());
        let body = Json(Failure::of(response.status(), &error.message, text)).into_response();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = body.into_body();
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}
