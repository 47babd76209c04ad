//! The memory that the weights will take, computed before any of them is packed.
//!
//! ```text
//! matrix    panels of 16 rows, the last one padded, in the layout of its format
//! vector    one f32 per element: weights and biases of norms, biases of projections, slopes, sinks,
//!           corrections of routers
//! ```
//!
//! The number is exact: [`Decoder::memory_bytes`](crate::Decoder::memory_bytes) counts the same
//! while it packs. Bytes of the file would not do. Formats that name weights in groups (IQ1 to IQ3)
//! are unnamed when they are packed and grow up to 2.1 times, Q8_K becomes f32, and rows that end
//! in the middle of a panel are padded.

use std::collections::BTreeSet;

use pelton_quant::Compute;

use super::plan::{NormPlan, Part, Plan};
use super::quantization::whole;
use crate::arch::{ArchSpec, NormKind};
use crate::device::{Device, PackedSize, StoredMatrix};
use crate::error::ModelError;
use crate::files::ModelFiles;

/// Bytes of all weights once packed for a device and `compute`.
///
/// # Errors
///
/// As [`check`](super::check), and when a scale or zero point of a quantized matrix cannot be.
pub(crate) fn weight_bytes<D: Device>(
    files: &ModelFiles,
    spec: &ArchSpec,
    compute: Compute,
) -> Result<u64, ModelError> {
    of_plan::<D>(files, &Plan::padded(files, spec, D::HEAD_ROWS)?, spec, compute)
}

/// [`weight_bytes`] of a plan.
pub(super) fn of_plan<D: Device>(
    files: &ModelFiles,
    plan: &Plan<'_>,
    spec: &ArchSpec,
    compute: Compute,
) -> Result<u64, ModelError> {
    let mut n_bytes = 0_u64;
    for (run, compute) in plan.runs(compute) {
        n_bytes = n_bytes.saturating_add(of_run::<D>(files, run, compute)?.n_bytes);
    }
    Ok(n_bytes.saturating_add(size_of::<f32>() as u64 * n_vector_elements(plan, spec)))
}

/// The layouts that the matrices of a model are packed in.
///
/// # Errors
///
/// As [`weight_bytes`].
pub(crate) fn layouts<D: Device>(files: &ModelFiles) -> Result<BTreeSet<&'static str>, ModelError> {
    let plan = Plan::padded(files, &files.spec()?, D::HEAD_ROWS)?;
    let runs = plan.runs(Compute::Auto).into_iter();
    runs.map(|(run, compute)| Ok(of_run::<D>(files, run, compute)?.layout)).collect()
}

/// Layout and bytes of the matrix that these parts become.
pub(super) fn of_run<D: Device>(
    files: &ModelFiles,
    run: &[Part<'_>],
    compute: Compute,
) -> Result<PackedSize, ModelError> {
    let matrices = whole(run).filter(|_| run[0].turned.is_none());
    let stored = match &matrices {
        Some(matrices) => StoredMatrix::Quantized(matrices),
        None => {
            let shape = [run.iter().map(Part::n).sum(), run[0].k()];
            StoredMatrix::Tensor { dtype: run[0].dtype(), shape }
        }
    };
    let size = D::packed_size(&stored, compute).map_err(|source| {
        let file = files.tensors().origin().to_owned();
        ModelError::Format { file, source }
    })?;
    // A type without a format is refused when it is looked up, a ragged row when it is packed.
    Ok(size.unwrap_or(PackedSize { layout: "none", n_bytes: 0 }))
}

/// Elements of all vectors, those included that a file leaves out: ones and zeros.
fn n_vector_elements(plan: &Plan<'_>, spec: &ArchSpec) -> u64 {
    let rows_of = |norm: &NormPlan<'_>| norm.rows.n as u64;
    let per_norm = match spec.norm {
        NormKind::Rms => 1,
        NormKind::Layer { .. } => 2,
    };
    let norms = plan.norms().map(|norm| per_norm * rows_of(norm)).sum::<u64>();
    let vectors = plan.vectors().map(rows_of).sum::<u64>();
    let biases = plan.biases().map(|bias| bias.n() as u64).sum::<u64>();
    norms + vectors + biases + plan.n_made() as u64
}
