//! What the machine can do at most, measured by the process that is judged by it.
//!
//! A machine that is shared changes from minute to minute: the read bandwidth is measured in each
//! round of the figures, and a share has both from the same round. Arithmetic peaks hardly move; they
//! are measured before and after, and the higher ones count.

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

/// The arithmetic that products with this layout are compared with, and its peak in operations per
/// second. 16-bit weights may be multiplied as pairs or as floats: the faster one counts.
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
