//! What a request may ask of the scheduler: whose it is, how urgent, and with whom it shares.

use crate::RequestId;
use std::time::Duration;

/// Index of a tenant in the engine's table of tenants; zero is whoever is not in it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u32);

impl std::fmt::Display for TenantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tenant-{}", self.0)
    }
}

/// Keeps apart prefixes whose tokens are equal but whose KV must not be shared (tenants, salts) or
/// is not equal (adapters, images).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Namespace(pub u64);

/// Latency targets of one request (service-level objectives).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Slo {
    /// Time to the first token, from arrival.
    pub ttft: Option<Duration>,
    /// Time per output token after the first, on average over the answer.
    pub tpot: Option<Duration>,
}

impl Slo {
    /// These targets, with those of `default` where there are none.
    pub fn or(self, default: Self) -> Self {
        Self { ttft: self.ttft.or(default.ttft), tpot: self.tpot.or(default.tpot) }
    }
}

/// How far tokens are guessed for a request; it changes how fast the answer comes and nothing else.
/// The default leaves it to the engine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Drafting {
    /// Most tokens guessed at once, where that is less than the engine's; zero for none.
    pub most: Option<usize>,
    /// Name of the only one who may guess; `None` for whoever promises most.
    pub by: Option<&'static str>,
}

/// What a request asks of the scheduler. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ServiceParams {
    /// Whose it is.
    pub tenant: TenantId,
    /// How urgent; the scheduler's configuration says whether low or high goes first.
    pub priority: i32,
    /// Latency targets.
    pub slo: Slo,
    /// Requests share cached prefixes within one namespace.
    pub namespace: Namespace,
    /// A request that was submitted before and begins alike: another choice of the same prompt, or
    /// one whose answer this prompt goes on from (a beam). Where it still runs, the KV of what both
    /// have in common is shared instead of computed, the answer as far as it came included.
    pub fork_of: Option<RequestId>,
    /// How far its tokens are guessed.
    pub drafting: Drafting,
}
