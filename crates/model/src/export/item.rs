//! One tensor to be written, and its bytes.

use std::borrow::Cow;

use pelton_quant::{QuantError, dequantize_tensor};
use pelton_tensor::{DType, TensorView};

use super::importance::{Importance, OfRows};
use super::order::Order;
use super::quantize::quantize;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::load::{Part, Rows, decay_rate};

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
        parts: Vec<Scaled<'a>>,
        order: Option<Order>,
        /// The order of the inputs, which are the elements of a row.
        inputs: Option<Order>,
    },
    /// A vector that becomes f32.
    Vector {
        weights: Vec<TensorView<'a>>,
        rows: Rows,
        order: Option<Order>,
        change: Change,
    },
    Made(Vec<u8>),
}

/// Some rows, and the factor that the file has in them.
pub(crate) struct Scaled<'a> {
    pub(crate) part: Part<'a>,
    pub(crate) factor: f32,
}

impl<'a> From<Part<'a>> for Scaled<'a> {
    fn from(part: Part<'a>) -> Self {
        Self { part, factor: 1.0 }
    }
}

/// A change of each value of a vector, because readers of the file do not make it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Adds this.
    Add(f32),
    /// Makes a factor of decays of its logarithm.
    DecayRate,
}

impl Change {
    /// No change.
    pub(crate) const NONE: Self = Self::Add(0.0);

    fn of(self, x: f32) -> f32 {
        match self {
            Self::Add(offset) => x + offset,
            Self::DecayRate => decay_rate(x),
        }
    }
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
        let (bytes, n_rows, order) = match &self.source {
            Source::Made(bytes) => return Ok(bytes.clone()),
            Source::Stored(view) => {
                let bytes = quantize(view, self.dtype, importance)?;
                give_back(view.data);
                return Ok(bytes);
            }
            Source::Matrix { parts, order, inputs } => {
                let mut bytes = Vec::with_capacity(self.n_bytes() as usize);
                let mut n_rows = 0;
                for Scaled { part, factor } in parts {
                    let data = match part.turned {
                        Some(turned) => Cow::Owned(turned.bytes(part)?),
                        None => part.ordered(),
                    };
                    let view = TensorView { dtype: part.dtype(), ..part.with_data(&data) };
                    let changed = changed(&view, *factor, *inputs)?;
                    let view = match &changed {
                        Some(data) => TensorView { dtype: DType::F32, data, ..view },
                        None => view,
                    };
                    let importance = importance.map(|of| of.behind(n_rows));
                    bytes.extend(quantize(&view, self.dtype, importance)?);
                    n_rows += part.n();
                    part.stored().for_each(|(stored, _)| give_back(stored));
                }
                (bytes, n_rows, order)
            }
            Source::Vector { weights, rows, order, change } => {
                let mut stored = Vec::new();
                for view in weights {
                    stored.extend(dequantize_tensor(view)?);
                    give_back(view.data);
                }
                let values = rows.pick_values(&stored);
                let bytes = values.iter().flat_map(|x| change.of(*x).to_le_bytes()).collect();
                (bytes, rows.n, order)
            }
        };
        Ok(match order {
            Some(order) => order.apply(&bytes, n_rows),
            None => bytes,
        })
    }
}

/// The rows in f32, with their factor and in their order of inputs; `None` where these change nothing.
fn changed(
    view: &TensorView<'_>,
    factor: f32,
    inputs: Option<Order>,
) -> Result<Option<Vec<u8>>, QuantError> {
    if factor == 1.0 && inputs.is_none() {
        return Ok(None);
    }
    let values = dequantize_tensor(view)?;
    let bytes: Vec<u8> = values.iter().flat_map(|x| (x * factor).to_le_bytes()).collect();
    let Some(order) = inputs else { return Ok(Some(bytes)) };
    let k = view.shape[view.shape.len() - 1];
    let rows = bytes.chunks_exact(k * size_of::<f32>());
    Ok(Some(rows.flat_map(|row| order.apply(row, k)).collect()))
}
