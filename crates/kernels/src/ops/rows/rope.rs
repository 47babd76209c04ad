//! Rotary position embedding.
//!
//! ```text
//! row r of cos_sin   |cos 0 .. cos h-1|sin 0 .. sin h-1|      h = rotary_dim / 2
//!
//! half-split         |pass|a0 a1 .. ah-1|b0 b1 .. bh-1|pass|    one head, rotary_dim from `first` on
//! interleaved        |pass|a0 b0 a1 b1 ..             |pass|
//!
//! a' = fma(a, cos, -(b · sin))        b' = fma(b, cos, a · sin)
//! ```
//!
//! 8 bytes and 4 operations per element; the tables stay in cache, being shared by the heads of a
//! row. Angles are the caller's: scalings and bases are data, computed once per model. The
//! half-split kernel is sixteen lanes; the interleaved one is plain code whose fused operations
//! the compiler vectorizes inside the shell, since each element is its own and has no order.
//!
//! # Paper
//!
//! Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding*, 2021. We follow the
//! half-split pairing of Hugging Face checkpoints by default; the paper's pairing is `interleaved`.

use super::HeadLayout;
use crate::Cpu;
use crate::simd::shells;
use crate::simd::{LANES, Simd};
use crate::team::Parts;

/// The elements of each row that are rotated, and how they are paired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeLayout {
    /// Where the heads lie.
    pub heads: HeadLayout,
    /// Element of each head with which rotation begins.
    pub first: usize,
    /// Elements of each head that are rotated; even, at most `head_dim - first`.
    pub rotary_dim: usize,
    /// Pairs are neighbours (2i, 2i + 1) rather than halves (i, i + rotary_dim / 2).
    pub interleaved: bool,
}

/// Rotates one head's leading elements, paired by halves; `cos_sin` is of the same length.
#[inline(always)]
fn halves<S: Simd>(s: S, x: &mut [f32], cos_sin: &[f32]) {
    let half = x.len() / 2;
    let (a, b) = x.split_at_mut(half);
    let (cos, sin) = cos_sin.split_at(half);
    let (a_blocks, a_tail) = a.as_chunks_mut::<LANES>();
    let (b_blocks, b_tail) = b.as_chunks_mut::<LANES>();
    let (cos_blocks, cos_tail) = cos.as_chunks::<LANES>();
    let (sin_blocks, sin_tail) = sin.as_chunks::<LANES>();
    let zero = s.splat(0.0);
    for (((a, b), cos), sin) in a_blocks.iter_mut().zip(b_blocks).zip(cos_blocks).zip(sin_blocks) {
        let (x, y, cos, sin) = (s.load(a), s.load(b), s.load(cos), s.load(sin));
        s.store(s.fma(x, cos, s.sub(zero, s.mul(y, sin))), a);
        s.store(s.fma(y, cos, s.mul(x, sin)), b);
    }
    for (((a, b), &cos), &sin) in a_tail.iter_mut().zip(b_tail).zip(cos_tail).zip(sin_tail) {
        rotate(a, b, cos, sin);
    }
}

/// Rotates one head's leading elements, paired with their neighbours.
#[inline(always)]
fn pairs<S: Simd>(_: S, x: &mut [f32], cos_sin: &[f32]) {
    let (cos, sin) = cos_sin.split_at(x.len() / 2);
    for (([a, b], &cos), &sin) in x.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        rotate(a, b, cos, sin);
    }
}

#[inline(always)]
fn rotate(a: &mut f32, b: &mut f32, cos: f32, sin: f32) {
    let (x, y) = (*a, *b);
    *a = x.mul_add(cos, 0.0 - y * sin);
    *b = y.mul_add(cos, x * sin);
}

shells! { pub(super) mod halves_shells = halves(x: &mut [f32], cos_sin: &[f32]) }
shells! { pub(super) mod pairs_shells = pairs(x: &mut [f32], cos_sin: &[f32]) }

impl Cpu {
    /// Rotates the heads of each row by the angles of its row of `cos_sin`, in place.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, row_stride]`; `cos_sin`: `[m, rotary_dim]`, the cosines of the `rotary_dim / 2`
    /// angles first and then their sines.
    ///
    /// # Panics
    ///
    /// When the shapes disagree, or the rotated elements are odd in number or not within a head.
    pub fn rope(&self, x: &mut [f32], layout: &RopeLayout, cos_sin: &[f32]) {
        let RopeLayout { heads, first, rotary_dim, interleaved } = *layout;
        let n_rows = heads.check(x.len());
        assert!(rotary_dim % 2 == 0, "invariant: rotary elements come in pairs");
        let is_inside = first.checked_add(rotary_dim).is_some_and(|end| end <= heads.head_dim);
        assert!(is_inside, "invariant: rotary elements are part of a head");
        assert_eq!(cos_sin.len(), n_rows * rotary_dim, "invariant: one row of angles per row");
        let rows = self.kernels.rows;
        let kernel = if interleaved { rows.rope_pairs } else { rows.rope_halves };
        let parts = Parts::new(x);
        self.for_each_part(n_rows, heads.width(), |rows| {
            for row in rows {
                let angles = &cos_sin[row * rotary_dim..(row + 1) * rotary_dim];
                for head in 0..heads.n_heads {
                    let start =
                        row * heads.row_stride + heads.offset + head * heads.head_dim + first;
                    // SAFETY: each row belongs to one tile, each head of it is taken once; the
                    // kernels of a `Cpu` are available on this machine.
                    unsafe { kernel(parts.part(start..start + rotary_dim), angles) };
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, row_cpus};

    fn angles(random: &mut Random, m: usize, half: usize) -> Vec<f32> {
        let mut table = Vec::new();
        for _ in 0..m {
            let angles: Vec<f32> = (0..half).map(|_| random.normal() * 3.0).collect();
            table.extend(angles.iter().map(|a| a.cos()));
            table.extend(angles.iter().map(|a| a.sin()));
        }
        table
    }

    #[test]
    fn rotation_follows_the_formula_and_leaves_the_rest_alone() {
        let mut random = Random::new(21);
        for (head_dim, begin, rotary_dim) in [
            (8, 0, 8),
            (10, 0, 6),
            (10, 3, 6),
            (64, 0, 64),
            (80, 0, 32),
            (192, 128, 64),
            (128, 2, 126),
            (4, 0, 0),
        ] {
            for interleaved in [false, true] {
                let (m, n_heads, offset) = (3, 2, 5);
                let row_stride = offset + n_heads * head_dim + 3;
                let heads = HeadLayout { row_stride, offset, n_heads, head_dim };
                let layout = RopeLayout { heads, first: begin, rotary_dim, interleaved };
                let x = random.normals(m * row_stride);
                let half = rotary_dim / 2;
                let table = angles(&mut random, m, half);
                let mut expected = x.clone();
                for row in 0..m {
                    for head in 0..n_heads {
                        let at = row * row_stride + offset + head * head_dim + begin;
                        for i in 0..half {
                            let (i0, i1) =
                                if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                            let (a, b) = (f64::from(x[at + i0]), f64::from(x[at + i1]));
                            let cos = f64::from(table[row * rotary_dim + i]);
                            let sin = f64::from(table[row * rotary_dim + half + i]);
                            expected[at + i0] = (a * cos - b * sin) as f32;
                            expected[at + i1] = (b * cos + a * sin) as f32;
                        }
                    }
                }
                let cpus = row_cpus();
                let mut first = x.clone();
                cpus[0].rope(&mut first, &layout, &table);
                for (i, (&got, &expected)) in first.iter().zip(&expected).enumerate() {
                    assert!((got - expected).abs() < 1e-6, "{layout:?} element {i}");
                    let rotated = begin..begin + rotary_dim;
                    let is_rotated = (i % row_stride).checked_sub(offset).is_some_and(|at| {
                        at < n_heads * head_dim && rotated.contains(&(at % head_dim))
                    });
                    assert!(is_rotated || got == x[i], "{layout:?} touched element {i}");
                }
                for cpu in &cpus {
                    let mut got = x.clone();
                    cpu.rope(&mut got, &layout, &table);
                    assert_eq!(bits(&got), bits(&first), "{} {layout:?}", cpu.kernels.name);
                }
            }
        }
    }

    #[test]
    fn both_pairings_and_every_width_rotate_a_pair_to_the_same_bits() {
        let mut random = Random::new(23);
        for half in [1, 15, 16, 17, 64] {
            let (a, b) = (random.normals(half), random.normals(half));
            let table = angles(&mut random, 1, half);
            let layout = |half: usize, interleaved| RopeLayout {
                heads: HeadLayout {
                    row_stride: 2 * half,
                    offset: 0,
                    n_heads: 1,
                    head_dim: 2 * half,
                },
                first: 0,
                rotary_dim: 2 * half,
                interleaved,
            };
            for cpu in row_cpus() {
                let mut halves = [a.clone(), b.clone()].concat();
                cpu.rope(&mut halves, &layout(half, false), &table);
                let mut pairs: Vec<f32> = a.iter().zip(&b).flat_map(|(&a, &b)| [a, b]).collect();
                cpu.rope(&mut pairs, &layout(half, true), &table);
                for i in 0..half {
                    let mut alone = [a[i], b[i]];
                    cpu.rope(&mut alone, &layout(1, false), &[table[i], table[half + i]]);
                    assert_eq!(bits(&alone), bits(&[halves[i], halves[half + i]]), "half {half}");
                    assert_eq!(bits(&alone), bits(&pairs[2 * i..2 * i + 2]), "half {half}");
                }
            }
        }
    }

    #[test]
    fn a_large_batch_rotates_each_row_as_if_alone() {
        let mut random = Random::new(22);
        let heads = HeadLayout { row_stride: 512, offset: 0, n_heads: 8, head_dim: 64 };
        let layout = RopeLayout { heads, first: 0, rotary_dim: 64, interleaved: false };
        let x = random.normals(100 * 512);
        let table = angles(&mut random, 100, 32);
        for cpu in row_cpus() {
            let mut all = x.clone();
            cpu.rope(&mut all, &layout, &table);
            for row in [0, 1, 57, 99] {
                let mut one = x[row * 512..(row + 1) * 512].to_vec();
                cpu.rope(&mut one, &layout, &table[row * 64..(row + 1) * 64]);
                assert_eq!(bits(&one), bits(&all[row * 512..(row + 1) * 512]));
            }
        }
    }
}
