//! Cholesky factors of large matrices, in blocks that threads share.
//!
//! ```text
//! H = L Lᵀ    for each block of columns:   the factor of its diagonal
//!                                          the rows below: times the inverse of that factor
//!                                          what is right of both: less the product of those rows
//!
//! H⁻¹ = Uᵀ U  where J H J = L Lᵀ, J turns the order around:   U = J L⁻¹ J
//! ```
//!
//! So the upper factor of the inverse takes one factorization and one inverse of a triangle, and no
//! inverse of `H`: half the work, and fewer roundings. No bit depends on the number of threads.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis};

use super::SolveError;
use super::matrices::{matrix, matrix_mut, part};
use super::threads::for_chunks;

/// Columns that are factored at a time.
const BLOCK: usize = 256;
/// Rows that a thread takes at a time.
const ROWS: usize = 64;
/// Columns of a triangle that are solved at a time; all others are products of matrices.
const COLUMNS: usize = 32;

/// The upper triangle `U` of `H⁻¹ = Uᵀ U`, `[k, k]`; `None` where `H` is not positive definite.
/// `entry` gives `H`, of which the lower half is asked.
pub(super) fn upper_of_inverse(
    k: usize,
    n_threads: usize,
    entry: impl Fn(usize, usize) -> f64 + Sync,
) -> Option<Vec<f32>> {
    let mut turned = vec![0.0_f64; k * k];
    in_bands(&mut turned, k, n_threads, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(k).enumerate() {
            let i = first + i;
            (0..=i).for_each(|j| row[j] = entry(k - 1 - j, k - 1 - i));
        }
    });
    if !factor(&mut turned, k, n_threads) {
        return None;
    }
    let lower = matrix(&turned, k);
    let mut upper = vec![0.0_f32; k * k];
    in_bands(&mut upper, k, n_threads, |first, rows| {
        // Rows of the inverse from `k - first - n` to `k - first`, which end at the diagonal.
        let n = rows.len() / k;
        let end = k - first;
        let mut inverse = vec![0.0_f64; n * end];
        (0..n).for_each(|i| inverse[i * end + end - 1 - i] = 1.0);
        divide_by_lower(matrix_mut(&mut inverse, end), part(lower, 0..end, 0..end));
        for (row, inverse) in rows.chunks_exact_mut(k).zip(inverse.chunks_exact(end)) {
            row[first..].iter_mut().zip(inverse.iter().rev()).for_each(|(u, x)| *u = *x as f32);
        }
    });
    let is_sound = upper.iter().all(|x| x.is_finite()) && (0..k).all(|i| upper[i * k + i] > 0.0);
    is_sound.then_some(upper)
}

/// Puts the lower factor of a matrix `[k, k]` in the place of its lower half; `false` where it has none.
fn factor(a: &mut [f64], k: usize, n_threads: usize) -> bool {
    let mut below = Vec::new();
    for start in (0..k).step_by(BLOCK) {
        let end = k.min(start + BLOCK);
        let width = end - start;
        let (upper, rest) = a.split_at_mut(end * k);
        let rows = &mut upper[start * k..];
        let (before, _) = matrix_mut(rows, k).split_at(Axis(1), end);
        if !factor_block(before.split_at(Axis(1), start).1) {
            return false;
        }
        let diagonal = part(matrix(rows, k), 0..width, start..end);
        below.clear();
        below.resize((k - end) * width, 0.0_f64);
        in_bands(&mut below, width, n_threads, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                row.copy_from_slice(&rest[(first + i) * k + start..][..width]);
            }
            divide_by_transposed(matrix_mut(rows, width), diagonal);
        });
        let below = matrix(&below, width);
        in_bands(rest, k, n_threads, |first, rows| {
            let n = rows.len() / k;
            let (left, right) = matrix_mut(rows, k).split_at(Axis(1), end);
            let own = part(below, first..first + n, 0..width);
            left.split_at(Axis(1), start).1.assign(&own);
            let others = part(below, 0..first + n, 0..width);
            let mut right = right.split_at(Axis(1), first + n).0;
            general_mat_mul(-1.0, &own, &others.t(), 1.0, &mut right);
        });
    }
    true
}

/// Puts the lower factor of a small matrix in the place of its lower half; `false` where it has none.
fn factor_block(mut a: ArrayViewMut2<'_, f64>) -> bool {
    for j in 0..a.nrows() {
        let (known, mut own) = a.view_mut().split_at(Axis(1), j);
        let known = part(known.view(), j..own.nrows(), 0..j);
        let products = known.dot(&known.row(0));
        let mut column = own.column_mut(0);
        column.iter_mut().skip(j).zip(&products).for_each(|(x, before)| *x -= before);
        let square = column[j];
        // Not above zero when it is NaN.
        if !(square > 0.0 && square.is_finite()) {
            return false;
        }
        column.iter_mut().skip(j).for_each(|x| *x /= square.sqrt());
    }
    true
}

/// `X L⁻ᵀ` in place of `X`, where `L` is lower: each row is solved from its first column to its last.
fn divide_by_transposed(mut x: ArrayViewMut2<'_, f64>, l: ArrayView2<'_, f64>) {
    for start in (0..l.nrows()).step_by(COLUMNS) {
        let end = l.nrows().min(start + COLUMNS);
        let (known, rest) = x.view_mut().split_at(Axis(1), start);
        let mut own = rest.split_at(Axis(1), end - start).0;
        let before = part(l, start..end, 0..start);
        general_mat_mul(-1.0, &known, &before.t(), 1.0, &mut own);
        for mut row in own.rows_mut() {
            for j in start..end {
                let before: f64 = (start..j).map(|i| row[i - start] * l[(j, i)]).sum();
                row[j - start] = (row[j - start] - before) / l[(j, j)];
            }
        }
    }
}

/// `X L⁻¹` in place of `X`, where `L` is lower: each row is solved from its last column to its first.
fn divide_by_lower(mut x: ArrayViewMut2<'_, f64>, l: ArrayView2<'_, f64>) {
    for start in (0..l.nrows()).step_by(COLUMNS).rev() {
        let end = l.nrows().min(start + COLUMNS);
        let (rest, known) = x.view_mut().split_at(Axis(1), end);
        let mut own = rest.split_at(Axis(1), start).1;
        let after = part(l, end..l.nrows(), start..end);
        general_mat_mul(-1.0, &known, &after, 1.0, &mut own);
        for mut row in own.rows_mut() {
            for j in (start..end).rev() {
                let after: f64 = (j + 1..end).map(|i| row[i - start] * l[(i, j)]).sum();
                row[j - start] = (row[j - start] - after) / l[(j, j)];
            }
        }
    }
}

/// Calls `work` with the first row and the rows of each band of a matrix with rows of `width`.
fn in_bands<T: Send>(
    matrix: &mut [T],
    width: usize,
    n_threads: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let done = for_chunks(matrix, ROWS * width, n_threads, |band, rows| {
        work(band * ROWS, rows);
        Ok::<(), SolveError>(())
    });
    done.expect("invariant: nothing here fails");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs that depend on each other, and a little of the identity.
    fn moments(k: usize, damping: f64) -> Vec<f64> {
        let x = |i: usize, j: usize| ((i * 7919 + j * 104_729) % 1009) as f64 / 504.5 - 1.0;
        let entry = |i: usize, j: usize| (0..k / 2).map(|row| x(row, i) * x(row, j)).sum::<f64>();
        let damped = |i, j| entry(i, j) + if i == j { damping } else { 0.0 };
        (0..k * k).map(|at| damped(at / k, at % k)).collect()
    }

    #[test]
    fn the_factor_is_that_of_the_inverse_on_any_number_of_threads() {
        // Less than a block, whole blocks, and a rest.
        for k in [1, 100, 512, 700] {
            let h = moments(k, 0.5);
            let entry = |i: usize, j: usize| h[i * k + j];
            let [one, three] = [1, 3].map(|n| upper_of_inverse(k, n, entry).expect("a factor"));
            assert_eq!(one, three);
            assert!((0..k).all(|i| one[i * k..][..i].iter().all(|x| *x == 0.0)));
            // `U H Uᵀ` is the identity.
            let upper: Vec<f64> = one.iter().copied().map(f64::from).collect();
            for i in (0..k).step_by(37) {
                let row = &upper[i * k..][..k];
                let product: Vec<f64> =
                    (0..k).map(|j| (i..k).map(|m| row[m] * h[m * k + j]).sum()).collect();
                for j in (0..k).step_by(41) {
                    let found: f64 = (j..k).map(|m| product[m] * upper[j * k + m]).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((found - expected).abs() < 1e-3, "{k}: {i} {j} {found}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_factor() {
        for k in [3, 600] {
            let mut h = moments(k, 0.5);
            h[(k - 2) * k + k - 2] = -1.0;
            assert_eq!(upper_of_inverse(k, 2, |i, j| h[i * k + j]), None);
            h[(k - 2) * k + k - 2] = f64::NAN;
            assert_eq!(upper_of_inverse(k, 2, |i, j| h[i * k + j]), None);
        }
    }
}
