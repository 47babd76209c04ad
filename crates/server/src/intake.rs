//! Room and turns for large bodies.
//!
//! ```text
//!   up to 64 KiB   received and read as JSON at once; the limit on connections bounds their memory
//!   larger         waits for room, is received, waits for a turn, is read as JSON
//! ```
//!
//! Room is memory: of all tenants together for four bodies of the largest size, of one tenant for
//! two. Turns are threads: a body of megabytes takes a thread for a while, and the model's own threads
//! need the processor. Both are given in the order of asking. A client whose body waits for room is
//! not listened to, so it waits too.
//!
//! A client that sends slowly loses the room while other bodies wait for it.
//!
//! **Architecture invariant:** a body takes all of its room at once, and before its turn. So no body
//! waits for another body that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use pelton_base::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant};

use crate::limits;

/// Processors for each turn.
const PROCESSORS_PER_TURN: usize = 8;
/// Time after which a body with room must arrive at the least speed.
const GRACE: Duration = Duration::from_secs(2);

/// Room and turns of a server; sizes are in KiB.
#[derive(Debug)]
pub(crate) struct Intake {
    room: Arc<Semaphore>,
    room_of_tenants: Vec<Arc<Semaphore>>,
    /// Bodies that wait for room.
    n_waiting: AtomicUsize,
    turns: Arc<Semaphore>,
}

/// Memory for one body, given back when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Room {
    since: Instant,
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Permission to read a large body as JSON, given back when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Intake {
    /// Room for bodies of at most `max_body_bytes`.
    pub(crate) fn new(max_body_bytes: usize, n_tenants: usize) -> Self {
        let room = |n_bodies| Arc::new(Semaphore::new(n_bodies * max_body_bytes.div_ceil(1024)));
        let n_processors = available_parallelism().map_or(1, usize::from);
        Self {
            room: room(limits::LARGE_BODIES),
            room_of_tenants: (0..n_tenants).map(|_| room(limits::LARGE_BODIES / 2)).collect(),
            n_waiting: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new((n_processors / PROCESSORS_PER_TURN).max(1))),
        }
    }

    /// Waits for room for a body of at most the largest size.
    pub(crate) async fn room(&self, tenant: TenantId, n_bytes: usize) -> Room {
        let _waiting = Waiting::new(&self.n_waiting);
        let n_kib = u32::try_from(n_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        // The tenant's room first: then few bodies of a tenant are ahead of those of other tenants.
        let of_tenant = Arc::clone(&self.room_of_tenants[tenant.0 as usize]);
        let of_tenant = of_tenant.acquire_many_owned(n_kib).await.expect(NEVER_CLOSED);
        let of_all = Arc::clone(&self.room).acquire_many_owned(n_kib).await.expect(NEVER_CLOSED);
        Room { since: Instant::now(), _of_tenant: of_tenant, _of_all: of_all }
    }

    /// Whether a body, of which `n_bytes` have arrived, must give its room to others.
    pub(crate) fn is_too_slow(&self, room: &Room, n_bytes: usize) -> bool {
        let elapsed = room.since.elapsed().saturating_sub(GRACE).as_secs_f64();
        let is_slow = (n_bytes as f64) < elapsed * limits::BODY_BYTES_PER_SECOND;
        is_slow && self.n_waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self) -> Turn {
        let permit = Arc::clone(&self.turns).acquire_owned().await.expect(NEVER_CLOSED);
        Turn { _permit: permit }
    }
}

/// Counts one that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(n_waiting: &'a AtomicUsize) -> Self {
        n_waiting.fetch_add(1, Ordering::Relaxed);
        Self(n_waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const NEVER_CLOSED: &str = "invariant: nothing closes these semaphores";

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    /// How many there are, and how many there were at most.
    #[derive(Default)]
    struct Gauge(AtomicUsize, AtomicUsize);

    impl Gauge {
        fn enter(&self) {
            self.1.fetch_max(self.0.fetch_add(1, SeqCst) + 1, SeqCst);
        }

        fn leave(&self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }

    const LARGEST: usize = 1 << 20;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn few_bodies_have_room_and_fewer_have_a_turn() {
        let intake = Arc::new(Intake::new(LARGEST, 3));
        let n_turns = available_parallelism().map_or(1, |n| (usize::from(n) / 8).max(1));
        let gauges: Arc<[Gauge; 5]> = Arc::default();
        let body = |i: usize| {
            let (intake, gauges) = (Arc::clone(&intake), Arc::clone(&gauges));
            async move {
                let tenant = i % 3;
                let _room = intake.room(TenantId(tenant as u32), LARGEST).await;
                [3, tenant].iter().for_each(|&gauge| gauges[gauge].enter());
                tokio::task::yield_now().await;
                let turn = intake.turn().await;
                gauges[4].enter();
                tokio::task::yield_now().await;
                [4, 3, tenant].iter().for_each(|&gauge| gauges[gauge].leave());
                drop(turn);
            }
        };
        let bodies: Vec<_> = (0..100).map(|i| tokio::spawn(body(i))).collect();
        for body in bodies {
            body.await.expect("it ends");
        }
        let most: Vec<usize> = gauges.iter().map(|gauge| gauge.1.load(SeqCst)).collect();
        assert!(most[..3].iter().all(|&n| (1..=2).contains(&n)), "of a tenant: {most:?}");
        assert!((2..=4).contains(&most[3]), "of all: {most:?}");
        assert!((1..=n_turns).contains(&most[4]), "turns: {most:?}");
        assert_eq!(intake.room.available_permits(), 4 * 1024, "all room came back");
    }

    #[tokio::test]
    async fn a_tenant_that_floods_leaves_room_for_another() {
        let intake = Intake::new(LARGEST, 2);
        let (flood, other) = (TenantId(0), TenantId(1));
        let _held = (intake.room(flood, LARGEST).await, intake.room(flood, LARGEST).await);
        let mut third = Box::pin(intake.room(flood, LARGEST));
        tokio::select! {
            biased;
            _ = &mut third => panic!("a third of one tenant has room"),
            _ = intake.room(other, LARGEST) => {}
        }
        // A body that no longer waits gives up its place.
        drop(third);
        assert_eq!(intake.room.available_permits(), 2 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_loses_its_room_only_while_others_wait() {
        let intake = Intake::new(LARGEST, 1);
        let tenant = TenantId(0);
        let room = intake.room(tenant, LARGEST).await;
        let _second = intake.room(tenant, LARGEST).await;
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!intake.is_too_slow(&room, 0), "nobody waits");
        let mut third = Box::pin(intake.room(tenant, LARGEST));
        tokio::select! {
            biased;
            _ = &mut third => panic!("there is no room"),
            () = std::future::ready(()) => {}
        }
        assert!(intake.is_too_slow(&room, LARGEST - 1));
        assert!(!intake.is_too_slow(&room, LARGEST), "a mebibyte after the grace and a second");
        drop(third);
        assert!(!intake.is_too_slow(&room, 0), "nobody waits any more");
    }
}
