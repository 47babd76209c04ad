//! How a product is cut into blocks: strips of panels by blocks of rows, handed out to threads.

use std::ops::Range;

use super::{Target, Tile};
use crate::cpu::Cpu;
use crate::layout::PackedMatrix;
use crate::ops::activations::Form;
use crate::tuning::Tuning;

/// Rows per block are a multiple of this, which all tiles in vector registers divide.
pub(super) const ROW_BLOCK_UNIT: usize = 24;

/// Sizes that blocks have at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastBlock {
    /// Bytes of activations.
    row_bytes: usize,
    /// Panels, from [`MANY_ROWS`](Self::MANY_ROWS) on, and for int8 products from 16 rows on where there
    /// are so many that threads end together all the same (bf16: 3 % slower).
    strip_panels: usize,
    /// Rows, from there on.
    rows: usize,
    /// Rows that kernels take together.
    unit: usize,
    /// Rows of each thread from which the threads share the rows of a product and not its strips.
    shared_rows: usize,
}

impl LeastBlock {
    /// No size but those of the tuning.
    pub(super) const TUNED: Self = Self {
        row_bytes: 0,
        strip_panels: 0,
        rows: ROW_BLOCK_UNIT,
        unit: 2 * ROW_BLOCK_UNIT,
        shared_rows: usize::MAX,
    };
    /// Tiles put weights in order for each block of rows, and scales of rows for each strip; every CPU
    /// that has them has 2 MiB of second-level cache.
    #[cfg(target_arch = "x86_64")]
    pub(super) const TILES: Self = Self {
        row_bytes: 1 << 20,
        strip_panels: 16,
        rows: 4 * ROW_BLOCK_UNIT,
        unit: 32,
        shared_rows: 128,
    };
    /// Weights that are widened once for each block of rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) const WIDENED: Self = Self { rows: 4 * ROW_BLOCK_UNIT, ..Self::TUNED };
    /// Rows from which larger blocks pay.
    pub(super) const MANY_ROWS: usize = 48;
}

/// How the rows and panels of a product are cut into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_panels: usize,
    pub(super) strip_panels: usize,
    pub(super) m: usize,
    pub(super) rows_per_block: usize,
    /// Bytes of the activations that may lie in cache.
    pub(super) row_bytes: usize,
    /// Whether each thread takes neighbouring strips. Kernels of floats read several panels at
    /// once, and are up to 10 % slower with it (bf16 on Zen 5, 32 rows).
    pub(super) in_shares: bool,
    pub(super) n_threads: usize,
    /// Sizes that these blocks have at least.
    pub(super) least: LeastBlock,
    /// Whether each thread takes neighbouring rows, in place of strips.
    pub(super) by_rows: bool,
}

impl Cut {
    /// Cuts `m` rows; `n_row_strips` is the number of rows times strips in the whole call.
    pub(super) fn new(cpu: &Cpu, w: &PackedMatrix, m: usize, n_row_strips: usize) -> Self {
        let Tuning { strip_panels, row_block_bytes, .. } = cpu.tuning.clamped();
        let form = cpu.form_for(w);
        let (row_bytes, least) = match form {
            Form::Int8(_) => (w.k(), cpu.kernels.matmul.least),
            Form::Bf16 => (w.k() * 2, cpu.kernels.matmul.least),
            Form::F32 | Form::Rounded => (w.k() * 4, cpu.kernels.matmul.least_float),
        };
        let is_many = m >= LeastBlock::MANY_ROWS;
        let unit = if is_many { least.rows } else { ROW_BLOCK_UNIT };
        let in_cache = row_block_bytes.max(least.row_bytes);
        let most = (in_cache / row_bytes.max(1)).max(unit);
        let wanted_blocks = 4 * cpu.team.n_threads();
        let wide = strip_panels.max(least.strip_panels);
        let n_wide = (n_row_strips * strip_panels).div_ceil(wide);
        let is_wide = match m {
            0..16 => false,
            16..LeastBlock::MANY_ROWS => {
                matches!(form, Form::Int8(_)) && n_wide >= 2 * wanted_blocks * m
            }
            _ => n_wide >= wanted_blocks * unit,
        };
        let (strip_panels, n_row_strips) =
            if is_wide { (wide, n_wide) } else { (strip_panels, n_row_strips) };
        // A narrow matrix has too few strips for all threads, so each block gets fewer rows.
        let per_thread = n_row_strips.div_ceil(wanted_blocks);
        let rows_per_block = most.min(per_thread.max(unit)).next_multiple_of(unit);
        let (n_panels, n_threads) = (w.n_panels(), cpu.team.n_threads());
        let in_shares = matches!(form, Form::Int8(_));
        Self {
            n_panels,
            strip_panels,
            m,
            rows_per_block,
            row_bytes: in_cache,
            in_shares,
            n_threads,
            least,
            by_rows: false,
        }
    }

    /// The same product, so cut that each thread takes neighbouring rows, if it has many: what the
    /// operations before it wrote, and those after it read, then stays with the thread.
    ///
    /// 512 rows on two threads of a Granite Rapids, in ms: with tiles, Q8_0 [896, 896] 0.61 and by rows
    /// 0.50, [896, 4864] 3.03 and 2.69, bf16 [896, 896] 0.42 and 0.35. Outputs that go through an activation
    /// stay with the thread anyway: 6.2 and by rows 6.4. Without tiles narrow matrices lose: Q8_0
    /// [128, 896] 0.14 and 0.15 with `avx512vnni`, 0.39 and 0.44 with `avx512`.
    pub(super) fn by_rows(self) -> Self {
        let rows_per_thread = self.m.div_ceil(self.n_threads);
        if self.n_threads == 1 || rows_per_thread < self.least.shared_rows {
            return self;
        }
        let rows_per_block = self.rows_per_block.min(rows_per_thread.next_multiple_of(16));
        Self { rows_per_block, by_rows: true, ..self }
    }

    /// Rows of a block, each of which has so many bytes of outputs that are to stay in cache, too: half
    /// as many as its activations. All blocks have about as many rows.
    pub(super) fn rows_beside(&self, output_bytes: usize) -> usize {
        let unit = self.least.unit;
        let most = self.row_bytes / 2 / output_bytes.max(1) / unit * unit;
        let most = self.rows_per_block.min(most.max(ROW_BLOCK_UNIT));
        let n_blocks = self.m.div_ceil(most).max(1);
        most.min(self.m.max(1).div_ceil(n_blocks).next_multiple_of(unit))
    }

    pub(super) fn n_strips(&self) -> usize {
        self.n_panels.div_ceil(self.strip_panels)
    }

    fn n_row_blocks(&self) -> usize {
        self.m.div_ceil(self.rows_per_block)
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.n_strips() * self.n_row_blocks()
    }

    /// Panels from panel `panel` to those that its thread multiplies next, if all threads are
    /// equally fast; see [`Block::to_next`].
    pub(super) fn panels_ahead(&self, panel: usize, n_panels: usize) -> usize {
        let n_strips = if self.in_shares { 1 } else { self.n_threads };
        let n_ahead = n_strips * self.strip_panels;
        if panel + n_ahead < n_panels { n_ahead } else { 0 }
    }

    /// Runs `f` once for each of this product's blocks, on all threads.
    pub(super) fn hand_out<F: Fn(usize) + Sync>(&self, cpu: &Cpu, f: F) {
        if self.by_rows {
            let (n_rows, n_strips) = (self.n_row_blocks(), self.n_strips());
            let run = |idx: usize| f(idx % n_rows * n_strips + idx / n_rows);
            return cpu.team.for_each_tile_of_table(n_strips, n_rows, run);
        }
        self.hand_out_table(cpu, (self.n_row_blocks(), self.n_strips()), f);
    }

    /// Runs `f` once for each of the `n_blocks` blocks of several such products.
    pub(super) fn hand_out_all<F: Fn(usize) + Sync>(&self, cpu: &Cpu, n_blocks: usize, f: F) {
        self.hand_out_table(cpu, (1, n_blocks), f);
    }

    fn hand_out_table<F: Fn(usize) + Sync>(
        &self,
        cpu: &Cpu,
        (n_rows, n_columns): (usize, usize),
        f: F,
    ) {
        if self.in_shares {
            cpu.team.for_each_tile_of_table(n_rows, n_columns, f);
        } else {
            cpu.team.for_each_tile(n_rows * n_columns, f);
        }
    }

    pub(super) fn block(&self, idx: usize) -> Block {
        let (row_block, strip) = (idx / self.n_strips(), idx % self.n_strips());
        let (row, panel) = (row_block * self.rows_per_block, strip * self.strip_panels);
        Block {
            panels: panel..(panel + self.strip_panels).min(self.n_panels),
            rows: row..(row + self.rows_per_block).min(self.m),
            to_next: self.panels_ahead(panel, self.n_panels),
        }
    }
}

/// A block of a product: some panels by some rows of the inputs.
pub(super) struct Block {
    pub(super) panels: Range<usize>,
    pub(super) rows: Range<usize>,
    /// Panels to those that this thread multiplies next (a wrapped number where they lie before
    /// these); 0 where there are none.
    pub(super) to_next: usize,
}

impl Block {
    pub(super) fn tile<'a, X>(&self, w: &'a PackedMatrix, x: X, y: Target) -> Tile<'a, X> {
        Tile {
            w: w.panels(self.panels.clone()),
            panel_bytes: w.panel_bytes(),
            n_panels: self.panels.len(),
            k: w.k(),
            m: self.rows.len(),
            to_next: self.to_next.wrapping_mul(w.panel_bytes()),
            x,
            y,
        }
    }
}
