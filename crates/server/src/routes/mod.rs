//! One folder per endpoint: `types` (its JSON), `validate` (checks, which name the bad parameter),
//! `convert` (to and from the types of the library), and the handler.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod health;
mod metrics;
mod models;
mod ready;
mod version;

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;

use crate::error::ApiError;
use crate::state::AppState;
use crate::wire::Body;

/// Routes that are answered at once and for which connections are reserved.
const OPERATOR_PATHS: [&str; 4] = ["/health", "/ready", "/version", "/metrics"];

/// Whether a path is one of those for which connections are reserved.
pub(crate) fn is_for_operators(path: &str) -> bool {
    OPERATOR_PATHS.contains(&path)
}

/// All routes, with errors in JSON for everything else.
pub(crate) fn router(state: AppState) -> Router {
    let cors = state.config().cors_origins.layer();
    Router::new()
        .route("/health", get(health::handle))
        .route("/ready", get(ready::handle))
        .route("/version", get(version::handle))
        .route("/metrics", get(metrics::handle))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/embeddings", post(embeddings::handle))
        .fallback(async |request: Request| ApiError::no_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            ApiError::wrong_method(request.method().as_str(), request.uri().path())
        })
        .layer(axum::middleware::from_fn(catch_panic))
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::access::layer))
        // Before a request with a key, browsers ask without one.
        .layer(cors)
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::host::layer))
        .layer(axum::middleware::from_fn(crate::request_id::layer))
        .with_state(state)
}

/// Turns a panic into an answer; the panic hook has written its message to standard error.
async fn catch_panic(request: Request, next: Next) -> Response {
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answered.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        ApiError::internal("the server failed while answering").into_response()
    })
}

/// Runs work on the bytes of a body (JSON, template, tokenizing) on a thread of its own. For a large
/// body it waits for a turn, and until it ends the body keeps its room.
async fn reading<T: Send + 'static>(
    state: &AppState,
    body: Body,
    work: impl FnOnce(Vec<u8>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = body.turn(state).await;
    blocking(move || {
        let Body { bytes, room } = body;
        // The client may go away meanwhile; room and turn are free only when the work has ended.
        let _held = (room, turn);
        work(bytes)
    })
    .await
}

/// Runs work that may take milliseconds on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    let task = tokio::task::spawn_blocking(move || span.in_scope(work));
    task.await.unwrap_or_else(|_| Err(ApiError::internal("preparing the request failed")))
}

#[cfg(test)]
mod tests {
    use axum::body::Body as HttpBody;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_in_json() {
        let fail = async || -> Response { panic!("on purpose") };
        let app =
            Router::new().route("/fail", get(fail)).layer(axum::middleware::from_fn(catch_panic));
        let request = Request::builder().uri("/fail").body(HttpBody::empty()).expect("a request");
        let answer = TowerToHyperService::new(app).call(request).await.expect("infallible");
        assert_eq!(answer.status(), 500);
        let body = axum::body::to_bytes(answer.into_body(), 1000).await.expect("a body");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["error"]["type"], "server_error");
    }
}
