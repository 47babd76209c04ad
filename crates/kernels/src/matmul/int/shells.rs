//! The loop of the parent compiled for the target features of each instruction set.

use super::avx2::{AvxVnni, Maddubs};
use super::avx512::Vnni;
use super::micro;
use crate::layout::int::IntLayout;
use crate::matmul::{Tile, row_chunks};
use crate::quantize::IntRows;
use crate::rows::lanes::{Avx2, Avx512};

/// Walks a tile: its rows in chunks, its panels several at once and those left over one by one.
///
/// The pairs `MR => NR` list every length that a chunk can have.
macro_rules! walk {
    ($tile:expr, $layout:ident, $proof:expr, $max_rows:literal, $($mr:literal => $nr:literal),+) => {
        for rows in row_chunks($tile.m, $max_rows) {
            match rows.len() {
                $($mr => {
                    let n_wide = $tile.n_panels / $nr * $nr;
                    // SAFETY: the rows of the chunk and these panels are inside the tile.
                    unsafe {
                        for panel in (0..n_wide).step_by($nr) {
                            micro::<_, _, $layout, $mr, $nr>($proof, $tile, rows.start, panel);
                        }
                        for panel in n_wide..$tile.n_panels {
                            micro::<_, _, $layout, $mr, 1>($proof, $tile, rows.start, panel);
                        }
                    }
                })+
                n_rows => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
            }
        }
    };
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::matmul) unsafe fn avx512<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx512::assume(), Vnni::assume()) };
    walk!(tile, L, proof, 8, 1 => 1, 2 => 1, 3 => 2, 4 => 2, 5 => 2, 6 => 2, 7 => 2, 8 => 2);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(in crate::matmul) unsafe fn avxvnni<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx2::assume(), AvxVnni::assume()) };
    walk!(tile, L, proof, 4, 1 => 1, 2 => 1, 3 => 1, 4 => 1);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn avx2<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let proof = unsafe { (Avx2::assume(), Maddubs) };
    walk!(tile, L, proof, 4, 1 => 1, 2 => 1, 3 => 1, 4 => 1);
}

/// The twin of [`avxvnni`] for tests on machines with AVX-512.
///
/// # Safety
///
/// This CPU has the features below.
#[cfg(test)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(in crate::matmul) unsafe fn avxvnni_by_avx512<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx2::assume(), super::avx2::Avx512VlVnni::assume()) };
    walk!(tile, L, proof, 4, 1 => 1, 2 => 1, 3 => 1, 4 => 1);
}
