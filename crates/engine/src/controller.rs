//! The feedback controller: how much a step may hold, by how long things took lately.
//!
//! ```text
//!                    ┌──────────── charts: P95 of TPOT and TTFT since the last move ◀────────┐
//!                    ▼                                                                        │
//! targets ──▶ [ controller ] ──▶ tokens per step, requests running ──▶ [ steps of the engine ]┘
//!
//! P95 TPOT / target   0        roomy  0.6      slack  0.85      band  1.05      late
//!                     ├── grow ──────┤── grow if TTFT is late ──┤── rest ──────┤── shrink
//! shrink              × target / P95 (at least ½): tokens down to their least, then requests
//! grow                + 1/32 of the most, at most a tenth: requests up to their most, then tokens
//! ```
//!
//! A long prefill chunk makes the tokens beside it late, so the tokens of a step are the
//! first thing to go, and the number of requests the last. Shrinking is proportional and at once,
//! growing takes small steps and two readings that agree: the way of AIMD, with the factor measured
//! instead of fixed. A step of growth is smaller than the band, so a limit that fits is left alone.
//!
//! Each reading covers the time since the last move alone, and at least one interval: what happened
//! under other limits does not count. Where no request decodes for a whole interval, the limits
//! double until they are full.
//!
//! Without a target for TPOT the limits are full: larger steps serve every other target better.
//!
//! **Architecture invariant:** a function of the charts and the time alone. There is no clock in
//! it, so a simulator drives it as an engine does.
//!
//! Paper: Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion
//! avoidance", 1989 (AIMD).

use crate::charts::{Charts, ChartsSnapshot, nanoseconds};
use pelton_base::Slo;
use std::time::Duration;

/// Above this much of the target, in percent, steps shrink.
const LATE: u64 = 105;
/// Below it there is slack.
const SLACK: u64 = 85;
/// Below it there is so much that the limits grow unasked.
const ROOMY: u64 = 60;
/// Where shrinking aims at.
const AIM: u64 = 95;
/// Fewer samples than this say nothing about a P95.
const LEAST_SAMPLES: u64 = 20;
/// Readings that must agree before anything grows.
const PATIENCE: u32 = 2;

/// The limits within which the controller moves, and how often.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerConfig {
    /// The fewest tokens of a step that it goes down to. Every running request still gets its
    /// token: with more of those, the limit is theirs plus one.
    pub min_batch_tokens: usize,
    /// The fewest requests running at once that it goes down to; at least one.
    pub min_running: usize,
    /// Least time between two moves.
    pub interval: Duration,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self { min_batch_tokens: 32, min_running: 1, interval: Duration::from_secs(2) }
    }
}

/// The limits of a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    /// Most tokens of a step.
    pub batch_tokens: usize,
    /// Most requests running at once.
    pub running: usize,
}

/// Why limits were moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Tokens come too late.
    TpotLate,
    /// First tokens come too late, and further tokens have time.
    TtftLate,
    /// Tokens have much more time than they take.
    Roomy,
    /// No request decodes.
    Idle,
}

impl Reason {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::TpotLate => "tpot-late",
            Self::TtftLate => "ttft-late",
            Self::Roomy => "roomy",
            Self::Idle => "idle",
        }
    }
}

/// A move of the limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Why.
    pub reason: Reason,
    /// From where.
    pub before: Limits,
    /// To where.
    pub after: Limits,
    /// The latencies that were read.
    pub read: ChartsSnapshot,
}

/// Keeps latencies at their targets.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    /// In nanoseconds.
    tpot_ns: Option<u64>,
    ttft_ns: Option<u64>,
    most: Limits,
    limits: Limits,
    /// When the limits were last moved.
    moved_ns: u64,
    /// When the charts were last read.
    looked_ns: u64,
    /// Readings in a row that would let the limits grow.
    n_agreeing: u32,
}

impl Controller {
    /// Full limits, `most`, and the targets to keep.
    pub fn new(targets: Slo, most: Limits, config: ControllerConfig) -> Self {
        let (tpot_ns, ttft_ns) = (targets.tpot.map(nanoseconds), targets.ttft.map(nanoseconds));
        let (moved_ns, looked_ns, n_agreeing) = (0, 0, 0);
        Self { config, tpot_ns, ttft_ns, most, limits: most, moved_ns, looked_ns, n_agreeing }
    }

    /// The limits as of now, with `n_running` requests running.
    pub fn limits(&self, n_running: usize) -> Limits {
        let Limits { batch_tokens, running } = self.limits;
        Limits { batch_tokens: batch_tokens.max(self.least_tokens(n_running)), running }
    }

    /// Looks at the charts, if it is time, and returns the change it made. `n_running` requests run
    /// now. The slices of the charts must not be longer than half of the interval.
    pub fn look(&mut self, now_ns: u64, charts: &Charts, n_running: usize) -> Option<Decision> {
        let target = self.tpot_ns?;
        let interval = nanoseconds(self.config.interval);
        if now_ns.saturating_sub(self.looked_ns) < interval {
            return None;
        }
        let looked_ns = std::mem::replace(&mut self.looked_ns, now_ns);
        let n_intervals = (now_ns - looked_ns) / interval.max(1);
        let read = charts.snapshot(self.moved_ns);
        let late_first = self.ttft_ns.is_some_and(|most| read.ttft.p95_ns > most);
        // No request decoded lately.
        let reason = if charts.tpot.quantiles(now_ns - interval).n == 0 {
            Some(Reason::Idle)
        } else if read.tpot.n < LEAST_SAMPLES {
            None
        } else {
            match percent(read.tpot.p95_ns, target) {
                LATE.. => Some(Reason::TpotLate),
                SLACK.. => None,
                _ if late_first => Some(Reason::TtftLate),
                ROOMY.. => None,
                _ => Some(Reason::Roomy),
            }
        };
        self.n_agreeing = match reason {
            Some(Reason::TtftLate | Reason::Roomy) => self.n_agreeing + 1,
            _ => 0,
        };
        let before = self.limits;
        match reason? {
            Reason::TpotLate => self.shrink(target, read.tpot.p95_ns, n_running),
            Reason::Idle => {
                // An engine without work does not look; it has slept through some.
                for _ in 0..n_intervals.min(64) {
                    self.grow(self.limits.batch_tokens, self.limits.running);
                }
            }
            _ if self.n_agreeing >= PATIENCE => {
                let step = |most: usize, now: usize| (most / 32).min(now / 10).max(1);
                self.grow(
                    step(self.most.batch_tokens, before.batch_tokens),
                    step(self.most.running, before.running),
                );
            }
            _ => {}
        }
        let after = self.limits;
        if after == before {
            return None;
        }
        (self.moved_ns, self.n_agreeing) = (now_ns, 0);
        reason.map(|reason| Decision { reason, before, after, read })
    }

    fn shrink(&mut self, target: u64, read: u64, n_running: usize) {
        let shrunk = |now: usize| {
            let aimed = now as u128 * u128::from(target) * u128::from(AIM)
                / (u128::from(read.max(1)) * 100);
            // At least one less, at most half.
            (aimed as usize).clamp(now / 2, now.saturating_sub(1))
        };
        let least_tokens = self.least_tokens(n_running);
        if self.limits.batch_tokens > least_tokens {
            self.limits.batch_tokens = shrunk(self.limits.batch_tokens).max(least_tokens);
        } else {
            // A limit that nobody reaches bounds nothing; one that is not kept yet needs time, as
            // who runs goes on to the end.
            let least = self.config.min_running.clamp(1, self.most.running);
            if n_running <= self.limits.running {
                self.limits.running = shrunk(n_running.max(least)).max(least);
            }
        }
    }

    fn grow(&mut self, tokens: usize, running: usize) {
        let Limits { batch_tokens, running: n } = self.most;
        if self.limits.running < n {
            self.limits.running = self.limits.running.saturating_add(running).min(n);
        } else {
            self.limits.batch_tokens =
                self.limits.batch_tokens.saturating_add(tokens).min(batch_tokens);
        }
    }

    /// Every decoding request gets a token in every step, and a prompt at least one beside them.
    fn least_tokens(&self, n_running: usize) -> usize {
        self.config.min_batch_tokens.max(n_running + 1).min(self.most.batch_tokens)
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
