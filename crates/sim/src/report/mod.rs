//! The report on a run: the same for the simulator and for the real engine.
//!
//! ```text
//! arrival      first step      first token                        last token
//!    ├── queue ────┤                │                                  │
//!    ├── TTFT ──────────────────────┤── TPOT = this / (tokens - 1) ────┤
//!    ├── end to end ───────────────────────────────────────────────────┤
//! ```
//!
//! *Goodput* counts the requests that ended and met their latency targets, out of all that were
//! offered. Refused and late requests lower it, however fast the rest is. A request without targets
//! only needs to end.

mod compare;
mod distribution;
mod ledger;
mod render;
mod served;

pub use compare::Comparison;
pub use distribution::{Distribution, percentile};
pub use ledger::{Ledger, RefusalRecord, RequestRecord, Totals};
pub use served::Served;

use crate::trace::Tenants;
use pelton_base::TenantId;
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Requests that came.
    pub offered: u64,
    /// Requests that were taken and did not come to an end: interrupted, never forgotten.
    pub unfinished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests that were not taken, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// From the start to the last end, in seconds.
    pub duration_s: f64,
    /// Share of that time in which a step ran; `None` seen from outside.
    pub busy_share: Option<f64>,
    /// Prompt tokens served per second, cached ones included.
    pub prompt_tokens_per_s: f64,
    /// Sums over all steps; `None` seen from outside.
    pub totals: Option<Totals>,
    /// Times between two events with text of one answer, as a client sees them. A server may put
    /// several tokens into one event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<Distribution>,
    /// Times by which a client sent requests late, because it or its machine was busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_late_ms: Option<Distribution>,
    /// Times to the first token from the moment of sending, which hide that requests were sent late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ttft_ms: Option<Distribution>,
    /// The same to the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_end_to_end_ms: Option<Distribution>,
    /// All requests.
    pub all: Group,
    /// Requests with short prompts and with long ones, where there are both.
    pub classes: Vec<Group>,
    /// Requests of each tenant, where there are several.
    pub tenants: Vec<Group>,
}

/// Figures of some of the requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Requests that ended, without those that failed.
    pub finished: usize,
    /// Requests that were not taken.
    pub refused: usize,
    /// Time until the first step; `None` seen from outside.
    pub queue_ms: Option<Distribution>,
    /// Time to the first token.
    pub ttft_ms: Option<Distribution>,
    /// Time per token after the first.
    pub tpot_ms: Option<Distribution>,
    /// Time from arrival to the last token.
    pub end_to_end_ms: Option<Distribution>,
    /// Tokens of answers per second.
    pub output_tokens_per_s: f64,
    /// Share of prompt tokens that were found in the cache.
    pub cached_share: f64,
    /// Requests per second that met their targets.
    pub goodput_per_s: f64,
    /// Their share of those that were offered, refused ones included.
    pub goodput_share: f64,
    /// Share of the service that was given until the last arrival.
    pub service_share: Option<f64>,
}

/// Times that only a client has, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct ClientTimes {
    /// Between two events with text of one answer.
    pub gaps_ns: Vec<u64>,
    /// From a request's arrival to its sending.
    pub late_ns: Vec<u64>,
    /// From sending to the first token.
    pub sent_ttft_ns: Vec<u64>,
    /// From sending to the last token.
    pub sent_end_to_end_ns: Vec<u64>,
}

/// How requests are divided into groups.
#[derive(Clone, Copy, Debug)]
pub struct Grouping<'a> {
    /// Names of the tenants.
    pub tenants: &'a Tenants,
    /// Fewest tokens of a long prompt.
    pub long_prompt_tokens: u32,
}

impl Report {
    /// The reason why no request was answered; `None` where some were, or where none came.
    pub fn unanswered(&self) -> Option<&'static str> {
        if self.offered == 0 || self.all.finished > 0 {
            return None;
        }
        Some(self.refused.keys().next().unwrap_or(&"all failed"))
    }

    /// Sums a run up.
    pub fn new(ledger: &Ledger, grouping: Grouping<'_>) -> Self {
        let Ledger { n_offered, records, refusals, duration_s, totals, service } = ledger;
        let duration_s = duration_s.max(1e-9);
        let mut refused = BTreeMap::new();
        for refusal in refusals {
            *refused.entry(refusal.reason).or_insert(0) += 1;
        }
        let all = Group::new("all", ledger, |_, _| true);
        let is_long = |n_prompt: u32| n_prompt >= grouping.long_prompt_tokens;
        let mut classes = vec![
            Group::new("short", ledger, |_, n_prompt| !is_long(n_prompt)),
            Group::new("long", ledger, |_, n_prompt| is_long(n_prompt)),
        ];
        let service_sum: f64 = service.iter().sum();
        let names = grouping.tenants.names().iter().zip(0..);
        let mut tenants: Vec<Group> = names
            .map(|(name, number)| {
                let group = Group::new(name, ledger, |tenant, _| tenant == TenantId(number));
                let service = service.get(number as usize).filter(|_| service_sum > 0.0);
                Group { service_share: service.map(|own| own / service_sum), ..group }
            })
            .collect();
        for groups in [&mut classes, &mut tenants] {
            groups.retain(|group| group.finished + group.refused > 0);
            // A single group repeats the figures of all requests.
            if groups.len() == 1 {
                groups.clear();
            }
        }
        let n_ended = (records.len() + refusals.len()) as u64;
        let n_prompt: u64 = complete(records).map(|record| u64::from(record.n_prompt)).sum();
        Self {
            offered: *n_offered,
            unfinished: n_offered.saturating_sub(n_ended),
            failed: records.iter().filter(|record| !record.is_complete).count() as u64,
            refused,
            duration_s,
            busy_share: Some(totals.busy_s / duration_s),
            prompt_tokens_per_s: n_prompt as f64 / duration_s,
            totals: Some(totals.clone()),
            itl_ms: None,
            sent_late_ms: None,
            sent_ttft_ms: None,
            sent_end_to_end_ms: None,
            all,
            classes,
            tenants,
        }
    }

    /// The same report as a client sees the run: without steps and the time until a request's first
    /// one, but with the times that only a client has.
    #[must_use]
    pub fn from_outside(mut self, times: ClientTimes) -> Self {
        (self.busy_share, self.totals) = (None, None);
        self.itl_ms = Distribution::new(times.gaps_ns);
        self.sent_late_ms = Distribution::new(times.late_ns);
        self.sent_ttft_ms = Distribution::new(times.sent_ttft_ns);
        self.sent_end_to_end_ms = Distribution::new(times.sent_end_to_end_ns);
        let groups = self.classes.iter_mut().chain(&mut self.tenants);
        groups.chain([&mut self.all]).for_each(|group| group.queue_ms = None);
        self
    }
}

impl Group {
    /// Sums up the requests of which `holds` is true, given tenant and prompt length.
    fn new(name: &str, ledger: &Ledger, holds: impl Fn(TenantId, u32) -> bool) -> Self {
        let records: Vec<&RequestRecord> = complete(&ledger.records)
            .filter(|record| holds(record.tenant, record.n_prompt))
            .collect();
        let refusals = ledger.refusals.iter().filter(|r| holds(r.tenant, r.n_prompt));
        let failed = ledger.records.iter().filter(|r| !r.is_complete);
        let n_failed = failed.filter(|r| holds(r.tenant, r.n_prompt)).count();
        let times = |time: fn(&RequestRecord) -> Option<u64>| {
            Distribution::new(records.iter().filter_map(|record| time(record)).collect())
        };
        let sum = |count: fn(&RequestRecord) -> u32| -> f64 {
            // As integers: the sum of no floats is -0.0.
            records.iter().map(|record| u64::from(count(record))).sum::<u64>() as f64
        };
        let duration_s = ledger.duration_s.max(1e-9);
        let n_good = records.iter().filter(|record| record.is_good).count() as f64;
        let refused = refusals.count();
        let n_ended = records.len() + refused + n_failed;
        Self {
            name: name.to_owned(),
            finished: records.len(),
            refused,
            queue_ms: times(|record| Some(record.queue_ns())),
            ttft_ms: times(|record| Some(record.ttft_ns())),
            tpot_ms: times(RequestRecord::tpot_ns),
            end_to_end_ms: times(|record| Some(record.end_to_end_ns())),
            output_tokens_per_s: sum(|record| record.n_output) / duration_s,
            cached_share: sum(|record| record.n_cached) / sum(|record| record.n_prompt).max(1.0),
            goodput_per_s: n_good / duration_s,
            goodput_share: n_good / (n_ended as f64).max(1.0),
            service_share: None,
        }
    }
}

fn complete(records: &[RequestRecord]) -> impl Iterator<Item = &RequestRecord> {
    records.iter().filter(|record| record.is_complete)
}
