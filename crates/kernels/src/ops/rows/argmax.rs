//! The index of the largest logit.
//!
//! ```text
//! pass 1: largest = max over all elements, 4 x 16 lanes, NaN passed over
//! pass 2: first i with x[i] == largest, strips of 64 at a time
//! ```
//!
//! 4 to 8 bytes per element, the second pass mostly out of cache and on average half a pass. The
//! maximum has no order, so there is none to keep; `-0.0 == 0.0`, so the lower index of the two.
//!
//! Tried and dropped: one pass with index lanes (the tie rule across lanes costs what the second
//! pass costs, and is harder to read).

use crate::Cpu;
use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Elements looked at together, in both passes.
const STRIP: usize = 4 * LANES;

/// The largest element; minus infinity where there is no number.
#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (strips, tail) = x.as_chunks::<STRIP>();
    let mut acc = [s.splat(f32::NEG_INFINITY); 4];
    for strip in strips {
        for (acc, block) in acc.iter_mut().zip(strip.as_chunks::<LANES>().0) {
            // A NaN on the left leaves the right: it never enters.
            *acc = s.max(s.load(block), *acc);
        }
    }
    let mut largest = s.largest(s.max(s.max(acc[0], acc[1]), s.max(acc[2], acc[3])));
    for &x in tail {
        if x > largest {
            largest = x;
        }
    }
    largest
}

#[inline(always)]
fn argmax<S: Simd>(s: S, x: &[f32]) -> usize {
    let largest = largest(s, x);
    let (strips, _) = x.as_chunks::<STRIP>();
    // No early exit within a strip, so that the compiler compares vectors.
    let holds = |strip: &[f32; STRIP]| strip.iter().fold(false, |any, &x| any | (x == largest));
    let first = strips.iter().position(holds).unwrap_or(strips.len()) * STRIP;
    x[first..].iter().position(|&x| x == largest).map_or(0, |i| first + i)
}

shells! { pub(super) mod largest_shells = largest(x: &[f32]) -> f32 }
shells! { pub(super) mod argmax_shells = argmax(x: &[f32]) -> usize }

impl Cpu {
    /// The index of the largest element, the lowest among equals; a NaN never wins.
    ///
    /// A row of nothing but NaN gives 0.
    ///
    /// # Panics
    ///
    /// When the row is empty.
    pub fn argmax(&self, row: &[f32]) -> usize {
        assert!(!row.is_empty(), "invariant: a row of logits has elements");
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (self.kernels.rows.argmax)(row) }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Random, hostile_floats, row_cpus};

    fn naive(row: &[f32]) -> usize {
        let mut best = None;
        for (i, &x) in row.iter().enumerate() {
            if !x.is_nan() && best.is_none_or(|best: usize| x > row[best]) {
                best = Some(i);
            }
        }
        best.unwrap_or(0)
    }

    #[test]
    fn argmax_is_the_first_largest_number_on_every_instruction_set() {
        let mut random = Random::new(31);
        let hostile = hostile_floats();
        let cpus = row_cpus();
        for n in (1..70).chain([1000, 4096, 4097]) {
            for kind in 0..4 {
                let row: Vec<f32> = (0..n)
                    .map(|_| match kind {
                        0 => random.normal(),
                        1 => random.below(4) as f32,
                        2 => hostile[random.below(hostile.len())],
                        _ => f32::NAN,
                    })
                    .collect();
                for cpu in &cpus {
                    assert_eq!(cpu.argmax(&row), naive(&row), "{} {row:?}", cpu.kernels.name);
                }
            }
        }
    }

    #[test]
    fn an_infinite_negative_among_nans_wins() {
        for cpu in row_cpus() {
            assert_eq!(cpu.argmax(&[f32::NAN, f32::NAN, f32::NEG_INFINITY]), 2);
        }
    }
}
