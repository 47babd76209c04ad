//! The memory of all live parsers together.
//!
//! A lexer grows with what its answer meets. While all of them together hold less than the bound,
//! each grows as it likes; beyond it, one that holds more than an equal share is refused at its next
//! step, so an answer that explodes ends and the small ones beside it go on.

use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that all lexers of a vocabulary may hold together.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    n_shares: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, held: Mutex::default() }
    }

    /// The bound in bytes.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Bytes that are held now.
    pub(crate) fn held(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that one lexer holds; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: Mutex<usize>,
}

impl Share {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        budget.lock().n_shares += 1;
        Self { budget: Arc::clone(budget), bytes: Mutex::new(0) }
    }

    /// Says how much the lexer holds now; `false` where that is too much beside the others.
    #[must_use]
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let mut own = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.budget.lock();
        held.bytes = held.bytes - *own + bytes;
        *own = bytes;
        held.bytes <= self.budget.most || bytes <= self.budget.most / held.n_shares.max(1)
    }

    /// The bound in bytes.
    pub(crate) fn most(&self) -> usize {
        self.budget.most()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let own = *self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.budget.lock();
        held.bytes -= own;
        held.n_shares -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_only_those_with_more_than_an_equal_share_are_refused() {
        let budget = Arc::new(Budget::new(100));
        let large = Share::new(&budget);
        assert!(large.hold(90), "alone it may hold everything");
        let small = Share::new(&budget);
        assert!(small.hold(10) && small.hold(50), "half is its own");
        assert!(!small.hold(51) && !large.hold(90), "both have more than half");
        drop(large);
        assert!(small.hold(100) && !small.hold(101));
        drop(small);
        assert_eq!(budget.held(), 0);
    }
}
