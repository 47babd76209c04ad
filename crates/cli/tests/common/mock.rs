//! A server with known delays that counts as an engine does.
//!
//! ```text
//! arrival ── waits for slot, block and gate ── prompt, one at a time ── tokens, side by side
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Delays and limits of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// Milliseconds of a prompt, during which no other one is computed.
    pub(crate) prefill_ms: u64,
    /// Milliseconds of a token, of all requests side by side.
    pub(crate) token_ms: u64,
    /// Requests whose tokens take no longer than that of one; those of more take turns.
    pub(crate) lanes: usize,
    /// Most requests at once.
    pub(crate) slots: usize,
    /// Blocks of keys and values; a request takes one.
    pub(crate) blocks: usize,
    /// Milliseconds between two admissions.
    pub(crate) gate_ms: u64,
    /// A request by its number from 1, with which a pause begins in which none is admitted, and the
    /// milliseconds of the pause.
    pub(crate) pause: Option<(usize, u64)>,
    /// Part of `token_ms` in which a step waits for masks of grammars.
    pub(crate) mask_ms: u64,
    /// Status that every request is answered with; 200 for an answer.
    pub(crate) status: u16,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            prefill_ms: 2,
            token_ms: 1,
            lanes: 1_000,
            slots: 1_000,
            blocks: 1_000,
            gate_ms: 0,
            pause: None,
            mask_ms: 0,
            status: 200,
        }
    }
}

/// Seconds and requests of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Phase(f64, u32);

impl Phase {
    fn add(&mut self, time: Duration) {
        *self = Self(self.0 + time.as_secs_f64(), self.1 + 1);
    }
}

#[derive(Debug, Default)]
struct State {
    /// Requests that came.
    arrived: usize,
    /// Their bodies.
    bodies: Vec<Value>,
    paused_until: Option<Instant>,
    waiting: usize,
    running: usize,
    admitted_at: Option<Instant>,
    /// Since when a request is computed, and the time in which some were.
    busy_since: Option<Instant>,
    busy: Duration,
    queue: Phase,
    prefill: Phase,
    decode: Phase,
}

#[derive(Debug)]
struct Shared {
    delays: Delays,
    state: Mutex<State>,
    changed: Condvar,
    machine: Mutex<()>,
}

/// A server that listens until the test ends.
#[derive(Debug)]
pub(crate) struct Mock {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

impl Mock {
    pub(crate) fn start(delays: Delays) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let shared = Arc::new(Shared {
            delays,
            state: Mutex::default(),
            changed: Condvar::new(),
            machine: Mutex::new(()),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || drop(shared.converse(&stream)));
            }
        });
        Self { address, shared }
    }

    /// Waits until so many requests have come.
    pub(crate) fn wait_for(&self, n_requests: usize) {
        while self.shared.state.lock().expect("no panic").arrived < n_requests {
            sleep(Duration::from_millis(1));
        }
    }

    /// The bodies of the requests until now, in order of arrival.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.state.lock().expect("no panic").bodies.clone()
    }
}

impl Shared {
    /// Answers the requests of a connection.
    fn converse(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        loop {
            let (mut first, mut n_bytes) = (String::new(), 0);
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut line = String::new();
            while reader.read_line(&mut line)? > 2 {
                if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    n_bytes = length.trim().parse().unwrap_or(0);
                }
                line.clear();
            }
            let mut body = vec![0; n_bytes];
            reader.read_exact(&mut body)?;
            match first.split(' ').nth(1) {
                Some("/v1/models") => whole(stream, r#"{"data":[{"id":"mock"}]}"#)?,
                Some("/metrics") => whole(stream, &self.metrics())?,
                _ if self.delays.status != 200 => {
                    let status = self.delays.status;
                    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}")?;
                }
                _ => {
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let n_tokens = body["max_tokens"].as_u64().unwrap_or(1);
                    self.state.lock().expect("no panic").bodies.push(body);
                    self.answer(&mut stream, n_tokens)?;
                }
            }
        }
    }

    fn answer(&self, stream: &mut &TcpStream, n_tokens: u64) -> std::io::Result<()> {
        let Delays { prefill_ms, token_ms, lanes, .. } = self.delays;
        let arrived = Instant::now();
        self.admit();
        let admitted = Instant::now();
        {
            let _machine = self.machine.lock().expect("no panic");
            sleep(Duration::from_millis(prefill_ms));
        }
        let first = Instant::now();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes())?;
        let token = r#"{"choices":[{"text":" a"}]}"#;
        for at in 0..n_tokens {
            if at > 0 {
                let n_running = self.state.lock().expect("no panic").running;
                let turns = (n_running as f64 / lanes as f64).max(1.0);
                sleep(Duration::from_millis(token_ms).mul_f64(turns));
            }
            event(stream, token)?;
        }
        {
            let mut state = self.state.lock().expect("no panic");
            state.queue.add(admitted - arrived);
            state.prefill.add(first - admitted);
            state.decode.add(first.elapsed());
            state.running -= 1;
            if state.running == 0 {
                let since = state.busy_since.take();
                state.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
            }
            self.changed.notify_all();
        }
        let usage = format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":{n_tokens}}}}}"#
        );
        event(stream, &usage)?;
        event(stream, "[DONE]")?;
        stream.write_all(b"0\r\n\r\n")
    }

    /// Waits for a slot, a block, the gate and the end of a pause.
    fn admit(&self) {
        let Delays { slots, blocks, gate_ms, .. } = self.delays;
        let mut state = self.state.lock().expect("no panic");
        state.waiting += 1;
        state.arrived += 1;
        if let Some((_, ms)) = self.delays.pause.filter(|(first, _)| *first == state.arrived) {
            state.paused_until = Some(Instant::now() + Duration::from_millis(ms));
        }
        loop {
            let gate = Duration::from_millis(gate_ms);
            let wait =
                state.admitted_at.map_or(Duration::ZERO, |at| gate.saturating_sub(at.elapsed()));
            let paused =
                state.paused_until.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = wait.max(paused.unwrap_or_default());
            if state.running < slots.min(blocks) && wait.is_zero() {
                break;
            }
            let wait = wait.max(Duration::from_millis(1));
            state = self.changed.wait_timeout(state, wait).expect("no panic").0;
        }
        state.waiting -= 1;
        state.running += 1;
        let now = Instant::now();
        state.admitted_at = Some(now);
        state.busy_since.get_or_insert(now);
    }

    fn metrics(&self) -> String {
        let state = self.state.lock().expect("no panic");
        let busy = state.busy + state.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        let usage = state.running as f64 / self.delays.blocks as f64;
        let mut text = format!(
            "pelton_num_requests_running{{model_name=\"mock\"}} {}\n\
             pelton_num_requests_waiting{{model_name=\"mock\"}} {}\n\
             pelton_kv_cache_usage_ratio{{model_name=\"mock\"}} {usage}\n\
             pelton_num_preemptions_total{{model_name=\"mock\"}} 0\n\
             pelton_scheduler_step_seconds_total{{model_name=\"mock\"}} {}\n\
             pelton_scheduler_plan_seconds_total{{model_name=\"mock\"}} 0\n\
             pelton_scheduler_mask_seconds_total{{model_name=\"mock\"}} {}\n",
            state.running,
            state.waiting,
            busy.as_secs_f64(),
            busy.as_secs_f64() * self.delays.mask_ms as f64 / self.delays.token_ms.max(1) as f64,
        );
        for (name, Phase(seconds, n)) in
            [("queue", state.queue), ("prefill", state.prefill), ("decode", state.decode)]
        {
            text.push_str(&format!(
                "pelton_request_{name}_time_seconds_sum{{tenant=\"default\"}} {seconds}\n\
                 pelton_request_{name}_time_seconds_count{{tenant=\"default\"}} {n}\n"
            ));
        }
        text
    }
}

fn whole(mut stream: &TcpStream, body: &str) -> std::io::Result<()> {
    let n = body.len();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n{body}")
}

fn event(stream: &mut &TcpStream, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    write!(stream, "{:x}\r\n{event}\r\n", event.len())
}
