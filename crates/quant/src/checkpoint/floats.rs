//! Matrices whose weights are computed row by row and have no code of their own.
//!
//! ```text
//! row(r, out)     out[j] = w[r][j], in f32
//! kind            the type that holds each of these exactly: bf16, f16 or f32
//! ```
//!
//! A vector of AQLM is eight weights, a block of QuIP# becomes weights by two transforms, and a
//! sparse checkpoint keeps floats with their places. Such a matrix is packed as floats: nothing is
//! lost, and a weight takes 2 or 4 bytes.

use pelton_kernels::WeightLayout;

/// Writes the weights of one row.
type RowWeights<'a> = dyn Fn(usize, &mut [f32]) + Send + Sync + 'a;

/// A matrix `[n, k]` of floats, opened.
pub(super) struct Floats<'a> {
    /// Inputs.
    pub(super) k: usize,
    pub(super) rows: Box<RowWeights<'a>>,
    /// [`WeightLayout::Bf16`], [`WeightLayout::F16`] or [`WeightLayout::F32`].
    pub(super) kind: WeightLayout,
}

impl Floats<'_> {
    /// The weights of row `row`.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as a row.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.k, "width of a row");
        (self.rows)(row, out);
    }

    /// Whether `layout` holds every weight exactly.
    pub(super) fn fits(&self, layout: WeightLayout) -> bool {
        layout == self.kind || layout == WeightLayout::F32
    }
}
