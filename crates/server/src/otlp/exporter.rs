//! The thread that sends spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use super::span::attribute;
use super::{OtlpConfig, Span};

/// Spans that wait to be sent.
const QUEUE: usize = 2048;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// Longest time that a span waits for others.
const WAIT: Duration = Duration::from_secs(5);
/// Attempts to send a batch.
const ATTEMPTS: u32 = 3;
/// Wait before a second attempt; twice as long before a third.
const PAUSE: Duration = Duration::from_millis(500);

/// Sends spans from a thread of its own. Dropping it sends what waits, and then ends the thread.
#[derive(Debug)]
pub(crate) struct Exporter {
    /// `None` once it is being dropped.
    queue: Option<SyncSender<Span>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// Spans so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) n_sent: AtomicU64,
    /// Not sent: the queue was full, or the collector did not take them.
    pub(crate) n_lost: AtomicU64,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub(crate) fn start(config: OtlpConfig) -> std::io::Result<Self> {
        let (queue, spans) = sync_channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let sender = Sender::new(config, Arc::clone(&counts));
        let thread = std::thread::Builder::new()
            .name("pelton-otlp".to_owned())
            .spawn(move || sender.run(&spans))?;
        Ok(Self { queue: Some(queue), counts, thread: Some(thread) })
    }

    /// Leaves a span to be sent; never waits.
    pub(crate) fn send(&self, span: Span) {
        let is_taken = self.queue.as_ref().is_some_and(|queue| queue.try_send(span).is_ok());
        if !is_taken {
            self.counts.n_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Spans so far.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // Without senders the thread sends what is left, and ends.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's part.
struct Sender {
    agent: Agent,
    config: OtlpConfig,
    counts: Arc<Counts>,
    /// Whether the last batch was lost, so that a collector that is away is logged once.
    is_away: bool,
}

impl Sender {
    fn new(config: OtlpConfig, counts: Arc<Counts>) -> Self {
        let agent = Agent::config_builder()
            .user_agent(concat!("pelton/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .timeout_global(Some(config.timeout))
            .build()
            .new_agent();
        Self { agent, config, counts, is_away: false }
    }

    fn run(mut self, spans: &Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Ok(first) = spans.recv() {
            batch.push(first);
            let deadline = Instant::now() + WAIT;
            let is_over = loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match spans.recv_timeout(left) {
                    Ok(span) => batch.push(span),
                    Err(RecvTimeoutError::Timeout) => break false,
                    Err(RecvTimeoutError::Disconnected) => break true,
                }
                if batch.len() == BATCH {
                    break false;
                }
            };
            self.export(&batch, is_over);
            batch.clear();
        }
    }

    /// Sends a batch; at the end of the process only once.
    fn export(&mut self, batch: &[Span], is_over: bool) {
        let body = self.body(batch).to_string();
        let mut outcome = self.post(&body);
        for attempt in 1..ATTEMPTS {
            match &outcome {
                Err(Refusal { is_final: false, .. }) if !is_over => {
                    std::thread::sleep(PAUSE * attempt);
                    outcome = self.post(&body);
                }
                _ => break,
            }
        }
        let n = batch.len() as u64;
        match outcome {
            Ok(()) => {
                self.counts.n_sent.fetch_add(n, Ordering::Relaxed);
                if std::mem::take(&mut self.is_away) {
                    tracing::info!(url = self.config.url, "the collector takes spans again");
                }
            }
            Err(Refusal { why, .. }) => {
                self.counts.n_lost.fetch_add(n, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(url = self.config.url, why, "spans are lost");
                }
            }
        }
    }

    fn post(&self, body: &str) -> Result<(), Refusal> {
        let mut request =
            self.agent.post(&self.config.url).header("content-type", "application/json");
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        let response = request.send(body);
        let response =
            response.map_err(|error| Refusal { why: error.to_string(), is_final: false })?;
        let status = response.status().as_u16();
        match status {
            200..=299 => Ok(()),
            // Statuses that the protocol says to repeat.
            429 | 502..=504 => Err(Refusal { why: format!("status {status}"), is_final: false }),
            _ => Err(Refusal { why: format!("status {status}"), is_final: true }),
        }
    }

    /// A batch as the protocol has it.
    fn body(&self, batch: &[Span]) -> Value {
        let resource = self.config.resource.iter();
        let resource: Vec<Value> =
            resource.map(|(key, value)| attribute(key, &json!(value))).collect();
        let spans: Vec<Value> = batch.iter().map(Span::json).collect();
        json!({"resourceSpans": [{
            "resource": {"attributes": resource},
            "scopeSpans": [{
                "scope": {"name": "pelton", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans,
            }],
        }]})
    }
}

/// Why a batch was not taken.
struct Refusal {
    why: String,
    /// Whether another attempt would fail, too.
    is_final: bool,
}
