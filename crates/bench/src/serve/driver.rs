//! Sends the requests of a trace to a server and keeps the ledger.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pelton_base::Slo;
use pelton_sim::report::{ClientTimes, Grouping, Ledger, RefusalRecord, RequestRecord, Served};
use pelton_sim::trace::{Trace, TraceRequest};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use super::address::Address;
use super::client::Client;
use super::counters::{Counters, Series};
use super::follow::{Answer, Ended, Outcome, follow};
use super::probe::{self, Metrics, ServerSeconds};
use super::prompt::{prompt, words};
use super::report::{Failures, Histograms, Processor, ServeReport, Trouble};
use super::requests::Requests;
use super::texts::{Text, Texts};
use crate::pace::{self, Following, Pace};
use crate::{Progress, Result};

/// The route that requests go to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Endpoint {
    /// `/v1/completions`: the prompt as it is.
    #[default]
    Completions,
    /// `/v1/chat/completions`: the prompt as the message of a user.
    Chat,
}

/// How a server is measured.
#[derive(Clone)]
pub struct Config {
    /// Where the server is.
    pub address: Address,
    /// The key that is sent with each request.
    pub key: Option<String>,
    /// File with the certificates that certify an `https` server; by default those that browsers
    /// trust.
    pub ca: Option<PathBuf>,
    /// The model that is asked for; the first one that the server lists by default.
    pub model: Option<String>,
    /// The route.
    pub endpoint: Endpoint,
    /// Most requests of the trace that are sent.
    pub n_requests: u64,
    /// When requests come.
    pub pace: Pace,
    /// Latency targets of requests that state none.
    pub default_slo: Slo,
    /// Time after which a request is given up.
    pub timeout: Duration,
    /// The workload in words.
    pub workload: String,
    /// Number of the first request, from which the words of prompts follow: runs with other numbers
    /// have other prompts.
    pub first_number: u64,
    /// Texts to ask about in place of common words; their numbers are those of the requests.
    pub texts: Option<Arc<Texts>>,
    /// Fields that every body gets beside the usual ones, such as `response_format`.
    pub extra: Map<String, Value>,
    /// Whether the counters of the server are looked at during the run, five times a second.
    pub looks: bool,
}

/// Time between two looks at the counters of a server.
const LOOK: Duration = Duration::from_millis(200);

/// A server that has answered.
pub struct Bench {
    client: Client,
    model: String,
    before: Option<Metrics>,
    config: Config,
}

impl Bench {
    /// Asks the server for its model and its processor time.
    ///
    /// # Errors
    ///
    /// A server that does not answer or lists no model; a key that no header can hold.
    pub async fn connect(config: Config) -> Result<Self> {
        let client =
            Client::new(config.address.clone(), config.key.as_deref(), config.ca.as_deref())?;
        let model = match &config.model {
            Some(model) => model.clone(),
            None => probe::first_model(&client).await?,
        };
        let before = probe::metrics(&client).await;
        Ok(Self { client, model, before, config })
    }

    /// Sends all requests, or those until `stop` completes. Each request is a step of `progress`.
    ///
    /// # Errors
    ///
    /// A trace that turns out to be wrong. Requests that fail are part of the report.
    pub async fn run(
        self,
        (trace, grouping): (&Trace, Grouping<'_>),
        stop: impl Future<Output = ()>,
        progress: &dyn Fn(Progress<'_>),
    ) -> Result<ServeReport> {
        let Self { client, model, before, config } = self;
        let client_before = processor_seconds();
        let mut driver = Driver {
            client,
            model,
            words: words(),
            started: Instant::now(),
            ledger: Ledger::default(),
            seen: Seen::default(),
            config,
        };
        let (how, started) = ((driver.config.n_requests, driver.config.pace), driver.started);
        let looks = Looks { client: driver.client.clone(), is_on: driver.config.looks };
        let mut seen: Vec<Series> = Vec::new();
        let is_interrupted = tokio::select! {
            ended = pace::pace(&mut driver, trace, how, started, stop, progress) => ended?,
            never = looks.go_on(&mut seen) => match never {},
        };
        let client_s = processor_seconds() - client_before;
        let after = probe::metrics(&driver.client).await;
        let seconds = |metrics: &Option<Metrics>| metrics.as_ref().and_then(|m| m.seconds);
        let used =
            |pick: fn(ServerSeconds) -> f64| Some(pick(seconds(&after)?) - pick(seconds(&before)?));
        let processor = Processor {
            client_s,
            server_serving_s: used(|seconds| seconds.serving),
            server_model_s: used(|seconds| seconds.model),
        };
        let counters = before.zip(after).filter(|_| driver.config.looks);
        let counters =
            counters.map(|(before, after)| Counters::new(&before.series, &seen, &after.series));
        Ok(driver.close(grouping, processor, counters, is_interrupted))
    }
}

/// Looks at the counters of a server from time to time.
struct Looks {
    client: Client,
    is_on: bool,
}

impl Looks {
    /// Adds looks until it is dropped.
    async fn go_on(&self, seen: &mut Vec<Series>) -> Infallible {
        if !self.is_on {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let metrics = probe::metrics(&self.client).await;
            seen.extend(metrics.map(|metrics| metrics.series));
        }
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Counts of a run for which the ledger has no field.
#[derive(Debug, Default)]
struct Seen {
    times: ClientTimes,
    failures: Failures,
    n_uncounted: u64,
    n_short: u64,
}

struct Driver {
    client: Client,
    model: String,
    words: Vec<&'static str>,
    started: Instant,
    ledger: Ledger,
    seen: Seen,
    config: Config,
}

impl pace::Served for Driver {
    type Ended = Ended;

    fn begin(&mut self, request: &TraceRequest) -> Result<Option<Following<Ended>>> {
        let number = self.ledger.n_offered;
        self.ledger.n_offered += 1;
        let number = self.config.first_number + number;
        let mut request = *request;
        if let Some(text) = self.config.texts.as_ref().map(|texts| texts.get(number)) {
            request.n_prompt = text.n_words;
            request.n_output = text.max_tokens.unwrap_or(request.n_output);
        }
        let (route, body) = self.body(&request, number);
        let times = (self.started, self.config.timeout);
        Ok(Some(Box::pin(follow(self.client.clone(), route, body, request, times))))
    }

    fn end(&mut self, ended: Ended) {
        let Ended { request, sent_ns, ended_ns, outcome } = ended;
        if self.config.pace == Pace::Clock {
            self.seen.times.late_ns.push(sent_ns.saturating_sub(request.at_ns));
        }
        let failed = RequestRecord {
            tenant: request.tenant,
            n_prompt: request.n_prompt as u32,
            n_output: 0,
            n_cached: 0,
            arrived_ns: request.at_ns,
            started_ns: sent_ns,
            first_ns: ended_ns,
            ended_ns,
            is_complete: false,
            is_good: false,
        };
        match outcome {
            Outcome::Answered(answer) => self.answered(&request, failed, answer),
            Outcome::Refused(status) => self.ledger.refusals.push(RefusalRecord {
                tenant: request.tenant,
                n_prompt: request.n_prompt as u32,
                reason: if status.as_u16() == 429 { "status 429" } else { "status 503" },
            }),
            Outcome::Failed(trouble) => self.failed(trouble, failed),
        }
    }
}

impl Driver {
    /// The route and the body of a request.
    fn body(&self, request: &TraceRequest, number: u64) -> (&'static str, String) {
        let mut body = json!({
            "model": self.model,
            "max_tokens": request.n_output,
            "temperature": 0,
            // Most servers honour it; an answer that ends early is counted.
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        for (name, value) in &self.config.extra {
            body[name] = value.clone();
        }
        if request.priority != 0 {
            body["priority"] = json!(request.priority);
        }
        let endpoint = self.config.endpoint;
        match &self.config.texts {
            Some(texts) => texts.get(number).put(endpoint, &mut body),
            None => {
                Text::of_prompt(prompt(request, number, &self.words), None).put(endpoint, &mut body)
            }
        }
        let route = match endpoint {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
        };
        (route, body.to_string())
    }

    fn answered(&mut self, request: &TraceRequest, record: RequestRecord, answer: Answer) {
        let Some(first_ns) = answer.first_ns else {
            let trouble = Trouble::new("no text", "the answer ended without a single character");
            return self.failed(trouble, record);
        };
        let usage = answer.usage.unwrap_or_default();
        let is_counted = usage.completion_tokens > 0;
        self.seen.n_uncounted += u64::from(!is_counted);
        self.seen.times.gaps_ns.extend(answer.gaps_ns);
        if self.config.pace == Pace::Clock {
            let times = &mut self.seen.times;
            times.sent_ttft_ns.push(first_ns.saturating_sub(record.started_ns));
            times.sent_end_to_end_ns.push(answer.last_ns.saturating_sub(record.started_ns));
        }
        let n_output = if is_counted { usage.completion_tokens } else { answer.n_events };
        self.seen.n_short += u64::from(is_counted && (n_output as usize) < request.n_output);
        let record = RequestRecord {
            n_prompt: if usage.prompt_tokens > 0 { usage.prompt_tokens } else { record.n_prompt },
            n_output,
            n_cached: usage.cached_tokens(),
            first_ns,
            ended_ns: answer.last_ns,
            is_complete: true,
            ..record
        };
        self.ledger.records.push(record.judged(&request.slo.or(self.config.default_slo)));
    }

    fn failed(&mut self, trouble: Trouble, record: RequestRecord) {
        trouble.count(&mut self.seen.failures);
        self.ledger.records.push(record);
    }

    fn close(
        mut self,
        grouping: Grouping<'_>,
        processor: Processor,
        counters: Option<Counters>,
        is_interrupted: bool,
    ) -> ServeReport {
        let records = &self.ledger.records;
        let end_ns = records.iter().map(|record| record.ended_ns).max().unwrap_or(0);
        let answers = || records.iter().filter(|record| record.is_complete);
        let n_answers = answers().count() as u64;
        let n_tokens = answers().map(|record| u64::from(record.n_output)).sum();
        self.ledger.duration_s = end_ns as f64 / 1e9;
        let server = format!("{} at {}", self.model, self.config.address);
        let requests = Requests::new(records);
        let gaps_ms: Vec<f64> = self.seen.times.gaps_ns.iter().map(|&ns| ns as f64 / 1e6).collect();
        let n_refused = self.ledger.refusals.len() as u64;
        let mut served = Served::new(self.config.workload, server);
        served.add_from_outside(self.model.clone(), (&self.ledger, self.seen.times), grouping);
        served.interrupted = is_interrupted;
        ServeReport {
            served,
            failures: self.seen.failures,
            n_uncounted: self.seen.n_uncounted,
            n_short: self.seen.n_short,
            n_answers,
            n_tokens,
            n_refused,
            processor,
            model: self.model,
            steady: requests.steadiness(),
            counters,
            histograms: Histograms::new(&requests, &gaps_ms),
            requests,
            gaps_ms,
        }
    }
}

/// Processor time of this process, in seconds.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
