//! One name of a catalog, and how its model stands.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::spec::LoadFailure;
use super::{Model, ModelSpec, Traits};
use crate::error::ApiError;

/// Requests that may wait for one model to be loaded; further ones are told to come again.
const MOST_WAITING: usize = 64;
/// Time after which a model that failed may be loaded anew once more.
const HEALING: Duration = Duration::from_secs(600);

/// One model by its name, loaded or not.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    aliases: Vec<String>,
    /// How it is loaded; `None` for a model that the caller brought along.
    pub(super) spec: Option<ModelSpec>,
    slot: Mutex<Slot>,
    n_waiting: AtomicUsize,
}

/// The model of an entry as it is now.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) current: Option<Model>,
    pub(super) n_loads: u64,
    is_loading: bool,
    /// Since when no request uses it, as far as the sweep has seen.
    pub(super) idle_since: Option<Instant>,
    /// When it was last loaded anew because it had failed.
    pub(super) healed_at: Option<Instant>,
    /// Why the last load failed.
    pub(super) trouble: Option<String>,
}

/// A load that is under way, until it is dropped.
pub(super) struct Loading<'a>(&'a Entry);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.slot().is_loading = false;
    }
}

/// How a model stands, for clients and operators.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub(crate) struct Standing {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// `loaded`, `loading`, `unloaded` or `failed`.
    pub(crate) state: &'static str,
    /// Number of the version that answers now.
    pub(crate) version: Option<u64>,
    /// Bytes of its weights, keys and values, where it is loaded.
    pub(crate) memory_bytes: Option<u64>,
    /// Most tokens of a sequence, where it is loaded.
    pub(crate) max_tokens: Option<usize>,
    /// `text` or `vectors`, where it is loaded.
    pub(crate) kind: Option<&'static str>,
    /// Whether it generates text and has a chat template, where it is loaded.
    pub(crate) chat: Option<bool>,
    /// Why the last attempt to load it failed.
    pub(crate) trouble: Option<String>,
}

/// One request that waits for a model; counted until it is dropped.
pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Entry {
    /// A model that is not loaded.
    pub(super) fn unloaded(spec: ModelSpec) -> Self {
        Self::new(spec.name.clone(), spec.aliases.clone(), Some(spec), Slot::default())
    }

    /// A model that the caller brought along.
    pub(super) fn fixed(model: Model) -> Self {
        let (name, n_loads) = (model.name().to_owned(), model.version());
        let slot = Slot { current: Some(model), n_loads, ..Slot::default() };
        Self::new(name, Vec::new(), None, slot)
    }

    /// The same model under other settings, whose next version follows that of `self`.
    pub(super) fn successor(&self, spec: ModelSpec) -> Self {
        let next = Self::unloaded(spec);
        next.slot().n_loads = self.slot().n_loads;
        next
    }

    fn new(name: String, aliases: Vec<String>, spec: Option<ModelSpec>, slot: Slot) -> Self {
        Self { name, aliases, spec, slot: Mutex::new(slot), n_waiting: AtomicUsize::new(0) }
    }

    /// Its name and its aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.aliases)
    }

    /// Locked for as long as it takes to read or write a few fields.
    pub(super) fn slot(&self) -> MutexGuard<'_, Slot> {
        // Each field is set in one step.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is loaded and can surely answer a request for another model as well as that one.
    pub(super) fn stands_in_for(&self, other: &Self, request: &Traits) -> bool {
        let facts = |entry: &Self| {
            let slot = entry.slot();
            let model = slot.current.as_ref().filter(|model| !model.has_failed())?;
            let served = model.served();
            Some((served.most_prompt_tokens(), served.kind() == "text", served.chats()))
        };
        let Some((n, generates, chats)) = facts(self) else { return false };
        let is_long_enough = facts(other).is_none_or(|(least, ..)| n >= least);
        let is_plain = !request.has_token_ids && !request.is_particular;
        generates && (chats || !request.is_chat) && is_long_enough && is_plain
    }

    /// Says that the model is being loaded, until the result is dropped.
    pub(super) fn loading(&self) -> Loading<'_> {
        self.slot().is_loading = true;
        Loading(self)
    }

    /// The current version, in use until the result is dropped.
    pub(super) fn pin(&self) -> Option<Model> {
        self.slot().current.as_ref().map(Model::pinned)
    }

    /// Counts a request that waits for the model; `None` where too many do.
    pub(super) fn wait(&self) -> Option<Waiting<'_>> {
        let n_before = self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.n_waiting);
        (n_before < MOST_WAITING).then_some(waiting)
    }

    /// The way to load it anew.
    pub(super) fn loadable(&self) -> Result<&ModelSpec, ApiError> {
        self.spec.as_ref().ok_or_else(|| ApiError::model_is_fixed(&self.name))
    }

    /// Logs why the model was not loaded, and says so to a client.
    pub(super) fn not_loaded(&self, failure: &LoadFailure) -> ApiError {
        let LoadFailure { why, is_final } = failure;
        tracing::warn!(why, "model {} was not loaded", self.name);
        ApiError::model_not_loaded(&self.name, why, *is_final)
    }

    /// Since when nobody uses the model, if it is loaded and nobody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let slot = self.slot();
        let model = slot.current.as_ref().filter(|model| !model.is_in_use())?;
        Some(slot.idle_since.unwrap_or_else(|| model.since()))
    }

    /// Notes whether the model is in use, and says whether it was not for too long.
    pub(super) fn expires(&self, spec: &ModelSpec, now: Instant) -> bool {
        let mut slot = self.slot();
        let is_idle = slot.current.as_ref().is_some_and(|model| !model.is_in_use());
        slot.idle_since = is_idle.then(|| slot.idle_since.unwrap_or(now));
        let idle = slot.idle_since.map(|since| now.saturating_duration_since(since));
        matches!((idle, spec.keep_alive), (Some(idle), Some(most)) if idle >= most)
    }

    /// Whether its engine is at one step for longer than `most`.
    pub(super) fn hangs(&self, most: Duration) -> bool {
        self.slot().current.as_ref().is_some_and(|model| model.hangs(most) && !model.is_lost())
    }

    /// Whether its current version answers no more requests.
    pub(super) fn has_failed(&self) -> bool {
        self.slot().current.as_ref().is_some_and(Model::has_failed)
    }

    /// Whether it has failed, and long enough after the last time to be loaded anew.
    pub(super) fn may_heal(&self, now: Instant) -> bool {
        let slot = self.slot();
        slot.current.as_ref().is_some_and(Model::has_failed) && slot.may_heal(now)
    }

    /// How it stands, for clients and operators.
    pub(super) fn standing(&self) -> Standing {
        let slot = self.slot();
        let state = match &slot.current {
            Some(model) if model.has_failed() => "failed",
            Some(_) => "loaded",
            None if slot.is_loading => "loading",
            None if slot.trouble.is_some() => "failed",
            None => "unloaded",
        };
        let current = slot.current.as_ref();
        Standing {
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            state,
            version: current.map(Model::version),
            memory_bytes: current.map(|model| model.served().n_bytes()),
            max_tokens: current.map(Model::max_tokens),
            kind: current.map(|model| model.served().kind()),
            chat: current.map(|model| model.served().chats()),
            trouble: slot.trouble.clone(),
        }
    }
}

impl Slot {
    pub(super) fn may_heal(&self, now: Instant) -> bool {
        self.healed_at.is_none_or(|at| now.saturating_duration_since(at) > HEALING)
    }
}
