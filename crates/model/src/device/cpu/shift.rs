//! The mixers of RWKV-7 on the CPU: token shifts, the products of their inputs, and the recurrence.
//!
//! ```text
//! x [m, hidden] ── two taps each ──> x_r x_w x_k x_v x_a x_g     six times [m, hidden]
//!     x_r, x_k, x_v ──────────────────────────────────────────> r, k, v
//!     x_w ── down, tanh, up ──> w     x_a ── down, up ──> a     x_g ── down, sigmoid, up ──> g
//!     x_v ── down, up ──> how much of the first layer's values is mixed in
//! ── recurrence, normed and gated ──> out [m, width]
//! ```

use pelton_kernels::{
    Activations, ConvInput, ConvWeights, Cpu, Forms, StateSeq, StateStore, StridedRows, WkvInput,
    WkvWeights,
};

use super::CpuDevice;
use super::linear::{Input, handed_to, multiply};
use crate::arch::Act;
use crate::device::{ShiftMixer, ShiftOp};
use crate::layer::{ChannelMixWeights, Linear, LowRank, TimeMix, TimeMixWeights};

/// Scratch of token shifts and what follows them.
#[derive(Debug)]
pub(super) struct Shift {
    /// Rows mixed with the rows before them, `[n_mixes, m, hidden]`.
    shifted: Vec<f32>,
    /// One of them, or a latent, in the forms that its matrix reads.
    input: Activations,
    /// A latent before and after its activation, `[m, rank]`.
    latent: [Vec<f32>; 2],
    /// Receptances, decays, keys, values, rates, gates, and how much of the first layer's values is
    /// mixed in: `[m, width]` each.
    projected: [Vec<f32>; 7],
}

/// The activation behind the projection to a latent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bend {
    Tanh,
    Sigmoid,
    Nothing,
}

/// The places of inputs among the mixtures of a time mix, and of what is projected from them.
const R: usize = 0;
const W: usize = 1;
const K: usize = 2;
const V: usize = 3;
const A: usize = 4;
const G: usize = 5;
const RESIDUAL: usize = 6;

impl Shift {
    pub(super) fn new() -> Self {
        Self {
            shifted: Vec::new(),
            input: Activations::new(1, Forms::F32),
            latent: Default::default(),
            projected: Default::default(),
        }
    }

    /// One mixer of all rows, but for its last projection. `out`: `[m, out_width]`.
    pub(super) fn compute(
        &mut self,
        (cpu, input): (&Cpu, &mut Input),
        op: &ShiftOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        [first, out]: [&mut Activations; 2],
        (x, states): (&Activations, &mut StateStore),
    ) {
        let store = (op.layer, states);
        match op.mixer {
            ShiftMixer::Time(spec, weights) => {
                self.shift(cpu, (x, &weights.mixes, TimeMix::N_MIXES), sequences, store.0, store.1);
                self.project(cpu, input, weights, x);
                self.recur(cpu, (spec, weights), sequences, store, (first, out));
            }
            ShiftMixer::Channel(_, weights) => {
                self.shift(cpu, (x, &weights.mix, 1), sequences, store.0, store.1);
                self.perceive(cpu, input, weights, x, out);
            }
        }
    }

    /// Mixes rows with the rows before them in `n` ways.
    fn shift(
        &mut self,
        cpu: &Cpu,
        (x, weights, n_filters): (&Activations, &[f32], usize),
        sequences: &[StateSeq<'_>],
        layer: usize,
        states: &mut StateStore,
    ) {
        let floats = x.floats();
        self.shifted.resize(n_filters * floats.len(), 0.0);
        let weights = ConvWeights { weights, bias: None, taps: 2, n_filters };
        let rows = StridedRows::dense(floats, x.width());
        let input = ConvInput { x: rows, weights, has_silu: false, sequences };
        cpu.conv_rows(states, layer, &input, &mut self.shifted);
    }

    /// The product of one of the mixtures with a matrix, to `out`.
    fn multiply(
        &mut self,
        cpu: &Cpu,
        input: &mut Input,
        (linear, place): (&Linear<CpuDevice>, usize),
        x: &Activations,
        out: &mut Vec<f32>,
    ) {
        let n = x.floats().len();
        self.input.reset(x.width(), handed_to(cpu, linear));
        cpu.write_rows(&self.shifted[place * n..(place + 1) * n], &mut self.input);
        out.resize(x.n_rows() * linear.n, 0.0);
        multiply(cpu, input, linear, &self.input, out);
    }

    /// Everything that a time mix projects from its mixtures.
    fn project(
        &mut self,
        cpu: &Cpu,
        input: &mut Input,
        weights: &TimeMixWeights<CpuDevice>,
        x: &Activations,
    ) {
        let TimeMixWeights { receptance, key, value, decay, rate, gate, residual, .. } = weights;
        let mut projected = std::mem::take(&mut self.projected);
        for (linear, place) in [(receptance, R), (key, K), (value, V)] {
            self.multiply(cpu, input, (linear, place), x, &mut projected[place]);
        }
        let low = [
            (Some(decay), W, W, Bend::Tanh),
            (Some(rate), A, A, Bend::Nothing),
            (Some(gate), G, G, Bend::Sigmoid),
            (residual.as_ref(), V, RESIDUAL, Bend::Nothing),
        ];
        for (low, place, out, bend) in low {
            if let Some(low) = low {
                self.through_latent(cpu, input, (low, place, bend), x, &mut projected[out]);
            }
        }
        self.projected = projected;
    }

    /// The product of one of the mixtures with two matrices, one after the other.
    fn through_latent(
        &mut self,
        cpu: &Cpu,
        input: &mut Input,
        (low, place, bend): (&LowRank<CpuDevice>, usize, Bend),
        x: &Activations,
        out: &mut Vec<f32>,
    ) {
        let [mut latent, mut bent] = std::mem::take(&mut self.latent);
        self.multiply(cpu, input, (&low.down, place), x, &mut latent);
        if bend != Bend::Nothing {
            // tanh x = 2 sigmoid(2 x) - 1
            let is_tanh = bend == Bend::Tanh;
            let factor = if is_tanh { 2.0 } else { 1.0 };
            cpu.scale(&mut latent, factor);
            bent.clear();
            bent.resize(latent.len(), factor);
            let gate = StridedRows::dense(&latent, low.down.n);
            cpu.sigmoid_mul(&mut bent, gate, low.down.n);
            if is_tanh {
                bent.iter_mut().for_each(|x| *x -= 1.0);
            }
            std::mem::swap(&mut latent, &mut bent);
        }
        self.input.reset(low.up.k, handed_to(cpu, &low.up));
        cpu.write_rows(&latent, &mut self.input);
        out.resize(x.n_rows() * low.up.n, 0.0);
        multiply(cpu, input, &low.up, &self.input, out);
        self.latent = [latent, bent];
    }

    /// The recurrence over what was projected, normed and gated.
    fn recur(
        &self,
        cpu: &Cpu,
        (spec, weights): (&TimeMix, &TimeMixWeights<CpuDevice>),
        sequences: &[StateSeq<'_>],
        (layer, states): (usize, &mut StateStore),
        (first, out): (&mut Activations, &mut Activations),
    ) {
        let width = spec.width();
        let m = self.projected[R].len() / width;
        let of = |place: usize| StridedRows::dense(&self.projected[place], width);
        if weights.residual.is_none() {
            first.floats_mut(m).copy_from_slice(&self.projected[V]);
        }
        let residual = weights.residual.as_ref();
        let bias = weights.norm.bias.as_ref().expect("invariant: the norm has a bias");
        let input = WkvInput {
            dim: spec.head_dim,
            receptance: of(R),
            decay: of(W),
            key: of(K),
            value: of(V),
            rate: of(A),
            gate: of(G),
            residual: residual.map(|_| [StridedRows::dense(first.floats(), width), of(RESIDUAL)]),
            weights: WkvWeights {
                removal_scale: &weights.removal_scale,
                rate_scale: &weights.rate_scale,
                bonus: &weights.bonus,
                norm: [&weights.norm.weight, bias],
                norm_eps: weights.norm.eps,
            },
            sequences,
        };
        cpu.wkv(states, layer, &input, out.floats_mut(m));
    }

    /// The hidden layer of a channel mix.
    fn perceive(
        &mut self,
        cpu: &Cpu,
        input: &mut Input,
        weights: &ChannelMixWeights<CpuDevice>,
        x: &Activations,
        out: &mut Activations,
    ) {
        let mut hidden = std::mem::take(&mut self.latent[0]);
        self.multiply(cpu, input, (&weights.key, 0), x, &mut hidden);
        cpu.activate(Act::ReluSquared, &hidden, out);
        self.latent[0] = hidden;
    }
}
