//! The machine in a report.

use serde::{Deserialize, Serialize};

/// The machine that measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Logical processors.
    pub n_processors: usize,
    /// Kernels that compute.
    pub kernels: String,
    /// Threads that computed, or those that do by default.
    pub threads: usize,
    /// Processors that the container pays for.
    pub cpu_quota: Option<f64>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// Kernel of the system.
    pub kernel: Option<String>,
    /// Governor of the clock.
    pub governor: Option<String>,
    /// Transparent huge pages: always, madvise or never.
    pub huge_pages: Option<String>,
    /// Runnable threads over the last minute, at the end of the run.
    pub load: Option<f64>,
    /// The record of `pelton doctor`; absent where it never measured this machine.
    pub baseline: Option<Baseline>,
}

/// The ceilings of a machine, as `pelton doctor` measured them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Baseline {
    /// Seconds since 1970.
    pub measured_at: u64,
    /// Whether readings of the bandwidth lay more than 10 % apart.
    pub is_noisy: bool,
    /// Reads from memory, in bytes per second.
    pub read_bytes_per_s: f64,
    /// Operations of single precision per second.
    pub f32_ops_per_s: f64,
    /// Operations of bfloat16 per second; absent without such an instruction.
    pub bf16_ops_per_s: Option<f64>,
    /// Operations of IEEE half precision per second; absent as well in older records.
    #[serde(default)]
    pub f16_ops_per_s: Option<f64>,
    /// Operations of 8-bit integers per second.
    pub int8_ops_per_s: Option<f64>,
}

impl Machine {
    /// Whether figures of two machines may be compared: the same processor, kernels and threads.
    pub fn is_like(&self, other: &Self) -> bool {
        let key = |machine: &Self| {
            let Self { cpu, n_processors, kernels, threads, .. } = machine;
            (cpu.clone(), *n_processors, kernels.clone(), *threads)
        };
        key(self) == key(other)
    }

    /// The machine in one line.
    pub fn words(&self) -> String {
        let Self { cpu, n_processors, kernels, threads, baseline, .. } = self;
        let noisy = match baseline {
            Some(Baseline { is_noisy: true, .. }) => ", baseline of a noisy minute",
            Some(_) => "",
            None => ", never measured by `pelton doctor`",
        };
        format!("{cpu}, {n_processors} processors, {kernels} on {threads} threads{noisy}")
    }
}
