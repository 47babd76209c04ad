//! Stored responses: until their time is over, and within a bound of memory and of number.
//!
//! ```text
//!   background ── insert ─▶ running ── finished ─▶ finished ── older than the TTL ─▶ forgotten
//!   store: true ────────────── keep ──────────────▶    └ no room: the oldest of the tenant
//!                                                        that holds most
//! ```
//!
//! A response also holds the turns of the responses before it, which share their memory. A
//! [`Share`] counts memory until the last holder is gone, so a conversation whose beginning was
//! forgotten still counts.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton_base::TenantId;
use pelton_text::Message;

use super::record::Record;

/// Bytes that a message takes beside its texts, about.
const MESSAGE_BYTES: usize = 200;

/// Bounds of the stored responses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResponsesConfig {
    /// Time after its end for which a response is kept.
    pub ttl: Duration,
    /// Most memory of all of them together, in bytes; zero stores none.
    pub memory_bytes: usize,
    /// Most stored responses.
    pub max_stored: usize,
}

impl Default for ResponsesConfig {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(3600), memory_bytes: 64 << 20, max_stored: 10_000 }
    }
}

/// Memory in use, by tenant.
#[derive(Debug)]
struct Ledger(Vec<AtomicUsize>);

impl Ledger {
    fn total(&self) -> usize {
        self.0.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }
}

/// Memory that a tenant uses until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    ledger: Arc<Ledger>,
    tenant: usize,
    bytes: usize,
}

impl Share {
    /// Changes the number of bytes.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let place = &self.ledger.0[self.tenant];
        place.fetch_add(bytes, Ordering::Relaxed);
        place.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// The input and the output that one response added to its conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) messages: Vec<Message>,
    _share: Share,
}

/// The turns of a conversation, oldest first.
pub(crate) type History = Vec<Arc<Turn>>;

/// Every stored response.
#[derive(Debug)]
pub(crate) struct Store {
    config: ResponsesConfig,
    ledger: Arc<Ledger>,
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    records: HashMap<String, Arc<Record>>,
    /// Names of finished responses by tenant, and when each ended, oldest first.
    finished: Vec<VecDeque<(Instant, String)>>,
}

impl Shelves {
    fn forget(&mut self, tenant: usize) {
        if let Some((_, id)) = self.finished[tenant].pop_front() {
            self.records.remove(&id);
        }
    }

    fn expire(&mut self, now: Instant, ttl: Duration) {
        for tenant in 0..self.finished.len() {
            while let Some((since, _)) = self.finished[tenant].front()
                && now.saturating_duration_since(*since) >= ttl
            {
                self.forget(tenant);
            }
        }
    }
}

impl Store {
    /// An empty store for so many tenants.
    pub(crate) fn new(config: ResponsesConfig, n_tenants: usize) -> Self {
        let ledger = Ledger((0..n_tenants).map(|_| AtomicUsize::new(0)).collect());
        let finished = (0..n_tenants).map(|_| VecDeque::new()).collect();
        let shelves = Mutex::new(Shelves { records: HashMap::new(), finished });
        Self { config, ledger: Arc::new(ledger), shelves }
    }

    /// Whether it stores anything.
    pub(crate) fn is_on(&self) -> bool {
        self.config.memory_bytes > 0 && self.config.max_stored > 0
    }

    /// Bytes of all that is stored.
    #[cfg(test)]
    pub(crate) fn total(&self) -> usize {
        self.ledger.total()
    }

    /// Memory of a tenant, counted from now on.
    pub(crate) fn share(&self, tenant: TenantId, bytes: usize) -> Share {
        let (ledger, tenant) = (Arc::clone(&self.ledger), tenant.0 as usize);
        let mut share = Share { ledger, tenant, bytes: 0 };
        share.resize(bytes);
        share
    }

    /// A turn of a tenant's conversation.
    pub(crate) fn turn(&self, tenant: TenantId, messages: Vec<Message>) -> Arc<Turn> {
        let bytes = messages.iter().map(weight).sum();
        Arc::new(Turn { messages, _share: self.share(tenant, bytes) })
    }

    /// Adds a response that is still running; false where there is no room for it.
    pub(crate) fn insert(&self, record: &Arc<Record>, now: Instant) -> bool {
        let mut shelves = self.shelves();
        shelves.expire(now, self.config.ttl);
        shelves.records.insert(record.id().to_owned(), Arc::clone(record));
        self.make_room(&mut shelves);
        let fits = self.fits(&shelves);
        if !fits {
            shelves.records.remove(record.id());
        }
        fits
    }

    /// Adds a response that has ended; false where it is too large.
    pub(crate) fn finished(&self, record: &Arc<Record>, now: Instant) -> bool {
        let mut shelves = self.shelves();
        shelves.expire(now, self.config.ttl);
        shelves.records.insert(record.id().to_owned(), Arc::clone(record));
        let tenant = record.tenant().0 as usize;
        shelves.finished[tenant].push_back((now, record.id().to_owned()));
        self.make_room(&mut shelves);
        shelves.records.contains_key(record.id())
    }

    /// A response that was inserted has ended; nothing happens if it was removed meanwhile.
    pub(crate) fn settled(&self, record: &Arc<Record>, now: Instant) {
        if self.shelves().records.contains_key(record.id()) {
            self.finished(record, now);
        }
    }

    /// A stored response of this tenant.
    pub(crate) fn get(&self, id: &str, tenant: TenantId, now: Instant) -> Option<Arc<Record>> {
        let mut shelves = self.shelves();
        shelves.expire(now, self.config.ttl);
        let record = shelves.records.get(id)?;
        (record.tenant() == tenant).then(|| Arc::clone(record))
    }

    /// Removes a stored response of this tenant.
    pub(crate) fn remove(&self, id: &str, tenant: TenantId, now: Instant) -> Option<Arc<Record>> {
        let record = self.get(id, tenant, now)?;
        let mut shelves = self.shelves();
        shelves.records.remove(id);
        shelves.finished[tenant.0 as usize].retain(|(_, known)| known != id);
        Some(record)
    }

    fn fits(&self, shelves: &Shelves) -> bool {
        self.ledger.total() <= self.config.memory_bytes
            && shelves.records.len() <= self.config.max_stored
    }

    /// Forgets finished responses until the others fit: each time the oldest of the tenant that
    /// holds most.
    fn make_room(&self, shelves: &mut Shelves) {
        while !self.fits(shelves) {
            let bytes = |tenant: &usize| self.ledger.0[*tenant].load(Ordering::Relaxed);
            let holders = (0..shelves.finished.len()).filter(|&t| !shelves.finished[t].is_empty());
            let Some(tenant) = holders.max_by_key(bytes) else { return };
            shelves.forget(tenant);
        }
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a message in memory, about.
fn weight(message: &Message) -> usize {
    let content = message.content.as_str().map_or(0, str::len);
    // A tree of values takes a multiple of its text.
    let extra = message.extra.values().map(|value| 4 * value.to_string().len()).sum::<usize>();
    MESSAGE_BYTES + content + extra
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLUE: TenantId = TenantId(0);
    const RED: TenantId = TenantId(1);

    fn store(memory_bytes: usize, max_stored: usize) -> Store {
        let ttl = Duration::from_secs(10);
        Store::new(ResponsesConfig { ttl, memory_bytes, max_stored }, 2)
    }

    fn record(store: &Store, id: &str, tenant: TenantId, bytes: usize) -> Arc<Record> {
        Record::for_test(id, tenant, store.share(tenant, bytes))
    }

    #[test]
    fn a_response_is_kept_for_its_time_and_for_its_tenant_alone() {
        let (store, start) = (store(1000, 10), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(store.finished(&record(&store, "a", BLUE, 10), start));
        assert!(store.finished(&record(&store, "b", BLUE, 10), after(5)));
        assert!(store.get("a", BLUE, after(9)).is_some());
        assert!(store.get("a", RED, after(9)).is_none(), "another tenant");
        assert!(store.remove("a", RED, after(9)).is_none(), "another tenant");
        assert!(store.get("a", BLUE, after(10)).is_none(), "its time is over");
        assert!(store.get("b", BLUE, after(10)).is_some());
        assert!(store.remove("b", BLUE, after(11)).is_some());
        assert!(store.get("b", BLUE, after(11)).is_none());
        assert_eq!(store.total(), 0, "nothing is left in memory");
    }

    #[test]
    fn the_oldest_of_the_tenant_that_holds_most_makes_room() {
        let (store, now) = (store(100, 10), Instant::now());
        for (id, tenant, bytes) in [("r1", RED, 20), ("b1", BLUE, 30), ("b2", BLUE, 30)] {
            assert!(store.finished(&record(&store, id, tenant, bytes), now));
        }
        assert!(store.finished(&record(&store, "r2", RED, 30), now));
        let has = |id, tenant| store.get(id, tenant, now).is_some();
        assert!(has("r1", RED) && !has("b1", BLUE) && has("b2", BLUE) && has("r2", RED));
        assert!(!store.finished(&record(&store, "huge", RED, 101), now), "larger than the store");
        assert!(store.total() <= 100);
    }

    #[test]
    fn running_responses_are_not_forgotten_and_leave_no_room_for_too_many() {
        let (store, now) = (store(100, 2), Instant::now());
        let (one, two) = (record(&store, "1", BLUE, 1), record(&store, "2", BLUE, 1));
        assert!(store.insert(&one, now) && store.insert(&two, now));
        assert!(!store.insert(&record(&store, "3", RED, 1), now), "both places are taken");
        assert!(store.get("3", RED, now).is_none());
        let late = now + Duration::from_secs(60);
        assert!(store.get("1", BLUE, late).is_some(), "it still runs");
        assert!(store.finished(&one, late));
        assert!(store.insert(&record(&store, "3", RED, 1), late), "a finished one makes room");
        assert!(store.get("1", BLUE, late).is_none() && store.get("2", BLUE, late).is_some());
    }

    #[test]
    fn turns_count_until_the_last_response_that_holds_them_is_gone() {
        let store = store(10_000, 10);
        let turn = store.turn(BLUE, vec![Message::new("user", "x".repeat(500))]);
        let bytes = store.total();
        assert!(bytes >= 500, "{bytes}");
        let history: History = vec![Arc::clone(&turn)];
        drop(turn);
        assert_eq!(store.total(), bytes);
        drop(history);
        assert_eq!(store.total(), 0);
    }
}
