//! The ranks of one model: workers that compute it together.
//!
//! A model split over ranks keeps some outputs of each matrix on each rank and gathers them, byte by
//! byte. Nothing is summed across ranks, because a sum of partial results would depend on how many
//! ranks there are, and law 6 (same request, same tokens) forbids that.
//!
//! Weights are not split yet, so [`load`](crate::load()) refuses a communicator of more than one
//! rank. The operations that move bytes (gather, broadcast) join [`Communicator`] together with the
//! first code that calls them.

/// This worker's place among the ranks of one model.
pub trait Communicator: Send {
    /// This worker's number, below [`size`](Self::size).
    fn rank(&self) -> usize;

    /// Number of workers, at least one.
    fn size(&self) -> usize;
}

/// A model on one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoleRank;

impl Communicator for SoleRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }
}
