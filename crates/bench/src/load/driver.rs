//! Submits requests at their time or as earlier ones end, and follows each to its end.

use std::time::Instant;

use pelton_base::{Ask, FinishReason, SamplingParams, Slo, Usage};
use pelton_engine::{EngineHandle, EngineMetrics, SubmitError, TokenStream};
use pelton_llm::Llm;
use pelton_sched::Refusal;
use pelton_sim::report::{Ledger, RefusalRecord, RequestRecord, Totals};
use pelton_sim::trace::{Trace, TraceRequest};

use crate::pace::{self, Following, Pace, Served, since};
use crate::{BenchError, Progress, Result};

/// How a trace is served.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most requests of the trace that are served.
    pub n_requests: u64,
    /// When requests come.
    pub pace: Pace,
    /// Latency targets of requests that state none.
    pub default_slo: Slo,
}

/// The outcome of a trace.
#[derive(Debug)]
pub struct Run {
    /// The record of each request, and sums over all steps.
    pub ledger: Ledger,
    /// Whether the caller stopped before the end.
    pub is_interrupted: bool,
}

/// Serves all requests, or those until `stop` completes. Each request is a step of `progress`.
///
/// # Errors
///
/// A trace that turns out to be wrong, an engine that has stopped.
pub async fn drive(
    llm: &Llm,
    trace: &Trace,
    config: &Config,
    stop: impl Future<Output = ()>,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Run> {
    let &Config { n_requests, pace, default_slo } = config;
    let mut driver = Driver::new(llm, trace, default_slo);
    let started = driver.started;
    let is_interrupted =
        pace::pace(&mut driver, trace, (n_requests, pace), started, stop, progress).await?;
    Ok(Run { ledger: driver.close(), is_interrupted })
}

struct Driver<'a> {
    engine: &'a EngineHandle,
    vocab: u32,
    n_tenants: usize,
    default_slo: Slo,
    started: Instant,
    before: EngineMetrics,
    ledger: Ledger,
    last_arrival_ns: u64,
}

impl<'a> Driver<'a> {
    fn new(llm: &'a Llm, trace: &Trace, default_slo: Slo) -> Self {
        let engine = llm.engine();
        Self {
            engine,
            vocab: u32::try_from(llm.info().vocab_size).unwrap_or(u32::MAX),
            n_tenants: trace.tenants().names().len(),
            default_slo,
            started: Instant::now(),
            before: engine.metrics(),
            ledger: Ledger::default(),
            last_arrival_ns: 0,
        }
    }

    /// The ledger, with what the engine counted meanwhile.
    fn close(mut self) -> Ledger {
        // The counters of the last step are published after its events; an idle engine has done so.
        self.engine.shutdown(true);
        self.engine.join();
        let (before, after) = (self.before, self.engine.metrics());
        let records = &self.ledger.records;
        let n_decoded =
            (after.generated_tokens - before.generated_tokens).saturating_sub(records.len() as u64);
        let mut service = vec![0.0; self.n_tenants];
        for record in records.iter().filter(|record| record.ended_ns <= self.last_arrival_ns) {
            let n_computed = record.n_prompt.saturating_sub(record.n_cached) + record.n_output;
            service[record.tenant.0 as usize] += f64::from(n_computed);
        }
        let end_ns = records.iter().map(|record| record.ended_ns).max().unwrap_or(0);
        self.ledger.duration_s = end_ns as f64 / 1e9;
        self.ledger.service = service;
        self.ledger.totals = Totals {
            steps: after.n_steps - before.n_steps,
            busy_s: (after.step_time - before.step_time).as_secs_f64(),
            computed_tokens: after.prompt_tokens - before.prompt_tokens + n_decoded,
            preemptions: after.n_preemptions - before.n_preemptions,
            swapped_out_blocks: Some(after.swapped_out_blocks - before.swapped_out_blocks),
            swapped_in_blocks: Some(after.swapped_in_blocks - before.swapped_in_blocks),
            ..Totals::default()
        };
        self.ledger
    }
}

impl Served for Driver<'_> {
    type Ended = RequestRecord;

    fn begin(&mut self, request: &TraceRequest) -> Result<Option<Following<RequestRecord>>> {
        let number = self.ledger.n_offered;
        self.ledger.n_offered += 1;
        self.last_arrival_ns = request.at_ns;
        let submitted = self.engine.submit(Ask {
            prompt: request.prompt(number, self.vocab),
            sampling: SamplingParams::greedy(),
            choice: 0,
            max_tokens: request.n_output,
            stop_tokens: Vec::new(),
            service: request.service(),
            prediction: Vec::new(),
            constraint: None,
        });
        match submitted {
            Ok(stream) => {
                Ok(Some(Box::pin(follow(stream, *request, self.started, self.default_slo))))
            }
            Err(SubmitError::Stopped) => Err(BenchError::failed("the engine has stopped")),
            Err(refusal) => {
                self.ledger.refusals.push(RefusalRecord {
                    tenant: request.tenant,
                    n_prompt: request.n_prompt as u32,
                    reason: reason(&refusal),
                });
                Ok(None)
            }
        }
    }

    fn end(&mut self, record: RequestRecord) {
        self.ledger.records.push(record);
    }
}

/// Waits for the end of a request; `started` is the moment that all times count from.
async fn follow(
    mut stream: TokenStream,
    request: TraceRequest,
    started: Instant,
    default_slo: Slo,
) -> RequestRecord {
    let (mut started_ns, mut first_ns, mut ended_ns) = (None, None, request.at_ns);
    let (mut ending, mut usage) = (None, Usage::default());
    while let Some(event) = stream.recv().await {
        ended_ns = since(started, event.at);
        started_ns = started_ns.or(event.started_at.map(|at| since(started, at)));
        if !event.tokens.is_empty() {
            first_ns.get_or_insert(ended_ns);
        }
        usage = event.usage;
        ending = event.finish;
    }
    let record = RequestRecord {
        tenant: request.tenant,
        n_prompt: request.n_prompt as u32,
        n_output: usage.completion_tokens as u32,
        n_cached: usage.cached_tokens as u32,
        arrived_ns: request.at_ns,
        started_ns: started_ns.unwrap_or(ended_ns),
        first_ns: first_ns.unwrap_or(ended_ns),
        ended_ns,
        is_complete: ending == Some(FinishReason::Length),
        is_good: false,
    };
    record.judged(&request.slo.or(default_slo))
}

/// A refusal in the simulator's words.
fn reason(refusal: &SubmitError) -> &'static str {
    match refusal {
        SubmitError::Full { .. } => "queue full",
        SubmitError::TooLong { .. } => "prompt too long",
        SubmitError::Refused(Refusal::DeadlineUnreachable { .. }) => "deadline unreachable",
        SubmitError::Refused(Refusal::TenantQueueFull { .. }) => "queue full",
        _ => "cannot run",
    }
}
