//! `GET /v1/requests/{id}/timeline`: the steps of a request that has ended, as a Chrome trace.

use axum::Json;
use axum::extract::State;

use crate::access::Caller;
use crate::error::ApiError;
use crate::state::AppState;
use crate::timeline::ChromeTrace;
use crate::wire::Id;

/// Shows a request of the caller's own tenant. `id` is its `X-Request-Id`.
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<ChromeTrace>, ApiError> {
    let record = state.timelines().find(caller.tenant, &id);
    let record = record.ok_or_else(|| ApiError::unknown_request(&id))?;
    Ok(Json(ChromeTrace::new(&record, state.metrics().tenant(caller.tenant))))
}
