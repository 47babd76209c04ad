//! What the machine can do at most, measured by the process that is judged by it.
//!
//! A machine that is shared changes from minute to minute, so the ceilings are measured before and
//! after the figures, and the higher ones count: other programs only take away.

use pelton_kernels::Cpu;

/// Far beyond any cache of this decade's processors, in bytes.
const BYTES: usize = 256 << 20;
const SECONDS: f64 = 0.5;

/// The ceilings that figures are shares of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    /// Streaming reads by all threads of the team, in bytes per second.
    pub(crate) read_bandwidth: f64,
}

impl Ceilings {
    /// Measures with the threads that compute.
    pub(crate) fn measure(cpu: &Cpu) -> Self {
        Self { read_bandwidth: cpu.measure_read_bandwidth(BYTES, SECONDS) }
    }

    /// The higher of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { read_bandwidth: self.read_bandwidth.max(other.read_bandwidth) }
    }
}
