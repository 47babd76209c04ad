//! The tensors of the encoder of an encoder-decoder model.

use super::{LayerPlan, Lookup, Name, NormPlan, Part, Projection, Rows};
use crate::arch::EncoderSpec;
use crate::error::ModelError;
use crate::files::names::Naming;

/// All tensors of an encoder but the embedding, which is the decoder's.
pub(crate) struct EncoderPlan<'a> {
    pub(crate) positions: Option<Part<'a>>,
    pub(crate) embedding_norm: Option<NormPlan<'a>>,
    pub(crate) layers: Vec<LayerPlan<'a>>,
    pub(crate) final_norm: Option<NormPlan<'a>>,
}

impl<'a> EncoderPlan<'a> {
    /// Norms of the kind that the spec names.
    pub(super) fn norms(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        let layers = self.layers.iter().flat_map(LayerPlan::norms);
        layers.chain(&self.embedding_norm).chain(&self.final_norm)
    }
}

impl<'a> Lookup<'a, '_> {
    /// The tensors of the encoder.
    pub(super) fn encoder(&self, encoder: &EncoderSpec) -> Result<EncoderPlan<'a>, ModelError> {
        let stored =
            self.stored.encoder.expect("invariant: a family with encoders names its tensors");
        let lookup = Self { naming: Naming { stored, ..self.naming }, stored, ..*self };
        let table = |n| {
            let rows = Projection { name: Name::Positions, rows: Rows::all(n) };
            lookup.matrix(&rows, 0, self.spec.hidden_size)
        };
        let layers = encoder.layers.iter().enumerate();
        Ok(EncoderPlan {
            positions: encoder.positions.map(|positions| table(positions.n_rows)).transpose()?,
            embedding_norm: lookup.optional_norm(
                self.spec.embedding_norm,
                Name::EmbeddingNorm,
                0,
            )?,
            layers: layers.map(|(i, layer)| lookup.layer(i, layer)).collect::<Result<_, _>>()?,
            final_norm: lookup.optional_norm(encoder.final_norm, Name::FinalNorm, 0)?,
        })
    }

    /// The table of biases of scores by distance, `[n_buckets, n_heads]`, which the first layer has for
    /// all of them.
    pub(crate) fn distance_bias(&self, shape: [usize; 2]) -> Result<NormPlan<'a>, ModelError> {
        let view = self.float(self.weight(Name::DistanceBias, 0, &shape)?)?;
        let rows = Rows::all(shape[0] * shape[1]);
        Ok(NormPlan { weights: vec![view], bias: None, rows, offset: 0.0 })
    }
}
