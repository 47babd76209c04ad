//! Timelines of the requests that ended last, for `GET /v1/requests/{id}/timeline`.
//!
//! A request leaves the marks of its steps (at most 128 for each answer) when it ends; they become
//! JSON when somebody asks. Their number and bytes are bounded, and the oldest goes first.

mod chrome;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use pelton_base::{TenantId, Usage};
use pelton_llm::{Mark, MarkKind};

pub(crate) use self::chrome::ChromeTrace;
use crate::metrics::ending;
use crate::outcome::Outcome;

/// Most timelines that are kept.
const MOST: usize = 512;
/// Most bytes of all timelines together.
const MOST_BYTES: usize = 8 << 20;

/// The timelines of a server.
#[derive(Debug, Default)]
pub(crate) struct Timelines {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    records: VecDeque<Arc<Record>>,
    n_bytes: usize,
}

/// One request that has ended. Times are microseconds since its arrival.
#[derive(Debug)]
pub(crate) struct Record {
    id: Box<str>,
    tenant: TenantId,
    model: Box<str>,
    route: Box<str>,
    /// Arrival in seconds since 1970.
    arrived: f64,
    queue_us: Option<u64>,
    first_token_us: Option<u64>,
    end_us: u64,
    usage: Usage,
    reasons: Vec<&'static str>,
    /// For each answer.
    answers: Vec<Vec<Step>>,
}

/// Some steps of an answer.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: MarkKind,
    begin_us: u64,
    end_us: u64,
    n_steps: u32,
    n_rows: u32,
    n_tokens: u32,
    n_drafts: u32,
}

impl Record {
    fn new(outcome: &Outcome<'_>) -> Self {
        let since = outcome.about.since;
        let micros = |at: std::time::Instant| {
            u64::try_from(at.saturating_duration_since(since).as_micros()).unwrap_or(u64::MAX)
        };
        let step = |mark: &Mark| Step {
            kind: mark.kind,
            begin_us: micros(mark.begin),
            end_us: micros(mark.end),
            n_steps: mark.n_steps,
            n_rows: mark.n_rows,
            n_tokens: mark.n_tokens,
            n_drafts: mark.n_drafts,
        };
        // The engine counts from the submission, which comes after the arrival.
        let now_us = micros(std::time::Instant::now());
        let answers: Vec<Vec<Step>> =
            outcome.traces.iter().map(|trace| trace.marks().iter().map(step).collect()).collect();
        let steps = || answers.iter().flatten();
        Self {
            id: outcome.about.id.clone(),
            tenant: outcome.caller.tenant,
            model: outcome.model.name().into(),
            route: outcome.about.route.clone(),
            arrived: crate::wire::unix_time() - since.elapsed().as_secs_f64(),
            queue_us: steps().map(|step| step.begin_us).min(),
            first_token_us: steps().filter(|step| step.n_tokens > 0).map(|step| step.end_us).min(),
            end_us: now_us,
            usage: outcome.usage,
            reasons: outcome.reasons.iter().copied().map(ending).collect(),
            answers,
        }
    }

    fn n_bytes(&self) -> usize {
        let n_steps: usize = self.answers.iter().map(Vec::len).sum();
        let texts = self.id.len() + self.model.len() + self.route.len();
        size_of::<Self>() + n_steps * size_of::<Step>() + texts + 16 * self.reasons.len()
    }
}

impl Timelines {
    /// Keeps the timeline of a request that has ended.
    pub(crate) fn keep(&self, outcome: &Outcome<'_>) {
        self.add(Arc::new(Record::new(outcome)));
    }

    fn add(&self, record: Arc<Record>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.n_bytes += record.n_bytes();
        kept.records.push_back(record);
        while kept.records.len() > MOST || kept.n_bytes > MOST_BYTES {
            let Some(oldest) = kept.records.pop_front() else { return };
            kept.n_bytes -= oldest.n_bytes();
        }
    }

    /// The latest request of a tenant with this `X-Request-Id`.
    pub(crate) fn find(&self, tenant: TenantId, id: &str) -> Option<Arc<Record>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |record: &&Arc<Record>| record.tenant == tenant && *record.id == *id;
        kept.records.iter().rev().find(is_it).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, tenant: u32, n_steps: usize) -> Arc<Record> {
        let step = Step {
            kind: MarkKind::Decode,
            begin_us: 1,
            end_us: 2,
            n_steps: 1,
            n_rows: 1,
            n_tokens: 1,
            n_drafts: 0,
        };
        Arc::new(Record {
            id: id.into(),
            tenant: TenantId(tenant),
            model: "m".into(),
            route: "/v1/completions".into(),
            arrived: 0.0,
            queue_us: None,
            first_token_us: None,
            end_us: n_steps as u64,
            usage: Usage::default(),
            reasons: Vec::new(),
            answers: vec![vec![step; n_steps]],
        })
    }

    #[test]
    fn the_latest_of_a_name_is_found_by_its_own_tenant_alone() {
        let timelines = Timelines::default();
        timelines.add(record("a", 1, 1));
        timelines.add(record("a", 1, 2));
        timelines.add(record("a", 2, 3));
        let end = |tenant: u32, id: &str| {
            timelines.find(TenantId(tenant), id).map(|record| record.end_us)
        };
        assert_eq!(
            (end(1, "a"), end(2, "a"), end(3, "a"), end(1, "b")),
            (Some(2), Some(3), None, None)
        );
    }

    #[test]
    fn memory_is_bounded_in_number_and_in_bytes() {
        let timelines = Timelines::default();
        for i in 0..2000 {
            timelines.add(record(&i.to_string(), 0, 1));
        }
        assert_eq!(timelines.kept.lock().expect("whole").records.len(), MOST);
        assert!(timelines.find(TenantId(0), "1999").is_some());
        assert!(timelines.find(TenantId(0), "0").is_none(), "the oldest goes first");
        for i in 0..200 {
            timelines.add(record(&i.to_string(), 0, 10_000));
        }
        let kept = timelines.kept.lock().expect("whole");
        assert!(kept.n_bytes <= MOST_BYTES && kept.records.len() > 1, "{}", kept.n_bytes);
        assert_eq!(kept.n_bytes, kept.records.iter().map(|record| record.n_bytes()).sum::<usize>());
    }
}
