//! By priority, then by arrival.

use super::{Arrival, Policy};

/// The more urgent request first. A request that finds no room takes the place of the least urgent
/// running one, if that is less urgent.
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
