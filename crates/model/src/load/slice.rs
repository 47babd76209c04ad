//! One expert's matrix in a tensor that holds the matrices of several.

use super::Part;

/// The place of one expert's matrix in a tensor that holds the matrices of several.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSlice {
    /// Name of the tensor.
    pub tensor: String,
    /// The first element of the expert.
    first: usize,
    /// Elements from one row to the next, and from one input to the next.
    strides: [usize; 2],
    /// The stored row of each row.
    rows: Vec<usize>,
    /// Inputs.
    k: usize,
    /// The bias, where there is one.
    pub bias: Option<Box<ExpertSlice>>,
}

impl ExpertSlice {
    /// The place of a part, and that of its bias; `None` for one that has a tensor of its own.
    pub(super) fn of(part: &Part<'_>, bias: Option<&Part<'_>>) -> Option<Self> {
        let expert = part.slice?;
        let (k, n_stored) = (part.k(), part.rows.n_stored);
        Some(Self {
            tensor: part.view.name.to_owned(),
            first: expert * n_stored * k,
            strides: if part.is_transposed { [1, n_stored] } else { [k, 1] },
            rows: part.rows.sources().collect(),
            k,
            bias: bias.and_then(|bias| Self::of(bias, None)).map(Box::new),
        })
    }

    /// The place of each element in the tensor, row by row.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        let Self { first, strides: [row_stride, stride], rows, k, .. } = self;
        rows.iter().flat_map(move |row| (0..*k).map(move |j| first + row * row_stride + j * stride))
    }

    /// Puts elements in their places in the values of the whole tensor.
    pub fn write(&self, values: &[f32], tensor: &mut [f32]) {
        self.places().zip(values).for_each(|(place, value)| tensor[place] = *value);
    }
}
