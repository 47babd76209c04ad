//! Every instruction set returns the bits of the scalar lanes.

use super::*;
use crate::testing::{Random, hostile_floats};

/// Finite numbers; a NaN becomes one of the bounds.
#[inline(always)]
fn bounded<S: Simd>(s: S, x: S::F) -> S::F {
    s.min(s.max(x, s.splat(-128.0)), s.splat(127.0))
}

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
        s.zero_below(x, y),
        s.scale(s.splat(1.25), s.load(&n)),
        // A zero of one sign.
        s.add(s.fraction(s.max(bounded(s, x), s.splat(1.0))), s.splat(0.0)),
        s.scale_normal(s.splat(1.25), s.mul(s.load(&n), s.splat(0.59))),
        s.scale_normal(s.splat(f32::NAN), s.splat(f32::NAN)),
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
        let mut integers = [0; 16];
        s.store_i8(bounded(s, f), &mut integers);
        s.store(s.load_i8(&integers), &mut back);
        out.extend(back);
    }
    out.extend([s.sum(x), s.largest(x)]);
    // A NaN of any payload is the same answer.
    out.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

type AllOperations = unsafe fn(&[f32; 16], &[f32; 16], &[f32; 16]) -> Vec<u32>;

crate::simd::shells! {
    mod shells = all_operations(a: &[f32; 16], b: &[f32; 16], c: &[f32; 16]) -> Vec<u32>
}

#[inline(always)]
fn narrow<S: Simd>(s: S, x: &[u8; 16]) -> Vec<u32> {
    let mut out = [[0.0; 16]; 3];
    s.store(s.load_fp8(x), &mut out[0]);
    s.store(s.load_i8(bytemuck::cast_ref(x)), &mut out[1]);
    let halves: [u16; 16] = std::array::from_fn(|i| u16::from(x[i]) << 8 | u16::from(x[15 - i]));
    s.store(s.load_f16(&halves), &mut out[2]);
    crate::testing::bits(out.as_flattened())
}

type Narrow = unsafe fn(&[u8; 16]) -> Vec<u32>;

crate::simd::shells! { mod narrow_shells = narrow(x: &[u8; 16]) -> Vec<u32> }

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
