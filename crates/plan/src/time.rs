//! Seconds of a step, and what follows: time to the first token, time per token, throughput.
//!
//! ```text
//! product     max(bytes / bandwidth, operations / peak), or as such products were measured
//! attention   the same of the keys and values read, and 2 · (key + value) operations per head
//! a step      the sum of its products and attentions, barriers, and what ranks send each other
//!
//! experts     m rows touch n · (1 - (1 - k / n)^m) of n experts where each row goes to k at random
//! ridge       rows with which reading the weights once takes as long as multiplying by them
//! ```
//!
//! Without measured products the result is a bound: no program on that machine is faster.

use pelton_model::{ArchSpec, MatrixRole, Mixer};
use serde::Serialize;

use crate::hardware::Hardware;
use crate::kv::KvSizes;
use crate::ranks::RankSizes;
use crate::weights::{SizedMatrix, WeightSizes};

/// Parallel operations of a layer, after each of which all threads meet: norm, queries with keys and
/// values, attention, output, norm, gate and up, down.
const BARRIERS_PER_LAYER: f64 = 7.0;

/// The longest part of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Reading weights, keys and values.
    Bandwidth,
    /// Multiplying.
    Arithmetic,
    /// Waiting for other ranks.
    Communication,
}

impl Limit {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Arithmetic => "arithmetic",
            Self::Communication => "communication",
        }
    }
}

/// Lengths and numbers of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) batch: usize,
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    /// Most tokens of a prompt in one step.
    pub(crate) step_tokens: usize,
}

/// Times of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Time from a prompt that comes alone to its first token.
    pub ttft_s: f64,
    /// Time to the first token of the last of `batch` prompts that come together.
    pub ttft_batch_s: f64,
    /// Time of a step that makes one token of each of `batch` sequences, in the middle of their output.
    pub tpot_s: f64,
    /// Tokens of prompts per second, one prompt at a time.
    pub prompt_tokens_per_s: f64,
    /// Tokens per second of all sequences while they decode.
    pub decode_tokens_per_s: f64,
    /// Tokens of output per second where finished requests are replaced at once, their prompts computed
    /// in between.
    pub output_tokens_per_s: f64,
    /// Longest part of a prompt.
    pub prompt_limit: Limit,
    /// Longest part of a decoding step.
    pub decode_limit: Limit,
    /// Rows with which multiplying by the weights takes as long as reading them.
    pub ridge_rows: f64,
    /// Whether products are as they were measured on this machine; else the times are bounds.
    pub is_measured: bool,
}

/// Parts of a step, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    seconds: f64,
    reading: f64,
    multiplying: f64,
    sending: f64,
}

impl Step {
    fn limit(&self) -> Limit {
        match self {
            Self { sending, reading, multiplying, .. } if *sending > reading.max(*multiplying) => {
                Limit::Communication
            }
            Self { reading, multiplying, .. } if reading >= multiplying => Limit::Bandwidth,
            _ => Limit::Arithmetic,
        }
    }

    /// A part that reads and multiplies at the same time.
    fn add(&mut self, reading: f64, multiplying: f64, measured: Option<f64>) {
        self.reading += reading;
        self.multiplying += multiplying;
        self.seconds += measured.unwrap_or(reading.max(multiplying));
    }
}

/// A model on a machine.
pub(crate) struct Roofline<'a> {
    pub(crate) spec: &'a ArchSpec,
    pub(crate) weights: &'a WeightSizes,
    pub(crate) kv: &'a KvSizes,
    pub(crate) hardware: &'a Hardware,
    pub(crate) ranks: &'a RankSizes,
}

impl Roofline<'_> {
    pub(crate) fn times(&self, load: &Load) -> Times {
        let batch = load.batch as f64;
        let prompt = self.prompt(load);
        let middle = load.input_tokens as f64 + load.output_tokens as f64 / 2.0;
        let decode = self.decode(load.batch, middle);
        let output = load.output_tokens as f64;
        // In a pipeline the parts of other prompts fill the time in which one waits for its turn.
        let alone = self.overlap(load) / self.ranks.n_parts() as f64;
        let round = batch * prompt.seconds * alone + output * decode.seconds;
        Times {
            ttft_s: prompt.seconds,
            ttft_batch_s: prompt.seconds * (1.0 + (batch - 1.0) * alone),
            tpot_s: decode.seconds,
            prompt_tokens_per_s: load.input_tokens as f64 / prompt.seconds,
            decode_tokens_per_s: batch / decode.seconds,
            output_tokens_per_s: batch * output / round,
            prompt_limit: prompt.limit(),
            decode_limit: decode.limit(),
            ridge_rows: self.ridge_rows(),
            is_measured: self.is_measured(),
        }
    }

    /// A step that makes one token for each of `batch` sequences behind `n_tokens` tokens.
    ///
    /// In a pipeline each part of the batch passes all ranks while the others pass theirs.
    fn decode(&self, batch: usize, n_tokens: f64) -> Step {
        let batch = batch.div_ceil(self.ranks.n_parts()) as f64;
        let mut step = self.products(batch, batch, batch);
        let positions = self.kv.seen(n_tokens).map(|seen| seen * batch);
        self.attend(&mut step, positions, batch * self.kv.read_bytes(n_tokens), batch);
        step
    }

    /// Steps of a prompt that comes alone.
    fn n_steps(load: &Load) -> usize {
        load.input_tokens.div_ceil(load.step_tokens.max(1)).max(1)
    }

    /// Ranks that are busy with one prompt, on average: while its last step is on the first rank,
    /// the step before is on the second.
    fn overlap(&self, load: &Load) -> f64 {
        let (steps, parts) = (Self::n_steps(load) as f64, self.ranks.n_parts() as f64);
        steps * parts / (steps + parts - 1.0)
    }

    /// All steps of one prompt.
    fn prompt(&self, load: &Load) -> Step {
        let n_steps = Self::n_steps(load);
        let mut all = Step::default();
        let mut left = load.input_tokens;
        for step in 0..n_steps {
            let rows = left.min(load.step_tokens);
            left -= rows;
            let logits = if step + 1 == n_steps { 1.0 } else { 0.0 };
            let Step { seconds, reading, multiplying, sending } =
                self.products(rows as f64, logits, 1.0);
            all.seconds += seconds;
            all.reading += reading;
            all.multiplying += multiplying;
            all.sending += sending;
        }
        let n_tokens = load.input_tokens as f64;
        // Each step reads what the steps before it stored.
        let n_read = n_tokens * (n_steps as f64 + 1.0) / 2.0;
        let bytes = self.kv.token_bytes as f64 * n_read;
        self.attend(&mut all, self.kv.seen_by_prompt(n_tokens), bytes, 1.0);
        let overlap = self.overlap(load);
        let Step { seconds, reading, multiplying, sending } = all;
        Step {
            seconds: seconds / overlap,
            reading: reading / overlap,
            multiplying: multiplying / overlap,
            sending: sending / overlap,
        }
    }

    /// Products of `rows` rows of some sequences, `logits` of which have logits; barriers, and what
    /// ranks send.
    fn products(&self, rows: f64, logits: f64, n_sequences: f64) -> Step {
        let mut step = Step::default();
        for matrix in self.weights.multiplied() {
            let rows = match matrix.shape.role {
                MatrixRole::Head | MatrixRole::Embedding => logits,
                _ => rows,
            };
            if rows > 0.0 {
                self.multiply(&mut step, matrix, rows, n_sequences);
            }
        }
        let barriers = BARRIERS_PER_LAYER * self.spec.layers.len() as f64;
        step.seconds += self.hardware.barrier_s.unwrap_or(0.0) * barriers;
        step.sending = self.ranks.seconds(rows, self.hardware);
        step.seconds += step.sending;
        step
    }

    fn multiply(&self, step: &mut Step, matrix: &SizedMatrix, rows: f64, n_sequences: f64) {
        let SizedMatrix { shape, n_bytes, layout, arithmetic } = *matrix;
        let (row_share, share) = self.ranks.product_share(shape.n_copies, n_sequences);
        let rows = rows * row_share;
        let (n, active) = (shape.n_copies as f64, shape.n_active as f64);
        let n_touched = n * (1.0 - (1.0 - active / n).powf(rows));
        let bytes = n_bytes * n_touched * share;
        let operations = 2.0 * shape.n as f64 * shape.k as f64 * active * rows * share;
        let measured = self.hardware.measured_s_per_byte(layout, rows * active / n_touched);
        step.add(
            bytes / self.hardware.read_bandwidth,
            operations / self.hardware.peak(arithmetic).1,
            measured.map(|s_per_byte| s_per_byte * bytes),
        );
    }

    /// Attention over `positions` of each layer, summed over the rows, that reads `bytes`.
    fn attend(
        &self,
        step: &mut Step,
        positions: impl Iterator<Item = f64>,
        bytes: f64,
        n_sequences: f64,
    ) {
        let layers = positions.zip(&self.spec.layers);
        let operations = layers.map(|(seen, layer)| seen * per_position(&layer.mixer)).sum::<f64>();
        let (share, byte_share) = self.ranks.attention_share(n_sequences);
        let bytes = bytes * byte_share;
        let (_, peak) = self.hardware.peak(self.hardware.attention_by());
        let multiplying = operations * share / peak;
        let rate = self.hardware.attention_bytes_per_s;
        step.add(
            bytes / self.hardware.read_bandwidth,
            multiplying,
            rate.map(|rate| (bytes / rate).max(multiplying)),
        );
    }

    /// Whether every layout was measured.
    fn is_measured(&self) -> bool {
        let large = |matrix: &&SizedMatrix| matrix.shape.role != MatrixRole::Exact;
        self.weights
            .multiplied()
            .filter(large)
            .all(|matrix| self.hardware.measured_s_per_byte(matrix.layout, 1.0).is_some())
    }

    fn ridge_rows(&self) -> f64 {
        let (mut reading, mut multiplying) = (0.0, 0.0);
        for SizedMatrix { shape, n_bytes, arithmetic, .. } in self.weights.multiplied() {
            reading += n_bytes * shape.n_copies as f64 / self.hardware.read_bandwidth;
            let operations = 2.0 * shape.n as f64 * shape.k as f64 * shape.n_active as f64;
            multiplying += operations / self.hardware.peak(*arithmetic).1;
        }
        reading / multiplying
    }
}

/// Operations of all heads for one position that a row sees.
fn per_position(mixer: &Mixer) -> f64 {
    let heads = mixer.kv_heads();
    2.0 * mixer.n_heads() as f64 * (heads.key_dim + heads.value_dim) as f64
}
