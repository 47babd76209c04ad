//! Residual streams side by side: the projections to them and from them, and what each layer has of them.

use super::{Factors, LinearPlan, Lookup, NormPlan, Projection, Rows};
use crate::arch::{Part as Name, Streams};
use crate::error::ModelError;
use crate::layer::PlannedTensors;

/// Projections to all streams but the first, and from them; `[hidden, hidden]` each.
pub(crate) struct StreamsPlan<'a> {
    pub(crate) enter: Vec<LinearPlan<'a>>,
    pub(crate) leave: Vec<LinearPlan<'a>>,
}

/// A layer's tensors of streams and of the residual beside attention.
pub(crate) struct LayerStreamsPlan<'a> {
    /// `[n, hidden]`, with the factor `1 / hidden`.
    pub(crate) router: LinearPlan<'a>,
    pub(crate) router_norm: NormPlan<'a>,
    /// Coefficients of predictions, `[n * n, n]`, and of corrections, `[n, n]`.
    pub(crate) predict: LinearPlan<'a>,
    pub(crate) correct: LinearPlan<'a>,
    /// Factors of the corrected active stream, `[hidden]`.
    pub(crate) scale: Option<NormPlan<'a>>,
    /// `[rank, hidden]`.
    pub(crate) left: LinearPlan<'a>,
    /// `[hidden, rank]`.
    pub(crate) right: LinearPlan<'a>,
    pub(crate) residual_norm: NormPlan<'a>,
}

impl<'a> StreamsPlan<'a> {
    /// All of them.
    pub(in crate::load) fn linears(&self) -> impl Iterator<Item = &LinearPlan<'a>> {
        self.enter.iter().chain(&self.leave)
    }
}

impl<'a> LayerStreamsPlan<'a> {
    /// Adds them to what a layer has.
    pub(super) fn add_to<'p>(&'p self, tensors: &mut PlannedTensors<'p, 'a>) {
        let Self { router, router_norm, predict, correct, scale, left, right, residual_norm } =
            self;
        tensors.linears.extend([router, predict, correct, left, right]);
        tensors.vectors.extend([router_norm, residual_norm]);
        tensors.vectors.extend(scale);
    }
}

impl<'a> Lookup<'a, '_> {
    /// The projections to streams and from them: a tensor for each, or one for all.
    pub(super) fn streams(&self, streams: Streams) -> Result<StreamsPlan<'a>, ModelError> {
        let hidden = self.spec.hidden_size;
        let all = |name| self.stacked(name, [streams.n - 1, hidden, hidden]);
        Ok(StreamsPlan { enter: all(Name::StreamIn)?, leave: all(Name::StreamOut)? })
    }

    /// The tensors of layer `layer`.
    pub(super) fn layer_streams(
        &self,
        layer: usize,
        streams: Streams,
    ) -> Result<LayerStreamsPlan<'a>, ModelError> {
        let Streams { n, rank, is_scaled, .. } = streams;
        let hidden = self.spec.hidden_size;
        let linear = |name, rows, k| {
            let projection = Projection { name, rows: Rows::all(rows) };
            self.linear(layer, &[projection], k, false)
        };
        let mut router = linear(Name::StreamRouter, n, hidden)?.exact();
        router.factors = vec![Factors { n, product: 1.0 / hidden as f32, bias: 1.0 }];
        let scale = || self.vector(Name::StreamScale, layer, hidden);
        Ok(LayerStreamsPlan {
            router,
            router_norm: self.weight_norm(Name::StreamRouterNorm, layer, hidden)?,
            predict: linear(Name::StreamPredict, n * n, n)?.exact(),
            correct: linear(Name::StreamCorrect, n, n)?.exact(),
            scale: is_scaled.then(scale).transpose()?,
            left: linear(Name::ResidualLeft, rank, hidden)?,
            right: linear(Name::ResidualRight, hidden, rank)?,
            residual_norm: self.weight_norm(Name::ResidualNorm, layer, hidden)?,
        })
    }
}
