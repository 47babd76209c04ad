//! Slices as matrices, and parts of these.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2, Axis};

/// Whole rows of `width` numbers as a matrix.
///
/// # Panics
///
/// When these are no whole rows.
pub(super) fn matrix<T>(rows: &[T], width: usize) -> ArrayView2<'_, T> {
    ArrayView2::from_shape((n_rows(rows.len(), width), width), rows).expect("whole rows")
}

/// The same, to write into.
///
/// # Panics
///
/// When these are no whole rows.
pub(super) fn matrix_mut<T>(rows: &mut [T], width: usize) -> ArrayViewMut2<'_, T> {
    ArrayViewMut2::from_shape((n_rows(rows.len(), width), width), rows).expect("whole rows")
}

/// A matrix of no columns has no rows.
fn n_rows(n: usize, width: usize) -> usize {
    n.checked_div(width).unwrap_or(0)
}

/// Some rows and columns of a matrix.
///
/// # Panics
///
/// When the matrix has fewer.
pub(super) fn part<T>(
    whole: ArrayView2<'_, T>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> ArrayView2<'_, T> {
    let rows = whole.split_at(Axis(0), rows.end).0.split_at(Axis(0), rows.start).1;
    rows.split_at(Axis(1), columns.end).0.split_at(Axis(1), columns.start).1
}
