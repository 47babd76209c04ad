//! Shared parts of the products on tile registers: the form of 32 rows by two panels, with two tiles of
//! rows, two of weights and four of sums; the prefetch of the lines of the outputs.

use std::arch::asm;

use super::Target;
use crate::layout::PANEL;
use crate::simd::tiles::{Form, ROW_BYTES, ROWS};

/// Panels that are multiplied together.
pub(super) const PANELS: usize = 2;
/// Tiles 0 to 7 for up to 32 rows: sums of the first 16 rows, sums of the others, rows of both,
/// weights.
pub(super) fn form(n_rows: usize) -> Form {
    let (first, others) = (n_rows.min(ROWS), n_rows.saturating_sub(ROWS));
    let rows = [first, first, others, others, first, others, ROWS, ROWS];
    Form::new(rows.map(|n_rows| (n_rows, ROW_BYTES)))
}

/// The lines of outputs that are written soon, which this core asks for meanwhile.
pub(super) struct Written {
    /// The next line.
    at: *const f32,
    stride: usize,
    n_left: usize,
}

impl Written {
    /// The outputs of `n_rows` rows, from row `row` on, for one panel.
    pub(super) fn new(y: &Target, row: usize, panel: usize, n_rows: usize) -> Self {
        let at = y.ptr.wrapping_add(row * y.stride + panel * PANEL);
        Self { at, stride: y.stride, n_left: n_rows }
    }

    /// Two lines, if there are any left.
    #[inline(always)]
    pub(super) fn prefetch(&mut self) {
        if self.n_left > 0 {
            for _ in 0..2 {
                // SAFETY: a prefetch may name any address; every CPU with tiles has this one.
                unsafe {
                    asm!(
                        "prefetchw [{at}]",
                        at = in(reg) self.at,
                        options(readonly, nostack, preserves_flags)
                    );
                }
                self.at = self.at.wrapping_add(self.stride);
            }
            self.n_left = self.n_left.saturating_sub(2);
        }
    }
}
