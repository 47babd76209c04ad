//! Errors as clients read them; the one place where a status code is chosen.

use std::fmt::Write as _;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pelton_base::FinishReason;
use pelton_gateway::KeyProblem;
use pelton_llm::{Finish, LlmError, NotAdmitted, Overload};

use crate::wire::json::brief;

/// Seconds after which a refused client may try again, where no better estimate is known.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Header by which a refusal says `false` where the same request will never be accepted.
pub(crate) const SHOULD_RETRY: &str = "x-should-retry";

/// An answer `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: ErrorBody,
    /// Seconds after which the same request may be accepted.
    retry_after: Option<u64>,
    /// Whether the same request will never be accepted, so that clients should not try again.
    is_final: bool,
}

/// Reason of a refusal, attached to the response for the metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused(pub(crate) &'static str);

/// An error on its answer, for dialects that write errors in another form.
#[derive(Clone, Debug)]
pub(crate) struct Noted(pub(crate) ErrorBody);

/// The object inside `error`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct ErrorBody {
    pub(crate) message: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

/// The object around an error, alone in a body or in a stream.
#[derive(serde::Serialize)]
pub(crate) struct ErrorEnvelope<'a> {
    pub(crate) error: &'a ErrorBody,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let body = ErrorBody { message: message.into(), kind, param: None, code: None };
        Self { status, body, retry_after: None, is_final: false }
    }

    /// A request that cannot be read at all.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A parameter whose value is not accepted.
    pub(crate) fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::malformed(message);
        error.body.param = Some(param.into());
        error
    }

    /// A parameter that other servers know and this server does not honour.
    pub(crate) fn unsupported(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported by this server yet; leave it out");
        Self::param(param, message).code("unsupported_parameter")
    }

    pub(crate) fn unknown_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let name = brief(name);
        let mut message = format!("the model `{name}` does not exist; this server serves ");
        for (i, known) in known.enumerate() {
            let _ = write!(message, "{}`{known}`", if i > 0 { ", " } else { "" });
        }
        let mut error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        error.body.param = Some("model".to_owned());
        error.code("model_not_found")
    }

    /// A request whose token ids are those of one tokenizer, and whose model rules would choose.
    pub(crate) fn auto_with_token_ids() -> Self {
        let message = "the request holds token ids, which mean something else to another model's tokenizer: \
                       name the model instead of `auto`";
        Self::param("model", message)
    }

    /// A model that many requests wait for.
    pub(crate) fn model_loading(name: &str) -> Self {
        let message = format!("the model `{name}` is being loaded, and many requests wait for it");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            .code("model_loading")
    }

    /// A model that could not be loaded; with `is_final` it never can.
    pub(crate) fn model_not_loaded(name: &str, why: &str, is_final: bool) -> Self {
        let message = format!("the model `{name}` cannot be loaded: {why}");
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message);
        Self { is_final, ..error.code("model_not_loaded") }
    }

    /// A model that is to be loaded anew and was given to the server loaded.
    pub(crate) fn model_is_fixed(name: &str) -> Self {
        let message = format!("the model `{name}` was given to this server loaded, and stays so");
        Self::param("model", message).code("model_is_fixed")
    }

    /// A response that is not stored, or not for this tenant.
    pub(crate) fn no_response(id: &str) -> Self {
        let id = brief(id);
        let message = format!(
            "there is no stored response `{id}`: it was not stored, was removed, or its time is over"
        );
        let mut error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        error.body.param = Some("response_id".to_owned());
        error.code("response_not_found")
    }

    /// The same for the response that a new one goes on from.
    pub(crate) fn no_previous_response(id: &str) -> Self {
        let mut error = Self::no_response(id);
        error.body.message = format!("`previous_response_id`: {}", error.body.message);
        error.status = StatusCode::BAD_REQUEST;
        error.body.param = Some("previous_response_id".to_owned());
        error.code("previous_response_not_found")
    }

    /// Responses that grow in the background take all the room there is.
    pub(crate) fn responses_full() -> Self {
        let message = "there is no room for one more response in the background; try again when \
                       others have ended";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("responses_memory_full")
    }

    /// A model that is served for another kind of request.
    pub(crate) fn wrong_model(message: String) -> Self {
        Self::param("model", message).code("model_not_supported")
    }

    /// A request whose timeline is not kept, or that is another tenant's.
    pub(crate) fn unknown_request(id: &str) -> Self {
        let message = format!(
            "no timeline of a request `{}` is kept: it may be running, too old, or another tenant's",
            brief(id)
        );
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("request_not_found")
    }

    /// A path without a route; `meant` is that of a route which has more or less of a base URL.
    pub(crate) fn no_route(path: &str, meant: Option<&str>) -> Self {
        let mut message = format!("there is nothing at {}", brief(path));
        if let Some(meant) = meant {
            let asked = path.trim_end_matches('/');
            let _ = match (meant.strip_suffix(asked), asked.strip_suffix(meant)) {
                (Some(more), _) if !more.is_empty() => {
                    write!(message, "; a base URL that ends in {more} leads to {meant}")
                }
                (_, Some(less)) if !less.is_empty() => {
                    let less = brief(less);
                    write!(message, "; a base URL without {less} at its end leads to {meant}")
                }
                _ => write!(message, "; did you mean {meant}?"),
            };
        }
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    /// A file or batch that is not there, or is another tenant's.
    pub(crate) fn no_such(what: &str, id: &str) -> Self {
        let message = format!("there is no {what} `{}`", brief(id));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    /// There is no room for a file.
    pub(crate) fn no_room(message: String) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "server_error", message).code("storage_full")
    }

    /// A path that has routes for `methods` alone.
    pub(crate) fn wrong_method(method: &str, path: &str, methods: &[&str]) -> Self {
        let mut message = format!("{} does not answer to {method}", brief(path));
        for (i, method) in methods.iter().enumerate() {
            let _ = write!(message, "{} {method}", if i > 0 { " and" } else { ", but to" });
        }
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
            .code("method_not_allowed")
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
            .code("body_too_large")
    }

    /// The body did not arrive in time.
    pub(crate) fn too_slow(limit: std::time::Duration) -> Self {
        let message = format!("the body did not arrive within {} s", limit.as_secs_f32());
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
            .code("body_too_slow")
    }

    /// The body arrived slowly, and others waited for its room.
    pub(crate) fn in_the_way() -> Self {
        let message = "the body arrived at less than 1 MiB per second while other bodies waited";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
            .code("body_too_slow")
    }

    pub(crate) fn media_type(found: &str) -> Self {
        let message = format!("expected Content-Type application/json, got {}", brief(found));
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// A request whose `Host` is missing, doubled or malformed.
    pub(crate) fn bad_host(message: &str) -> Self {
        Self::malformed(message).code("invalid_host")
    }

    /// A request in the clear where HTTPS is spoken.
    pub(crate) fn needs_https() -> Self {
        let message = "this port speaks HTTPS: ask for https:// in place of http://";
        Self::malformed(message).code("https_required")
    }

    /// A request that came under a name which is not one of the server's.
    pub(crate) fn host_not_allowed(host: &str) -> Self {
        let message = format!(
            "this server does not answer to the host `{host}`; `--allowed-host {host}` allows it"
        );
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code("host_not_allowed")
    }

    /// A body in a form that this server cannot read.
    pub(crate) fn transfer_coding() -> Self {
        let message = "expected the Transfer-Encoding `chunked`, and no other";
        Self::new(StatusCode::NOT_IMPLEMENTED, "invalid_request_error", message)
            .code("unsupported_transfer_encoding")
    }

    /// More requests at once than there are connections for users.
    pub(crate) fn too_many_requests() -> Self {
        let message = "too many requests are being answered; try again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            .code("too_many_connections")
    }

    /// A body that is compressed, or encoded in another way.
    pub(crate) fn encoding(found: &str) -> Self {
        let message = format!("expected no Content-Encoding, or identity; got {}", brief(found));
        let mut error =
            Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
        error.body.param = Some("Content-Encoding".to_owned());
        error.code("unsupported_content_encoding")
    }

    /// Too many large bodies arrive at once.
    pub(crate) fn crowded() -> Self {
        let message = "too many large bodies arrive at once; try again, or send a smaller one";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("too_many_large_bodies")
    }

    /// A request without the key that it needs.
    pub(crate) fn no_key() -> Self {
        let message = "this server needs an API key: send `Authorization: Bearer KEY` or \
                       `X-Api-Key: KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
            .code("missing_api_key")
    }

    /// A key that belongs to no tenant.
    pub(crate) fn wrong_key() -> Self {
        let message = "the API key is not known to this server";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
            .code("invalid_api_key")
    }

    /// A key that does not have the right.
    pub(crate) fn lacks_scope(scope: &str) -> Self {
        let message = format!("this route needs an API key with the scope `{scope}`");
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code("missing_scope")
    }

    /// A key that opens nothing any more.
    pub(crate) fn dead_key(problem: &KeyProblem) -> Self {
        let code = match problem {
            KeyProblem::Expired(_) => "expired_api_key",
            KeyProblem::Revoked(_) => "revoked_api_key",
        };
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", problem.to_string()).code(code)
    }

    /// More keys with slow hashes are sent than can be checked.
    pub(crate) fn too_many_key_checks() -> Self {
        let message = "too many API keys are being checked; try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("too_many_key_checks")
    }

    /// A request with a quota while usage cannot be written.
    pub(crate) fn usage_unavailable(why: &str) -> Self {
        tracing::debug!(why, "a request with a quota is refused");
        let message = "usage cannot be written down at the moment, and this API key or its tenant \
                       has a quota of tokens; try again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            .code("usage_unavailable")
    }

    /// The server is going away.
    pub(crate) fn draining() -> Self {
        let message = "the server is shutting down and accepts no new requests";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            .code("shutting_down")
    }

    /// The engine panicked twice; the process is about to end.
    pub(crate) fn engine_failed() -> Self {
        let message = "the engine has failed and this server is ending; ask another one, or this \
                       one after it was started anew";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            .code("engine_failed")
    }

    /// The computation of an answer failed.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// An answer that ended without being finished.
    pub(crate) fn unfinished(finish: &Finish) -> Self {
        match (finish.reason, &finish.fault) {
            (FinishReason::Aborted, _) => Self::draining(),
            (_, Some(fault)) if fault.is_of_request() => {
                Self::malformed(fault.to_string()).code("no_allowed_token")
            }
            (_, Some(fault)) => Self::internal(fault.to_string()),
            _ => Self::internal("computing the answer failed"),
        }
    }

    fn code(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    pub(crate) fn envelope(&self) -> ErrorEnvelope<'_> {
        ErrorEnvelope { error: &self.body }
    }
}

impl From<NotAdmitted> for ApiError {
    fn from(refusal: NotAdmitted) -> Self {
        let retry_after = refusal.retry_after_seconds();
        let NotAdmitted { why, code, is_fault, .. } = refusal;
        let (status, kind) = match is_fault {
            true => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable"),
            false => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
        };
        let mut error = Self::new(status, kind, why).code(code);
        (error.retry_after, error.is_final) = (retry_after, retry_after.is_none());
        error
    }
}

impl From<LlmError> for ApiError {
    fn from(error: LlmError) -> Self {
        let message = error.to_string();
        match &error {
            LlmError::Refused { overload, .. } => {
                let mut refused =
                    Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
                refused.retry_after = error.retry_after_seconds();
                refused.is_final = refused.retry_after.is_none();
                refused.code(match overload {
                    Overload::TenantQueue => "tenant_queue_full",
                    Overload::Deadline => "deadline_unreachable",
                    _ => "rate_limit_exceeded",
                })
            }
            LlmError::NotAdmitted(refusal) => refusal.clone().into(),
            LlmError::Stopped => Self::draining(),
            LlmError::Failed => Self::engine_failed(),
            LlmError::InputTooLong { .. } => {
                Self::param("input", message).code("context_length_exceeded")
            }
            LlmError::ContextLength { .. }
            | LlmError::SourceLength { .. }
            | LlmError::Text(pelton_text::TextError::TooManyTokens { .. }) => {
                Self::param("prompt", message).code("context_length_exceeded")
            }
            LlmError::Pair { param, is_too_long, .. } => {
                let error = Self::param(param.as_str(), message);
                if *is_too_long { error.code("context_length_exceeded") } else { error }
            }
            LlmError::WrongTask { .. } => Self::wrong_model(message),
            LlmError::NoGap => Self::param("suffix", message).code("unsupported_parameter"),
            LlmError::Form { path, .. } if path.is_empty() => Self::malformed(message),
            LlmError::Form { path, .. } => Self::param(path.as_str(), message),
            LlmError::Text(pelton_text::TextError::Panicked { .. }) => Self::internal(message),
            LlmError::Unacceptable { .. } | LlmError::Text(_) => Self::malformed(message),
            _ => match error.param() {
                Some(param) => Self::param(param, message),
                None => Self::internal(message),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.envelope())).into_response();
        let headers = response.headers_mut();
        if self.is_final {
            // The clients of OpenAI and Anthropic heed it.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        } else if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            let seconds = self.retry_after.unwrap_or(RETRY_AFTER_SECONDS);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"pelton\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        let is_last = matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::NOT_IMPLEMENTED
        ) || matches!(self.body.code, Some("invalid_host" | "too_many_connections"));
        if is_last {
            // The rest of the request is not read, or not trusted, so the connection ends.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let is_refusal = matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::UNAUTHORIZED
        );
        if let Some(code) = self.body.code.filter(|_| is_refusal) {
            response.extensions_mut().insert(Refused(code));
        }
        response.extensions_mut().insert(Noted(self.body));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_tells_its_code_and_when_to_try_again() {
        for (overload, code) in [
            (Overload::Queue, "rate_limit_exceeded"),
            (Overload::TenantQueue, "tenant_queue_full"),
            (Overload::Deadline, "deadline_unreachable"),
        ] {
            let retry_after = Duration::from_millis(4100);
            let why = "full".to_owned();
            let error = LlmError::Refused { overload, why, retry_after: Some(retry_after) };
            let error = ApiError::from(error);
            assert_eq!((error.body.kind, error.body.code), ("rate_limit_error", Some(code)));
            let response = error.into_response();
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()[header::RETRY_AFTER], "5");
            let refused = response.extensions().get::<Refused>().expect("it is counted");
            assert_eq!(refused.0, code);
        }
    }

    #[test]
    fn a_request_that_is_not_let_in_may_come_again_after_whole_seconds() {
        let refused = |wait_ms: u64, is_fault| {
            let retry_after = Some(Duration::from_millis(wait_ms));
            let why = "two requests a minute".to_owned();
            ApiError::from(NotAdmitted { why, code: "limit", retry_after, is_fault })
                .into_response()
        };
        for (wait_ms, seconds) in [(0, "1"), (10, "1"), (4000, "4"), (4001, "5")] {
            let response = refused(wait_ms, false);
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()[header::RETRY_AFTER], seconds, "{wait_ms} ms");
        }
        assert_eq!(refused(10, true).status(), 503, "the server is at fault");
    }

    #[test]
    fn an_answer_that_panicked_says_so() {
        let (part, message) = ("the detokenizer", "index out of bounds".to_owned());
        let fault = Some(pelton_llm::Panicked { part, message }.into());
        let (reason, usage) = (FinishReason::Error, Default::default());
        let error = ApiError::unfinished(&Finish { fault, ..Finish::new(reason, usage) });
        assert_eq!((error.status.as_u16(), error.body.kind), (500, "server_error"));
        for word in ["bug in Pelton", "the detokenizer", "index out of bounds"] {
            assert!(error.body.message.contains(word), "{}", error.body.message);
        }
    }

    #[test]
    fn a_missing_key_is_asked_for() {
        let response = ApiError::no_key().into_response();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer realm=\"pelton\"");
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }
}
