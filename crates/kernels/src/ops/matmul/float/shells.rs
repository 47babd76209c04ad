//! The loop of the parent compiled for the target features of each instruction set.

use super::{FloatRows, Tile, blocked, micro};
use crate::layout::float::FloatLayout;
use crate::simd::{Avx2, Avx512};

/// A kernel of an instruction set, and its part for `MR` rows by `NR` panels, which is a function of
/// its own: one function with all of them takes the compiler much longer.
macro_rules! shell {
    ($name:ident, $rows:ident, features $features:literal, $simd:ident, $($walk:tt)+) => {
        /// # Safety
        ///
        /// This CPU has the features below.
        #[target_feature(enable = $features)]
        pub(in crate::ops::matmul) unsafe fn $name<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
            walk_tile!(tile, (), $rows [L], $($walk)+);
        }

        /// # Safety
        ///
        /// As [`micro`]; this CPU has the features below.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn $rows<L: FloatLayout, const MR: usize, const NR: usize>(
            (): (),
            tile: &Tile<'_, FloatRows<'_>>,
            row: usize,
            panel: usize,
        ) {
            // SAFETY: the features of this function are those that the proof is about; the caller
            // vouches for the rest.
            unsafe { micro::<_, L, MR, NR>($simd::assume(), tile, row, panel) };
        }
    };
}

/// AVX-512.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::ops::matmul) unsafe fn avx512<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    let (many, others) = blocked::split(tile, blocked::n_panels(tile));
    // SAFETY: the features of this function are those of both kernels.
    unsafe {
        if many.n_panels > 0 {
            blocked::tile::<L>(&many);
        }
        if others.n_panels > 0 {
            avx512_single::<L>(&others);
        }
    }
}

shell!(
    avx512_single, avx512_rows, features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq", Avx512,
    tall 8: [5 => 2, 6 => 2, 7 => 2, 8 => 2], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 4]
);
shell!(
    avx2, avx2_rows, features "avx2,fma,f16c", Avx2,
    tall 6: [5 => 1, 6 => 1], short 4: [1 => 4, 2 => 2, 3 => 1, 4 => 1]
);
