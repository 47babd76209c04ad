//! Packed weights of residual streams side by side ([`Streams`](crate::arch::Streams)).

use super::plan::{LayerStreamsPlan, StreamsPlan};
use super::{Packer, Weights};
use crate::arch::NormKind;
use crate::device::Device;
use crate::error::ModelError;
use crate::layer::{Linear, Norm};

/// Projections to all streams but the first, and from them; `[hidden, hidden]` each.
#[derive(Debug)]
pub(crate) struct StreamsWeights<B: Device> {
    pub(crate) enter: Vec<Linear<B>>,
    pub(crate) leave: Vec<Linear<B>>,
}

/// A layer's weights of streams and of the residual beside attention.
#[derive(Debug)]
pub(crate) struct LayerStreams<B: Device> {
    /// `[n, hidden]`.
    pub(crate) router: Linear<B>,
    pub(crate) router_norm: Norm<B>,
    /// Coefficients of predictions, `[n * n, n]`.
    pub(crate) predict: Linear<B>,
    /// Coefficients of corrections, `[n, n]`.
    pub(crate) correct: Linear<B>,
    /// Factors of the corrected active stream, `[hidden]`.
    pub(crate) scale: Option<B::Vector>,
    /// `[rank, hidden]`.
    pub(crate) left: Linear<B>,
    /// `[hidden, rank]`.
    pub(crate) right: Linear<B>,
    pub(crate) residual_norm: Norm<B>,
}

impl<B: Device> LayerStreams<B> {
    /// Every matrix.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &B::Weight> {
        let Self { router, predict, correct, left, right, .. } = self;
        [router, predict, correct, left, right].into_iter().flat_map(Linear::weights)
    }
}

impl<B: Device> Weights<B> {
    /// The matrices outside of layers that rows are multiplied with, the head left out.
    pub(crate) fn outer(&self) -> impl Iterator<Item = &B::Weight> {
        let inputs = self.inputs.iter().map(|own| &own.projection);
        let streams = self.streams.iter().flat_map(|own| own.enter.iter().chain(&own.leave));
        inputs.chain(streams).flat_map(Linear::weights)
    }
}

impl<B: Device> Packer<'_, B> {
    /// Projections to streams and from them.
    pub(super) fn streams(
        &mut self,
        plan: &StreamsPlan<'_>,
    ) -> Result<StreamsWeights<B>, ModelError> {
        Ok(StreamsWeights {
            enter: plan.enter.iter().map(|plan| self.linear(plan)).collect::<Result<_, _>>()?,
            leave: plan.leave.iter().map(|plan| self.linear(plan)).collect::<Result<_, _>>()?,
        })
    }

    /// The weights by which a layer mixes streams.
    pub(super) fn layer_streams(
        &mut self,
        plan: &LayerStreamsPlan<'_>,
    ) -> Result<LayerStreams<B>, ModelError> {
        let eps = self.spec.norm_eps;
        Ok(LayerStreams {
            router: self.linear(&plan.router)?,
            router_norm: self.norm(&plan.router_norm, NormKind::Rms, eps)?,
            predict: self.linear(&plan.predict)?,
            correct: self.linear(&plan.correct)?,
            scale: plan.scale.as_ref().map(|scale| self.vector(scale)).transpose()?,
            left: self.linear(&plan.left)?,
            right: self.linear(&plan.right)?,
            residual_norm: self.norm(&plan.residual_norm, NormKind::Rms, eps)?,
        })
    }
}
