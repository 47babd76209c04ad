//! The loop of the parent compiled for the target features of each instruction set.

use super::avx2::{AvxVnni, Maddubs};
use super::avx512::{Maddubs as Maddubs512, Vnni};
use super::micro;
use crate::layout::int::IntLayout;
use crate::ops::matmul::{Tile, row_chunks};
use crate::ops::quantize::IntRows;
use crate::simd::{Avx2, Avx512};

/// Walks a tile: its rows in chunks of at most `$max`, its panels one by one.
macro_rules! walk {
    ($tile:expr, $layout:ident, $proof:expr, $max:literal: $($mr:literal)+) => {
        for rows in row_chunks($tile.m, $max) {
            match rows.len() {
                $($mr => for panel in 0..$tile.n_panels {
                    // SAFETY: the rows of the chunk and the panel are inside the tile.
                    unsafe { micro::<_, _, $layout, $mr>($proof, $tile, rows.start, panel) };
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
pub(in crate::ops::matmul) unsafe fn avx512vnni<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx512::assume(), Vnni::assume()) };
    walk!(tile, L, proof, 8: 1 2 3 4 5 6 7 8);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::ops::matmul) unsafe fn avx512<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let proof = unsafe { (Avx512::assume(), Maddubs512) };
    // Eight rows are at most a tenth faster than four, and take much longer to compile.
    walk!(tile, L, proof, 6: 1 2 3 4 5 6);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(in crate::ops::matmul) unsafe fn avxvnni<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx2::assume(), AvxVnni::assume()) };
    walk!(tile, L, proof, 4: 1 2 3 4);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::ops::matmul) unsafe fn avx2<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let proof = unsafe { (Avx2::assume(), Maddubs) };
    walk!(tile, L, proof, 4: 1 2 3 4);
}

/// The twin of [`avxvnni`] for tests on machines with AVX-512.
///
/// # Safety
///
/// This CPU has the features below.
#[cfg(test)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(in crate::ops::matmul) unsafe fn avxvnni_by_avx512<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx2::assume(), super::avx2::Avx512VlVnni::assume()) };
    walk!(tile, L, proof, 4: 1 2 3 4);
}
