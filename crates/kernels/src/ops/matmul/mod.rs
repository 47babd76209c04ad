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
//! * bf16: activations are rounded to bf16. Of each 32 inputs, the first 16 and the last 16 have
//!   sums of their own, from 0, in which the second of each pair comes before the first; then
//!   `acc[n] = acc[n] + (first + last)`. It is the order that both `vdpbf16ps` and the product of
//!   tile registers can follow.
//! * quantized layouts: `acc[n] = fma(isum as f32, sx * sw[n], acc[n])` for groups of 32 (or of 16,
//!   as the layout has its scales) ascending, from 0; `isum` is the exact integer dot product of
//!   the group (at most 2^19, so exact in f32), `sx` and `sw` the scales of activations and
//!   weights. Where activations share scales in larger groups ([`Cpu::activation_group`]) and the
//!   weights do, too, a group has as many inputs as share both. Where weights have a bias,
//!   `acc[n] = fma(sx * (sum x as f32), bias[n], acc[n])` follows.
//!
//! The order does not mention rows, tiles or threads: the bits are the same for every M, on every
//! instruction set, with any team. (Payload and sign of a NaN are not part of the promise, nor are
//! bf16 numbers below 2^-126, which `vdpbf16ps` and tiles take for zero.)
//!
//! A product of heads ([`Cpu::matmul_heads`]) is one product per head, of its own inputs and
//! weights; the heads of all rows are handed out to threads together. [`Cpu::matmul_largest`] finds
//! the largest output of a row without writing the row.
//!
//! # Bytes and operations
//!
//! Reads `n_bytes` of weights once per block of rows, and `m * k` activations once per strip, from
//! cache; `2 * m * n * k` operations. M = 1 runs at the speed of memory. From about M = 16 the
//! multipliers are the limit.
//!
//! Considered and not taken (reasoned, not measured): one tile per thread (all threads would wait
//! for a slow core); strips of one panel for floats at M = 1 (one chain of multiply-adds is slower
//! than memory: 4 cycles per 32 bytes).

use std::cell::RefCell;
use std::ops::Range;

use pelton_tensor::AlignedVec;

use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix, WeightLayout, with_layout};
use crate::ops::activations::{Activations, Form, HalfRows};
use crate::tuning::Tuning;

/// Walks a tile: its rows in chunks, its panels several at once and those left over one by one.
///
/// `micro::<.., MR, NR>(proof, tile, row, panel)`, its other parameters in brackets, is a kernel
/// over `MR` rows and `NR` panels. The pairs `MR => NR` list every length that a chunk can have:
/// chunks are `tall`, unless one `short` chunk holds all rows. Chunks of at most four rows take the
/// panels left over, so that fewer kernels are compiled.
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
        for rows in crate::ops::matmul::row_chunks(tile.m, $max_tall) {
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
                for part in crate::ops::matmul::row_chunks(rows.len(), 4) {
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

mod activated;
#[cfg(target_arch = "x86_64")]
mod coming;
mod cut;
mod float;
mod groups;
mod heads;
mod int;
mod largest;
#[cfg(target_arch = "x86_64")]
mod pairs_of_tiles;
#[cfg(test)]
mod shape_tests;
#[cfg(test)]
mod tests;

pub use activated::{ActivatedOp, Outputs};
use cut::{Block, Cut, LeastBlock};
#[cfg(target_arch = "x86_64")]
pub(crate) use float::bf16_pays;
pub use groups::{MatmulGroup, MatmulGroups};
pub(crate) use int::MOST_INPUTS;
pub use largest::{Largest, LogitsOp};

/// Destination of a product: columns `offset..offset + n` of rows that are `stride` elements apart.
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
    /// The same for many rows, where another kernel is faster, and the rows of a block from which it is.
    int_many: Option<fn(WeightLayout) -> (usize, int::Kernel)>,
    /// bf16 weights with bf16 activations, where there is an instruction for it that pays.
    pub(crate) bf16: Option<Bf16Kernel>,
    /// Blocks of bf16 and int8 products, where kernels want larger ones than the tuning finds.
    least: LeastBlock,
    /// The same of products of floats.
    least_float: LeastBlock,
}

/// A kernel for pairs of bf16, and whether to use it.
#[derive(Debug)]
pub(crate) struct Bf16Kernel {
    pub(crate) is_used: fn() -> bool,
    tile: unsafe fn(&Tile<'_, HalfRows<'_>>),
    /// Puts activations, whole blocks of 32, in the order that the kernel reads, if it has one.
    pub(crate) arrange: Option<unsafe fn(&mut [u16])>,
}

#[cfg(target_arch = "x86_64")]
impl Bf16Kernel {
    /// The kernel for `vdpbf16ps`.
    const PAIRS: Self = Self { is_used: bf16_pays, tile: float::bf16, arrange: None };
    /// The kernel for tile registers.
    const TILES: Self =
        Self { is_used: || true, tile: float::tiles, arrange: Some(float::arrange_for_tiles) };
}

impl Table {
    /// The kernel for a block of `m` rows.
    fn int_for(&self, layout: WeightLayout, m: usize) -> int::Kernel {
        match self.int_many.map(|many| many(layout)) {
            Some((from_rows, kernel)) if m >= from_rows => kernel,
            _ => (self.int)(layout),
        }
    }
}

macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident, float $float:ident by $least:ident, int $int:ident, bf16 $bf16:expr
    ) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            float: |layout| with_layout!(layout,
                _I => unreachable!("invariant: an integer layout has a kernel of its own kind"),
                F => float::$float::<F> as float::Kernel,
            ),
            int: |layout| with_layout!(layout,
                I => int::$int::<I> as int::Kernel,
                _F => unreachable!("invariant: a float layout has a kernel of its own kind"),
            ),
            int_many: None,
            bf16: $bf16,
            least: LeastBlock::TUNED,
            least_float: LeastBlock::$least,
        };
    };
}
table!(SCALAR, float scalar by TUNED, int scalar, bf16 None);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX2, float avx2 by TUNED, int avx2, bf16 None
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVXVNNI, float avx2 by TUNED, int avxvnni, bf16 None
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512VNNI, float avx512_fastest by WIDENED, int avx512vnni,
    bf16 Some(Bf16Kernel::PAIRS)
);
#[cfg(target_arch = "x86_64")]
pub(crate) static AMX: Table = Table {
    int_many: Some(|layout| {
        with_layout!(layout,
            I => int::tiles::<I>(),
            _F => unreachable!("invariant: a float layout has a kernel of its own kind"),
        )
    }),
    bf16: Some(Bf16Kernel::TILES),
    least: LeastBlock::TILES,
    ..AVX512VNNI
};
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512, float avx512 by WIDENED, int avx512, bf16 None
);
#[cfg(all(test, target_arch = "x86_64"))]
table!(AVXVNNI_BY_AVX512, float avx2 by TUNED, int avxvnni_by_avx512, bf16 None);
/// With `vdpbf16ps` wherever it exists, and without it, so that tests reach both.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static AVX512_BF16: Table = Table {
    bf16: Some(Bf16Kernel { is_used: float::has_bf16, ..Bf16Kernel::PAIRS }),
    ..AVX512VNNI
};
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static AVX512_NO_BF16: Table = Table { bf16: None, ..AVX512VNNI };

/// Borrowed float rows.
#[derive(Clone, Copy, Debug)]
struct FloatRows<'a> {
    data: &'a [f32],
    stride: usize,
}

/// Arguments of a tile kernel: `m` rows by `n_panels` consecutive panels.
///
/// Invariants, on which the kernels' pointer arithmetic relies: `w` holds exactly `n_panels`
/// panels of `panel_bytes`; `x` holds `m` rows of `k`; `y` is valid for `m` rows.
struct Tile<'a, X> {
    w: &'a [u8],
    panel_bytes: usize,
    n_panels: usize,
    k: usize,
    m: usize,
    /// Bytes to the tile that this thread multiplies next (a wrapped number where it lies before
    /// this one); 0 where there is none.
    to_next: usize,
    x: X,
    y: Target,
}

/// Destination of a tile. It is a pointer, because tiles of other threads interleave in memory.
#[derive(Clone, Copy)]
struct Target {
    /// Row 0, first column of the tile.
    ptr: *mut f32,
    stride: usize,
    /// Columns of the tile without the padding of its last panel.
    n_columns: usize,
}

// SAFETY: the tiles of one product write disjoint elements of a buffer that outlives it.
unsafe impl Sync for Target {}

impl Target {
    /// Destination of a product of `m` rows with `w`.
    ///
    /// # Panics
    ///
    /// When `y` lacks some of these rows or columns.
    fn new(w: &PackedMatrix, m: usize, y: &mut MatmulOutput<'_>) -> Self {
        let end = y.offset.checked_add(w.n()).expect("columns that fit in memory");
        assert!(m <= 1 || end <= y.stride, "columns {}..{end} of {}", y.offset, y.stride);
        let needed = m.saturating_sub(1).checked_mul(y.stride);
        let needed = needed.and_then(|start| start.checked_add(end));
        let needed = needed.expect("an output that fits in memory");
        assert!(y.data.len() >= needed, "{} of {needed} output elements", y.data.len());
        let ptr = y.data.as_mut_ptr().wrapping_add(y.offset);
        Self { ptr, stride: y.stride, n_columns: w.n() }
    }

    /// Destination of one block of the product.
    fn of_block(&self, block: &Block) -> Self {
        let first_column = block.panels.start * PANEL;
        let ptr = self.ptr.wrapping_add(block.rows.start * self.stride + first_column);
        Self { ptr, n_columns: self.n_columns - first_column, ..*self }
    }

    /// Place of the first output of a panel in a row, unless the panel has columns too many.
    #[cfg(target_arch = "x86_64")]
    fn whole_panel(&self, row: usize, panel: usize) -> Option<*mut f32> {
        let is_whole = (panel + 1) * PANEL <= self.n_columns;
        is_whole.then(|| self.ptr.wrapping_add(row * self.stride + panel * PANEL))
    }

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
    pub fn matmul(&self, w: &PackedMatrix, x: &Activations, mut y: MatmulOutput<'_>) {
        assert_eq!(x.width(), w.k(), "width of the activations");
        let m = x.n_rows();
        if m == 0 || w.n() == 0 {
            return;
        }
        let Tuning { strip_panels, min_parallel_bytes, .. } = self.tuning.clamped();
        let cut = Cut::new(self, w, m, w.n_panels().div_ceil(strip_panels) * m).by_rows();
        let whole = Target::new(w, m, &mut y);
        let run = |idx: usize| self.multiply_block(w, x, 0, cut.block(idx), &whole);
        let n_blocks = cut.n_blocks();
        if w.n_bytes().saturating_mul(m) < min_parallel_bytes {
            (0..n_blocks).for_each(run);
        } else {
            cut.hand_out(self, run);
        }
    }

    /// Multiplies one block; its rows are counted from row `first_row` of `x`.
    fn multiply_block(
        &self,
        w: &PackedMatrix,
        x: &Activations,
        first_row: usize,
        block: Block,
        whole: &Target,
    ) {
        let y = whole.of_block(&block);
        self.multiply_tile(w, x, first_row + block.rows.start, block, y);
    }

    /// Multiplies a block whose first row is row `row` of `x`; its first output goes to the first
    /// element of `y`.
    fn multiply_tile(
        &self,
        w: &PackedMatrix,
        x: &Activations,
        row: usize,
        block: Block,
        y: Target,
    ) {
        let (table, k) = (self.kernels.matmul, w.k());
        // SAFETY of the kernels: `self.kernels` is supported by this CPU; `tile` keeps its
        // invariants.
        match self.form_for(w) {
            Form::Int8(group) => {
                let rows = x.int8_rows(group).starting_at(row);
                let kernel = table.int_for(w.layout(), block.rows.len());
                // SAFETY: see above.
                unsafe { kernel(&block.tile(w, rows, y)) }
            }
            Form::Bf16 => {
                let rows = x.bf16_rows();
                let kernel = table.bf16.as_ref().expect("invariant: the form has a kernel").tile;
                let data = &rows.data[row * rows.stride..];
                // SAFETY: see above.
                unsafe { kernel(&block.tile(w, HalfRows { data, ..rows }, y)) }
            }
            form => {
                let data = if form == Form::F32 { x.floats() } else { x.rounded() };
                let rows = FloatRows { data: &data[row * k..], stride: k };
                // SAFETY: see above.
                unsafe { (table.float)(w.layout())(&block.tile(w, rows, y)) }
            }
        }
    }
}

thread_local! {
    /// Outputs of a block; as many as were needed so far.
    static SCRATCH: RefCell<AlignedVec<f32>> = const { RefCell::new(AlignedVec::new()) };
}

/// Memory of this thread for `n` outputs that are used before they leave its cache.
fn with_scratch<R>(n: usize, with: impl FnOnce(&mut [f32]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(n);
        with(scratch)
    })
}

/// Cuts `m` rows into the fewest chunks of at most `max`, as equal as they can be.
#[inline(always)]
pub(super) fn row_chunks(m: usize, max: usize) -> impl Iterator<Item = Range<usize>> {
    let n_chunks = m.div_ceil(max);
    (0..n_chunks).map(move |i| i * m / n_chunks..(i + 1) * m / n_chunks)
}
