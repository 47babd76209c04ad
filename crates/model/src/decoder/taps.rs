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
                self.show_hidden(weights, place, tap);
            }
            Mlp::Plain(Module { spec, weights }) => {
                self.show(Reads::Mlp, layer, shown, tap);
                let place = (Reads::Hidden, (spec.act, false, None), is_normed);
                self.show_hidden(weights, place, tap);
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
                self.show_hidden(&weights.mlp, place, tap);
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
            self.show_hidden(&weights.mlp, (Reads::SharedHidden, shape, is_normed), tap);
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
        tap: &mut Tap<'_>,
    ) {
        let input = if is_normed { &*self.normed } else { &*self.x };
        tap(reads, self.device.hidden_layer(layers, shape, input));
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
