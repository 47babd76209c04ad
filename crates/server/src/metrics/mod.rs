//! Counters for `GET /metrics`.
//!
//! ```text
//!   pelton_*    engines      the engines' own counters, read for each request of metrics
//!               tenants      times of answers, how they ended, cached tokens; refusals
//!               quality      control charts, and signals for autoscalers
//!   vllm:*      vllm         the same under the names that dashboards and routers know
//!   http_*      http         requests by route, method and status
//!   process_*   process      processor time and memory of this process
//! ```
//!
//! Series of a model have the label `model_name`. The label `tenant` has only the configured names
//! as values, and the label `handler` only the routes of the table, so the number of series is
//! bounded.
//!
//! **Architecture invariant:** every server has registries of its own; there is no global one.

mod buckets;
mod certificate;
mod engines;
mod http;
mod parts;
mod process;
mod quality;
mod routing;
mod spans;
mod tenants;
mod text;
mod vectors;
mod vllm;

use std::sync::Arc;

use pelton_base::{FinishReason, TenantId};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use self::certificate::Certificate;
use self::engines::Engines;
use self::http::Http;
pub(crate) use self::http::{Timed, layer};
use self::process::Process;
use self::quality::Quality;
use self::routing::Rules;
use self::spans::Spans;
use self::tenants::Tenants;
pub(crate) use self::text::Format;
use self::vectors::Embedders;
use self::vllm::Vllm;
use crate::live::Live;
use crate::models::{Catalog, Model};
use crate::otlp::Counts;
use crate::outcome::Outcome;
use crate::serve::ServeConfig;
use crate::tls::Certificates;

/// The counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Names with the prefix `pelton_`.
    own: Registry,
    /// Names that others have chosen.
    foreign: Registry,
    tenants: Tenants,
    vllm: Option<Arc<Vllm>>,
    http: Http,
}

impl Metrics {
    /// Counters for these models, and for tenants of these names. `spans` are those that are sent to
    /// a collector.
    pub(crate) fn new(
        models: &Arc<Catalog>,
        live: &Arc<Live>,
        tenants: Vec<String>,
        config: &ServeConfig,
        spans: Option<&Arc<Counts>>,
    ) -> Self {
        let (mut own, mut foreign) = (Registry::with_prefix("pelton"), Registry::default());
        let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
        let name = models.loaded().first().map(|model| model.name().to_owned());
        let build = Info::new(vec![version, ("model_name", name.unwrap_or_default())]);
        own.register("build", "Version of this server, and name of its first model", build);
        let tenants = Tenants::new(tenants, &mut own);
        own.register_collector(Box::new(Engines(Arc::clone(models))));
        own.register_collector(Box::new(Embedders(Arc::clone(models))));
        own.register_collector(Box::new(Rules(Arc::clone(models))));
        own.register_collector(Box::new(Quality(Arc::clone(live))));
        if let Some(spans) = spans {
            own.register_collector(Box::new(Spans(Arc::clone(spans))));
        }
        let vllm = config.vllm_metrics.then(|| Arc::new(Vllm::new(Arc::clone(models))));
        if let Some(vllm) = &vllm {
            foreign.register_collector(Box::new(Arc::clone(vllm)));
        }
        let http = Http::new(&mut foreign);
        foreign.register_collector(Box::new(Process::default()));
        Self { own, foreign, tenants, vllm, http }
    }

    /// The same with the end of the certificate, where there is one.
    pub(crate) fn with_certificates(mut self, certificates: Option<&Arc<Certificates>>) -> Self {
        if let Some(certificates) = certificates {
            self.own.register_collector(Box::new(Certificate(Arc::clone(certificates))));
        }
        self
    }

    /// A request has ended. Answers that its client did not wait for count as aborted.
    pub(crate) fn ended(&self, outcome: &Outcome<'_>) {
        self.tenants.ended(outcome);
        if let Some(vllm) = &self.vllm {
            vllm.ended(outcome);
        }
    }

    /// The name of a tenant.
    pub(crate) fn tenant(&self, tenant: TenantId) -> &str {
        self.tenants.name(tenant)
    }

    /// A request was refused.
    pub(crate) fn refused(&self, tenant: TenantId, reason: &'static str) {
        self.tenants.refused(tenant, reason);
    }

    /// Everything, or the series of one tenant.
    pub(crate) fn text(&self, only: Option<TenantId>, format: Format) -> String {
        let mut text = String::new();
        for registry in [&self.own, &self.foreign] {
            encode_registry(&mut text, registry).expect("invariant: strings take what is written");
        }
        encode_eof(&mut text).expect("invariant: strings take what is written");
        let text = match only {
            None => text,
            Some(tenant) => text::series_of(&text, self.tenants.name(tenant)),
        };
        format.of(text)
    }
}

/// The answers of a request by the reasons of their ends; those that its client did not wait for
/// are aborted.
fn endings<'a>(outcome: &Outcome<'a>) -> impl Iterator<Item = FinishReason> + use<'a> {
    let n_open = outcome.n_choices.saturating_sub(outcome.reasons.len());
    outcome.reasons.iter().copied().chain(std::iter::repeat_n(FinishReason::Aborted, n_open))
}

/// The label of a model.
fn of_model(model: &Model) -> [(&'static str, String); 1] {
    [("model_name", model.name().to_owned())]
}

/// The word for the end of an answer, in metrics and in the log.
pub(crate) fn ending(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Aborted => "abort",
        _ => "error",
    }
}

/// Every word of [`ending`].
pub(crate) const ENDINGS: [&str; 4] = ["stop", "length", "abort", "error"];
