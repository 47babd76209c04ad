//! The layouts that the matrices of a quantized checkpoint are packed in.

use std::collections::BTreeMap;

use pelton_quant::Compute;
use pelton_quant::checkpoint::QuantizedTensor;

use super::footprint::of_run;
use super::plan::{Part, Plan};
use crate::device::{Device, PackedSize};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::inspect::TensorTotals;

/// The quantized matrices of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuantizedTotals {
    /// Matrices by the layout that they are packed in; bytes are packed ones.
    pub(crate) layouts: BTreeMap<&'static str, TensorTotals>,
    /// Elements of all tensors that they are stored in.
    pub(crate) n_stored_elements: u64,
    /// Bytes of these.
    pub(crate) n_stored_bytes: u64,
    /// Matrices whose inputs are put in another order.
    pub(crate) n_reordered: usize,
}

/// The matrices of these parts, where they are quantized ones.
pub(super) fn whole<'p, 'a>(parts: &'p [Part<'a>]) -> Option<Vec<&'p QuantizedTensor<'a>>> {
    parts.iter().map(Part::quantized).collect()
}

/// Looks at every quantized matrix and chooses its layout, without packing any.
///
/// # Errors
///
/// As [`check`](super::check), and when a scale or zero point cannot be.
pub(crate) fn quantized_totals<D: Device>(
    files: &ModelFiles,
) -> Result<QuantizedTotals, ModelError> {
    let plan = Plan::padded(files, &files.spec()?, D::HEAD_ROWS)?;
    let mut all = QuantizedTotals::default();
    for (run, compute) in plan.runs(Compute::Auto) {
        let Some(matrices) = whole(run) else { continue };
        let is_turned = run[0].turned.is_some();
        let PackedSize { layout, n_bytes } = of_run::<D>(files, run, compute)?;
        let totals = all.layouts.entry(layout).or_default();
        totals.n_bytes += n_bytes;
        for (i, (matrix, part)) in matrices.into_iter().zip(run).enumerate() {
            let [n, k] = if is_turned { [part.n(), part.k()] } else { matrix.shape() };
            // Where a matrix is split into blocks or rows, its last part lists the tensors.
            let is_last = !matrix.views().is_empty();
            totals.n_tensors += usize::from(is_last);
            // Values that are projected as keys are the same rows once more.
            let is_repeated = run.get(i + 1).is_some_and(|next| {
                next.view.name == part.view.name
                    && next.rows.first == part.rows.first
                    && next.quantized().is_some_and(|next| next.columns() == matrix.columns())
            });
            totals.n_elements += if is_repeated { 0 } else { n as u64 * k as u64 };
            let is_sorted = matrix.order().is_some() && matrix.columns().is_none();
            all.n_reordered += usize::from(is_last && is_sorted);
            for view in matrix.views() {
                all.n_stored_elements += view.n_elements() as u64;
                all.n_stored_bytes += view.data.len() as u64;
            }
        }
    }
    Ok(all)
}
