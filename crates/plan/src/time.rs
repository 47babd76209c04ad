//! Seconds of a step, and what follows: time to the first token, time per token, throughput.
//!
//! ```text
//! product     max(bytes / bandwidth, operations / peak), or as such products were measured
//! attention   the same of the keys and values read, and 2 · (key + value) operations per head
//! rows        norms, rotations, activations and the like, where they were measured (rows.rs)
//! a step      the sum of all these and of what ranks send each other
//!
//! experts     m rows touch n · (1 - (1 - k / n)^m) of n experts where each row goes to k at random
//! ridge       rows with which reading the weights once takes as long as multiplying by them
//! ```
//!
//! Without measured products the result is a bound: no program on that machine is faster.

use pelton_model::{ArchSpec, CHUNK_TOKENS, MatrixRole, Mixer};
use serde::Serialize;

use crate::hardware::{Arithmetic, Hardware, MeasuredAttention};
use crate::kv::KvSizes;
use crate::ranks::RankSizes;
use crate::rows::RowWork;
use crate::weights::{SizedMatrix, WeightSizes};

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
        let prompt = self.prompt(load, 1);
        let middle = load.input_tokens as f64 + load.output_tokens as f64 / 2.0;
        let decode = self.decode(load.batch, middle);
        let output = load.output_tokens as f64;
        // Ranks that have requests of their own compute a prompt each.
        let n_together = self.ranks.n_prompts(load.batch);
        let together = if n_together > 1 { self.prompt(load, n_together) } else { prompt };
        let n_rounds = load.batch.div_ceil(n_together) as f64;
        // In a pipeline the parts of other prompts fill the time in which one waits for its turn.
        let alone = self.overlap(load) / self.ranks.n_parts() as f64;
        let round = n_rounds * together.seconds * alone + output * decode.seconds;
        Times {
            ttft_s: prompt.seconds,
            ttft_batch_s: together.seconds * (1.0 + (n_rounds - 1.0) * alone),
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
        let n_sequences = batch.div_ceil(self.ranks.n_parts());
        let rows = n_sequences as f64;
        let mut step = self.products(rows, rows, n_sequences);
        let seen = self.kv.seen(n_tokens).map(|seen| seen * rows).collect();
        let n_bytes = rows * self.kv.read_bytes(n_tokens);
        self.attend(&mut step, &Seen { seen, n_bytes, is_prompt: false, n_sequences });
        // The rows of the open chunk are on average half as many floats as the state has elements.
        let open = 0.5 * size_of::<f32>() as f64;
        self.recur(&mut step, rows, rows * (self.state_element_bytes() + open));
        step
    }

    /// Bytes of an element of a state at a border.
    fn state_element_bytes(&self) -> f64 {
        self.kv.state_dtype.n_bytes() as f64
    }

    /// Recurrent layers: `rows` rows, for which `moved` bytes are read or written per element of a state.
    fn recur(&self, step: &mut Step, rows: f64, moved: f64) {
        let elements = self.kv.n_state_elements as f64;
        if elements == 0.0 {
            return;
        }
        let bytes = elements * moved;
        // Products with keys and queries, and the sum over chunks, each a multiplication and a sum.
        let operations = 6.0 * elements * rows;
        let (_, peak) = self.hardware.peak(Arithmetic::F32);
        step.add(bytes / self.hardware.read_bandwidth, operations / peak, None);
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

    /// All steps of `n_prompts` prompts that are computed together, each on a rank of its own.
    fn prompt(&self, load: &Load, n_prompts: usize) -> Step {
        let n_steps = Self::n_steps(load);
        let times = n_prompts as f64;
        let mut all = Step::default();
        let mut left = load.input_tokens;
        for step in 0..n_steps {
            let rows = left.min(load.step_tokens);
            left -= rows;
            let logits = if step + 1 == n_steps { times } else { 0.0 };
            let Step { seconds, reading, multiplying, sending } =
                self.products(rows as f64 * times, logits, n_prompts);
            all.seconds += seconds;
            all.reading += reading;
            all.multiplying += multiplying;
            all.sending += sending;
        }
        let n_tokens = load.input_tokens as f64;
        // Each step reads what the steps before it stored.
        let n_read = n_tokens * (n_steps as f64 + 1.0) / 2.0;
        let seen = self.kv.seen_by_prompt(n_tokens).map(|seen| seen * times).collect();
        let n_bytes = self.kv.token_bytes as f64 * n_read * times;
        self.attend(&mut all, &Seen { seen, n_bytes, is_prompt: true, n_sequences: n_prompts });
        // A state is read and written once per chunk.
        let n_chunks = n_tokens * times / CHUNK_TOKENS as f64;
        self.recur(&mut all, n_tokens * times, 2.0 * n_chunks * self.state_element_bytes());
        let overlap = self.overlap(load);
        let Step { seconds, reading, multiplying, sending } = all;
        Step {
            seconds: seconds / overlap,
            reading: reading / overlap,
            multiplying: multiplying / overlap,
            sending: sending / overlap,
        }
    }

    /// Products of `rows` rows of some sequences, `logits` of which have logits; operations on these
    /// rows, and what ranks send.
    fn products(&self, rows: f64, logits: f64, n_sequences: usize) -> Step {
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
        if let Some(measured) = &self.hardware.rows {
            let (share, _) = self.ranks.attention_share(n_sequences);
            step.seconds += RowWork::new(self.spec, self.weights).seconds(measured, rows * share);
        }
        step.sending = self.ranks.seconds(rows, n_sequences, self.hardware);
        step.seconds += step.sending;
        step
    }

    fn multiply(&self, step: &mut Step, matrix: &SizedMatrix, rows: f64, n_sequences: usize) {
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

    /// Attention of all layers.
    fn attend(&self, step: &mut Step, seen: &Seen) {
        let layers = || seen.seen.iter().zip(&self.spec.layers);
        let operations =
            layers().map(|(seen, layer)| seen * per_position(&layer.mixer)).sum::<f64>();
        let (share, byte_share) = self.ranks.attention_share(seen.n_sequences);
        let bytes = seen.n_bytes * byte_share;
        let (_, peak) = self.hardware.peak(self.hardware.attention_by());
        let measured = self.hardware.measured_attention(self.kv.dtype).map(|measured| {
            let barrier = self.hardware.barrier_s.unwrap_or(0.0);
            let one = |mixer| attention_s(measured, mixer, seen.is_prompt);
            let seconds = layers().map(|(n, layer)| barrier + n * share * one(&layer.mixer));
            seconds.sum::<f64>()
        });
        step.add(bytes / self.hardware.read_bandwidth, operations * share / peak, measured);
    }

    /// Whether every layout was measured.
    fn is_measured(&self) -> bool {
        let is_small = |role| matches!(role, MatrixRole::Exact | MatrixRole::LowRank);
        let large = |matrix: &&SizedMatrix| !is_small(matrix.shape.role);
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

/// Positions that the rows of a step see.
struct Seen {
    /// Summed over the rows, layer by layer.
    seen: Vec<f64>,
    /// Bytes of keys and values that are read.
    n_bytes: f64,
    /// Whether the rows are those of prompts.
    is_prompt: bool,
    n_sequences: usize,
}

/// Measured seconds of all heads for one position that a row sees.
fn attention_s(measured: &MeasuredAttention, mixer: &Mixer, is_prompt: bool) -> f64 {
    let Some(heads) = mixer.read_heads() else { return 0.0 };
    let width = (heads.key_dim + heads.value_dim) as f64;
    let (n_queries, n_kv) = (mixer.n_heads() as f64, heads.n as f64);
    match is_prompt {
        true => n_queries * width * measured.prompt_query_s,
        false => width * (n_kv * measured.read_s + n_queries * measured.query_s),
    }
}

/// Operations of all heads for one position that a row sees.
fn per_position(mixer: &Mixer) -> f64 {
    let Some(heads) = mixer.read_heads() else { return 0.0 };
    2.0 * mixer.n_heads() as f64 * (heads.key_dim + heads.value_dim) as f64
}
