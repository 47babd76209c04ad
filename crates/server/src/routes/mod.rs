//! One folder per endpoint: `types` (its JSON), `validate` (checks, which name the bad parameter),
//! `convert` (to and from the types of the library), and the handler.

pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod completions;
mod conversation;
pub(crate) mod embeddings;
mod files;
mod health;
mod live;
pub(crate) mod messages;
mod metrics;
pub(crate) mod models;
mod openapi;
mod page;
mod ready;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod score;
mod table;
mod timeline;
pub(crate) mod tokens;
mod usage;
mod vectors;
mod version;

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use crate::error::ApiError;
use crate::state::AppState;
use crate::wire::Body;
use crate::wire::lenient::{self, Lenience};
use crate::wire::routed;

pub use responses::ResponsesConfig;
pub(crate) use table::{ROUTES, Route, need};

/// Routes that are answered at once and for which connections are reserved.
const OPERATOR_PATHS: [&str; 4] = ["/health", "/ready", "/version", "/metrics"];

/// Whether a path is one of those for which connections are reserved.
pub(crate) fn is_for_operators(path: &str) -> bool {
    OPERATOR_PATHS.contains(&path)
}

/// All routes, with errors in JSON for everything else.
pub(crate) fn router(state: AppState) -> Router {
    let cors = state.config().cors_origins.layer();
    table::routed()
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn(catch_panic))
        .layer(axum::middleware::from_fn_with_state(state.clone(), lenient::layer))
        .layer(axum::middleware::from_fn(routed::layer))
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::access::layer))
        // Before a request with a key, browsers ask without one.
        .layer(cors)
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::host::layer))
        .layer(axum::middleware::from_fn(messages::envelope::layer))
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::metrics::layer))
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::otlp::layer))
        .layer(axum::middleware::from_fn(crate::request_id::layer))
        .with_state(state)
}

/// The routes without the layers around them, for requests from inside: their callers were let in
/// before, so each carries a [`Caller`](crate::access::Caller).
pub(crate) fn inner(state: AppState) -> Router {
    table::routed()
        .fallback(no_route)
        .layer(axum::middleware::from_fn(catch_panic))
        .layer(axum::middleware::from_fn_with_state(state.clone(), crate::otlp::layer))
        .with_state(state)
}

async fn no_route(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::no_route(path, table::meant(path))
}

async fn wrong_method(request: Request) -> ApiError {
    let matched = request.extensions().get::<MatchedPath>();
    let methods = table::methods(matched.map_or("", MatchedPath::as_str));
    ApiError::wrong_method(request.method().as_str(), request.uri().path(), &methods)
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
    let lenience = Lenience::of_request();
    blocking(move || {
        let Body { bytes, room } = body;
        // The client may go away meanwhile; room and turn are free only when the work has ended.
        let _held = (room, turn);
        match lenience {
            Some(lenience) => lenience.read(|| work(bytes)),
            None => work(bytes),
        }
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
mod rights;

#[cfg(test)]
mod tests {
    use axum::body::Body as HttpBody;
    use axum::routing::get;
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
