//! From a plan to packed weights.

use std::borrow::Cow;

use pelton_quant::{Compute, QuantError, dequantize_tensor};
use pelton_tensor::TensorView;

use super::cache::Cache;
use super::plan::{
    EncoderPlan, Factors, InputPlan, InputsPlan, LayerPlan, LinearPlan, NormPlan, Part, Plan,
};
use super::{
    EncoderWeights, InputWeights, InputsWeights, LayerWeights, LoadOptions, LoadProgress, Turned,
    Weights, quantization,
};
use crate::arch::{ArchSpec, NormKind};
use crate::device::{Device, MatrixSource};
use crate::error::ModelError;
use crate::export::Rounded;
use crate::files::ModelFiles;
use crate::layer::{Linear, Norm, Piece, Shard};

/// Packs what was planned.
pub(crate) struct Packer<'a, B: Device> {
    pub(super) device: &'a B,
    pub(super) options: &'a LoadOptions<'a>,
    pub(super) files: &'a ModelFiles,
    pub(crate) spec: &'a ArchSpec,
    pub(super) cache: Cache<B>,
    /// Whether matrices in bf16 are computed so where the arithmetic asked for is f32.
    pub(super) keeps_bf16: bool,
    /// Stored bytes packed so far.
    pub(super) n_bytes: u64,
    /// The same of the whole model.
    pub(super) n_total_bytes: u64,
    /// Bytes of what was packed.
    pub(super) n_packed_bytes: u64,
}

impl<B: Device> Packer<'_, B> {
    /// Packs all weights of a model.
    pub(super) fn weights(&mut self, plan: &Plan<'_>) -> Result<Weights<B>, ModelError> {
        Ok(Weights {
            embedding: self.matrix(&plan.embedding)?,
            positions: plan.positions.as_ref().map(|table| self.matrix(table)).transpose()?,
            token_types: plan.token_types.as_ref().map(|table| self.matrix(table)).transpose()?,
            embedding_norm: self.optional_norm(&plan.embedding_norm)?,
            inputs: plan.inputs.as_ref().map(|inputs| self.inputs(inputs)).transpose()?,
            streams: plan.streams.as_ref().map(|streams| self.streams(streams)).transpose()?,
            layers: plan.layers.iter().map(|plan| self.layer(plan)).collect::<Result<_, _>>()?,
            encoder: plan.encoder.as_ref().map(|encoder| self.encoder(encoder)).transpose()?,
            final_norm: self.optional_norm(&plan.final_norm)?,
            head: plan.head.as_ref().map(|head| self.matrix(head)).transpose()?,
            head_bias: plan.head_bias.as_ref().map(|bias| self.vector(bias)).transpose()?,
            // Evaluated last: fields are, in the order in which they stand here.
            n_bytes: self.n_packed_bytes,
        })
    }

    /// The encoder of an encoder-decoder model.
    fn encoder(&mut self, plan: &EncoderPlan<'_>) -> Result<EncoderWeights<B>, ModelError> {
        Ok(EncoderWeights {
            positions: plan.positions.as_ref().map(|table| self.matrix(table)).transpose()?,
            embedding_norm: self.optional_norm(&plan.embedding_norm)?,
            layers: plan.layers.iter().map(|plan| self.layer(plan)).collect::<Result<_, _>>()?,
            final_norm: self.optional_norm(&plan.final_norm)?,
        })
    }

    pub(super) fn layer(&mut self, plan: &LayerPlan<'_>) -> Result<LayerWeights<B>, ModelError> {
        let attention = plan.attention.pack(self)?;
        Ok(LayerWeights {
            attention_norm: self.optional_norm(&plan.attention_norm)?,
            attention,
            attention_post_norm: self.optional_norm(&plan.attention_post_norm)?,
            mlp_norm: self.optional_norm(&plan.mlp_norm)?,
            mlp: plan.mlp.pack(self)?,
            mlp_post_norm: self.optional_norm(&plan.mlp_post_norm)?,
            input: plan.tail.input.as_ref().map(|input| self.input(input)).transpose()?,
            scale: plan.tail.scale.as_ref().map(|scale| self.scalar(scale)).transpose()?,
            streams: (plan.tail.streams.as_ref())
                .map(|streams| self.layer_streams(streams))
                .transpose()?,
        })
    }

    /// Vectors of tokens for each layer.
    pub(super) fn inputs(&mut self, plan: &InputsPlan<'_>) -> Result<InputsWeights<B>, ModelError> {
        let eps = self.spec.norm_eps;
        Ok(InputsWeights {
            table: self.matrix(&plan.table)?,
            projection: self.linear(&plan.projection)?,
            norm: self.norm(&plan.norm, NormKind::Rms, eps)?,
        })
    }

    fn input(&mut self, plan: &InputPlan<'_>) -> Result<InputWeights<B>, ModelError> {
        let (kind, eps) = (self.spec.norm, self.spec.norm_eps);
        Ok(InputWeights {
            gate: self.linear(&plan.gate)?,
            out: self.linear(&plan.out)?,
            norm: self.norm(&plan.norm, kind, eps)?,
        })
    }

    /// A number that stays on the host.
    fn scalar(&mut self, plan: &NormPlan<'_>) -> Result<f32, ModelError> {
        self.n_packed_bytes += size_of::<f32>() as u64;
        Ok(self.read(plan)?[0])
    }

    pub(super) fn optional_norm(
        &mut self,
        plan: &Option<NormPlan<'_>>,
    ) -> Result<Option<Norm<B>>, ModelError> {
        let (kind, eps) = (self.spec.norm, self.spec.norm_eps);
        plan.as_ref().map(|plan| self.norm(plan, kind, eps)).transpose()
    }

    /// A norm, with the bias that its kind has.
    pub(crate) fn norm(
        &mut self,
        plan: &NormPlan<'_>,
        kind: NormKind,
        eps: f32,
    ) -> Result<Norm<B>, ModelError> {
        let weight = self.vector(plan)?;
        let bias = match (kind, &plan.bias) {
            (NormKind::Rms, _) => None,
            (NormKind::Layer { .. }, None) => Some(self.put(&vec![0.0; plan.rows.n])),
            (NormKind::Layer { .. }, Some(bias)) => {
                let values = self.values(bias)?;
                Some(self.put(&values))
            }
        };
        Ok(Norm { weight, bias, eps })
    }

    /// A norm's weight, or another vector; ones where there is none.
    pub(crate) fn vector(&mut self, plan: &NormPlan<'_>) -> Result<B::Vector, ModelError> {
        let values = self.read(plan)?;
        Ok(self.put(&values))
    }

    /// The elements of a vector on the host.
    pub(crate) fn read(&mut self, plan: &NormPlan<'_>) -> Result<Vec<f32>, ModelError> {
        let mut stored = Vec::new();
        for view in &plan.weights {
            stored.extend(self.values(view)?);
        }
        Ok(match stored.is_empty() {
            true => vec![1.0; plan.rows.n],
            false => plan.rows.pick_values(&stored).iter().map(|x| x + plan.offset).collect(),
        })
    }

    /// The rates of decays of a recurrence: `plan` holds them, or the logarithms of their magnitudes.
    ///
    /// # Errors
    ///
    /// For a rate above 0, with which a state grows.
    pub(crate) fn decay_rates(
        &mut self,
        plan: &NormPlan<'_>,
        are_rates: bool,
    ) -> Result<Vec<f32>, ModelError> {
        let mut rates = self.read(plan)?;
        if !are_rates {
            rates.iter_mut().for_each(|a| *a = decay_rate(*a));
        }
        match rates.iter().find(|rate| **rate > 0.0) {
            None => Ok(rates),
            Some(rate) => Err(self.format_error(QuantError::Checkpoint {
                tensor: plan.weights.first().map_or_else(String::new, |view| view.name.to_owned()),
                expected: "rates of decay, which are at most 0".to_owned(),
                got: rate.to_string(),
            })),
        }
    }

    /// Puts a vector on the device.
    pub(crate) fn put(&mut self, values: &[f32]) -> B::Vector {
        self.n_packed_bytes += size_of_val(values) as u64;
        self.device.vector(values)
    }

    fn values(&mut self, view: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
        let values = dequantize_tensor(view).map_err(|source| self.format_error(source))?;
        self.advance(view.data, view.data.len());
        Ok(values)
    }

    /// A projection.
    pub(crate) fn linear(&mut self, plan: &LinearPlan<'_>) -> Result<Linear<B>, ModelError> {
        let is_kept = self.keeps_bf16 && !plan.is_exact && plan.parts.iter().all(Part::is_bf16);
        let compute = plan.compute(if is_kept { Compute::Auto } else { self.options.compute });
        let (mut pieces, mut first_row, mut n) = (Vec::new(), 0, 0);
        for run in plan.runs() {
            let (order, adds) = (run[0].order().map(Box::from), run[0].adds());
            if !adds {
                first_row = n;
                n += run.iter().map(Part::n).sum::<usize>();
            }
            let weight = self.pack(run, compute)?;
            pieces.push(Piece { weight, first_row, order, adds });
        }
        let mut bias = Vec::new();
        for (i, part) in plan.biases.iter().enumerate() {
            let data = part.ordered();
            let values = dequantize_tensor(&part.with_data(&data));
            let values = values.map_err(|source| self.format_error(source))?;
            let factor = plan.factors.get(i).map_or(1.0, |factors| factors.bias);
            bias.extend(values.iter().map(|value| value * factor));
            part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
        }
        let bias = (!bias.is_empty()).then(|| self.put(&bias));
        let mut first = 0;
        let stretch = |factors: &Factors| {
            let rows = first..first + factors.n;
            first = rows.end;
            (rows, factors.product)
        };
        let factors = plan.factors.iter().map(stretch).filter(|(_, factor)| *factor != 1.0);
        let factors = factors.collect();
        Ok(Linear { pieces, shard: Shard::whole(n), factors, bias, n, k: plan.k })
    }

    /// A matrix that stands alone: the embedding table or the head.
    pub(crate) fn matrix(&mut self, plan: &Part<'_>) -> Result<B::Weight, ModelError> {
        self.pack(std::slice::from_ref(plan), self.options.compute)
    }

    /// One matrix of parts of one type.
    fn pack(&mut self, parts: &[Part<'_>], compute: Compute) -> Result<B::Weight, ModelError> {
        let packed = match (self.cache.take(parts), quantization::whole(parts)) {
            (Some(weight), _) => weight,
            (None, _) if parts[0].turned.is_some() => self.pack_turned(&parts[0], compute)?,
            (None, Some(matrices)) => {
                let source = MatrixSource::Quantized(&matrices);
                let packed = self.device.pack(&source, compute, &mut |_| ());
                let packed = packed.map_err(|source| self.format_error(source))?;
                for (data, n_bytes) in parts.iter().flat_map(Part::stored) {
                    self.advance(data, n_bytes);
                }
                packed
            }
            (None, None) => self.pack_rows(parts, compute)?,
        };
        self.cache.keep(self.device, parts, &packed);
        self.n_packed_bytes += B::weight_bytes(&packed) as u64;
        Ok(packed)
    }

    /// Packs the rows of parts and gives them back band by band.
    fn pack_rows(&mut self, parts: &[Part<'_>], compute: Compute) -> Result<B::Weight, ModelError> {
        let ordered: Vec<_> = parts.iter().map(Part::ordered).collect();
        for (part, data) in parts.iter().zip(&ordered) {
            if matches!(data, Cow::Owned(_)) {
                // Read for the last time when it was copied: the parts of a tensor stand together.
                part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
            }
        }
        let views: Vec<_> =
            parts.iter().zip(&ordered).map(|(part, data)| part.with_data(data)).collect();
        let device = self.device;
        let source = match parts[0].rounded {
            Some(Rounded::Packed(to)) => MatrixSource::Rounded(&views, to),
            _ => MatrixSource::Tensors(&views),
        };
        let packed = device.pack(&source, compute, &mut |rows| {
            let mut first = 0;
            for (view, data) in views.iter().zip(&ordered) {
                let n = view.shape[0];
                let own = rows.start.clamp(first, first + n)..rows.end.clamp(first, first + n);
                if let Cow::Borrowed(data) = data
                    && !own.is_empty()
                {
                    let row_bytes = data.len() / n;
                    let band = &data[(own.start - first) * row_bytes..][..own.len() * row_bytes];
                    self.advance(band, band.len());
                }
                first += n;
            }
        });
        packed.map_err(|source| self.format_error(source))
    }

    /// Packs rows that become columns and gives back what they were stored in.
    fn pack_turned(&mut self, part: &Part<'_>, compute: Compute) -> Result<B::Weight, ModelError> {
        let turned = part.turned.expect("invariant: the part is turned");
        let data = turned.bytes(part).map_err(|source| self.format_error(source))?;
        part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
        let view = [TensorView { dtype: Turned::dtype(part), ..part.with_data(&data) }];
        let source = match part.rounded {
            Some(Rounded::Packed(to)) => MatrixSource::Rounded(&view, to),
            _ => MatrixSource::Tensors(&view),
        };
        let packed = self.device.pack(&source, compute, &mut |_| ());
        packed.map_err(|source| self.format_error(source))
    }

    fn format_error(&self, source: QuantError) -> ModelError {
        let file = self.files.tensors().origin().to_owned();
        ModelError::Format { file, source }
    }

    /// Gives stored bytes back and reports `n_bytes` of them as packed.
    fn advance(&mut self, stored: &[u8], n_bytes: usize) {
        self.files.tensors().give_back(stored);
        if matches!(self.cache, Cache::Hit(_)) {
            // All there is to report was reported when the cache was verified.
            return;
        }
        self.n_bytes += n_bytes as u64;
        if let Some(progress) = self.options.progress {
            let (n_bytes, n_total_bytes) = (self.n_bytes, self.n_total_bytes);
            progress(LoadProgress { n_bytes, n_total_bytes, is_cached: false });
        }
    }
}

/// The factor of decays, `-exp(log)`, of the logarithm of its magnitude.
pub(crate) fn decay_rate(log: f32) -> f32 {
    // The nearest f32, whichever library's `exp` it is.
    -f64::from(log).exp() as f32
}
