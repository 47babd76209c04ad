//! Models by name: which are loaded, and loading, unloading and replacing them.
//!
//! ```text
//!   model(name) ── loaded ──────────────▶ a pin on its current version
//!              └── not ── turn ── room ── load ──┘
//!   reload(name)    load beside the old version, exchange the two; the old one ends with its last request
//!   sweep           once a second: unloads what was idle for its `keep_alive`, heals what failed
//! ```
//!
//! **Architecture invariant:** one model is loaded at a time, and requests for models that are
//! loaded never wait for that: a model's state is locked for as long as it takes to read a pointer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::directory::{Directory, check};
use super::entry::{Entry, Standing};
use super::room::Room;
use super::routing::{Chosen, Load, Routing, Rules, Traits};
use super::spec::LoadFailure;
use super::{AUTO, Model, ModelSpec, ModelsError, Served};
use crate::error::ApiError;

/// Longest wait for the memory of models that have ended and still compute their last step.
const FREEING: Duration = Duration::from_secs(10);

/// The models of a server.
#[derive(Debug)]
pub struct Catalog {
    directory: RwLock<Arc<Directory>>,
    room: Arc<Room>,
    /// Held by the one who loads or unloads.
    turn: Mutex<()>,
    /// Longest step of an engine; after it the engine is given up. `None` for no limit.
    step_timeout: Option<Duration>,
    /// Counts loads and unloads.
    changes: watch::Sender<u64>,
}

impl Catalog {
    /// A catalog of one model that is loaded already and is the caller's.
    pub fn of(served: Served) -> Self {
        let model = Model::new(served.name().to_owned(), served, 1, None);
        Self::with(vec![Entry::fixed(model)], None)
    }

    /// A catalog of models that are not loaded yet. A request that names no model is for the first
    /// one. With a `budget` their weights, keys and values never take more bytes together.
    ///
    /// # Errors
    ///
    /// Names that are empty or belong to two models; no model at all.
    pub fn new(specs: Vec<ModelSpec>, budget: Option<u64>) -> Result<Self, ModelsError> {
        check(&specs)?;
        Ok(Self::with(specs.into_iter().map(Entry::unloaded).collect(), budget))
    }

    fn with(entries: Vec<Entry>, budget: Option<u64>) -> Self {
        let entries = entries.into_iter().map(Arc::new).collect();
        let directory = Directory::new(entries, Arc::default());
        let (room, changes) = (Arc::new(Room::new(budget)), watch::Sender::new(0));
        let (turn, step_timeout) = (Mutex::new(()), None);
        Self { directory: RwLock::new(Arc::new(directory)), room, turn, step_timeout, changes }
    }

    /// The entries as they are now.
    fn directory(&self) -> Arc<Directory> {
        // It is replaced whole.
        Arc::clone(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follows these rules, which [`Routing::check`] has found sound for its models.
    pub fn routed(self, routing: Routing) -> Self {
        let entries = self.directory().entries.clone();
        let directory = Directory::new(entries, Arc::new(Rules::new(routing)));
        Self { directory: RwLock::new(Arc::new(directory)), ..self }
    }

    /// Puts other settings into force: loads anew whose settings differ, takes in new models, and takes
    /// out those that are not named any more once their requests have ended. The result says what
    /// happened, a line for each model that is not as it was, and one for other rules.
    ///
    /// # Errors
    ///
    /// As [`Catalog::new`]; then nothing has changed. A model that cannot be loaded stays as it was,
    /// and its line says why.
    pub fn apply(
        &self,
        specs: Vec<ModelSpec>,
        routing: Routing,
    ) -> Result<Vec<String>, ModelsError> {
        check(&specs)?;
        let _turn = self.turn();
        let old = self.directory();
        let (mut entries, mut lines) = (Vec::with_capacity(specs.len()), Vec::new());
        for spec in specs {
            let before = old.entries.iter().find(|entry| entry.name == spec.name);
            let same = before.and_then(|entry| entry.spec.as_ref());
            match before.filter(|_| same.is_some_and(|same| same.settings == spec.settings)) {
                Some(entry) => entries.push(Arc::clone(entry)),
                None => entries.extend(self.exchange(before, spec, &mut lines)),
            }
        }
        let gone = |entry: &&Arc<Entry>| !entries.iter().any(|kept| kept.name == entry.name);
        lines.extend(
            old.entries.iter().filter(gone).map(|entry| format!("model {} is gone", entry.name)),
        );
        let rules = match old.rules.routing() == &routing {
            true => Arc::clone(&old.rules),
            false => {
                lines.push("the rules of `auto` and `degrade` are replaced".to_owned());
                Arc::new(Rules::new(routing))
            }
        };
        let next = Arc::new(Directory::new(entries, rules));
        let is_kept =
            |entry: &&Arc<Entry>| next.entries.iter().any(|kept| Arc::ptr_eq(kept, entry));
        let retired: Vec<_> = old.entries.iter().filter(|entry| !is_kept(entry)).cloned().collect();
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = next;
        retired.iter().for_each(|entry| self.take_out(entry));
        Ok(lines)
    }

    /// The entry of a model with new settings, loaded where its predecessor is or where it is to be
    /// from the start; the predecessor, if there is one, where that fails.
    fn exchange(
        &self,
        before: Option<&Arc<Entry>>,
        spec: ModelSpec,
        lines: &mut Vec<String>,
    ) -> Option<Arc<Entry>> {
        let name = spec.name.clone();
        let is_wanted = before.map_or(spec.preload, |entry| entry.slot().current.is_some());
        let next = match before {
            Some(entry) => entry.successor(spec.clone()),
            None => Entry::unloaded(spec.clone()),
        };
        match is_wanted.then(|| self.replace(&next, &spec)) {
            Some(Err(LoadFailure { why, .. })) => {
                let outcome = if before.is_some() { "stays as it was" } else { "is not served" };
                lines.push(format!("model {name} {outcome}: {why}"));
                return before.cloned();
            }
            Some(Ok(model)) => {
                lines.push(format!("model {name} is loaded (version {})", model.version()))
            }
            None => lines.push(format!("model {name} has new settings")),
        }
        Some(Arc::new(next))
    }

    /// Gives engines up that are at one step for longer than this, and loads their models anew.
    pub fn watched(self, step_timeout: Option<Duration>) -> Self {
        Self { step_timeout, ..self }
    }

    /// Loads the models that are to be there from the start; one for which others leave no memory is
    /// loaded when it is asked for.
    ///
    /// # Errors
    ///
    /// The first one that cannot be loaded.
    pub fn preload(&self) -> Result<(), ModelsError> {
        let wanted = |entry: &&Arc<Entry>| entry.spec.as_ref().is_some_and(|spec| spec.preload);
        for entry in self.directory().entries.iter().filter(wanted) {
            if self.is_crowded_out(entry) {
                tracing::warn!(
                    "model {} is not loaded at the start, because `models_memory` has no room for it \
                     beside the models before it; `preload: false` says so",
                    entry.name
                );
                continue;
            }
            self.ensure(entry).map_err(|why| match why {
                NotLoaded::Busy => unreachable!("nobody else waits"),
                NotLoaded::Failed(LoadFailure { why, .. }) => {
                    ModelsError::Load { name: entry.name.clone(), why }
                }
            })?;
        }
        Ok(())
    }

    /// Whether a model could be loaded only in the place of one that is loaded.
    fn is_crowded_out(&self, entry: &Entry) -> bool {
        let Some(n_left) = self.room.n_left() else { return false };
        let spec = entry.spec.as_ref();
        let n_bytes = spec.and_then(|spec| spec.loader.weight_bytes().ok()).unwrap_or(0);
        n_bytes > n_left && !self.loaded().is_empty()
    }

    /// The loaded models, in the order of their names' first mention.
    pub fn served(&self) -> Vec<Served> {
        self.loaded().iter().map(|model| model.served().clone()).collect()
    }

    /// The names of the models, without aliases.
    pub fn names(&self) -> Vec<String> {
        self.directory().entries.iter().map(|entry| entry.name.clone()).collect()
    }

    /// The model of a request: by the name that it asks for, or the first one.
    ///
    /// May wait until a model is loaded, so it is called where a thread may block.
    ///
    /// # Errors
    ///
    /// Names the models that there are; or says why this one cannot be loaded.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<Model, ApiError> {
        let entry = self.directory().find(asked)?;
        if let Some(model) = entry.pin() {
            return Ok(model);
        }
        self.ensure(&entry).map_err(|why| match why {
            NotLoaded::Busy => ApiError::model_loading(&entry.name),
            NotLoaded::Failed(why) => entry.not_loaded(&why),
        })
    }

    /// The model of a request of a tenant, which the rules may choose, and the rule that did. `load` is
    /// that of a model by its name.
    ///
    /// May wait until a model is loaded.
    ///
    /// # Errors
    ///
    /// As [`Catalog::model`]; and for requests whose token ids would mean something else to the model
    /// that the rules choose.
    pub(crate) fn route(
        &self,
        asked: Option<&str>,
        tenant: &str,
        request: impl FnOnce() -> Traits,
        load: impl FnOnce(&str) -> Load,
    ) -> Result<(Model, Option<Chosen>), ApiError> {
        let directory = self.directory();
        let rules = &directory.rules;
        if rules.routing().is_empty() {
            return Ok((self.model(asked)?, None));
        }
        let request = request();
        let is_auto = asked == Some(AUTO);
        if is_auto && request.has_token_ids {
            return Err(ApiError::auto_with_token_ids());
        }
        let chosen = if is_auto { rules.choose(&request, tenant) } else { None };
        if let Some(chosen) = &chosen {
            tracing::info!("`{}` chooses {} for {request}", chosen.rule, chosen.to);
        }
        let wanted = chosen.as_ref().map(|chosen| chosen.to.as_str()).or(asked);
        let entry = directory.find(wanted)?;
        let is = |a: &str, b: &str| directory.entry(a).is_some_and(|entry| entry.name == b);
        let can =
            |to: &str| directory.entry(to).is_some_and(|to| to.stands_in_for(&entry, &request));
        let (of, name) = ((&request, tenant), entry.name.as_str());
        match rules.moves(name, of, || load(name), is, can) {
            Some((moved, load)) => {
                let Chosen { to, rule, .. } = &moved;
                tracing::info!("`{rule}` moves a request from {name} to {to}: {load}");
                Ok((self.model(Some(to))?, Some(moved)))
            }
            None => Ok((self.model(Some(name))?, chosen)),
        }
    }

    /// How often each rule chose since the rules are in force.
    pub(crate) fn moved(&self) -> Vec<(Chosen, u64)> {
        self.directory().rules.counts()
    }

    /// Whether requests may ask for `auto`.
    pub(crate) fn has_auto(&self) -> bool {
        !self.directory().rules.routing().auto.is_empty()
    }

    /// The models that are loaded now.
    pub(crate) fn loaded(&self) -> Vec<Model> {
        let entries = &self.directory().entries;
        entries.iter().filter_map(|entry| entry.slot().current.clone()).collect()
    }

    /// How all models stand.
    pub(crate) fn standing(&self) -> Vec<Standing> {
        self.directory().entries.iter().map(|entry| entry.standing()).collect()
    }

    /// How one model stands; `asked` is its name or an alias.
    pub(crate) fn standing_of(&self, asked: &str) -> Result<Standing, ApiError> {
        Ok(self.directory().find(Some(asked))?.standing())
    }

    /// Loads a model, unless it is loaded.
    pub(crate) fn load(&self, asked: &str) -> Result<Standing, ApiError> {
        drop(self.model(Some(asked))?);
        self.standing_of(asked)
    }

    /// Loads a model anew from its files. Requests that have begun end on the old version, later
    /// ones are answered by the new one; if it cannot be loaded, the old one stays.
    pub(crate) fn reload(&self, asked: &str) -> Result<Standing, ApiError> {
        let entry = self.directory().find(Some(asked))?;
        let spec = entry.loadable()?;
        let _turn = self.turn();
        self.replace(&entry, spec).map_err(|why| entry.not_loaded(&why))?;
        Ok(entry.standing())
    }

    /// Takes a model out of memory as soon as its requests have ended; the next request loads it.
    pub(crate) fn unload(&self, asked: &str) -> Result<Standing, ApiError> {
        let entry = self.directory().find(Some(asked))?;
        entry.loadable()?;
        let _turn = self.turn();
        self.take_out(&entry);
        Ok(entry.standing())
    }

    /// The model, loaded by this thread or by another one that is at it.
    fn ensure(&self, entry: &Entry) -> Result<Model, NotLoaded> {
        let spec = entry.spec.as_ref().expect("invariant: a model without a spec is always there");
        let _waiting = entry.wait().ok_or(NotLoaded::Busy)?;
        let _turn = self.turn();
        if let Some(model) = entry.pin() {
            return Ok(model);
        }
        self.replace(entry, spec).map_err(NotLoaded::Failed)
    }

    /// Loads a model and makes it the current version; the caller has the turn.
    fn replace(&self, entry: &Entry, spec: &ModelSpec) -> Result<Model, LoadFailure> {
        let outcome = {
            let _loading = entry.loading();
            self.load_beside(entry, spec)
        };
        let mut slot = entry.slot();
        let old = match outcome {
            Err(failure) => {
                slot.trouble = Some(failure.why.clone());
                return Err(failure);
            }
            Ok(served) => {
                slot.n_loads += 1;
                let memory = Some((Arc::clone(&self.room), served.n_bytes()));
                let model = Model::new(entry.name.clone(), served, slot.n_loads, memory);
                (slot.trouble, slot.idle_since) = (None, None);
                slot.current.replace(model)
            }
        };
        let new = slot.current.as_ref().expect("invariant: it was set").pinned();
        drop(slot);
        drop(old);
        self.changes.send_modify(|n| *n += 1);
        tracing::info!("model {} (version {}) is loaded", entry.name, new.version());
        Ok(new)
    }

    /// Loads a model once there is memory for it.
    fn load_beside(&self, entry: &Entry, spec: &ModelSpec) -> Result<Served, LoadFailure> {
        let mut most_bytes = None;
        if self.room.n_left().is_some() {
            let n_bytes = spec.loader.weight_bytes()?;
            self.make_room(entry, n_bytes)?;
            most_bytes = self.room.n_left();
        }
        Ok(spec.loader.load(most_bytes)?)
    }

    /// Unloads idle models, the longest idle one first, until so many bytes are left; none for a model
    /// that alone is too large.
    fn make_room(&self, keep: &Entry, n_bytes: u64) -> Result<(), LoadFailure> {
        let (needs, budget) = (n_bytes.div_ceil(1 << 20), self.room.budget().unwrap_or(u64::MAX));
        if n_bytes > budget {
            let all = budget >> 20;
            let why = format!(
                "its weights need {needs} MiB, and `models_memory` is {all} MiB for all models"
            );
            return Err(LoadFailure { why, is_final: true });
        }
        while self.room.n_left().is_some_and(|n_left| n_left < n_bytes) {
            let directory = self.directory();
            let idle = directory.entries.iter().filter(|entry| entry.name != keep.name);
            let idle = idle.filter_map(|entry| Some((entry.idle_since()?, entry)));
            match idle.min_by_key(|(since, _)| *since) {
                Some((_, entry)) => self.take_out(entry),
                None => break,
            }
        }
        if self.room.waits_for(n_bytes, FREEING) {
            return Ok(());
        }
        let left = self.room.n_left().unwrap_or(u64::MAX) >> 20;
        let why = format!(
            "its weights need {needs} MiB of memory, and {left} MiB are left while other models \
             answer requests; `models_memory` is the limit for all models together"
        );
        Err(why.into())
    }

    fn take_out(&self, entry: &Entry) {
        let old = entry.slot().current.take();
        if let Some(old) = old {
            old.retire();
            self.changes.send_modify(|n| *n += 1);
        }
    }

    /// Unloads models that nobody uses, and loads models anew that have failed. Called once a
    /// second, on a thread that may block.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let directory = self.directory();
        let has_others = directory.entries.len() > 1;
        for entry in &directory.entries {
            if self.step_timeout.is_some_and(|most| entry.hangs(most)) {
                self.rescue(entry);
            }
            let Some(spec) = &entry.spec else { continue };
            if entry.expires(spec, now) {
                tracing::info!("model {} was idle for its `keep_alive`", entry.name);
                self.take_out(entry);
            }
            if has_others && entry.may_heal(now) {
                tracing::error!("model {} has failed and is loaded anew", entry.name);
                let _turn = self.turn();
                entry.slot().healed_at = Some(now);
                if let Err(why) = self.replace(entry, spec) {
                    // Requests for it get 503.
                    let _ = entry.not_loaded(&why);
                }
            }
        }
    }

    /// Gives up an engine that hangs, and loads its model anew, with a state of its own.
    fn rescue(&self, entry: &Entry) {
        tracing::error!("the engine of model {} hangs in a step and is given up", entry.name);
        let _turn = self.turn();
        let lost = entry.slot().current.clone();
        let Some(spec) = &entry.spec else {
            // Nothing can replace it.
            return lost.iter().for_each(Model::give_up);
        };
        spec.loader.abandon_threads();
        if let Err(why) = self.replace(entry, spec) {
            let _ = entry.not_loaded(&why);
            entry.slot().current = None;
        }
        // Now, so that requests that are run again find the new version.
        lost.iter().for_each(Model::give_up);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Whether no model can answer any more.
    pub(crate) fn has_failed(&self) -> bool {
        let (now, directory) = (Instant::now(), self.directory());
        let has_others = directory.entries.len() > 1;
        directory
            .entries
            .iter()
            .all(|entry| entry.has_failed() && !(has_others && entry.may_heal(now)))
    }

    /// Waits until no model can answer any more.
    pub(crate) async fn failed(&self) {
        let mut changes = self.changes.subscribe();
        while !self.has_failed() {
            changes.mark_unchanged();
            // Not the versions themselves, which end when nobody holds them.
            let served = self.served();
            let working = served.iter().filter(|served| !served.has_failed());
            let failures: Vec<_> = working.map(|served| Box::pin(served.failed())).collect();
            if failures.is_empty() {
                // Waits for a model that is loaded anew.
                let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
                continue;
            }
            tokio::select! {
                _ = futures_util::future::select_all(failures) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Stops all models and aborts running requests.
    pub(crate) fn shutdown(&self) {
        self.loaded().iter().for_each(|model| model.served().shutdown());
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a model is not there.
enum NotLoaded {
    /// Too many requests wait for it.
    Busy,
    Failed(LoadFailure),
}
