//! Turns: which of a team's users computes now.
//!
//! ```text
//! generator   turn 1 [ forward pass ]          turn 3 [ forward pass ]
//! embedder              waits  turn 2 [ forward pass ]  waits  turn 4 ..
//! ```
//!
//! A team may serve several models on several threads. Single runs exclude each other anyway; a
//! turn makes a whole forward pass exclusive, so that two passes do not wait for each other at
//! every operation. Turns are given in the order in which they are asked for, so no user waits for
//! more than one pass of each other user.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use super::{Shared, StayAwake, lock};

/// Tickets of the users, first come first served.
#[derive(Default)]
pub(super) struct Turns {
    line: Mutex<Line>,
    ended: Condvar,
}

#[derive(Default)]
struct Line {
    /// Tickets handed out, which is the number of the next one.
    n_taken: u64,
    /// Turns that have ended, which is the number of the ticket whose turn it is.
    n_ended: u64,
    /// The thread that has the turn.
    holder: Option<ThreadId>,
}

impl Turns {
    /// Waits until all turns that were asked for earlier have ended.
    fn take(&self) {
        let this = std::thread::current().id();
        let mut line = lock(&self.line);
        assert!(
            line.holder != Some(this),
            "invariant: a thread has one turn with a team at a time"
        );
        let ticket = line.n_taken;
        line.n_taken += 1;
        while line.n_ended != ticket {
            line = self.ended.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.holder = Some(this);
    }

    fn end(&self) {
        let mut line = lock(&self.line);
        line.n_ended += 1;
        line.holder = None;
        drop(line);
        // All waiting threads wake, because each waits for a ticket of its own; there are few.
        self.ended.notify_all();
    }

    /// Threads that wait for their turn.
    #[cfg(test)]
    pub(super) fn n_waiting(&self) -> u64 {
        let line = lock(&self.line);
        line.n_taken - line.n_ended - u64::from(line.holder.is_some())
    }
}

/// A turn with a team, until dropped: the team stays awake, and other users wait for their turns;
/// see [`ThreadTeam::turn`](super::ThreadTeam::turn).
#[must_use = "the turn ends when this is dropped"]
pub struct Turn {
    shared: Arc<Shared>,
    _awake: StayAwake,
}

impl Turn {
    pub(super) fn take(shared: &Arc<Shared>) -> Self {
        shared.turns.take();
        Self { shared: Arc::clone(shared), _awake: shared.rest.stay_awake() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.turns.end();
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}
