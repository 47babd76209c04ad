//! `y = x Wᵀ`: one matrix product for every number of rows.
//!
//! ```text
//! for each strip of panels (4: 64 outputs)              handed out to threads
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
//! * f32, f16: `acc[n] = fma(x[k], w[n][k], acc[n])` for `k` ascending, from 0.
//! * bf16: activations are rounded to bf16, and of each pair of inputs the second comes first (an odd
//!   last one is followed by a zero): what `vdpbf16ps` does.
//! * quantized layouts: `acc[n] = fma(isum as f32, sx * sw[n], acc[n])` for groups of 32 (or of 16,
//!   as the layout has its scales) ascending, from 0; `isum` is the exact integer dot product of the
//!   group (at most 2^19, so exact in f32), `sx` and `sw` the scales of activations and weights.
//!   Where weights have a bias, `acc[n] = fma(sx * (sum x as f32), bias[n], acc[n])` follows.
//!
//! A product of heads ([`Cpu::matmul_heads`]) is one product per head, of its own inputs and weights;
//! the heads of all rows are handed out to threads together.
//!
//! It does not mention rows, tiles or threads: the bits are the same for every M, on every
//! instruction set, with any team. (Payload and sign of a NaN are not part of the promise, nor are
//! bf16 numbers below 2^-126, which `vdpbf16ps` takes for zero.)
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

use crate::activations::{Activations, Form, HalfRows};
use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix, WeightLayout, with_float_layout, with_int_layout};
use crate::tuning::Tuning;

/// Walks a tile: its rows in chunks, its panels several at once and those left over one by one.
///
/// `micro::<.., MR, NR>(proof, tile, row, panel)`, its other parameters in brackets, is a kernel over `MR` rows and `NR` panels. The
/// pairs `MR => NR` list every length that a chunk can have: chunks are `tall`, unless there are
/// so few rows that one `short` one takes them. Panels left over are taken by chunks of at most four
/// rows, so that fewer kernels are compiled.
#[cfg(target_arch = "x86_64")]
macro_rules! walk_tile {
    (
        $tile:expr, ($($proof:expr)?), $micro:ident [$($generic:tt)*],
        tall $max_tall:literal: [$($tall:literal => $tall_nr:literal),+],
        short $max_short:literal: [$($short:literal => $short_nr:literal),+]
    ) => {{
        let tile = $tile;
        macro_rules! run {
            ($mr:literal, $nr:literal, $row:expr, $panels:expr) => {
                for panel in $panels.step_by($nr) {
                    // SAFETY: the rows and these panels are inside the tile, and the caller runs
                    // with the kernel's target features.
                    unsafe { $micro::<$($generic,)* $mr, $nr>(($($proof)?), tile, $row, panel) };
                }
            };
        }
        /// The panels that are taken several at once.
        macro_rules! wide {
            ($nr:literal) => {
                tile.n_panels / $nr * $nr
            };
        }
        for rows in crate::matmul::row_chunks(tile.m, $max_tall) {
            let row = rows.start;
            let left_over = match rows.len() {
                $($short => {
                    run!($short, $short_nr, row, (0..wide!($short_nr)));
                    wide!($short_nr)
                })+
                $($tall => {
                    run!($tall, $tall_nr, row, (0..wide!($tall_nr)));
                    wide!($tall_nr)
                })+
                n_rows => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
            };
            if left_over < tile.n_panels {
                for part in crate::matmul::row_chunks(rows.len(), 4) {
                    let (row, panels) = (row + part.start, left_over..tile.n_panels);
                    match part.len() {
                        1 => run!(1, 1, row, panels),
                        2 => run!(2, 1, row, panels),
                        3 => run!(3, 1, row, panels),
                        _ => run!(4, 1, row, panels),
                    }
                }
            }
        }
    }};
}

mod float;
mod int;
#[cfg(test)]
mod shape_tests;
#[cfg(test)]
mod tests;

/// Rows per block are a multiple of this, which all register tiles divide.
const ROW_BLOCK_UNIT: usize = 24;

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
    float: fn(WeightLayout) -> float::Kernel,
    int: fn(WeightLayout) -> int::Kernel,
    /// bf16 weights with bf16 activations, where there is an instruction for it that pays.
    pub(crate) bf16: Option<Bf16Kernel>,
}

/// A kernel for pairs of bf16, and whether to use it.
#[derive(Debug)]
pub(crate) struct Bf16Kernel {
    pub(crate) is_used: fn() -> bool,
    tile: unsafe fn(&Tile<'_, HalfRows<'_>>),
}

/// The kernel of an integer layout, out of a generic function over all of them.
macro_rules! int_kernel {
    ($layout:expr, $kernel:ident) => {
        with_int_layout!($layout,
            L => int::$kernel::<L> as int::Kernel,
            else unreachable!("invariant: float layouts have kernels of their own")
        )
    };
}

/// The kernel of a float layout, out of a generic function over all of them.
macro_rules! float_kernel {
    ($layout:expr, $kernel:ident) => {
        with_float_layout!($layout,
            L => float::$kernel::<L> as float::Kernel,
            else unreachable!("invariant: integer layouts have kernels of their own")
        )
    };
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, float $float:ident, int $int:ident, bf16 $bf16:expr) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            float: |layout| float_kernel!(layout, $float),
            int: |layout| int_kernel!(layout, $int),
            bf16: $bf16,
        };
    };
}
table!(SCALAR, float scalar, int scalar, bf16 None);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX2, float avx2, int avx2, bf16 None
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVXVNNI, float avx2, int avxvnni, bf16 None
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512, float avx512, int avx512,
    bf16 Some(Bf16Kernel { is_used: float::bf16_pays, tile: float::bf16 })
);
#[cfg(all(test, target_arch = "x86_64"))]
table!(AVXVNNI_BY_AVX512, float avx2, int avxvnni_by_avx512, bf16 None);
/// With `vdpbf16ps` wherever it exists, and without it, so that tests reach both.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static AVX512_BF16: Table =
    Table { bf16: Some(Bf16Kernel { is_used: float::has_bf16, tile: float::bf16 }), ..AVX512 };
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static AVX512_NO_BF16: Table = Table { bf16: None, ..AVX512 };

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
    /// When the shapes do not fit, or `x` is not held in the form that `w` reads.
    pub fn matmul(&self, w: &PackedMatrix, x: &Activations, y: MatmulOutput<'_>) {
        let heads = ProductHeads { n_heads: 1, n: w.n(), m: x.n_rows(), stride: 0 };
        self.product(w, x, &heads, y);
    }

    /// Computes `y[i, offset + h * head_stride ..][.. n] = x[h, i] W[h]ᵀ` for every head `h` and row
    /// `i`.
    ///
    /// # Shapes
    ///
    /// `w`: `[n_heads * n, k]`, the rows of each head together, `n` a multiple of 16; `x`:
    /// `[n_heads * m, k]`, likewise; `y`: `[m, stride]`.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit, outputs of heads overlap, or `x` is not held in the form that `w`
    /// reads.
    pub fn matmul_heads(
        &self,
        w: &PackedMatrix,
        n_heads: usize,
        x: &Activations,
        y: MatmulOutput<'_>,
        head_stride: usize,
    ) {
        assert!(n_heads > 0, "a product of heads has heads");
        assert_eq!([w.n() % n_heads, x.n_rows() % n_heads], [0, 0], "whole heads");
        let (n, m) = (w.n() / n_heads, x.n_rows() / n_heads);
        assert!(n % PANEL == 0 || n_heads == 1, "heads of {n} outputs in panels of {PANEL}");
        assert!(n <= head_stride || n_heads == 1, "{n} outputs every {head_stride} columns");
        self.product(w, x, &ProductHeads { n_heads, n, m, stride: head_stride }, y);
    }

    fn product(
        &self,
        w: &PackedMatrix,
        x: &Activations,
        heads: &ProductHeads,
        y: MatmulOutput<'_>,
    ) {
        assert_eq!(x.width(), w.k(), "width of the activations");
        let k = w.k();
        let floats = |data, block: &Block| {
            let start = block.rows.start * k;
            let rows: &[f32] = data;
            FloatRows { data: &rows[start..], stride: k }
        };
        let table = self.kernels.matmul;
        // SAFETY of the kernels: `self.kernels` is supported by this CPU; `tile` keeps its
        // invariants.
        match self.kernels.form_for(w.layout()) {
            Form::Int8 => {
                let (rows, kernel) = (x.int8_rows(), (table.int)(w.layout()));
                self.for_each_block(w, heads, k, y, |block, y| {
                    let rows = rows.starting_at(block.rows.start);
                    // SAFETY: see above.
                    unsafe { kernel(&block.tile(w, rows, y)) }
                });
            }
            Form::Bf16 => {
                let rows = x.bf16_rows();
                let kernel = table.bf16.as_ref().expect("invariant: the form has a kernel").tile;
                self.for_each_block(w, heads, k * 2, y, |block, y| {
                    let data = &rows.data[block.rows.start * rows.stride..];
                    // SAFETY: see above.
                    unsafe { kernel(&block.tile(w, HalfRows { data, ..rows }, y)) }
                });
            }
            form => {
                let data = if form == Form::F32 { x.floats() } else { x.rounded() };
                let kernel = (table.float)(w.layout());
                self.for_each_block(w, heads, k * 4, y, |block, y| {
                    // SAFETY: see above.
                    unsafe { kernel(&block.tile(w, floats(data, &block), y)) }
                });
            }
        }
    }

    /// Cuts a product into blocks and hands them to the team.
    fn for_each_block(
        &self,
        w: &PackedMatrix,
        heads: &ProductHeads,
        row_bytes: usize,
        y: MatmulOutput<'_>,
        kernel: impl Fn(Block, Target) + Sync,
    ) {
        let &ProductHeads { n_heads, n, m, stride: head_stride } = heads;
        if m == 0 || n == 0 {
            return;
        }
        let end = (n_heads - 1).checked_mul(head_stride).and_then(|last| {
            let first = y.offset.checked_add(last)?;
            first.checked_add(n)
        });
        let end = end.expect("columns that fit in memory");
        assert!(m == 1 || end <= y.stride, "columns {}..{end} of {}", y.offset, y.stride);
        let needed = (m - 1).checked_mul(y.stride).and_then(|start| start.checked_add(end));
        let needed = needed.expect("an output that fits in memory");
        assert!(y.data.len() >= needed, "{} of {needed} output elements", y.data.len());
        let whole = Target { ptr: y.data.as_mut_ptr(), stride: y.stride, n_columns: n };

        let n_threads = self.team.n_threads();
        let Tuning { strip_panels, row_block_bytes, min_parallel_bytes } = self.tuning.clamped();
        // Panels of one head.
        let n_panels = n.div_ceil(PANEL);
        let n_strips = n_panels.div_ceil(strip_panels);
        let most = (row_block_bytes / row_bytes.max(1)).max(ROW_BLOCK_UNIT);
        // A narrow matrix has too few strips for all threads: give them fewer rows each.
        let wanted = most.min((m * n_strips * n_heads).div_ceil(4 * n_threads).max(ROW_BLOCK_UNIT));
        let rows_per_block = wanted.next_multiple_of(ROW_BLOCK_UNIT);
        let n_row_blocks = m.div_ceil(rows_per_block);

        let run = |idx: usize| {
            let (head, idx) = (idx / (n_strips * n_row_blocks), idx % (n_strips * n_row_blocks));
            let (row_block, strip) = (idx / n_strips, idx % n_strips);
            let first_row = row_block * rows_per_block;
            let panels = strip * strip_panels..((strip + 1) * strip_panels).min(n_panels);
            let rows = first_row..(first_row + rows_per_block).min(m);
            let first_column = panels.start * PANEL;
            let column = y.offset + head * head_stride + first_column;
            let whole = &whole;
            // SAFETY: the element exists: see `needed`.
            let ptr = unsafe { whole.ptr.add(rows.start * whole.stride + column) };
            let target = Target { ptr, n_columns: whole.n_columns - first_column, ..*whole };
            let panels = head * n_panels + panels.start..head * n_panels + panels.end;
            kernel(Block { panels, rows: head * m + rows.start..head * m + rows.end }, target);
        };
        let n_blocks = n_heads * n_strips * n_row_blocks;
        if w.n_bytes().saturating_mul(m) < min_parallel_bytes {
            (0..n_blocks).for_each(run);
        } else {
            self.team.for_each_tile(n_blocks, run);
        }
    }
}

/// The heads of a product: one, unless each has inputs and weights of its own.
struct ProductHeads {
    n_heads: usize,
    /// Outputs of a head.
    n: usize,
    /// Rows of a head.
    m: usize,
    /// Columns from the outputs of one head to those of the next.
    stride: usize,
}

/// A block of a product: some panels by some rows of the inputs.
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
