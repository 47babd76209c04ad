//! `GET /openapi.json`: the document that describes every route. It says nothing about this server
//! but its version, so it needs no key.

use axum::http::header;
use axum::response::IntoResponse;

/// Answers with the document.
pub(crate) async fn handle() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], crate::openapi::openapi())
}
