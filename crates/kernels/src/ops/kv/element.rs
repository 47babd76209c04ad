//! The stored element types: how each is read sixteen at a time, and written.

use bytemuck::{cast_ref, cast_slice_mut};
use half::{bf16, f16};

use super::convert::int8_factor_and_scale;
use crate::Cpu;
use crate::simd::{LANES, Simd};

/// A stored element type.
pub(crate) trait KvElement: bytemuck::Pod + Sync + Send {
    /// Whether each token and head has a scale that multiplies its elements.
    const HAS_SCALES: bool = false;
    /// Whether attention rounds queries and weights to bf16, so that their products with keys and
    /// values are products of bf16.
    const BF16_PRODUCTS: bool = false;

    /// Sixteen elements, widened exactly.
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;

    /// Factor before [`convert`](Self::convert) and scale after [`load`](Self::load) for a head.
    fn factor_and_scale(cpu: &Cpu, x: &[f32]) -> (f32, f32) {
        let _ = (cpu, x);
        (1.0, 1.0)
    }

    /// Converts a head or a part of it, `x` and `out` of one length.
    fn convert(cpu: &Cpu, x: &[f32], factor: f32, out: &mut [Self]);
}

impl KvElement for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LANES]) -> S::F {
        s.load(x)
    }

    fn convert(_: &Cpu, x: &[f32], _: f32, out: &mut [f32]) {
        out.copy_from_slice(x);
    }
}

impl KvElement for bf16 {
    const BF16_PRODUCTS: bool = true;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[bf16; LANES]) -> S::F {
        s.load_bf16(cast_ref(x))
    }

    fn convert(cpu: &Cpu, x: &[f32], _: f32, out: &mut [bf16]) {
        assert_eq!(x.len(), out.len(), "invariant: one bf16 per float");
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (cpu.kernels.attention.kv.to_bf16_factors)(x, cast_slice_mut(out)) };
    }
}

impl KvElement for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f16; LANES]) -> S::F {
        s.load_f16(cast_ref(x))
    }

    fn convert(cpu: &Cpu, x: &[f32], _: f32, out: &mut [f16]) {
        assert_eq!(x.len(), out.len(), "invariant: one f16 per float");
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (cpu.kernels.attention.kv.to_f16)(x, cast_slice_mut(out)) };
    }
}

/// fp8, by its bits. Every number is one of bf16.
impl KvElement for u8 {
    const BF16_PRODUCTS: bool = true;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u8; LANES]) -> S::F {
        s.load_fp8(x)
    }

    fn convert(cpu: &Cpu, x: &[f32], _: f32, out: &mut [u8]) {
        assert_eq!(x.len(), out.len(), "invariant: one fp8 per float");
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (cpu.kernels.attention.kv.to_fp8)(x, out) };
    }
}

/// int8; every number is one of bf16.
impl KvElement for i8 {
    const HAS_SCALES: bool = true;
    const BF16_PRODUCTS: bool = true;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[i8; LANES]) -> S::F {
        s.load_i8(x)
    }

    fn factor_and_scale(cpu: &Cpu, x: &[f32]) -> (f32, f32) {
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        int8_factor_and_scale(unsafe { (cpu.kernels.attention.kv.largest)(x) })
    }

    fn convert(cpu: &Cpu, x: &[f32], factor: f32, out: &mut [i8]) {
        assert_eq!(x.len(), out.len(), "invariant: one int8 per float");
        if factor == 0.0 {
            // An element that is not finite has no product within the range.
            return out.fill(0);
        }
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (cpu.kernels.attention.kv.to_i8)(x, factor, out) };
    }
}
