//! Least laxity: deadline − now − work that is left until the first token.
//!
//! All waiting requests lose laxity at the same pace, so their order is that of deadline − work,
//! which is known at the arrival. Rows that already decode are not ranked: they run in every step,
//! and the size of the prefill chunk beside them keeps their targets.
//!
//! Paper: Mok, "Fundamental design problems of distributed systems for the hard-real-time
//! environment", 1983.

use super::{Arrival, Policy};
use crate::config::nanoseconds;

/// By laxity at the arrival.
#[derive(Debug)]
pub(super) struct Sla;

impl Policy for Sla {
    fn rank(&self, arrival: &Arrival) -> i64 {
        let target = arrival.slo.ttft.map_or(arrival.max_wait_ns, nanoseconds);
        let deadline = arrival.at.0.saturating_add(target);
        let latest_start = i128::from(deadline) - i128::from(arrival.prefill_ns);
        i64::try_from(latest_start).unwrap_or(if latest_start < 0 { i64::MIN } else { i64::MAX })
    }

    fn is_by_rank(&self) -> bool {
        true
    }
}
