//! Vectors that each token has for every layer, between the operations of a step: see
//! [`LayerInputs`].

use pelton_base::TokenId;

use super::pass::{Layer, Pass};
use crate::arch::{ArchSpec, LayerInputs};
use crate::device::Ops;
use crate::load::{InputWeights, InputsWeights};

/// The vectors of a step, and what they are made of.
#[derive(Debug)]
pub(super) struct InputRows<D: Ops> {
    spec: LayerInputs,
    /// The vectors of all layers, `[m, n_layers * width]`.
    all: D::Buf,
    /// Vectors of the rows that go on in the last layer; before that, projections of embeddings.
    spare: D::Buf,
    /// Normed projections.
    normed: D::Buf,
    /// Rows of the table that the tokens have.
    ids: Vec<TokenId>,
    /// A layer's gates, `[m, width]`.
    gate: D::Buf,
    /// A layer's gated vectors, `[m, width]`.
    gated: D::Buf,
}

impl<D: Ops> InputRows<D> {
    /// Rows for a model of this shape; `None` where tokens have no such vectors.
    pub(super) fn new(spec: &ArchSpec, device: &D) -> Option<Self> {
        let inputs = spec.layer_inputs?;
        let wide = || device.buffer(spec.layers.len() * inputs.width);
        let narrow = || device.buffer(inputs.width);
        let (all, spare, normed) = (wide(), wide(), wide());
        let (gate, gated) = (narrow(), narrow());
        Some(Self { spec: inputs, all, spare, normed, ids: Vec::new(), gate, gated })
    }

    /// Goes on with these rows.
    pub(super) fn keep(&mut self, device: &mut D, rows: &[usize]) {
        device.gather_rows(&self.all, rows, &mut self.spare);
        std::mem::swap(&mut self.all, &mut self.spare);
    }

    /// Vectors of layer `layer`, gated by what `x` gives.
    pub(super) fn gate(
        &mut self,
        device: &mut D,
        rows: D::Rows<'_>,
        weights: &InputWeights<D>,
        x: &D::Buf,
        layer: usize,
    ) -> &D::Buf {
        let Self { spec, all, gate, gated, .. } = self;
        device.linear(rows, &weights.gate, x, gate);
        device.gate_inputs(spec.act, gate, all, layer * spec.width, gated);
        gated
    }
}

impl<D: Ops> Pass<'_, D> {
    /// The vectors of these tokens for all layers, from the table and the scaled embeddings in `x`.
    pub(super) fn make_inputs(&mut self, weights: &InputsWeights<D>, tokens: &[TokenId]) {
        let Self { device, rows, x, inputs, .. } = self;
        let Some(InputRows { spec, all, spare, normed, ids, .. }) = inputs else { return };
        ids.clear();
        let row = |id: &TokenId| if (id.0 as usize) < spec.n_rows { *id } else { TokenId(0) };
        ids.extend(tokens.iter().map(row));
        device.embed(&weights.table, ids, all);
        device.scale(all, (spec.width as f32).sqrt());
        device.linear(*rows, &weights.projection, x, spare);
        device.norm(spare, &weights.norm, normed);
        device.add(all, normed);
        device.scale(all, std::f32::consts::FRAC_1_SQRT_2);
    }

    /// Copies the vectors of all layers to the host, where there are such.
    pub(super) fn read_inputs(&self, out: &mut Vec<f32>) {
        if let Some(inputs) = &self.inputs {
            self.device.read(&inputs.all, out);
        }
    }

    /// Takes the vectors of all layers from the rows of a matrix, looked up by their numbers.
    pub(super) fn put_inputs(&mut self, rows: &D::Weight, ids: &[TokenId]) {
        if let Some(inputs) = &mut self.inputs {
            self.device.embed(rows, ids, &mut inputs.all);
        }
    }

    /// Adds what a layer makes of its own vectors to the residual stream, and multiplies the stream by
    /// the layer's factor.
    pub(super) fn finish_layer(&mut self, layer: &Layer<'_, D>) {
        let Self { device, rows, x, delta, normed_delta, inputs, .. } = self;
        if let (Some(input), Some(own)) = (&layer.weights.input, inputs) {
            let gated = own.gate(device, *rows, input, x, layer.idx);
            device.linear(*rows, &input.out, gated, delta);
            device.norm(delta, &input.norm, normed_delta);
            device.add(x, normed_delta);
        }
        if let Some(factor) = layer.weights.scale {
            device.scale(x, factor);
        }
    }
}
