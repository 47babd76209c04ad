//! By priority, then by arrival.

use super::{Arrival, Policy};

/// The more urgent first. One that finds no room takes the place of the least urgent that runs, if
/// that one is less urgent than itself.
#[derive(Debug)]
pub(super) struct Priority;

impl Policy for Priority {
    fn rank(&self, arrival: &Arrival) -> i64 {
        arrival.priority
    }

    fn is_by_rank(&self) -> bool {
        true
    }

    fn takes_places(&self) -> bool {
        true
    }
}
