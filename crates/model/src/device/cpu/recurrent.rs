//! Recurrent layers on the CPU: the steps around the convolution over time and the recurrence.
//!
//! ```text
//! projected [m, q | k | v | z | beta | decay]
//!     q | k | v ── convolution, silu ──> mixed [m, q | k | v]
//!     q, k      ── divided by their lengths, where the rule says so
//!     beta, decay ── sigmoid, softplus ──> [m, value heads] each
//! mixed ── recurrence ──> out [m, value heads x value_dim] ── norm, gate by z
//! ```
//!
//! Scratch holds the channels of the convolution and two numbers per head and row.

use pelton_kernels::{
    Activations, ConvInput, ConvWeights, Cpu, DecayParams, GateOrder, GatedNorm, HeadLayout,
    HeadOrder, ScanInput, ScanShape, StateSeq, StateStore, StridedRows,
};

use super::CpuDevice;
use crate::device::{ConvOp, RecurrentOp};
use crate::layer::{Gate, Recurrent, Rule, ValueHeads};

/// Added to the square of the length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

/// Scratch of recurrent layers.
#[derive(Debug, Default)]
pub(super) struct Recurrence {
    /// Output of the convolution.
    mixed: Vec<f32>,
    /// Output of the recurrence, or the input of a convolution that is gated.
    scanned: Vec<f32>,
    /// `[m, value heads]`.
    beta: Vec<f32>,
    /// Logarithms of decays, `[m, value heads]`.
    decay: Vec<f32>,
    /// A factor for each element of a key.
    factors: Vec<f32>,
}

impl Recurrence {
    /// The recurrence of all rows, normed and gated. `out`: rows of `value_width`.
    pub(super) fn compute(
        &mut self,
        cpu: &Cpu,
        op: &RecurrentOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        (projected, states): (&[f32], &mut StateStore),
        out: &mut Activations,
    ) {
        let RecurrentOp { recurrent: spec, weights, layer, .. } = *op;
        let (width, channels) = (spec.input_width(), spec.channels());
        let m = projected.len() / width;
        let part = |offset| StridedRows { data: projected, stride: width, offset };
        self.mixed.resize(m * channels, 0.0);
        let bias = weights.conv_bias.as_deref();
        let conv = ConvWeights { weights: &weights.conv, bias, taps: spec.taps };
        let input = ConvInput { x: part(0), weights: conv, has_silu: true, sequences };
        cpu.conv_rows(states, layer, &input, &mut self.mixed);
        let is_delta = spec.rule == Rule::Delta;
        if is_delta {
            self.normalize(cpu, spec);
        }
        self.gates(cpu, op, projected);
        let rows = |offset| StridedRows { data: &self.mixed, stride: channels, offset };
        let Recurrent { n_key_heads, n_value_heads, key_dim, value_dim, .. } = *spec;
        let values = rows(2 * spec.key_width());
        let order = match spec.order {
            ValueHeads::Grouped => HeadOrder::Grouped,
            ValueHeads::Tiled => HeadOrder::Tiled,
        };
        let input = ScanInput {
            shape: ScanShape { n_key_heads, n_value_heads, order, key_dim, value_dim, is_delta },
            q: rows(0),
            k: rows(spec.key_width()),
            v: values,
            decay: &self.decay,
            beta: &self.beta,
            sequences,
        };
        self.scanned.resize(m * spec.value_width(), 0.0);
        cpu.scan(states, layer, &input, &mut self.scanned);
        if let Some(skip) = &weights.skip {
            for (row, out) in self.scanned.chunks_exact_mut(spec.value_width()).enumerate() {
                let values = values.row(row, spec.value_width()).chunks_exact(value_dim);
                let heads = out.chunks_exact_mut(value_dim).zip(values);
                for ((out, values), skip) in heads.zip(skip) {
                    out.iter_mut().zip(values).for_each(|(out, value)| *out += skip * value);
                }
            }
        }
        let (x, z, width) = (&self.scanned[..], part(channels), spec.value_width());
        let (order, group) = match spec.gate {
            Gate::AfterNorm => (GateOrder::NormThenGate, value_dim),
            Gate::AfterGroupNorm { n_groups } => (GateOrder::NormThenGate, width / n_groups),
            Gate::BeforeNorm { n_groups } => (GateOrder::GateThenNorm, width / n_groups),
            Gate::Alone => (GateOrder::GateAlone, width),
        };
        let norm = weights.norm.as_ref();
        let weight = norm.map_or(&[][..], |norm| &norm.weight);
        let eps = norm.map_or(0.0, |norm| norm.eps);
        cpu.gated_norm(&GatedNorm { order, x, z, weight, group, eps }, out);
    }

    /// Divides queries and keys by their lengths, and queries by the root of `key_dim` as well.
    fn normalize(&mut self, cpu: &Cpu, spec: &Recurrent) {
        let dim = spec.key_dim as f32;
        // A norm divides by the root of the mean, not of the sum, of squares.
        for (part, factor) in [(0, 1.0 / dim), (1, dim.sqrt().recip())] {
            self.factors.clear();
            self.factors.resize(spec.key_dim, factor);
            let layout = HeadLayout {
                row_stride: spec.channels(),
                offset: part * spec.key_width(),
                n_heads: spec.n_key_heads,
                head_dim: spec.key_dim,
            };
            cpu.head_rms_norm(&mut self.mixed, &layout, &self.factors, LENGTH_EPS / dim);
        }
    }

    /// How much each head takes in of a row, and the logarithm of its decay.
    fn gates(&mut self, cpu: &Cpu, op: &RecurrentOp<'_, CpuDevice>, projected: &[f32]) {
        let RecurrentOp { recurrent: spec, weights, .. } = *op;
        let (stride, n) = (spec.input_width(), spec.n_value_heads);
        let n_elements = projected.len() / stride * n;
        self.beta.resize(n_elements, 0.0);
        self.decay.resize(n_elements, 0.0);
        let last = |nth: usize| {
            let offset = stride - nth * n;
            StridedRows { data: projected, stride, offset }
        };
        let params = DecayParams { rates: &weights.decay, dt_bias: &weights.decay_bias };
        match spec.rule {
            Rule::Delta => {
                cpu.delta_gates(last(1), last(2), &params, &mut self.decay, &mut self.beta);
            }
            Rule::Sum { dt_limits } => {
                let (decay, steps) = (&mut self.decay, &mut self.beta);
                cpu.step_gates(last(1), &params, dt_limits, decay, steps);
            }
        }
    }

    /// The gated convolution of all rows. `out`: `[m, channels]`.
    pub(super) fn convolve(
        &mut self,
        cpu: &Cpu,
        op: &ConvOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        (projected, states): (&[f32], &mut StateStore),
        out: &mut [f32],
    ) {
        let n = op.conv.channels;
        let rows = || projected.chunks_exact(3 * n);
        self.scanned.resize(projected.len() / 3, 0.0);
        for (row, gated) in rows().zip(self.scanned.chunks_exact_mut(n)) {
            let products = row[..n].iter().zip(&row[2 * n..]);
            gated.iter_mut().zip(products).for_each(|(gated, (b, u))| *gated = b * u);
        }
        let bias = op.weights.conv_bias.as_deref();
        let weights = ConvWeights { weights: &op.weights.conv, bias, taps: op.conv.taps };
        let x = StridedRows::dense(&self.scanned, n);
        let input = ConvInput { x, weights, has_silu: false, sequences };
        cpu.conv_rows(states, op.layer, &input, out);
        for (row, out) in rows().zip(out.chunks_exact_mut(n)) {
            out.iter_mut().zip(&row[n..2 * n]).for_each(|(out, gate)| *out *= gate);
        }
    }
}
