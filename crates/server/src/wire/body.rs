//! The body of a request, as an object of fields.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::StreamExt;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::state::AppState;

/// A JSON object, read within the limits of size and time.
pub(crate) struct JsonObject(pub(crate) Map<String, Value>);

impl FromRequest<AppState> for JsonObject {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let limit = state.config().max_body_bytes;
        check_media_type(&request)?;
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|n| n > limit as u64) {
            return Err(ApiError::too_large(limit));
        }
        let reading = read(request.into_body(), limit);
        let body_timeout = state.config().body_timeout;
        let bytes = tokio::time::timeout(body_timeout, reading)
            .await
            .unwrap_or_else(|_| Err(ApiError::too_slow(body_timeout)))?;
        parse(&bytes).map(Self)
    }
}

/// Reads a body of at most `limit` bytes, whether or not its length was announced.
async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece
            .map_err(|error| ApiError::malformed(format!("the body could not be read: {error}")))?;
        if piece.len() > limit - bytes.len() {
            return Err(ApiError::too_large(limit));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn check_media_type(request: &Request) -> Result<(), ApiError> {
    let value = request.headers().get(header::CONTENT_TYPE);
    let text = value.map(|v| v.to_str().unwrap_or("something unreadable"));
    let essence = text.unwrap_or("none").split(';').next().unwrap_or("").trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::media_type(essence)) }
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::malformed("the body is JSON but no object")),
        Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
    }
}
