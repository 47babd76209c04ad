//! The first half of a perceptron: outputs go through an activation before they are written.
//!
//! ```text
//! W    |--- gate [width, k] ---|--- up [width, k] ---|        one matrix, or one for each
//!           strip i                 strip i
//!              └────── scratch ────────┘    [rows, 2 strips] f32, of the thread: in its cache
//! out  |-- act(gate) · up --|               in the forms that the second half reads
//! ```
//!
//! The bits are those of [`Cpu::matmul`] and [`Cpu::gated_mul`] (or [`Cpu::activate`]) one after the
//! other: the same tile kernels in the same canonical order, then the same activations.
//!
//! # Bytes and operations
//!
//! As many as the product. It saves `4 · m · n` bytes written and read: 512 rows of a model of 0.5B
//! parameters are 20 MB for each layer, more than the second-level caches hold, and a decoding
//! batch is read by threads that have not written it. On two threads of a Granite Rapids, Q8_0,
//! [9728, 896] and its activation in ms, one after the other and together: 14.6 and 9.7 at 512
//! rows, 0.68 and 0.55 at 16.
//!
//! Activations with one scale for a whole row are scaled when the row is complete, which no block
//! is: they take the two operations ([`ActivatedOp::fits`]).

use std::ops::Range;

use pelton_base::Act;

use super::{Block, Cut, Target, with_scratch};
use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix};
use crate::ops::activations::{Activations, Writer};
use crate::tuning::Tuning;

/// Outputs of a matrix, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// `[n, k]`.
    pub weight: &'a PackedMatrix,
    /// The first output.
    pub first: usize,
}

/// The operation `act(x gateᵀ) · (x upᵀ)`, or `act(x upᵀ)` without a gate.
#[derive(Clone, Copy, Debug)]
pub struct ActivatedOp<'a> {
    /// The gate.
    pub gate: Option<Outputs<'a>>,
    /// The factor of the activated gate, or all there is.
    pub up: Outputs<'a>,
    /// Activation of the gate, or of all there is.
    pub act: Act,
}

impl<'a> ActivatedOp<'a> {
    /// The gate, if there is one, and its factor.
    fn outputs(&self) -> impl Iterator<Item = Outputs<'a>> {
        self.gate.into_iter().chain([self.up])
    }

    /// Whether blocks of these outputs can be written to `out`: they are whole panels, and no scale of
    /// `out` belongs to a whole row.
    pub fn fits(&self, out: &Activations) -> bool {
        let is_panels = |n: usize| n.is_multiple_of(PANEL);
        self.outputs().all(|outputs| is_panels(outputs.first))
            && is_panels(out.width())
            && !out.forms().has_scales_of_rows()
    }
}

impl Cpu {
    /// Computes `act(x gateᵀ) · (x upᵀ)`, or `act(x upᵀ)`, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, k]`; `out`: rows of as many elements as outputs are taken of each matrix. Any `m`,
    /// also 0.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit, [`ActivatedOp::fits`] has said no, or `x` is not held in the forms
    /// that the matrices read.
    pub fn matmul_activated(&self, op: &ActivatedOp<'_>, x: &Activations, out: &mut Activations) {
        assert!(op.fits(out), "invariant: whole panels, and no scale of a whole row");
        for Outputs { weight, first } in op.outputs() {
            assert_eq!(x.width(), weight.k(), "width of the activations");
            let end = first.checked_add(out.width());
            assert!(
                end.is_some_and(|end| end <= weight.n()),
                "outputs {first}.. of {}",
                weight.n()
            );
        }
        let (m, n_panels) = (x.n_rows(), out.width() / PANEL);
        // Parts of a row begin and end at whole groups of it.
        let panels_per_group = out.forms().part_unit() / PANEL;
        let Tuning { strip_panels, min_parallel_bytes, .. } = self.tuning.clamped();
        let n_matrices = op.outputs().count();
        let n_row_strips = n_matrices * n_panels.div_ceil(strip_panels) * m;
        let cut = Cut::new(self, op.up.weight, m, n_row_strips);
        let strip_panels = cut.strip_panels.next_multiple_of(panels_per_group);
        let rows_per_block = cut.rows_beside(n_matrices * strip_panels * PANEL * size_of::<f32>());
        let cut = Cut { n_panels, strip_panels, rows_per_block, ..cut };
        let step = Step { cpu: self, op, x, out: &out.writer(self, m) };
        let run = |idx: usize| step.block(cut.block(idx));
        let n_bytes: usize = op.outputs().map(|o| o.weight.panel_bytes() * n_panels).sum();
        if n_bytes.saturating_mul(m) < min_parallel_bytes {
            (0..cut.n_blocks()).for_each(run);
        } else {
            cut.hand_out(self, run);
        }
    }
}

/// State of one call of [`Cpu::matmul_activated`].
struct Step<'a> {
    cpu: &'a Cpu,
    op: &'a ActivatedOp<'a>,
    x: &'a Activations,
    out: &'a Writer<'a>,
}

impl Step<'_> {
    /// Computes one block.
    fn block(&self, Block { panels, rows, to_next }: Block) {
        let columns = panels.start * PANEL..panels.end * PANEL;
        let stride = self.op.outputs().count() * columns.len();
        with_scratch(rows.len() * stride, |scratch| {
            for (i, outputs) in self.op.outputs().enumerate() {
                let first = outputs.first / PANEL;
                let own = first + panels.start..first + panels.end;
                let y = Target {
                    ptr: scratch.as_mut_ptr().wrapping_add(i * columns.len()),
                    stride,
                    n_columns: columns.len(),
                };
                let block =
                    Block { panels: own, rows: rows.clone(), to_next: self.to_next(i, to_next) };
                self.cpu.multiply_tile(outputs.weight, self.x, rows.start, block, y);
            }
            for (row, outputs) in rows.zip(scratch.chunks_exact(stride)) {
                self.finish(row, columns.clone(), outputs);
            }
        });
    }

    /// Panels from those of matrix `i` to the next ones that this thread multiplies, in the same matrix, if
    /// they are `to_next` ahead of the first of these; 0 where they are not.
    fn to_next(&self, i: usize, to_next: usize) -> usize {
        let Some(gate) = self.op.gate else { return to_next };
        if !std::ptr::eq(gate.weight, self.op.up.weight) {
            return 0;
        }
        let to_up = (self.op.up.first / PANEL).wrapping_sub(gate.first / PANEL);
        match (i, to_next) {
            (0, _) => to_up,
            (_, 0) => 0,
            _ => to_next.wrapping_sub(to_up),
        }
    }

    /// Writes some columns of a row.
    fn finish(&self, row: usize, columns: Range<usize>, outputs: &[f32]) {
        let (kernels, act) = (self.cpu.kernels.rows, self.op.act as usize);
        let (gate, up) = outputs.split_at(outputs.len() - columns.len());
        // SAFETY: each column of each row belongs to one block; the kernels of a `Cpu` are available
        // on this machine.
        unsafe {
            self.out.columns(row, columns, |out| match self.op.gate {
                Some(_) => (kernels.gated[act])(gate, up, out),
                None => (kernels.plain[act])(up, out),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MatmulOutput;
    use super::super::tests::{activations, input, pack, scalar};
    use super::*;
    use crate::layout::WeightLayout;
    use crate::ops::activations::Forms;
    use crate::testing::{all_cpus, bits};
    use pelton_tensor::ActivationGroup;

    fn outputs(weight: &PackedMatrix, first: usize) -> Outputs<'_> {
        Outputs { weight, first }
    }

    /// Two operations, one after the other.
    fn in_turn(cpu: &Cpu, op: &ActivatedOp<'_>, x: &Activations, out: &mut Activations) {
        let width = out.width();
        let outputs: Vec<_> = op.outputs().collect();
        let stride = outputs.len() * width;
        let mut rows = vec![0.0; x.n_rows() * stride];
        for (i, outputs) in outputs.iter().enumerate() {
            let mut y = vec![0.0; x.n_rows() * outputs.weight.n()];
            let n = outputs.weight.n();
            cpu.matmul(outputs.weight, x, MatmulOutput { data: &mut y, stride: n, offset: 0 });
            for (rows, y) in rows.chunks_exact_mut(stride).zip(y.chunks_exact(n)) {
                rows[i * width..][..width].copy_from_slice(&y[outputs.first..][..width]);
            }
        }
        match op.gate {
            Some(_) => cpu.gated_mul(op.act, &rows, out),
            None => cpu.activate(op.act, &rows, out),
        }
    }

    #[test]
    fn activated_outputs_have_the_bits_of_two_operations_in_every_form() {
        let (width, k) = (160, 256);
        let int8 = Forms::int8;
        for (layout, others) in [
            (WeightLayout::Q8G32, WeightLayout::Q4K),
            (WeightLayout::Q4K, WeightLayout::Bf16),
            (WeightLayout::Bf16, WeightLayout::F32),
        ] {
            let both = pack(&scalar(), layout, 2 * width, k, false);
            let [gate, up] = [layout, others].map(|l| pack(&scalar(), l, width, k, false));
            for (gate, up) in [
                (Some(outputs(&both, 0)), outputs(&both, width)),
                (Some(outputs(&gate, 0)), outputs(&up, 0)),
                (None, outputs(&up, 0)),
                (None, outputs(&both, 48)),
            ] {
                for (m, forms, act) in [
                    (0, Forms::F32, Act::Silu),
                    (1, int8(ActivationGroup::Of32), Act::Silu),
                    (5, Forms::F32, Act::ReluSquared),
                    (24, int8(ActivationGroup::Of64), Act::Silu),
                    (70, int8(ActivationGroup::Of128), Act::GeluTanh),
                    (130, int8(ActivationGroup::Of32), Act::Silu),
                ] {
                    let op = ActivatedOp { gate, up, act };
                    let x = activations(m, k);
                    for cpu in all_cpus() {
                        let read = |forms: Forms, o: Outputs<'_>| forms.read_by(&cpu, o.weight);
                        let mut held =
                            Activations::new(k, op.outputs().fold(Forms::default(), read));
                        cpu.write_rows(&x, &mut held);
                        let empty = || Activations::new(width, forms);
                        let (mut expected, mut got) = (empty(), empty());
                        in_turn(&cpu, &op, &held, &mut expected);
                        assert!(op.fits(&got));
                        cpu.matmul_activated(&op, &held, &mut got);
                        let what =
                            format!("{} {layout:?} {others:?} {m} {forms:?}", cpu.kernels.name);
                        assert_eq!(got.n_rows(), m, "{what}");
                        assert!(all_bits(&got) == all_bits(&expected), "{what}");
                    }
                }
            }
        }
    }

    /// The elements held, as bits.
    fn all_bits(rows: &Activations) -> Vec<u32> {
        if rows.forms() == Forms::F32 {
            return bits(rows.floats());
        }
        let group = ActivationGroup::ALL.into_iter().find(|g| rows.forms() == Forms::int8(*g));
        let held = rows.int8(group.expect("int8 in one size of groups"));
        let mut row = vec![0.0; rows.width()];
        let mut all = Vec::new();
        for i in 0..rows.n_rows() {
            held.dequantize_row(i, &mut row);
            all.extend(bits(&row));
        }
        all
    }

    #[test]
    fn scales_of_whole_rows_and_parts_of_panels_do_not_fit() {
        let w = pack(&scalar(), WeightLayout::Q8G32, 96, 64, false);
        let op = |first| ActivatedOp {
            gate: Some(outputs(&w, 0)),
            up: outputs(&w, first),
            act: Act::Silu,
        };
        let rows = |width, forms| Activations::new(width, forms);
        assert!(op(48).fits(&rows(48, Forms::F32)));
        assert!(!op(40).fits(&rows(40, Forms::F32)));
        assert!(!op(40).fits(&rows(48, Forms::F32)));
        assert!(!op(32).fits(&rows(32, Forms::int8(ActivationGroup::Row))));
        let x = input(&Cpu::with(scalar().kernels, 1), &w, &activations(1, 64));
        let refused = std::panic::catch_unwind(|| {
            let mut out = rows(64, Forms::F32);
            Cpu::with(scalar().kernels, 1).matmul_activated(&op(48), &x, &mut out);
        });
        assert!(refused.is_err(), "48 and 64 outputs are more than 96");
    }
}
