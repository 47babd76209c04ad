//! `GET /version`.

use axum::Json;

/// Name and version of this server.
#[derive(serde::Serialize)]
pub(crate) struct Version {
    version: &'static str,
}

/// The version of this build.
pub(crate) async fn handle() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
