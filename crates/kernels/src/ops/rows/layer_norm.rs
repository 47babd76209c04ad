//! Layer norms: rows brought to mean 0 and variance 1.
//!
//! ```text
//! layer_norm(x, w, b):  mean = Σ x[i] / n                   lane i % 16, ascending; lanes by halving
//!                       var  = Σ (x[i] - mean)² / n         lane i % 16, fused, ascending; halving
//!                       r    = 1 / sqrt(var + eps)
//!                       out[i] = fma((x[i] - mean) · r, w[i], b[i])
//! head_layer_norm:      layer_norm without b, in place, of each head of a row, each head with a
//!                       weight of its own or all with one (queries and keys of Cohere, StableLM)
//! ```
//!
//! Three passes over a row that stays in the first-level cache: 16 bytes and 7 operations per
//! element. A norm without weight or bias gets ones or zeros from its
//! caller: one kernel for all, and 8 bytes per element of a row that is in cache anyway.
//!
//! Tried and dropped: mean and variance in one pass, as the mean of squares less the square of the
//! mean (cancels where the mean is large, as it is in the later layers of OPT).
//!
//! # Paper
//!
//! Ba, Kiros and Hinton, *Layer Normalization*, 2016.

use super::HeadLayout;
use crate::Cpu;
use crate::ops::activations::Activations;
use crate::simd::shells;
use crate::simd::{LANES, Simd};
use crate::team::Parts;

/// Kernel of [`normalize`]: row, mean and inverse deviation, weight, bias, output.
pub(super) type Normalize = unsafe fn(&[f32], [f32; 2], [&[f32]; 2], &mut [f32]);

/// Mean, and `1 / sqrt(variance + eps)`, of one row.
#[inline(always)]
pub(crate) fn moments<S: Simd>(s: S, x: &[f32], eps: f32) -> [f32; 2] {
    let (blocks, tail) = x.as_chunks::<LANES>();
    let mut sum = s.splat(0.0);
    for block in blocks {
        sum = s.add(sum, s.load(block));
    }
    if !tail.is_empty() {
        sum = s.add(sum, s.load_part(tail, 0.0));
    }
    let mean = s.sum(sum) / x.len() as f32;
    let mut squares = s.splat(0.0);
    for block in blocks {
        let x = s.sub(s.load(block), s.splat(mean));
        squares = s.fma(x, x, squares);
    }
    if !tail.is_empty() {
        // The missing lanes are as far from the mean as the mean itself.
        let x = s.sub(s.load_part(tail, mean), s.splat(mean));
        squares = s.fma(x, x, squares);
    }
    [mean, 1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()]
}

/// `out = (x - mean) · r · weight + bias`, of equal lengths.
#[inline(always)]
pub(crate) fn normalize<S: Simd>(
    s: S,
    x: &[f32],
    [mean, r]: [f32; 2],
    [weight, bias]: [&[f32]; 2],
    out: &mut [f32],
) {
    let (mean, r) = (s.splat(mean), s.splat(r));
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    let (w_blocks, w_tail) = weight.as_chunks::<LANES>();
    let (b_blocks, b_tail) = bias.as_chunks::<LANES>();
    let (out_blocks, out_tail) = out.as_chunks_mut::<LANES>();
    for (((x, w), b), out) in x_blocks.iter().zip(w_blocks).zip(b_blocks).zip(out_blocks) {
        let x = s.mul(s.sub(s.load(x), mean), r);
        s.store(s.fma(x, s.load(w), s.load(b)), out);
    }
    if !x_tail.is_empty() {
        let x = s.mul(s.sub(s.load_part(x_tail, 0.0), mean), r);
        let (w, b) = (s.load_part(w_tail, 0.0), s.load_part(b_tail, 0.0));
        s.store_part(s.fma(x, w, b), out_tail);
    }
}

/// Adjacent heads of `head_dim` each, in place; `weight` is of one head or of all of them.
#[inline(always)]
fn head_layer_norm<S: Simd>(s: S, heads: &mut [f32], head_dim: usize, weight: &[f32], eps: f32) {
    let weights = weight.chunks_exact(head_dim).cycle();
    for (head, weight) in heads.chunks_exact_mut(head_dim).zip(weights) {
        let [mean, r] = moments(s, head, eps);
        let (mean, r) = (s.splat(mean), s.splat(r));
        let (blocks, tail) = head.as_chunks_mut::<LANES>();
        let (w_blocks, w_tail) = weight.as_chunks::<LANES>();
        for (x, w) in blocks.iter_mut().zip(w_blocks) {
            let normal = s.mul(s.sub(s.load(x), mean), r);
            s.store(s.mul(normal, s.load(w)), x);
        }
        if !tail.is_empty() {
            let normal = s.mul(s.sub(s.load_part(tail, 0.0), mean), r);
            s.store_part(s.mul(normal, s.load_part(w_tail, 0.0)), tail);
        }
    }
}

shells! { pub(super) mod moments_shells = moments(x: &[f32], eps: f32) -> [f32; 2] }
shells! {
    pub(super) mod normalize_shells =
        normalize(x: &[f32], moments: [f32; 2], weight_bias: [&[f32]; 2], out: &mut [f32])
}
shells! {
    pub(super) mod head_layer_norm_shells =
        head_layer_norm(heads: &mut [f32], head_dim: usize, weight: &[f32], eps: f32)
}

impl Cpu {
    /// Layer norm of each row, times `weight`, plus `bias`, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, width]`; `weight`, `bias`: `[width]`; `out`: rows of `width`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree or `weight` is empty.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut Activations,
    ) {
        let width = weight.len();
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        assert_eq!(width, bias.len(), "invariant: a bias per weight");
        assert_eq!(width, out.width(), "invariant: out is as wide as x");
        let table = self.kernels.rows;
        let out = out.writer(self, x.len() / width);
        self.for_each_part(x.len() / width, width, |rows| {
            for row in rows {
                let x = &x[row * width..(row + 1) * width];
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available on
                // this machine.
                unsafe {
                    let moments = (table.moments)(x, eps);
                    out.row(row, |columns, out| {
                        let weight_bias = [&weight[columns.clone()], &bias[columns.clone()]];
                        (table.normalize)(&x[columns], moments, weight_bias, out);
                    });
                }
            }
        });
    }

    /// Layer norm of each head of each row, in place, times `weight`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, row_stride]` with the heads where `layout` says; `weight`: `[head_dim]`, or
    /// `[n_heads, head_dim]` where each head has its own.
    ///
    /// # Panics
    ///
    /// When the shapes disagree or `head_dim` is 0.
    pub fn head_layer_norm(&self, x: &mut [f32], layout: &HeadLayout, weight: &[f32], eps: f32) {
        let n_rows = layout.check(x.len());
        assert!(layout.head_dim > 0, "invariant: heads are not empty");
        let fits = [layout.head_dim, layout.width()].contains(&weight.len());
        assert!(fits, "invariant: one weight per element of a head, or of all heads");
        let kernel = self.kernels.rows.head_layer_norm;
        let parts = Parts::new(x);
        self.for_each_part(n_rows, layout.width(), |rows| {
            for row in rows {
                let start = row * layout.row_stride + layout.offset;
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                unsafe {
                    let heads = parts.part(start..start + layout.width());
                    kernel(heads, layout.head_dim, weight, eps);
                }
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
    fn layer_norm_is_close_to_the_formula() {
        let mut random = Random::new(1);
        for width in [2, 7, 64, 100, 1023] {
            let x: Vec<f32> = random.normals(3 * width).iter().map(|x| x + 5.0).collect();
            let (weight, bias) = (random.normals(width), random.normals(width));
            let mut out = Activations::new(width, Forms::F32);
            row_cpus()[0].layer_norm(&x, &weight, &bias, 1e-5, &mut out);
            for (x, out) in x.chunks(width).zip(out.floats().chunks(width)) {
                let n = width as f64;
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
                let var = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
                let r = 1.0 / (var + 1e-5).sqrt();
                for (i, &out) in out.iter().enumerate() {
                    let normal = (f64::from(x[i]) - mean) * r;
                    let expected = normal * f64::from(weight[i]) + f64::from(bias[i]);
                    assert!((f64::from(out) - expected).abs() < 2e-5 * (1.0 + expected.abs()));
                }
            }
        }
    }

    #[test]
    fn layer_norms_have_the_same_bits_on_every_instruction_set_and_team_and_batch() {
        let mut random = Random::new(2);
        let hostile = hostile_floats();
        for (m, width) in [(1, 1), (2, 15), (3, 16), (8, 33), (5, 257), (70, 1024), (1, 4097)] {
            let mut x = random.normals(m * width);
            let (weight, bias) = (random.normals(width), random.normals(width));
            let zeros = vec![0.0; width];
            if m == 5 {
                x[width..width + hostile.len()].copy_from_slice(&hostile);
            }
            let run = |cpu: &Cpu, x: &[f32]| {
                let mut a = Activations::new(width, Forms::F32);
                let mut plain = a.clone();
                let mut heads = x.to_vec();
                cpu.layer_norm(x, &weight, &bias, 1e-6, &mut a);
                cpu.layer_norm(x, &weight, &zeros, 1e-6, &mut plain);
                let layout =
                    HeadLayout { row_stride: width, offset: 0, n_heads: 1, head_dim: width };
                cpu.head_layer_norm(&mut heads, &layout, &weight, 1e-6);
                let in_place = heads.iter().zip(plain.floats());
                assert!(in_place.clone().all(|(a, b)| a == b || (a.is_nan() && b.is_nan())));
                [bits(a.floats()), bits(&heads)]
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0], &x);
            for cpu in &cpus {
                let what = format!("{} on {} threads", cpu.kernels.name, cpu.team.n_threads());
                assert_eq!(run(cpu, &x), expected, "{what} at {m} x {width}");
                for row in 0..m {
                    let range = row * width..(row + 1) * width;
                    let one = run(cpu, &x[range.clone()]);
                    for (one, all) in one.iter().zip(&expected) {
                        assert_eq!(one, &all[range.clone()], "{what}, row {row} alone");
                    }
                }
            }
        }
    }

    #[test]
    fn heads_may_share_a_weight_or_have_their_own() {
        let layout = HeadLayout { row_stride: 20, offset: 4, n_heads: 3, head_dim: 4 };
        let x = Random::new(3).normals(40);
        let cpu = &row_cpus()[0];
        let run = |weight: &[f32]| {
            let mut x = x.clone();
            cpu.head_layer_norm(&mut x, &layout, weight, 1e-5);
            x
        };
        let shared = run(&[2.0; 4]);
        let own: Vec<f32> = [2.0, 4.0, 6.0].iter().flat_map(|&w| [w; 4]).collect();
        for (i, (own, shared)) in run(&own).iter().zip(&shared).enumerate() {
            let factor = match i % 20 {
                8..12 => 2.0,
                12..16 => 3.0,
                _ => 1.0,
            };
            assert!((own - shared * factor).abs() <= 1e-6 * own.abs(), "element {i}");
            assert!((4..16).contains(&(i % 20)) || *own == x[i], "element {i} is in no head");
        }
    }
}
