//! `/v1/files`: files that batches read and write.

mod multipart;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::access::Caller;
use crate::error::ApiError;
use crate::files::Purpose;
use crate::state::{AppState, Running};
use crate::wire::{Id, Parameters};

/// Most entries of one page of a list.
const PAGE: usize = 10_000;

/// Keeps a file.
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    _running: Running,
    request: Request,
) -> Result<Response, ApiError> {
    let tenant = state.tenant_name(caller).to_owned();
    let record = multipart::receive(&state, request, tenant).await?;
    Ok(Json(record.shown()).into_response())
}

/// The files of the caller.
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    query: Parameters,
) -> Result<Response, ApiError> {
    let mut page = PageQuery::read(&query, PAGE, &["purpose"])?;
    let purpose = match page.filter.take().as_deref() {
        None => None,
        Some("batch") => Some(Purpose::Batch),
        Some("batch_output") => Some(Purpose::BatchOutput),
        Some(_) => {
            return Err(ApiError::param("purpose", "`purpose` must be `batch` or `batch_output`"));
        }
    };
    let files = state.files().files(state.tenant_name(caller));
    let files = files.iter().filter(|file| purpose.is_none_or(|purpose| file.purpose == purpose));
    Ok(Json(page.of(files.map(|file| (file.id.as_str(), file.shown())))?).into_response())
}

/// One file.
pub(crate) async fn one(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let file = state.files().file(state.tenant_name(caller), &id);
    let (record, _) = file.ok_or_else(|| ApiError::no_such("file", &id))?;
    Ok(Json(record.shown()).into_response())
}

/// The bytes of a file.
pub(crate) async fn content(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let file = state.files().file(state.tenant_name(caller), &id);
    let (record, content) = file.ok_or_else(|| ApiError::no_such("file", &id))?;
    let body = super::blocking(move || {
        content
            .body()
            .map_err(|error| ApiError::internal(format!("the file cannot be read: {error}")))
    });
    let mut response = Response::new(body.await?);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(record.bytes));
    Ok(response)
}

/// Deletes a file.
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let (app, tenant) = (state.clone(), state.tenant_name(caller).to_owned());
    let gone = id.clone();
    let deleted = super::blocking(move || Ok(app.files().delete(&tenant, &gone)?)).await?;
    match deleted {
        true => Ok(Json(json!({"id": id, "object": "file", "deleted": true})).into_response()),
        false => Err(ApiError::no_such("file", &id)),
    }
}

/// The part of a list that a client asks for.
#[derive(Debug)]
pub(super) struct PageQuery {
    limit: usize,
    after: Option<String>,
    is_ascending: bool,
    /// The value of the filter, where it is given.
    pub(super) filter: Option<String>,
}

impl PageQuery {
    /// Reads `limit`, `after`, `order` and one filter.
    ///
    /// # Errors
    ///
    /// Names the parameter that is unknown or out of range.
    pub(super) fn read(
        query: &Parameters,
        most: usize,
        filters: &[&str],
    ) -> Result<Self, ApiError> {
        let mut page = Self { limit: most, after: None, is_ascending: false, filter: None };
        for (name, value) in query.iter() {
            match name {
                "limit" => {
                    let limit = value.parse().ok().filter(|n| (1..=PAGE).contains(n));
                    page.limit = limit.ok_or_else(|| {
                        ApiError::param("limit", format!("`limit` must be from 1 to {PAGE}"))
                    })?;
                }
                "after" => page.after = Some(value.to_owned()),
                "order" if ["asc", "desc"].contains(&value) => page.is_ascending = value == "asc",
                "order" => return Err(ApiError::param("order", "`order` must be `asc` or `desc`")),
                name if filters.contains(&name) => page.filter = Some(value.to_owned()),
                name => {
                    let known = [&["limit", "after", "order"][..], filters].concat().join(", ");
                    return Err(Parameters::unknown(name, &known));
                }
            }
        }
        Ok(page)
    }

    /// The page of entries, which come newest first.
    pub(super) fn of<'a>(
        &self,
        entries: impl Iterator<Item = (&'a str, Value)>,
    ) -> Result<Value, ApiError> {
        let mut entries: Vec<(&str, Value)> = entries.collect();
        if self.is_ascending {
            entries.reverse();
        }
        let first = match &self.after {
            None => 0,
            Some(after) => {
                let place = entries.iter().position(|(id, _)| id == after);
                1 + place.ok_or_else(|| {
                    let after = crate::wire::json::brief(after);
                    ApiError::param("after", format!("`after`: the list has no entry `{after}`"))
                })?
            }
        };
        let rest = &entries[first..];
        let page = &rest[..rest.len().min(self.limit)];
        Ok(json!({
            "object": "list",
            "data": page.iter().map(|(_, shown)| shown).collect::<Vec<_>>(),
            "first_id": page.first().map(|(id, _)| id),
            "last_id": page.last().map(|(id, _)| id),
            "has_more": rest.len() > page.len(),
        }))
    }
}
