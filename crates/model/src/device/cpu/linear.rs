//! Products of activations with packed matrices.

use pelton_kernels::{Activations, Cpu, Forms, MatmulOutput, PackedMatrix};

use super::CpuDevice;
use crate::layer::{Linear, Piece};

/// Scratch rows of a layer's input.
#[derive(Debug)]
pub(super) struct Input {
    /// The input in the forms that a matrix reads.
    pub(super) forms: Activations,
    /// The input as floats, in the order that a matrix reads.
    ordered: Vec<f32>,
    /// A product that is added to another.
    sum: Vec<f32>,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { forms: Activations::new(1, Forms::F32), ordered: Vec::new(), sum: Vec::new() }
    }
}

/// The forms of activations that these matrices read.
pub(super) fn read_by<'a>(cpu: &Cpu, weights: impl IntoIterator<Item = &'a PackedMatrix>) -> Forms {
    weights.into_iter().fold(Forms::default(), |forms, w| forms.read_by(cpu, w))
}

/// `x` if it is held in these forms, else `scratch` with its floats in these forms.
pub(super) fn in_forms<'a>(
    cpu: &Cpu,
    forms: Forms,
    x: &'a Activations,
    scratch: &'a mut Activations,
) -> &'a Activations {
    if x.forms().include(forms) {
        return x;
    }
    scratch.reset(x.width(), forms);
    cpu.write_rows(x.floats(), scratch);
    scratch
}

/// The forms in which a projection is given its input: reordered inputs are read as f32, because
/// quantized groups cannot be permuted.
pub(super) fn handed_to(cpu: &Cpu, linear: &Linear<CpuDevice>) -> Forms {
    if linear.is_reordered() { Forms::F32 } else { read_by(cpu, linear.weights()) }
}

/// The elements `order` of the rows of `x`, in the forms that `weight` reads.
fn in_order<'a>(
    cpu: &Cpu,
    weight: &PackedMatrix,
    order: &[u32],
    x: &Activations,
    scratch: &'a mut Input,
) -> &'a Activations {
    scratch.ordered.clear();
    for row in x.floats().chunks_exact(x.width()) {
        scratch.ordered.extend(order.iter().map(|j| row[*j as usize]));
    }
    scratch.forms.reset(order.len(), read_by(cpu, [weight]));
    cpu.write_rows(&scratch.ordered, &mut scratch.forms);
    &scratch.forms
}

/// `y = x Wᵀ` where pieces read the inputs in orders of their own; products of the same rows are
/// added in the order of the pieces.
fn multiply_reordered(
    cpu: &Cpu,
    scratch: &mut Input,
    linear: &Linear<CpuDevice>,
    x: &Activations,
    y: &mut [f32],
) {
    let mut sum = std::mem::take(&mut scratch.sum);
    for Piece { weight, first_row, order, adds } in &linear.pieces {
        let (offset, n) = (*first_row, weight.n());
        let input = match order {
            Some(order) => in_order(cpu, weight, order, x, scratch),
            None => in_forms(cpu, read_by(cpu, [weight]), x, &mut scratch.forms),
        };
        if *adds {
            sum.resize(input.n_rows() * n, 0.0);
            cpu.matmul(weight, input, MatmulOutput { data: &mut sum, stride: n, offset: 0 });
            for (y, sum) in y.chunks_exact_mut(linear.n).zip(sum.chunks_exact(n)) {
                y[offset..offset + n].iter_mut().zip(sum).for_each(|(y, sum)| *y += sum);
            }
        } else {
            cpu.matmul(weight, input, MatmulOutput { data: y, stride: linear.n, offset });
        }
    }
    scratch.sum = sum;
}

/// `y = x Wᵀ · factors + b`, dense.
pub(super) fn multiply(
    cpu: &Cpu,
    scratch: &mut Input,
    linear: &Linear<CpuDevice>,
    x: &Activations,
    y: &mut [f32],
) {
    debug_assert_eq!(x.n_rows(), y.len() / linear.n);
    if linear.is_reordered() {
        multiply_reordered(cpu, scratch, linear, x, y);
    } else {
        let x = in_forms(cpu, read_by(cpu, linear.weights()), x, &mut scratch.forms);
        for Piece { weight, first_row, .. } in &linear.pieces {
            let output = MatmulOutput { data: y, stride: linear.n, offset: *first_row };
            cpu.matmul(weight, x, output);
        }
    }
    if !linear.factors.is_empty() {
        cpu.scale_columns(y, linear.n, &linear.factors);
    }
    if let Some(bias) = &linear.bias {
        cpu.add_bias(y, bias);
    }
}
