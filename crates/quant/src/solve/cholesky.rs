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

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Llt;
use faer::linalg::triangular_solve::{
    solve_lower_triangular_in_place, solve_upper_triangular_in_place,
};
use faer::{Accum, MatMut, MatRef, Par, Side};

use super::SolveError;
use super::threads::for_chunks;

/// Columns that are factored at a time.
const BLOCK: usize = 256;
/// Rows that a thread takes at a time.
const ROWS: usize = 64;

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
    let lower = MatRef::from_row_major_slice(&turned, k, k);
    let mut upper = vec![0.0_f32; k * k];
    in_bands(&mut upper, k, n_threads, |first, rows| {
        // Rows of the inverse from `k - first - n` to `k - first`, which end at the diagonal.
        let n = rows.len() / k;
        let end = k - first;
        let mut inverse = vec![0.0_f64; end * n];
        let mut columns = MatMut::from_column_major_slice_mut(&mut inverse, end, n);
        (0..n).for_each(|i| columns[(end - 1 - i, i)] = 1.0);
        let triangle = lower.submatrix(0, 0, end, end).transpose();
        solve_upper_triangular_in_place(triangle, columns.as_mut(), Par::Seq);
        for (i, row) in rows.chunks_exact_mut(k).enumerate() {
            (first + i..k).for_each(|j| row[j] = columns[(k - 1 - j, i)] as f32);
        }
    });
    let is_sound = upper.iter().all(|x| x.is_finite()) && (0..k).all(|i| upper[i * k + i] > 0.0);
    is_sound.then_some(upper)
}

/// Puts the lower factor of a matrix `[k, k]` in the place of its lower half; `false` where it has none.
fn factor(a: &mut [f64], k: usize, n_threads: usize) -> bool {
    let (mut below, mut turned) = (Vec::new(), Vec::new());
    for start in (0..k).step_by(BLOCK) {
        let end = k.min(start + BLOCK);
        let width = end - start;
        let diagonal =
            MatRef::from_row_major_slice(&*a, k, k).submatrix(start, start, width, width);
        let Ok(diagonal) = Llt::new(diagonal, Side::Lower) else { return false };
        for i in 0..width {
            (0..=i).for_each(|j| a[(start + i) * k + start + j] = diagonal.L()[(i, j)]);
        }
        let (_, rest) = a.split_at_mut(end * k);
        below.clear();
        below.resize((k - end) * width, 0.0_f64);
        in_bands(&mut below, width, n_threads, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                row.copy_from_slice(&rest[(first + i) * k + start..][..width]);
            }
            let n = rows.len() / width;
            let columns = MatMut::from_row_major_slice_mut(rows, n, width).transpose_mut();
            solve_lower_triangular_in_place(diagonal.L(), columns, Par::Seq);
        });
        // Products are fast where both sides lie in the order in which they are read.
        turned.clear();
        turned.resize(below.len(), 0.0_f64);
        in_bands(&mut turned, (k - end).max(1), n_threads, |first, rows| {
            for (j, row) in rows.chunks_exact_mut(k - end).enumerate() {
                let column = below[first + j..].iter().step_by(width);
                row.iter_mut().zip(column).for_each(|(out, x)| *out = *x);
            }
        });
        let left = MatRef::from_row_major_slice(&below, k - end, width);
        let right = MatRef::from_row_major_slice(&turned, width, k - end);
        in_bands(rest, k, n_threads, |first, rows| {
            let n = rows.len() / k;
            for (i, row) in rows.chunks_exact_mut(k).enumerate() {
                row[start..end].copy_from_slice(&below[(first + i) * width..][..width]);
            }
            let own = left.subrows(first, n);
            let out = MatMut::from_row_major_slice_mut(rows, n, k).subcols_mut(end, first + n);
            let others = right.subcols(0, first + n);
            matmul(out, Accum::Add, own, others, -1.0, Par::Seq);
        });
    }
    true
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
