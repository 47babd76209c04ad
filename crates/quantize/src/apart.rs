//! Experts that are written one by one, because no layout of a method holds several in one tensor.
//!
//! ```text
//! stored     experts.gate_up_proj [n_experts, 2 ffn, k]     experts.down_proj [n_experts, k, ffn]
//! written    experts.0.gate_proj.*   experts.0.up_proj.*   experts.0.down_proj.*   experts.1. ..
//! ```
//!
//! Where one matrix of a layer's experts is quantized, all are written so: those that are kept as
//! plain floats, with the biases that they had.

use std::collections::BTreeSet;

use pelton_model::{ExpertSlice, LayerShape, ModelFiles};
use pelton_tensor::{DType, TensorView};

use crate::Options;

/// The experts of a layer that are written one by one.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    /// Stored tensors in whose place they are written.
    pub(crate) replaced: BTreeSet<String>,
    /// Tensors that are as they were.
    pub(crate) plain: Vec<Plain>,
}

/// A tensor of plain floats.
#[derive(Debug)]
pub(crate) struct Plain {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Plain {
    fn of(files: &ModelFiles, name: String, slice: &ExpertSlice, shape: Vec<usize>) -> Self {
        let view = files.stored(&slice.tensor).expect("invariant: the tensor was found");
        let n_bytes = view.data.len() / view.n_elements().max(1);
        let element = |place: usize| &view.data[place * n_bytes..][..n_bytes];
        let data = slice.places().flat_map(element).copied().collect();
        Self { name, dtype: view.dtype, shape, data }
    }

    pub(crate) fn view(&self) -> TensorView<'_> {
        let Self { name, dtype, shape, data } = self;
        TensorView { name, dtype: *dtype, shape, data }
    }
}

/// Modules that stay plain floats but are written under names of their own.
pub(crate) fn kept_modules(shape: &LayerShape, options: &Options) -> Vec<String> {
    let kept = shape.matrices.iter().filter(|matrix| matrix.slice.is_some());
    let kept = kept.map(|matrix| &matrix.module).filter(|module| options.keeps(module));
    if is_apart(shape, options) { kept.cloned().collect() } else { Vec::new() }
}

/// Whether some expert's part of a tensor is quantized.
fn is_apart(shape: &LayerShape, options: &Options) -> bool {
    let slices = shape.matrices.iter().filter(|matrix| matrix.slice.is_some());
    slices.into_iter().any(|matrix| !options.keeps(&matrix.module))
}

impl Apart {
    /// The tensors written in the place of stored ones, quantized matrices left out.
    pub(crate) fn of(files: &ModelFiles, shape: &LayerShape, options: &Options) -> Self {
        let mut apart = Self::default();
        if !is_apart(shape, options) {
            return apart;
        }
        for matrix in &shape.matrices {
            let Some(slice) = &matrix.slice else { continue };
            let (module, [n, k]) = (&matrix.module, matrix.shape);
            apart.replaced.insert(slice.tensor.clone());
            if options.keeps(module) {
                let name = format!("{module}.weight");
                apart.plain.push(Plain::of(files, name, slice, vec![n, k]));
            }
            if let Some(bias) = &slice.bias {
                apart.replaced.insert(bias.tensor.clone());
                apart.plain.push(Plain::of(files, format!("{module}.bias"), bias, vec![n]));
            }
        }
        apart
    }
}
