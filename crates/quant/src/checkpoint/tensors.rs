//! The tensors of one matrix, looked up by the suffix of their names and checked before use.

use half::{bf16, f16};
use pelton_kernels::codes::e4m3;
use pelton_tensor::{DType, TensorSource, TensorView};

use crate::{QuantError, Result};

/// Types that scales are stored in.
pub(super) const FLOATS: &[DType] = &[DType::F16, DType::Bf16, DType::F32];

/// The tensors whose names begin with a module's.
pub(super) struct Tensors<'a> {
    pub(super) source: &'a dyn TensorSource,
    /// Name of the module: `model.layers.0.self_attn.q_proj`.
    pub(super) module: String,
}

impl<'a> Tensors<'a> {
    /// `MODULE.suffix`, if it is there.
    pub(super) fn get(&self, suffix: &str) -> Option<TensorView<'a>> {
        self.source.get(&format!("{}.{suffix}", self.module))
    }

    /// `MODULE.suffix` of one of these types and this shape; `None` where it is not there.
    pub(super) fn find(
        &self,
        suffix: &str,
        dtypes: &[DType],
        shape: &[usize],
    ) -> Result<Option<TensorView<'a>>> {
        let Some(view) = self.get(suffix) else { return Ok(None) };
        if !dtypes.contains(&view.dtype) {
            return Err(wrong_type(&view, dtypes));
        }
        if view.shape != shape {
            return Err(wrong(&view, format!("shape {shape:?}"), format!("{:?}", view.shape)));
        }
        Ok(Some(view))
    }

    /// As [`find`](Self::find), for tensors that must be there.
    pub(super) fn need(
        &self,
        suffix: &str,
        dtypes: &[DType],
        shape: &[usize],
    ) -> Result<TensorView<'a>> {
        self.find(suffix, dtypes, shape)?.ok_or_else(|| self.missing(suffix, &format!("{shape:?}")))
    }

    /// The error of a tensor that is not there.
    pub(super) fn missing(&self, suffix: &str, shape: &str) -> QuantError {
        QuantError::Checkpoint {
            tensor: format!("{}.{suffix}", self.module),
            expected: format!("a tensor of shape {shape}"),
            got: "nothing (it is missing)".to_owned(),
        }
    }
}

/// An error about a tensor.
pub(super) fn wrong(
    view: &TensorView<'_>,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> QuantError {
    QuantError::Checkpoint {
        tensor: view.name.to_owned(),
        expected: expected.into(),
        got: got.into(),
    }
}

/// The error of a tensor of none of these types.
pub(super) fn wrong_type(view: &TensorView<'_>, dtypes: &[DType]) -> QuantError {
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
    wrong(view, format!("elements of type {}", names.join(" or ")), view.dtype.name())
}

/// The elements of a tensor of scales, widened exactly.
///
/// # Errors
///
/// When a scale is not finite, because no weight can be computed with it.
pub(super) fn scales(view: &TensorView<'_>) -> Result<Vec<f32>> {
    let values: Vec<f32> = match view.dtype {
        DType::F16 => pairs(view).map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        DType::Bf16 => pairs(view).map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        DType::F32 => words(view).map(f32::from_le_bytes).collect(),
        DType::F8E4M3 => view.data.iter().map(|code| e4m3(*code)).collect(),
        _ => return Err(wrong_type(view, FLOATS)),
    };
    match values.iter().position(|scale| !scale.is_finite()) {
        Some(i) => Err(wrong(view, "finite scales", format!("{} at element {i}", values[i]))),
        None => Ok(values),
    }
}

/// The group of each input, from a tensor of the type I32.
///
/// # Errors
///
/// When a group is not below `n_groups`.
pub(super) fn group_indices(view: &TensorView<'_>, n_groups: usize) -> Result<Vec<u32>> {
    words(view)
        .enumerate()
        .map(|(i, bytes)| {
            let group = i32::from_le_bytes(bytes);
            let index = u32::try_from(group).ok().filter(|group| (*group as usize) < n_groups);
            index.ok_or_else(|| {
                let got = format!("{group} at input {i}");
                wrong(view, format!("groups from 0 to {}", n_groups.saturating_sub(1)), got)
            })
        })
        .collect()
}

/// The two numbers of a tensor that states a shape.
pub(super) fn stated_shape(view: &TensorView<'_>) -> [i64; 2] {
    match view.data.as_chunks::<8>().0 {
        [n, k] => [i64::from_le_bytes(*n), i64::from_le_bytes(*k)],
        _ => [0, 1].map(|i| i64::from(word(view.data, i).cast_signed())),
    }
}

/// The one number of a tensor that describes a matrix.
///
/// # Errors
///
/// When the tensor does not have exactly one number, has an unusual type, or the number is not
/// finite.
pub(super) fn number(view: &TensorView<'_>) -> Result<f64> {
    if view.n_elements() != 1 {
        return Err(wrong(view, "one number", format!("shape {:?}", view.shape)));
    }
    let number = match view.dtype {
        DType::U8 | DType::Bool => f64::from(view.data[0]),
        DType::I8 => f64::from(view.data[0].cast_signed()),
        DType::I32 => f64::from(word(view.data, 0).cast_signed()),
        DType::I64 => i64::from_le_bytes(view.data.as_chunks().0[0]) as f64,
        DType::F16 | DType::Bf16 | DType::F32 => return scales(view).map(|x| f64::from(x[0])),
        _ => return Err(wrong_type(view, &[DType::U8, DType::I32, DType::I64, DType::F32])),
    };
    Ok(number)
}

fn pairs<'v>(view: &'v TensorView<'_>) -> impl Iterator<Item = [u8; 2]> + 'v {
    view.data.as_chunks().0.iter().copied()
}

fn words<'v>(view: &'v TensorView<'_>) -> impl Iterator<Item = [u8; 4]> + 'v {
    view.data.as_chunks().0.iter().copied()
}

/// Word `index` of data that is made of little-endian words of 32 bits.
///
/// # Panics
///
/// When there are fewer words.
pub(super) fn word(data: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(data.as_chunks().0[index])
}

/// The `bits` (1 to 8) from bit `at` of a stream of words, the first of each word its lowest.
pub(super) fn stream_bits(word: impl Fn(usize) -> u32, at: usize, bits: usize) -> u8 {
    let (index, shift) = (at / 32, at % 32);
    let mut value = word(index) >> shift;
    if shift + bits > 32 {
        value |= word(index + 1) << (32 - shift);
    }
    (value & ((1 << bits) - 1)) as u8
}

/// The first codes of a stream of words, `bits` (1 to 8) each.
pub(super) fn stream_row(word: impl Fn(usize) -> u32, bits: usize, out: &mut [u8]) {
    if 32 % bits == 0 {
        let mask = ((1_u32 << bits) - 1) as u8;
        for (i, codes) in out.chunks_mut(32 / bits).enumerate() {
            let word = word(i);
            codes.iter_mut().enumerate().for_each(|(j, out)| {
                *out = (word >> (j * bits)) as u8 & mask;
            });
        }
    } else {
        out.iter_mut().enumerate().for_each(|(j, out)| *out = stream_bits(&word, j * bits, bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_cross_the_border_of_two_words() {
        let words = [0xC000_0001_u32, 0x8000_0002];
        let bits = |at, n| stream_bits(|i| words[i], at, n);
        assert_eq!(bits(0, 3), 1);
        assert_eq!(bits(30, 3), 0b011);
        assert_eq!(bits(31, 8), 0b0000_0101);
        assert_eq!(bits(60, 4), 8);
        for n in 1..=8 {
            let mut row = vec![0; 64 / n];
            stream_row(|i| words[i], n, &mut row);
            let expected: Vec<u8> = (0..64 / n).map(|j| bits(j * n, n)).collect();
            assert_eq!(row, expected, "{n} bits");
        }
    }
}
