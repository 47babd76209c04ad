//! Weights of which two in four are zero: the compressor `sparse-24-bitmask`.
//!
//! ```text
//! compressed  [n, k / 2]       the weights that are kept, in the order of their inputs
//! bitmask     u8 [n, k / 8]    bit `j % 8` of byte `j / 8`: whether input `j` is kept; two of each four
//! shape       i64 [2, 1]       n, k
//! ```
//!
//! A matrix of floats is packed as bf16, f16 or f32 with its zeros, so it takes twice the bytes
//! that are stored. A matrix of fp8 or int8 has scales beside it and is packed as a dense quantized
//! matrix. No kernel here skips zeros.

use half::{bf16, f16};
use pelton_kernels::WeightLayout;
use pelton_tensor::{DType, TensorView};

use crate::Result;
use crate::checkpoint::floats::Floats;
use crate::checkpoint::matrix::{Matrix, Opened};
use crate::checkpoint::packing::{Found, Stored};
use crate::checkpoint::plain_codes::PlainCodes;
use crate::checkpoint::tensors::{FLOATS, Tensors, stated_shape, wrong, wrong_type};
use crate::checkpoint::unpackable;

/// A matrix with half of its weights stored, and the mask of their places.
#[derive(Clone)]
pub(super) struct Sparse<'a> {
    shape: [usize; 2],
    kept: TensorView<'a>,
    mask: TensorView<'a>,
    stated: TensorView<'a>,
}

impl<'a> Sparse<'a> {
    /// The sparse matrix of a module; `None` where it has none.
    pub(super) fn find(tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Self>> {
        let Some(kept) = tensors.get("compressed") else { return Ok(None) };
        let [n, k] = shape;
        if !k.is_multiple_of(8) {
            return Err(unpackable(
                tensors,
                shape,
                "a matrix whose rows are whole bytes of a mask",
            ));
        }
        if kept.shape != [n, k / 2] {
            let got = format!("{:?}", kept.shape);
            return Err(wrong(&kept, format!("shape {:?}", [n, k / 2]), got));
        }
        let mask = tensors.need("bitmask", &[DType::U8], &[n, k / 8])?;
        let stated = tensors.need("shape", &[DType::I64, DType::I32], &[2, 1])?;
        if stated_shape(&stated) != shape.map(|len| len as i64) {
            let got = format!("{:?}", stated_shape(&stated));
            return Err(wrong(&stated, format!("{shape:?}"), got));
        }
        Ok(Some(Self { shape, kept, mask, stated }))
    }

    /// Type of the kept weights.
    pub(super) fn dtype(&self) -> DType {
        self.kept.dtype
    }

    /// The kept weights.
    pub(super) fn kept(&self) -> TensorView<'a> {
        self.kept
    }

    /// This as a matrix of floats.
    pub(super) fn floats(self) -> Result<Found<'a>> {
        if !FLOATS.contains(&self.kept.dtype) {
            return Err(wrong_type(&self.kept, FLOATS));
        }
        let views = vec![self.kept, self.mask, self.stated];
        Ok(Found { order: None, views, stored: Box::new(self) })
    }

    /// This as a matrix of codes with the scales of `scaled`, whose `weight` is `compressed`.
    pub(super) fn codes(self, scaled: PlainCodes<'a>) -> Result<Found<'a>> {
        let mut found = scaled.clone().with_scales()?;
        found.views.extend([self.mask, self.stated]);
        found.stored = Box::new(SparseCodes { sparse: self, scaled });
        Ok(found)
    }

    /// Checks that every row keeps two of each four weights.
    fn check_mask(&self) -> Result<()> {
        let is_whole = |byte: &u8| (byte & 15).count_ones() == 2 && (byte >> 4).count_ones() == 2;
        match self.mask.data.iter().position(|byte| !is_whole(byte)) {
            None => Ok(()),
            Some(i) => {
                let got = format!("{:#010b} at byte {i}", self.mask.data[i]);
                Err(wrong(&self.mask, "two of each four bits", got))
            }
        }
    }
}

/// Writes the kept weights of a row of `k` to their places by the mask, and no other weight.
fn scatter<const N: usize>(
    kept: &[u8],
    mask: &[u8],
    [row, k]: [usize; 2],
    mut put: impl FnMut(usize, [u8; N]),
) {
    let mut kept = kept.as_chunks::<N>().0[row * (k / 2)..][..k / 2].iter();
    for (i, byte) in mask[row * (k / 8)..][..k / 8].iter().enumerate() {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            let value = kept.next().expect("invariant: the mask was checked");
            put(i * 8 + bit, *value);
        }
    }
}

impl<'a> Stored<'a> for Sparse<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        self.check_mask()?;
        let (kept, mask, k) = (self.kept.data, self.mask.data, self.shape[1]);
        let dtype = self.kept.dtype;
        let rows = move |row: usize, out: &mut [f32]| {
            out.fill(0.0);
            let at = [row, k];
            match dtype {
                DType::F32 => scatter(kept, mask, at, |j, x| out[j] = f32::from_le_bytes(x)),
                DType::F16 => {
                    scatter(kept, mask, at, |j, x| out[j] = f16::from_le_bytes(x).to_f32());
                }
                _ => scatter(kept, mask, at, |j, x| out[j] = bf16::from_le_bytes(x).to_f32()),
            }
        };
        let kind = match dtype {
            DType::F32 => WeightLayout::F32,
            DType::F16 => WeightLayout::F16,
            _ => WeightLayout::Bf16,
        };
        Ok(Floats { k, rows: Box::new(rows), kind }.into())
    }
}

/// A sparse matrix of codes with its scales.
struct SparseCodes<'a> {
    sparse: Sparse<'a>,
    scaled: PlainCodes<'a>,
}

impl<'a> Stored<'a> for SparseCodes<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        self.sparse.check_mask()?;
        let (kept, mask) = (self.sparse.kept.data, self.sparse.mask.data);
        let k = self.sparse.shape[1];
        let flip = self.scaled.flip();
        let dense = self.scaled.matrix()?;
        Ok(Matrix {
            codes: Box::new(move |row, out| {
                out.fill(flip);
                scatter(kept, mask, [row, k], |j, [code]| out[j] = code ^ flip);
            }),
            ..dense
        }
        .into())
    }
}
