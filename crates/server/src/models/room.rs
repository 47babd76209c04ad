//! Memory that the models of a server take together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Memory of all models of a server, old versions that still answer included.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Most bytes; `None` for as many as the machine gives.
    budget: Option<u64>,
    held: Mutex<Held>,
    freed: Condvar,
}

/// Bytes that are in use.
#[derive(Debug, Default)]
struct Held {
    n_bytes: u64,
    /// Bytes among them of models that are about to end.
    n_ending: u64,
}

impl Room {
    pub(super) fn new(budget: Option<u64>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Most bytes; `None` for as many as the machine gives.
    pub(super) fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Bytes that are left; `None` without a budget.
    pub(super) fn n_left(&self) -> Option<u64> {
        self.budget.map(|budget| budget.saturating_sub(self.lock().n_bytes))
    }

    /// Whether so many bytes are left, now or as soon as the models that are about to end have ended,
    /// for which it waits.
    pub(super) fn waits_for(&self, n_bytes: u64, patience: Duration) -> bool {
        let Some(budget) = self.budget else { return true };
        let deadline = Instant::now() + patience;
        let mut held = self.lock();
        while budget.saturating_sub(held.n_bytes) < n_bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if held.n_ending == 0 || left.is_zero() {
                return false;
            }
            let waited = self.freed.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(super) fn take(&self, n_bytes: u64) {
        self.lock().n_bytes += n_bytes;
    }

    /// Says that memory will be given back soon.
    pub(super) fn announce(&self, n_bytes: u64) {
        self.lock().n_ending += n_bytes;
    }

    /// Gives memory back that was announced.
    pub(super) fn give_back(&self, n_bytes: u64) {
        let mut held = self.lock();
        held.n_bytes -= n_bytes;
        held.n_ending -= n_bytes;
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Numbers are whole at any time.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
