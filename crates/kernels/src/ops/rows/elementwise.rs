//! Sums of rows, biases, factors and bounds.
//!
//! ```text
//! add(x, y):       x[i] += y[i]              12 bytes, 1 operation per element
//! add_bias(x, b):  x[r][i] += b[i]            8 bytes (the bias stays in cache)
//! scale(x, f):     x[i] *= f                  8 bytes
//! clamp(x, c):     x[i] = min(c, max(-c, x))  8 bytes; a NaN stays one
//! ```
//!
//! There is no order of summation: each element is computed alone.

use crate::Cpu;
use crate::simd::shells;
use crate::simd::{LANES, Simd};
use crate::team::Parts;

/// `x += y`, of equal lengths.
#[inline(always)]
pub(super) fn add<S: Simd>(s: S, x: &mut [f32], y: &[f32]) {
    let (x_blocks, x_tail) = x.as_chunks_mut::<LANES>();
    let (y_blocks, y_tail) = y.as_chunks::<LANES>();
    for (x, y) in x_blocks.iter_mut().zip(y_blocks) {
        s.store(s.add(s.load(x), s.load(y)), x);
    }
    for (x, y) in x_tail.iter_mut().zip(y_tail) {
        *x += y;
    }
}

/// Rounds `x` to bf16 and widens it again, of equal lengths.
#[inline(always)]
fn round_to_bf16<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    let (out_blocks, out_tail) = out.as_chunks_mut::<LANES>();
    let mut halves = [0; LANES];
    for (x, out) in x_blocks.iter().zip(out_blocks) {
        s.store_bf16(s.load(x), &mut halves);
        s.store(s.load_bf16(&halves), out);
    }
    if !x_tail.is_empty() {
        s.store_bf16(s.load_part(x_tail, 0.0), &mut halves);
        s.store_part(s.load_bf16(&halves), out_tail);
    }
}

/// `x *= factor`.
#[inline(always)]
fn scale<S: Simd>(s: S, x: &mut [f32], factor: f32) {
    let (blocks, tail) = x.as_chunks_mut::<LANES>();
    for x in blocks {
        s.store(s.mul(s.load(x), s.splat(factor)), x);
    }
    for x in tail {
        *x *= factor;
    }
}

/// Limits every element of `x` to `±most`.
#[inline(always)]
fn clamp<S: Simd>(s: S, x: &mut [f32], most: f32) {
    let bound = |x: S::F| s.min(s.splat(most), s.max(s.splat(-most), x));
    let (blocks, tail) = x.as_chunks_mut::<LANES>();
    for x in blocks {
        s.store(bound(s.load(x)), x);
    }
    if !tail.is_empty() {
        s.store_part(bound(s.load_part(tail, 0.0)), tail);
    }
}

shells! { pub(super) mod scale_shells = scale(x: &mut [f32], factor: f32) }
shells! { pub(super) mod clamp_shells = clamp(x: &mut [f32], most: f32) }
shells! { pub(super) mod round_to_bf16_shells = round_to_bf16(x: &[f32], out: &mut [f32]) }
shells! { pub(super) mod add_shells = add(x: &mut [f32], y: &[f32]) }

impl Cpu {
    /// `x += y`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "invariant: both sides of a sum are of one length");
        let kernel = self.kernels.rows.add;
        let parts = Parts::new(x);
        self.for_each_part(y.len(), 1, |range| {
            // SAFETY: tiles are disjoint; the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(parts.part(range.clone()), &y[range]) };
        });
    }

    /// `x *= factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        let kernel = self.kernels.rows.scale;
        let n = x.len();
        let parts = Parts::new(x);
        self.for_each_part(n, 1, |range| {
            // SAFETY: tiles are disjoint; the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(parts.part(range), factor) };
        });
    }

    /// Multiplies stretches of the columns of every row of `x`, `[m, width]`, by factors.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows or a stretch is not within a row.
    pub fn scale_columns(
        &self,
        x: &mut [f32],
        width: usize,
        stretches: &[(std::ops::Range<usize>, f32)],
    ) {
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        let kernel = self.kernels.rows.scale;
        let n_rows = x.len() / width;
        let parts = Parts::new(x);
        self.for_each_part(n_rows, width, |rows| {
            for row in rows {
                // SAFETY: tiles are disjoint; the kernels of a `Cpu` are available on this machine.
                let row = unsafe { parts.part(row * width..(row + 1) * width) };
                for (columns, factor) in stretches {
                    // SAFETY: the kernels of a `Cpu` are available on this machine.
                    unsafe { kernel(&mut row[columns.clone()], *factor) };
                }
            }
        });
    }

    /// Limits every element to `±most`.
    pub fn clamp(&self, x: &mut [f32], most: f32) {
        let kernel = self.kernels.rows.clamp;
        let n = x.len();
        let parts = Parts::new(x);
        self.for_each_part(n, 1, |range| {
            // SAFETY: tiles are disjoint; the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(parts.part(range), most) };
        });
    }

    /// Adds `bias` to every row of `x`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, n]`; `bias`: `[n]`.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows or `bias` is empty.
    pub fn add_bias(&self, x: &mut [f32], bias: &[f32]) {
        let width = bias.len();
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        let kernel = self.kernels.rows.add;
        let n_rows = x.len() / width;
        let parts = Parts::new(x);
        self.for_each_part(n_rows, width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                unsafe { kernel(parts.part(row * width..(row + 1) * width), bias) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Random, bits, row_cpus};

    #[test]
    fn sums_are_the_sums_of_the_elements_everywhere() {
        let mut random = Random::new(5);
        for n in [0, 1, 15, 16, 17, 1000, 70_001] {
            let (x, y) = (random.normals(n), random.normals(n));
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            for cpu in row_cpus() {
                let mut got = x.clone();
                cpu.add(&mut got, &y);
                assert_eq!(bits(&got), bits(&expected), "{} at {n}", cpu.kernels.name);
            }
        }
    }

    #[test]
    fn stretches_of_columns_have_factors_of_their_own_everywhere() {
        let mut random = Random::new(8);
        for (m, width) in [(1, 3), (7, 40), (300, 500)] {
            let x = random.normals(m * width);
            let stretches = [(0..width / 3, 0.3), (width / 3 + 1..width, -1.5)];
            let factor = |i: usize| stretches.iter().find(|(own, _)| own.contains(&(i % width)));
            let scaled = x.iter().enumerate().map(|(i, x)| factor(i).map_or(*x, |own| x * own.1));
            let scaled: Vec<f32> = scaled.collect();
            for cpu in row_cpus() {
                let mut got = x.clone();
                cpu.scale_columns(&mut got, width, &stretches);
                assert_eq!(bits(&got), bits(&scaled), "{} at {width}", cpu.kernels.name);
            }
        }
    }

    #[test]
    fn factors_and_bounds_are_those_of_the_elements_everywhere() {
        let mut random = Random::new(7);
        for n in [0, 1, 15, 17, 1000, 70_001] {
            let mut x = random.normals(n);
            if let Some(x) = x.last_mut() {
                *x = f32::NAN;
            }
            let scaled: Vec<f32> = x.iter().map(|x| x * 0.3).collect();
            let clamped: Vec<f32> = x.iter().map(|x| x.clamp(-0.5, 0.5)).collect();
            for cpu in row_cpus() {
                let mut got = x.clone();
                cpu.scale(&mut got, 0.3);
                assert_eq!(bits(&got), bits(&scaled), "{} at {n}", cpu.kernels.name);
                got.copy_from_slice(&x);
                cpu.clamp(&mut got, 0.5);
                assert_eq!(bits(&got), bits(&clamped), "{} at {n}", cpu.kernels.name);
            }
        }
    }

    #[test]
    fn a_bias_reaches_every_row() {
        let mut random = Random::new(6);
        for (m, n) in [(1, 3), (4, 50), (90, 500)] {
            let (x, bias) = (random.normals(m * n), random.normals(n));
            let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + bias[i % n]).collect();
            for cpu in row_cpus() {
                let mut got = x.clone();
                cpu.add_bias(&mut got, &bias);
                assert_eq!(bits(&got), bits(&expected), "{} at {m} x {n}", cpu.kernels.name);
            }
        }
    }
}
