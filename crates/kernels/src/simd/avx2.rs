//! Sixteen lanes in two AVX2 registers.

use std::arch::x86_64::*;

use super::narrow::{FP8_BIAS, FP8_MAX, FP8_NORMAL, FP8_ROUND};
use super::{LANES, Simd, Task};

/// Proof that this CPU has `avx2`, `fma` and `f16c`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof.
    ///
    /// # Safety
    ///
    /// This CPU has `avx2`, `fma` and `f16c`.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

impl Avx2 {
    /// Sixteen lanes of two registers.
    #[inline(always)]
    pub(crate) fn pair(low: __m256, high: __m256) -> Pair {
        Pair(low, high)
    }
}

/// Lanes 0-7 and 8-15.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

macro_rules! pairwise {
    ($(fn $name:ident($($arg:ident),+) => $intrinsic:ident;)+) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Pair),+) -> Pair {
            // SAFETY: `self` proves that this CPU has AVX2 and FMA; no memory is touched.
            unsafe { Pair($intrinsic($($arg.0),+), $intrinsic($($arg.1),+)) }
        }
    )+};
}

/// `x · 2ⁿ` in two steps, the first exact.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn scale(x: __m256, n: __m256) -> __m256 {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, half);
        let bias = _mm256_set1_epi32(127);
        let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
        let x = _mm256_mul_ps(x, _mm256_castsi256_ps(first));
        _mm256_mul_ps(x, _mm256_castsi256_ps(second))
    }
}

/// Eight lanes of [`Simd::fraction`].
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn fraction(x: __m256) -> __m256 {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe { _mm256_sub_ps(x, _mm256_floor_ps(x)) }
}

/// Eight lanes of [`Simd::scale_normal`]: the power is added to the exponent of `x`.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn scale_normal(x: __m256, n: __m256) -> __m256 {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        let n = _mm256_slli_epi32::<23>(_mm256_cvttps_epi32(_mm256_floor_ps(n)));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n))
    }
}

/// Eight lanes of [`Simd::zero_below`].
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn zero_below(x: __m256, least: __m256) -> __m256 {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_NLT_UQ>(magnitude, least))
    }
}

/// The bf16 of eight lanes in the low halves of eight `i32`.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn to_bf16(x: __m256) -> __m256i {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, round));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_blendv_epi8(rounded, quiet, is_nan)
    }
}

/// The fp8 of eight lanes in the low bytes of eight `i32`.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn to_fp8(x: __m256) -> __m256i {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        let sign_bit = _mm256_set1_ps(-0.0);
        let size = _mm256_min_ps(_mm256_set1_ps(FP8_MAX), _mm256_andnot_ps(sign_bit, x));
        let bits = _mm256_castps_si256(size);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<20>(bits), _mm256_set1_epi32(1));
        let round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7_ffff));
        let normal = _mm256_srli_epi32::<20>(_mm256_add_epi32(bits, round));
        let normal = _mm256_sub_epi32(normal, _mm256_set1_epi32(FP8_BIAS as i32));
        let round = _mm256_set1_ps(FP8_ROUND);
        let subnormal = _mm256_castps_si256(_mm256_add_ps(size, round));
        let subnormal = _mm256_sub_epi32(subnormal, _mm256_castps_si256(round));
        let is_small = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(FP8_NORMAL));
        let code = _mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(is_small));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), is_nan);
        let sign = _mm256_castps_si256(_mm256_and_ps(sign_bit, x));
        _mm256_or_si256(code, _mm256_srli_epi32::<24>(sign))
    }
}

/// Sixteen fp8 as sixteen f16 of 1/256 their value, which are exact, subnormals included.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
pub(super) unsafe fn fp8_as_f16(x: &[u8; LANES]) -> __m256i {
    // SAFETY: AVX2 is there, as the caller promises; the load is the 16 bytes of `x`.
    unsafe {
        // s eeee mmm, sign extended, becomes s 0eeee mmm0000000.
        let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(x.as_ptr().cast()));
        let half =
            _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xbf80_u16 as i16));
        let signed = _mm256_or_si256(half, _mm256_set1_epi16(0x8000_u16 as i16));
        let is_nan = _mm256_cmpeq_epi16(signed, _mm256_set1_epi16(0xbf80_u16 as i16));
        _mm256_or_si256(half, is_nan)
    }
}

/// The low halves of sixteen `i32`, in order.
///
/// # Safety
///
/// This CPU has `avx2`.
#[inline(always)]
unsafe fn pack(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: AVX2 is there, as the caller promises; no memory is touched.
    unsafe {
        // The pack works within 128-bit halves: 0-3 8-11 | 4-7 12-15, put right by the permute.
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high))
    }
}

impl Simd for Avx2 {
    type F = Pair;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn apart<T: Task<Self>>(self, task: T) -> T::Out {
        /// # Safety
        ///
        /// This CPU has the features below.
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn run<T: Task<Avx2>>(s: Avx2, task: T) -> T::Out {
            task.run(s)
        }
        // SAFETY: `self` proves that this CPU has the features.
        unsafe { run(self, task) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `self` proves that this CPU has AVX2.
        unsafe { Pair(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        // SAFETY: `self` proves that this CPU has AVX2; both loads stay inside the 16 floats.
        unsafe { Pair(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves that this CPU has AVX2; both loads stay inside the 16 halves.
        unsafe {
            let low = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_loadu_si128(x.as_ptr().add(8).cast());
            Pair(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(low))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(high))),
            )
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves that this CPU has F16C; both loads stay inside the 16 halves.
        unsafe {
            let low = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_loadu_si128(x.as_ptr().add(8).cast());
            Pair(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    fn load_fp8(self, x: &[u8; LANES]) -> Pair {
        // SAFETY: `self` proves that this CPU has AVX2 and F16C.
        unsafe {
            let halves = fp8_as_f16(x);
            let factor = _mm256_set1_ps(256.0);
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
            Pair(_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor))
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Pair {
        // SAFETY: `self` proves that this CPU has AVX2; both loads stay inside the 16 bytes.
        unsafe {
            let low = _mm_loadl_epi64(x.as_ptr().cast());
            let high = _mm_loadl_epi64(x.as_ptr().add(8).cast());
            Pair(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            )
        }
    }

    #[inline(always)]
    fn store(self, x: Pair, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX2; both stores stay inside the 16 floats.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x.0);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x.1);
        }
    }

    #[inline(always)]
    fn store_bf16(self, x: Pair, out: &mut [u16; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX2; the store is the 32 bytes of `out`.
        unsafe {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), pack(to_bf16(x.0), to_bf16(x.1)));
        }
    }

    #[inline(always)]
    fn store_f16(self, x: Pair, out: &mut [u16; LANES]) {
        // SAFETY: `self` proves that this CPU has F16C; both stores stay inside the 16 halves.
        unsafe {
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.0);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.1);
            _mm_storeu_si128(out.as_mut_ptr().cast(), low);
            _mm_storeu_si128(out.as_mut_ptr().add(8).cast(), high);
        }
    }

    #[inline(always)]
    fn store_fp8(self, x: Pair, out: &mut [u8; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX2; the store is the 16 bytes of `out`.
        unsafe {
            let halves = pack(to_fp8(x.0), to_fp8(x.1));
            let (low, high) =
                (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_packus_epi16(low, high));
        }
    }

    #[inline(always)]
    fn store_i8(self, x: Pair, out: &mut [i8; LANES]) {
        // SAFETY: `self` proves that this CPU has AVX2; the store is the 16 bytes of `out`.
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(x.0), _mm256_cvtps_epi32(x.1));
            let halves = _mm256_packs_epi32(low, high);
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
            let (low, high) =
                (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_packs_epi16(low, high));
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    pairwise! {
        fn add(a, b) => _mm256_add_ps;
        fn sub(a, b) => _mm256_sub_ps;
        fn mul(a, b) => _mm256_mul_ps;
        fn div(a, b) => _mm256_div_ps;
        fn fma(a, b, c) => _mm256_fmadd_ps;
        fn max(a, b) => _mm256_max_ps;
        fn min(a, b) => _mm256_min_ps;
        fn zero_below(x, least) => zero_below;
        fn scale(x, n) => scale;
        fn fraction(x) => fraction;
        fn scale_normal(x, n) => scale_normal;
    }

    #[inline(always)]
    fn sum(self, x: Pair) -> f32 {
        // SAFETY: `self` proves that this CPU has AVX2; no memory is touched.
        unsafe {
            let eight = _mm256_add_ps(x.0, x.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
            _mm_cvtss_f32(one)
        }
    }

    #[inline(always)]
    fn largest(self, x: Pair) -> f32 {
        // SAFETY: `self` proves that this CPU has AVX2; no memory is touched.
        unsafe {
            let eight = _mm256_max_ps(x.1, x.0);
            let four = _mm_max_ps(_mm256_extractf128_ps::<1>(eight), _mm256_castps256_ps128(eight));
            let two = _mm_max_ps(_mm_movehl_ps(four, four), four);
            let one = _mm_max_ss(_mm_shuffle_ps::<1>(two, two), two);
            _mm_cvtss_f32(one)
        }
    }
}
