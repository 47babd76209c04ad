//! The body of a request, as an object of fields.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::state::AppState;

/// A JSON object, read within the body limit.
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
        let body = axum::body::to_bytes(request.into_body(), limit).await;
        let bytes = body.map_err(|error| {
            let is_limit = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
                error.source()
            })
            .any(|cause| cause.to_string().contains("length limit exceeded"));
            if is_limit {
                ApiError::too_large(limit)
            } else {
                ApiError::malformed(format!("the body could not be read: {error}"))
            }
        })?;
        parse(&bytes).map(Self)
    }
}

fn check_media_type(request: &Request) -> Result<(), ApiError> {
    let value = request.headers().get(header::CONTENT_TYPE);
    let text = value.map(|v| v.to_str().unwrap_or("something unreadable"));
    let essence = text.unwrap_or("none").split(';').next().unwrap_or("").trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::media_type(essence)) }
}

fn parse(bytes: &Bytes) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::malformed("the body is JSON but no object")),
        Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
    }
}
