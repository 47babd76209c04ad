//! Spans of requests that generate no text.
//!
//! The span of generated text is sent when the last answer has ended, with all that is known of it
//! then ([`AppState::ended`]). A request that does not come that far, because it is for vectors, is
//! refused, or loses its client before, is seen here, where its head came in.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::span::operation;
use super::{Span, Stated, Traced};
use crate::access::Caller;
use crate::error::Noted;
use crate::request_id;
use crate::state::AppState;

/// A request that asks a model. Dropping it sends its span, unless that of its text is sent instead.
struct Open {
    app: AppState,
    route: Box<str>,
    operation: &'static str,
    id: Box<str>,
    traced: Traced,
    since: Instant,
    stated: Arc<Stated>,
    /// `None` where the client left first.
    status: Option<StatusCode>,
    error: Option<&'static str>,
}

/// A request without text that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended<'a> {
    pub(super) traced: Traced,
    pub(super) operation: &'static str,
    pub(super) route: &'a str,
    pub(super) id: &'a str,
    pub(super) since: Instant,
    /// Its tenant, if it was let in.
    pub(super) tenant: Option<&'a str>,
    pub(super) stated: &'a Stated,
    /// The status of its answer; `None` where its client left first.
    pub(super) status: Option<u16>,
    /// Why it failed, if it did.
    pub(super) error: Option<&'a str>,
}

/// Notes when requests begin, and how they are answered.
pub(crate) async fn layer(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(mut open) = Open::of(&app, &request) else { return next.run(request).await };
    request.extensions_mut().insert(Arc::clone(&open.stated));
    let response = next.run(request).await;
    open.status = Some(response.status());
    open.error =
        response.extensions().get::<Noted>().map(|Noted(body)| body.code.unwrap_or(body.kind));
    response
}

impl Open {
    /// `None` where no span of the request is sent.
    fn of(app: &AppState, request: &Request) -> Option<Self> {
        if !app.sends_spans() || request.method() != Method::POST {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        let operation = operation(route)?;
        let traced = request.extensions().get::<Traced>().copied();
        let traced = traced.unwrap_or_else(|| Traced::of(request.headers()));
        if !traced.is_wanted() {
            return None;
        }
        let stated = Stated::default();
        // Requests from inside, such as those of batches, come with their caller.
        if let Some(caller) = request.extensions().get::<Caller>() {
            stated.note_tenant(caller.tenant);
        }
        Some(Self {
            app: app.clone(),
            operation,
            route: route.into(),
            id: request_id::of(request.headers()).into(),
            traced,
            since: Instant::now(),
            stated: Arc::new(stated),
            status: None,
            error: None,
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let is_served = self.status.is_some_and(|status| status.as_u16() < 400);
        let is_of_text = is_served && self.stated.read().is_none();
        if is_of_text || !self.stated.claim_span() {
            return;
        }
        let status = self.status.map(|status| status.as_u16());
        let number = status.filter(|_| !is_served).map(|status| status.to_string());
        let error = if status.is_none() { Some("client_gone") } else { self.error };
        let tenant = self.stated.tenant().map(|tenant| self.app.metrics().tenant(tenant));
        self.app.send_span(Span::without_text(&Ended {
            traced: self.traced,
            operation: self.operation,
            route: &self.route,
            id: &self.id,
            since: self.since,
            tenant,
            stated: &self.stated,
            status,
            error: error.or(number.as_deref()),
        }));
    }
}
