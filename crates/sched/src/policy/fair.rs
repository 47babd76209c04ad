//! Fair share between tenants, by the measured cost of their requests.
//!
//! Each tenant has a virtual counter of the service it had, divided by its weight (see
//! [`crate::tenants`]). The waiting tenant with the smallest counter goes first, and within a
//! tenant the earliest arrival. Of equal counters, that of the tenant with fewer running requests goes
//! first. A request that must be preempted is one of the tenant with the largest counter.
//!
//! **The wait is bounded, so no guard by age is needed.** Let `S` be the most service that the
//! requests running at once still need: places times the longest request. While tenants `f` and `g`
//! have requests waiting, a request of `f` is only admitted when its counter is no larger than that of
//! `g`, and afterwards `f` is charged for running requests alone, so
//!
//! ```text
//! counter(f) − counter(g) ≤ S / weight(f)            at any time, at any age of the queue
//! ```
//!
//! A request that is the first of `g` is therefore admitted before another tenant `f` has had more
//! than `S · (1 + weight(f) / weight(g))`, whatever the number of requests that wait, and 5 s of service
//! more if `f` was below its share ([`crate::tenants`] says what it may save up). Order by age
//! would give that bound up: it is first come, first served as soon as the queue is old.
//!
//! A place, some blocks and every second step are kept for tenants below their share, so that a tenant
//! whose turn it is need not wait for the end of another tenant's answer (`scheduler/reserve.rs`).
//!
//! Paper: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (virtual token
//! counter). Where it counts tokens, this counts the measured time of the computed ones, and the
//! time that KV is held.

use super::{Arrival, Policy};

/// By service, then by arrival.
#[derive(Debug)]
pub(super) struct Fair;

impl Policy for Fair {
    fn rank(&self, _: &Arrival) -> i64 {
        0
    }

    fn is_by_service(&self) -> bool {
        true
    }

    fn needs_guard(&self) -> bool {
        false
    }
}
