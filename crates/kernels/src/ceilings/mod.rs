//! Ceilings of this machine: the highest speeds that it reaches, to compare measured speeds with.
//!
//! ```text
//! read bandwidth        all threads stream through memory                     (bandwidth.rs)
//! int8, bf16, f16, f32  all threads multiply and add in registers alone       (multiply.rs)
//!
//! a ceiling = the best of many passes: other programs only take away from it
//! ```
//!
//! They are measured with the team and the instruction set in use, in the same process and close in
//! time to the operation that is compared with them, because clock rates and the load of other
//! programs change within seconds. An operation has two shares: of the bandwidth by its bytes and
//! of a multiplier by its operations; the larger one names its limit.
//!
//! A multiply-add counts as two operations, as everywhere in this crate.

mod bandwidth;
mod multiply;

use crate::Kernels;
use crate::cpu::Cpu;

/// The kernels of this module for one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    sum: unsafe fn(&[u64]) -> u64,
    int8: multiply::Loop,
    /// Asks the CPU first, because no entry of the dispatch table promises these instructions.
    bf16: fn(usize) -> Option<u64>,
    /// The same.
    f16: fn(usize) -> Option<u64>,
    f32: multiply::Loop,
}

pub(crate) static SCALAR: Table = Table {
    sum: bandwidth::sum_scalar,
    int8: multiply::int8_scalar,
    bf16: |_| None,
    f16: |_| None,
    f32: multiply::f32_scalar,
};
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Table = Table {
    sum: bandwidth::sum_avx2,
    int8: multiply::x86::int8_avx2,
    bf16: |_| None,
    f16: |_| None,
    f32: multiply::x86::f32_avx2,
};
#[cfg(target_arch = "x86_64")]
pub(crate) static AVXVNNI: Table = Table { int8: multiply::x86::int8_avxvnni, ..AVX2 };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512VNNI: Table = Table {
    sum: bandwidth::sum_avx512,
    int8: multiply::x86::int8_avx512vnni,
    bf16: multiply::x86::bf16_if_any,
    f16: multiply::x86::f16_if_any,
    f32: multiply::x86::f32_avx512,
};
#[cfg(target_arch = "x86_64")]
pub(crate) static AMX: Table =
    Table { int8: multiply::x86::int8_tiles, bf16: multiply::x86::bf16_tiles, ..AVX512VNNI };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Table =
    Table { int8: multiply::x86::int8_avx512, bf16: |_| None, f16: |_| None, ..AVX512VNNI };

/// The ceilings of one team with one instruction set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Threads that worked together.
    pub n_threads: usize,
    /// Streaming reads from memory, bytes per second.
    pub read_bandwidth: f64,
    /// 8-bit integer multiply-adds into 32 bits, operations per second.
    pub int8: f64,
    /// bfloat16 multiply-adds into f32, operations per second; `None` where the CPU or the
    /// instruction set in use has no such instruction.
    pub bf16: Option<f64>,
    /// IEEE half-precision multiply-adds into half precision, operations per second; `None` as for
    /// bfloat16.
    pub f16: Option<f64>,
    /// f32 multiply-adds, operations per second.
    pub f32: f64,
}

impl Ceilings {
    /// The ceilings of `kernels` on 1, 2, 4, ... threads and on `n_threads`, in this order.
    ///
    /// Each row takes about `seconds`; `n_bytes` is the memory that the reads go through.
    pub fn measure(
        kernels: &'static Kernels,
        n_threads: usize,
        n_bytes: usize,
        seconds: f64,
    ) -> Vec<Self> {
        let measure = |n_threads| Cpu::with(kernels, n_threads).measure_ceilings(n_bytes, seconds);
        thread_counts(n_threads).into_iter().map(measure).collect()
    }

    /// The larger of two measurements of one team, ceiling by ceiling.
    ///
    /// # Panics
    ///
    /// When they are of teams of different sizes.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        assert_eq!(self.n_threads, other.n_threads, "invariant: two readings of one team");
        let max = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.max(b)).or(a).or(b);
        Self {
            n_threads: self.n_threads,
            read_bandwidth: self.read_bandwidth.max(other.read_bandwidth),
            int8: self.int8.max(other.int8),
            bf16: max(self.bf16, other.bf16),
            f16: max(self.f16, other.f16),
            f32: self.f32.max(other.f32),
        }
    }
}

/// The powers of two below `n_threads`, and `n_threads`.
fn thread_counts(n_threads: usize) -> Vec<usize> {
    let n_threads = n_threads.max(1);
    let mut counts: Vec<usize> = std::iter::successors(Some(1_usize), |n| n.checked_mul(2))
        .take_while(|&n| n < n_threads)
        .collect();
    counts.push(n_threads);
    counts
}

impl Cpu {
    /// Measures every ceiling on all threads of the team, for about `seconds` in all.
    ///
    /// Half of the time goes to reading `n_bytes` of memory (at least 16 MiB;
    /// [`beyond_caches_bytes`](crate::beyond_caches_bytes) is enough), the rest to the multipliers.
    pub fn measure_ceilings(&self, n_bytes: usize, seconds: f64) -> Ceilings {
        let share = seconds / 8.0;
        let table = self.kernels.ceilings;
        // SAFETY: `self.kernels` is supported by this CPU.
        let int8 = |n_steps| Some(unsafe { (table.int8)(n_steps) });
        // SAFETY: as above.
        let f32 = |n_steps| Some(unsafe { (table.f32)(n_steps) });
        Ceilings {
            n_threads: self.team.n_threads(),
            int8: self.measure_rate(int8, share).expect("invariant: every CPU multiplies integers"),
            bf16: self.measure_rate(table.bf16, share),
            f16: self.measure_rate(table.f16, share),
            f32: self.measure_rate(f32, share).expect("invariant: every CPU multiplies floats"),
            read_bandwidth: self.measure_read_bandwidth(n_bytes, seconds / 2.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_finite_ceilings() {
        for kernels in Kernels::available() {
            let ceilings = Cpu::with(kernels, 2).measure_ceilings(0, 0.0);
            assert_eq!(ceilings.n_threads, 2);
            let Ceilings { read_bandwidth, int8, bf16, f16, f32, .. } = ceilings;
            for speed in [read_bandwidth, int8, bf16.unwrap_or(1.0), f16.unwrap_or(1.0), f32] {
                assert!(speed.is_finite() && speed > 0.0, "{}: {ceilings:?}", kernels.name);
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn half_precision_has_a_ceiling_where_the_cpu_and_the_instruction_set_in_use_have_it() {
        let has_f16 = is_x86_feature_detected!("avx512fp16");
        for kernels in Kernels::available() {
            let is_for_it = ["avx512vnni", "amx"].contains(&kernels.name);
            let measured = (kernels.ceilings.f16)(3);
            assert_eq!(measured, (has_f16 && is_for_it).then_some(3 * 16 * 64), "{}", kernels.name);
        }
    }

    #[test]
    fn threads_double_up_to_the_number_asked_for() {
        assert_eq!(thread_counts(0), [1]);
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(6), [1, 2, 4, 6]);
        assert_eq!(thread_counts(8), [1, 2, 4, 8]);
        let rows = Ceilings::measure(Kernels::best(), 3, 0, 0.0);
        assert_eq!(rows.iter().map(|row| row.n_threads).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn of_two_readings_each_ceiling_keeps_its_larger_one() {
        let [a, b] = [(1.0, 8.0, None), (2.0, 4.0, Some(3.0))].map(|(read, int8, bf16)| Ceilings {
            n_threads: 2,
            read_bandwidth: read,
            int8,
            bf16,
            f16: bf16.map(|bf16| bf16 / 2.0),
            f32: read + int8,
        });
        let expected = Ceilings {
            n_threads: 2,
            read_bandwidth: 2.0,
            int8: 8.0,
            bf16: Some(3.0),
            f16: Some(1.5),
            f32: 9.0,
        };
        assert_eq!(a.max(b), expected);
        assert_eq!(b.max(a), expected);
    }
}
