//! Vectors that stay in f32: norms, and the bias of the head.

use super::{Lookup, Name, NormPlan, Rows};
use crate::arch::{Gqa, NormKind, QkNorm};
use crate::error::ModelError;

impl<'a> Lookup<'a, '_> {
    pub(super) fn norm(&self, name: Name, layer: usize) -> Result<NormPlan<'a>, ModelError> {
        let width = self.spec.hidden_size;
        let (has_weight, has_bias) = match self.spec.norm {
            NormKind::Rms => (true, false),
            NormKind::Layer { weight, bias } => (weight, bias),
        };
        let weight = has_weight.then(|| self.weight(name, layer, &[width])).transpose()?;
        let bias = || self.find(&self.bias(name, layer), &[width]);
        Ok(NormPlan {
            weights: weight.into_iter().collect(),
            bias: has_bias.then(bias).transpose()?,
            rows: Rows::all(width),
            offset: self.stored.norm_offset,
        })
    }

    pub(super) fn optional_norm(
        &self,
        is_there: bool,
        name: Name,
        layer: usize,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        is_there.then(|| self.norm(name, layer)).transpose()
    }

    /// The norm of `n_heads` heads of q or k.
    pub(super) fn qk_norm(
        &self,
        name: Name,
        layer: usize,
        gqa: &Gqa,
        n_heads: usize,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        let Some(kind) = gqa.qk_norm else { return Ok(None) };
        let (dim, width) = (gqa.head_dim, n_heads * gqa.head_dim);
        let stem = format!("{}.weight", self.stem(name, layer));
        let (weights, n) = match kind {
            QkNorm::HeadRms => (vec![self.find(&stem, &[dim])?], dim),
            QkNorm::HeadRmsBare => (Vec::new(), dim),
            QkNorm::WholeRms => (vec![self.find(&stem, &[width])?], width),
            QkNorm::HeadLayer if stem.contains('*') => {
                let of_head =
                    |head: usize| self.find(&stem.replace('*', &head.to_string()), &[dim]);
                ((0..n_heads).map(of_head).collect::<Result<_, _>>()?, width)
            }
            QkNorm::HeadLayer => (vec![self.find(&stem, &[n_heads, dim])?], width),
        };
        let rows = Rows { pairs: self.pairs(gqa), ..Rows::all(n) };
        Ok(Some(NormPlan { weights, bias: None, rows, offset: self.stored.norm_offset }))
    }

    pub(super) fn head_bias(&self, vocab: usize) -> Result<NormPlan<'a>, ModelError> {
        let view = self.find(&self.bias(Name::Head, 0), &[vocab])?;
        let weights = vec![view];
        Ok(NormPlan { weights, bias: None, rows: Rows::all(vocab), offset: 0.0 })
    }
}
