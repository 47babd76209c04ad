//! The limits of the machine, measured by the same process as the figures compared with them.
//!
//! A shared machine changes from minute to minute. So the read bandwidth is measured in each round,
//! and a share uses speed and bandwidth of the same round. Arithmetic peaks hardly change; they are
//! measured before and after, and the higher value counts.

use pelton_kernels::{Ceilings, Cpu, WeightLayout};

/// Far beyond any cache of this decade's processors, in bytes.
const BYTES: usize = 256 << 20;
const SECONDS: f64 = 0.5;

/// Measures with the threads that compute.
pub(crate) fn measure(cpu: &Cpu) -> Ceilings {
    cpu.measure_ceilings(BYTES, SECONDS)
}

/// Measures how fast memory is read, in bytes per second.
pub(crate) fn read_bandwidth(cpu: &Cpu) -> f64 {
    cpu.measure_read_bandwidth(BYTES, SECONDS)
}

/// Name and peak, in operations per second, of the arithmetic that products of this layout are
/// compared with. 16-bit weights may be multiplied as pairs or as floats: the faster one counts.
pub(crate) fn multiplier(layout: WeightLayout, ceilings: &Ceilings) -> (&'static str, f64) {
    if layout.needs_quantized_input() {
        return ("int8", ceilings.int8);
    }
    match (layout, ceilings.bf16) {
        (WeightLayout::Bf16 | WeightLayout::F16, Some(bf16)) if bf16 > ceilings.f32 => {
            ("bf16", bf16)
        }
        _ => ("f32", ceilings.f32),
    }
}
