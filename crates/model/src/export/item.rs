//! One tensor to be written, and its bytes.

use std::borrow::Cow;

use pelton_quant::{QuantError, dequantize_tensor};
use pelton_tensor::{DType, TensorView};

use super::importance::{Importance, OfRows};
use super::quantize::quantize;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::load::{Part, Rows, in_pairs};

/// One tensor to be written.
pub(crate) struct Item<'a> {
    pub(super) gguf_name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) source: Source<'a>,
}

/// The source of an item's bytes.
pub(crate) enum Source<'a> {
    /// A tensor as it is.
    Stored(TensorView<'a>),
    /// The rows of all parts, one after the other.
    Matrix {
        parts: Vec<Part<'a>>,
        /// Rows of a head, and how many of them become pairs.
        pairs: Option<[usize; 2]>,
    },
    /// A vector that becomes f32.
    Vector {
        weights: Vec<TensorView<'a>>,
        rows: Rows,
        pairs: Option<[usize; 2]>,
        /// Added to each value, because readers of the file do not add it.
        offset: f32,
    },
    Made(Vec<u8>),
}

impl Item<'_> {
    /// Bytes in the file, padding not counted.
    pub(super) fn n_bytes(&self) -> u64 {
        let n_bytes = self.dtype.bytes_for(self.shape.iter().product());
        n_bytes.expect("invariant: rows are whole blocks of their type") as u64
    }

    /// The bytes as they are to be stored.
    pub(super) fn bytes(
        &self,
        files: &ModelFiles,
        importance: Option<&Importance>,
    ) -> Result<Vec<u8>, ModelError> {
        let tensors = files.tensors();
        let own = importance.and_then(|importance| importance.get(&self.gguf_name));
        let own = own.map(|values| OfRows::new(values, &self.shape));
        let made = self.made(own, &|stored| tensors.give_back(stored));
        made.map_err(|source| ModelError::Format { file: tensors.origin().to_owned(), source })
    }

    /// The same; `give_back` is called with what has been read.
    fn made(
        &self,
        importance: Option<OfRows<'_>>,
        give_back: &dyn Fn(&[u8]),
    ) -> Result<Vec<u8>, QuantError> {
        let (bytes, n_rows, pairs) = match &self.source {
            Source::Made(bytes) => return Ok(bytes.clone()),
            Source::Stored(view) => {
                let bytes = quantize(view, self.dtype, importance)?;
                give_back(view.data);
                return Ok(bytes);
            }
            Source::Matrix { parts, pairs } => {
                let mut bytes = Vec::with_capacity(self.n_bytes() as usize);
                let mut n_rows = 0;
                for part in parts {
                    let data = match part.turned {
                        Some(turned) => Cow::Owned(turned.bytes(part)?),
                        None => part.ordered(),
                    };
                    let view = TensorView { dtype: part.dtype(), ..part.with_data(&data) };
                    let importance = importance.map(|of| of.behind(n_rows));
                    bytes.extend(quantize(&view, self.dtype, importance)?);
                    n_rows += part.n();
                    part.stored().for_each(|(stored, _)| give_back(stored));
                }
                (bytes, n_rows, pairs)
            }
            Source::Vector { weights, rows, pairs, offset } => {
                let mut stored = Vec::new();
                for view in weights {
                    stored.extend(dequantize_tensor(view)?);
                    give_back(view.data);
                }
                let values = rows.pick_values(&stored);
                let bytes = values.iter().flat_map(|x| (x + offset).to_le_bytes()).collect();
                (bytes, rows.n, pairs)
            }
        };
        Ok(match pairs {
            Some(pairs) => in_pairs(&bytes, n_rows, *pairs),
            None => bytes,
        })
    }
}
