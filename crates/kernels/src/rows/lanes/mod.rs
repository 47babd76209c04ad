//! Sixteen lanes: the one vector type that the row and attention kernels are written over.
//!
//! ```text
//! algorithm<S: Simd>      written once, generic, `#[inline(always)]`
//!   Scalar   [f32; 16]    the specification
//!   Avx2     2 x __m256   lanes 0-7 and 8-15
//!   Avx512   1 x __m512
//! ```
//!
//! Every operation is exact or correctly rounded per lane, and the two reductions halve in a fixed
//! order (`lane[j] += lane[j + 8]`, then 4, 2, 1). So an algorithm written over [`Simd`] returns
//! the same bits on every instruction set; only the payload of a NaN may differ.
//!
//! A value of type [`Avx2`] or [`Avx512`] is the proof that this CPU has the instructions: it is
//! made inside the `#[target_feature]` shells that [`shells!`](super::shells) writes and nowhere
//! else. The generic code is inlined into these shells and compiled for their features there.
//!
//! Tried and dropped: closures inside generic code (not always inlined into the shell, and then
//! every intrinsic is a call); eight lanes (halves the independent sums that AVX-512 can keep).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod narrow;
mod scalar;

#[cfg(test)]
pub(crate) use narrow::fp8_from_f32;
pub(crate) use narrow::fp8_to_f32;
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

/// Number of lanes of the canonical order.
pub(crate) const LANES: usize = 16;

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
    /// `x · 2ⁿ`, rounded once, for integral `n` in `-250..=250` and `x` not subnormal.
    fn scale(self, x: Self::F, n: Self::F) -> Self::F;
    /// The sum of the lanes, by halving.
    fn sum(self, x: Self::F) -> f32;

    /// Asks for the line at `address`, which may lie anywhere and is read within microseconds, in
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::testing::{Random, hostile_floats};

    /// Runs every operation of `s` on three vectors and returns all bits.
    #[inline(always)]
    fn all_operations<S: Simd>(s: S, a: &[f32; 16], b: &[f32; 16], c: &[f32; 16]) -> Vec<u32> {
        let (x, y, z) = (s.load(a), s.load(b), s.load(c));
        let mut n = [0.0; 16];
        for (i, n) in n.iter_mut().enumerate() {
            *n = (i as f32 - 8.0) * 20.0;
        }
        let mut out = Vec::new();
        for f in [
            s.add(x, y),
            s.sub(x, y),
            s.mul(x, y),
            s.div(x, y),
            s.fma(x, y, z),
            s.max(x, y),
            s.min(x, y),
            s.scale(s.splat(1.25), s.load(&n)),
            s.load_part(&a[..5], 2.0),
        ] {
            let mut lanes = [0.0; 16];
            s.store(f, &mut lanes);
            out.extend(lanes);
            let mut halves = [0; 16];
            s.store_bf16(f, &mut halves);
            let mut back = [0.0; 16];
            s.store(s.load_bf16(&halves), &mut back);
            out.extend(back);
            s.store_f16(f, &mut halves);
            s.store(s.load_f16(&halves), &mut back);
            out.extend(back);
            let mut eighths = [0; 16];
            s.store_fp8(f, &mut eighths);
            s.store(s.load_fp8(&eighths), &mut back);
            out.extend(back);
            // Within the range of the conversion; a NaN becomes one of the bounds.
            let bounded = s.min(s.max(f, s.splat(-128.0)), s.splat(127.0));
            let mut integers = [0; 16];
            s.store_i8(bounded, &mut integers);
            s.store(s.load_i8(&integers), &mut back);
            out.extend(back);
        }
        out.extend([s.sum(x), s.largest(x)]);
        // A NaN of any payload is the same answer.
        out.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    type AllOperations = unsafe fn(&[f32; 16], &[f32; 16], &[f32; 16]) -> Vec<u32>;

    crate::rows::shells! {
        mod shells = all_operations(a: &[f32; 16], b: &[f32; 16], c: &[f32; 16]) -> Vec<u32>
    }

    #[inline(always)]
    fn narrow<S: Simd>(s: S, x: &[u8; 16]) -> Vec<u32> {
        let mut out = [[0.0; 16]; 3];
        s.store(s.load_fp8(x), &mut out[0]);
        s.store(s.load_i8(bytemuck::cast_ref(x)), &mut out[1]);
        let halves: [u16; 16] =
            std::array::from_fn(|i| u16::from(x[i]) << 8 | u16::from(x[15 - i]));
        s.store(s.load_f16(&halves), &mut out[2]);
        crate::rows::testing::bits(out.as_flattened())
    }

    type Narrow = unsafe fn(&[u8; 16]) -> Vec<u32>;

    crate::rows::shells! { mod narrow_shells = narrow(x: &[u8; 16]) -> Vec<u32> }

    #[test]
    fn every_narrow_number_is_widened_to_the_same_bits() {
        for first in 0..=255_u8 {
            let x = std::array::from_fn(|i| first.wrapping_add(17 * i as u8));
            // SAFETY: the scalar shell needs no instruction set.
            let expected = unsafe { narrow_shells::scalar(&x) };
            for kernels in crate::Kernels::available() {
                let shell: Narrow = match kernels.name {
                    #[cfg(target_arch = "x86_64")]
                    "avx512" => narrow_shells::avx512,
                    #[cfg(target_arch = "x86_64")]
                    "avx2" => narrow_shells::avx2,
                    _ => narrow_shells::scalar,
                };
                // SAFETY: the kernels of that name are available on this CPU.
                assert_eq!(unsafe { shell(&x) }, expected, "{} from {first}", kernels.name);
            }
        }
    }

    #[test]
    fn every_lane_operation_returns_the_bits_of_the_scalar_one() {
        let mut random = Random::new(7);
        let hostile = hostile_floats();
        for round in 0..2000 {
            let mut draw = || -> [f32; 16] {
                std::array::from_fn(|_| match random.below(4) {
                    0 => hostile[random.below(hostile.len())],
                    // Few bits: the middle between two numbers of every narrow type.
                    1 => {
                        let size = (1 << random.below(22)) as f32;
                        (random.below(1 << 13) as f32 - 4096.0) / size
                    }
                    _ => random.normal() * 10.0,
                })
            };
            let (a, b, c) = (draw(), draw(), draw());
            // SAFETY: the scalar shell needs no instruction set.
            let expected = unsafe { shells::scalar(&a, &b, &c) };
            for kernels in crate::Kernels::available() {
                let shell: AllOperations = match kernels.name {
                    #[cfg(target_arch = "x86_64")]
                    "avx512" => shells::avx512,
                    #[cfg(target_arch = "x86_64")]
                    "avx2" => shells::avx2,
                    _ => shells::scalar,
                };
                // SAFETY: the kernels of that name are available on this CPU.
                let got = unsafe { shell(&a, &b, &c) };
                assert_eq!(got, expected, "{} in round {round}", kernels.name);
            }
        }
    }
}
