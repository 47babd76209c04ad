//! Bytes of weights in a format, as loading packs them or as a file has them.
//!
//! Formats apply as `pelton convert --format` applies them: to all matrices but those that are small and
//! that every token depends on (routers, learned positions, low-rank factors), which are f32, as all
//! vectors are. A matrix whose rows the format's blocks do not divide becomes q8_0, or f32.

use pelton_model::device::StoredMatrix;
use pelton_model::{Compute, CpuDevice, Device, MatrixRole, MatrixShape, ModelOutline};
use pelton_quant::{FORMATS, WeightFormat, fitting, packed_size};
use pelton_tensor::DType;
use serde::Serialize;

use crate::hardware::{Arithmetic, Hardware, HardwareKind};

/// How the weights are stored.
#[derive(Clone, Copy)]
pub enum Weights {
    /// All in one format of the registry.
    Format(&'static dyn WeightFormat),
    /// As they lie in a model's files, in one format or in several.
    Stored(Stored),
}

/// Weights as they lie in a model's files.
#[derive(Clone, Copy)]
pub struct Stored {
    /// Format of most bytes.
    pub prevailing: &'static dyn WeightFormat,
    /// Bytes of all weights once packed.
    pub packed_bytes: u64,
    /// Bytes of all tensors in the files.
    pub file_bytes: u64,
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl Weights {
    /// Name of the format, in lower case.
    pub fn name(&self) -> String {
        match self {
            Self::Format(format) => format.name().to_lowercase(),
            Self::Stored(stored) => format!("stored ({})", stored.prevailing.name().to_lowercase()),
        }
    }

    /// The format of most bytes.
    pub(crate) fn format(&self) -> &'static dyn WeightFormat {
        match self {
            Self::Format(format) => *format,
            Self::Stored(stored) => stored.prevailing,
        }
    }
}

/// A matrix with the bytes of one copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizedMatrix {
    pub(crate) shape: MatrixShape,
    pub(crate) n_bytes: f64,
    /// Name of the packed layout.
    pub(crate) layout: &'static str,
    pub(crate) arithmetic: Arithmetic,
}

/// Bytes of all weights.
#[derive(Clone, Debug, Serialize)]
pub struct WeightSizes {
    /// Name of the format.
    pub format: String,
    /// Bytes of all matrices and vectors.
    pub n_bytes: u64,
    /// Elements of all matrices and vectors.
    pub n_parameters: u64,
    /// Elements that one token goes through; all but the experts that are not chosen.
    pub n_active_parameters: u64,
    /// Bits per parameter, scales included.
    pub bits_per_weight: f64,
    /// Bytes that a step of one token reads: not the rows of tables that it does not look up, nor the
    /// experts that are not chosen.
    pub step_bytes: u64,
    #[serde(skip)]
    pub(crate) matrices: Vec<SizedMatrix>,
    #[serde(skip)]
    pub(crate) has_shared_head: bool,
}

impl WeightSizes {
    /// The sizes of a model of this specification on this machine.
    pub fn new(model: &ModelOutline, weights: &Weights, hardware: &Hardware) -> Self {
        let spec = &model.spec;
        let packs = hardware.kind == HardwareKind::Processor;
        let parameters = spec.parameters(if packs { CpuDevice::HEAD_ROWS } else { 1 });
        let mut matrices: Vec<SizedMatrix> = (parameters.matrices.iter())
            .map(|&shape| sized(shape, format_of(&shape, weights.format(), model), hardware))
            .collect();
        let vectors = 4 * parameters.n_vector_elements as u64;
        let of_matrices = |matrices: &[SizedMatrix]| {
            matrices.iter().map(|m| m.n_bytes * m.shape.n_copies as f64).sum::<f64>()
        };
        if let Weights::Stored(stored) = weights {
            let all = if packs { stored.packed_bytes } else { stored.file_bytes };
            let factor = all.saturating_sub(vectors) as f64 / of_matrices(&matrices);
            matrices.iter_mut().for_each(|matrix| matrix.n_bytes *= factor);
        }
        let unpadded = spec.parameters(1);
        let count = |elements: fn(&MatrixShape) -> u64| {
            unpadded.matrices.iter().map(elements).sum::<u64>() + unpadded.n_vector_elements as u64
        };
        let n_bytes = of_matrices(&matrices).round() as u64 + vectors;
        let n_parameters = count(MatrixShape::n_elements);
        let mut sizes = Self {
            format: weights.name(),
            n_bytes,
            n_parameters,
            n_active_parameters: count(MatrixShape::n_active_elements),
            bits_per_weight: 8.0 * n_bytes as f64 / n_parameters as f64,
            step_bytes: 0,
            matrices,
            has_shared_head: spec.has_shared_head(),
        };
        let active = sizes.multiplied().map(|m| m.n_bytes * m.shape.n_active as f64);
        sizes.step_bytes = active.sum::<f64>().round() as u64;
        sizes
    }

    /// The matrices that rows are multiplied with, the head included.
    pub(crate) fn multiplied(&self) -> impl Iterator<Item = &SizedMatrix> {
        self.matrices.iter().filter(|matrix| match matrix.shape.role {
            MatrixRole::Embedding => self.has_shared_head,
            MatrixRole::Table => false,
            _ => true,
        })
    }
}

/// The format of a matrix where `wished` is asked for.
fn format_of(
    shape: &MatrixShape,
    wished: &'static dyn WeightFormat,
    model: &ModelOutline,
) -> &'static dyn WeightFormat {
    match shape.role {
        MatrixRole::Turned if model.has_fused_keys && wished.block_len() > 1 => f32_format(),
        MatrixRole::Exact | MatrixRole::LowRank => fitting(f32_format(), shape.k),
        _ => fitting(wished, shape.k),
    }
}

fn f32_format() -> &'static dyn WeightFormat {
    pelton_quant::for_dtype(DType::F32).expect("invariant: f32 is a format")
}

fn sized(
    shape: MatrixShape,
    format: &'static dyn WeightFormat,
    hardware: &Hardware,
) -> SizedMatrix {
    let dims = [shape.n, shape.k];
    let arithmetic = arithmetic_of(format, hardware);
    if hardware.kind == HardwareKind::Accelerator {
        let bytes = format.dtype().bytes_for(shape.n.saturating_mul(shape.k)).unwrap_or(usize::MAX);
        return SizedMatrix { shape, n_bytes: bytes as f64, layout: "", arithmetic };
    }
    let stored = StoredMatrix::Tensor { dtype: format.dtype(), shape: dims };
    let size = CpuDevice::packed_size(&stored, Compute::Auto).ok().flatten();
    let size = size.expect("invariant: the format fits the rows");
    SizedMatrix { shape, n_bytes: size.n_bytes as f64, layout: size.layout, arithmetic }
}

/// The arithmetic that weights of a format are multiplied with.
fn arithmetic_of(format: &dyn WeightFormat, hardware: &Hardware) -> Arithmetic {
    match format.dtype() {
        DType::F32 => Arithmetic::F32,
        DType::F16 if hardware.kind == HardwareKind::Processor => Arithmetic::F32,
        DType::F16 => Arithmetic::F16,
        DType::Bf16 => Arithmetic::Bf16,
        dtype => {
            let packed = packed_size(dtype, [16, format.block_len().max(256)], Compute::Auto);
            let is_float = packed.is_some_and(|(layout, _)| !layout.needs_quantized_input());
            match hardware.kind == HardwareKind::Processor && is_float {
                true => Arithmetic::F32,
                false => hardware.quantized_by,
            }
        }
    }
}

/// Bytes of all weights in one format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormatSize {
    /// Name of the format, in lower case.
    pub format: String,
    /// Bytes of all weights.
    pub n_bytes: u64,
    /// Bits per parameter, scales included.
    pub bits_per_weight: f64,
}

/// Bytes of all weights in every format of the registry, the largest first.
pub fn sizes_by_format(model: &ModelOutline, hardware: &Hardware) -> Vec<FormatSize> {
    let size = |format: &&'static dyn WeightFormat| {
        let sizes = WeightSizes::new(model, &Weights::Format(*format), hardware);
        let WeightSizes { format, n_bytes, bits_per_weight, .. } = sizes;
        FormatSize { format, n_bytes, bits_per_weight }
    };
    let mut sizes: Vec<FormatSize> = FORMATS.iter().map(size).collect();
    sizes.sort_by_key(|size| std::cmp::Reverse(size.n_bytes));
    sizes
}
