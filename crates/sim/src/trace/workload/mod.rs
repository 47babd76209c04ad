//! Workloads by name: generators of traces, seeded and lazy.
//!
//! | name | arrivals | prompts | answers |
//! |---|---|---|---|
//! | `poisson` | Poisson | around 128 tokens | around 48 |
//! | `bursty` | in bursts: 85 % of them in a quarter of the time | the same | the same |
//! | `shared-prefix` | Poisson | conversations of up to 5 questions under 8 system prompts of 512 tokens | around 48 |
//! | `sessions` | Poisson, each question after the answer before it and a time to think, 4 s on average | as `shared-prefix` | around 48 |
//! | `long-tail` | Poisson | median 96, one in a hundred over 3,000 | at least 16, Pareto |
//! | `mixed` | Poisson | chats of around 64 tokens, one in twenty of 8,000 | around 48 |
//! | `tenants` | Poisson, beyond capacity | as `poisson`; tenant `many` asks ten times as often as `few` | around 48 |
//! | `overload` | Poisson, far beyond capacity | as `poisson`; one in five is urgent | around 48 |
//! | `sharegpt` | Poisson | mean 161, as chats of ShareGPT in the paper of vLLM (2309.06180) | mean 338 |
//! | `long-context` | Poisson | 8,000 to 32,000 tokens | around 128 |
//!
//! [`Workload::arriving`] lets the requests of any kind follow each other in another way, and
//! [`Workload::of_lengths`] makes all of them equally long.
//!
//! The rates fit a model of half a billion weights on two threads of a processor, like the
//! simulator's default prices. `mixed` and `overload` state latency targets; requests without
//! targets take those of their tenant, if there are any.

mod arrivals;
mod shape;

use super::{Tenants, TraceRequest};
use crate::random::Random;
pub use arrivals::ArrivalKind;
use arrivals::Arrivals;
use shape::Shape;

/// A kind of workload.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum WorkloadKind {
    /// Independent short requests.
    #[default]
    Poisson,
    /// The same, in bursts.
    Bursty,
    /// Conversations that share system prompts.
    SharedPrefix,
    /// The same, and each question waits for the answer before it and for its user to think.
    Sessions,
    /// A few requests are far longer than most.
    LongTail,
    /// Short chats beside prompts of 8,000 tokens.
    Mixed,
    /// One tenant asks ten times as often as the other.
    Tenants,
    /// More requests than can be served; some are urgent.
    Overload,
    /// Chats with the lengths of ShareGPT.
    ShareGpt,
    /// Prompts of thousands of tokens.
    LongContext,
}

impl WorkloadKind {
    /// Every kind.
    pub const ALL: &[Self] = &[
        Self::Poisson,
        Self::Bursty,
        Self::SharedPrefix,
        Self::Sessions,
        Self::LongTail,
        Self::Mixed,
        Self::Tenants,
        Self::Overload,
        Self::ShareGpt,
        Self::LongContext,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Bursty => "bursty",
            Self::SharedPrefix => "shared-prefix",
            Self::Sessions => "sessions",
            Self::LongTail => "long-tail",
            Self::Mixed => "mixed",
            Self::Tenants => "tenants",
            Self::Overload => "overload",
            Self::ShareGpt => "sharegpt",
            Self::LongContext => "long-context",
        }
    }

    /// Requests per second by default.
    pub fn default_rate(self) -> f64 {
        match self {
            Self::Poisson => 2.0,
            Self::Bursty => 1.5,
            Self::SharedPrefix | Self::Sessions | Self::LongTail => 1.0,
            Self::Mixed => 0.5,
            Self::Tenants => 4.0,
            Self::Overload => 6.0,
            Self::ShareGpt => 0.5,
            Self::LongContext => 0.05,
        }
    }

    /// How its requests follow each other by default.
    pub fn default_arrivals(self) -> ArrivalKind {
        match self {
            Self::Bursty => ArrivalKind::Bursty,
            _ => ArrivalKind::Poisson,
        }
    }
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the {what} of a workload must be {expected}, got {got}")]
pub struct WorkloadError {
    what: &'static str,
    expected: &'static str,
    got: f64,
}

/// A generator of requests.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: WorkloadKind,
    arrivals: ArrivalKind,
    lengths: Option<(usize, usize)>,
    n_requests: u64,
    rate: f64,
    scale: f64,
    seed: u64,
    tenants: Tenants,
}

impl Workload {
    /// This many requests at the kind's own rate and lengths.
    pub fn new(kind: WorkloadKind, n_requests: u64, seed: u64) -> Self {
        let mut tenants = Tenants::default();
        if kind == WorkloadKind::Tenants {
            for name in shape::TENANTS {
                tenants.number(name).expect("invariant: two fit");
            }
        }
        let (arrivals, rate) = (kind.default_arrivals(), kind.default_rate());
        Self { kind, arrivals, lengths: None, n_requests, rate, scale: 1.0, seed, tenants }
    }

    /// The same requests, arriving in this way.
    #[must_use]
    pub fn arriving(self, arrivals: ArrivalKind) -> Self {
        Self { arrivals, ..self }
    }

    /// The same requests, each with a prompt and an answer of these tokens, of which nothing is
    /// shared.
    #[must_use]
    pub fn of_lengths(self, n_prompt: usize, n_output: usize) -> Self {
        Self { lengths: Some((n_prompt.max(1), n_output.max(1))), ..self }
    }

    /// The same requests at this rate, in requests per second.
    ///
    /// # Errors
    ///
    /// A rate that is not a number from a millionth to a million.
    pub fn at_rate(self, rate: f64) -> Result<Self, WorkloadError> {
        let rate = within("rate", "from 0.000001 to 1000000", rate, 1e-6..=1e6)?;
        Ok(Self { rate, ..self })
    }

    /// The same requests, all lengths times `scale` (each stays at least one token).
    ///
    /// # Errors
    ///
    /// A scale that is not a number from a thousandth to a hundred.
    pub fn scaled(self, scale: f64) -> Result<Self, WorkloadError> {
        let scale = within("scale", "from 0.001 to 100", scale, 1e-3..=100.0)?;
        Ok(Self { scale, ..self })
    }

    /// Its kind.
    pub fn kind(&self) -> WorkloadKind {
        self.kind
    }

    /// How its requests follow each other.
    pub fn arrivals(&self) -> ArrivalKind {
        self.arrivals
    }

    /// Tokens of each prompt and answer, where all are the same.
    pub fn lengths(&self) -> Option<(usize, usize)> {
        self.lengths
    }

    /// Requests per second, on average.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The factor of all lengths.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Requests in all.
    pub fn n_requests(&self) -> u64 {
        self.n_requests
    }

    /// The tenants of the requests.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The requests, from the first; each call gives the same.
    pub fn requests(&self) -> WorkloadRequests {
        WorkloadRequests {
            arrivals: Arrivals::new(self.arrivals, self.rate, self.n_requests, self.seed),
            lengths: self.lengths,
            shape: Shape::new(self.kind, self.scale),
            seed: self.seed,
            next: 0,
            n_requests: self.n_requests,
        }
    }
}

/// The requests of a [`Workload`], made as they are asked for.
#[derive(Debug)]
pub struct WorkloadRequests {
    arrivals: Arrivals,
    lengths: Option<(usize, usize)>,
    shape: Shape,
    seed: u64,
    next: u64,
    n_requests: u64,
}

impl Iterator for WorkloadRequests {
    type Item = TraceRequest;

    fn next(&mut self) -> Option<TraceRequest> {
        if self.next == self.n_requests {
            return None;
        }
        // Stream 0 is that of the arrivals.
        let mut random = Random::new(self.seed, self.next + 1);
        self.next += 1;
        let request = self.shape.request(self.arrivals.next_ns(), &mut random);
        Some(match self.lengths {
            None => request,
            Some((n_prompt, n_output)) => {
                TraceRequest { n_prompt, n_output, prefixes: Default::default(), ..request }
            }
        })
    }
}

fn within(
    what: &'static str,
    expected: &'static str,
    got: f64,
    range: std::ops::RangeInclusive<f64>,
) -> Result<f64, WorkloadError> {
    if range.contains(&got) { Ok(got) } else { Err(WorkloadError { what, expected, got }) }
}
