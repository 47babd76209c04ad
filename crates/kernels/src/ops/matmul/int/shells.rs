//! The loop of the parent compiled for the target features of each instruction set.

use super::avx2::{AvxVnni, Maddubs};
use super::avx512::{Maddubs as Maddubs512, Vnni};
use super::{micro, pairs};
use crate::layout::int::IntLayout;
use crate::ops::matmul::coming::Coming;
use crate::ops::matmul::{Tile, row_chunks};
use crate::ops::quantize::IntRows;
use crate::simd::{Avx2, Avx512};

/// A kernel of an instruction set: walks a tile, its rows in chunks of at most `$max`. Each number of
/// rows is a function of its own: one function with all of them takes the compiler much longer.
macro_rules! shell {
    (
        $(#[$doc:meta])*
        $name:ident, $rows:ident, features $features:literal, $proof:expr, $max:literal: $($mr:literal)+
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// This CPU has the features below.
        #[target_feature(enable = $features)]
        pub(in crate::ops::matmul) unsafe fn $name<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
            for rows in row_chunks(tile.m, $max) {
                match rows.len() {
                    // SAFETY: the rows of the chunk are inside the tile.
                    $($mr => unsafe { $rows::<L, $mr>(tile, rows.start) },)+
                    n_rows => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
                }
            }
        }

        /// `MR` rows by all panels.
        ///
        /// # Safety
        ///
        /// The rows are inside the tile, and this CPU has the features below.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn $rows<L: IntLayout, const MR: usize>(tile: &Tile<'_, IntRows<'_>>, row: usize) {
            for panel in 0..tile.n_panels {
                // SAFETY: the features of this function are those that the proofs are about; the
                // caller vouches for the rows.
                unsafe { micro::<_, _, L, MR>($proof, tile, row, panel) };
            }
        }
    };
}

shell!(
    /// AVX-512 with VNNI, one panel at a time.
    avx512vnni_single, avx512vnni_rows,
    features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni",
    (Avx512::assume(), Vnni::assume()), 8: 1 2 3 4 5 6 7 8
);

/// AVX-512 with VNNI.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::ops::matmul) unsafe fn avx512vnni<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    let n_single = if const { pairs::pays::<L>() } { pairs::rows_before(tile.m) } else { tile.m };
    // SAFETY: this CPU has the features, and the rows of all chunks are inside the tile.
    unsafe {
        avx512vnni_single::<L>(&Tile { m: n_single, ..*tile });
        if const { pairs::pays::<L>() } {
            let mut coming = pairs::coming(tile, tile.m - n_single);
            for rows in row_chunks(tile.m - n_single, pairs::MOST_ROWS) {
                let row = n_single + rows.start;
                match rows.len() {
                    5 => avx512vnni_pairs::<L, 5>(tile, row, &mut coming),
                    6 => avx512vnni_pairs::<L, 6>(tile, row, &mut coming),
                    n_rows => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
                }
            }
        }
    }
}

/// `MR` rows by all panels, two of them at a time.
///
/// # Safety
///
/// The rows are inside the tile, and this CPU has the features below.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512vnni_pairs<L: IntLayout, const MR: usize>(
    tile: &Tile<'_, IntRows<'_>>,
    row: usize,
    coming: &mut Coming<1>,
) {
    let n_paired = tile.n_panels / 2 * 2;
    // SAFETY: the features of this function are those that the proofs are about; the caller vouches
    // for the rows, and these panels are inside the tile.
    unsafe {
        let proofs = (Avx512::assume(), Vnni::assume());
        for panel in (0..n_paired).step_by(2) {
            pairs::micro::<L, MR>(proofs, tile, [row, panel], coming);
        }
        if n_paired < tile.n_panels {
            micro::<_, _, L, MR>(proofs, tile, row, n_paired);
        }
    }
}

shell!(
    /// AVX-512 without VNNI. Two Ice Lake cores, weights from memory, medians of the best call of five
    /// runs, in GOP/s at M = 8, 8 rows in place of 6: Q8G32 320 and 241, Q4G32 529 and 385.
    avx512, avx512_rows,
    features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq",
    (Avx512::assume(), Maddubs512), 8: 1 2 3 4 5 6 7 8
);
shell!(
    /// AVX2 with VNNI.
    avxvnni, avxvnni_rows, features "avx2,fma,f16c,avxvnni",
    (Avx2::assume(), AvxVnni::assume()), 4: 1 2 3 4
);
shell!(
    /// AVX2.
    avx2, avx2_rows, features "avx2,fma,f16c", (Avx2::assume(), Maddubs), 4: 1 2 3 4
);
#[cfg(test)]
shell!(
    /// The twin of [`avxvnni`] for tests on machines with AVX-512.
    avxvnni_by_avx512, avxvnni_by_avx512_rows,
    features "avx2,fma,f16c,avx512f,avx512vl,avx512vnni",
    (Avx2::assume(), super::avx2::Avx512VlVnni::assume()), 4: 1 2 3 4
);
