//! Fair share between tenants, by the measured cost of their requests.
//!
//! Each tenant has a virtual counter of the service it had, divided by its weight (see
//! [`crate::tenants`]). The waiting tenant with the smallest counter goes first, and within a
//! tenant the earliest arrival. A request that must be preempted is one of the tenant with the
//! largest counter.
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
}
