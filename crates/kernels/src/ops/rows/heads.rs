//! Copying the same stretch of every head out of rows or into rows.
//!
//! ```text
//! row          |.. offset ..|width|..|width|..|width|..|       head_stride from one to the next
//!
//! write_heads  rows of [n_heads * m, width], head 0 of all rows first, in the forms that a product
//!              of heads reads
//! copy_heads   the same stretches of other rows
//! ```
//!
//! 8 bytes per element, and no operations but those of the forms.

use crate::Cpu;
use crate::ops::activations::Activations;
use crate::team::Parts;

/// The same stretch of each head, in every row of a matrix; see the drawing at the head of the
/// file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadSlices {
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// First element of the stretch of head 0.
    pub offset: usize,
    /// Heads per row.
    pub n_heads: usize,
    /// Elements from one stretch to the next.
    pub head_stride: usize,
    /// Elements of a stretch.
    pub width: usize,
}

impl HeadSlices {
    /// Number of rows in `len` elements; asserts that the stretches lie within their rows and do
    /// not overlap.
    fn check(&self, len: usize) -> usize {
        let Self { row_stride, offset, n_heads, head_stride, width } = *self;
        assert!(row_stride > 0 && n_heads > 0, "invariant: rows have a stride and heads");
        assert!(n_heads == 1 || width <= head_stride, "invariant: stretches lie apart");
        let last = (n_heads - 1).checked_mul(head_stride).and_then(|last| last.checked_add(offset));
        let end = last.and_then(|last| last.checked_add(width));
        assert!(end.is_some_and(|end| end <= row_stride), "invariant: heads fit in their row");
        assert_eq!(len % row_stride, 0, "invariant: whole rows");
        len / row_stride
    }

    /// Where the stretch of a head of a row begins.
    fn at(&self, row: usize, head: usize) -> usize {
        row * self.row_stride + self.offset + head * self.head_stride
    }
}

impl Cpu {
    /// Writes the stretches of `x` as rows, head by head, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, row_stride]`; `out`: `[n_heads * m, width]`, row `h * m + i` being head `h` of row
    /// `i`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn write_heads(&self, x: &[f32], from: &HeadSlices, out: &mut Activations) {
        let n_rows = from.check(x.len());
        assert_eq!(out.width(), from.width, "invariant: rows are as wide as stretches");
        let writer = out.writer(self, from.n_heads * n_rows);
        self.for_each_part(from.n_heads * n_rows, from.width, |rows| {
            for row in rows {
                let x = &x[from.at(row % n_rows, row / n_rows)..][..from.width];
                // SAFETY: each row belongs to one tile.
                unsafe { writer.row(row, |columns, out| out.copy_from_slice(&x[columns])) };
            }
        });
    }

    /// Copies the stretches of `x` to those of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, from.row_stride]`; `out`: `[m, to.row_stride]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree, or the numbers of rows, heads or elements.
    pub fn copy_heads(&self, x: &[f32], from: &HeadSlices, out: &mut [f32], to: &HeadSlices) {
        let n_rows = from.check(x.len());
        assert_eq!(to.check(out.len()), n_rows, "invariant: as many rows");
        let kind = |slices: &HeadSlices| (slices.n_heads, slices.width);
        assert_eq!(kind(from), kind(to), "invariant: the same heads");
        let parts = Parts::new(out);
        self.for_each_part(n_rows, from.n_heads * from.width, |rows| {
            for row in rows {
                for head in 0..from.n_heads {
                    let (source, start) = (from.at(row, head), to.at(row, head));
                    // SAFETY: each row belongs to one tile, and its stretches lie apart.
                    let out = unsafe { parts.part(start..start + to.width) };
                    out.copy_from_slice(&x[source..source + from.width]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Forms;
    use crate::testing::{Random, row_cpus};

    #[test]
    fn stretches_come_out_head_by_head_and_go_back_where_they_were() {
        let mut random = Random::new(70);
        for (m, n_heads, width, rest) in [(1, 1, 32, 0), (3, 5, 16, 7), (90, 8, 128, 64)] {
            let head_stride = width + rest;
            let row_stride = 3 + n_heads * head_stride;
            let from = HeadSlices { row_stride, offset: 3, n_heads, head_stride, width };
            let x = random.normals(m * row_stride);
            for cpu in row_cpus() {
                let mut rows = Activations::new(width, Forms::F32);
                cpu.write_heads(&x, &from, &mut rows);
                let to = HeadSlices {
                    row_stride: n_heads * width,
                    offset: 0,
                    head_stride: width,
                    ..from
                };
                let mut copied = vec![f32::NAN; m * n_heads * width];
                cpu.copy_heads(&x, &from, &mut copied, &to);
                for row in 0..m {
                    for head in 0..n_heads {
                        let expected = &x[row * row_stride + 3 + head * head_stride..][..width];
                        assert_eq!(&rows.floats()[(head * m + row) * width..][..width], expected);
                        assert_eq!(&copied[(row * n_heads + head) * width..][..width], expected);
                    }
                }
                let mut back = vec![7.0; x.len()];
                cpu.copy_heads(&copied, &to, &mut back, &from);
                for (i, (back, x)) in back.iter().zip(&x).enumerate() {
                    let within = (i % row_stride).checked_sub(3).map(|i| i % head_stride);
                    let expected = if within.is_some_and(|i| i < width) { *x } else { 7.0 };
                    assert_eq!(*back, expected, "element {i}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "invariant: heads fit in their row")]
    fn a_stretch_beyond_its_row_is_a_broken_invariant() {
        let from = HeadSlices { row_stride: 10, offset: 1, n_heads: 2, head_stride: 5, width: 5 };
        let mut out = Activations::new(5, Forms::F32);
        row_cpus()[0].write_heads(&[0.0; 20], &from, &mut out);
    }
}
