//! Matrices stored as a tensor of bytes in their own shape, with scales: fp8 and int8.
//!
//! ```text
//! weight  fp8 or i8 [n, k]
//! scale   one for all [] [1] [1, 1]; one per output [n] [n, 1]; one per block [n / b0, k / b1],
//!         rounded up
//! w[n][j] = scale * weight[n][j], or scale * (weight[n][j] - zero)
//! ```
//!
//! Shared by the methods `fp8`, `fbgemm_fp8` and `compressed-tensors`, which differ in names.

use std::ops::Range;

use pelton_tensor::{DType, TensorView};

use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::{Found, Piece, Stored};
use super::tensors::{FLOATS, scales, wrong, wrong_type};
use crate::Result;

/// The weights that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sharing {
    /// All weights, or all weights of an output, depending on the shape of the scales.
    TensorOrRow,
    /// Blocks of this number of outputs by this number of inputs.
    Blocks([usize; 2]),
}

impl Sharing {
    /// The groups of scales of this shape for a matrix `[n, k]`; `None` where it does not fit.
    fn groups(self, scale_shape: &[usize], [n, k]: [usize; 2]) -> Option<Groups> {
        let blocks = |rows: usize, columns: usize| {
            Some(Groups::Blocks { rows: rows.max(1), columns: columns.max(1) })
        };
        match self {
            Self::TensorOrRow if scale_shape.iter().all(|len| *len == 1) => blocks(n, k),
            Self::TensorOrRow if scale_shape == [n] || scale_shape == [n, 1] => blocks(1, k),
            Self::Blocks([rows, columns])
                if scale_shape == [n.div_ceil(rows), k.div_ceil(columns)] =>
            {
                blocks(rows, columns)
            }
            _ => None,
        }
    }

    fn expected(self, [n, k]: [usize; 2]) -> String {
        match self {
            Self::TensorOrRow => format!("shape [], [1], [{n}] or [{n}, 1]"),
            Self::Blocks([rows, columns]) => {
                format!("shape [{}, {}]", n.div_ceil(rows), k.div_ceil(columns))
            }
        }
    }
}

/// The tensors of one matrix.
#[derive(Clone)]
pub(super) struct PlainCodes<'a> {
    pub(super) shape: [usize; 2],
    pub(super) weight: TensorView<'a>,
    pub(super) scale: TensorView<'a>,
    /// Zero points of type I8, in the shape of the scales.
    pub(super) zero: Option<TensorView<'a>>,
    pub(super) sharing: Sharing,
    /// Divisor of all scales.
    pub(super) divisor: f32,
}

impl<'a> PlainCodes<'a> {
    /// The matrix, its tensors checked against each other.
    pub(super) fn checked(self) -> Result<Found<'a>> {
        let Self { shape, weight, .. } = &self;
        if weight.shape != shape {
            return Err(wrong(weight, format!("shape {shape:?}"), format!("{:?}", weight.shape)));
        }
        self.with_scales()
    }

    /// As [`PlainCodes::checked`], for codes of any shape.
    pub(super) fn with_scales(self) -> Result<Found<'a>> {
        let Self { shape, weight, scale, zero, sharing, .. } = &self;
        if meaning(weight.dtype).is_none() {
            return Err(wrong_type(weight, &[DType::F8E4M3, DType::F8E5M2, DType::I8]));
        }
        for view in std::iter::once(scale).chain(zero) {
            if sharing.groups(view.shape, *shape).is_none() {
                return Err(wrong(view, sharing.expected(*shape), format!("{:?}", view.shape)));
            }
        }
        if !FLOATS.contains(&scale.dtype) {
            return Err(wrong_type(scale, FLOATS));
        }
        if let Some(zero) = zero.filter(|zero| zero.dtype != DType::I8) {
            return Err(wrong_type(&zero, &[DType::I8]));
        }
        let views = [Some(*weight), Some(*scale), *zero].into_iter().flatten().collect();
        Ok(Found { order: None, views, stored: Box::new(self) })
    }
}

/// Meaning of the codes of a type, where bytes of I8 have 128 added.
fn meaning(dtype: DType) -> Option<Meaning> {
    match dtype {
        DType::F8E4M3 => Some(Meaning::E4M3),
        DType::F8E5M2 => Some(Meaning::E5M2),
        DType::I8 => Some(Meaning::Integer { most: 255 }),
        _ => None,
    }
}

impl<'a> PlainCodes<'a> {
    /// Code of the number 0, which is also the bits by which a stored byte differs from its code.
    pub(super) fn flip(&self) -> u8 {
        if self.weight.dtype == DType::I8 { 0x80 } else { 0 }
    }

    /// Scales, zero points and codes.
    pub(super) fn matrix(&self) -> Result<Matrix<'a>> {
        let Self { shape, weight, scale, zero, sharing, divisor } = self;
        let groups = |view: &TensorView<'_>| {
            sharing.groups(view.shape, *shape).expect("invariant: shapes were checked")
        };
        let (data, k) = (weight.data, shape[1]);
        let flip = self.flip();
        let mut values = scales(scale)?;
        if *divisor != 1.0 {
            values.iter_mut().for_each(|scale| *scale /= divisor);
        }
        let zeros = match zero {
            Some(zero) => Shared {
                values: zero.data.iter().map(|z| f32::from(z.cast_signed()) + 128.0).collect(),
                groups: groups(zero),
            },
            None => Shared::all(f32::from(flip), *shape),
        };
        Ok(Matrix {
            shape: *shape,
            codes: Box::new(move |row, out| {
                let codes = &data[row * k..(row + 1) * k];
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = code ^ flip);
            }),
            meaning: meaning(weight.dtype).expect("invariant: the type was checked"),
            scales: Shared { values, groups: groups(scale) },
            zeros,
            divisor: 1.0,
        })
    }
}

impl<'a> Stored<'a> for PlainCodes<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        self.matrix().map(Opened::from)
    }

    fn split(&self) -> Option<Vec<Piece<'a>>> {
        let Sharing::Blocks([rows, columns]) = self.sharing else { return None };
        let k = self.shape[1];
        if self.weight.dtype == DType::I8 || columns >= k {
            return None;
        }
        let pieces = (0..k).step_by(columns).map(|start| {
            let range = start..k.min(start + columns);
            let block = Block { whole: self.clone(), rows, columns: range.clone() };
            (range, Box::new(block) as Box<dyn Stored<'a> + 'a>)
        });
        Some(pieces.collect())
    }
}

/// The inputs of a matrix of floats that share scales.
struct Block<'a> {
    whole: PlainCodes<'a>,
    /// Outputs that share one.
    rows: usize,
    columns: Range<usize>,
}

impl<'a> Stored<'a> for Block<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let Matrix { shape: [n, k], codes: _, meaning, scales, .. } = self.whole.matrix()?;
        let (data, start) = (self.whole.weight.data, self.columns.start);
        let shape = [n, self.columns.len()];
        let of_rows = (0..n).step_by(self.rows).map(|row| scales.groups.index(k, row, start));
        Ok(Matrix {
            shape,
            codes: Box::new(move |row, out| {
                out.copy_from_slice(&data[row * k + start..][..out.len()]);
            }),
            meaning,
            scales: Shared {
                values: of_rows.map(|index| scales.values[index]).collect(),
                groups: Groups::Blocks { rows: self.rows, columns: self.columns.len() },
            },
            zeros: Shared::all(0.0, shape),
            divisor: 1.0,
        }
        .into())
    }
}
