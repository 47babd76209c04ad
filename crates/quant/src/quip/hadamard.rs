//! Hadamard matrices of the orders that models have: `H H^T = n I`, all entries 1 or -1.
//!
//! ```text
//! H(n) = F(f) ⊗ S(n / f)     S: Sylvester's, of a power of two; F: of the first order of the list that
//!                            divides n
//! f = 12, 20, 60, 108, 140        Paley I:   a border of ones, I - Q within
//! f = 28, 36                      Paley II:  [[C + I, C - I], [C - I, -C - I]]
//! f = 52, 116, 124, 156, 172      Williamson: four circulant matrices A, B, C, D in the pattern below
//! ```
//!
//! `Q[i][j]` is 1 where `j - i` is a square modulo the prime, -1 where it is not, 0 on the
//! diagonal; `C` is `Q` with a border of ones. The order of the list decides: of a width that
//! several divide the first is taken, and what is left must be a power of two. Products are sums
//! and differences in f64 without a factor: exact for what they are used for.
//!
//! # Sources
//!
//! Paley, *On orthogonal matrices*, 1933; Williamson, *Hadamard's determinant theorem and the sum
//! of four squares*, 1944. Which of several equivalent matrices is meant follows N. J. A. Sloane's
//! library of Hadamard matrices.

/// Orders of factors in the order in which they are tried.
const ORDERS: &[usize] = &[172, 156, 140, 124, 116, 108, 60, 52, 36, 28, 20, 12];

/// First rows of Williamson's circulants: bit `j` is set where entry `j` is -1.
const WILLIAMSON: &[(usize, [u64; 4])] = &[
    (52, [0x161a, 0x1c0e, 0xb34, 0x1ede]),
    (116, [0xda2_116c, 0x25c_0e90, 0x1734_0b3a, 0x735_eb38]),
    (124, [0x62de_7b46, 0x62de_7b46, 0x7c56_6a3e, 0x3a9_95c0]),
    (156, [0x1a_fb3c_df58, 0xe_cf5a_f370, 0x19_75bd_ae98, 0x72_be24_7d4e]),
    (172, [0x730_a264_50ce, 0x207_ac93_5e04, 0x14d_42f4_2b28, 0x385_b3fc_da1c]),
];

/// Index and sign of the circulant in each place.
const PATTERN: [[(usize, f64); 4]; 4] = [
    [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)],
    [(1, -1.0), (0, 1.0), (3, -1.0), (2, 1.0)],
    [(2, -1.0), (3, 1.0), (0, 1.0), (1, -1.0)],
    [(3, -1.0), (2, -1.0), (1, 1.0), (0, 1.0)],
];

/// The matrix of one width.
#[derive(Debug)]
pub(crate) struct Hadamard {
    n: usize,
    order: usize,
    /// `[order, order]`.
    factor: Vec<f64>,
}

impl Hadamard {
    /// The matrix of width `n`; `None` where there is none here.
    pub(crate) fn new(n: usize) -> Option<Self> {
        let order = ORDERS.iter().copied().find(|order| n.is_multiple_of(*order)).unwrap_or(1);
        let is_there = n > 0 && (n / order).is_power_of_two();
        is_there.then(|| Self { n, order, factor: factor(order) })
    }

    /// Its transpose, which is the inverse times the width.
    #[must_use]
    pub(crate) fn transposed(&self) -> Self {
        let Self { n, order, factor } = self;
        let factor = (0..order * order).map(|at| factor[at % order * order + at / order]).collect();
        Self { n: *n, order: *order, factor }
    }

    /// The matrix times each column of `v`, `[n, width]`: `out[i] = sum of H[i][j] v[j]`.
    ///
    /// # Panics
    ///
    /// When `v` has not as many rows as the matrix is wide.
    pub(crate) fn apply(&self, v: &mut [f64], width: usize) {
        assert_eq!(v.len(), self.n * width, "rows of the transform");
        let len = self.n / self.order * width;
        let mut stride = width;
        while stride < len {
            for block in v.chunks_exact_mut(2 * stride) {
                let (low, high) = block.split_at_mut(stride);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            stride *= 2;
        }
        if self.order == 1 {
            return;
        }
        let input = v.to_vec();
        for (row, out) in self.factor.chunks_exact(self.order).zip(v.chunks_exact_mut(len)) {
            out.fill(0.0);
            for (sign, input) in row.iter().zip(input.chunks_exact(len)) {
                out.iter_mut().zip(input).for_each(|(out, x)| *out += sign * x);
            }
        }
    }
}

/// 1 where `x` is a square modulo the prime `q`, -1 where it is not, 0 for a multiple of `q`.
fn character(x: usize, q: usize) -> f64 {
    match x % q {
        0 => 0.0,
        x if (1..q).any(|y| y * y % q == x) => 1.0,
        _ => -1.0,
    }
}

/// The factor of this order, row-major.
fn factor(order: usize) -> Vec<f64> {
    let entry: Box<dyn Fn(usize, usize) -> f64> = match order {
        28 | 36 => {
            let (half, q) = (order / 2, order / 2 - 1);
            let conference = move |i: usize, j: usize| match (i, j) {
                (0, 0) => 0.0,
                (0, _) | (_, 0) => 1.0,
                (i, j) => character(j + q - i, q),
            };
            Box::new(move |i, j| {
                let (c, one) = (conference(i % half, j % half), f64::from(i % half == j % half));
                match (i / half, j / half) {
                    (0, 0) => c + one,
                    (1, 1) => -c - one,
                    _ => c - one,
                }
            })
        }
        12 | 20 | 60 | 108 | 140 => {
            let q = order - 1;
            Box::new(move |i, j| match (i, j) {
                (_, 0) => 1.0,
                (0, _) => -1.0,
                (i, j) if i == j => 1.0,
                (i, j) => -character(j + q - i, q),
            })
        }
        _ => match WILLIAMSON.iter().find(|(own, _)| *own == order) {
            None => Box::new(|_, _| 1.0),
            Some((_, rows)) => {
                let size = order / 4;
                Box::new(move |i, j| {
                    let (which, sign) = PATTERN[i / size][j / size];
                    let bit = rows[which] >> ((j % size + size - i % size) % size) & 1;
                    if bit == 1 { -sign } else { sign }
                })
            }
        },
    };
    (0..order * order).map(|at| entry(at / order, at % order)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_factor_are_orthogonal_and_signs() {
        for &order in ORDERS {
            let factor = factor(order);
            assert!(factor.iter().all(|x| x.abs() == 1.0), "{order}");
            let row = |i: usize| &factor[i * order..][..order];
            for i in 0..order {
                for j in 0..order {
                    let dot: f64 = row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum();
                    assert_eq!(dot, if i == j { order as f64 } else { 0.0 }, "{order} {i} {j}");
                }
            }
        }
    }

    #[test]
    fn factors_are_those_of_the_published_library() {
        // Equivalent matrices are many. Signs as bits (set where -1), row by row, hashed by FNV-1a.
        let hash = |order| {
            factor(order).iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, sign| {
                (hash ^ u64::from(*sign < 0.0)).wrapping_mul(0x100_0000_01b3)
            })
        };
        for (order, expected) in HASHES {
            assert_eq!(hash(*order), *expected, "{order}");
        }
        assert_eq!(HASHES.len(), ORDERS.len());
    }

    #[test]
    fn transforms_are_the_products_of_their_factors() {
        for n in [1, 2, 64, 12, 48, 320, 28, 344] {
            let hadamard = Hadamard::new(n).expect("a width");
            let rows: Vec<Vec<f64>> = (0..n)
                .map(|j| {
                    let mut unit = vec![0.0; n];
                    unit[j] = 1.0;
                    hadamard.apply(&mut unit, 1);
                    unit
                })
                .collect();
            let len = n / hadamard.order;
            for (j, row) in rows.iter().enumerate() {
                for (i, got) in row.iter().enumerate() {
                    let is_odd = ((i % len) & (j % len)).count_ones() % 2 == 1;
                    let factor = hadamard.factor[i / len * hadamard.order + j / len];
                    assert_eq!(*got, if is_odd { -factor } else { factor }, "{n} {i} {j}");
                }
            }
        }
    }

    #[test]
    fn columns_are_transformed_side_by_side_and_the_transpose_undoes_it() {
        for n in [64, 48, 56, 344] {
            let hadamard = Hadamard::new(n).expect("a width");
            let value = |i: usize, j: usize| ((i * 37 + j * 11) % 29) as f64 - 14.0;
            let mut panel: Vec<f64> = (0..n * 3).map(|at| value(at / 3, at % 3)).collect();
            hadamard.apply(&mut panel, 3);
            for j in 0..3 {
                let mut column: Vec<f64> = (0..n).map(|i| value(i, j)).collect();
                hadamard.apply(&mut column, 1);
                assert!((0..n).all(|i| panel[i * 3 + j] == column[i]), "{n} {j}");
                hadamard.transposed().apply(&mut column, 1);
                assert!((0..n).all(|i| column[i] == n as f64 * value(i, j)), "{n} {j}");
            }
        }
    }

    #[test]
    fn widths_without_a_matrix_are_none() {
        for n in [0, 3, 56 * 3, 100, 11 * 64, 172 * 3] {
            assert!(Hadamard::new(n).is_none(), "{n}");
        }
    }

    const HASHES: &[(usize, u64)] = &[
        (172, 0x5adf_cf03_4eff_aca9),
        (156, 0x54c7_629c_9bee_46a9),
        (140, 0x951e_1965_629c_5549),
        (124, 0xc11a_82a0_6eca_af99),
        (116, 0xb65b_5bbb_e61b_1c19),
        (108, 0xd56a_ff72_1ef3_1549),
        (60, 0xb138_7576_8b41_ac29),
        (52, 0xe167_e549_d5b9_8009),
        (36, 0x1030_63bb_626f_2e09),
        (28, 0xb4f5_57fd_8965_9049),
        (20, 0xd22c_29e2_feda_ef21),
        (12, 0x472d_1adc_7b0d_1269),
    ];
}
