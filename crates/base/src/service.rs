//! Parameters of a request for the scheduler: tenant, urgency, latency targets and sharing.

use crate::{RequestId, TokenId};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Index of a tenant in the engine's table of tenants; zero is for clients that are not in it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u32);

impl std::fmt::Display for TenantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tenant-{}", self.0)
    }
}

/// Separates prefixes whose tokens are equal but whose KV must not be shared (tenants, salts) or
/// differs (adapters, images).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Namespace(pub u64);

/// The beginning of a prompt that an encoder reads, all in one step.
///
/// ```text
/// prompt   | n_tokens of the source | n_padding, up to a whole block | own tokens of the decoder |
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Source {
    /// Tokens that the encoder reads.
    pub n_tokens: usize,
    /// Tokens that nothing reads, so that the decoder's own begin with a block.
    pub n_padding: usize,
}

impl Source {
    /// Tokens that the client sent, of a prompt of `n_prompt` tokens: the whole prompt where there is no
    /// source.
    pub fn n_sent(self, n_prompt: usize) -> usize {
        if self.n_tokens > 0 { self.n_tokens } else { n_prompt }
    }

    /// Index of the decoder's first own token.
    pub fn end(self) -> usize {
        self.n_tokens + self.n_padding
    }
}

impl Namespace {
    /// The namespace of requests of this one that have this source, or none where it is empty: what an
    /// encoder computes of a token depends on all tokens of the source, so a prefix of it is shared with
    /// no other source.
    pub fn of_source(self, source: &[TokenId]) -> Self {
        if source.is_empty() {
            return self;
        }
        let mut hasher = DefaultHasher::new();
        (self, source).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Latency targets of one request (service-level objectives).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Slo {
    /// Time to the first token, from arrival.
    pub ttft: Option<Duration>,
    /// Time per output token after the first, on average over the answer.
    pub tpot: Option<Duration>,
}

impl Slo {
    /// These targets, with the targets of `default` in place of missing ones.
    pub fn or(self, default: Self) -> Self {
        Self { ttft: self.ttft.or(default.ttft), tpot: self.tpot.or(default.tpot) }
    }
}

/// How tokens of a request are drafted; it changes the speed of the answer and no token. The
/// default leaves it to the engine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Drafting {
    /// Most tokens drafted at once, where that is less than the engine's limit; zero for none.
    pub most: Option<usize>,
    /// Name of the only proposer that drafts; `None` for the proposer that is expected to save
    /// most.
    pub by: Option<&'static str>,
    /// Whether every draft that can be made is verified, whatever it costs: for trying out that drafts
    /// change no token.
    pub always: bool,
}

/// Parameters of a request for the scheduler. The default sets none of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ServiceParams {
    /// The tenant.
    pub tenant: TenantId,
    /// Priority; the scheduler's configuration says whether low or high goes first.
    pub priority: i32,
    /// Latency targets.
    pub slo: Slo,
    /// Requests share cached prefixes within one namespace.
    pub namespace: Namespace,
    /// An earlier request that begins with the same tokens: another choice of the same prompt, or a
    /// request whose answer this prompt continues (a beam). While that request still runs, the KV
    /// of the common tokens is shared instead of computed, tokens of its answer included.
    pub fork_of: Option<RequestId>,
    /// Whether it is a further part (answer or prompt) of a request of which one was taken: then it
    /// is taken, too, however many wait.
    pub is_further: bool,
    /// How its tokens are drafted.
    pub drafting: Drafting,
    /// The beginning of the prompt that an encoder reads; empty in models without an encoder.
    pub source: Source,
}
