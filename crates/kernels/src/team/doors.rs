//! The doors: one word that says which run it is, whether workers may enter, and who is inside.
//!
//! ```text
//! bits 63..24 epoch | 23 stopped | 22 open | 21..11 workers that entered | 10..0 workers that left
//!
//! caller   open (epoch + 1, nobody inside)  ..  close  ..  wait until as many left as entered
//! worker   wait for another epoch  ->  enter if open  ->  job  ->  leave
//! ```
//!
//! One word makes entering and closing atomic against each other: a worker is either counted before
//! the doors close, and waited for, or finds them closed and stays out.
//!
//! # Why this is right
//!
//! * *The job is alive while a worker is at it.* The caller frees it after it has read, with the
//!   doors closed, that as many left as entered; nobody enters closed doors.
//! * *The job is seen.* It is written before the opening store; an entering worker reads that store
//!   or a read-modify-write that continues it. Results travel back the same way.
//! * *No wake is lost.* A thread announces that it parks and then looks once more; whoever changes
//!   the word looks at the announcements afterwards. Both are sequentially consistent, so one of
//!   the two sees the other.
//! * *Counts do not overflow.* A worker enters once per epoch, and there are at most 1023 workers in
//!   fields of 11 bits.
//! * *Epochs return after 2⁴⁰ runs.* Only a worker that did not look at the word once in exactly so
//!   many runs (12 days of runs of one microsecond) would take a new run for the old one. The
//!   field had 32 bits once, which is 71 minutes.
//! * *The end is seen.* `stopped` is in the word and stays set. It used to be a flag beside it,
//!   with an epoch of its own to wake the workers: a worker that came late for the last run read
//!   the flag before it was set and that epoch after, and slept for ever.
//!
//! The tests walk through every interleaving of a caller, two workers and some runs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::MAX_THREADS;

/// One run.
const EPOCH: u64 = 1 << 24;
/// The team is at its end.
const STOPPED: u64 = 1 << 23;
/// Workers may enter.
const OPEN: u64 = 1 << 22;
/// One worker that entered.
const ENTERED: u64 = 1 << 11;
/// One worker that left.
const LEFT: u64 = 1;

const _: () = assert!(MAX_THREADS as u64 <= ENTERED / LEFT && ENTERED * ENTERED == OPEN);

/// What stood on the doors at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Word(u64);

impl Word {
    /// The number of the run.
    pub(super) fn epoch(self) -> u64 {
        self.0 / EPOCH
    }

    /// Whether the team is at its end.
    pub(super) fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    /// Workers that left in this run.
    pub(super) fn n_left(self) -> u64 {
        self.0 & (ENTERED - 1)
    }

    /// Whether all workers that entered have left.
    pub(super) fn is_empty(self) -> bool {
        self.n_left() == (self.0 & (OPEN - 1)) / ENTERED
    }

    /// The next run, open, with nobody inside.
    fn opened(self) -> Self {
        Self((self.epoch() + 1).wrapping_mul(EPOCH) | OPEN)
    }

    /// With one more worker inside; `None` if the doors are closed.
    fn entered(self) -> Option<Self> {
        (self.0 & OPEN != 0).then_some(Self(self.0 + ENTERED))
    }
}

/// The word, on a cache line of its own: all threads that wait look at it all the time.
#[repr(align(64))]
pub(super) struct Doors(AtomicU64);

impl Doors {
    /// Closed doors; the first run is number 1.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// What stands on them now.
    pub(super) fn look(&self) -> Word {
        Word(self.0.load(Ordering::SeqCst))
    }

    /// Opens them for the next run. Only for the one caller, while they are closed and nobody is
    /// inside: then nobody else writes the word.
    pub(super) fn open(&self) {
        self.0.store(self.look().opened().0, Ordering::SeqCst);
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::SeqCst);
    }

    /// Sends the workers home, at the end of the team.
    pub(super) fn stop(&self) {
        self.0.fetch_or(STOPPED, Ordering::SeqCst);
    }

    /// Enters open doors, or tells that they are closed; with the word found there.
    pub(super) fn enter(&self) -> Result<Word, Word> {
        let enter = |word| Word(word).entered().map(|word| word.0);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).map(Word).map_err(Word)
    }

    /// Leaves; tells what stands there now.
    pub(super) fn leave(&self) -> Word {
        Word(self.0.fetch_add(LEFT, Ordering::SeqCst) + LEFT)
    }

    /// Closed doors after as many runs as an epoch counts, less `n_runs`.
    #[cfg(test)]
    pub(super) fn shortly_before_the_epoch_returns(n_runs: u64) -> Self {
        Self(AtomicU64::new(n_runs.wrapping_neg().wrapping_mul(EPOCH)))
    }
}

#[cfg(test)]
#[path = "doors_tests.rs"]
mod tests;
