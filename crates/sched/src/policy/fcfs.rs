//! First come, first served.

use super::{Arrival, Policy};

/// By arrival alone.
#[derive(Debug)]
pub(super) struct Fcfs;

impl Policy for Fcfs {
    fn rank(&self, _: &Arrival) -> i64 {
        0
    }

    fn needs_guard(&self) -> bool {
        false
    }
}
