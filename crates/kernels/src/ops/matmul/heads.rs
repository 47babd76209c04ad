//! One product per head, of its own inputs and its own rows of one matrix.
//!
//! ```text
//! x  |-- m rows of head 0 --|-- m rows of head 1 --|..        W  |n rows of head 0|n of head 1|..
//! y  row i:  |.. offset ..|n of head 0|..|n of head 1|..|     head_stride from one to the next
//!
//! blocks   head 0: strips x row blocks | head 1: .. | ..      one list, handed out once
//! ```
//!
//! Each block is one of [`Cpu::matmul`]: the same tile kernels in the same canonical order, so that
//! a head has the bits that a product of its own would give it. Heads are whole panels of one
//! packed matrix: a matrix for each would be thousands of maps, most of them padding.
//!
//! Reads every weight once per block of rows, `2 * m * n_heads * n * k` operations. A head of
//! DeepSeek is 128 by 512: one product after the other would wake and join the team 128 times per
//! layer for 32 panels each.

use super::{Block, Cut, MatmulOutput, PackedMatrix, Target};
use crate::cpu::Cpu;
use crate::layout::PANEL;
use crate::ops::activations::Activations;
use crate::tuning::Tuning;

impl Cpu {
    /// Computes `y[i, offset + h * head_stride ..][.. n] = x[h, i] W[h]ᵀ` for every head `h` and
    /// row `i`.
    ///
    /// # Shapes
    ///
    /// `w`: `[n_heads * n, k]`, the rows of each head together, `n` a multiple of 16; `x`:
    /// `[n_heads * m, k]`, likewise; `y`: `[m, stride]`.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit, outputs of heads overlap, or `x` is not held in the form that
    /// `w` reads.
    pub fn matmul_heads(
        &self,
        w: &PackedMatrix,
        n_heads: usize,
        x: &Activations,
        y: MatmulOutput<'_>,
        head_stride: usize,
    ) {
        assert_eq!(x.width(), w.k(), "width of the activations");
        assert!(n_heads > 0, "a product of heads has heads");
        assert_eq!([w.n() % n_heads, x.n_rows() % n_heads], [0, 0], "whole heads");
        let (n, m) = (w.n() / n_heads, x.n_rows() / n_heads);
        assert_eq!(n % PANEL, 0, "heads of {n} outputs in panels of {PANEL}");
        assert!(n <= head_stride, "{n} outputs every {head_stride} columns");
        if m == 0 || n == 0 {
            return;
        }
        let last = (n_heads - 1).checked_mul(head_stride).and_then(|last| last.checked_add(n));
        let end = last.and_then(|last| last.checked_add(y.offset));
        let end = end.expect("columns that fit in memory");
        assert!(end <= y.stride, "columns {}..{end} of {}", y.offset, y.stride);
        let needed = (m - 1).checked_mul(y.stride).and_then(|start| start.checked_add(end));
        let needed = needed.expect("an output that fits in memory");
        assert!(y.data.len() >= needed, "{} of {needed} output elements", y.data.len());

        let n_panels = n / PANEL;
        let Tuning { strip_panels, min_parallel_bytes, .. } = self.tuning.clamped();
        let n_row_strips = n_heads * m * n_panels.div_ceil(strip_panels);
        let cut = Cut { n_panels, ..Cut::new(self, w, m, n_row_strips) };
        let whole = Target {
            ptr: y.data.as_mut_ptr().wrapping_add(y.offset),
            stride: y.stride,
            n_columns: 0,
        };
        let run = |idx: usize| {
            let whole = &whole;
            let (head, Block { panels, rows, .. }) =
                (idx / cut.n_blocks(), cut.block(idx % cut.n_blocks()));
            let first = head * n_panels;
            // Panels count from head 0, so the destination is moved as if the outputs of all heads
            // before lay right before those of this head.
            let ptr = whole.ptr.wrapping_add(head * head_stride).wrapping_sub(head * n);
            let own = Target { ptr, stride: whole.stride, n_columns: (head + 1) * n };
            let panels = first + panels.start..first + panels.end;
            // The next ones may be those of another head.
            let to_next = cut.panels_ahead(panels.start, w.n_panels());
            let block = Block { panels, rows, to_next };
            self.multiply_block(w, x, head * m, block, &own);
        };
        let n_blocks = n_heads * cut.n_blocks();
        if w.n_bytes().saturating_mul(m) < min_parallel_bytes {
            (0..n_blocks).for_each(run);
        } else {
            cut.hand_out_all(self, n_blocks, run);
        }
    }
}
