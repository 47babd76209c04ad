//! The part of a request's state that its client can read at any time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::trace::Trace;

/// Shared by the engine, which writes, and the stream of a request, which reads.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    n_computed: AtomicUsize,
    trace: Mutex<Trace>,
}

impl Progress {
    /// Notes that this many tokens of the prompt are computed.
    pub(crate) fn compute(&self, n_computed: usize) {
        self.n_computed.store(n_computed, Ordering::Relaxed);
    }

    /// Tokens of the prompt that are computed.
    pub(crate) fn n_computed(&self) -> usize {
        self.n_computed.load(Ordering::Relaxed)
    }

    /// The steps of the request.
    pub(crate) fn trace(&self) -> MutexGuard<'_, Trace> {
        // Each change leaves the list whole.
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
