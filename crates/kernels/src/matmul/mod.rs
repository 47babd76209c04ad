//! `y = x Wᵀ`: one matrix product for every number of rows.
//!
//! ```text
//! for each strip of up to 4 panels (64 outputs)         handed out to threads
//!   for each block of rows that fits in cache           handed out to threads
//!     tile kernel (one function pointer per layout)
//!       for each MR rows x NR panels                    accumulators in registers
//!         for k ascending: unpack NR weights once, multiply them with MR rows
//! ```
//!
//! # Canonical order
//!
//! Lanes are outputs, so nothing is ever added across lanes, and every output has one accumulator:
//!
//! * float layouts: `acc[n] = fma(x[k], w[n][k], acc[n])` for `k` ascending, from 0.
//! * quantized layouts: `acc[n] = fma(isum as f32, sx * sw[n], acc[n])` for groups of 32 (or of 16,
//!   as the layout has its scales) ascending, from 0; `isum` is the exact integer dot product of the
//!   group (at most 2^19, so exact in f32), `sx` and `sw` the scales of activations and weights.
//!   Where weights have a bias, `acc[n] = fma(sx * (sum x as f32), bias[n], acc[n])` follows.
//!
//! It does not mention rows, tiles or threads: the bits are the same for every M, on every
//! instruction set, with any team. (Payload and sign of a NaN are not part of the promise.)
//!
//! # Bytes and operations
//!
//! Reads `n_bytes` of weights once per block of rows, and `m * k` activations once per strip, from
//! cache; `2 * m * n * k` operations. M = 1 runs at the speed of memory. From about M = 16 the
//! multipliers are the limit.
//!
//! Considered and not taken (reasoned, not measured): one tile per thread (a slow core holds up the
//! rest); strips of one panel for floats at M = 1 (one chain of multiply-adds is slower than
//! memory: 4 cycles per 32 bytes).

use std::ops::Range;

use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix, WeightLayout, with_int_layout};
use crate::quantize::QuantizedRows;

/// Walks a tile: its rows in chunks, its panels several at once and those left over one by one.
///
/// `micro::<LAYOUT>` is a kernel over `MR` rows and `NR` panels, `fn micro<LAYOUT, MR, NR>(tile, row,
/// panel)`; the pairs `MR => NR` list every length that a chunk can have, up to the largest.
#[cfg(target_arch = "x86_64")]
macro_rules! walk_tile {
    ($tile:expr, $max_rows:expr, $micro:ident::<$layout:ident>, $($mr:literal => $nr:literal),+) => {
        for rows in super::row_chunks($tile.m, $max_rows) {
            match rows.len() {
                $($mr => {
                    let n_wide = $tile.n_panels / $nr * $nr;
                    // SAFETY: the rows of the chunk and these panels are inside the tile, and the
                    // caller runs with the kernel's target features.
                    unsafe {
                        for panel in (0..n_wide).step_by($nr) {
                            $micro::<$layout, $mr, $nr>($tile, rows.start, panel);
                        }
                        for panel in n_wide..$tile.n_panels {
                            $micro::<$layout, $mr, 1>($tile, rows.start, panel);
                        }
                    }
                })+
                n_rows => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2_float;
#[cfg(target_arch = "x86_64")]
mod avx512_float;
mod int;
mod scalar;
#[cfg(test)]
mod tests;

/// Panels per strip.
const STRIP: usize = 4;
/// Weight bytes times rows below which waking the team costs more than it gives.
const MIN_PARALLEL_BYTES: usize = 128 << 10;
/// Activation bytes that a block of rows may take, so that it stays in a core's second-level cache.
const ROW_BLOCK_BYTES: usize = 256 << 10;
/// Rows per block are a multiple of this, which all register tiles divide.
const ROW_BLOCK_UNIT: usize = 24;

/// Activations of a product.
#[derive(Clone, Copy, Debug)]
pub struct MatmulInput<'a> {
    /// `[m, k]`; read by float layouts, and by quantized ones when `quantized` is absent.
    pub rows: &'a [f32],
    /// The same rows quantized; read by quantized layouts. Absent, they are quantized on the fly,
    /// at the price of an allocation.
    pub quantized: Option<&'a QuantizedRows>,
}

/// Where a product goes: columns `offset..offset + n` of rows that are `stride` elements apart.
#[derive(Debug)]
pub struct MatmulOutput<'a> {
    /// `[m, stride]`; the last row may be cut after the columns written.
    pub data: &'a mut [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// First column written.
    pub offset: usize,
}

/// The kernels of this module for one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    float: fn(WeightLayout) -> FloatKernel,
    int: fn(WeightLayout) -> int::Kernel,
}

type FloatKernel = unsafe fn(&Tile<'_, FloatRows<'_>>);

/// The kernel of an integer layout, out of a generic function over all of them.
macro_rules! int_kernel {
    ($layout:expr, $kernel:ident) => {
        with_int_layout!($layout,
            L => int::$kernel::<L> as int::Kernel,
            else unreachable!("invariant: float layouts have kernels of their own")
        )
    };
}

pub(crate) static SCALAR: Table = Table {
    float: |layout| match layout {
        WeightLayout::F32 => scalar::f32,
        WeightLayout::F16 => scalar::f16,
        _ => scalar::bf16,
    },
    int: |layout| int_kernel!(layout, scalar),
};
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Table =
    Table { float: avx2_float_kernel, int: |layout| int_kernel!(layout, avx2) };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVXVNNI: Table =
    Table { float: avx2_float_kernel, int: |layout| int_kernel!(layout, avxvnni) };
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static AVXVNNI_BY_AVX512: Table =
    Table { float: avx2_float_kernel, int: |layout| int_kernel!(layout, avxvnni_by_avx512) };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Table = Table {
    float: |layout| match layout {
        WeightLayout::F32 => avx512_float::tile::<{ avx512_float::F32 }>,
        WeightLayout::F16 => avx512_float::tile::<{ avx512_float::F16 }>,
        _ => avx512_float::tile::<{ avx512_float::BF16 }>,
    },
    int: |layout| int_kernel!(layout, avx512),
};

#[cfg(target_arch = "x86_64")]
fn avx2_float_kernel(layout: WeightLayout) -> FloatKernel {
    match layout {
        WeightLayout::F32 => avx2_float::tile::<{ avx2_float::F32 }>,
        WeightLayout::F16 => avx2_float::tile::<{ avx2_float::F16 }>,
        _ => avx2_float::tile::<{ avx2_float::BF16 }>,
    }
}

/// Borrowed float rows.
#[derive(Clone, Copy, Debug)]
struct FloatRows<'a> {
    data: &'a [f32],
    stride: usize,
}

/// What a tile kernel computes: `m` rows by `n_panels` consecutive panels.
///
/// Invariants, on which the kernels' pointer arithmetic relies: `w` holds exactly `n_panels`
/// panels of `panel_bytes`; `x` holds `m` rows of `k`; `y` is valid for `m` rows.
struct Tile<'a, X> {
    w: &'a [u8],
    panel_bytes: usize,
    n_panels: usize,
    k: usize,
    m: usize,
    x: X,
    y: Target,
}

/// Where a tile writes. A pointer, because tiles of other threads interleave with it in memory.
#[derive(Clone, Copy)]
struct Target {
    /// Row 0, first column of the tile.
    ptr: *mut f32,
    stride: usize,
    /// Columns of the tile that exist; the padding of the last panel does not.
    n_columns: usize,
}

// SAFETY: the tiles of one product write disjoint elements of a buffer that outlives it.
unsafe impl Sync for Target {}

impl Target {
    /// Writes the accumulators of one panel to one row.
    ///
    /// # Safety
    ///
    /// `row` and `panel` are inside the tile.
    #[inline(always)]
    unsafe fn store(&self, row: usize, panel: usize, values: &[f32; PANEL]) {
        let n = PANEL.min(self.n_columns - panel * PANEL);
        // SAFETY: the first `n` columns of the panel exist in this row of the output.
        unsafe {
            let to = self.ptr.add(row * self.stride + panel * PANEL);
            if n == PANEL {
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, PANEL);
            } else {
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, n);
            }
        }
    }
}

impl Cpu {
    /// Computes `y[i, offset..offset + n] = x[i] Wᵀ` for every row `i`.
    ///
    /// # Shapes
    ///
    /// `w`: `[n, k]`; `x`: `[m, k]`; `y`: `[m, stride]` with `offset + n <= stride`. Any `m`, also
    /// 0.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit.
    pub fn matmul(&self, w: &PackedMatrix, x: MatmulInput<'_>, y: MatmulOutput<'_>) {
        if w.needs_quantized_input() {
            let mut own = QuantizedRows::new();
            let rows = match x.quantized {
                Some(rows) => rows,
                None => {
                    self.quantize_rows(x.rows, w.k(), &mut own);
                    &own
                }
            };
            assert_eq!(rows.k(), w.k(), "width of the quantized activations");
            let m = rows.n_rows();
            let kernel = (self.kernels.matmul.int)(w.layout());
            let view = rows.view();
            self.for_each_block(w, m, w.k(), y, |block, y| {
                let x = view.starting_at(block.rows.start);
                // SAFETY: `self.kernels` is supported by this CPU; `tile` keeps its invariants.
                unsafe { kernel(&block.tile(w, x, y)) }
            });
        } else {
            let m = x.rows.len().checked_div(w.k()).unwrap_or(0);
            assert_eq!(x.rows.len(), m * w.k(), "activations are not rows of {}", w.k());
            let kernel = (self.kernels.matmul.float)(w.layout());
            self.for_each_block(w, m, w.k() * 4, y, |block, y| {
                let data = &x.rows[block.rows.start * w.k()..];
                let x = FloatRows { data, stride: w.k() };
                // SAFETY: `self.kernels` is supported by this CPU; `tile` keeps its invariants.
                unsafe { kernel(&block.tile(w, x, y)) }
            });
        }
    }

    /// Cuts a product into blocks and hands them to the team.
    fn for_each_block(
        &self,
        w: &PackedMatrix,
        m: usize,
        row_bytes: usize,
        y: MatmulOutput<'_>,
        kernel: impl Fn(Block, Target) + Sync,
    ) {
        if m == 0 || w.n() == 0 {
            return;
        }
        let end = y.offset.checked_add(w.n()).expect("columns that fit in memory");
        assert!(m == 1 || end <= y.stride, "columns {}..{end} of {}", y.offset, y.stride);
        let needed = (m - 1).checked_mul(y.stride).and_then(|start| start.checked_add(end));
        let needed = needed.expect("an output that fits in memory");
        assert!(y.data.len() >= needed, "{} of {needed} output elements", y.data.len());
        let whole = Target { ptr: y.data.as_mut_ptr(), stride: y.stride, n_columns: w.n() };

        let n_threads = self.team.n_threads();
        let n_strips = w.n_panels().div_ceil(STRIP);
        let most = (ROW_BLOCK_BYTES / row_bytes.max(1)).max(ROW_BLOCK_UNIT);
        // A narrow matrix has too few strips for all threads: give them fewer rows each.
        let wanted = most.min((m * n_strips).div_ceil(4 * n_threads).max(ROW_BLOCK_UNIT));
        let rows_per_block = wanted.next_multiple_of(ROW_BLOCK_UNIT);
        let n_row_blocks = m.div_ceil(rows_per_block);

        let run = |idx: usize| {
            let (row_block, strip) = (idx / n_strips, idx % n_strips);
            let first_row = row_block * rows_per_block;
            let panels = strip * STRIP..((strip + 1) * STRIP).min(w.n_panels());
            let rows = first_row..(first_row + rows_per_block).min(m);
            let first_column = panels.start * PANEL;
            let whole = &whole;
            // SAFETY: the element exists: see `needed`.
            let ptr = unsafe { whole.ptr.add(rows.start * whole.stride + y.offset + first_column) };
            let target = Target { ptr, n_columns: whole.n_columns - first_column, ..*whole };
            kernel(Block { panels, rows }, target);
        };
        let n_blocks = n_strips * n_row_blocks;
        if w.n_bytes().saturating_mul(m) < MIN_PARALLEL_BYTES {
            (0..n_blocks).for_each(run);
        } else {
            self.team.for_each_tile(n_blocks, run);
        }
    }
}

/// A block of a product: some panels by some rows.
struct Block {
    panels: Range<usize>,
    rows: Range<usize>,
}

impl Block {
    fn tile<'a, X>(&self, w: &'a PackedMatrix, x: X, y: Target) -> Tile<'a, X> {
        Tile {
            w: w.panels(self.panels.clone()),
            panel_bytes: w.panel_bytes(),
            n_panels: self.panels.len(),
            k: w.k(),
            m: self.rows.len(),
            x,
            y,
        }
    }
}

/// Cuts `m` rows into the fewest chunks of at most `max`, as equal as they can be.
#[inline(always)]
fn row_chunks(m: usize, max: usize) -> impl Iterator<Item = Range<usize>> {
    let n_chunks = m.div_ceil(max);
    (0..n_chunks).map(move |i| i * m / n_chunks..(i + 1) * m / n_chunks)
}
