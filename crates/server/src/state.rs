//! State that all handlers share: the model, the limits, and the number of running requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use pelton_base::TenantId;
use pelton_llm::Llm;
use tokio::sync::watch;

use crate::ServeConfig;
use crate::access_log::Line;
use crate::error::{ApiError, Refused};
use crate::host::AllowedHosts;
use crate::intake::Intake;
use crate::metrics::Metrics;
use crate::served::Served;

/// Shared by all handlers; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AppState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    served: Served,
    config: ServeConfig,
    metrics: Arc<Metrics>,
    hosts: AllowedHosts,
    intake: Intake,
    created: u64,
    is_draining: AtomicBool,
    n_running: watch::Sender<usize>,
}

/// How the server treats new requests. `/health` and `/ready` turn it into a status.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Condition {
    Serving,
    /// New requests are refused, running ones are finished.
    Draining,
    /// The engine has failed for good, and the process is about to end.
    Failed,
}

/// One request that is being answered; counted until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Running {
    inner: Arc<Inner>,
    /// Its line in the access log, where there is one.
    line: Option<Arc<Line>>,
}

impl Running {
    pub(crate) fn line(&self) -> Option<&Arc<Line>> {
        self.line.as_ref()
    }
}

impl AppState {
    /// State of a server that listens on `address`.
    pub(crate) fn new(served: Served, config: ServeConfig, address: SocketAddr) -> Self {
        let tenants: Vec<String> = config.access.names().map(str::to_owned).collect();
        let inner = Inner {
            intake: Intake::new(config.max_body_bytes, tenants.len()),
            metrics: Arc::new(Metrics::new(served.clone(), tenants)),
            served,
            hosts: AllowedHosts::new(&config, address),
            config,
            created: crate::wire::unix_seconds(),
            is_draining: AtomicBool::new(false),
            n_running: watch::Sender::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn served(&self) -> &Served {
        &self.inner.served
    }

    /// The model, if it generates text.
    pub(crate) fn llm(&self) -> Result<&Arc<Llm>, ApiError> {
        self.inner.served.llm()
    }

    pub(crate) fn config(&self) -> &ServeConfig {
        &self.inner.config
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Room and turns for large bodies.
    pub(crate) fn intake(&self) -> &Intake {
        &self.inner.intake
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.inner.created
    }

    pub(crate) fn condition(&self) -> Condition {
        if self.served().has_failed() {
            Condition::Failed
        } else if self.inner.is_draining.load(Ordering::SeqCst) {
            Condition::Draining
        } else {
            Condition::Serving
        }
    }

    pub(crate) fn hosts(&self) -> &AllowedHosts {
        &self.inner.hosts
    }

    /// Counts an answer in the metrics if it refuses a request.
    pub(crate) fn count_refusal(&self, tenant: TenantId, response: &Response) {
        if let Some(Refused(why)) = response.extensions().get() {
            self.metrics().refused(tenant, why);
        }
    }

    /// Counts a new request, unless the server is draining or its engine has failed.
    fn enter(&self, line: Option<Arc<Line>>) -> Result<Running, ApiError> {
        self.inner.n_running.send_modify(|n| *n += 1);
        let running = Running { inner: Arc::clone(&self.inner), line };
        // Counting first ensures that a drain that starts now sees this request or is seen by it.
        self.accepts().map(|()| running)
    }

    /// Why a new request would be refused at once, if it would.
    fn accepts(&self) -> Result<(), ApiError> {
        match self.condition() {
            Condition::Serving => Ok(()),
            Condition::Draining => Err(ApiError::draining()),
            Condition::Failed => Err(ApiError::engine_failed()),
        }
    }

    /// Refuses new requests from now on.
    pub(crate) fn start_draining(&self) {
        self.inner.is_draining.store(true, Ordering::SeqCst);
    }

    /// Waits until no request runs.
    pub(crate) async fn idle(&self) {
        let mut n_running = self.inner.n_running.subscribe();
        // The sender is alive as long as `self` is.
        let _ = n_running.wait_for(|n| *n == 0).await;
    }

    /// The served model, or an error that names the model of the request.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let known = self.inner.served.name();
        match asked {
            Some(asked) if asked != known => Err(ApiError::unknown_model(asked, known)),
            _ => Ok(()),
        }
    }
}

/// A handler that takes a `Running` before the body is counted from the head of its request on, so
/// a request that has begun to arrive is still accepted.
impl FromRequestParts<AppState> for Running {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        state.enter(parts.extensions.get().cloned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.n_running.send_modify(|n| *n -= 1);
    }
}
