//! Vectors that stay in f32: norms, and the bias of the head.

use super::{Lookup, Name, NormPlan, Rows};
use crate::arch::NormKind;
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

    pub(in crate::load) fn optional_norm(
        &self,
        is_there: bool,
        name: Name,
        layer: usize,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        is_there.then(|| self.norm(name, layer)).transpose()
    }

    /// A norm of `n` elements that has a weight and no bias, such as that of a latent.
    pub(crate) fn weight_norm(
        &self,
        name: Name,
        layer: usize,
        n: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        let weights = vec![self.weight(name, layer, &[n])?];
        let offset = self.stored.norm_offset;
        Ok(NormPlan { weights, bias: None, rows: Rows::all(n), offset })
    }

    /// A vector that stays in f32, whose name may lack its last word; a tensor of more dimensions with as
    /// many elements is read as one.
    pub(crate) fn vector(
        &self,
        name: Name,
        layer: usize,
        n: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        let stem = self.stem(name, layer);
        let names = [stem.clone(), format!("{stem}.weight"), format!("{stem}.bias")];
        let known = names.iter().find(|name| self.files.tensors().get(name).is_some());
        let name = known.unwrap_or(&names[0]);
        let shape = self.files.tensors().get(name).map(|view| view.shape);
        let n_elements =
            |shape: &[usize]| shape.iter().try_fold(1_usize, |product, n| product.checked_mul(*n));
        let shape = shape.filter(|shape| shape.len() > 1 && n_elements(shape) == Some(n));
        let view = self.find(name, shape.unwrap_or(&[n]))?;
        Ok(NormPlan { weights: vec![view], bias: None, rows: Rows::all(n), offset: 0.0 })
    }

    /// A table that stays in f32, whose name may lack its last word.
    pub(crate) fn table(
        &self,
        name: Name,
        layer: usize,
        shape: [usize; 2],
    ) -> Result<NormPlan<'a>, ModelError> {
        let stem = self.stem(name, layer);
        let names = [stem.clone(), format!("{stem}.weight")];
        let known = names.iter().find(|name| self.files.tensors().get(name).is_some());
        let weights = vec![self.find(known.unwrap_or(&names[0]), &shape)?];
        let rows = Rows::all(shape[0] * shape[1]);
        Ok(NormPlan { weights, bias: None, rows, offset: 0.0 })
    }

    /// The taps of a convolution over time, one after the other for each channel: `[channels, taps]`, in
    /// some files `[channels, 1, taps]` or `[1, channels, 1, taps]`.
    pub(crate) fn taps(
        &self,
        name: Name,
        layer: usize,
        [channels, taps]: [usize; 2],
    ) -> Result<NormPlan<'a>, ModelError> {
        let stored = format!("{}.weight", self.stem(name, layer));
        let n_dims = self.files.tensors().get(&stored).map(|view| view.shape.len());
        let shape: &[usize] = match n_dims {
            Some(2) => &[channels, taps],
            Some(4) => &[1, channels, 1, taps],
            _ => &[channels, 1, taps],
        };
        let weights = vec![self.find(&stored, shape)?];
        Ok(NormPlan { weights, bias: None, rows: Rows::all(channels * taps), offset: 0.0 })
    }

    /// The bias of a convolution over time.
    pub(crate) fn conv_bias(
        &self,
        name: Name,
        layer: usize,
        channels: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        let weights = vec![self.find(&self.bias(name, layer), &[channels])?];
        Ok(NormPlan { weights, bias: None, rows: Rows::all(channels), offset: 0.0 })
    }

    pub(super) fn head_bias(&self, vocab: usize) -> Result<NormPlan<'a>, ModelError> {
        let view = match self.stored.logit_bias {
            Some(name) => self.find(&format!("{}{name}", self.naming.outer), &[1, vocab])?,
            None => self.find(&self.bias(Name::Head, 0), &[vocab])?,
        };
        let weights = vec![view];
        Ok(NormPlan { weights, bias: None, rows: Rows::all(vocab), offset: 0.0 })
    }
}
