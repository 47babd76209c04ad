//! The loop of the parent compiled for the target features of each instruction set.

use super::avx2::{AvxVnni, Maddubs};
use super::avx512::Vnni;
use super::micro;
use crate::layout::int::IntLayout;
use crate::matmul::Tile;
use crate::quantize::IntRows;
use crate::rows::lanes::{Avx2, Avx512};

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::matmul) unsafe fn avx512<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx512::assume(), Vnni::assume()) };
    // With more to do per group than 16 sums and 16 accumulators leave registers for, six rows are
    // faster than eight: 600 instead of 557 GOP/s for Q4K at M = 32, and 665 instead of 620 for Q8G32
    // the other way round.
    if L::SPLIT || L::BIAS {
        walk_tile!(tile, (proof), micro [_ _ L], tall 6: [3 => 2, 4 => 2, 5 => 2, 6 => 2], short 4: [1 => 1, 2 => 1]);
    } else {
        walk_tile!(tile, (proof), micro [_ _ L], tall 8: [3 => 2, 4 => 2, 5 => 2, 6 => 2, 7 => 2, 8 => 2], short 4: [1 => 1, 2 => 1]);
    }
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(in crate::matmul) unsafe fn avxvnni<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proofs are about.
    let proof = unsafe { (Avx2::assume(), AvxVnni::assume()) };
    walk_tile!(tile, (proof), micro [_ _ L], tall 4: [3 => 1, 4 => 1], short 2: [1 => 1, 2 => 1]);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn avx2<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let proof = unsafe { (Avx2::assume(), Maddubs) };
    walk_tile!(tile, (proof), micro [_ _ L], tall 4: [3 => 1, 4 => 1], short 2: [1 => 1, 2 => 1]);
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
    walk_tile!(tile, (proof), micro [_ _ L], tall 4: [3 => 1, 4 => 1], short 2: [1 => 1, 2 => 1]);
}
