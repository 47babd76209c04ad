//! The tensors of a layer, by what its spec says that there is.

use super::{LayerPlan, Lookup, Name};
use crate::arch::{LayerSpec, Residual};
use crate::error::ModelError;

impl<'a> Lookup<'a, '_> {
    pub(super) fn layer(
        &self,
        layer: usize,
        spec: &LayerSpec,
    ) -> Result<LayerPlan<'a>, ModelError> {
        let wiring = spec.wiring;
        let norm = |is_there, name| self.optional_norm(is_there, name, layer);
        let has_attention_norm = wiring.pre_norm && (layer > 0 || self.spec.ends.first_norm);
        let has_mlp_norm = wiring.pre_norm && wiring.residual != Residual::ParallelOneNorm;
        Ok(LayerPlan {
            attention_norm: norm(has_attention_norm, Name::AttentionNorm)?,
            attention: spec.mixer.plan(self, layer)?,
            attention_post_norm: norm(wiring.post_norm, Name::AttentionPostNorm)?,
            mlp_norm: norm(has_mlp_norm, Name::MlpNorm)?,
            mlp: spec.mlp.plan(self, layer)?,
            mlp_post_norm: norm(wiring.post_norm, Name::MlpPostNorm)?,
        })
    }
}
