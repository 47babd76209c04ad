//! Shared parts of the products on tile registers: the form of 32 rows by two panels, with two tiles of
//! rows, two of weights and four of sums; the prefetch of the next weights, and of the lines of the
//! outputs.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use super::{Target, Tile};
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

/// The packed weights that are multiplied next, which are prefetched meanwhile: the steps until then
/// share the lines evenly.
pub(super) struct Coming<const N: usize = PANELS> {
    /// The next line of each panel.
    at: [*const u8; N],
    lines_per_step: usize,
    n_left: usize,
}

impl Coming {
    /// These bytes of two panels, from panel `first` on, or of as many as the tile has.
    pub(super) fn new<X>(
        tile: &Tile<'_, X>,
        first: usize,
        bytes: Range<usize>,
        n_steps: usize,
    ) -> Self {
        let n_panels = PANELS.min(tile.n_panels.saturating_sub(first));
        let n_left = if n_panels == 0 { 0 } else { bytes.len().div_ceil(64) };
        let panel = |i: usize| {
            let panel = first + i.min(n_panels.saturating_sub(1));
            tile.w.as_ptr().wrapping_add(panel * tile.panel_bytes + bytes.start)
        };
        Self::of([panel(0), panel(1)], n_left, n_steps)
    }
}

impl<const N: usize> Coming<N> {
    /// `n_lines` lines from each of these addresses on.
    pub(super) fn of(at: [*const u8; N], n_lines: usize, n_steps: usize) -> Self {
        Self { at, lines_per_step: n_lines.div_ceil(n_steps.max(1)), n_left: n_lines }
    }

    /// The lines of one step.
    #[inline(always)]
    pub(super) fn prefetch(&mut self) {
        let n = self.lines_per_step.min(self.n_left);
        self.n_left -= n;
        for _ in 0..n {
            for at in &mut self.at {
                // SAFETY: a prefetch may name any address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
                *at = at.wrapping_add(64);
            }
        }
    }
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
