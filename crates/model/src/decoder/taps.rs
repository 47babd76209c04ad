//! The places in a layer from which matrices read, and the rows that they read there.
//!
//! ```text
//! latent attention    down ─┬─ norm ──▶ QueryLatent     reads of q_b
//!                           └─ norm ──▶ KeyLatent       of kv_b
//! experts      norm ─┬──────────────▶ Mlp               of the shared gate and up, and of latent down
//!                    │  activation ─▶ SharedHidden      of the shared down
//!                    └─ latent down, or a norm of its own ──▶ Experts
//!                         └ the rows of expert e ──▶ Expert(e)        of its gate and up
//!                                     activation ──▶ ExpertHidden(e)  of its down
//!                                   weighted sum ──▶ ExpertSum        of latent up
//! ```

use std::collections::BTreeMap;

use pelton_base::Act;

use super::pass::{Layer, Pass};
use crate::arch::{Mixer, Mlp};
use crate::device::{InnerOps, Ops};
use crate::layer::{Linear, Module, Moe, MoeWeights, TwoLayers};

/// The place in a layer from which a matrix reads its inputs.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Reads {
    /// The layer's input behind its first norm: q, k and v.
    Mixer,
    /// The output of attention: the output projection.
    Attended,
    /// The second norm: gate and up.
    Mlp,
    /// The activated hidden layer: down.
    Hidden,
    /// The normed latent that queries are made of.
    QueryLatent,
    /// The normed latent that keys and values are made of.
    KeyLatent,
    /// The activated hidden layer of the shared expert: its down.
    SharedHidden,
    /// The rows that a router divides among experts, where these are not those of the second norm.
    Experts,
    /// The weighted sum of experts in a width of their own.
    ExpertSum,
    /// The rows of one expert: its gate and up.
    Expert(usize),
    /// The activated hidden layer of one expert: its down.
    ExpertHidden(usize),
}

/// Takes a place and the rows that are read there, `[rows, width]`.
pub type Tap<'a> = dyn FnMut(Reads, &[f32]) + 'a;

/// Scratch of what is shown.
#[derive(Debug)]
pub(super) struct Shown<D: Ops> {
    /// Rows that are computed to be shown, by width.
    buffers: BTreeMap<usize, D::Buf>,
    host: Vec<f32>,
    second: Vec<f32>,
    /// The rows that a router divides among experts.
    divided: Vec<f32>,
}

impl<D: Ops> Default for Shown<D> {
    fn default() -> Self {
        let (buffers, host) = (BTreeMap::new(), Vec::new());
        Self { buffers, host, second: Vec::new(), divided: Vec::new() }
    }
}

impl<'p, D: InnerOps> Pass<'p, D> {
    /// Shows what is read at a place that has a buffer.
    pub(super) fn show(
        &self,
        reads: Reads,
        layer: &Layer<'p, D>,
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        self.read_input(reads, layer, &mut shown.host);
        tap(reads, &shown.host);
    }

    /// Shows the latents that were projected, in a layer that has some.
    pub(super) fn show_latents(
        &self,
        layer: &Layer<'p, D>,
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        let Mixer::Mla(Module { spec, .. }) = &layer.weights.attention else { return };
        let Shown { host: queries, second: keys, .. } = shown;
        self.device.latents(spec, [queries, keys]);
        if spec.q_rank.is_some() {
            tap(Reads::QueryLatent, queries);
        }
        tap(Reads::KeyLatent, keys);
    }

    /// Shows what the channel mixer reads, before it runs.
    pub(super) fn show_mlp(
        &mut self,
        layer: &Layer<'p, D>,
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        let is_normed = layer.mlp_reads_norm();
        match &layer.weights.mlp {
            Mlp::Gated(Module { spec, weights }) => {
                self.show(Reads::Mlp, layer, shown, tap);
                let place = (Reads::Hidden, spec.shape(), is_normed);
                self.show_hidden(weights, place, shown, tap);
            }
            Mlp::Plain(Module { spec, weights }) => {
                self.show(Reads::Mlp, layer, shown, tap);
                let place = (Reads::Hidden, (spec.act, false, None), is_normed);
                self.show_hidden(weights, place, shown, tap);
            }
            Mlp::Moe(Module { spec, weights }) => {
                self.show(Reads::Mlp, layer, shown, tap);
                shown.divided.clone_from(&shown.host);
                self.show_beside((spec, weights), is_normed, shown, tap);
            }
            Mlp::WithExperts(Module { spec, weights }) => {
                let [norm, _] = &weights.mlp_norms;
                self.device.norm(self.x, norm, self.normed);
                self.device.read(self.normed, &mut shown.host);
                tap(Reads::Mlp, &shown.host);
                let place = (Reads::Hidden, spec.mlp.shape(), true);
                self.show_hidden(&weights.mlp, place, shown, tap);
                let [norm, _] = &weights.expert_norms;
                self.device.norm(self.x, norm, self.normed);
                self.device.read(self.normed, &mut shown.divided);
                tap(Reads::Experts, &shown.divided);
            }
            Mlp::Absent(_) => {}
        }
    }

    /// Shows what is read beside the experts of a mixture.
    fn show_beside(
        &mut self,
        (spec, weights): (&Moe, &MoeWeights<D>),
        is_normed: bool,
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        if let Some(Module { spec: shared, weights }) = &weights.shared {
            let shape = (shared.mlp.act, spec.has_gates, None);
            self.show_hidden(&weights.mlp, (Reads::SharedHidden, shape, is_normed), shown, tap);
        }
        if let Some([down, _]) = &weights.latent {
            let Shown { buffers, divided, .. } = shown;
            self.product(down, is_normed, buffers, divided);
            tap(Reads::Experts, divided);
        }
    }

    /// Shows the activated hidden layer of a perceptron at this place, which reads the norm or the
    /// residual stream.
    fn show_hidden(
        &mut self,
        layers: &TwoLayers<D>,
        (reads, shape, is_normed): (Reads, Shape, bool),
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        let Shown { buffers, host, .. } = shown;
        self.product(&layers.up, is_normed, buffers, host);
        activate(shape, layers.up.n, host);
        tap(reads, host);
    }

    /// Product of the norm or of the residual stream, to the host.
    fn product(
        &mut self,
        linear: &Linear<D>,
        is_normed: bool,
        buffers: &mut BTreeMap<usize, D::Buf>,
        out: &mut Vec<f32>,
    ) {
        let buf = buffers.entry(linear.n).or_insert_with(|| self.device.buffer(linear.n));
        let input = if is_normed { &*self.normed } else { &*self.x };
        self.device.linear(self.rows, linear, input, buf);
        self.device.read(buf, out);
    }

    /// Shows what the experts of the channel mixer have read, once it has run.
    pub(super) fn show_experts(
        &self,
        layer: &Layer<'p, D>,
        hidden_size: usize,
        shown: &mut Shown<D>,
        tap: &mut Tap<'_>,
    ) {
        let Some(moe) = layer.spec.mlp.experts() else { return };
        let Shown { host, divided, .. } = shown;
        let width = moe.expert_width(hidden_size);
        self.device.experts(&mut |own| {
            host.clear();
            for (row, weight) in own.rows.iter().zip(own.weights) {
                let factor = if moe.weighs_input { *weight } else { 1.0 };
                let row = &divided[*row as usize * width..][..width];
                host.extend(row.iter().map(|x| factor * x));
            }
            tap(Reads::Expert(own.expert), host);
            tap(Reads::ExpertHidden(own.expert), own.hidden);
        });
        if moe.latent_size.is_some() {
            tap(Reads::ExpertSum, self.device.expert_sums());
        }
    }
}

/// Activation of a perceptron, whether it has a gate, and where that is cut.
type Shape = (Act, bool, Option<f32>);

/// `act(gate) * up`, or `act(up)`, in place of rows of `width`.
fn activate((act, is_gated, cut): Shape, width: usize, rows: &mut Vec<f32>) {
    if !is_gated {
        return rows.iter_mut().for_each(|x| *x = activated(act, *x));
    }
    let ffn = width / 2;
    let m = rows.len() / width;
    for row in 0..m {
        if let Some(factor) = cut {
            cut_gates(&mut rows[row * width..][..ffn], factor);
        }
        for j in 0..ffn {
            let (gate, up) = (rows[row * width + j], rows[row * width + ffn + j]);
            rows[row * ffn + j] = activated(act, gate) * up;
        }
    }
    rows.truncate(m * ffn);
}

/// Takes the mean plus `factor` standard deviations off each gate, and drops what is negative then.
fn cut_gates(gates: &mut [f32], factor: f32) {
    let n = gates.len() as f32;
    let mean = gates.iter().sum::<f32>() / n;
    let variance = gates.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
    let cut = mean + factor * variance.sqrt();
    gates.iter_mut().for_each(|x| *x = (*x - cut).max(0.0));
}

fn activated(act: Act, x: f32) -> f32 {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    match act {
        Act::Silu => x * sigmoid(x),
        Act::GeluTanh => x * sigmoid(1.595_769 * (x + 0.044_715 * x * x * x)),
        Act::Gelu => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        Act::QuickGelu => x * sigmoid(1.702 * x),
        Act::Relu => x.max(0.0),
        Act::ReluSquared => x.max(0.0).powi(2),
    }
}

/// The error function to 1.5e-7: 7.1.26 of Abramowitz and Stegun, 1964.
fn erf(x: f32) -> f32 {
    const A: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let sum = A.iter().rev().fold(0.0, |sum, a| (sum + a) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}
