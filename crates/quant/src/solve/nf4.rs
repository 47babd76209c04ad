//! NF4: codes of a table of 16 quantiles, with scales that are quantized themselves.
//!
//! ```text
//! scale of each 64 weights, row by row    max|w|
//! quantized a second time                 (scale - mean) / largest of 256 scales, as a code of a
//!                                         table of 256 numbers that are dense near zero
//! w = scale * NF4[code]
//! ```
//!
//! Codes are chosen for the scale that is stored, which differs from the maximum by up to a percent.
//!
//! # Paper
//!
//! Dettmers et al., *QLoRA: Efficient Finetuning of Quantized LLMs*, 2023.

use pelton_kernels::codes::NF4;

use super::threads::for_chunks;
use super::{Result, SolveError, Weights};

/// Scales that share a scale.
pub(crate) const NESTED_BLOCK: usize = 256;

/// A matrix of NF4 with double quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct Nf4 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Weights that share a scale.
    pub block: usize,
    /// `[n, k]`, codes of [`NF4`].
    pub codes: Vec<u8>,
    /// A code of [`table`] for each block.
    pub scales: Vec<u8>,
    /// The largest magnitude of each 256 scales, less [`offset`](Self::offset).
    pub nested: Vec<f32>,
    /// The mean of all scales.
    pub offset: f32,
}

/// Rounds every weight to the nearest number of the table.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When a block has no weights.
pub fn solve(weights: Weights<'_>, block: usize, n_threads: usize) -> Result<Nf4> {
    weights.check_finite()?;
    let largest = |block: &[f32]| block.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
    let plain: Vec<f32> = weights.values.chunks(block).map(largest).collect();
    let sum: f64 = plain.iter().map(|scale| f64::from(*scale)).sum();
    let offset = (sum / plain.len().max(1) as f64) as f32;
    let table = table();
    let (mut scales, mut nested) = (Vec::with_capacity(plain.len()), Vec::new());
    for plain in plain.chunks(NESTED_BLOCK) {
        let most = plain.iter().fold(0.0_f32, |most, scale| most.max((scale - offset).abs()));
        nested.push(most);
        let unit = if most > 0.0 { 1.0 / most } else { 0.0 };
        scales.extend(plain.iter().map(|scale| nearest(&table, (scale - offset) * unit)));
    }
    let mut solved = Nf4 { shape: weights.shape, block, codes: Vec::new(), scales, nested, offset };
    let scales = solved.scales();
    let mut codes = vec![0_u8; weights.values.len()];
    for_chunks(&mut codes, block * 64, n_threads, |chunk, codes| {
        let first = chunk * block * 64;
        for (i, code) in codes.iter_mut().enumerate() {
            let (at, scale) = (first + i, scales[(first + i) / block]);
            // A block of zeros may have a scale below zero, once that is rounded.
            let x = if scale == 0.0 { 0.0 } else { weights.values[at] / scale };
            *code = nearest(&NF4, x);
        }
        Ok::<(), SolveError>(())
    })?;
    solved.codes = codes;
    Ok(solved)
}

impl Nf4 {
    /// The scale of each block.
    pub fn scales(&self) -> Vec<f32> {
        let table = table();
        let codes = self.scales.iter().enumerate();
        codes
            .map(|(i, code)| {
                table[usize::from(*code)] * self.nested[i / NESTED_BLOCK] + self.offset
            })
            .collect()
    }

    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let blocks = self.codes.chunks(self.block).zip(self.scales());
        blocks
            .flat_map(|(codes, scale)| {
                codes.iter().map(move |code| scale * NF4[usize::from(*code)])
            })
            .collect()
    }
}

/// The numbers that scales are rounded to, ascending: in each of seven decades below 1 the middles of
/// 1, 2, 4 .. 64 equal parts, with their negatives, 0 and 1.
pub fn table() -> Vec<f32> {
    let mut table = vec![0.0, 1.0];
    for decade in 0..7_i32 {
        let (n_parts, unit) = (1 << decade, 10_f64.powi(decade - 6));
        for part in 0..n_parts {
            let middle = unit * (0.1 + 0.9 * (f64::from(part) + 0.5) / f64::from(n_parts));
            table.extend([middle as f32, -middle as f32]);
        }
    }
    table.sort_by(f32::total_cmp);
    table
}

/// The index of the number nearest to `x`; the lower one in the middle.
fn nearest(ascending: &[f32], x: f32) -> u8 {
    let above = ascending.partition_point(|y| *y < x).min(ascending.len() - 1);
    let below = above.saturating_sub(1);
    let is_below = x - ascending[below] <= ascending[above] - x;
    (if is_below { below } else { above }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_scales_has_256_numbers_and_the_nearest_is_found() {
        let table = table();
        assert_eq!(table.len(), 256);
        assert!(table.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!([table[0], table[255]], [-0.992_968_74, 1.0]);
        for i in -120..=120 {
            let x = i as f32 / 100.0;
            let far = |y: &f32| (y - x).abs();
            let least = table.iter().map(far).fold(f32::INFINITY, f32::min);
            assert_eq!(far(&table[usize::from(nearest(&table, x))]), least, "{x}");
        }
    }
}
