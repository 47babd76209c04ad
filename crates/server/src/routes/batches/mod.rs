//! `/v1/batches`: files of requests that are answered in the background.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::files::PageQuery;
use crate::access::Caller;
use crate::batch::URLS;
use crate::error::ApiError;
use crate::files::{BatchRecord, BatchStatus, Batches, Purpose};
use crate::state::{AppState, Running};
use crate::wire::json::{self, wrong};
use crate::wire::{Body, Fields, Id, Parameters, metadata, unix_seconds};

/// Entries of a page of a list, where the client does not say.
const PAGE: usize = 20;
/// Longest window of a batch, in hours.
const MOST_HOURS: u64 = 24 * 30;

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    read(bytes).map(drop)
}

/// Begins a batch.
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let app = state.clone();
    let tenant = state.tenant_name(caller).to_owned();
    let key = running.ticket().map(|ticket| ticket.key().to_owned()).unwrap_or_default();
    let batch = super::reading(&state, body, move |bytes| {
        let batch = BatchRecord { tenant, key, ..read(&bytes)? };
        let found = app.files().file(&batch.tenant, &batch.input_file_id);
        let (file, _) = found.ok_or_else(|| {
            let message = format!("there is no file `{}`", json::brief(&batch.input_file_id));
            ApiError::param("input_file_id", message)
        })?;
        if file.purpose != Purpose::Batch {
            let message = format!("the purpose of `{}` is not `batch`", file.id);
            return Err(ApiError::param("input_file_id", message));
        }
        app.files().add_batch(batch.clone())?;
        Ok(batch)
    })
    .await?;
    let shown = batch.shown();
    Batches::start(&state, batch, caller);
    Ok(Json(shown).into_response())
}

/// The batches of the caller.
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    query: Parameters,
) -> Result<Response, ApiError> {
    let page = PageQuery::read(&query, PAGE, &[])?;
    let batches = state.files().batches(Some(state.tenant_name(caller)));
    let shown = batches.iter().map(|batch| (batch.id.as_str(), batch.shown()));
    Ok(Json(page.of(shown)?).into_response())
}

/// One batch.
pub(crate) async fn one(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let batch = state.files().batch(state.tenant_name(caller), &id);
    Ok(Json(batch.ok_or_else(|| ApiError::no_such("batch", &id))?.shown()).into_response())
}

/// Ends a batch; results so far stay.
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let store = state.files();
    store.batch(state.tenant_name(caller), &id).ok_or_else(|| ApiError::no_such("batch", &id))?;
    let shown = store.change(&id, true, |batch| {
        if batch.status.is_final() || batch.status == BatchStatus::Finalizing {
            let message = format!("the batch `{}` has ended already", batch.id);
            return Err(ApiError::malformed(message));
        }
        batch.become_(BatchStatus::Cancelling);
        Ok(batch.shown())
    });
    let shown = shown.ok_or_else(|| ApiError::no_such("batch", &id))??;
    state.batches().stop(&id);
    Ok(Json(shown).into_response())
}

/// The batch of a body, without its owner.
fn read(bytes: &[u8]) -> Result<BatchRecord, ApiError> {
    let mut fields = Fields::of_body(bytes)?;
    let missing = |name: &str| ApiError::param(name, format!("`{name}` is missing"));
    let input_file_id = fields.string("input_file_id")?.ok_or_else(|| missing("input_file_id"))?;
    let endpoint = fields.string("endpoint")?.ok_or_else(|| missing("endpoint"))?;
    if !URLS.contains(&endpoint.as_str()) {
        let expected = format!("one of {}", URLS.join(", "));
        return Err(wrong("endpoint", &expected, &endpoint));
    }
    let window = fields.string("completion_window")?.unwrap_or_else(|| "24h".to_owned());
    let hours = window.strip_suffix('h').and_then(|hours| hours.parse::<u64>().ok());
    let hours = hours.filter(|hours| (1..=MOST_HOURS).contains(hours));
    let hours = hours.ok_or_else(|| {
        wrong("completion_window", &format!("hours from \"1h\" to \"{MOST_HOURS}h\""), &window)
    })?;
    let metadata = match metadata(&mut fields)? {
        Some(raw) => json::free("metadata", raw)?,
        None => Value::Null,
    };
    fields.finish()?;
    let created_at = unix_seconds();
    Ok(BatchRecord {
        id: crate::wire::fresh_id("batch_"),
        endpoint,
        input_file_id,
        completion_window: window,
        status: BatchStatus::Validating,
        output_file_id: None,
        error_file_id: None,
        created_at,
        expires_at: created_at + hours * 3600,
        in_progress_at: None,
        finalizing_at: None,
        completed_at: None,
        failed_at: None,
        expired_at: None,
        cancelling_at: None,
        cancelled_at: None,
        total: 0,
        completed: 0,
        failed: 0,
        error: None,
        metadata,
        work: None,
        tenant: String::new(),
        key: String::new(),
    })
}
