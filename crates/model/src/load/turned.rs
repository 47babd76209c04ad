//! The keys' half of `kv_b_proj`, turned so that it can be absorbed into queries.
//!
//! ```text
//! stored    head 0: | nope rows of k | value rows of v |  head 1: | k | v | ..      [.., kv_rank]
//! wanted    head 0: | kv_rank rows, each a column of k |  head 1: | kT | ..          [.., nope]
//! ```
//!
//! Turning takes elements one by one. Plain floats stay what they are; blocks lie along the other
//! side, so that quantized matrices are dequantized, exactly, and packed as f32: 4 bytes for each
//! of these weights, a few hundredths of a model's. The half of the values is rows of the matrix
//! and keeps its format, unless that has scales along its inputs (fp8 in blocks), which is
//! dequantized likewise. Files that store the keys turned already (`attn_k_b`) are packed as they
//! are.

use pelton_quant::{QuantError, dequantize_tensor, for_dtype, quantize_tensor};
use pelton_tensor::{DType, TensorView};

use super::part::Part;
use crate::export::Rounded;

/// The rows of each head that are turned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turned {
    /// Heads.
    pub(crate) n_heads: usize,
    /// Stored rows of a head.
    pub(crate) n_rows: usize,
    /// The first rows of each head, which are turned; as many as a turned row has elements.
    pub(crate) n_taken: usize,
    /// Rows of zeros after the turned rows of each head, where a device wants them.
    pub(crate) n_padding: usize,
}

impl Turned {
    /// Whether elements can be moved as they are stored.
    fn is_plain(part: &Part<'_>) -> bool {
        let is_rounded = matches!(part.rounded, Some(Rounded::Stored(_)));
        part.quantized.is_none()
            && !is_rounded
            && matches!(part.view.dtype, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// Type of the elements of a turned part.
    pub(super) fn dtype(part: &Part<'_>) -> DType {
        if Self::is_plain(part) { part.view.dtype } else { DType::F32 }
    }

    /// Turned rows, as elements of [`dtype`](Self::dtype).
    pub(crate) fn bytes(self, part: &Part<'_>) -> Result<Vec<u8>, QuantError> {
        if Self::is_plain(part) {
            let element_bytes = part.view.data.len() / part.view.n_elements();
            return Ok(self.turn(part.view.data, element_bytes));
        }
        let values = match &part.quantized {
            Some(matrix) => matrix.dequantize()?,
            None => stored_values(part)?,
        };
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(self.turn(&bytes, size_of::<f32>()))
    }

    /// Stored bytes of `n_bytes` that are turned.
    pub(super) fn share(self, n_bytes: usize) -> usize {
        n_bytes / self.n_rows * self.n_taken
    }

    fn turn(self, data: &[u8], element_bytes: usize) -> Vec<u8> {
        let Self { n_heads, n_rows, n_taken, n_padding } = self;
        let row_bytes = data.len() / (n_heads * n_rows);
        let padding_bytes = n_padding * n_taken * element_bytes;
        let mut out = Vec::with_capacity(n_heads * (n_taken * row_bytes + padding_bytes));
        for head in data.chunks_exact(n_rows * row_bytes) {
            for column in (0..row_bytes).step_by(element_bytes) {
                for row in head.chunks_exact(row_bytes).take(n_taken) {
                    out.extend_from_slice(&row[column..column + element_bytes]);
                }
            }
            out.resize(out.len() + padding_bytes, 0);
        }
        out
    }
}

/// The values of a tensor as a file has them, which may be rounded.
fn stored_values(part: &Part<'_>) -> Result<Vec<f32>, QuantError> {
    let Some(Rounded::Stored(to)) = part.rounded else { return dequantize_tensor(&part.view) };
    let format = for_dtype(to).expect("invariant: rounded to a type with a format");
    let data = quantize_tensor(&part.view, format)?;
    dequantize_tensor(&TensorView { dtype: to, data: &data, ..part.view })
}

/// Names the change in the recipe of the packed matrix.
impl std::fmt::Display for Turned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { n_heads, n_rows, n_taken, n_padding } = self;
        write!(f, " {n_heads} heads of {n_rows}, {n_taken} turned")?;
        match n_padding {
            0 => Ok(()),
            n => write!(f, " and {n} added"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_each_head_are_turned_and_the_values_left_out() {
        // Two heads of two rows of keys and one of values, three wide.
        let turned = Turned { n_heads: 2, n_rows: 3, n_taken: 2, n_padding: 0 };
        let data: Vec<u8> = (0..18).collect();
        let expected = [0, 3, 1, 4, 2, 5, 9, 12, 10, 13, 11, 14];
        assert_eq!(turned.turn(&data, 1), expected);
        let wide: Vec<u8> = data.iter().flat_map(|&x| [x, x + 100]).collect();
        let both: Vec<u8> = expected.iter().flat_map(|&x| [x, x + 100]).collect();
        assert_eq!(turned.turn(&wide, 2), both);
        assert_eq!(turned.share(18), 12);
        let padded = Turned { n_padding: 1, ..turned };
        let expected = [0, 3, 1, 4, 2, 5, 0, 0, 9, 12, 10, 13, 11, 14, 0, 0];
        assert_eq!(padded.turn(&data, 1), expected);
        assert_eq!(padded.share(18), 12);
    }
}
