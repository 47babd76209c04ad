//! Products of up to 32 rows and 32 columns, a pair of tiles each.

use super::super::chunk::SCORE_LINE;
use crate::simd::LANES;
use crate::simd::tiles::{Form, ROW_BYTES, ROWS, Stored, TILE_BYTES, Tiles};

/// Tiles 0 to 7: sums of the first 16 of these flat rows, sums of the others, rows of both,
/// columns.
fn form(n_flat: usize) -> Form {
    let (first, others) = (n_flat.min(ROWS), n_flat.saturating_sub(ROWS));
    let rows = [first, first, others, others, first, others, ROWS, ROWS];
    Form::new(rows.map(|n_rows| (n_rows, ROW_BYTES)))
}

/// The forms of tiles for a number of flat rows, 32 at a time.
pub(super) struct Forms {
    tiles: Tiles,
    /// Flat rows of the present form.
    n_flat: usize,
}

impl Forms {
    /// The form for `n_flat` rows.
    ///
    /// # Safety
    ///
    /// Tiles are supported, and none are alive in this thread.
    pub(super) unsafe fn new(n_flat: usize) -> Self {
        // SAFETY: the caller vouches for tiles.
        Self { tiles: unsafe { Tiles::of(form(n_flat)) }, n_flat }
    }

    /// Sets as many lines as there are rows, which lie `stride` floats apart from `to` on, to the
    /// products of the rows and of 16 columns, or of 32 if `has_second`.
    ///
    /// # Safety
    ///
    /// The rows have a block for each of the columns, and the lines can be written.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn multiply(
        &mut self,
        rows: Rows,
        columns: &[[Stored; 2]],
        to: *mut f32,
        stride: usize,
        has_second: bool,
    ) {
        if rows.n != self.n_flat {
            self.tiles.set(form(rows.n));
            self.n_flat = rows.n;
        }
        // SAFETY: the tiles have the form; the caller vouches for the rows and the lines.
        unsafe {
            if rows.n > ROWS {
                product::<true>(&mut self.tiles, rows, columns, to, stride, has_second);
            } else {
                product::<false>(&mut self.tiles, rows, columns, to, stride, has_second);
            }
        }
    }
}

/// Up to 32 rows in the order of tiles.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Number of rows.
    n: usize,
    /// Block 0 of row 0.
    first: *const u8,
    /// Bytes from a row to the next.
    stride: usize,
    /// Bytes from a block to the next.
    to_block: usize,
    /// Bytes from row 0 to row 16.
    to_second: usize,
}

impl Rows {
    /// `n` rows in tiles of their own.
    pub(super) fn in_tiles(n: usize, tiles: &[[Stored; 2]]) -> Self {
        let (first, to_block) = (tiles.as_ptr().cast(), 2 * TILE_BYTES);
        Self { n, first, stride: ROW_BYTES, to_block, to_second: TILE_BYTES }
    }

    /// `n` rows in lines of scores.
    pub(super) fn in_lines(n: usize, lines: &[f32]) -> Self {
        let (first, stride) = (lines.as_ptr().cast(), SCORE_LINE * size_of::<f32>());
        Self { n, first, stride, to_block: ROW_BYTES, to_second: ROWS * stride }
    }
}

/// `C[i][j] += A[i] B[j]`, where `BOTH` says whether there are rows of the second half.
///
/// # Safety
///
/// The tiles have the form of as many rows, and the block at `a.first` can be read.
#[inline(always)]
unsafe fn add<const BOTH: bool>(tiles: &mut Tiles, a: Rows, b: &[Stored; 2]) {
    // SAFETY: operands are whole tiles.
    unsafe {
        tiles.load::<4>(a.first, a.stride);
        tiles.load_once::<6>(b[0].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<0, 4, 6>();
        tiles.load_once::<7>(b[1].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<1, 4, 7>();
        if BOTH {
            tiles.load::<5>(a.first.wrapping_add(a.to_second), a.stride);
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<3, 5, 7>();
        }
    }
}

/// [`Forms::multiply`] for a form that is set.
///
/// # Safety
///
/// As there, and the tiles have the form of as many rows.
#[inline(always)]
unsafe fn product<const BOTH: bool>(
    tiles: &mut Tiles,
    mut rows: Rows,
    columns: &[[Stored; 2]],
    to: *mut f32,
    stride: usize,
    has_second: bool,
) {
    clear::<BOTH>(tiles);
    // SAFETY: the caller vouches for the rows and the lines.
    unsafe {
        for columns in columns {
            add::<BOTH>(tiles, rows, columns);
            rows.first = rows.first.wrapping_add(rows.to_block);
        }
        store::<BOTH>(tiles, to, stride, has_second);
    }
}

/// Sets the sums to zero.
#[inline(always)]
fn clear<const BOTH: bool>(tiles: &mut Tiles) {
    tiles.zero::<0>();
    tiles.zero::<1>();
    if BOTH {
        tiles.zero::<2>();
        tiles.zero::<3>();
    }
}

/// Writes the sums: of the first columns to `to`, of the others sixteen floats after them, where
/// there are any; flat rows lie `stride` floats apart.
///
/// # Safety
///
/// This memory can be written.
#[inline(always)]
unsafe fn store<const BOTH: bool>(tiles: &Tiles, to: *mut f32, stride: usize, has_second: bool) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        tiles.store::<0>(to.cast(), stride * 4);
        if has_second {
            tiles.store::<1>(to.add(LANES).cast(), stride * 4);
        }
        if BOTH {
            let to = to.add(ROWS * stride);
            tiles.store::<2>(to.cast(), stride * 4);
            if has_second {
                tiles.store::<3>(to.add(LANES).cast(), stride * 4);
            }
        }
    }
}
