//! The importance of the inputs of matrices, by which formats with a search weigh errors.
//!
//! An importance matrix has a number per input of a tensor: the mean square of that input on some
//! text. Tensors of several experts have one per input of each expert.

use std::collections::BTreeMap;

use super::item::Item;
use crate::error::ModelError;

/// By the GGUF name of a tensor: a number per input, of one expert after the other.
pub type Importance = BTreeMap<String, Vec<f32>>;

/// The numbers for some rows of a tensor.
#[derive(Clone, Copy)]
pub(super) struct OfRows<'a> {
    values: &'a [f32],
    /// Inputs of a row.
    k: usize,
    /// Rows of one expert.
    n_rows: usize,
    first_row: usize,
}

impl<'a> OfRows<'a> {
    /// The numbers of a whole tensor of this shape.
    pub(super) fn new(values: &'a [f32], shape: &[usize]) -> Self {
        let k = shape.last().copied().unwrap_or(1).max(1);
        let n_rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
        let n_experts = (values.len() / k).max(1);
        Self { values, k, n_rows: (n_rows / n_experts).max(1), first_row: 0 }
    }

    /// The same behind some rows.
    pub(super) fn behind(self, n_rows: usize) -> Self {
        Self { first_row: self.first_row + n_rows, ..self }
    }

    /// The inputs of the first row, and how many rows from there have the same.
    pub(super) fn next(&self) -> (&'a [f32], usize) {
        let expert = (self.first_row / self.n_rows).min(self.values.len() / self.k - 1);
        let left = self.n_rows - self.first_row % self.n_rows;
        (&self.values[expert * self.k..][..self.k], left)
    }
}

/// Tensors that importance matrices may have and files may lack: heads that are embedding tables.
const OPTIONAL: [&str; 2] = ["output.weight", "token_embd.weight"];

/// Checks that the numbers are those of this model.
///
/// # Errors
///
/// Names a tensor that the model does not have, or has with other inputs; or when there are none.
pub(super) fn check(importance: &Importance, items: &[Item<'_>]) -> Result<(), ModelError> {
    let refuse = |why: String| {
        let expected = "expected the importance matrix of this model";
        Err(ModelError::Export(format!("{why}: {expected}")))
    };
    if importance.is_empty() {
        return refuse("the importance matrix has no tensors".to_owned());
    }
    for (name, values) in importance {
        let shown = name.escape_debug();
        let Some(item) = items.iter().find(|item| item.gguf_name == *name) else {
            if OPTIONAL.contains(&name.as_str()) {
                continue;
            }
            return refuse(format!("it has `{shown}`, and the model does not"));
        };
        let k = item.shape.last().copied().unwrap_or(0);
        let n_experts = if item.shape.len() > 2 { item.shape[0] } else { 1 };
        if values.len() != k && values.len() != k * n_experts {
            let n = values.len();
            return refuse(format!("it has {n} inputs of `{shown}`, which has {k}"));
        }
        if let Some(bad) = values.iter().find(|x| !x.is_finite() || **x < 0.0) {
            return refuse(format!("`{shown}` has an input of importance {bad}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_inputs_of_their_expert() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let whole = OfRows::new(&values, &[3, 4, 2]);
        assert_eq!(whole.next(), (&[1.0, 2.0][..], 4));
        assert_eq!(whole.behind(6).next(), (&[3.0, 4.0][..], 2));
        assert_eq!(whole.behind(8).behind(3).next(), (&[5.0, 6.0][..], 1));
        let shared = OfRows::new(&values[..2], &[3, 4, 2]);
        assert_eq!(shared.behind(7).next(), (&[1.0, 2.0][..], 5));
    }
}
