//! `GET /version`.

use axum::Json;

/// Which Pelton this is.
#[derive(serde::Serialize)]
pub(crate) struct Version {
    version: &'static str,
}

/// The version of this build.
pub(crate) async fn handle() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
