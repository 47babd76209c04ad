//! The gateway of a server: keys of a key file, limits, usage, and results that are kept.
//!
//! ```text
//!   head of a request ─► Keys::find ─► Ticket          access
//!   Running           ─► Ticket::begin                  requests per minute, requests at once
//!   tokens are known  ─► Gatekeeper::admit              tokens are reserved; a kept result is found
//!   last token        ─► settle, written                tokens are counted, and written down
//!   Running dropped   ─► Ticket::end
//! ```
//!
//! The rules are those of [`pelton_gateway`]; here they meet clocks, files and HTTP.

mod books;
mod clock;
mod config;
mod key_file;
mod keys;
mod results;
#[cfg(test)]
mod tests;
mod ticket;
mod usage_file;

pub use config::{GatewayConfig, GatewayError, UsageFailures};
pub use key_file::{KeysError, change_keys, read_keys};
pub use usage_file::UsageFile;

pub(crate) use keys::FoundKey;
pub(crate) use ticket::Ticket;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton_base::{TenantId, Usage};
use pelton_gateway::{Filter, Gate, Limits, Now, Party, PartyId, Report, Scope, Store, Who};
use pelton_llm::{Asked, Event, Gatekeeper, NotAdmitted};

use self::books::Books;
use self::clock::Clock;
use self::keys::Keys;
use self::results::Results;

/// Shared by all requests of a server.
#[derive(Debug)]
pub(crate) struct Gateway {
    clock: Clock,
    gate: Mutex<Gate>,
    /// Names and parties of the tenants, in their order.
    tenants: Vec<(String, PartyId)>,
    keys: Option<Keys>,
    books: Books,
    failures: UsageFailures,
    results: Option<Results>,
    /// Tickets of the requests that run, by their numbers.
    tickets: Mutex<HashMap<u64, Arc<Ticket>>>,
    next_ticket: AtomicU64,
}

impl Gateway {
    /// Opens the files that the settings name.
    ///
    /// # Errors
    ///
    /// See [`GatewayError`].
    pub(crate) fn open(
        config: &GatewayConfig,
        names: &[String],
    ) -> Result<Arc<Self>, GatewayError> {
        let mut store: Option<Box<dyn Store>> = None;
        if let Some(path) = &config.usage_file {
            store = Some(Box::new(UsageFile::open(path).map_err(GatewayError::Usage)?));
        }
        Self::with(config, names, store, Clock::of_system())
    }

    /// The same with usage in `store`, at the time of `clock`.
    fn with(
        config: &GatewayConfig,
        names: &[String],
        mut store: Option<Box<dyn Store>>,
        clock: Clock,
    ) -> Result<Arc<Self>, GatewayError> {
        let rows = match &mut store {
            Some(store) => store.load().map_err(GatewayError::Usage)?,
            None => BTreeMap::new(),
        };
        let mut gate = Gate::default();
        let tenants = names.iter().map(|name| {
            let limits = config.tenant_limits.iter().find(|(known, _)| known == name);
            let limits = limits.map_or_else(Limits::default, |(_, limits)| *limits);
            if limits.has_quota() && store.is_none() {
                return Err(GatewayError::NoUsageFile { of: format!("tenant `{name}`") });
            }
            Ok((name.clone(), gate.party(Party::Tenant, name, limits)))
        });
        let tenants = tenants.collect::<Result<Vec<_>, _>>()?;
        for (row, counts) in &rows {
            let parties = [(Party::Tenant, &row.tenant), (Party::Key, &row.key)];
            for (party, name) in parties.into_iter().filter(|(_, name)| !name.is_empty()) {
                let id = gate.known_or_new(party, name);
                gate.restore(id, row.day, counts.tokens());
            }
        }
        let keys = match &config.key_file {
            None => None,
            Some(path) => Some(Keys::open(path, &mut gate, names, store.is_some())?),
        };
        Ok(Arc::new(Self {
            clock,
            gate: Mutex::new(gate),
            tenants,
            keys,
            books: Books::new(rows, store),
            failures: config.usage_failures,
            results: config.result_cache_bytes.map(|n| Results::new(n, config.result_cache_ttl)),
            tickets: Mutex::default(),
            next_ticket: AtomicU64::new(1),
        }))
    }

    /// The key of the key file that a client sent.
    ///
    /// # Errors
    ///
    /// 401 for a key that has expired or was revoked, 429 where too many keys are being checked.
    pub(crate) async fn find_key(
        &self,
        sent: Option<&[u8]>,
    ) -> Result<Option<FoundKey>, crate::error::ApiError> {
        match (&self.keys, sent) {
            (Some(keys), Some(sent)) => keys.find(sent, self.now()).await,
            _ => Ok(None),
        }
    }

    /// The key of this id again, for a request from inside on behalf of who sent it before.
    ///
    /// # Errors
    ///
    /// Says why it may not send requests of its tenant any more.
    pub(crate) fn key_again(&self, id: &str, tenant: TenantId) -> Result<FoundKey, String> {
        let found = self.keys.as_ref().map(|keys| keys.again(id, self.now()));
        let key = found.unwrap_or_else(|| Err("it is in no key file".to_owned()))?;
        match key.tenant == tenant && key.scopes.has(Scope::User) {
            true => Ok(key),
            false => Err("it may not send requests of this tenant any more".to_owned()),
        }
    }

    /// A ticket for a request whose head has arrived.
    pub(crate) fn ticket(
        self: &Arc<Self>,
        tenant: TenantId,
        key: Option<&FoundKey>,
    ) -> Arc<Ticket> {
        let number = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (_, of_tenant) = self.tenants[tenant.0 as usize];
        let who = Who { key: key.map(|key| key.party), tenant: of_tenant };
        let key = key.map_or_else(|| "".into(), |key| Arc::clone(&key.id));
        Ticket::new(Arc::clone(self), number, who, key, tenant)
    }

    /// Reads the key file again when it has changed, for ever.
    pub(crate) async fn watch_keys(self: Arc<Self>) {
        if let Some(keys) = &self.keys {
            let reload = || {
                let names: Vec<String> =
                    self.tenants.iter().map(|(name, _)| name.clone()).collect();
                keys.reload(&mut self.gate(), &names, self.books.has_file())
            };
            keys.watch(reload).await;
        }
    }

    /// A request has used tokens of a model, or of several in turn.
    pub(crate) fn settle(&self, ticket: u64, model: &str, usage: Usage) {
        let ticket = self.tickets().get(&ticket).cloned();
        if let Some(ticket) = ticket {
            ticket.settle(model, usage);
        }
    }

    /// Waits until the tokens of a request with a quota are written down.
    pub(crate) async fn written(&self, ticket: u64) {
        let ticket = self.tickets().get(&ticket).cloned();
        if let Some(round) = ticket.and_then(|ticket| ticket.round()) {
            self.books.written(round).await;
        }
    }

    /// Usage: all of it, that of a key, or that of a tenant.
    pub(crate) fn report(&self, filter: &Filter) -> Report {
        self.books.report(filter)
    }

    /// Whether usage outlives the process.
    pub(crate) fn has_usage_file(&self) -> bool {
        self.books.has_file()
    }

    /// Writes what is left of the usage.
    pub(crate) fn close(&self) {
        self.books.close();
    }

    /// The name of a tenant.
    pub(crate) fn tenant_name(&self, tenant: TenantId) -> &str {
        &self.tenants[tenant.0 as usize].0
    }

    /// Keeps the answers to a request that were not cut short.
    pub(crate) fn keep(&self, ticket: u64, events: Vec<Event>) {
        let ticket = self.tickets().get(&ticket).cloned();
        let fingerprint = ticket.and_then(|ticket| ticket.take_fingerprint());
        if let (Some(results), Some(fingerprint)) = (&self.results, fingerprint) {
            results.put(fingerprint, events, self.now().elapsed);
        }
    }

    /// Whether the answers to a request are to be recorded.
    pub(crate) fn is_recording(&self, ticket: u64) -> bool {
        // Its own lock is taken only after that of the table is given back.
        let ticket = self.tickets().get(&ticket).cloned();
        self.results.is_some() && ticket.is_some_and(|ticket| ticket.is_recording())
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        // Every change is complete before its lock is released.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<u64, Arc<Ticket>>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gatekeeper for Gateway {
    fn admit(&self, asked: Asked) -> Result<u64, NotAdmitted> {
        let ticket = self.tickets().get(&asked.ticket).cloned();
        match ticket {
            Some(ticket) => ticket.reserve(asked),
            None => Ok(asked.most_answer_tokens),
        }
    }

    fn wants_fingerprint(&self, _ticket: u64) -> bool {
        self.results.is_some()
    }

    fn recorded(&self, ticket: u64, fingerprint: [u8; 32]) -> Option<Arc<Vec<Event>>> {
        let found = self.results.as_ref()?.get(&fingerprint, self.now().elapsed);
        let ticket = self.tickets().get(&ticket).cloned()?;
        ticket.looked_up(fingerprint, found.is_some());
        found
    }
}
