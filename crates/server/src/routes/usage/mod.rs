//! `GET /v1/usage`: requests and tokens per day, key, tenant and model.
//!
//! A key with the scope `admin` sees all rows; any other key of the key file sees its own, and a key
//! of the settings those of its tenant. Without keys everyone sees everything.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use pelton_gateway::{Day, Filter, Report};

use crate::access::Caller;
use crate::error::ApiError;
use crate::gateway::Ticket;
use crate::state::AppState;
use crate::wire::Parameters;

/// The answer in JSON.
#[derive(serde::Serialize)]
struct Answer {
    object: &'static str,
    /// Whether the rows outlive the server; else they are those since its start.
    is_durable: bool,
    #[serde(flatten)]
    report: Report,
}

/// Reports usage in JSON, or in CSV with `format=csv`.
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
    Extension(ticket): Extension<Arc<Ticket>>,
    query: Parameters,
) -> Result<Response, ApiError> {
    let (mut filter, is_csv) = read(&query)?;
    if !caller.is_admin() {
        limit(&mut filter.tenant, state.gateway().tenant_name(caller.tenant), "tenant")?;
        if !ticket.key().is_empty() {
            limit(&mut filter.key, ticket.key(), "key")?;
        }
    }
    let report = state.gateway().report(&filter);
    if is_csv {
        let kind: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/csv; charset=utf-8")];
        return Ok((kind, report.csv()).into_response());
    }
    let is_durable = state.gateway().has_usage_file();
    Ok(Json(Answer { object: "usage", is_durable, report }).into_response())
}

/// Narrows a filter to what the caller may see; another value than its own is refused.
fn limit(wanted: &mut Option<String>, own: &str, param: &str) -> Result<(), ApiError> {
    if wanted.as_ref().is_some_and(|wanted| wanted != own) {
        let message = format!("`{param}` names another {param} than that of the API key");
        return Err(ApiError::param(param, message));
    }
    *wanted = Some(own.to_owned());
    Ok(())
}

fn read(query: &Parameters) -> Result<(Filter, bool), ApiError> {
    let (mut filter, mut is_csv) = (Filter::default(), false);
    for (name, value) in query.iter() {
        let text = || Some(value.to_owned());
        let day = || {
            Day::parse(value).map(Some).ok_or_else(|| {
                ApiError::param(name, format!("`{name}` must be a day such as 2026-11-22"))
            })
        };
        match name {
            "since" => filter.since = day()?,
            "until" => filter.until = day()?,
            "key" => filter.key = text(),
            "tenant" => filter.tenant = text(),
            "model" => filter.model = text(),
            "format" if value == "csv" || value == "json" => is_csv = value == "csv",
            "format" => return Err(ApiError::param("format", "`format` must be json or csv")),
            _ => {
                let known = "since, until, key, tenant, model, format";
                return Err(Parameters::unknown(name, known));
            }
        }
    }
    Ok((filter, is_csv))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(query: &str) -> Result<(Filter, bool), ApiError> {
        read(&Parameters::parse(query)?)
    }

    #[test]
    fn every_parameter_is_honoured_or_refused_by_name() {
        let all = "since=2026-11-01&until=2026-11-30&model=m&format=csv";
        let (filter, is_csv) = run(all).expect("known");
        assert_eq!((filter.since, filter.model.as_deref()), (Day::parse("2026-11-01"), Some("m")));
        assert!(is_csv && filter.until.is_some() && filter.key.is_none());
        for (param, query) in [
            ("since", "since=yesterday"),
            ("until", "until=2026-02-30"),
            ("format", "format=xml"),
            ("days", "days=3"),
            ("key", "key=a&key=b"),
        ] {
            assert_eq!(run(query).expect_err(param).body.param.as_deref(), Some(param));
        }
        let mut wanted = Some("a".to_owned());
        limit(&mut wanted, "b", "key").expect_err("of another key");
        limit(&mut wanted, "a", "key").expect("its own");
    }
}
