//! How the threads of a team wait: awake for a bounded time, then asleep.
//!
//! ```text
//! 400 pauses (about 10 us) | 40 yields | announce, look once more, park until woken
//!            ^_________________________|
//!              while a guard keeps the team awake
//! ```
//!
//! Between two operations of one forward pass the caller works alone, at times for longer than the
//! spin lasts; then each worker parks and is woken by a system call, operation after operation. A
//! guard ([`ThreadTeam::stay_awake`](super::ThreadTeam::stay_awake)) around the forward leaves one
//! wake per forward. Threads yield between their spins, so that with more threads than free cores
//! the thread that all of them wait for gets its turn.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use super::lock;

/// Spins with a pause instruction before the first yield: about 10 microseconds.
const N_SPINS: u32 = 400;
/// Yields after the spins and before parking.
const N_YIELDS: u32 = 40;

/// Whether the team may sleep.
#[derive(Default)]
pub(super) struct Rest {
    /// Guards that live.
    n_guards: Arc<AtomicUsize>,
    /// Rounds of spins and yields after which the awaited condition was still false.
    #[cfg(test)]
    pub(super) n_rounds: AtomicUsize,
    /// Threads woken from parking.
    #[cfg(test)]
    pub(super) n_unparks: AtomicUsize,
}

/// Keeps the idle threads of a team from parking, until dropped; see
/// [`ThreadTeam::stay_awake`](super::ThreadTeam::stay_awake).
#[derive(Debug)]
#[must_use = "the team stays awake for as long as this lives"]
pub struct StayAwake {
    n_guards: Arc<AtomicUsize>,
}

impl Drop for StayAwake {
    fn drop(&mut self) {
        self.n_guards.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place where one thread sleeps.
#[derive(Default)]
pub(super) struct Parking {
    /// Set while the thread is about to park or parked.
    is_parked: AtomicBool,
    /// The thread that parked here last.
    thread: Mutex<Option<Thread>>,
    /// Set once only a wake can keep the thread from sleeping.
    #[cfg(test)]
    pub(super) is_asleep: AtomicBool,
}

impl Rest {
    /// Relaxed here and in the guard's drop: the number orders nothing, and a thread that learns of
    /// it late parks once more or spins once more.
    pub(super) fn stay_awake(&self) -> StayAwake {
        self.n_guards.fetch_add(1, Ordering::Relaxed);
        StayAwake { n_guards: Arc::clone(&self.n_guards) }
    }

    /// Waits until `done` returns true: spins, yields, and then parks at `parking`.
    pub(super) fn wait_until(&self, parking: &Parking, done: impl Fn() -> bool) {
        loop {
            for turn in 0..N_SPINS + N_YIELDS {
                if done() {
                    return;
                }
                if turn < N_SPINS {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
            #[cfg(test)]
            self.n_rounds.fetch_add(1, Ordering::Relaxed);
            if self.n_guards.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
        *lock(&parking.thread) = Some(std::thread::current());
        parking.is_parked.store(true, Ordering::SeqCst);
        while !done() {
            #[cfg(test)]
            parking.is_asleep.store(true, Ordering::SeqCst);
            std::thread::park();
        }
        #[cfg(test)]
        parking.is_asleep.store(false, Ordering::SeqCst);
        parking.is_parked.store(false, Ordering::SeqCst);
    }

    /// Wakes the thread at `parking`, if one is there. To be called after the condition that the
    /// thread waits for has become true.
    pub(super) fn wake(&self, parking: &Parking) {
        if !parking.is_parked.load(Ordering::SeqCst) {
            return;
        }
        // The thread may have left since, and another one may have come; that one is woken in vain,
        // which its loop allows for.
        if let Some(thread) = &*lock(&parking.thread) {
            #[cfg(test)]
            self.n_unparks.fetch_add(1, Ordering::Relaxed);
            thread.unpark();
        }
    }
}
