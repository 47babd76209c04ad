//! Multiplication rates of this machine, from loops that stay in registers.
//!
//! ```text
//! n_steps times:  for each of 12 or 16 accumulators:   acc = acc + a · b
//!
//!             int8                          bf16                f16                f32
//! amx         tdpbssd            4 x 32768  tdpbf16ps 4 x 16384 (as avx512vnni)
//! avx512vnni  vpdpbusd           16 x 128   vdpbf16ps 16 x 64   vfmadd-ph 16 x 64  vfmadd 16 x 32
//! avx512      maddubs, madd, add 16 x 128   -                   -                  vfmadd 16 x 32
//! avxvnni     vpdpbusd           12 x 64    -                   -                  vfmadd 12 x 16
//! avx2        maddubs, madd, add 12 x 64    -                   -                  vfmadd 12 x 16
//! scalar      plain loops over arrays in the first-level cache, as far as the compiler takes them
//!
//! counts are operations of a step; tiles do every 16th step
//! ```
//!
//! Twelve or more independent chains hide the latency of the longest instruction (5 cycles at two
//! per cycle). An empty `asm!` takes every accumulator in and out of its register: it costs no
//! instruction, and the compiler can neither fold two chains into one nor leave any out.
//!
//! Tried and dropped: `black_box` for that (it goes through memory, and the loop measures the
//! stores).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::cpu::Cpu;

/// Does `n_steps` and returns the operations done.
pub(super) type Loop = unsafe fn(usize) -> u64;

/// Steps of a pass: about a millisecond, a hundred times what waking the team takes.
const STEPS: usize = 100_000;
/// Elements of the arrays of the scalar loops.
const SCALAR_ELEMENTS: usize = 256;
/// Steps of which a scalar loop does one: its steps are longer.
const SCALAR_PER_STEP: usize = 16;

/// An integer dot product of int8 arrays.
pub(super) fn int8_scalar(n_steps: usize) -> u64 {
    let (a, b) = ([3_i8; SCALAR_ELEMENTS], [5_i8; SCALAR_ELEMENTS]);
    let n_steps = n_steps.div_ceil(SCALAR_PER_STEP);
    for _ in 0..n_steps {
        let (a, b) = black_box((&a, &b));
        let products = a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b));
        // Wrapping, because the loop would otherwise measure its checks for overflow.
        let sum = products.fold(0_i32, i32::wrapping_add);
        black_box(sum);
    }
    (n_steps * 2 * SCALAR_ELEMENTS) as u64
}

/// Separate multiplications and additions, because plain code has no fused instruction.
pub(super) fn f32_scalar(n_steps: usize) -> u64 {
    let (a, b) = (black_box(0.5_f32), black_box(0.25_f32));
    let mut acc = [0.0_f32; 32];
    let n_steps = n_steps.div_ceil(SCALAR_PER_STEP);
    for _ in 0..n_steps {
        for _ in 0..SCALAR_ELEMENTS / 32 {
            for acc in &mut acc {
                *acc = *acc * a + b;
            }
        }
        black_box(&mut acc);
    }
    (n_steps * 2 * SCALAR_ELEMENTS) as u64
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use crate::simd::tiles::{Form, INPUTS, ROW_BYTES, ROWS, Tiles};

    /// A value that the compiler knows nothing about, in the register where it is.
    macro_rules! opaque {
        ($class:ident, $value:expr) => {
            // SAFETY: a comment and no instruction.
            unsafe { asm!("/* {0} */", inout($class) $value, options(nomem, nostack, preserves_flags)) }
        };
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn int8_avx512vnni(n_steps: usize) -> u64 {
        let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
        let mut acc = [_mm512_setzero_si512(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm512_dpbusd_epi32(*acc, a, b);
                opaque!(zmm_reg, *acc);
            }
        }
        (n_steps * 16 * 128) as u64
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn int8_avx512(n_steps: usize) -> u64 {
        let (a, ones) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi16(black_box(1)));
        let mut b = _mm512_set1_epi8(black_box(5));
        let mut acc = [_mm512_setzero_si512(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                // Otherwise the product would be computed once for all steps.
                opaque!(zmm_reg, b);
                let product = _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), ones);
                *acc = _mm512_add_epi32(*acc, product);
                opaque!(zmm_reg, *acc);
            }
        }
        (n_steps * 16 * 128) as u64
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn int8_avx2(n_steps: usize) -> u64 {
        let (a, ones) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi16(black_box(1)));
        let mut b = _mm256_set1_epi8(black_box(5));
        let mut acc = [_mm256_setzero_si256(); 12];
        for _ in 0..n_steps {
            for acc in &mut acc {
                // Otherwise the product would be computed once for all steps.
                opaque!(ymm_reg, b);
                let product = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
                *acc = _mm256_add_epi32(*acc, product);
                opaque!(ymm_reg, *acc);
            }
        }
        (n_steps * 12 * 64) as u64
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub(crate) fn int8_avxvnni(n_steps: usize) -> u64 {
        let (a, b) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi8(black_box(5)));
        let mut acc = [_mm256_setzero_si256(); 12];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm256_dpbusd_avx_epi32(*acc, a, b);
                opaque!(ymm_reg, *acc);
            }
        }
        (n_steps * 12 * 64) as u64
    }

    /// Steps of which a loop over tiles does one: its steps are longer.
    const TILES_PER_STEP: usize = 16;

    /// Products of tiles with four sums.
    pub(crate) fn bf16_tiles(n_steps: usize) -> Option<u64> {
        let n_steps = n_steps.div_ceil(TILES_PER_STEP);
        // SAFETY: the table that this is in is for CPUs with tiles.
        let mut tiles = unsafe { Tiles::of(Form::new([(ROWS, ROW_BYTES); 8])) };
        zero_all(&mut tiles);
        for _ in 0..n_steps {
            tiles.dot_bf16::<0, 4, 5>();
            tiles.dot_bf16::<1, 4, 5>();
            tiles.dot_bf16::<2, 4, 5>();
            tiles.dot_bf16::<3, 4, 5>();
        }
        let n_products = ROWS * ROWS * INPUTS;
        Some((n_steps * 4 * 2 * n_products) as u64)
    }

    /// As [`bf16_tiles`], of bytes.
    pub(crate) fn int8_tiles(n_steps: usize) -> u64 {
        let n_steps = n_steps.div_ceil(TILES_PER_STEP);
        // SAFETY: as above.
        let mut tiles = unsafe { Tiles::of(Form::new([(ROWS, ROW_BYTES); 8])) };
        zero_all(&mut tiles);
        for _ in 0..n_steps {
            tiles.dot_int8::<0, 4, 5>();
            tiles.dot_int8::<1, 4, 5>();
            tiles.dot_int8::<2, 4, 5>();
            tiles.dot_int8::<3, 4, 5>();
        }
        let n_products = ROWS * ROWS * 2 * INPUTS;
        (n_steps * 4 * 2 * n_products) as u64
    }

    fn zero_all(tiles: &mut Tiles) {
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        tiles.zero::<4>();
        tiles.zero::<5>();
    }

    /// `None` without the instruction.
    pub(crate) fn bf16_if_any(n_steps: usize) -> Option<u64> {
        // SAFETY: the CPU was asked, and it has AVX-512, being run from that table.
        is_x86_feature_detected!("avx512bf16").then(|| unsafe { bf16_avx512(n_steps) })
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16_avx512(n_steps: usize) -> u64 {
        let a = _mm512_set1_ps(black_box(0.5));
        let b = _mm512_set1_ps(black_box(0.25));
        let (a, b) = (_mm512_cvtne2ps_pbh(a, a), _mm512_cvtne2ps_pbh(b, b));
        let mut acc = [_mm512_setzero_ps(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm512_dpbf16_ps(*acc, a, b);
                opaque!(zmm_reg, *acc);
            }
        }
        (n_steps * 16 * 64) as u64
    }

    /// `None` without the instruction. Sums stay in half precision.
    pub(crate) fn f16_if_any(n_steps: usize) -> Option<u64> {
        // SAFETY: the CPU was asked, and it has AVX-512, being run from that table.
        is_x86_feature_detected!("avx512fp16").then(|| unsafe { f16_avx512(n_steps) })
    }

    /// The instruction is written out, because Rust has no stable type for half precision.
    #[target_feature(enable = "avx512f,avx512fp16")]
    fn f16_avx512(n_steps: usize) -> u64 {
        // 0.5 and 0.25: sums grow to 256, where an eighth more no longer changes them.
        let (a, b) = (_mm512_set1_epi16(black_box(0x3800)), _mm512_set1_epi16(black_box(0x3400)));
        let mut acc = [_mm512_setzero_si512(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                // SAFETY: the function has the instruction, which touches registers alone.
                unsafe {
                    asm!(
                        "vfmadd231ph {acc}, {a}, {b}",
                        acc = inout(zmm_reg) *acc,
                        a = in(zmm_reg) a,
                        b = in(zmm_reg) b,
                        options(nomem, nostack, preserves_flags)
                    );
                }
            }
        }
        (n_steps * 16 * 64) as u64
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn f32_avx512(n_steps: usize) -> u64 {
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut acc = [_mm512_setzero_ps(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm512_fmadd_ps(a, b, *acc);
                opaque!(zmm_reg, *acc);
            }
        }
        (n_steps * 16 * 32) as u64
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn f32_avx2(n_steps: usize) -> u64 {
        let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
        let mut acc = [_mm256_setzero_ps(); 12];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm256_fmadd_ps(a, b, *acc);
                opaque!(ymm_reg, *acc);
            }
        }
        (n_steps * 12 * 16) as u64
    }
}

impl Cpu {
    /// Operations per second of `work` on all threads: the best pass of `seconds`, at least two.
    ///
    /// `work(n_steps)` returns the operations it did, or `None` where it cannot run.
    pub(super) fn measure_rate(
        &self,
        work: impl Fn(usize) -> Option<u64> + Sync,
        seconds: f64,
    ) -> Option<f64> {
        let start = Instant::now();
        let mut best = 0.0_f64;
        let mut n_passes = 0;
        while n_passes < 2 || start.elapsed().as_secs_f64() < seconds {
            let pass = Instant::now();
            let (n_ops, can_run) = (AtomicU64::new(0), AtomicBool::new(true));
            self.team.run(|_| match work(STEPS) {
                Some(n) => {
                    n_ops.fetch_add(n, Ordering::Relaxed);
                }
                None => can_run.store(false, Ordering::Relaxed),
            });
            if !can_run.into_inner() {
                return None;
            }
            best = best.max(n_ops.into_inner() as f64 / pass.elapsed().as_secs_f64());
            n_passes += 1;
        }
        Some(best)
    }
}
