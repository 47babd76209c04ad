//! Rotations by random signs and a Hadamard transform: no input stays much larger than the others.
//!
//! ```text
//! Q = H(width)ᵀ diag(signs) / √width     orthogonal
//! ```
//!
//! The signs depend on width and seed alone, and a product takes `width log width` additions. QuIP#
//! turns both sides of each matrix so ([`solve::quip`](crate::solve::quip)); the residual stream of a
//! model can be turned as a whole, which changes nothing that it computes.
//!
//! # Papers
//!
//! Tseng et al., *QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice
//! Codebooks*, 2024; Ashkboos et al., *QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs*, 2024.

use crate::quip::{Hadamard, in_panels};

/// A rotation of one width.
#[derive(Debug)]
pub struct Rotation {
    signs: Vec<f32>,
    /// The transpose of the transform that readers of QuIP# apply.
    transform: Hadamard,
    root: f64,
}

impl Rotation {
    /// The rotation of a width and a seed; `None` where no Hadamard transform of this width is known.
    pub fn new(width: usize, seed: u64) -> Option<Self> {
        let transform = Hadamard::new(width)?.transposed();
        Some(Self { signs: signs(width, seed), transform, root: (width as f64).sqrt() })
    }

    /// Elements of a vector.
    pub fn width(&self) -> usize {
        self.signs.len()
    }

    /// The sign of each element, 1 or -1.
    pub(crate) fn signs(&self) -> &[f32] {
        &self.signs
    }

    /// Turns each row `x` to `Q x`: the inputs of a matrix `[n, width]`, or vectors themselves.
    ///
    /// # Panics
    ///
    /// When these are no whole rows.
    pub fn rows(&self, values: &mut [f32]) {
        assert!(values.len().is_multiple_of(self.width()), "whole rows");
        let mut line = vec![0.0_f64; self.width()];
        for row in values.chunks_exact_mut(self.width()) {
            for ((line, x), sign) in line.iter_mut().zip(&*row).zip(&self.signs) {
                *line = f64::from(x * sign);
            }
            self.transform.apply(&mut line, 1);
            row.iter_mut().zip(&line).for_each(|(x, turned)| *x = (turned / self.root) as f32);
        }
    }

    /// Turns the outputs of a matrix `[width, k]`: `W` to `Q W`.
    ///
    /// # Panics
    ///
    /// When the matrix has another shape.
    pub fn columns(&self, values: &mut [f32], k: usize) {
        assert_eq!(values.len(), self.width() * k, "a matrix with these outputs");
        for (row, sign) in values.chunks_exact_mut(k).zip(&self.signs) {
            row.iter_mut().for_each(|x| *x *= sign);
        }
        in_panels(values, k, &self.transform, |_, _, x| x / self.root);
    }
}

/// Random signs.
fn signs(width: usize, seed: u64) -> Vec<f32> {
    let is_negative = |i: usize| {
        // The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) as a hash.
        let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed << 32;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x >> 63 == 1
    };
    (0..width).map(|i| if is_negative(i) { -1.0 } else { 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turned_matrices_of_turned_rows_give_the_same_products() {
        let (width, k) = (48, 5);
        let rotation = Rotation::new(width, 7).expect("a width");
        let value = |i: usize| ((i * 7919) % 101) as f32 / 50.0 - 1.0;
        let inner: Vec<f32> = (0..3 * width).map(value).collect();
        let x: Vec<f32> = (0..width).map(|i| value(i * 3 + 1)).collect();
        let (mut turned, mut y) = (inner.clone(), x.clone());
        rotation.rows(&mut turned);
        rotation.rows(&mut y);
        assert!(x.iter().zip(&y).any(|(x, y)| (x - y).abs() > 0.1), "something is turned");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for (row, turned) in inner.chunks(width).zip(turned.chunks(width)) {
            assert!((dot(row, &x) - dot(turned, &y)).abs() < 1e-4);
        }
        // A column of outputs is turned as the row of its numbers.
        let outputs: Vec<f32> = (0..width * k).map(|i| value(i * 5 + 2)).collect();
        let mut columns = outputs.clone();
        rotation.columns(&mut columns, k);
        for j in 0..k {
            let mut column: Vec<f32> = outputs.iter().skip(j).step_by(k).copied().collect();
            rotation.rows(&mut column);
            assert!(column.iter().eq(columns.iter().skip(j).step_by(k)), "column {j}");
        }
    }

    #[test]
    fn signs_are_mixed_and_differ_by_seed() {
        let (a, b) = (signs(1000, 0), signs(1000, 1));
        let n_negative = a.iter().filter(|sign| **sign < 0.0).count();
        let n_equal = a.iter().zip(&b).filter(|(a, b)| a == b).count();
        assert!((400..600).contains(&n_negative) && (400..600).contains(&n_equal));
    }
}
