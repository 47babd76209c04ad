//! From the tensors of a quantized matrix to a packed one.

use std::ops::Range;
use std::sync::Arc;

use pelton_kernels::{Cpu, PackedMatrix, Rows, WeightLayout};
use pelton_tensor::TensorView;

use super::layouts::choose;
use super::matrix::Opened;
use crate::{Compute, QuantError, Result};

/// The tensors of one matrix, found and checked but not read.
pub(super) trait Stored<'a>: Send + Sync {
    /// Reads scales and zero points.
    fn open(&self) -> Result<Opened<'a>>;

    /// Blocks of inputs to pack one by one, where no layout holds the whole matrix; `None` where
    /// one does.
    fn split(&self) -> Option<Vec<Piece<'a>>> {
        None
    }
}

/// A block of inputs of a matrix.
pub(super) type Piece<'a> = (Range<usize>, Box<dyn Stored<'a> + 'a>);

/// One matrix as its method finds it.
pub(super) struct Found<'a> {
    /// See [`QuantizedTensor::order`].
    pub(super) order: Option<Vec<u32>>,
    /// The codes first.
    pub(super) views: Vec<TensorView<'a>>,
    pub(super) stored: Box<dyn Stored<'a> + 'a>,
}

/// A matrix `[n, k]` that a quantized checkpoint spreads over several tensors.
///
/// Shapes and types of the tensors agree with each other and with the matrix; their values are
/// checked when the matrix is packed.
pub struct QuantizedTensor<'a> {
    pub(super) words: String,
    pub(super) shape: [usize; 2],
    /// Inputs of the larger matrix that this is a block of, if it is one.
    pub(super) columns: Option<Range<usize>>,
    /// Stored rows that are the rows of this matrix, where it has only some of them.
    pub(super) rows: Option<Arc<[u32]>>,
    pub(super) found: Found<'a>,
}

impl<'a> QuantizedTensor<'a> {
    /// Description of its scheme: [`Scheme::words`](super::Scheme::words).
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The order in which the packed matrix has its inputs, where that is not their own: input `j`
    /// of the packed matrix is `order[j]`.
    ///
    /// Groups that share a scale are scattered over a row where GPTQ quantized the inputs in the
    /// order of their importance, and layouts need a group side by side. A product must read its
    /// activations in the same order.
    pub fn order(&self) -> Option<&[u32]> {
        self.found.order.as_deref()
    }

    /// Order of its inputs within the packed matrix.
    fn packing_order(&self) -> Option<&[u32]> {
        self.order().filter(|_| self.columns.is_none())
    }

    /// The same matrix with its inputs in their stored order, for products that cannot reorder
    /// their activations.
    #[must_use]
    pub fn in_own_order(mut self) -> Self {
        self.found.order = None;
        self
    }

    /// Some rows of it, in this order, as a matrix: one of several projections that are stored in
    /// one tensor.
    ///
    /// # Panics
    ///
    /// When the matrix does not have one of the rows.
    #[must_use]
    pub fn pick_rows(mut self, rows: impl IntoIterator<Item = u32>) -> Self {
        let n = self.shape[0];
        let source = |row: u32| {
            assert!((row as usize) < n, "row {row} of {n}");
            self.source_row(row as usize) as u32
        };
        let rows: Arc<[u32]> = rows.into_iter().map(source).collect();
        self.shape[0] = rows.len();
        self.rows = Some(rows);
        self
    }

    /// The stored row of row `row`.
    fn source_row(&self, row: usize) -> usize {
        self.rows.as_ref().map_or(row, |rows| rows[row] as usize)
    }

    /// The same matrix without the list of its tensors, which another matrix of these tensors
    /// keeps.
    #[must_use]
    pub fn without_views(mut self) -> Self {
        self.found.views.clear();
        self
    }

    /// The inputs of the larger matrix that this is a block of.
    pub fn columns(&self) -> Option<Range<usize>> {
        self.columns.clone()
    }

    /// Blocks of inputs `[n, k_i]` that together are this matrix, or the matrix itself.
    ///
    /// Layouts of fp8 have one scale per output. A matrix whose scale changes along its inputs is
    /// packed as one matrix per block, and its product is the sum of their products. The
    /// [`order`](Self::order) of a block names its inputs in a row. The last block has the tensors
    /// of all blocks.
    #[must_use]
    pub fn split(self) -> Vec<Self> {
        let Some(pieces) = self.found.stored.split() else { return vec![self] };
        let last = pieces.len() - 1;
        let piece = |(i, (columns, stored)): (usize, Piece<'a>)| Self {
            words: self.words.clone(),
            shape: [self.shape[0], columns.len()],
            found: Found {
                order: Some(columns.clone().map(|j| j as u32).collect()),
                views: if i == last { self.found.views.clone() } else { Vec::new() },
                stored,
            },
            columns: Some(columns),
            rows: self.rows.clone(),
        };
        pieces.into_iter().enumerate().map(piece).collect()
    }

    /// The tensors of the matrix, the codes first.
    pub fn views(&self) -> &[TensorView<'a>] {
        &self.found.views
    }

    /// Bytes of all its tensors.
    pub fn n_bytes(&self) -> usize {
        self.found.views.iter().map(|view| view.data.len()).sum()
    }

    /// All weights, row-major, the inputs in their stored order.
    ///
    /// # Errors
    ///
    /// Names a tensor with impossible values, such as a scale that is not finite.
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let matrix = self.found.stored.open()?;
        let [n, k] = self.shape;
        let mut out = vec![0.0; n * k];
        if k > 0 {
            let rows = out.chunks_exact_mut(k).enumerate();
            rows.for_each(|(row, out)| matrix.dequantize(self.source_row(row), out));
        }
        Ok(out)
    }
}

impl std::fmt::Debug for QuantizedTensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.found.views.iter().map(|view| view.name).collect();
        f.debug_struct("QuantizedTensor").field("shape", &self.shape).field("of", &names).finish()
    }
}

/// The layout in which `parts`, stacked by rows, will be packed.
///
/// # Errors
///
/// As [`pack_quantized`].
pub fn layout_of(parts: &[&QuantizedTensor<'_>], compute: Compute) -> Result<WeightLayout> {
    let matrices: Vec<_> =
        parts.iter().map(|part| part.found.stored.open()).collect::<Result<_>>()?;
    Ok(chosen(&matrices, parts.first().and_then(|part| part.packing_order()), compute))
}

fn chosen(matrices: &[Opened<'_>], order: Option<&[u32]>, compute: Compute) -> WeightLayout {
    match compute {
        Compute::Auto => choose(matrices, order),
        Compute::F32 => WeightLayout::F32,
    }
}

/// Packs `parts`, matrices `[n_i, k]`, stacked by rows into one matrix `[sum n_i, k]` whose inputs
/// are in the order of the parts.
///
/// Under [`Compute::Auto`] no weight changes; see the head of `checkpoint/layouts.rs`.
///
/// # Errors
///
/// Names a tensor with impossible values, such as a scale that is not finite; or the system refuses
/// the memory.
///
/// # Panics
///
/// When there is no part, or the parts differ in width or in the order of their inputs.
pub fn pack_quantized(
    cpu: &Cpu,
    parts: &[&QuantizedTensor<'_>],
    compute: Compute,
) -> Result<PackedMatrix> {
    let first = parts.first().expect("at least one matrix to pack");
    let (k, order) = (first.shape[1], first.packing_order());
    let mut matrices = Vec::with_capacity(parts.len());
    let mut first_rows = Vec::with_capacity(parts.len());
    let mut n = 0;
    for part in parts {
        assert_eq!(part.shape[1], k, "width of stacked matrices");
        assert_eq!(part.order(), first.order(), "order of the inputs of stacked matrices");
        matrices.push(part.found.stored.open()?);
        first_rows.push(n);
        n += part.shape[0];
    }
    let layout = chosen(&matrices, order, compute);
    let fill = |row: usize, out: &mut [u8]| {
        let idx = first_rows.partition_point(|&first| first <= row) - 1;
        matrices[idx].fill(layout, order, parts[idx].source_row(row - first_rows[idx]), out);
    };
    PackedMatrix::pack_bands(cpu, layout, [n, k], Rows::Made(&fill), &mut |_| {})
        .map_err(|source| QuantError::Memory { source })
}
