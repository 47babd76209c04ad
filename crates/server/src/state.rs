//! State that all handlers share: the model, the limits, and the number of running requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use pelton_base::{TenantId, Usage};
use pelton_llm::Gatekeeper;
use tokio::sync::watch;

use crate::ServeConfig;
use crate::access::Caller;
use crate::error::{ApiError, Refused};
use crate::files::{Batches, Store};
use crate::gateway::{Gateway, Ticket};
use crate::host::AllowedHosts;
use crate::intake::Intake;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::models::{Catalog, Model, Served, Traits};
use crate::otlp::{Exporter, OtlpConfig, Span};
use crate::outcome::{About, Outcome};
use crate::routes::responses::Store as Responses;
use crate::timeline::Timelines;
use crate::tls::Certificates;

/// Shared by all handlers; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AppState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    models: Arc<Catalog>,
    config: ServeConfig,
    metrics: Arc<Metrics>,
    live: Arc<Live>,
    gateway: Arc<Gateway>,
    timelines: Timelines,
    /// Sends spans, where a collector is configured.
    exporter: Option<Exporter>,
    hosts: AllowedHosts,
    certificates: Option<Arc<Certificates>>,
    intake: Intake,
    files: Arc<Store>,
    batches: Batches,
    responses: Arc<Responses>,
    created: u64,
    is_draining: AtomicBool,
    n_running: watch::Sender<usize>,
}

/// The socket and the certificate that a server listens with.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// Its address, if it has one.
    pub(crate) address: Option<SocketAddr>,
    /// Its certificates, if it speaks HTTPS there.
    pub(crate) certificates: Option<Arc<Certificates>>,
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
    about: Arc<About>,
    /// Given back when the request has ended.
    ticket: Option<Arc<Ticket>>,
}

impl Running {
    /// The request.
    pub(crate) fn about(&self) -> &Arc<About> {
        &self.about
    }

    /// Counts the tokens of a request that generates none, such as one for vectors, and waits until
    /// they are written down where a quota needs that.
    pub(crate) async fn used(&self, model: &str, prompt_tokens: usize) {
        self.about.stated.note_read(model, prompt_tokens);
        if let Some(ticket) = &self.ticket {
            let usage = Usage { prompt_tokens, ..Usage::default() };
            self.inner.gateway.settle(ticket.number(), model, usage);
            self.inner.gateway.written(ticket.number()).await;
        }
    }

    /// Its way through the gateway; [`Ticket::reserve_prompt`] is for requests that generate nothing.
    pub(crate) fn ticket(&self) -> Option<Arc<Ticket>> {
        self.ticket.clone()
    }
}

impl AppState {
    /// State of a server that listens nowhere, and whose files are in memory.
    pub(crate) fn new(models: Catalog, config: ServeConfig, gateway: Arc<Gateway>) -> Self {
        Self::listening(models, config, gateway, Store::default(), Listening::default())
    }

    /// State of a server.
    pub(crate) fn listening(
        models: Catalog,
        config: ServeConfig,
        gateway: Arc<Gateway>,
        files: Store,
        Listening { address, certificates }: Listening,
    ) -> Self {
        let tenants: Vec<String> = config.access.names().map(str::to_owned).collect();
        let models = Arc::new(models);
        let live = Arc::new(Live::new(tenants.clone()));
        let exporter = config.otlp.clone().and_then(exporter);
        let spans = exporter.as_ref().map(Exporter::counts);
        let inner = Inner {
            responses: Arc::new(Responses::new(config.responses, tenants.len())),
            intake: Intake::new(config.max_body_bytes, tenants.len()),
            metrics: Arc::new(
                Metrics::new(&models, &live, tenants, &config, spans)
                    .with_certificates(certificates.as_ref()),
            ),
            live,
            timelines: Timelines::default(),
            exporter,
            models,
            gateway,
            files: Arc::new(files),
            batches: Batches::default(),
            hosts: AllowedHosts::new(&config, address),
            certificates,
            config,
            created: crate::wire::unix_seconds(),
            is_draining: AtomicBool::new(false),
            n_running: watch::Sender::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Files of clients.
    pub(crate) fn files(&self) -> &Arc<Store> {
        &self.inner.files
    }

    /// The batches that run.
    pub(crate) fn batches(&self) -> &Batches {
        &self.inner.batches
    }

    /// The name of a caller's tenant, to which its files belong.
    pub(crate) fn tenant_name(&self, caller: Caller) -> &str {
        &self.config().access.tenants()[caller.tenant.0 as usize].name
    }

    pub(crate) fn models(&self) -> &Catalog {
        &self.inner.models
    }

    /// The model of a request; `asked` is the name in its body. It may wait until the model is
    /// loaded, so it is called where a thread may block.
    ///
    /// # Errors
    ///
    /// Names the models that there are.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<Model, ApiError> {
        Ok(self.kept(self.inner.models.model(asked)?))
    }

    /// The model of a request for vectors or scores. As [`AppState::model`] it may wait.
    ///
    /// # Errors
    ///
    /// Names the models that there are.
    pub(crate) fn reader(&self, asked: Option<&str>, about: &About) -> Result<Model, ApiError> {
        about.stated.note_model(asked);
        self.model(asked)
    }

    /// The model of a request for text, which the rules of `auto` and `degrade` may choose. As
    /// [`AppState::model`] it may wait.
    ///
    /// # Errors
    ///
    /// Names the models that there are.
    pub(crate) fn route(
        &self,
        asked: Option<&str>,
        (caller, about): (Caller, &About),
        request: impl FnOnce() -> Traits,
    ) -> Result<Model, ApiError> {
        about.stated.note_model(asked);
        let load = |name: &str| self.live().load(name);
        let tenant = self.tenant_name(caller);
        let (model, chosen) = self.inner.models.route(asked, tenant, request, load)?;
        if let Some((chosen, routed)) = chosen.as_ref().zip(about.routed.as_ref()) {
            routed.note(chosen);
        }
        Ok(self.kept(model))
    }

    /// A model whose requests the gateway hears of.
    fn kept(&self, model: Model) -> Model {
        if let Served::Text(llm) = model.served() {
            let keeper: Arc<dyn Gatekeeper> = self.inner.gateway.clone();
            llm.set_gatekeeper(&keeper);
        }
        model
    }

    /// Keys, limits and usage.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.inner.gateway
    }

    /// A copy of a request, where an engine may be given up and the request be run again.
    pub(crate) fn again<R: Clone>(&self, request: &R) -> Option<R> {
        self.config().limit_of_steps().map(|_| request.clone())
    }

    /// A request has ended.
    pub(crate) fn ended(&self, outcome: &Outcome<'_>) {
        self.metrics().ended(outcome);
        self.live().ended(outcome);
        self.gateway().settle(outcome.caller.ticket, outcome.model.name(), outcome.usage);
        self.timelines().keep(outcome);
        let tenant = self.metrics().tenant(outcome.caller.tenant);
        if self.sends_spans()
            && outcome.about.stated.claim_span()
            && let Some(span) = Span::of(outcome, tenant)
        {
            self.send_span(span);
        }
        if let Some(line) = &outcome.about.line {
            line.note(outcome, tenant);
        }
    }

    /// Whether a collector for spans is configured.
    pub(crate) fn sends_spans(&self) -> bool {
        self.inner.exporter.is_some()
    }

    /// Leaves a span to be sent.
    pub(crate) fn send_span(&self, span: Span) {
        if let Some(exporter) = &self.inner.exporter {
            exporter.send(span);
        }
    }

    pub(crate) fn config(&self) -> &ServeConfig {
        &self.inner.config
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Timelines of requests that have ended.
    pub(crate) fn timelines(&self) -> &Timelines {
        &self.inner.timelines
    }

    /// The server at this moment.
    pub(crate) fn live(&self) -> &Live {
        &self.inner.live
    }

    /// Room and turns for large bodies.
    pub(crate) fn intake(&self) -> &Intake {
        &self.inner.intake
    }

    /// Stored responses.
    pub(crate) fn responses(&self) -> &Arc<Responses> {
        &self.inner.responses
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.inner.created
    }

    pub(crate) fn condition(&self) -> Condition {
        if self.models().has_failed() {
            Condition::Failed
        } else if self.inner.is_draining.load(Ordering::SeqCst) {
            Condition::Draining
        } else {
            Condition::Serving
        }
    }

    /// The certificates of a server that speaks HTTPS.
    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.inner.certificates.as_ref()
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
    fn enter(&self, about: About, ticket: Option<Arc<Ticket>>) -> Result<Running, ApiError> {
        self.inner.n_running.send_modify(|n| *n += 1);
        let (inner, about) = (Arc::clone(&self.inner), Arc::new(about));
        let running = Running { inner, about, ticket };
        // Counting first ensures that a drain that starts now sees this request or is seen by it.
        self.accepts()?;
        running.ticket.as_ref().map_or(Ok(()), Ticket::begin)?;
        Ok(running)
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
}

/// Starts the thread that sends spans; without one the server answers all the same.
fn exporter(config: OtlpConfig) -> Option<Exporter> {
    let started = Exporter::start(config);
    started.inspect_err(|error| tracing::error!(%error, "no traces are sent")).ok()
}

/// A handler that takes a `Running` before the body is counted from the head of its request on, so
/// a request that has begun to arrive is still accepted.
impl FromRequestParts<AppState> for Running {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let ticket = parts.extensions.get().cloned();
        state.enter(About::of(parts), ticket)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            ticket.end();
        }
        self.inner.n_running.send_modify(|n| *n -= 1);
    }
}
