//! The part of a server, or of the client, that keeps it from more, by the server's own counters.
//!
//! | looked at, in this order | cause |
//! |---|---|
//! | the client sent late, or used up a processor | client |
//! | KV blocks ran out (90 % in use while requests wait, or too few for one more request like those that run), or requests were preempted | KV memory |
//! | a quarter of the time of steps went to the scheduler | scheduler |
//! | a quarter of the time of steps went to waiting for masks of grammars | grammar |
//! | whenever requests wait, as many run as ever, and there are blocks for more | running requests |
//! | steps for less than 70 % of the time while requests waited for their first one | queue |
//! | steps all the time, and a prompt takes longer than its share of generation | compute |
//! | the same the other way round | bandwidth |
//!
//! Of a server that publishes nothing only two times are known: a first token that comes later at
//! more load, or tokens that follow each other more slowly.

use serde::Serialize;

use super::Point;
use crate::serve::{Counters, Phase};

/// Lateness from which the client is the limit: this share of the median time to the first token,
/// and at least so many milliseconds.
const LATE_SHARE: f64 = 0.1;
const LATE_MS: f64 = 5.0;
/// Processors of the client's one thread from which it is the limit.
const CLIENT_PROCESSORS: f64 = 0.85;
/// Share of the KV blocks that counts as all of them.
const FULL: f64 = 0.9;
/// Share of the looks at waiting requests in which as many run as ever, from which that is a limit.
const FLAT: f64 = 0.8;
/// Share of the time of steps that a scheduler may take.
const PLAN_SHARE: f64 = 0.25;
/// Share of the time of steps that masks of grammars may take.
const MASK_SHARE: f64 = 0.25;
/// Share of the time with a step from which a server is busy.
const BUSY: f64 = 0.7;

/// The limit of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The load generator.
    Client,
    /// Room for keys and values.
    KvMemory,
    /// The scheduler between steps.
    Scheduler,
    /// Masks of grammars and schemas, for which steps wait.
    Grammar,
    /// The most requests that run at once, while there is memory for more.
    RunningRequests,
    /// Requests wait although the machine is free.
    Queue,
    /// Arithmetic, of which prompts need most.
    Compute,
    /// Reading weights, keys and values, which generation does for each token.
    Bandwidth,
    /// First tokens come later at more load; the server publishes no reason.
    FirstTokens,
    /// Tokens follow each other more slowly at more load; the server publishes no reason.
    NextTokens,
}

impl Cause {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::KvMemory => "KV memory",
            Self::Scheduler => "scheduler",
            Self::Grammar => "grammar",
            Self::RunningRequests => "running requests",
            Self::Queue => "queue",
            Self::Compute => "compute",
            Self::Bandwidth => "bandwidth",
            Self::FirstTokens => "prompts or a queue",
            Self::NextTokens => "generation",
        }
    }
}

/// A cause and the figures that speak for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// The figures, in words.
    pub evidence: Vec<String>,
}

impl Finding {
    fn of(cause: Cause, evidence: impl Into<Vec<String>>) -> Self {
        Self { cause, evidence: evidence.into() }
    }

    /// The limit at the highest load, compared with the lowest.
    pub(super) fn new(light: &Point, heavy: &Point) -> Self {
        if let Some(finding) = Self::of_client(heavy) {
            return finding;
        }
        let Some(counters) = &heavy.counters else { return from_outside(light, heavy) };
        memory(counters)
            .or_else(|| scheduler(counters))
            .or_else(|| grammar(counters))
            .or_else(|| running(counters))
            .or_else(|| queue(heavy, counters))
            .or_else(|| busy(light, heavy, counters))
            .unwrap_or_else(|| from_outside(light, heavy))
    }

    /// The client, where it is the limit.
    pub(super) fn of_client(heavy: &Point) -> Option<Self> {
        let late = heavy.late_p95_ms.unwrap_or(0.0);
        if late >= LATE_MS && late >= LATE_SHARE * heavy.ttft_ms.p50 {
            let evidence = format!("requests were sent {late:.1} ms late (P95)");
            return Some(Self::of(Cause::Client, [evidence]));
        }
        (heavy.client_processors >= CLIENT_PROCESSORS).then(|| {
            let evidence = format!("it used {:.2} processors, of one", heavy.client_processors);
            Self::of(Cause::Client, [evidence])
        })
    }
}

fn memory(counters: &Counters) -> Option<Finding> {
    let waiting = counters.mean_waiting.unwrap_or(0.0);
    if let Some(n) = counters.preemptions.filter(|n| *n > 0.0) {
        let evidence = format!("{n:.0} requests lost their blocks to others");
        return Some(Finding::of(Cause::KvMemory, [evidence]));
    }
    let share = counters.most_kv_share.filter(|_| waiting >= 0.5)?;
    let mut evidence = vec![format!(
        "{:.0} % of the blocks in use while {waiting:.1} requests wait",
        100.0 * share
    )];
    if share < FULL {
        // As many as each of those that run has.
        let n = counters.most_running.filter(|n| *n >= 1.0)?;
        if counters.full_share.is_none_or(|full| full < FLAT) || share * (n + 1.0) / n <= 1.0 {
            return None;
        }
        evidence.push(format!("{n:.0} requests run, and one more of their size has no room"));
    }
    Some(Finding::of(Cause::KvMemory, evidence))
}

fn running(counters: &Counters) -> Option<Finding> {
    // Where none runs in any look, something before the running ones holds the others back.
    let most = counters.most_running.filter(|n| *n >= 1.0)?;
    let waiting = counters.mean_waiting.filter(|waiting| *waiting >= 0.5)?;
    let full = counters.full_share.filter(|share| *share >= FLAT)?;
    let mut evidence = vec![format!(
        "{waiting:.1} requests wait, and {most:.0} run in {:.0} % of the looks: raise the server's \
         limit (of a Pelton `--max-running`)",
        100.0 * full
    )];
    let share = counters.most_kv_share;
    evidence.extend(share.map(|share| format!("{:.0} % of the blocks in use", 100.0 * share)));
    Some(Finding::of(Cause::RunningRequests, evidence))
}

fn scheduler(counters: &Counters) -> Option<Finding> {
    let share = counters.plan_s? / counters.step_s.filter(|seconds| *seconds > 0.0)?;
    (share >= PLAN_SHARE).then(|| {
        let evidence = format!("{:.0} % of the time of steps is the scheduler's", 100.0 * share);
        Finding::of(Cause::Scheduler, [evidence])
    })
}

fn grammar(counters: &Counters) -> Option<Finding> {
    let share = counters.mask_s? / counters.step_s.filter(|seconds| *seconds > 0.0)?;
    (share >= MASK_SHARE).then(|| {
        let evidence = [
            format!("{:.0} % of the time of steps went to waiting for masks", 100.0 * share),
            "`pelton bench grammar` measures those of a schema".to_owned(),
        ];
        Finding::of(Cause::Grammar, evidence)
    })
}

/// Share of the time with a step.
fn busy_share(heavy: &Point, counters: &Counters) -> Option<f64> {
    Some(counters.step_s? / heavy.duration_s)
}

fn queue(heavy: &Point, counters: &Counters) -> Option<Finding> {
    let busy = busy_share(heavy, counters)?;
    let waited = counters.queue?.mean_s()?;
    let served = counters.prefill.and_then(Phase::mean_s).unwrap_or(0.0)
        + counters.decode.and_then(Phase::mean_s).unwrap_or(0.0);
    (busy < BUSY && waited > served).then(|| {
        let evidence = [
            format!("requests wait {:.0} ms and are served for {:.0}", 1e3 * waited, 1e3 * served),
            format!("steps for {:.0} % of the time", 100.0 * busy),
        ];
        Finding::of(Cause::Queue, evidence)
    })
}

/// A prompt has the machine for itself; tokens of several answers share their steps.
fn busy(light: &Point, heavy: &Point, counters: &Counters) -> Option<Finding> {
    let busy = busy_share(heavy, counters).filter(|share| *share >= BUSY)?;
    let alone = light.counters.as_ref()?;
    let (prefill, decode) = (alone.prefill?.mean_s()?, alone.decode?.mean_s()?);
    let together = counters.mean_running.unwrap_or(1.0).max(1.0);
    let decode = decode / together;
    let evidence = [
        format!("steps for {:.0} % of the time", 100.0 * busy),
        format!(
            "a request alone takes {:.0} ms for its prompt and, shared by {together:.1}, {:.0} ms \
             for its answer",
            1e3 * prefill,
            1e3 * decode
        ),
    ];
    let cause = if prefill >= decode { Cause::Compute } else { Cause::Bandwidth };
    Some(Finding::of(cause, evidence))
}

fn from_outside(light: &Point, heavy: &Point) -> Finding {
    let grown = |of: fn(&Point) -> f64| of(heavy) / of(light).max(1e-6);
    let (first, next) = (grown(|p| p.ttft_ms.p50), grown(|p| p.tpot_ms.p50));
    let cause = if first >= next { Cause::FirstTokens } else { Cause::NextTokens };
    let evidence = format!(
        "TTFT is {first:.1} times that of the lowest load, TPOT {next:.1} times; the server \
         publishes no counters that tell more"
    );
    Finding::of(cause, [evidence])
}

#[cfg(test)]
mod tests {
    use super::super::Load;
    use super::super::tests::point;
    use super::*;

    fn phase(ms: f64) -> Option<Phase> {
        Some(Phase { n: 100.0, seconds: 100.0 * ms / 1e3 })
    }

    /// Counters of a run of 10 s with this much time in steps.
    fn counters(step_s: f64) -> Counters {
        Counters {
            n_looks: 50,
            mean_running: Some(8.0),
            most_running: Some(8.0),
            full_share: Some(0.2),
            mean_waiting: Some(4.0),
            most_kv_share: Some(0.3),
            preemptions: Some(0.0),
            step_s: Some(step_s),
            plan_s: Some(0.01 * step_s),
            mask_s: Some(0.02 * step_s),
            queue: phase(100.0),
            prefill: phase(50.0),
            decode: phase(500.0),
        }
    }

    fn found(light: Counters, heavy: Counters) -> Cause {
        let at = |load, counters| Point {
            counters: Some(counters),
            ..point(Load::Rate(load), load, 100.0, 10.0)
        };
        Finding::new(&at(1.0, light), &at(10.0, heavy)).cause
    }

    #[test]
    fn each_limit_is_named_by_the_counters_that_speak_for_it() {
        let light = || Counters { mean_running: Some(1.0), ..counters(1.0) };
        // 50 ms of prompt against 500 / 8 ms of generation; 200 against 62.5.
        assert_eq!(found(light(), counters(9.5)), Cause::Bandwidth);
        let slow = Counters { prefill: phase(200.0), ..light() };
        assert_eq!(found(slow, counters(9.5)), Cause::Compute);
        let full = Counters { most_kv_share: Some(0.97), ..counters(9.5) };
        assert_eq!(found(light(), full), Cause::KvMemory);
        let preempted = Counters { preemptions: Some(3.0), ..counters(9.5) };
        assert_eq!(found(light(), preempted), Cause::KvMemory);
        // Full, and nobody waits.
        let busy = Counters { most_kv_share: Some(0.97), mean_waiting: Some(0.0), ..counters(9.5) };
        assert_eq!(found(light(), busy), Cause::Bandwidth);
        let planning = Counters { plan_s: Some(4.0), ..counters(9.5) };
        assert_eq!(found(light(), planning), Cause::Scheduler);
        let masking = Counters { mask_s: Some(4.0), ..counters(9.5) };
        assert_eq!(found(light(), masking.clone()), Cause::Grammar);
        let unknown = Counters { mask_s: None, ..masking };
        assert_eq!(found(light(), unknown), Cause::Bandwidth);
        // As many run as ever whenever others wait: eight of 30 % of the blocks leave room for more,
        // and one with 60 % leaves none for a second one.
        let flat = Counters { full_share: Some(0.9), ..counters(9.5) };
        assert_eq!(found(light(), flat.clone()), Cause::RunningRequests);
        let alone = Counters { most_running: Some(1.0), most_kv_share: Some(0.6), ..flat.clone() };
        assert_eq!(found(light(), alone.clone()), Cause::KvMemory);
        let small = Counters { most_kv_share: Some(0.4), ..alone };
        assert_eq!(found(light(), small), Cause::RunningRequests);
        let none = Counters { most_running: Some(0.0), most_kv_share: Some(0.0), ..flat.clone() };
        assert_ne!(found(light(), none), Cause::RunningRequests);
        let unasked = Counters { mean_waiting: Some(0.0), ..flat };
        assert_eq!(found(light(), unasked), Cause::Bandwidth);
        let idle = Counters { queue: phase(2_000.0), ..counters(3.0) };
        assert_eq!(found(light(), idle), Cause::Queue);
    }

    #[test]
    fn a_late_client_is_named_before_the_server() {
        let light = point(Load::Rate(1.0), 1.0, 100.0, 10.0);
        let heavy = Point { counters: Some(counters(9.9)), ..light.clone() };
        let late = Point { late_p95_ms: Some(30.0), ..heavy.clone() };
        assert_eq!(Finding::new(&light, &late).cause, Cause::Client);
        let busy = Point { client_processors: 0.97, ..heavy.clone() };
        assert_eq!(Finding::new(&light, &busy).cause, Cause::Client);
        let punctual = Point { late_p95_ms: Some(0.3), ..heavy };
        assert_ne!(Finding::new(&light, &punctual).cause, Cause::Client);
    }

    #[test]
    fn without_counters_only_the_two_times_are_told_apart() {
        let light = point(Load::Rate(1.0), 1.0, 100.0, 10.0);
        let late = point(Load::Rate(9.0), 9.0, 1_000.0, 12.0);
        assert_eq!(Finding::new(&light, &late).cause, Cause::FirstTokens);
        let slow = point(Load::Rate(9.0), 9.0, 150.0, 40.0);
        let finding = Finding::new(&light, &slow);
        assert_eq!(finding.cause, Cause::NextTokens);
        assert!(finding.evidence[0].contains("4.0 times"), "{finding:?}");
    }
}
