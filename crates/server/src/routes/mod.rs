//! One folder per endpoint: `types` (what is read and written), `validate` (which names the bad
//! parameter), `convert` (to and from the library's words), and the handler.

mod chat;
mod completions;
mod health;
mod models;

use axum::Router;
use axum::extract::Request;
use axum::routing::{get, post};

use crate::error::ApiError;
use crate::state::AppState;

/// All routes, with errors in JSON for everything else.
pub(crate) fn router(state: AppState) -> Router {
    Router::new()
        .route("/health", get(health::handle))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .fallback(async |request: Request| ApiError::no_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            ApiError::wrong_method(request.method().as_str(), request.uri().path())
        })
        .layer(axum::middleware::from_fn(crate::request_id::layer))
        .with_state(state)
}

/// Runs what may take milliseconds (templates, tokenizing) away from the threads that serve.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    let task = tokio::task::spawn_blocking(move || span.in_scope(work));
    task.await.unwrap_or_else(|_| Err(ApiError::internal("preparing the request failed")))
}
