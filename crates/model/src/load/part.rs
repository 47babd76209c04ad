//! One projection's rows, wherever and however a file stores them.
//!
//! ```text
//! stored      |. . q q q q k k v v q q q q k k v v . .|      rows, or columns where transposed
//!                  |first  |       |
//!                  |- run -|       |
//!                  |--- stride ----|
//!
//! in pairs    head: a0 b0 a1 b1 .. | rest      becomes      a0 a1 .. b0 b1 .. | rest
//!
//! padded      | v v v | v v v |                becomes      | v v v v' | v v v v' |
//! ```
//!
//! A device may want the rows of each head in multiples of some number. Runs are then padded with
//! their last row, which every format can repeat; the device drops what padding gives.
//!
//! Rows are picked as they are stored, so this works in every format; a transposed matrix is
//! gathered by element, which only plain floats allow. Of a matrix that a quantized checkpoint
//! spreads over several tensors, rows are picked when it is packed.

use std::borrow::Cow;
use std::fmt;

use pelton_quant::checkpoint::QuantizedTensor;
use pelton_tensor::{DType, TensorView};

use super::turned::Turned;
use crate::export::Rounded;

/// The rows of a tensor that make up a part, in the order of the decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rows {
    /// Rows of the part.
    pub(crate) n: usize,
    /// Rows of the whole tensor.
    pub(crate) n_stored: usize,
    /// Stored row where the first run begins.
    pub(crate) first: usize,
    /// Rows that follow each other, padding included.
    pub(crate) run: usize,
    /// Rows of a run that are stored; the rest of the run is padding.
    pub(crate) filled: usize,
    /// Stored rows from one run to the next.
    pub(crate) stride: usize,
    /// Rows of a head, and how many of them are stored as pairs.
    pub(crate) pairs: Option<[usize; 2]>,
}

impl Rows {
    /// All rows as they are.
    pub(crate) fn all(n: usize) -> Self {
        Self { n, n_stored: n, first: 0, run: n, filled: n, stride: n, pairs: None }
    }

    /// These rows, which are heads of `head` rows each, with each head padded to a multiple of
    /// `multiple` rows.
    pub(crate) fn padded(self, head: usize, multiple: usize) -> Self {
        let run = head.next_multiple_of(multiple);
        if run == head {
            return self;
        }
        let stride = if self.run == head { self.stride } else { head };
        Self { n: self.n / head * run, run, filled: head, stride, ..self }
    }

    /// Rows that are not padding.
    pub(super) fn n_filled(&self) -> usize {
        self.n / self.run * self.filled
    }

    /// The stored row of row `row`.
    fn source(&self, row: usize) -> usize {
        let row = match self.pairs {
            None => row,
            Some([head_dim, rotary_dim]) => {
                let (head, i) = (row / head_dim, row % head_dim);
                let half = rotary_dim / 2;
                let within = match i {
                    i if i < half => 2 * i,
                    i if i < rotary_dim => 2 * (i - half) + 1,
                    i => i,
                };
                head * head_dim + within
            }
        };
        self.first + row / self.run * self.stride + (row % self.run).min(self.filled - 1)
    }

    /// The stored row of each row.
    pub(super) fn sources(&self) -> impl Iterator<Item = usize> {
        (0..self.n).map(|row| self.source(row))
    }

    /// Whether the rows follow each other in the file.
    fn is_contiguous(&self) -> bool {
        self.pairs.is_none() && self.run == self.n && self.filled == self.run
    }

    /// The rows of `data`, each as long as the next.
    pub(super) fn pick<'a>(&self, data: &'a [u8]) -> Cow<'a, [u8]> {
        let row_bytes = data.len() / self.n_stored;
        if self.is_contiguous() {
            return Cow::Borrowed(&data[self.first * row_bytes..][..self.n * row_bytes]);
        }
        let mut out = Vec::with_capacity(self.n * row_bytes);
        for row in 0..self.n {
            out.extend_from_slice(&data[self.source(row) * row_bytes..][..row_bytes]);
        }
        Cow::Owned(out)
    }

    /// The columns of `data`, a matrix of elements, as rows.
    fn pick_columns(&self, data: &[u8], element_bytes: usize) -> Vec<u8> {
        let line_bytes = self.n_stored * element_bytes;
        let mut out = Vec::with_capacity(data.len() / self.n_stored * self.n);
        for row in 0..self.n {
            let at = self.source(row) * element_bytes;
            for line in data.chunks_exact(line_bytes) {
                out.extend_from_slice(&line[at..at + element_bytes]);
            }
        }
        out
    }

    /// These values in the order of the decoder.
    pub(crate) fn pick_values(&self, values: &[f32]) -> Vec<f32> {
        (0..self.n).map(|row| values[self.source(row)]).collect()
    }
}

/// Puts the rows of each head in the order of files that store the first `rotary_dim` of them in
/// pairs.
pub(crate) fn in_pairs(data: &[u8], n_rows: usize, pairs: [usize; 2]) -> Vec<u8> {
    let row_bytes = data.len() / n_rows;
    let mut out = vec![0; data.len()];
    let stored = Rows { pairs: Some(pairs), ..Rows::all(n_rows) };
    for (row, source) in data.chunks_exact(row_bytes).zip(stored.sources()) {
        out[source * row_bytes..][..row_bytes].copy_from_slice(row);
    }
    out
}

/// Describes how rows are picked; empty where all rows are taken as they are.
impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, n_stored, first, run, filled, stride, pairs } = *self;
        if n != n_stored {
            write!(f, " rows {n} from {first} by {run}/{stride}")?;
        }
        if filled != run {
            write!(f, " padded from {filled}")?;
        }
        match pairs {
            None => Ok(()),
            Some([head_dim, rotary_dim]) if head_dim == rotary_dim => {
                write!(f, " {} heads", n / head_dim)
            }
            Some([head_dim, rotary_dim]) => write!(f, " {} heads by {rotary_dim}", n / head_dim),
        }
    }
}

/// Some rows of a tensor, or their biases.
pub(crate) struct Part<'a> {
    pub(crate) view: TensorView<'a>,
    /// `[n, k]`, or `[n]` for a bias.
    pub(crate) shape: Vec<usize>,
    pub(crate) rows: Rows,
    pub(crate) is_transposed: bool,
    /// The rows that become columns.
    pub(crate) turned: Option<Turned>,
    /// The matrix of these rows, where several tensors make it; `view` is then the first of them.
    pub(crate) quantized: Option<QuantizedTensor<'a>>,
    /// The number of the expert, where the tensor holds the matrices of several experts.
    pub(crate) slice: Option<usize>,
    /// The factors of its blocks, where `view` holds only their codes.
    pub(crate) factors: Option<&'a [u8]>,
    /// The type that it is rounded to while it is packed.
    pub(crate) rounded: Option<Rounded>,
}

impl<'a> Part<'a> {
    /// Whether its matrix is packed from bf16.
    pub(crate) fn is_bf16(&self) -> bool {
        match self.rounded {
            Some(Rounded::Packed(dtype)) => dtype == DType::Bf16,
            _ => self.view.dtype == DType::Bf16 && self.quantized.is_none(),
        }
    }

    /// A tensor that is taken as it is.
    pub(crate) fn whole(view: TensorView<'a>) -> Self {
        let n = view.shape[0];
        let (shape, rows) = (view.shape.to_vec(), Rows::all(n));
        Self {
            view,
            shape,
            rows,
            is_transposed: false,
            turned: None,
            quantized: None,
            slice: None,
            factors: None,
            rounded: None,
        }
    }

    /// The matrix of several tensors, where it is one.
    pub(super) fn quantized(&self) -> Option<&QuantizedTensor<'a>> {
        self.quantized.as_ref()
    }

    /// The order of its inputs, where that is not their own.
    pub(super) fn order(&self) -> Option<&[u32]> {
        self.quantized.as_ref().and_then(QuantizedTensor::order)
    }

    /// Whether this and `other` can become one matrix.
    pub(super) fn stacks_on(&self, other: &Self) -> bool {
        match (&self.quantized, &other.quantized) {
            _ if self.turned.is_some() || other.turned.is_some() => false,
            (None, None) => self.view.dtype == other.view.dtype && self.rounded == other.rounded,
            (Some(own), Some(other)) => own.order() == other.order(),
            _ => false,
        }
    }

    /// Whether its product is added to that of an earlier part: another block of the same inputs'
    /// matrix.
    pub(super) fn adds(&self) -> bool {
        let columns = self.quantized.as_ref().and_then(QuantizedTensor::columns);
        columns.is_some_and(|columns| columns.start > 0)
    }

    /// The blocks of inputs that it is packed in, or the part itself.
    pub(super) fn split(self) -> Vec<Self> {
        let Self { view, shape, rows, is_transposed, turned, quantized, slice, factors, rounded } =
            self;
        let part = |shape, quantized| Self {
            view,
            shape,
            rows,
            is_transposed,
            turned,
            quantized,
            slice,
            factors,
            rounded,
        };
        match quantized {
            None => vec![part(shape, None)],
            Some(matrix) => {
                let blocks = matrix.split().into_iter();
                blocks.map(|block| part(block.shape().to_vec(), Some(block))).collect()
            }
        }
    }

    /// Type of its elements when it is packed.
    pub(crate) fn dtype(&self) -> DType {
        match self.rounded {
            Some(Rounded::Packed(dtype)) => dtype,
            Some(Rounded::Stored(_)) => DType::F32,
            None if self.turned.is_some() => Turned::dtype(self),
            None => self.view.dtype,
        }
    }

    /// Rows.
    pub(crate) fn n(&self) -> usize {
        self.rows.n
    }

    /// Elements of a row.
    pub(super) fn k(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Stored bytes of these rows.
    pub(super) fn n_bytes(&self) -> usize {
        self.stored().map(|(_, n_bytes)| n_bytes).sum()
    }

    /// The bytes of its tensors as they lie in the file, and how many of them are of these rows.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (&'a [u8], usize)> {
        let own = self.quantized.as_ref().map_or(std::slice::from_ref(&self.view), |m| m.views());
        let share = |data: &[u8]| match self.quantized {
            Some(_) => data.len(),
            None if self.turned.is_some() => {
                self.turned.map_or(0, |turned| turned.share(data.len()))
            }
            None => data.len() / self.rows.n_stored * self.rows.n_filled(),
        };
        let data = own.iter().map(|view| view.data).chain(self.factors);
        data.map(move |data| (data, share(data)))
    }

    /// The bytes of these rows in the order of the decoder.
    pub(crate) fn ordered(&self) -> Cow<'a, [u8]> {
        if let Some(factors) = self.factors {
            return Cow::Owned(self.blocks(factors));
        }
        if self.is_transposed {
            let element_bytes = self.view.data.len() / self.view.n_elements();
            return Cow::Owned(self.rows.pick_columns(self.view.data, element_bytes));
        }
        self.rows.pick(self.view.data)
    }

    /// The rows as blocks of MXFP4: a factor, then codes `j` and `j + 16` in byte `j`, where the
    /// file has codes `2 j` and `2 j + 1`.
    fn blocks(&self, factors: &[u8]) -> Vec<u8> {
        let (factors, codes) = (self.rows.pick(factors), self.rows.pick(self.view.data));
        let mut out = Vec::with_capacity(factors.len() + codes.len());
        for (factor, codes) in factors.iter().zip(codes.as_chunks::<16>().0) {
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            out.push(*factor);
            out.extend((0..16).map(|j| code(j) | code(j + 16) << 4));
        }
        out
    }

    /// These rows with the bytes of [`ordered`](Self::ordered).
    pub(crate) fn with_data<'s>(&'s self, data: &'s [u8]) -> TensorView<'s> {
        TensorView { data, shape: &self.shape, ..self.view }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_put_back_as_they_were() {
        let rows: Vec<u8> = (0..24).collect();
        let stored = in_pairs(&rows, 12, [6, 6]);
        assert_eq!(&stored[..6], &[0, 1, 6, 7, 2, 3]);
        let picked = Rows { pairs: Some([6, 6]), ..Rows::all(12) };
        assert_eq!(*picked.pick(&stored), rows);
        let partly = Rows { pairs: Some([6, 4]), ..Rows::all(6) };
        assert_eq!(*partly.pick(&[0, 2, 1, 3, 4, 5]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(in_pairs(&[0, 1, 2, 3, 4, 5], 6, [6, 4]), [0, 2, 1, 3, 4, 5]);
    }

    #[test]
    fn runs_are_picked_from_rows_and_from_columns() {
        // Two groups of two rows of q, one of k and one of v.
        let rows = Rows { n: 4, n_stored: 8, run: 2, filled: 2, stride: 4, ..Rows::all(8) };
        let data: Vec<u8> = (0..16).collect();
        assert_eq!(*rows.pick(&data), [0, 1, 2, 3, 8, 9, 10, 11]);
        let k = Rows { n: 2, first: 2, run: 1, filled: 1, ..rows };
        assert_eq!(*k.pick(&data), [4, 5, 12, 13]);
        assert_eq!(k.pick_columns(&data, 1), [2, 10, 6, 14]);
        assert_eq!(k.to_string(), " rows 2 from 2 by 1/4");
        assert_eq!(Rows::all(3).to_string(), "");
    }

    #[test]
    fn heads_are_padded_with_their_last_row_wherever_they_lie() {
        // Two heads of three rows, one after the other, and apart by five rows.
        let together = Rows::all(6).padded(3, 4);
        assert_eq!(*together.pick(&[0, 1, 2, 3, 4, 5]), [0, 1, 2, 2, 3, 4, 5, 5]);
        let apart = Rows { n: 6, run: 3, filled: 3, stride: 5, first: 2, ..Rows::all(10) };
        let apart = apart.padded(3, 4);
        let data: Vec<u8> = (0..10).collect();
        assert_eq!(*apart.pick(&data), [2, 3, 4, 4, 7, 8, 9, 9]);
        assert_eq!((apart.n, apart.n_filled()), (8, 6));
        assert_eq!(apart.to_string(), " rows 8 from 2 by 4/5 padded from 3");
        assert_eq!(Rows::all(8).padded(4, 4), Rows::all(8));
    }
}
