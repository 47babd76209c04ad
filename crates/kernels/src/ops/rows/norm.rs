//! Root-mean-square norms.
//!
//! ```text
//! rms_norm(x, w):      ss = Σ x[i]²           lane i % 16, fused, ascending; lanes by halving
//!                      r  = 1 / sqrt(ss / n + eps)
//!                      out[i] = (x[i] · r) · w[i]
//! add_rms_norm:        residual[i] += delta[i], then rms_norm of the residual
//! head_rms_norm:       rms_norm in place of each head of a row (queries and keys of Qwen3)
//! ```
//!
//! Two passes over a row that stays in the first-level cache: 12 bytes moved and 4 operations per
//! element (20 bytes with the add). Rows are independent; big inputs are cut by rows. The second
//! pass hands its floats to the forms of the layer's input while they are in the first-level cache:
//! 5 bytes less per element where only int8 is read, and no pass of its own for the quantization.
//!
//! Tried and dropped: four accumulators of sixteen lanes (a row of 4,096 gains 0.2 microseconds
//! twice per layer, against 64-lane stripes in every implementation).
//!
//! # Paper
//!
//! Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019.

use crate::Cpu;
use crate::ops::activations::Activations;
use crate::simd::shells;
use crate::simd::{LANES, Simd};
use crate::team::Parts;

/// Position of the heads of one tensor inside wider rows, for example of `q` in `[q|k|v]`.
///
/// ```text
/// row  |.. offset ..|head 0|head 1| .. |head n-1|........|      row_stride elements
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLayout {
    /// Distance between rows, in elements.
    pub row_stride: usize,
    /// First element of head 0 within its row.
    pub offset: usize,
    /// Heads per row.
    pub n_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Elements of the heads of one row.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Asserts that the heads fit in their rows and the rows in `len`, and returns how many rows
    /// there are.
    pub(super) fn check(&self, len: usize) -> usize {
        assert!(self.row_stride > 0, "invariant: rows have a stride");
        let width = self.n_heads.checked_mul(self.head_dim);
        let end = width.and_then(|width| width.checked_add(self.offset));
        // Without wrapping around: that heads do not overlap is what their tiles rely on.
        let is_inside = end.is_some_and(|end| end <= self.row_stride);
        assert!(is_inside, "invariant: heads fit in their row");
        assert_eq!(len % self.row_stride, 0, "invariant: whole rows");
        len / self.row_stride
    }
}

/// `1 / sqrt(mean of squares + eps)` of one row.
#[inline(always)]
pub(super) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let (blocks, tail) = x.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for block in blocks {
        let x = s.load(block);
        acc = s.fma(x, x, acc);
    }
    if !tail.is_empty() {
        // The missing lanes add 0 · 0, which changes no bit of a sum of squares.
        let x = s.load_part(tail, 0.0);
        acc = s.fma(x, x, acc);
    }
    1.0 / (s.sum(acc) / x.len() as f32 + eps).sqrt()
}

/// `out = (x · r) · weight`, of equal lengths.
#[inline(always)]
pub(super) fn scale_by<S: Simd>(s: S, x: &[f32], r: f32, weight: &[f32], out: &mut [f32]) {
    let r = s.splat(r);
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    let (w_blocks, w_tail) = weight.as_chunks::<LANES>();
    let (out_blocks, out_tail) = out.as_chunks_mut::<LANES>();
    for ((x, w), out) in x_blocks.iter().zip(w_blocks).zip(out_blocks) {
        s.store(s.mul(s.mul(s.load(x), r), s.load(w)), out);
    }
    if !x_tail.is_empty() {
        let (x, w) = (s.load_part(x_tail, 0.0), s.load_part(w_tail, 0.0));
        s.store_part(s.mul(s.mul(x, r), w), out_tail);
    }
}

/// Adds `delta` to `residual`, and the inverse root mean square of the sum.
#[inline(always)]
fn add_inverse_rms<S: Simd>(s: S, residual: &mut [f32], delta: &[f32], eps: f32) -> f32 {
    super::elementwise::add(s, residual, delta);
    inverse_rms(s, residual, eps)
}

/// Adjacent heads of `weight.len()` each, in place.
#[inline(always)]
fn head_rms_norm<S: Simd>(s: S, heads: &mut [f32], weight: &[f32], eps: f32) {
    for head in heads.chunks_exact_mut(weight.len()) {
        let r = s.splat(inverse_rms(s, head, eps));
        let (blocks, tail) = head.as_chunks_mut::<LANES>();
        let (w_blocks, w_tail) = weight.as_chunks::<LANES>();
        for (x, w) in blocks.iter_mut().zip(w_blocks) {
            s.store(s.mul(s.mul(s.load(x), r), s.load(w)), x);
        }
        if !tail.is_empty() {
            let (x, w) = (s.load_part(tail, 0.0), s.load_part(w_tail, 0.0));
            s.store_part(s.mul(s.mul(x, r), w), tail);
        }
    }
}

shells! { pub(super) mod inverse_rms_shells = inverse_rms(x: &[f32], eps: f32) -> f32 }
shells! {
    pub(super) mod add_inverse_rms_shells =
        add_inverse_rms(residual: &mut [f32], delta: &[f32], eps: f32) -> f32
}
shells! {
    pub(super) mod scale_by_shells = scale_by(x: &[f32], r: f32, weight: &[f32], out: &mut [f32])
}
shells! {
    pub(super) mod head_rms_norm_shells = head_rms_norm(heads: &mut [f32], weight: &[f32], eps: f32)
}

impl Cpu {
    /// Root-mean-square norm of each row, times `weight`, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, width]`; `weight`: `[width]`; `out`: rows of `width`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree or `weight` is empty.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut Activations) {
        let width = weight.len();
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        assert_eq!(width, out.width(), "invariant: out is as wide as x");
        let table = self.kernels.rows;
        let out = out.writer(self, x.len() / width);
        self.for_each_part(x.len() / width, width, |rows| {
            for row in rows {
                let x = &x[row * width..(row + 1) * width];
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available on
                // this machine.
                unsafe {
                    let r = (table.inverse_rms)(x, eps);
                    out.row(row, |columns, out| {
                        (table.scale_by)(&x[columns.clone()], r, &weight[columns], out);
                    });
                }
            }
        });
    }

    /// Adds `delta` to `residual` and writes the root-mean-square norm of the sum, times `weight`,
    /// in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `residual`, `delta`: `[m, width]`; `weight`: `[width]`; `out`: rows of `width`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree or `weight` is empty.
    pub fn add_rms_norm(
        &self,
        residual: &mut [f32],
        delta: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut Activations,
    ) {
        let width = weight.len();
        assert!(width > 0 && delta.len().is_multiple_of(width), "invariant: whole rows of delta");
        assert_eq!(residual.len(), delta.len(), "invariant: residual is as large as delta");
        assert_eq!(width, out.width(), "invariant: out is as wide as delta");
        let table = self.kernels.rows;
        let (sums, out) = (Parts::new(residual), out.writer(self, delta.len() / width));
        self.for_each_part(delta.len() / width, width, |rows| {
            for row in rows {
                let range = row * width..(row + 1) * width;
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available on
                // this machine.
                unsafe {
                    let sum = sums.part(range.clone());
                    let r = (table.add_inverse_rms)(sum, &delta[range], eps);
                    out.row(row, |columns, out| {
                        (table.scale_by)(&sum[columns.clone()], r, &weight[columns], out);
                    });
                }
            }
        });
    }

    /// Root-mean-square norm of each head of each row, in place, times `weight`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, row_stride]` with the heads where `layout` says; `weight`: `[head_dim]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree or `head_dim` is 0.
    pub fn head_rms_norm(&self, x: &mut [f32], layout: &HeadLayout, weight: &[f32], eps: f32) {
        let n_rows = layout.check(x.len());
        assert_eq!(weight.len(), layout.head_dim, "invariant: one weight per element of a head");
        assert!(layout.head_dim > 0, "invariant: heads are not empty");
        let kernel = self.kernels.rows.head_rms_norm;
        let parts = Parts::new(x);
        self.for_each_part(n_rows, layout.width(), |rows| {
            for row in rows {
                let start = row * layout.row_stride + layout.offset;
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                unsafe { kernel(parts.part(start..start + layout.width()), weight, eps) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::activations::Forms;
    use crate::testing::{Random, bits, hostile_floats, row_cpus};

    #[test]
    fn rms_norm_is_close_to_the_formula() {
        let mut random = Random::new(1);
        for width in [1, 7, 64, 100, 1023] {
            let (x, weight) = (random.normals(3 * width), random.normals(width));
            let mut out = Activations::new(width, Forms::F32);
            row_cpus()[0].rms_norm(&x, &weight, 1e-5, &mut out);
            for (x, out) in x.chunks(width).zip(out.floats().chunks(width)) {
                let ss: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                let r = 1.0 / (ss / width as f64 + 1e-5).sqrt();
                for ((&x, &w), &out) in x.iter().zip(&weight).zip(out) {
                    let expected = f64::from(x) * r * f64::from(w);
                    assert!((f64::from(out) - expected).abs() < 1e-5 * (1.0 + expected.abs()));
                }
            }
        }
    }

    #[test]
    fn norms_have_the_same_bits_on_every_instruction_set_and_team_and_batch() {
        let mut random = Random::new(2);
        let hostile = hostile_floats();
        for (m, width) in [(1, 1), (2, 15), (3, 16), (8, 33), (5, 257), (70, 1024), (1, 4097)] {
            let mut x = random.normals(m * width);
            let (delta, weight) = (random.normals(m * width), random.normals(width));
            if m == 5 {
                x[width..width + hostile.len()].copy_from_slice(&hostile);
            }
            let run = |cpu: &Cpu, x: &[f32], delta: &[f32]| {
                let mut a = Activations::new(width, Forms::F32);
                let mut b = a.clone();
                let mut residual = x.to_vec();
                let mut heads = x.to_vec();
                cpu.rms_norm(x, &weight, 1e-6, &mut a);
                cpu.add_rms_norm(&mut residual, delta, &weight, 1e-6, &mut b);
                let layout =
                    HeadLayout { row_stride: width, offset: 0, n_heads: 1, head_dim: width };
                cpu.head_rms_norm(&mut heads, &layout, &weight, 1e-6);
                [bits(a.floats()), bits(b.floats()), bits(&residual), bits(&heads)]
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0], &x, &delta);
            assert_eq!(expected[0], expected[3], "in place = out of place");
            for cpu in &cpus {
                let what = format!("{} on {} threads", cpu.kernels.name, cpu.team.n_threads());
                assert_eq!(run(cpu, &x, &delta), expected, "{what} at {m} x {width}");
                for row in 0..m {
                    let range = row * width..(row + 1) * width;
                    let one = run(cpu, &x[range.clone()], &delta[range.clone()]);
                    for (one, all) in one.iter().zip(&expected) {
                        assert_eq!(one, &all[range.clone()], "{what}, row {row} alone");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "heads fit in their row")]
    fn heads_whose_width_would_wrap_around_are_refused() {
        let layout =
            HeadLayout { row_stride: 16, offset: 0, n_heads: usize::MAX / 8 + 1, head_dim: 8 };
        row_cpus()[0].head_rms_norm(&mut [0.0; 32], &layout, &[1.0; 8], 0.0);
    }

    #[test]
    fn head_norm_touches_nothing_but_its_heads() {
        let layout = HeadLayout { row_stride: 100, offset: 20, n_heads: 3, head_dim: 20 };
        let mut x = vec![3.0; 400];
        row_cpus()[0].head_rms_norm(&mut x, &layout, &[1.0; 20], 0.0);
        for (i, x) in x.iter().enumerate() {
            let expected = if (20..80).contains(&(i % 100)) { 1.0 } else { 3.0 };
            assert_eq!(*x, expected, "element {i}");
        }
    }
}
