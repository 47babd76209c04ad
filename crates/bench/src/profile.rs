//! The time of each operation of one step, and its shares of time and ceilings.
//!
//! ```text
//! laps of many steps ──▶ steps of the wanted number of rows ──▶ the one of median length
//!                                                               ├─ table: one line per operation
//!                                                               └─ trace: one event per lap
//! ```
//!
//! The steps are run anew for this, after the rounds, so no other figure pays for reading the clock.
//! The form of the trace is that of Chrome's profiler, which Perfetto reads as well.

use std::time::Instant;

use pelton_model::device::Ops;
use pelton_model::{Decoder, Lap, Mixer, StepOp};
use serde::Serialize;
use serde_json::{Value, json};

use crate::table::{Align, bytes, table};

/// The work of a step, beside its laps.
#[derive(Clone, Debug)]
pub(crate) struct StepWork {
    /// The step in words.
    pub(crate) name: String,
    /// Rows by which the step is found.
    pub(crate) n_rows: usize,
    /// Rows with logits.
    pub(crate) n_logits: usize,
    /// Bytes of keys and values that attention reads.
    pub(crate) kv_bytes: usize,
    /// Positions that all rows see together, in a layer without a window.
    pub(crate) n_seen: usize,
}

/// Speeds that operations are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speeds {
    /// Reads, bytes per second.
    pub(crate) bandwidth: f64,
    /// Products, operations per second.
    pub(crate) products: f64,
    /// Attention, operations per second.
    pub(crate) floats: f64,
}

/// One operation of a step, over all layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// Its name.
    pub op: &'static str,
    /// Times that the step carries it out.
    pub calls: usize,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Share of the step.
    pub share_percent: f64,
    /// Weights, keys and values that it reads, in bytes; absent where that is not known.
    pub n_bytes: Option<usize>,
    /// Operations, a multiply-add being two; absent where there are no products.
    pub operations: Option<f64>,
    /// Share of the read bandwidth.
    pub bandwidth_percent: Option<f64>,
    /// Share of the arithmetic peak.
    pub arithmetic_percent: Option<f64>,
}

/// One step by its operations.
#[derive(Clone, Debug, Serialize)]
pub struct StepProfile {
    /// The step in words.
    pub name: String,
    /// Steps like it that were timed; this is the one of median length.
    pub n_steps: usize,
    /// Its seconds.
    pub step_s: f64,
    /// Its operations, the longest first.
    pub ops: Vec<OpTime>,
    /// Its laps, for the trace.
    #[serde(skip)]
    laps: Vec<Lap>,
}

impl StepProfile {
    /// The median step of this work among some laps; `None` where there is no such step.
    pub(crate) fn new<D: Ops>(
        decoder: &Decoder<D>,
        work: &StepWork,
        speeds: Speeds,
        laps: &[Lap],
    ) -> Option<Self> {
        let starts = |_: &Lap, next: &Lap| next.op != StepOp::Embed;
        let mut steps: Vec<&[Lap]> =
            laps.chunk_by(starts).filter(|step| step[0].n_rows == work.n_rows).collect();
        steps.sort_by_key(|step| step[step.len() - 1].ended - step[0].began);
        let step = *steps.get(steps.len() / 2)?;
        let seconds = |lap: &Lap| (lap.ended - lap.began).as_secs_f64();
        let step_s = step.iter().map(seconds).sum::<f64>().max(1e-9);
        let mut ops: Vec<OpTime> = (StepOp::ALL.into_iter())
            .filter_map(|op| {
                let own = step.iter().filter(|lap| lap.op == op);
                let calls = own.clone().count();
                let seconds = own.map(seconds).sum::<f64>().max(1e-9);
                (calls > 0)
                    .then(|| OpTime::new(decoder, work, speeds, (op, calls, seconds, step_s)))
            })
            .collect();
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let (name, n_steps) = (work.name.clone(), steps.len());
        Some(Self { name, n_steps, step_s, ops, laps: step.to_vec() })
    }

    /// The operations as a table.
    pub(crate) fn render(&self) -> String {
        const HEAD: [(&str, Align); 8] = [
            ("operation", Align::Left),
            ("calls", Align::Right),
            ("ms", Align::Right),
            ("of the step", Align::Right),
            ("read", Align::Right),
            ("bandwidth", Align::Right),
            ("Mop", Align::Right),
            ("arithmetic", Align::Right),
        ];
        let percent = |x: f64| format!("{x:.0} %");
        let none = || "-".to_owned();
        let row = |op: &OpTime| {
            [
                op.op.to_owned(),
                op.calls.to_string(),
                format!("{:.3}", 1e3 * op.seconds),
                format!("{:.1} %", op.share_percent),
                op.n_bytes.map_or_else(none, |n| bytes(n as u64)),
                op.bandwidth_percent.map_or_else(none, percent),
                op.operations.map_or_else(none, |n| format!("{:.1}", n / 1e6)),
                op.arithmetic_percent.map_or_else(none, percent),
            ]
        };
        let rows: Vec<[String; 8]> = self.ops.iter().map(row).collect();
        let (name, ms, n) = (&self.name, 1e3 * self.step_s, self.n_steps);
        format!("\n{name}: {ms:.3} ms, the median of {n} steps\n{}", table(HEAD, &rows))
    }
}

impl OpTime {
    fn new<D: Ops>(
        decoder: &Decoder<D>,
        work: &StepWork,
        speeds: Speeds,
        (op, calls, seconds, step_s): (StepOp, usize, f64, f64),
    ) -> Self {
        let spec = decoder.spec();
        let n_layers = spec.layers.len() as f64;
        // After the attention of the last layer only rows with logits go on.
        let (all, logits) = (work.n_rows as f64, work.n_logits as f64);
        let late = (all * (n_layers - 1.0) + logits) / n_layers;
        let rows = match op {
            StepOp::Head => logits,
            StepOp::Out | StepOp::Mlp => late,
            _ => all,
        };
        let (n_weights, weight_bytes) = decoder.weights_of(op);
        let has_experts = spec.layers.iter().any(|layer| layer.mlp.experts().is_some());
        let (n_bytes, operations, peak) = match op {
            StepOp::Attend => {
                let positions = spec.layers.iter().map(|layer| per_position(&layer.mixer)).sum();
                let operations: usize = positions;
                let operations = operations as f64 * work.n_seen as f64;
                (Some(work.kv_bytes), Some(operations), speeds.floats)
            }
            // Rows choose experts, so the bytes of several rows depend on their tokens.
            StepOp::Mlp if has_experts && work.n_rows > 1 => {
                (None, Some(2.0 * n_weights as f64 * rows), speeds.products)
            }
            _ if n_weights > 0 => {
                (Some(weight_bytes), Some(2.0 * n_weights as f64 * rows), speeds.products)
            }
            _ => (None, None, speeds.products),
        };
        let percent = |part: f64, speed: f64| 100.0 * part / seconds / speed;
        Self {
            op: op.name(),
            calls,
            seconds,
            share_percent: 100.0 * seconds / step_s,
            n_bytes,
            operations,
            bandwidth_percent: n_bytes.map(|n| percent(n as f64, speeds.bandwidth)),
            arithmetic_percent: operations.map(|n| percent(n, peak)),
        }
    }
}

/// Operations of all heads for one position that a row sees, in one layer.
fn per_position(mixer: &Mixer) -> usize {
    let Some(heads) = mixer.read_heads() else { return 0 };
    2 * mixer.n_heads() * (heads.key_dim + heads.value_dim)
}

/// The steps in the form of Chrome's profiler: a row per step, each beginning at zero.
pub fn chrome_trace(profiles: &[StepProfile]) -> Value {
    let mut events = Vec::new();
    for (row, profile) in profiles.iter().enumerate() {
        let Some(first) = profile.laps.first() else { continue };
        let micros = |at: Instant| (at - first.began).as_secs_f64() * 1e6;
        events.push(json!({
            "ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": profile.name},
        }));
        events.extend(profile.laps.iter().map(|lap| {
            json!({
                "ph": "X", "name": lap.op.name(), "cat": "step", "pid": 1, "tid": row,
                "ts": micros(lap.began), "dur": micros(lap.ended) - micros(lap.began),
                "args": {"layer": lap.layer, "rows": lap.n_rows},
            })
        }));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}
