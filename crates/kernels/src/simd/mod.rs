//! The ground of the crate: sixteen lanes per vector, on every instruction set.
//!
//! ```text
//! algorithm<S: Simd>      written once, generic, `#[inline(always)]`
//!   Scalar   [f32; 16]    the specification, compiled small: its operations are calls
//!   Avx2     2 x __m256   lanes 0-7 and 8-15
//!   Avx512   1 x __m512
//! ```
//!
//! This file has the trait [`Simd`], one file each has its implementations, [`bytes`] adds what
//! packed weights need, [`math`] the exponential, and [`shells!`] compiles an algorithm per
//! instruction set.
//!
//! Every operation is exact or correctly rounded per lane, and the two reductions halve in a fixed
//! order (`lane[j] += lane[j + 8]`, then 4, 2, 1). So an algorithm written over [`Simd`] returns
//! the same bits on every instruction set; only the payload of a NaN may differ.
//!
//! A value of type [`Avx2`] or [`Avx512`] is the proof that this CPU has the instructions: it is
//! made inside `#[target_feature]` functions (most are written by [`shells!`]) and nowhere else.
//! The generic code is inlined into these shells and compiled for their features there.
//!
//! Tried and dropped: closures inside generic code (not always inlined into the shell, and then
//! every intrinsic is a call); eight lanes (halves the independent sums that AVX-512 can keep).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod byte_floats;
pub(crate) mod bytes;
pub(crate) mod math;
mod narrow;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pairs;
#[cfg(target_arch = "x86_64")]
pub(crate) mod products;
mod scalar;
mod shells;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

#[cfg(test)]
pub(crate) use narrow::fp8_from_f32;
pub(crate) use narrow::fp8_to_f32;
pub(crate) use scalar::Scalar;
pub(crate) use shells::shells;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

/// Number of lanes of the canonical order.
pub(crate) const LANES: usize = 16;

/// Reads a number for nothing but to have its line in the first-level cache.
///
/// A processor may drop a prefetch while it waits for many lines; this it may not.
#[inline(always)]
pub(crate) fn touch(x: &f32) {
    // SAFETY: a reference may be read. The read is volatile, so that it is not left out.
    unsafe { std::ptr::from_ref(x).read_volatile() };
}

/// A generic algorithm with its arguments, for [`Simd::apart`].
pub(crate) trait Task<S> {
    /// Its result.
    type Out;

    /// The algorithm; `#[inline(always)]` in every implementation.
    fn run(self, s: S) -> Self::Out;
}

/// Sixteen-lane arithmetic of one instruction set; a value of the type proves it is there.
pub(crate) trait Simd: Copy {
    /// Sixteen `f32`.
    type F: Copy;
    /// Whether there are registers for 16 accumulators of sixteen lanes and their operands.
    const IS_WIDE: bool;

    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Sixteen floats from memory, of any alignment.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// Sixteen bf16 from memory, widened exactly.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    /// Sixteen f16 from memory, widened exactly.
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    /// Sixteen fp8 (E4M3) from memory, widened exactly.
    fn load_fp8(self, x: &[u8; LANES]) -> Self::F;
    /// Sixteen int8 from memory, widened exactly.
    fn load_i8(self, x: &[i8; LANES]) -> Self::F;
    /// Writes sixteen floats.
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// Writes sixteen bf16, rounded to nearest, ties to even; a NaN stays a (quiet) NaN.
    fn store_bf16(self, x: Self::F, out: &mut [u16; LANES]);
    /// Writes sixteen f16, rounded to nearest, ties to even; infinite from 65520 on, a NaN stays
    /// a (quiet) NaN.
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]);
    /// Writes sixteen fp8 (E4M3), rounded to nearest, ties to even; at most 448, a NaN stays one.
    fn store_fp8(self, x: Self::F, out: &mut [u8; LANES]);
    /// Writes sixteen int8, rounded to nearest, ties to even; lanes are within `-128..=127`
    /// rounded, none is NaN.
    fn store_i8(self, x: Self::F, out: &mut [i8; LANES]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: `b` when either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: `b` when either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `x`, or 0 where its magnitude is below `least`; a NaN stays one.
    fn zero_below(self, x: Self::F, least: Self::F) -> Self::F;
    /// `x · 2ⁿ`, rounded once, for integral `n` in `-250..=250` and `x` not subnormal.
    fn scale(self, x: Self::F, n: Self::F) -> Self::F;
    /// `x - ⌊x⌋` of a finite `x` from 1 on, for which it is exact. A zero may have either sign.
    fn fraction(self, x: Self::F) -> Self::F;
    /// `x · 2^⌊n⌋` for positive `x` and `n` from -100 to 100, where `x` and the result are normal;
    /// NaN where both are NaN.
    fn scale_normal(self, x: Self::F, n: Self::F) -> Self::F;
    /// The sum of the lanes, by halving.
    fn sum(self, x: Self::F) -> f32;

    /// Runs a task as a function of its own, compiled once for this instruction set.
    ///
    /// Everything else is inlined where it is used. A task that several places use, or that is
    /// long, costs a call and saves the code and the compile time of its copies.
    fn apart<T: Task<Self>>(self, task: T) -> T::Out;

    /// Prefetches the line at `address`, which may lie anywhere and is read within microseconds, to
    /// the second-level cache.
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        let _ = address;
    }

    /// Lane `j` of vector `i` to lane `i` of vector `j`.
    #[inline(always)]
    fn transpose(self, x: &mut [Self::F; LANES]) {
        let mut lines = [[0.0; LANES]; LANES];
        for (x, line) in x.iter().zip(&mut lines) {
            self.store(*x, line);
        }
        for (j, x) in x.iter_mut().enumerate() {
            *x = self.load(&std::array::from_fn(|i| lines[i][j]));
        }
    }

    /// The largest lane, by halving with [`max`](Self::max); NaN lanes are passed over or not as
    /// the order has it.
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        let mut width = LANES / 2;
        while width > 0 {
            for j in 0..width {
                let (a, b) = (lanes[j + width], lanes[j]);
                lanes[j] = if a > b { a } else { b };
            }
            width /= 2;
        }
        lanes[0]
    }

    /// At most sixteen floats from memory, the missing lanes being `fill`.
    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> Self::F {
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// Writes as many lanes as `out` has room for, at most sixteen.
    #[inline(always)]
    fn store_part(self, x: Self::F, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}
