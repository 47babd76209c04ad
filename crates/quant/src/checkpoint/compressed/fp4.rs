//! Floats of 4 bits: `nvfp4-pack-quantized` and `mxfp4-pack-quantized`.
//!
//! ```text
//! weight_packed        u8 [n, k / 2]    two codes of E2M1 a byte, the first one low
//! weight_scale         e4m3 [n, k / 16]   NVFP4: a scale per 16 inputs
//! weight_global_scale  f32 [1]                   and a divisor per matrix
//! weight_scale         u8 [n, k / 32]     MXFP4: a power of two per 32 inputs, 2^(byte - 127)
//! w[n][j] = (weight_scale / weight_global_scale) * code        the quotient in f32
//! ```
//!
//! Both are kernel layouts: that of NVFP4 keeps scales and divisor apart, and a product is divided
//! once, as a whole. `input_global_scale` belongs to kernels that round activations, which these do
//! not.

use pelton_kernels::codes::E2M1;
use pelton_tensor::{DType, TensorView};

use super::Config;
use crate::Result;
use crate::checkpoint::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use crate::checkpoint::packing::{Found, Stored};
use crate::checkpoint::tensors::{FLOATS, Tensors, scales, wrong};
use crate::checkpoint::unpackable;

/// Inputs that share a scale in NVFP4.
pub(super) const NV_GROUP: usize = 16;
/// Inputs that share a scale in MXFP4.
pub(super) const MX_GROUP: usize = 32;

impl Config {
    /// The matrix of a `weight_packed` of 4-bit floats, `group` of which share a scale.
    pub(super) fn fp4<'a>(
        &self,
        tensors: &Tensors<'a>,
        shape: [usize; 2],
        group: usize,
    ) -> Result<Found<'a>> {
        let [n, k] = shape;
        if !k.is_multiple_of(group) {
            let expected = format!("a matrix whose rows are whole groups of {group}");
            return Err(unpackable(tensors, shape, &expected));
        }
        let packed = tensors.need("weight_packed", &[DType::U8], &[n, k / 2])?;
        let is_nv = group == NV_GROUP;
        let kind = if is_nv { DType::F8E4M3 } else { DType::U8 };
        let scale = tensors.need("weight_scale", &[kind], &[n, k / group])?;
        let divisor = match tensors.get("weight_global_scale") {
            Some(view) if view.n_elements() == 1 => {
                tensors.find("weight_global_scale", FLOATS, view.shape)?
            }
            Some(view) => return Err(wrong(&view, "one number", format!("{:?}", view.shape))),
            None if is_nv => return Err(tensors.missing("weight_global_scale", "[1]")),
            None => None,
        };
        let views = [Some(packed), Some(scale), divisor].into_iter().flatten().collect();
        let stored = Fp4 { shape, group, packed, scale, divisor };
        Ok(Found { order: None, views, stored: Box::new(stored) })
    }
}

/// The tensors of one matrix.
struct Fp4<'a> {
    shape: [usize; 2],
    group: usize,
    packed: TensorView<'a>,
    scale: TensorView<'a>,
    divisor: Option<TensorView<'a>>,
}

impl<'a> Stored<'a> for Fp4<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let values = match self.scale.dtype {
            DType::U8 => powers(&self.scale)?,
            _ => scales(&self.scale)?,
        };
        let divisor = match &self.divisor {
            None => 1.0,
            Some(view) => {
                let divisor = scales(view)?[0];
                let quotients = values.iter().map(|scale| scale / divisor);
                if let Some(bad) = quotients.into_iter().find(|scale| !scale.is_finite()) {
                    let got = format!("{divisor}, which makes a scale {bad}");
                    return Err(wrong(view, "a number that scales can be divided by", got));
                }
                divisor
            }
        };
        let (data, row_bytes) = (self.packed.data, self.shape[1] / 2);
        let groups = Groups::Blocks { rows: 1, columns: self.group };
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                let bytes = &data[row * row_bytes..][..row_bytes];
                for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                    *pair = [byte & 15, byte >> 4];
                }
            }),
            meaning: Meaning::Table(E2M1),
            scales: Shared { values, groups },
            zeros: Shared::all(0.0, self.shape),
            divisor,
        }
        .into())
    }
}

/// `2^(byte - 127)` of each byte.
///
/// # Errors
///
/// When one is 255, which means no number.
fn powers(view: &TensorView<'_>) -> Result<Vec<f32>> {
    if let Some(i) = view.data.iter().position(|byte| *byte == u8::MAX) {
        return Err(wrong(view, "finite scales", format!("NaN at element {i}")));
    }
    // 2^-127 is subnormal.
    let power = |byte: &u8| match byte {
        0 => f32::from_bits(1 << 22),
        byte => f32::from_bits(u32::from(*byte) << 23),
    };
    Ok(view.data.iter().map(power).collect())
}
