//! Recurrent layers on the CPU: the steps around the convolution over time and the recurrence.
//!
//! ```text
//! projected [m, q | k | v | z | beta | decay]
//!     q | k | v ── convolution, silu ──> mixed [m, q | k | v]
//!     q, k      ── divided by their lengths, where the rule says so
//!     z, decay  ── one more product each, where they are latents
//!     beta, decay ── sigmoid, softplus ──> [m, value heads] each, or a decay per element of a key
//! mixed ── recurrence ──> out [m, value heads x value_dim] ── norm, gate by z
//! ```
//!
//! Scratch holds the channels of the convolution and two numbers per head and row, and what is made of
//! latents.

use pelton_kernels::{
    Activations, ConvInput, ConvWeights, Cpu, DecayParams, Decays, Forms, GateOrder, GatedNorm,
    HeadLayout, HeadOrder, HeadSlices, ScanInput, ScanShape, StateSeq, StateStore, StridedRows,
};
use pelton_tensor::AlignedVec;

use super::CpuDevice;
use super::linear::{Input, multiply};
use crate::device::{ConvOp, RecurrentOp};
use crate::layer::{Act, Gate, Linear, Recurrent, Rule, ValueHeads};

/// Added to the square of the length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

/// Scratch of recurrent layers.
#[derive(Debug)]
pub(super) struct Recurrence {
    /// Output of the convolution, or of the activation where there is none.
    mixed: AlignedVec<f32>,
    /// The same as an activation gives it.
    activated: Activations,
    /// A latent of all rows.
    latents: Activations,
    /// Gates that are made of latents, `[m, value_width]`.
    gates: Vec<f32>,
    /// The inputs of decays, where they are made of latents, `[m, key_width]`.
    fading: Vec<f32>,
    /// Output of the recurrence, or the input of a convolution that is gated.
    scanned: AlignedVec<f32>,
    /// `[m, value heads]`.
    beta: Vec<f32>,
    /// Logarithms of decays, `[m, decay_width]`.
    decay: Vec<f32>,
    /// A factor for each element of a key.
    factors: Vec<f32>,
}

impl Recurrence {
    pub(super) fn new() -> Self {
        let empty = || Activations::new(1, Forms::F32);
        Self {
            mixed: AlignedVec::new(),
            activated: empty(),
            latents: empty(),
            gates: Vec::new(),
            fading: Vec::new(),
            scanned: AlignedVec::new(),
            beta: Vec::new(),
            decay: Vec::new(),
            factors: Vec::new(),
        }
    }

    /// The recurrence of all rows, normed and gated. `out`: rows of `value_width`.
    pub(super) fn compute(
        &mut self,
        (cpu, scratch): (&Cpu, &mut Input),
        op: &RecurrentOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        (projected, states): (&[f32], &mut StateStore),
        out: &mut Activations,
    ) {
        let RecurrentOp { recurrent: spec, weights, layer, .. } = *op;
        let (width, channels) = (spec.input_width(), spec.channels());
        let m = projected.len() / width;
        let part = |offset| StridedRows { data: projected, stride: width, offset };
        self.mix(cpu, op, sequences, (part(0), &mut *states));
        let is_delta = matches!(spec.rule, Rule::Delta { .. } | Rule::ChannelDelta { .. });
        if is_delta {
            self.normalize(cpu, spec);
        }
        self.gates((cpu, scratch), op, projected);
        let data = if weights.conv.is_some() { &self.mixed } else { self.activated.floats() };
        let rows = |offset| StridedRows { data, stride: channels, offset };
        let Recurrent { n_key_heads, n_value_heads, key_dim, value_dim, .. } = *spec;
        let values = rows(2 * spec.key_width());
        let decays = match spec.rule {
            Rule::ChannelDelta { .. } => Decays::PerChannel,
            _ => Decays::PerHead,
        };
        let order = match spec.order {
            ValueHeads::Grouped => HeadOrder::Grouped,
            ValueHeads::Tiled => HeadOrder::Tiled,
        };
        let input = ScanInput {
            shape: ScanShape {
                n_key_heads,
                n_value_heads,
                order,
                key_dim,
                value_dim,
                is_delta,
                decays,
            },
            q: rows(0),
            k: rows(spec.key_width()),
            v: values,
            decay: &self.decay,
            beta: &self.beta,
            sequences,
        };
        self.scanned.resize(m * spec.value_width());
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
        let (x, width) = (&self.scanned[..], spec.value_width());
        let (order, group) = gate_order(spec);
        let norm = weights.norm.as_ref();
        let weight = norm.map_or(&[][..], |norm| &norm.weight);
        let eps = norm.map_or(0.0, |norm| norm.eps);
        let z = match weights.gate_up {
            Some(_) => StridedRows::dense(&self.gates, width),
            None => part(channels),
        };
        cpu.gated_norm(&GatedNorm { order, x, z, weight, group, eps }, out);
    }

    /// The convolution over queries, keys and values with SiLU, or SiLU alone.
    fn mix(
        &mut self,
        cpu: &Cpu,
        op: &RecurrentOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        (x, states): (StridedRows<'_>, &mut StateStore),
    ) {
        let RecurrentOp { recurrent: spec, weights, layer, .. } = *op;
        let channels = spec.channels();
        self.mixed.resize(x.data.len() / x.stride * channels);
        let Some(taps) = &weights.conv else {
            for (row, mixed) in self.mixed.chunks_exact_mut(channels).enumerate() {
                mixed.copy_from_slice(x.row(row, channels));
            }
            self.activated.reset(channels, Forms::F32);
            return cpu.activate(Act::Silu, &self.mixed, &mut self.activated);
        };
        let bias = weights.conv_bias.as_deref();
        let weights = ConvWeights { weights: taps, bias, taps: spec.taps, n_filters: 1 };
        let input = ConvInput { x, weights, has_silu: true, sequences };
        cpu.conv_rows(states, layer, &input, &mut self.mixed);
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
    /// Where they are made of latents, the gate and decays, first.
    fn gates(
        &mut self,
        (cpu, scratch): (&Cpu, &mut Input),
        op: &RecurrentOp<'_, CpuDevice>,
        projected: &[f32],
    ) {
        let RecurrentOp { recurrent: spec, weights, .. } = *op;
        let (stride, n) = (spec.input_width(), spec.n_value_heads);
        let m = projected.len() / stride;
        self.beta.resize(m * n, 0.0);
        self.decay.resize(m * spec.decay_width(), 0.0);
        let [gate, of_beta, _] = spec.gate_widths();
        let beta_at = spec.channels() + gate;
        let decay_at = beta_at + of_beta;
        let from = |offset: usize| StridedRows { data: projected, stride, offset };
        let bias = weights.decay_bias.as_deref().unwrap_or_default();
        let params = DecayParams { rates: &weights.decay, dt_bias: bias };
        match spec.rule {
            Rule::Delta { beta_scale } => {
                let (decay, beta) = (&mut self.decay, &mut self.beta);
                cpu.delta_gates(from(decay_at), from(beta_at), &params, decay, beta);
                if beta_scale != 1.0 {
                    beta.iter_mut().for_each(|beta| *beta *= beta_scale);
                }
            }
            Rule::ChannelDelta { rank } => {
                let mut up = |linear: &Option<Linear<CpuDevice>>, offset, out: &mut Vec<f32>| {
                    let Some(linear) = linear else { return };
                    let (row_stride, width) = (stride, rank);
                    let from =
                        HeadSlices { row_stride, offset, n_heads: 1, head_stride: rank, width };
                    self.latents.reset(rank, Forms::F32);
                    cpu.write_heads(projected, &from, &mut self.latents);
                    out.resize(m * linear.n, 0.0);
                    multiply(cpu, scratch, linear, &self.latents, out);
                };
                up(&weights.gate_up, spec.channels(), &mut self.gates);
                up(&weights.decay_up, decay_at, &mut self.fading);
                let steps = StridedRows::dense(&self.fading, spec.key_width());
                let (decay, beta) = (&mut self.decay, &mut self.beta);
                cpu.channel_gates(steps, from(beta_at), &params, decay, beta);
            }
            Rule::Sum { dt_limits } => {
                let (decay, steps) = (&mut self.decay, &mut self.beta);
                cpu.step_gates(from(decay_at), &params, dt_limits, decay, steps);
            }
            Rule::Steady { .. } => {
                self.beta.fill(1.0);
                let rows = self.decay.chunks_exact_mut(n);
                rows.for_each(|row| row.copy_from_slice(&weights.decay));
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
        self.scanned.resize(projected.len() / 3);
        for (row, gated) in rows().zip(self.scanned.chunks_exact_mut(n)) {
            let products = row[..n].iter().zip(&row[2 * n..]);
            gated.iter_mut().zip(products).for_each(|(gated, (b, u))| *gated = b * u);
        }
        let bias = op.weights.conv_bias.as_deref();
        let (weights, taps) = (&op.weights.conv, op.conv.taps);
        let weights = ConvWeights { weights, bias, taps, n_filters: 1 };
        let x = StridedRows::dense(&self.scanned, n);
        let input = ConvInput { x, weights, has_silu: false, sequences };
        cpu.conv_rows(states, op.layer, &input, out);
        for (row, out) in rows().zip(out.chunks_exact_mut(n)) {
            out.iter_mut().zip(&row[n..2 * n]).for_each(|(out, gate)| *out *= gate);
        }
    }
}

/// Order of norm and gate, and elements that are normed together.
fn gate_order(spec: &Recurrent) -> (GateOrder, usize) {
    let (head, row) = (spec.value_dim, spec.value_width());
    match spec.gate {
        Gate::AfterNorm => (GateOrder::NormThenGate, head),
        Gate::SigmoidAfterNorm { is_whole: false } => (GateOrder::NormThenSigmoid, head),
        Gate::SigmoidAfterNorm { is_whole: true } => (GateOrder::NormThenSigmoid, row),
        Gate::AfterGroupNorm { n_groups } => (GateOrder::NormThenGate, row / n_groups),
        Gate::BeforeNorm { n_groups } => (GateOrder::GateThenNorm, row / n_groups),
        Gate::Alone => (GateOrder::GateAlone, row),
    }
}
