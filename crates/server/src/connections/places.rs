//! The places of open connections: how many there are, and which connection is given up for a new
//! one.
//!
//! ```text
//!   ◄──────────────────── open connections ────────────────────►
//!   ┌─────────────────────────────────┬────────────────────────┐
//!   │ max_connections                 │ reserved_connections   │
//!   │ in any request, or in none      │ in none, or in one for │
//!   │                                 │ /health, /ready, ...   │
//!   └─────────────────────────────────┴────────────────────────┘
//! ```
//!
//! When every place is taken, a new connection gets the place of the idlest one: the connection
//! that has waited longest for a whole request, be it its first or a later one. A client that sends
//! its request byte by byte is as idle as one that sends nothing. A connection whose request is
//! being answered is never given up. At most `max_connections` of these are in requests of users,
//! and the routes for operators answer at once, so a health check always finds a place.
//!
//! A connection that looks idle may have a request that nobody has read yet, and when file
//! descriptors are scarce many connections are given up between its arrival and its turn. So a
//! connection is read once more before it closes, and a request that has come takes a place again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ServeConfig;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    /// Its request arrives: since it was accepted, or since the first byte of a later request.
    Head(Instant),
    /// It has an answer and no byte of another request.
    Idle(Instant),
    /// A request is being answered, for an operator or for a user.
    Request { is_operator: bool },
}

impl Phase {
    /// Since when it has waited for a whole request; `None` in a request.
    fn idle_since(self) -> Option<Instant> {
        match self {
            Self::Head(since) | Self::Idle(since) => Some(since),
            Self::Request { .. } => None,
        }
    }

    fn is_users_request(self) -> bool {
        self == Self::Request { is_operator: false }
    }
}

/// The places of one server.
#[derive(Debug)]
pub(super) struct Places {
    most_requests: usize,
    most_connections: usize,
    most_per_address: Option<usize>,
    table: Mutex<Table>,
    /// A place became free, or a connection idle.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    next_id: u64,
    /// Connections in requests of users.
    n_requests: usize,
}

#[derive(Debug)]
struct Entry {
    /// `None` for clients of a Unix socket, which count for no address.
    address: Option<IpAddr>,
    phase: Phase,
    /// Tells the connection that its phase has changed, or that its place is given up.
    changed: Arc<Notify>,
}

/// The place of one connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    id: u64,
    address: Option<IpAddr>,
    changed: Arc<Notify>,
}

/// The outcome for a new connection.
#[derive(Debug)]
enum Entrance {
    Open(Place),
    Refused(Refusal),
}

/// The reason why there is no room for a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refusal {
    /// Its address has as many connections as it may have, all of them in requests.
    TooMany,
    /// All connections are in requests.
    Full,
}

impl Places {
    pub(super) fn new(config: &ServeConfig) -> Arc<Self> {
        Arc::new(Self {
            most_requests: config.max_connections,
            most_connections: config.max_connections.saturating_add(config.reserved_connections),
            most_per_address: config.max_connections_per_address,
            table: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A place for a new connection, as soon as there is one; `None` if its address has too many.
    pub(super) async fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        loop {
            match self.try_enter(address) {
                Entrance::Open(place) => return Some(place),
                Entrance::Refused(Refusal::TooMany) => return None,
                Entrance::Refused(Refusal::Full) => self.freed.notified().await,
            }
        }
    }

    fn try_enter(self: &Arc<Self>, address: Option<IpAddr>) -> Entrance {
        let mut table = self.table();
        if let Err(refusal) = self.make_room(&mut table, address) {
            return Entrance::Refused(refusal);
        }
        let id = table.next_id;
        table.next_id += 1;
        let changed = Arc::new(Notify::new());
        let phase = Phase::Head(Instant::now());
        let entry = Entry { address, phase, changed: Arc::clone(&changed) };
        table.entries.insert(id, entry);
        Entrance::Open(Place { places: Arc::clone(self), id, address, changed })
    }

    /// Gives up idle connections until there is room for one more from an address: several, after
    /// operators' requests have come in on connections that were given up.
    fn make_room(&self, table: &mut Table, address: Option<IpAddr>) -> Result<(), Refusal> {
        if let Some(most) = self.most_per_address.filter(|_| address.is_some()) {
            let is_of_it = |entry: &Entry| entry.address == address;
            while table.entries.values().filter(|entry| is_of_it(entry)).count() >= most {
                if !table.give_up_idlest(is_of_it) {
                    return Err(Refusal::TooMany);
                }
            }
        }
        while table.entries.len() >= self.most_connections {
            if !table.give_up_idlest(|_| true) {
                return Err(Refusal::Full);
            }
        }
        Ok(())
    }

    /// Closes the idlest connection; false if all are in requests.
    pub(super) fn give_up_idlest(&self) -> bool {
        self.table().give_up_idlest(|_| true)
    }

    /// Waits until a connection has closed or become idle.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change to the table is complete before its lock is released.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn give_up_idlest(&mut self, may_go: impl Fn(&Entry) -> bool) -> bool {
        let idle = self.entries.iter().filter(|(_, entry)| may_go(entry));
        let idle = idle.filter_map(|(id, entry)| Some((entry.phase.idle_since()?, *id)));
        let Some((_, id)) = idle.min() else { return false };
        self.remove(id);
        tracing::debug!("the idlest connection is closed, because its place is needed");
        true
    }

    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.n_requests -= usize::from(entry.phase.is_users_request());
            entry.changed.notify_one();
        }
    }

    fn set(&mut self, id: u64, phase: Phase) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.n_requests -= usize::from(entry.phase.is_users_request());
            self.n_requests += usize::from(phase.is_users_request());
            entry.phase = phase;
            entry.changed.notify_one();
        }
    }
}

impl Place {
    /// The state of its connection; `None` after the place was given up.
    pub(super) fn phase(&self) -> Option<Phase> {
        self.places.table().entries.get(&self.id).map(|entry| entry.phase)
    }

    /// Waits until the phase is another one.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The first byte of a later request has come.
    pub(super) fn set_head(&self) {
        self.places.table().set(self.id, Phase::Head(Instant::now()));
    }

    /// An answer is sent, so the connection may be given up again.
    pub(super) fn set_idle(&self) {
        self.places.table().set(self.id, Phase::Idle(Instant::now()));
        self.places.freed.notify_one();
    }

    /// A request begins; false if too many requests are being answered.
    ///
    /// If the place was given up while the request was on its way, the connection takes one again,
    /// beyond all limits for an operator's request, which is answered at once.
    #[must_use]
    pub(super) fn begin_request(&self, is_operator: bool) -> bool {
        let mut table = self.places.table();
        let is_in_request = match table.entries.get(&self.id) {
            Some(entry) => entry.phase.is_users_request(),
            None => {
                let has_room = self.places.make_room(&mut table, self.address).is_ok();
                if !has_room && !is_operator {
                    return false;
                }
                let phase = Phase::Head(Instant::now());
                let changed = Arc::clone(&self.changed);
                table.entries.insert(self.id, Entry { address: self.address, phase, changed });
                false
            }
        };
        let n_others = table.n_requests - usize::from(is_in_request);
        let is_admitted = is_operator || n_others < self.places.most_requests;
        // A request that is refused is answered at once, as those of operators are.
        table.set(self.id, Phase::Request { is_operator: is_operator || !is_admitted });
        is_admitted
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().remove(self.id);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const A: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const B: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)));

    fn places(most: usize, reserved: usize, per_address: Option<usize>) -> Arc<Places> {
        Places::new(&ServeConfig {
            max_connections: most,
            reserved_connections: reserved,
            max_connections_per_address: per_address,
            ..ServeConfig::default()
        })
    }

    /// A place that must be had at once; each is a second younger than the one before.
    async fn enter(places: &Arc<Places>, address: Option<IpAddr>) -> Place {
        tokio::time::advance(Duration::from_secs(1)).await;
        match places.try_enter(address) {
            Entrance::Open(place) => place,
            Entrance::Refused(refusal) => panic!("no place: {refusal:?}"),
        }
    }

    fn is_open(place: &Place) -> bool {
        place.phase().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_waits_longest_for_a_request_goes_first() {
        let places = places(3, 0, None);
        let first = enter(&places, A).await;
        let second = enter(&places, B).await;
        let third = enter(&places, A).await;
        // The first connection has had an answer since the second one came.
        assert!(first.begin_request(false));
        tokio::time::advance(Duration::from_secs(1)).await;
        first.set_idle();
        let fourth = enter(&places, A).await;
        assert_eq!([&first, &second, &third].map(is_open), [true, false, true]);
        let fifth = enter(&places, A).await;
        assert_eq!([&first, &third, &fourth].map(is_open), [true, false, true]);
        drop(fifth);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_in_a_request_is_never_given_up() {
        let places = places(2, 0, None);
        let busy = enter(&places, A).await;
        let idle = enter(&places, A).await;
        assert!(busy.begin_request(false));
        let next = enter(&places, A).await;
        assert!(is_open(&busy) && !is_open(&idle));
        assert!(next.begin_request(false));
        assert!(matches!(places.try_enter(A), Entrance::Refused(Refusal::Full)));
        assert!(!places.give_up_idlest());
        assert!(is_open(&busy) && is_open(&next));
        // A waiting connection comes in when one of these becomes idle.
        let (entered, ()) = tokio::join!(places.enter(B), async { next.set_idle() });
        assert!(entered.is_some() && !is_open(&next));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_on_its_way_takes_a_place_again() {
        let places = places(2, 0, None);
        let late = enter(&places, A).await;
        let other = enter(&places, A).await;
        let next = enter(&places, A).await;
        assert!(!is_open(&late) && is_open(&other) && is_open(&next));
        // It takes the idlest one's place.
        assert!(late.begin_request(false));
        assert_eq!([&late, &other, &next].map(is_open), [true, false, true]);
        assert!(next.begin_request(false));
        // Now all are in requests, and only an operator's request is answered beside them.
        assert!(!other.begin_request(false) && !is_open(&other));
        assert!(other.begin_request(true));
        assert_eq!(places.table().entries.len(), 3);
        // The next connection comes in when no more are open than may be.
        other.set_idle();
        assert!(matches!(places.try_enter(A), Entrance::Refused(Refusal::Full)));
        assert!(!is_open(&other));
        late.set_idle();
        let last = enter(&places, A).await;
        assert_eq!([&late, &next, &last].map(is_open), [false, true, true]);
        drop((late, other, next, last));
        assert_eq!(places.table().n_requests, 0);
        assert!(places.table().entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_users_leave_the_reserve_to_operators() {
        let places = places(1, 1, None);
        let user = enter(&places, A).await;
        assert!(user.begin_request(false) && user.begin_request(false), "a later one on the same");
        let other = enter(&places, A).await;
        assert!(!other.begin_request(false), "it would take the reserve");
        other.set_idle();
        assert!(other.begin_request(true));
        other.set_idle();
        drop(user);
        assert!(other.begin_request(false));
        drop(other);
        assert_eq!(places.table().n_requests, 0);
        assert!(places.table().entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_gives_up_its_own_idlest_connection() {
        let places = places(9, 0, Some(2));
        let other = enter(&places, B).await;
        let (one, two) = (enter(&places, A).await, enter(&places, A).await);
        let three = enter(&places, A).await;
        assert_eq!([&other, &one, &two].map(is_open), [true, false, true]);
        assert!(two.begin_request(false) && three.begin_request(false));
        assert!(matches!(places.try_enter(A), Entrance::Refused(Refusal::TooMany)));
        assert!(places.enter(A).await.is_none());
        assert!(is_open(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_of_a_unix_socket_count_for_no_address() {
        let places = places(3, 0, Some(1));
        let all = [enter(&places, None).await, enter(&places, None).await, enter(&places, A).await];
        assert_eq!(all.each_ref().map(is_open), [true; 3]);
        let fourth = enter(&places, None).await;
        assert_eq!(all.each_ref().map(is_open), [false, true, true], "all places are taken");
        drop(fourth);
    }
}
