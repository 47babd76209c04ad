//! The loop of the parent compiled for the target features of each instruction set.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{FloatRows, Kernel, Tile, blocked, bytes, micro};
use crate::layout::PANEL;
use crate::layout::float::FloatLayout;
use crate::ops::matmul::Target;
use crate::simd::{Avx2, Avx512, byte_floats};

/// Rows of the product that is measured.
const N_ROWS: usize = 32;
/// Its panels.
const N_PANELS: usize = 8;
/// Its inputs: weights and rows together stay in the second level of cache.
const N_INPUTS: usize = 2048;
/// Times that it is measured.
const N_TIMES: usize = 4;

/// A kernel of an instruction set, and its part for `MR` rows by `NR` panels, which is a function
/// of its own: one function with all of them takes the compiler much longer.
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

/// AVX-512, by the kernel that is the fastest of this CPU.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::ops::matmul) unsafe fn avx512_fastest<L: FloatLayout>(
    tile: &Tile<'_, FloatRows<'_>>,
) {
    let are_many = tile.m >= blocked::LEAST_ROWS;
    // SAFETY: the features of this function are those of the kernels, and VBMI was found.
    unsafe {
        if L::IS_BYTES && byte_floats::is_supported() {
            if !are_many || one_panel_pays::<L>(bytes::tile::<L>) {
                return bytes::tile::<L>(tile);
            }
        } else if L::IS_PLAIN
            // Five rows of f32 by one panel wait for memory longer than by two.
            && (are_many || L::PAIR_BYTES <= 64)
            && one_panel_pays::<L>(avx512_by_one::<L>)
        {
            return avx512_by_one::<L>(tile);
        }
        avx512::<L>(tile);
    }
}

/// Whether `kernel`, which multiplies eight rows by one panel, is faster than blocks; measured once
/// for each size of weights, in a few milliseconds. No result depends on the answer.
///
/// # Safety
///
/// This CPU has the features of `kernel` and of [`avx512`].
unsafe fn one_panel_pays<L: FloatLayout>(kernel: Kernel) -> bool {
    static OF_BYTES: OnceLock<bool> = OnceLock::new();
    static OF_HALVES: OnceLock<bool> = OnceLock::new();
    static OF_FLOATS: OnceLock<bool> = OnceLock::new();
    let pays = match L::PAIR_BYTES {
        ..64 => &OF_BYTES,
        64 => &OF_HALVES,
        _ => &OF_FLOATS,
    };
    *pays.get_or_init(|| {
        // Memory that was never written would be one page of zeros, and in the cache.
        let (w, x) =
            (vec![0x11; N_PANELS * L::panel_bytes(N_INPUTS)], vec![1.0; N_ROWS * N_INPUTS]);
        let mut y = vec![0.0_f32; N_ROWS * N_PANELS * PANEL];
        let n_columns = N_PANELS * PANEL;
        let tile = Tile {
            w: &w,
            panel_bytes: L::panel_bytes(N_INPUTS),
            n_panels: N_PANELS,
            k: N_INPUTS,
            m: N_ROWS,
            to_next: 0,
            x: FloatRows { data: &x, stride: N_INPUTS },
            y: Target { ptr: y.as_mut_ptr(), stride: n_columns, n_columns },
        };
        let mut fastest = [Duration::MAX; 2];
        for _ in 0..N_TIMES {
            for (kernel, fastest) in [kernel, avx512::<L>].into_iter().zip(&mut fastest) {
                let start = Instant::now();
                // SAFETY: this CPU has the features, as the caller vouches; the tile has its rows.
                unsafe { kernel(&tile) };
                *fastest = start.elapsed().min(*fastest);
            }
        }
        fastest[0] < fastest[1]
    })
}

shell!(
    avx512_single, avx512_rows, features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq", Avx512,
    tall 8: [5 => 2, 6 => 2, 7 => 2, 8 => 2], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 4]
);
shell!(
    avx512_by_one, avx512_rows_by_one, features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq", Avx512,
    tall 8: [5 => 1, 6 => 1, 7 => 1, 8 => 1], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 4]
);
shell!(
    avx2, avx2_rows, features "avx2,fma,f16c", Avx2,
    tall 6: [5 => 1, 6 => 1], short 4: [1 => 4, 2 => 2, 3 => 1, 4 => 1]
);
