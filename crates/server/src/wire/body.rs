//! The bytes of a body, within the limits of size and time.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use tokio::time::{Duration, Instant, timeout, timeout_at};

use crate::access::Caller;
use crate::error::ApiError;
use crate::intake::{Room, Turn};
use crate::limits::SMALL_BODY_BYTES;
use crate::state::AppState;

/// Time between two looks at a body that does not arrive.
const TICK: Duration = Duration::from_millis(500);

/// A body that is not read as JSON yet.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    /// Where it is large: the room that it takes.
    pub(crate) room: Option<Room>,
}

impl Body {
    /// Waits for a turn, if the body is large.
    pub(crate) async fn turn(&self, state: &AppState) -> Option<Turn> {
        match self.room {
            Some(_) => Some(state.intake().turn().await),
            None => None,
        }
    }
}

impl FromRequest<AppState> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let limit = state.config().max_body_bytes;
        check_media_type(request.headers())?;
        check_encoding(request.headers())?;
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|n| n > limit as u64) {
            return Err(ApiError::too_large(limit));
        }
        let largest = announced.and_then(|n| usize::try_from(n).ok()).unwrap_or(limit);
        let body = Self { bytes: Vec::new(), room: None };
        body.receive(request, state, largest).await
    }
}

impl Body {
    /// Receives at most `largest` bytes, whether or not their number was announced.
    async fn receive(
        mut self,
        request: Request,
        state: &AppState,
        largest: usize,
    ) -> Result<Self, ApiError> {
        let caller: Caller = *request.extensions().get().expect("invariant: the layer set it");
        let body_timeout = state.config().body_timeout;
        let mut deadline = Instant::now() + body_timeout;
        let mut pieces = request.into_body().into_data_stream();
        loop {
            let next = timeout_at(deadline.min(Instant::now() + TICK), pieces.next()).await;
            let is_in_the_way = self
                .room
                .as_ref()
                .is_some_and(|room| state.intake().is_too_slow(room, self.bytes.len()));
            let piece = match next {
                Ok(None) => return Ok(self),
                _ if is_in_the_way => return Err(ApiError::in_the_way()),
                _ if Instant::now() >= deadline => return Err(ApiError::too_slow(body_timeout)),
                Err(_) => continue,
                Ok(Some(piece)) => piece.map_err(|error| {
                    ApiError::malformed(format!("the body could not be read: {error}"))
                })?,
            };
            if piece.len() > largest - self.bytes.len() {
                return Err(ApiError::too_large(largest));
            }
            if self.room.is_none() && self.bytes.len() + piece.len() > SMALL_BODY_BYTES {
                let asked = Instant::now();
                let room = state.intake().room(caller.tenant, largest);
                let room = timeout(body_timeout, room).await;
                self.room = Some(room.map_err(|_| ApiError::crowded())?);
                // The client is not to blame for this wait.
                deadline += asked.elapsed();
                self.bytes.reserve_exact(largest - self.bytes.len());
            }
            self.bytes.extend_from_slice(&piece);
        }
    }
}

/// Accepts JSON, and what `curl -d` calls its body without a header of the user's.
///
/// A form from a web page is refused: a browser sends it anywhere, without asking the server first,
/// and with its `Origin`.
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE);
    let text = value.map(|v| v.to_str().unwrap_or("something unreadable"));
    let essence = text.unwrap_or("none").split(';').next().unwrap_or("").trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    let is_curl = essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
        && !headers.contains_key(header::ORIGIN);
    if is_json || is_curl { Ok(()) } else { Err(ApiError::media_type(essence)) }
}

/// Refuses a body that is compressed, or encoded in another way.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
    match values.find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Some(value) => Err(ApiError::encoding(&String::from_utf8_lossy(value.as_bytes()))),
        None => Ok(()),
    }
}
