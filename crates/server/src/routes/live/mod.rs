//! `GET /v1/live`: the server at this moment, once or, with `?stream=true`, once a second.
//!
//! A caller who may see the whole server sees all tenants and the engines; other callers see the
//! requests of their own tenant.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_base::TenantId;

use crate::access::Caller;
use crate::error::ApiError;
use crate::live::Snapshot;
use crate::state::{AppState, Condition};
use crate::wire::json::brief;
use crate::wire::{Parameters, stream, write_event};

/// Time between two snapshots of a stream.
const INTERVAL: Duration = Duration::from_secs(1);

/// Answers without asking an engine to stop for it.
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
    query: Parameters,
) -> Result<Response, ApiError> {
    let only = (!caller.sees_all()).then_some(caller.tenant);
    if !wants_stream(&query)? {
        return Ok(Json(snapshot(&state, only)).into_response());
    }
    Ok(stream(None, async move |outbox| {
        let (mut out, mut ticks) = (Vec::new(), tokio::time::interval(INTERVAL));
        let mut is_last = false;
        // The last snapshot says that the server stops serving.
        while !is_last {
            ticks.tick().await;
            is_last = state.condition() != Condition::Serving;
            write_event(&mut out, None, &snapshot(&state, only));
            outbox.give(&mut out).await;
        }
    }))
}

fn snapshot(state: &AppState, only: Option<TenantId>) -> Snapshot {
    state.live().snapshot(state.condition(), &state.models().loaded(), only)
}

/// Reads the query, which has at most the parameter `stream`.
fn wants_stream(query: &Parameters) -> Result<bool, ApiError> {
    let mut wants = false;
    for (name, value) in query.iter() {
        if name != "stream" {
            return Err(Parameters::unknown(name, "stream"));
        }
        wants = match value {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => {
                let message = format!("`stream` must be true or false, got `{}`", brief(value));
                return Err(ApiError::param("stream", message));
            }
        };
    }
    Ok(wants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_stream_or_is_refused_by_name() {
        let wants_stream = |query| Parameters::parse(query).and_then(|query| wants_stream(&query));
        for (query, expected) in
            [("", false), ("stream=true", true), ("stream=1", true), ("stream=false&", false)]
        {
            assert_eq!(wants_stream(query), Ok(expected), "{query}");
        }
        for (query, param) in
            [("strem=true", "strem"), ("stream=yes", "stream"), ("stream=1&stream=1", "stream")]
        {
            let error = wants_stream(query).expect_err(query);
            assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some(param)));
        }
    }
}
