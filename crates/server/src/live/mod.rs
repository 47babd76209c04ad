//! The server at this moment, for `GET /v1/live`, `pelton top` and the page.
//!
//! ```text
//!   a request ──▶ Open ──▶ Scope of (model, tenant)    counts, rates and times of the last minute
//!   an engine ──▶ Sample, once a second ──▶ Past       of a model
//!                 ──▶ Control, Scale                    control charts; signals for autoscalers
//!   GET /v1/live ──▶ sums over scopes, pasts and the engine's own counters ──▶ Snapshot
//! ```
//!
//! A request costs a few additions under a lock of its own scope: at its begin, for each event with
//! tokens, and at its end. Sums and quantiles are computed when somebody looks.
//!
//! Memory is fixed for each scope: about 10 KiB. Pairs of model and tenant beyond the first
//! [`MOST_SCOPES`] are not recorded here; `/metrics` counts them all the same.

pub(crate) mod control;
mod meter;
mod past;
mod scale;
mod scope;
mod snapshot;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton_base::TenantId;
use pelton_llm::EngineMetrics;

use self::control::{Control, Readings};
use self::meter::{Quantiles, Times, rate};
use self::past::{Past, Sample};
pub(crate) use self::scale::Signals;
use self::scale::{Load, Scale, headroom};
pub(crate) use self::scope::Open;
use self::scope::{Scope, Sum};
pub(crate) use self::snapshot::Snapshot;
use self::snapshot::{EngineView, ModelView, TenantView, Traffic, VectorsView, WINDOW};
use crate::models::{self, Model, Served};
use crate::outcome::Outcome;
use crate::state::{AppState, Condition};

/// Most pairs of model and tenant with a scope.
const MOST_SCOPES: usize = 4096;
/// Time between two looks at an engine.
const SAMPLING: Duration = Duration::from_secs(1);

/// The recorder of one server.
#[derive(Debug)]
pub(crate) struct Live {
    start: Instant,
    tenants: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Scopes of each model, by number of the tenant.
    scopes: HashMap<String, HashMap<u32, Arc<Scope>>>,
    n_scopes: usize,
    watched: HashMap<String, Watched>,
}

/// The memory of a model's past beside its requests.
#[derive(Debug, Default)]
struct Watched {
    past: Past,
    control: Control,
    scale: Scale,
    /// As of the last look; `None` before the first.
    signals: Option<Signals>,
}

impl Live {
    /// `tenants` are the names of the tenants, by number.
    pub(crate) fn new(tenants: Vec<String>) -> Self {
        Self { start: Instant::now(), tenants, state: Mutex::default() }
    }

    /// A request to a model begins.
    pub(crate) fn open(&self, model: &str, tenant: TenantId) -> Open {
        Open::new(self.lock().scope(model, tenant), self.start)
    }

    /// Looks at the engine of a model.
    fn sample(&self, model: &Model) {
        let Served::Text(llm) = model.served() else { return };
        let metrics = llm.metrics();
        let second = self.start.elapsed().as_secs();
        let mut state = self.lock();
        let sum = state.sum(second, Some(model.name()), None).unwrap_or_default();
        state.watched.entry(model.name().to_owned()).or_default().look(second, &metrics, &sum);
    }

    /// A request has ended.
    pub(crate) fn ended(&self, outcome: &Outcome<'_>) {
        if !outcome.is_whole() {
            return;
        }
        let second = self.start.elapsed().as_secs();
        let mut state = self.lock();
        let name = outcome.model.name();
        if !state.watched.contains_key(name) {
            state.watched.insert(name.to_owned(), Watched::default());
        }
        if let Some(watched) = state.watched.get_mut(name) {
            watched.control.add(second, Times::of(outcome));
        }
    }

    /// The load of a model, for the rules that move requests away from it.
    pub(crate) fn load(&self, model: &str) -> models::Load {
        let state = self.lock();
        let waiting = state.waiting(model);
        let signals = state.watched.get(model).and_then(|watched| watched.signals);
        models::Load { waiting, headroom: signals.map(|signals| signals.slo_headroom_ratio) }
    }

    /// Control charts and signals of each model that was looked at.
    pub(crate) fn quality(&self) -> Vec<(String, Readings, Signals)> {
        let state = self.lock();
        let of = |(name, watched): (&String, &Watched)| {
            Some((name.clone(), watched.control.read(), watched.signals?))
        };
        let mut quality: Vec<_> = state.watched.iter().filter_map(of).collect();
        quality.sort_by(|a, b| a.0.cmp(&b.0));
        quality
    }

    /// The server as of now: everything, or the requests of one tenant.
    pub(crate) fn snapshot(
        &self,
        condition: Condition,
        models: &[Model],
        only: Option<TenantId>,
    ) -> Snapshot {
        let uptime = self.start.elapsed();
        let second = uptime.as_secs();
        let state = self.lock();
        let view = |model: &Model| state.view(model, second, only);
        let with_scope = |tenant: &usize| state.sum(second, None, Some(number(*tenant))).is_some();
        let tenants = (0..self.tenants.len())
            .filter(|tenant| only.is_none_or(|only| only == number(*tenant)))
            .filter(|tenant| only.is_some() || with_scope(tenant));
        let of_tenant = |tenant: usize| TenantView {
            name: self.tenants[tenant].clone(),
            traffic: state.traffic(second, None, Some(number(tenant)), false),
        };
        Snapshot {
            object: "live",
            time: crate::wire::unix_time(),
            uptime_seconds: uptime.as_secs_f64(),
            version: env!("CARGO_PKG_VERSION"),
            status: match condition {
                Condition::Serving => "ok",
                Condition::Draining => "draining",
                Condition::Failed => "failed",
            },
            view: if only.is_some() { "tenant" } else { "all" },
            window_seconds: WINDOW,
            total: state.traffic(second, None, only, true),
            models: models.iter().map(view).collect(),
            tenants: tenants.map(of_tenant).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Looks at the engine and the traffic of the model, once a second.
    fn look(&mut self, second: u64, metrics: &EngineMetrics, sum: &Sum) {
        let sample = Sample::of(metrics);
        let busy_ratio = self.past.rates(second, &sample).busy_ratio;
        self.past.add(second, sample);
        self.control.advance(second);
        self.scale.look(&Load {
            requests_per_second: rate(&sum.requests.0, second),
            waiting: metrics.n_waiting,
            seconds_per_request: metrics.seconds_per_request(&sum.mix()),
        });
        let p95 = |of: fn(&Times) -> Option<f32>| {
            let times = sum.times.iter().filter_map(of).collect();
            Quantiles::of(times).map(|quantiles| quantiles.p95)
        };
        let target = |target: Option<Duration>| target.map(|target| target.as_secs_f64());
        let ttft = (p95(|times| times.ttft), target(metrics.slo.ttft));
        let tpot = (p95(|times| times.tpot), target(metrics.slo.tpot));
        self.signals = Some(Signals {
            slo_headroom_ratio: headroom([ttft, tpot], busy_ratio),
            demand_replicas: self.scale.demand(),
            desired_replicas: self.scale.desired(),
        });
    }
}

impl State {
    fn scope(&mut self, model: &str, tenant: TenantId) -> Option<Arc<Scope>> {
        if let Some(scope) = self.scopes.get(model).and_then(|scopes| scopes.get(&tenant.0)) {
            return Some(Arc::clone(scope));
        }
        if self.n_scopes == MOST_SCOPES {
            return None;
        }
        self.n_scopes += 1;
        let scopes = self.scopes.entry(model.to_owned()).or_default();
        Some(Arc::clone(scopes.entry(tenant.0).or_default()))
    }

    /// Sum over the scopes of a model, of a tenant, of both or of all; `None` without any.
    fn sum(&self, second: u64, model: Option<&str>, tenant: Option<TenantId>) -> Option<Sum> {
        let mut sum = None;
        let of_model = self.scopes.iter().filter(|(name, _)| model.is_none_or(|m| m == *name));
        for (id, scope) in of_model.flat_map(|(_, scopes)| scopes) {
            if tenant.is_none_or(|tenant| tenant.0 == *id) {
                scope.add_to(second, sum.get_or_insert_default());
            }
        }
        sum
    }

    /// Requests for a model that have no token so far.
    fn waiting(&self, model: &str) -> usize {
        let scopes = self.scopes.get(model).into_iter().flatten();
        scopes.map(|(_, scope)| scope.waiting()).sum()
    }

    fn traffic(
        &self,
        second: u64,
        model: Option<&str>,
        tenant: Option<TenantId>,
        shows_history: bool,
    ) -> Traffic {
        Traffic::new(self.sum(second, model, tenant).unwrap_or_default(), second, shows_history)
    }

    fn view(&self, model: &Model, second: u64, only: Option<TenantId>) -> ModelView {
        let (name, sees_all) = (model.name(), only.is_none());
        let none = Watched::default();
        let watched = self.watched.get(name).unwrap_or(&none);
        let past = &watched.past;
        let is_watched = sees_all && model.llm().is_ok();
        let (kind, engine, vectors) = match model.served() {
            Served::Text(llm) => {
                ("text", sees_all.then(|| EngineView::new(llm, second, past)), None)
            }
            Served::Vectors(embedder) => {
                ("vectors", None, sees_all.then(|| VectorsView::new(embedder)))
            }
        };
        let traffic = self.traffic(second, Some(name), only, true);
        let control = is_watched.then(|| watched.control.read());
        let scale = watched.signals.filter(|_| is_watched);
        ModelView { name: name.to_owned(), kind, traffic, engine, vectors, control, scale }
    }
}

/// The number of a tenant.
fn number(tenant: usize) -> TenantId {
    TenantId(u32::try_from(tenant).expect("invariant: tenants are few"))
}

/// Looks at the engines once a second, for ever.
pub(crate) async fn watch(state: AppState) {
    let mut ticks = tokio::time::interval(SAMPLING);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        state.models().loaded().iter().for_each(|model| state.live().sample(model));
    }
}
