//! The order of requests: one small trait, one file per policy.
//!
//! A policy ranks a request once, when it arrives; the smaller rank goes first, and among equals
//! the earlier arrival. So the order of two requests never changes while they wait, and the queue
//! is a sorted map. A policy that depends on figures which change (the service of a tenant, the
//! cached prefix) asks the scheduler to compare them.
//!
//! | policy | order |
//! |---|---|
//! | [`fcfs`](PolicyKind::Fcfs) | arrival |
//! | [`priority`](PolicyKind::Priority) | priority, then arrival; an urgent request may take the place of a less urgent one |
//! | [`lpm`](PolicyKind::LongestPrefix) | longest cached prefix among the first in the queue |
//! | [`sla`](PolicyKind::Sla) | least laxity: deadline of the first token less the work until then |
//! | [`fair`](PolicyKind::Fair) | the tenant that had the least service for its weight |
//!
//! **Architecture invariant:** no request waits for ever. Under `fcfs` and `fair` the order itself
//! bounds the wait. Under the other policies, requests that waited longer than
//! [`max_wait`](crate::Choices::max_wait) have a tenth of the service to themselves (see
//! [`crate::guard`]), and a request that is served this way is never preempted for another. So every
//! request ends.

mod fair;
mod fcfs;
mod longest_prefix;
mod priority;
mod sla;

use crate::Tick;
use crate::choices::named;
use pelton_base::Slo;

/// The facts about a request that are known at its arrival.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Time of the arrival.
    pub at: Tick,
    /// Its priority, turned so that the smaller goes first.
    pub priority: i64,
    /// Its latency targets.
    pub slo: Slo,
    /// Time to compute its prompt, alone on the machine, in nanoseconds; zero while unknown.
    pub prefill_ns: u64,
    /// Deadline of a request without a target of its own, in nanoseconds after the arrival.
    pub max_wait_ns: u64,
}

/// An order of service.
pub trait Policy: Sync + std::fmt::Debug {
    /// Rank of a request; the smaller goes first, and among equals the earlier arrival.
    fn rank(&self, arrival: &Arrival) -> i64;

    /// Number of requests at the head of the queue that are compared by their cached prefix.
    fn window(&self) -> usize {
        1
    }

    /// Whether the tenant that had the least service goes first, before ranks are compared.
    fn is_by_service(&self) -> bool {
        false
    }

    /// Whether ranks decide, rather than arrival or service.
    fn is_by_rank(&self) -> bool {
        false
    }

    /// Whether a waiting request may take the place of a running one of a greater rank.
    fn takes_places(&self) -> bool {
        false
    }

    /// Whether later arrivals can pass a waiting request without end, so that it needs the guard
    /// against starvation.
    fn needs_guard(&self) -> bool {
        true
    }
}

/// Every policy by name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PolicyKind {
    /// First come, first served.
    #[default]
    Fcfs,
    /// By priority.
    Priority,
    /// Longest cached prefix first.
    LongestPrefix,
    /// Least laxity.
    Sla,
    /// Fair share between tenants.
    Fair,
}

named!(
    PolicyKind,
    Fcfs = "fcfs",
    Priority = "priority",
    LongestPrefix = "lpm",
    Sla = "sla",
    Fair = "fair"
);

impl PolicyKind {
    /// The policy of this name.
    pub fn policy(self) -> &'static dyn Policy {
        match self {
            Self::Fcfs => &fcfs::Fcfs,
            Self::Priority => &priority::Priority,
            Self::LongestPrefix => &longest_prefix::LongestPrefix,
            Self::Sla => &sla::Sla,
            Self::Fair => &fair::Fair,
        }
    }
}
