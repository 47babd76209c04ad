//! Residual streams side by side, between the operations of a step: see
//! [`Streams`](crate::arch::Streams).
//!
//! ```text
//! split    x ── projections, as large as x ──> streams                        once
//! predict  streams ──> predictions, the active one ──> x ── norm ──> h        at the start of a layer
//! add_low  x, attention(h), h ──> x                                           in place of x += attention
//! correct  predictions, x ──> streams, with the token's vector                at its end
//! merge    streams ── projections, as large as the first, mean ──> x          once
//! ```

use pelton_base::TokenId;

use super::pass::{Layer, Pass};
use crate::arch::{ArchSpec, Streams};
use crate::device::{Ops, StreamOp};
use crate::layer::Norm;
use crate::load::{LayerStreams, StreamsWeights};

/// The streams of a step, and what is computed on the way.
#[derive(Debug)]
pub(super) struct StreamRows<D: Ops> {
    spec: Streams,
    /// All streams, `[m, n * hidden]`.
    all: D::Buf,
    /// Streams of the rows that go on in the last layer.
    spare: D::Buf,
    /// Output of the router, `[m, n]`.
    routed: D::Buf,
    /// Coefficients of predictions, `[m, n * n]`, and of corrections, `[m, n]`.
    predicting: D::Buf,
    correcting: D::Buf,
    /// The latent of the residual beside attention, `[m, rank]`.
    latent: D::Buf,
    /// A norm as floats, or the first stream; `[m, hidden]`.
    normed: D::Buf,
    /// The residual beside attention, `[m, hidden]`.
    low: D::Buf,
}

impl<D: Ops> StreamRows<D> {
    /// Rows for a model of this shape; `None` where there is one stream alone.
    pub(super) fn new(spec: &ArchSpec, device: &D) -> Option<Self> {
        let (streams, hidden) = (spec.streams?, spec.hidden_size);
        Some(Self {
            spec: streams,
            all: device.buffer(streams.n * hidden),
            spare: device.buffer(streams.n * hidden),
            routed: device.buffer(streams.n),
            predicting: device.buffer(streams.n * streams.n),
            correcting: device.buffer(streams.n),
            latent: device.buffer(streams.rank),
            normed: device.buffer(hidden),
            low: device.buffer(hidden),
        })
    }

    /// Goes on with these rows.
    pub(super) fn keep(&mut self, device: &mut D, rows: &[usize]) {
        device.gather_rows(&self.all, rows, &mut self.spare);
        std::mem::swap(&mut self.all, &mut self.spare);
    }

    /// Writes the output of a layer's router to `routed`.
    fn route(&mut self, device: &mut D, rows: D::Rows<'_>, weights: &LayerStreams<D>, x: &D::Buf) {
        device.norm(x, &weights.router_norm, &mut self.normed);
        device.linear(rows, &weights.router, &self.normed, &mut self.routed);
        device.tanh(&mut self.routed);
    }
}

impl<D: Ops> Pass<'_, D> {
    /// Makes the streams of the scaled embeddings in `x`; `x` becomes the active one.
    pub(super) fn split_streams(&mut self, weights: &StreamsWeights<D>) {
        let Self { device, rows, x, delta, streams, .. } = self;
        let Some(own) = streams else { return };
        device.put_stream(x, 0, &mut own.all);
        for (i, linear) in weights.enter.iter().enumerate() {
            device.linear(*rows, linear, x, delta);
            device.match_rms(delta, x);
            device.put_stream(delta, i + 1, &mut own.all);
        }
        device.take_stream(&own.all, own.spec.active, x);
    }

    /// Predicts what a layer leaves; `x` becomes the active prediction, and `normed` its norm.
    pub(super) fn predict_streams(&mut self, layer: &Layer<'_, D>) {
        let Self { device, rows, x, normed, streams, .. } = self;
        let (Some(weights), Some(own)) = (&layer.weights.streams, streams) else { return };
        own.route(device, *rows, weights, x);
        let StreamRows { spec, all, routed, predicting, .. } = &mut **own;
        device.linear(*rows, &weights.predict, routed, predicting);
        let op = StreamOp { n: spec.n, active: spec.active, coefficients: predicting };
        device.predict_streams(&op, all, x);
        if let Some(norm) = &layer.weights.attention_norm {
            device.norm(x, norm, normed);
        }
    }

    /// The mean of `x` with what attention adds, and of the residual of low rank beside it, each weighed
    /// by `1 / sqrt(2)`; `x` is the active prediction before. Then the norm that the perceptron reads.
    pub(super) fn add_low(&mut self, layer: &Layer<'_, D>) {
        let Self { device, rows, x, delta, normed, normed_delta, streams, .. } = self;
        let (Some(weights), Some(own)) = (&layer.weights.streams, streams) else { return };
        let StreamRows { latent, normed: input, low, .. } = &mut **own;
        if let Some(norm) = &layer.weights.attention_norm {
            // The input of attention may lie in a form that cannot be taken apart.
            device.norm(x, norm, input);
        }
        device.linear(*rows, &weights.left, input, latent);
        device.linear(*rows, &weights.right, latent, normed_delta);
        device.norm(normed_delta, &weights.residual_norm, low);
        device.add(low, input);
        device.add(x, delta);
        device.add(x, low);
        device.scale(x, Streams::AVERAGED);
        if let Some(norm) = &layer.weights.mlp_norm {
            device.norm(x, norm, normed);
        }
    }

    /// Corrects the predictions by what the layer made of the active one, takes in the tokens' vectors, and
    /// makes `x` the active stream.
    pub(super) fn correct_streams(&mut self, layer: &Layer<'_, D>) {
        let Self { device, rows, x, delta, normed_delta, inputs, streams, .. } = self;
        let (Some(weights), Some(own)) = (&layer.weights.streams, streams) else { return };
        own.route(device, *rows, weights, x);
        let StreamRows { spec, all, routed, correcting, .. } = &mut **own;
        device.linear(*rows, &weights.correct, routed, correcting);
        let op = StreamOp { n: spec.n, active: spec.active, coefficients: correcting };
        device.correct_streams(&op, weights.scale.as_ref(), x, all, delta);
        if let (Some(input), Some(inputs)) = (&layer.weights.input, inputs) {
            let gated = inputs.gate(device, *rows, input, delta, layer.idx);
            device.linear(*rows, &input.out, gated, delta);
            device.norm(delta, &input.norm, normed_delta);
            device.add_to_streams(normed_delta, all);
        }
        device.take_stream(all, spec.active, x);
    }

    /// Makes `x` the mean of all streams behind the last layer, and norms it: to `normed`, or as floats to
    /// `normed_delta` where `is_read` says that the host reads it.
    pub(super) fn merge_streams(
        &mut self,
        weights: &StreamsWeights<D>,
        norm: Option<&Norm<D>>,
        is_read: bool,
    ) {
        let Self { device, rows, x, delta, normed, normed_delta, streams, .. } = self;
        let Some(own) = streams else { return };
        let StreamRows { spec, all, normed: first, .. } = &mut **own;
        device.take_stream(all, 0, first);
        device.take_stream(all, 0, x);
        for (i, linear) in weights.leave.iter().enumerate() {
            device.take_stream(all, i + 1, delta);
            device.linear(*rows, linear, delta, normed_delta);
            device.match_rms(normed_delta, first);
            device.add(x, normed_delta);
        }
        device.scale(x, 1.0 / spec.n as f32);
        if let Some(norm) = norm {
            device.norm(x, norm, if is_read { normed_delta } else { normed });
        }
    }

    /// Copies all streams to the host, where there are more than one.
    pub(super) fn read_streams(&self, out: &mut Vec<f32>) {
        if let Some(own) = &self.streams {
            self.device.read(&own.all, out);
        }
    }

    /// Takes all streams from the rows of a matrix, looked up by their numbers.
    pub(super) fn put_streams(&mut self, rows: &D::Weight, ids: &[TokenId]) {
        if let Some(own) = &mut self.streams {
            self.device.embed(rows, ids, &mut own.all);
        }
    }
}
