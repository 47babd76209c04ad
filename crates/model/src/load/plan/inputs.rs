//! Vectors that each token has for every layer: their table, what projects embeddings to such vectors, and
//! what each layer makes of its own.

use pelton_quant::checkpoint::QuantizedTensor;

use super::{Factors, LayerStreamsPlan, LinearPlan, Lookup, NormPlan, Part, Projection, Rows};
use crate::arch::{LayerInputs, Part as Name};
use crate::error::ModelError;
use crate::layer::PlannedTensors;

/// Tensors of the vectors of all layers.
pub(crate) struct InputsPlan<'a> {
    /// `[n_rows, n_layers * width]`.
    pub(crate) table: Part<'a>,
    /// `[n_layers * width, hidden]`.
    pub(crate) projection: LinearPlan<'a>,
    /// Norm of what is projected for one layer, `[width]`.
    pub(crate) norm: NormPlan<'a>,
}

/// Tensors at the end of a layer.
pub(crate) struct TailPlan<'a> {
    /// The layer's part of these vectors.
    pub(crate) input: Option<InputPlan<'a>>,
    /// The factor of what the layer leaves.
    pub(crate) scale: Option<NormPlan<'a>>,
    /// The layer's part of residual streams.
    pub(crate) streams: Option<LayerStreamsPlan<'a>>,
}

/// Tensors by which a layer takes in its vector.
pub(crate) struct InputPlan<'a> {
    /// `[width, hidden]`.
    pub(crate) gate: LinearPlan<'a>,
    /// `[hidden, width]`.
    pub(crate) out: LinearPlan<'a>,
    pub(crate) norm: NormPlan<'a>,
}

impl<'a> TailPlan<'a> {
    /// The projections, the factor as a vector of one element, and what there is of streams.
    pub(in crate::load) fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let linears = self.input.iter().flat_map(|input| [&input.gate, &input.out]);
        let mut tensors = PlannedTensors {
            linears: linears.collect(),
            vectors: self.scale.iter().collect(),
            ..Default::default()
        };
        if let Some(streams) = &self.streams {
            streams.add_to(&mut tensors);
        }
        tensors
    }
}

impl<'a> Lookup<'a, '_> {
    /// The tensors of the vectors of all layers.
    pub(super) fn inputs(&self, inputs: LayerInputs) -> Result<InputsPlan<'a>, ModelError> {
        let (hidden, n_layers) = (self.spec.hidden_size, self.spec.layers.len());
        let width = n_layers * inputs.width;
        let projection = Projection { name: Name::LayerProjection, rows: Rows::all(width) };
        let mut projection = self.linear(0, &[projection], hidden, false)?;
        let product = (hidden as f64).sqrt().recip() as f32;
        projection.factors = vec![Factors { n: width, product, bias: 1.0 }];
        let table = Projection { name: Name::LayerTable, rows: Rows::all(inputs.n_rows) };
        let mut table = self.matrix(&table, 0, width)?;
        // Looking up a row reads elements in their own order.
        table.quantized = table.quantized.map(QuantizedTensor::in_own_order);
        Ok(InputsPlan {
            table,
            projection,
            norm: self.weight_norm(Name::LayerProjectionNorm, 0, inputs.width)?,
        })
    }

    /// The tensors at the end of layer `layer`.
    pub(super) fn tail(&self, layer: usize) -> Result<TailPlan<'a>, ModelError> {
        let hidden = self.spec.hidden_size;
        let linear = |name, n, k| {
            let projection = Projection { name, rows: Rows::all(n) };
            self.linear(layer, &[projection], k, false)
        };
        let input = |inputs: LayerInputs| {
            Ok::<_, ModelError>(InputPlan {
                gate: linear(Name::InputGate, inputs.width, hidden)?,
                out: linear(Name::InputOut, hidden, inputs.width)?,
                norm: self.norm(Name::InputNorm, layer)?,
            })
        };
        let scale = || self.vector(Name::LayerScale, layer, 1);
        Ok(TailPlan {
            input: self.spec.layer_inputs.map(input).transpose()?,
            scale: self.spec.scales_layers.then(scale).transpose()?,
            streams: (self.spec.streams)
                .map(|streams| self.layer_streams(layer, streams))
                .transpose()?,
        })
    }
}
