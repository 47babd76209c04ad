//! Communication between the ranks of one model.
//!
//! A decoder split over several workers keeps, on each, a part of the heads and of the hidden
//! layer, and sums partial results after each half of a block. The decoder calls [`Communicator`]
//! at exactly those two places; with one rank that is [`SoleRank`], which does nothing.

/// A failed exchange between ranks.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed: {what}")]
pub struct CommError {
    /// The rank that failed.
    pub rank: usize,
    /// What happened.
    pub what: String,
}

/// Collective operations over the ranks of one model.
pub trait Communicator: Send {
    /// This worker's number, below [`size`](Self::size).
    fn rank(&self) -> usize;

    /// How many workers there are.
    fn size(&self) -> usize;

    /// Replaces `x` on every rank by the sum over ranks, added in ascending order of rank.
    ///
    /// # Errors
    ///
    /// When another rank is gone.
    fn all_reduce(&self, x: &mut [f32]) -> Result<(), CommError>;

    /// Fills `out` with every rank's `x`, in ascending order of rank.
    ///
    /// # Shapes
    ///
    /// `x`: `[n]` on every rank; `out`: `[size * n]`.
    ///
    /// # Errors
    ///
    /// When another rank is gone.
    fn all_gather(&self, x: &[f32], out: &mut [f32]) -> Result<(), CommError>;
}

/// The only worker there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoleRank;

impl Communicator for SoleRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&self, _x: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn all_gather(&self, x: &[f32], out: &mut [f32]) -> Result<(), CommError> {
        out.copy_from_slice(x);
        Ok(())
    }
}
