//! Read bandwidth of this machine: the ceiling of decoding.
//!
//! ```text
//! buffer of n_bytes, written once (so that every page exists)
//! until the time is up: threads take chunks of 1 MiB and add up their words
//! bytes per second = the best pass
//! ```
//!
//! The best pass counts and not the mean, because other programs can only slow a pass down. The
//! buffer must be several times the last-level cache.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pelton_tensor::AlignedBuf;

use crate::cpu::Cpu;
use crate::team::Parts;

/// Bytes that a thread takes at a time.
const CHUNK: usize = 1 << 20;

pub(super) fn sum_scalar(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, &word| sum.wrapping_add(word))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sum_avx2(words: &[u64]) -> u64 {
    sum_lanes(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn sum_avx512(words: &[u64]) -> u64 {
    use std::arch::x86_64::*;
    let (blocks, tail) = words.as_chunks::<64>();
    let mut acc = [_mm512_setzero_si512(); 8];
    for block in blocks {
        let block = block.as_ptr();
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the block holds 64 words; a prefetch may name any address.
            let words = unsafe {
                _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(i * 8 + 256).cast());
                _mm512_loadu_si512(block.add(i * 8).cast())
            };
            *acc = _mm512_add_epi64(*acc, words);
        }
    }
    let mut lanes = _mm512_setzero_si512();
    for acc in acc {
        lanes = _mm512_add_epi64(lanes, acc);
    }
    sum_scalar(tail).wrapping_add(_mm512_reduce_add_epi64(lanes).cast_unsigned())
}

/// Written so that the compiler keeps 32 lanes in registers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sum_lanes(words: &[u64]) -> u64 {
    let (blocks, tail) = words.as_chunks::<32>();
    let mut lanes = [0_u64; 32];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    sum_scalar(tail).wrapping_add(sum_scalar(&lanes))
}

impl Cpu {
    /// Measures the speed of streaming reads by all threads of the team.
    ///
    /// Allocates `n_bytes` (at least 16 MiB; several times the last-level cache is enough) and
    /// reads all of them repeatedly for about `seconds`, at least twice.
    ///
    /// # Units
    ///
    /// Bytes per second, of the best pass.
    pub fn measure_read_bandwidth(&self, n_bytes: usize, seconds: f64) -> f64 {
        let n_bytes = n_bytes.max(16 << 20).next_multiple_of(CHUNK);
        let mut buf = AlignedBuf::zeroed(n_bytes);
        // Placed on the NUMA nodes as packed weights are.
        self.place(&mut buf);
        self.write_everywhere(&mut buf);
        let start = Instant::now();
        let mut best = 0.0_f64;
        let mut n_passes = 0;
        while n_passes < 2 || start.elapsed().as_secs_f64() < seconds {
            let pass = Instant::now();
            self.read_through(buf.as_slice_of());
            best = best.max(n_bytes as f64 / pass.elapsed().as_secs_f64());
            n_passes += 1;
        }
        best
    }

    /// Writes every page of `buf`, chunks on whichever threads of the team come first.
    pub(crate) fn write_everywhere(&self, buf: &mut AlignedBuf) {
        let bytes = buf.bytes_mut();
        let n_bytes = bytes.len();
        let parts = Parts::new(bytes);
        self.team.for_each_tile(n_bytes.div_ceil(CHUNK), |chunk| {
            // SAFETY: chunks are disjoint.
            unsafe { parts.part(chunk * CHUNK..n_bytes.min((chunk + 1) * CHUNK)) }.fill(1);
        });
    }

    /// Reads all words once, with the whole team.
    pub(crate) fn read_through(&self, words: &[u64]) {
        let sum = AtomicU64::new(0);
        self.team.for_each_tile(words.len().div_ceil(CHUNK / 8), |chunk| {
            let first = chunk * (CHUNK / 8);
            let words = &words[first..words.len().min(first + CHUNK / 8)];
            // SAFETY: `self.kernels` is supported by this CPU.
            sum.fetch_add(unsafe { (self.kernels.ceilings.sum)(words) }, Ordering::Relaxed);
        });
        black_box(sum.into_inner());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernels;

    #[test]
    fn every_instruction_set_reads_every_word() {
        let words: Vec<u64> =
            (0..1000_u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        for n in [0, 1, 31, 32, 63, 64, 65, 1000] {
            let expected = sum_scalar(&words[..n]);
            for kernels in Kernels::available() {
                // SAFETY: the kernels are supported by this CPU.
                let got = unsafe { (kernels.ceilings.sum)(&words[..n]) };
                assert_eq!(got, expected, "{} at {n}", kernels.name);
            }
        }
    }

    #[test]
    fn a_measurement_is_a_finite_speed() {
        let speed = Cpu::with(Kernels::best(), 2).measure_read_bandwidth(0, 0.0);
        assert!(speed.is_finite() && speed > 0.0);
    }
}
