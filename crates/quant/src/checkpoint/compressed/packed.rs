//! Integers of 2 to 8 bits in words: `pack-quantized`.
//!
//! ```text
//! weight_packed      i32 [n, k bits / 32]  a stream of bits in each row, low ones first; the last
//!                                          word may be part empty. Of bits that do not divide 32
//!                                          older files have `32 / bits` whole codes a word instead:
//!                                          [n, k / (32 / bits)], which is longer
//! weight_shape       i64 or i32 [2]        n, k
//! weight_scale       [n, groups]           or [n, 1], [1] where a row or a matrix shares one
//! weight_zero_point  i32 [.., groups]      packed along the outputs in the same way; or i8 [n, groups]
//! weight_g_idx       i32 [k]               group of each input; all -1 or absent: `j / group_size`
//! w[n][j] = scale * ((code - 2^(bits - 1)) - zero),  zero points with the same offset when packed
//! ```

use pelton_tensor::{DType, TensorView};

use super::{Config, Strategy};
use crate::Result;
use crate::checkpoint::gptq::sorted_by_group;
use crate::checkpoint::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use crate::checkpoint::packing::{Found, Stored};
use crate::checkpoint::tensors::{
    FLOATS, Tensors, group_indices, scales, stated_shape, stream_bits, stream_row, word, wrong,
};

impl Config {
    /// The matrix of a `weight_packed` of words.
    pub(super) fn packed<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Found<'a>> {
        let [n, k] = shape;
        let words = match tensors.get("weight_packed") {
            Some(view) if view.shape == [n, Words::padded(self.bits).len(k)] => {
                // The same words where both are: of 4 bits, say, or of a row in one word.
                let dense = Words::dense(self.bits);
                if view.shape == [n, dense.len(k)] { dense } else { Words::padded(self.bits) }
            }
            _ => Words::dense(self.bits),
        };
        let packed = tensors.need("weight_packed", &[DType::I32], &[n, words.len(k)])?;
        let own_shape = tensors.need("weight_shape", &[DType::I64, DType::I32], &[2])?;
        if stated_shape(&own_shape) != shape.map(|len| len as i64) {
            let got = format!("{:?}", stated_shape(&own_shape));
            return Err(wrong(&own_shape, format!("{shape:?}"), got));
        }
        let is_shared = self.strategy == Strategy::Tensor;
        let n_groups = k.div_ceil(self.group_len(k));
        let scale_shape = if is_shared { vec![1] } else { vec![n, n_groups] };
        let scale = tensors.need("weight_scale", FLOATS, &scale_shape)?;
        let zero = match tensors.get("weight_zero_point") {
            Some(view) if view.dtype == DType::I32 && !self.is_symmetric => {
                let shape = if is_shared { vec![1] } else { vec![words.len(n), n_groups] };
                tensors.find("weight_zero_point", &[DType::I32], &shape)?
            }
            Some(_) => tensors.find("weight_zero_point", &[DType::I8], &scale_shape)?,
            None if self.is_symmetric => None,
            None => {
                let shape = format!("{scale_shape:?}, for asymmetric weights");
                return Err(tensors.missing("weight_zero_point", &shape));
            }
        };
        let g_idx = tensors.find("weight_g_idx", &[DType::I32], &[k])?;
        let g_idx = g_idx.filter(|view| view.data.iter().any(|byte| *byte != 0xff));
        let groups = match &g_idx {
            Some(view) => Some(group_indices(view, n_groups)?),
            None => None,
        };
        let views = [Some(packed), Some(own_shape), Some(scale), zero, g_idx];
        Ok(Found {
            order: groups.as_deref().and_then(sorted_by_group),
            views: views.into_iter().flatten().collect(),
            stored: Box::new(Packed {
                shape,
                words,
                packed,
                scale,
                zero,
                groups: match groups {
                    Some(of) => Groups::Mapped { of, n: n_groups },
                    None if is_shared => Groups::Blocks { rows: n.max(1), columns: k.max(1) },
                    None => Groups::Blocks { rows: 1, columns: self.group_len(k) },
                },
                n_groups: if is_shared { 1 } else { n_groups },
            }),
        })
    }
}

/// How codes lie in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Words {
    bits: usize,
    /// Whether a code may cross from one word to the next.
    is_dense: bool,
}

impl Words {
    fn dense(bits: usize) -> Self {
        Self { bits, is_dense: true }
    }

    fn padded(bits: usize) -> Self {
        Self { bits, is_dense: false }
    }

    /// Words of `n` codes.
    fn len(self, n: usize) -> usize {
        if self.is_dense {
            n.saturating_mul(self.bits).div_ceil(32)
        } else {
            n.div_ceil(32 / self.bits)
        }
    }

    /// Code `index` of these words.
    fn code(self, word: impl Fn(usize) -> u32, index: usize) -> u8 {
        let per_word = 32 / self.bits;
        let at = if self.is_dense {
            index * self.bits
        } else {
            index / per_word * 32 + index % per_word * self.bits
        };
        stream_bits(word, at, self.bits)
    }
}

/// The tensors of one packed matrix.
struct Packed<'a> {
    shape: [usize; 2],
    words: Words,
    packed: TensorView<'a>,
    scale: TensorView<'a>,
    zero: Option<TensorView<'a>>,
    groups: Groups,
    n_groups: usize,
}

impl<'a> Stored<'a> for Packed<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let [n, k] = self.shape;
        let words = self.words;
        let middle = f32::from(1_u16 << (words.bits - 1));
        let grouped = |values| Shared { values, groups: self.groups.clone() };
        let zeros = match &self.zero {
            None => Shared::all(middle, self.shape),
            Some(view) if view.dtype == DType::I8 => {
                let zeros = view.data.iter().map(|zero| f32::from(zero.cast_signed()) + middle);
                grouped(zeros.collect())
            }
            Some(view) => {
                let n_rows = if self.scale.n_elements() == 1 { 1 } else { n };
                let cells = (0..n_rows).flat_map(|row| (0..self.n_groups).map(move |g| (row, g)));
                let zero = |(row, g)| words.code(|i| word(view.data, i * self.n_groups + g), row);
                grouped(cells.map(zero).map(f32::from).collect())
            }
        };
        let (data, row_words) = (self.packed.data, words.len(k));
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                let word = |i| word(data, row * row_words + i);
                if words.is_dense {
                    stream_row(word, words.bits, out);
                } else {
                    out.iter_mut().enumerate().for_each(|(j, out)| *out = words.code(word, j));
                }
            }),
            meaning: Meaning::Integer { most: ((1_u16 << words.bits) - 1) as u8 },
            scales: grouped(scales(&self.scale)?),
            zeros,
            divisor: 1.0,
        }
        .into())
    }
}
