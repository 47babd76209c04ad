//! Meaning of the stored bits of a quantized matrix: the specification that most methods share.
//!
//! ```text
//! w[row][j] = scale[row][j] * (number(code[row][j]) - zero[row][j])      in f32, in this order
//! ```
//!
//! where a scale of NVFP4 is the stored one divided by the divisor of its matrix, and of every
//! other method the stored one.
//!
//! Methods differ in the places of codes, scales and zero points in their tensors, in the meaning
//! of a code, and in the weights that share a scale. The first is a function of the method
//! ([`Matrix::codes`]), the second a [`Meaning`], the third a [`Groups`]. Every number is widened
//! exactly, `number - zero` is exact for whole zero points, and one rounding remains: that of the
//! product, and only where the scale has more bits than a product of f32 holds.

use pelton_kernels::codes::{e4m3, e5m2};

use crate::checkpoint::floats::Floats;

/// Writes the codes of one row.
type RowCodes<'a> = dyn Fn(usize, &mut [u8]) + Send + Sync + 'a;

/// Meaning of a code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    /// The code itself, a whole number from 0 to `most`.
    Integer { most: u8 },
    /// An 8-bit float with 4 bits of exponent and no infinities.
    E4M3,
    /// An 8-bit float with 5 bits of exponent.
    E5M2,
    /// An entry of a table.
    Table([f32; 16]),
}

impl Meaning {
    pub(super) fn number(&self, code: u8) -> f32 {
        match self {
            Self::Integer { .. } => f32::from(code),
            Self::E4M3 => e4m3(code),
            Self::E5M2 => e5m2(code),
            Self::Table(table) => table[usize::from(code & 15)],
        }
    }
}

/// The weights that share a number.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Groups {
    /// One for each `rows` by `columns` weights, row-major.
    Blocks { rows: usize, columns: usize },
    /// In each row, input `j` belongs to group `of[j]` of `n`.
    Mapped { of: Vec<u32>, n: usize },
    /// One for each `len` weights of the matrix read row by row.
    Flat { len: usize },
    /// One for each `n`th weight of the matrix read row by row.
    Strided { n: usize },
}

impl Groups {
    /// Index of the number of weight `[row, j]` of a matrix `k` wide.
    pub(super) fn index(&self, k: usize, row: usize, j: usize) -> usize {
        match self {
            Self::Blocks { rows, columns } => row / rows * k.div_ceil(*columns) + j / columns,
            Self::Mapped { of, n } => row * n + of[j] as usize,
            Self::Flat { len } => (row * k + j) / len,
            Self::Strided { n } => (row * k + j) % n,
        }
    }

    /// Whether each run of `len` inputs, taken in `order`, has one number in every row.
    pub(super) fn are_uniform(&self, k: usize, len: usize, order: Option<&[u32]>) -> bool {
        let at = |j: usize| order.map_or(j, |order| order[j] as usize);
        match self {
            Self::Flat { len: own } => {
                order.is_none() && own.is_multiple_of(len) && k.is_multiple_of(len)
            }
            _ => (0..k).all(|j| {
                let first = self.index(k, 0, at(j / len * len));
                self.index(k, 0, at(j)) == first
            }),
        }
    }
}

/// Numbers that weights share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shared {
    pub(super) values: Vec<f32>,
    pub(super) groups: Groups,
}

impl Shared {
    /// The same number for all weights of a matrix `[n, k]`.
    pub(super) fn all(value: f32, [n, k]: [usize; 2]) -> Self {
        let groups = Groups::Blocks { rows: n.max(1), columns: k.max(1) };
        Self { values: vec![value], groups }
    }
}

/// A matrix that was opened: a code per weight, or the weights themselves.
///
/// Methods whose codes stand for several weights at once, or whose weights are transformed after
/// decoding, give the weights themselves.
pub(super) enum Opened<'a> {
    Codes(Matrix<'a>),
    Floats(Floats<'a>),
}

impl<'a> From<Matrix<'a>> for Opened<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Codes(matrix)
    }
}

impl<'a> From<Floats<'a>> for Opened<'a> {
    fn from(floats: Floats<'a>) -> Self {
        Self::Floats(floats)
    }
}

impl Opened<'_> {
    /// The weights of one row: the specification.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as a row.
    pub(super) fn dequantize(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Codes(matrix) => matrix.dequantize(row, out),
            Self::Floats(floats) => floats.row(row, out),
        }
    }
}

/// A quantized matrix `[n, k]`, opened: scales and zero points in memory, codes where they lie.
pub(super) struct Matrix<'a> {
    pub(super) shape: [usize; 2],
    pub(super) codes: Box<RowCodes<'a>>,
    pub(super) meaning: Meaning,
    pub(super) scales: Shared,
    pub(super) zeros: Shared,
    /// Divisor of all scales: 1 except for NVFP4.
    pub(super) divisor: f32,
}

impl Matrix<'_> {
    pub(super) fn scale(&self, row: usize, j: usize) -> f32 {
        self.stored_scale(row, j) / self.divisor
    }

    /// The scale before it is divided.
    pub(super) fn stored_scale(&self, row: usize, j: usize) -> f32 {
        self.scales.values[self.scales.groups.index(self.shape[1], row, j)]
    }

    pub(super) fn zero(&self, row: usize, j: usize) -> f32 {
        self.zeros.values[self.zeros.groups.index(self.shape[1], row, j)]
    }

    /// The weights of one row: the specification.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as a row.
    pub(super) fn dequantize(&self, row: usize, out: &mut [f32]) {
        let k = self.shape[1];
        assert_eq!(out.len(), k, "width of a row");
        let mut codes = vec![0; k];
        (self.codes)(row, &mut codes);
        for (j, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let number = self.meaning.number(code);
            *out = self.scale(row, j) * (number - self.zero(row, j));
        }
    }
}
