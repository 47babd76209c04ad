//! The doors of a team: one word with the number of the run, whether workers may enter, and how
//! many entered and left.
//!
//! ```text
//! bits 63..24 epoch | 23 stopped | 22 open | 21..11 workers that entered | 10..0 workers that left
//!
//! caller   open (epoch + 1, no worker inside)  ..  close  ..  wait until as many left as entered
//! worker   wait for another epoch  ->  enter if open  ->  job  ->  leave
//! ```
//!
//! One word makes entering and closing atomic against each other: a worker is either counted before
//! the doors close, and waited for, or finds them closed and stays out.
//!
//! # Why this is right
//!
//! * *The job is alive while a worker runs it.* The caller frees it after it has read, with the
//!   doors closed, that as many workers left as entered; no worker enters closed doors.
//! * *The job is seen.* It is written before the opening store; an entering worker reads that store
//!   or a read-modify-write that continues it. Results travel back the same way.
//! * *No wake is lost.* A thread announces that it parks and then reads the word once more; the
//!   thread that changes the word reads the announcements afterwards. Both are sequentially
//!   consistent, so at least one of the two sees what the other wrote.
//! * *Counts do not overflow.* A worker enters once per epoch, and there are at most 1023 workers
//!   in fields of 11 bits.
//! * *Epochs return after 2⁴⁰ runs.* Only a worker that did not read the word once during exactly
//!   that number of runs (12 days of runs of one microsecond) would take a new run for the old one.
//!   An earlier field of 32 bits returned after 71 minutes.
//! * *The end is seen.* `stopped` is in the word and stays set. As a flag beside the word, with an
//!   epoch of its own to wake the workers, it failed: a worker that came late for the last run read
//!   the flag before it was set and the epoch after, and slept for ever.
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

/// A value of the word at some moment.
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

    /// The word of the next run: open, no worker inside.
    fn opened(self) -> Self {
        Self((self.epoch() + 1).wrapping_mul(EPOCH) | OPEN)
    }

    /// The word with one more worker inside; `None` if the doors are closed.
    fn entered(self) -> Option<Self> {
        (self.0 & OPEN != 0).then_some(Self(self.0 + ENTERED))
    }
}

/// The shared word, on a cache line of its own because all waiting threads read it all the time.
#[repr(align(64))]
pub(super) struct Doors(AtomicU64);

impl Doors {
    /// Closed doors; the first run is number 1.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The current value of the word.
    pub(super) fn look(&self) -> Word {
        Word(self.0.load(Ordering::SeqCst))
    }

    /// Opens the doors for the next run.
    ///
    /// Only the caller of the run does this, while the doors are closed and no worker is inside, so
    /// no other thread writes the word at the same time.
    pub(super) fn open(&self) {
        self.0.store(self.look().opened().0, Ordering::SeqCst);
    }

    /// Closes the doors: no further worker enters.
    pub(super) fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::SeqCst);
    }

    /// Ends the team: every worker returns at its next look at the word.
    pub(super) fn stop(&self) {
        self.0.fetch_or(STOPPED, Ordering::SeqCst);
    }

    /// Enters. `Ok` is the word after entering, `Err` the word of closed doors.
    pub(super) fn enter(&self) -> Result<Word, Word> {
        let enter = |word| Word(word).entered().map(|word| word.0);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).map(Word).map_err(Word)
    }

    /// Leaves, and returns the word after leaving.
    pub(super) fn leave(&self) -> Word {
        Word(self.0.fetch_add(LEFT, Ordering::SeqCst) + LEFT)
    }

    /// Closed doors whose epoch returns to 0 after `n_runs` more runs.
    #[cfg(test)]
    pub(super) fn shortly_before_the_epoch_returns(n_runs: u64) -> Self {
        Self(AtomicU64::new(n_runs.wrapping_neg().wrapping_mul(EPOCH)))
    }
}

#[cfg(test)]
#[path = "doors_tests.rs"]
mod tests;
