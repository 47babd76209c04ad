//! The ledger of a run: one record per request, and a few sums.
//!
//! A record takes 64 bytes; keeping all of them makes percentiles exact.

use pelton_base::{Slo, TenantId};

/// The outcome of a request that was taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestRecord {
    /// Its tenant.
    pub tenant: TenantId,
    /// Tokens of its prompt.
    pub n_prompt: u32,
    /// Tokens of its answer.
    pub n_output: u32,
    /// Tokens of its prompt that were found in the cache.
    pub n_cached: u32,
    /// Arrival in nanoseconds from the start, as the other times.
    pub arrived_ns: u64,
    /// Begin of the first step with tokens of it.
    pub started_ns: u64,
    /// Time of its first token.
    pub first_ns: u64,
    /// Time of its last token.
    pub ended_ns: u64,
    /// Whether it came to its end without an error, with one token at least.
    pub is_complete: bool,
    /// Whether it is complete and its latency targets were met, where it had any.
    pub is_good: bool,
}

impl RequestRecord {
    /// Time until its first step, in nanoseconds.
    pub fn queue_ns(&self) -> u64 {
        self.started_ns.saturating_sub(self.arrived_ns)
    }

    /// Time to the first token, in nanoseconds.
    pub fn ttft_ns(&self) -> u64 {
        self.first_ns.saturating_sub(self.arrived_ns)
    }

    /// Time per token after the first, in nanoseconds; `None` for an answer of one token.
    pub fn tpot_ns(&self) -> Option<u64> {
        let n_more = u64::from(self.n_output).checked_sub(1).filter(|&n| n > 0)?;
        Some(self.ended_ns.saturating_sub(self.first_ns) / n_more)
    }

    /// Time from the arrival to the last token, in nanoseconds.
    pub fn end_to_end_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.arrived_ns)
    }

    /// The same record, judged by these targets.
    #[must_use]
    pub fn judged(self, slo: &Slo) -> Self {
        let within = |ns: u64, target: Option<std::time::Duration>| {
            target.is_none_or(|target| u128::from(ns) <= target.as_nanos())
        };
        let is_in_time =
            within(self.ttft_ns(), slo.ttft) && within(self.tpot_ns().unwrap_or(0), slo.tpot);
        Self { is_good: self.is_complete && is_in_time, ..self }
    }
}

/// A request that was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RefusalRecord {
    /// Its tenant.
    pub tenant: TenantId,
    /// Tokens of its prompt.
    pub n_prompt: u32,
    /// The reason, in a word or two.
    pub reason: &'static str,
}

/// Sums over all steps. A figure that was not counted is `None`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Totals {
    /// Steps.
    pub steps: u64,
    /// Time spent in them, in seconds.
    pub busy_s: f64,
    /// Tokens computed.
    pub computed_tokens: u64,
    /// Computed tokens that had been computed before and were lost.
    pub recomputed_tokens: Option<u64>,
    /// Times that a request was preempted.
    pub preemptions: u64,
    /// Preemptions after which a request had to compute some of its tokens again.
    pub recomputed_preemptions: Option<u64>,
    /// Preemptions after which the host or the cache still had all computed tokens.
    pub restored_preemptions: Option<u64>,
    /// KV blocks copied to the host.
    pub swapped_out_blocks: Option<u64>,
    /// KV blocks copied back.
    pub swapped_in_blocks: Option<u64>,
    /// Requests running, on average over the busy time.
    pub mean_running: Option<f64>,
    /// Share of the KV blocks that are not free, on average over the busy time.
    pub mean_kv_share: Option<f64>,
}

/// Records and sums of a run.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Requests that came, taken or not.
    pub n_offered: u64,
    /// Requests that were taken and ended, in order of their ends.
    pub records: Vec<RequestRecord>,
    /// Requests that were not taken.
    pub refusals: Vec<RefusalRecord>,
    /// From the start to the last end, in seconds.
    pub duration_s: f64,
    /// Sums over all steps.
    pub totals: Totals,
    /// Service of each tenant until the last arrival, in any unit; empty if it is not known.
    pub service: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const RECORD: RequestRecord = RequestRecord {
        tenant: TenantId(0),
        n_prompt: 10,
        n_output: 5,
        n_cached: 0,
        arrived_ns: 100,
        started_ns: 150,
        first_ns: 400,
        ended_ns: 800,
        is_complete: true,
        is_good: false,
    };

    #[test]
    fn the_times_of_a_request_are_differences() {
        assert_eq!(RECORD.queue_ns(), 50);
        assert_eq!(RECORD.ttft_ns(), 300);
        assert_eq!(RECORD.tpot_ns(), Some(100));
        assert_eq!(RECORD.end_to_end_ns(), 700);
        assert_eq!(RequestRecord { n_output: 1, ..RECORD }.tpot_ns(), None);
    }

    #[test]
    fn a_request_is_good_when_both_targets_are_met() {
        let slo = |ttft, tpot| Slo {
            ttft: Some(Duration::from_nanos(ttft)),
            tpot: Some(Duration::from_nanos(tpot)),
        };
        assert!(RECORD.judged(&slo(300, 100)).is_good);
        assert!(!RECORD.judged(&slo(299, 100)).is_good);
        assert!(!RECORD.judged(&slo(300, 99)).is_good);
        assert!(RECORD.judged(&Slo::default()).is_good);
        let failed = RequestRecord { is_complete: false, ..RECORD };
        assert!(!failed.judged(&Slo::default()).is_good);
    }
}
