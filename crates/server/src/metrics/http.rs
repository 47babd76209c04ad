//! Requests of all routes, under the names that dashboards of web servers know.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::buckets::HTTP_SECONDS;
use crate::state::AppState;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfAnswer {
    handler: String,
    method: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfRoute {
    handler: String,
    method: &'static str,
}

/// Counters by route.
#[derive(Clone, Debug)]
pub(super) struct Http {
    requests: Family<OfAnswer, Counter>,
    seconds: Family<OfRoute, Histogram, fn() -> Histogram>,
}

impl Http {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(HTTP_SECONDS);
        let seconds = Family::new_with_constructor(seconds);
        let http = Self { requests: Family::default(), seconds };
        let help = "Requests by route, method and class of the status";
        registry.register("http_requests", help, http.requests.clone());
        let help = "Time from the head of a request to the last byte of its answer";
        registry.register("http_request_duration_seconds", help, http.seconds.clone());
        http
    }
}

/// Measures an answer until it is dropped, which is when its last byte is handed to the connection.
#[derive(Debug)]
pub(crate) struct Timed {
    http: Http,
    route: OfRoute,
    since: Instant,
}

impl Drop for Timed {
    fn drop(&mut self) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.http.seconds.get_or_create(&self.route).observe(seconds);
    }
}

/// Counts requests. Paths without a route count as the handler `none`.
pub(crate) async fn layer(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let since = Instant::now();
    let path = request.extensions().get::<MatchedPath>();
    let handler = path.map_or("none", MatchedPath::as_str).to_owned();
    let method = name(request.method());
    let http = app.metrics().http.clone();
    let mut response = next.run(request).await;
    let status = class(response.status().as_u16());
    let labels = OfAnswer { handler: handler.clone(), method, status };
    http.requests.get_or_create(&labels).inc();
    let timed = Timed { http, route: OfRoute { handler, method }, since };
    response.extensions_mut().insert(Arc::new(timed));
    response
}

/// The name of a method; clients may invent others.
fn name(method: &Method) -> &'static str {
    let known = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// Statuses by their first digit.
fn class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}
