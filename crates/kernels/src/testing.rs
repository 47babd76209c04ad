//! Numbers for the tests of this crate's row and attention kernels.

use crate::{Cpu, Kernels};

/// A small repeatable generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) ^ (self.0 >> 17)) as u32
    }

    pub(crate) fn any_bits(&mut self) -> f32 {
        f32::from_bits(self.next())
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Uniform in `[-1, 1)`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// About normal: the sum of four uniforms, scaled.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.unit()).sum::<f32>() * 0.87
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Numbers that no well-behaved model produces.
pub(crate) fn hostile_floats() -> Vec<f32> {
    let tiny = f32::from_bits(1);
    vec![
        0.0,
        -0.0,
        f32::NAN,
        -f32::NAN,
        // All payload bits (rounding them up would carry into the sign), and a signalling one.
        f32::from_bits(0x7fff_ffff),
        f32::from_bits(0xff80_0001),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        tiny,
        -tiny,
        1e30,
        -1e30,
        88.0,
        89.0,
        -88.0,
        -104.0,
        1.0 + f32::EPSILON,
    ]
}

/// The bits, any NaN counting as the one NaN.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// One `Cpu` per table of kernels and team size; the first is the reference (scalar, one thread).
pub(crate) fn all_cpus() -> Vec<Cpu> {
    cpus(Kernels::available().collect())
}

/// As [`all_cpus`], for operations that are no products: tables that differ only in their products
/// count once.
pub(crate) fn row_cpus() -> Vec<Cpu> {
    let mut kernels: Vec<&'static Kernels> = Vec::new();
    for one in Kernels::available() {
        let is_same = |other: &&'static Kernels| {
            std::ptr::eq(other.rows, one.rows) && std::ptr::eq(other.attention, one.attention)
        };
        if !kernels.iter().any(is_same) {
            kernels.push(one);
        }
    }
    cpus(kernels)
}

fn cpus(mut kernels: Vec<&'static Kernels>) -> Vec<Cpu> {
    #[cfg(target_arch = "x86_64")]
    assert!(is_x86_feature_detected!("fma"), "the tests need a processor with FMA");
    kernels.reverse();
    kernels.iter().flat_map(|kernels| [1, 2].map(|n| Cpu::with(kernels, n))).collect()
}
