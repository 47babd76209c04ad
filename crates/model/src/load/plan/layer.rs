//! The tensors of a layer, by what its spec says that there is.

use super::{LayerPlan, Lookup, Name};
use crate::arch::LayerSpec;
use crate::error::ModelError;

impl<'a> Lookup<'a, '_> {
    pub(in crate::load) fn layer(
        &self,
        layer: usize,
        spec: &LayerSpec,
    ) -> Result<LayerPlan<'a>, ModelError> {
        let norm = |is_there, name| self.optional_norm(is_there, name, layer);
        let [attention, attention_post, mlp, mlp_post] = spec.norms(layer, &self.spec.ends);
        Ok(LayerPlan {
            attention_norm: norm(attention, Name::AttentionNorm)?,
            attention: spec.mixer.plan(self, layer)?,
            attention_post_norm: norm(attention_post, Name::AttentionPostNorm)?,
            mlp_norm: norm(mlp, Name::MlpNorm)?,
            mlp: spec.mlp.plan(self, layer)?,
            mlp_post_norm: norm(mlp_post, Name::MlpPostNorm)?,
            tail: self.tail(layer)?,
        })
    }
}
