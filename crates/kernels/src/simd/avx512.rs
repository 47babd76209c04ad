//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use super::avx2::fp8_as_f16;
use super::narrow::{FP8_BIAS, FP8_MAX, FP8_NORMAL, FP8_ROUND};
use super::{LANES, Simd, Task};

/// Proof that this CPU has `avx512f`, `avx512bw`, `avx512vl`, `avx512dq` and what AVX2 promises.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof.
    ///
    /// # Safety
    ///
    /// This CPU has the features named above.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

/// Where the halves of sixteen floats come from that are sixteen bf16 and, from 16 on, zeros: one
/// permutation instead of a widening and a shift, which both take the ports of shuffles.
const UPPER_HALVES: [u16; 2 * LANES] = {
    let mut from = [LANES as u16; 2 * LANES];
    let mut lane = 0;
    while lane < LANES {
        from[2 * lane + 1] = lane as u16;
        lane += 1;
    }
    from
};

macro_rules! lanewise {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident),+) => $intrinsic:ident $(::<$bits:literal>)?;
    )+) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self, $($arg: __m512),+) -> __m512 {
            // SAFETY: `self` proves that this CPU has AVX-512; no memory is touched.
            unsafe { $intrinsic$(::<$bits>)?($($arg),+) }
        }
    )+};
}

impl Simd for Avx512 {
    type F = __m512;
    const IS_WIDE: bool = true;

    #[inline(always)]
    fn apart<T: Task<Self>>(self, task: T) -> T::Out {
        /// # Safety
        ///
        /// This CPU has the features below.
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
        unsafe fn run<T: Task<Avx512>>(s: Avx512, task: T) -> T::Out {
            task.run(s)
        }
        // SAFETY: `self` proves that this CPU has the features.
        unsafe { run(self, task) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512; the load is the 16 floats of `x`.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512; the load is the 16 halves of `x`.
        unsafe {
            let halves = _mm512_zextsi256_si512(_mm256_loadu_si256(x.as_ptr().cast()));
            let from = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(from, halves))
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512; the load is the 16 halves of `x`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_fp8(self, x: &[u8; LANES]) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512, and AVX2 with it.
        unsafe { _mm512_mul_ps(_mm512_cvtph_ps(fp8_as_f16(x)), _mm512_set1_ps(256.0)) }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512; the load is the 16 bytes of `x`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX-512; the store is the 16 floats of `out`.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn store_bf16(self, x: __m512, out: &mut [u16; LANES]) {
        // Not `vcvtneps2bf16`: it flushes subnormals, which the scalar rounding keeps.
        // SAFETY: `self` proves that this CPU has AVX-512; the store is the 16 halves of `out`.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, round));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let quiet = _mm512_set1_epi32(0x40);
            let all = _mm512_mask_or_epi32(rounded, is_nan, high, quiet);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(all));
        }
    }

    #[inline(always)]
    fn store_f16(self, x: __m512, out: &mut [u16; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX-512; the store is the 16 halves of `out`.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), halves);
        }
    }

    #[inline(always)]
    fn store_fp8(self, x: __m512, out: &mut [u8; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX-512; the store is the 16 bytes of `out`.
        unsafe {
            let size = _mm512_min_ps(_mm512_set1_ps(FP8_MAX), _mm512_abs_ps(x));
            let bits = _mm512_castps_si512(size);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<20>(bits), _mm512_set1_epi32(1));
            let round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7_ffff));
            let normal = _mm512_srli_epi32::<20>(_mm512_add_epi32(bits, round));
            let normal = _mm512_sub_epi32(normal, _mm512_set1_epi32(FP8_BIAS as i32));
            let round = _mm512_set1_ps(FP8_ROUND);
            let subnormal = _mm512_castps_si512(_mm512_add_ps(size, round));
            let subnormal = _mm512_sub_epi32(subnormal, _mm512_castps_si512(round));
            let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(FP8_NORMAL));
            let code = _mm512_mask_mov_epi32(normal, is_small, subnormal);
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let code = _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7f));
            let sign = _mm512_srli_epi32::<24>(_mm512_castps_si512(x));
            let sign = _mm512_and_si512(sign, _mm512_set1_epi32(0x80));
            let code = _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign));
            _mm_storeu_si128(out.as_mut_ptr().cast(), code);
        }
    }

    #[inline(always)]
    fn store_i8(self, x: __m512, out: &mut [i8; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX-512; the store is the 16 bytes of `out`.
        unsafe {
            let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    lanewise! {
        fn add(a, b) => _mm512_add_ps;
        fn sub(a, b) => _mm512_sub_ps;
        fn mul(a, b) => _mm512_mul_ps;
        fn div(a, b) => _mm512_div_ps;
        fn fma(a, b, c) => _mm512_fmadd_ps;
        fn max(a, b) => _mm512_max_ps;
        fn min(a, b) => _mm512_min_ps;
        fn scale(x, n) => _mm512_scalef_ps;
        fn scale_normal(x, n) => _mm512_scalef_ps;
        /// Bit 0 of the 9 rounds down, bit 3 raises no exception.
        fn fraction(x) => _mm512_reduce_ps::<9>;
    }

    #[inline(always)]
    fn zero_below(self, x: __m512, least: __m512) -> __m512 {
        // SAFETY: `self` proves that this CPU has AVX-512; no memory is touched.
        unsafe {
            let is_kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), least);
            _mm512_maskz_mov_ps(is_kept, x)
        }
    }

    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: `self` proves that this CPU has AVX-512; no memory is touched.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
            _mm_cvtss_f32(one)
        }
    }

    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        // SAFETY: `self` proves that this CPU has AVX-512; no memory is touched.
        unsafe {
            let eight = _mm256_max_ps(_mm512_extractf32x8_ps::<1>(x), _mm512_castps512_ps256(x));
            let four = _mm_max_ps(_mm256_extractf128_ps::<1>(eight), _mm256_castps256_ps128(eight));
            let two = _mm_max_ps(_mm_movehl_ps(four, four), four);
            let one = _mm_max_ss(_mm_shuffle_ps::<1>(two, two), two);
            _mm_cvtss_f32(one)
        }
    }

    #[inline(always)]
    fn transpose(self, x: &mut [__m512; LANES]) {
        // In four quarters of a register each: pairs of lines, fours, then quarters of lines.
        // SAFETY: `self` proves that this CPU has AVX-512; no memory is touched.
        unsafe {
            let mut fours = [_mm512_setzero_ps(); LANES];
            for i in (0..LANES).step_by(4) {
                let low =
                    [_mm512_unpacklo_ps(x[i], x[i + 1]), _mm512_unpacklo_ps(x[i + 2], x[i + 3])];
                let high =
                    [_mm512_unpackhi_ps(x[i], x[i + 1]), _mm512_unpackhi_ps(x[i + 2], x[i + 3])];
                fours[i] = _mm512_shuffle_ps::<0x44>(low[0], low[1]);
                fours[i + 1] = _mm512_shuffle_ps::<0xee>(low[0], low[1]);
                fours[i + 2] = _mm512_shuffle_ps::<0x44>(high[0], high[1]);
                fours[i + 3] = _mm512_shuffle_ps::<0xee>(high[0], high[1]);
            }
            // Quarter `q` of `fours[4 i + j]` is lanes `4 i ..` of line `4 q + j`.
            for j in 0..4 {
                let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                x[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                x[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                x[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                x[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            }
        }
    }
}
