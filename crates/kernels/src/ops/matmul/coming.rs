//! Prefetching the weights that a thread multiplies next while it multiplies others.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use super::Tile;
use super::pairs_of_tiles::PANELS;

/// The packed weights that are multiplied next, which are prefetched meanwhile: the steps until then
/// share the lines evenly.
pub(super) struct Coming<const N: usize> {
    /// The next line of each panel.
    at: [*const u8; N],
    lines_per_step: usize,
    n_left: usize,
}

impl Coming<PANELS> {
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
