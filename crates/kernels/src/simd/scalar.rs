//! Sixteen lanes in an array: the specification of [`Simd`].
//!
//! Nothing here is inlined: an algorithm over [`Scalar`] is a list of calls, a fraction of the code
//! and of the compile time of sixteen scalar instructions for each of its steps.

use super::narrow::{bf16_from_f32, fp8_from_f32, fp8_to_f32};
use super::{LANES, Simd, Task};

/// Plain Rust, one lane after the other.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Scalar {
    /// The proof that this CPU has plain instructions; `unsafe` because the proofs of the vector
    /// types are.
    ///
    /// # Safety
    ///
    /// Always sound.
    pub(crate) unsafe fn assume() -> Self {
        Self
    }
}

macro_rules! lanewise {
    ($(fn $name:ident($($arg:ident),+) => $value:expr;)+) => {$(
        #[inline(never)]
        fn $name(self, $($arg: Self::F),+) -> Self::F {
            let mut out = [0.0; LANES];
            for j in 0..LANES {
                $(let $arg = $arg[j];)+
                out[j] = $value;
            }
            out
        }
    )+};
}

/// `2ⁿ` for `n` in `-126..=127`.
#[inline(never)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

impl Simd for Scalar {
    type F = [f32; LANES];
    const IS_WIDE: bool = false;

    #[inline(never)]
    fn apart<T: Task<Self>>(self, task: T) -> T::Out {
        task.run(self)
    }

    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }

    #[inline(never)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        let mut out = [0.0; LANES];
        for (out, &x) in out.iter_mut().zip(x) {
            *out = f32::from_bits(u32::from(x) << 16);
        }
        out
    }

    #[inline(never)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        x.map(|x| half::f16::from_bits(x).to_f32())
    }

    #[inline(never)]
    fn load_fp8(self, x: &[u8; LANES]) -> Self::F {
        x.map(fp8_to_f32)
    }

    #[inline(never)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F {
        x.map(f32::from)
    }

    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(never)]
    fn store_bf16(self, x: Self::F, out: &mut [u16; LANES]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = bf16_from_f32(x);
        }
    }

    #[inline(never)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        *out = x.map(|x| half::f16::from_f32(x).to_bits());
    }

    #[inline(never)]
    fn store_fp8(self, x: Self::F, out: &mut [u8; LANES]) {
        *out = x.map(fp8_from_f32);
    }

    #[inline(never)]
    fn store_i8(self, x: Self::F, out: &mut [i8; LANES]) {
        *out = x.map(|x| x.round_ties_even() as i8);
    }

    lanewise! {
        fn add(a, b) => a + b;
        fn sub(a, b) => a - b;
        fn mul(a, b) => a * b;
        fn div(a, b) => a / b;
        fn fma(a, b, c) => a.mul_add(b, c);
        fn max(a, b) => if a > b { a } else { b };
        fn min(a, b) => if a < b { a } else { b };
        fn zero_below(x, least) => if x.abs() < least { 0.0 } else { x };
        // In two steps, since 2ⁿ itself may be out of range; the first step is exact.
        fn scale(x, n) => {
            let n = n as i32;
            x * power_of_two(n >> 1) * power_of_two(n - (n >> 1))
        };
        fn fraction(x) => x - x.floor();
        fn scale_normal(x, n) => x * power_of_two(n.floor() as i32);
    }

    #[inline(never)]
    fn sum(self, mut x: Self::F) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for j in 0..width {
                x[j] += x[j + width];
            }
            width /= 2;
        }
        x[0]
    }
}
