//! The loop of the parent compiled for the target features of each instruction set.

use super::{FloatRows, Tile, micro};
use crate::layout::float::FloatLayout;
use crate::simd::{Avx2, Avx512};

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::ops::matmul) unsafe fn avx512<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let s = unsafe { Avx512::assume() };
    walk_tile!(tile, (s), micro [_ L], tall 8: [5 => 2, 6 => 2, 7 => 2, 8 => 2], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 4]);
}

/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::ops::matmul) unsafe fn avx2<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    // SAFETY: the features of this function are those that the proof is about.
    let s = unsafe { Avx2::assume() };
    walk_tile!(tile, (s), micro [_ L], tall 6: [5 => 1, 6 => 1], short 4: [1 => 4, 2 => 2, 3 => 1, 4 => 1]);
}
