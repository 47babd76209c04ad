//! AQLM: vectors of eight weights, each the sum of one entry of each of a few learned codebooks.
//!
//! ```text
//! w[r][8 i ..] = scale[r] * (C_0[code_0] + C_1[code_1] + ...)     C_m: 256 entries of eight weights, f16
//! loss         = Σ_r (w_r - ŵ_r) H (w_r - ŵ_r)ᵀ                   H of the layer's inputs, damped
//!
//! begin    codebooks: k-means of the vectors, and of what is left of them
//!          codes: from the first inputs to the last, each error is made good by later ones
//! repeat   codebooks: all at once, for these codes, by conjugate gradients
//!          codes: vector by vector, all others as they are, by beam search
//! end      codebooks in f16, codes once more, and a scale per output, by least squares
//! ```
//!
//! Both steps that repeat lower the loss, or leave it. The search compares vectors as the loss does:
//! with the other vectors fixed, the loss is the distance from one point in a metric that is the block
//! of `H`, so that entries are multiplied by its Cholesky factor, once per block and for many rows.
//!
//! Here we differ: codes begin as GPTQ's would, where the paper begins with the nearest ones, and
//! codebooks are solved for, where the paper takes steps of Adam. The paper's training of several
//! layers together is not done. One form is written: codebooks of 8 bits, as many as weights have bits.
//!
//! Without a calibration each vector gets the nearest sum that the search finds.
//!
//! # Paper
//!
//! Egiazarian et al., *Extreme Compression of Large Language Models via Additive Quantization*,
//! 2024.

mod books;
mod descent;
mod search;

use half::f16;

use super::gptq::{self, Factor, in_blocks};
use super::threads::for_chunks;
use super::{Hessian, Result, SolveError, Weights, fitted};
use books::Books;
use search::Search;

/// Weights of a vector.
pub const DIM: usize = 8;
/// Entries of a codebook.
pub const N_ENTRIES: usize = 256;

/// Rows that are solved together.
const ROWS: usize = gptq::ROWS;
/// Times that codebooks and codes are solved in turns, at most.
const ROUNDS: usize = 4;
/// The least that a round must gain for another one to follow, as a share of the loss.
const LEAST_GAIN: f64 = 0.01;

/// A quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Aqlm {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Codebooks.
    pub n_codebooks: usize,
    /// `[n, k / 8, n_codebooks]`.
    pub codes: Vec<u8>,
    /// `[n_codebooks, 256, 8]`, each a value of f16.
    pub codebooks: Vec<f32>,
    /// `[n]`, each a value of f16.
    pub scales: Vec<f32>,
}

impl Aqlm {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let books = Books { entries: self.codebooks.clone() };
        let mut weights = vec![0.0; self.shape[0] * self.shape[1]];
        let rows = weights.chunks_exact_mut(self.shape[1].max(1));
        for ((row, scale), codes) in rows.zip(&self.scales).zip(self.rows()) {
            books.values(codes, row);
            row.iter_mut().for_each(|w| *w *= scale);
        }
        weights
    }

    /// The codes of each row.
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.codes.chunks_exact((self.shape[1] / DIM * self.n_codebooks).max(1))
    }
}

/// Quantizes a matrix to as many bits as codebooks.
///
/// # Errors
///
/// A weight that is no number, an output too large for a scale in f16, inputs that are not whole
/// vectors, a Hessian that cannot be factored.
///
/// # Panics
///
/// When there are no codebooks or more than 8, or the Hessian is of another number of inputs.
pub fn solve(
    weights: Weights<'_>,
    n_codebooks: usize,
    hessian: Option<&Hessian>,
    options: gptq::Options,
    n_threads: usize,
) -> Result<Aqlm> {
    let [n, k] = weights.shape;
    if k == 0 || !k.is_multiple_of(DIM) {
        return Err(SolveError::Group { k, group: DIM });
    }
    weights.check_finite()?;
    let scales: Vec<f32> = weights.values.chunks_exact(k).map(size).collect();
    let values = weights.values.chunks_exact(k).zip(&scales);
    let values = values.flat_map(|(row, scale)| {
        let factor = if *scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
        row.iter().map(move |w| w * factor)
    });
    let values: Vec<f32> = values.collect();
    let importance = hessian.map(Hessian::squares);
    let mut books = Books::begin(&values, k, n_codebooks, importance.as_deref(), n_threads);
    let mut solver = Solver { k, values, scales, n_threads, hessian: None };
    let codes = match hessian {
        None => {
            books.round();
            solver.nearest(&books)?
        }
        Some(hessian) => {
            let plain = gptq::Options { act_order: false, ..options };
            let mut codes = solver.walk(&books, &Factor::new(hessian, plain)?)?;
            solver.hessian = Some(hessian.damped(options.damping));
            solver.improve(&mut books, &mut codes)?;
            codes
        }
    };
    let (codebooks, scales) = (books.entries, vec![1.0; n]);
    let mut solved = Aqlm { shape: [n, k], n_codebooks, codes, codebooks, scales };
    let factors = fitted(weights, &solved.weights(), hessian, n_threads);
    for (row, (factor, size)) in factors.into_iter().zip(solver.scales).enumerate() {
        // Outputs of inputs that are never read keep their size.
        let scale = f16::from_f32(factor.unwrap_or(size)).to_f32();
        if !scale.is_finite() {
            return Err(SolveError::Scale { row });
        }
        solved.scales[row] = scale;
    }
    Ok(solved)
}

/// The root of the mean square of a row.
fn size(row: &[f32]) -> f32 {
    let squares: f64 = row.iter().map(|w| f64::from(*w).powi(2)).sum();
    (squares / row.len() as f64).sqrt() as f32
}

/// A matrix whose rows are divided by their scales.
struct Solver {
    k: usize,
    values: Vec<f32>,
    scales: Vec<f32>,
    n_threads: usize,
    /// Damped; once codes are improved.
    hessian: Option<Hessian>,
}

/// A row whose codes are chosen from the first vector to the last.
struct Row {
    values: Vec<f32>,
    codes: Vec<u8>,
}

impl AsMut<[f32]> for Row {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Solver {
    fn rows(&self) -> Vec<Row> {
        let rows = self.values.chunks_exact(self.k);
        rows.map(|values| Row { values: values.to_vec(), codes: Vec::new() }).collect()
    }

    /// Each vector's own nearest codes.
    fn nearest(&self, books: &Books) -> Result<Vec<u8>> {
        let search = Search::plain(books);
        let mut rows = self.rows();
        for_chunks(&mut rows, ROWS, self.n_threads, |_, rows| {
            for row in rows {
                let vectors = row.values.as_chunks::<DIM>().0;
                row.codes =
                    vectors.iter().flat_map(|x| search.codes(x).as_slice().to_vec()).collect();
            }
            Ok::<(), SolveError>(())
        })?;
        Ok(rows.into_iter().flat_map(|row| row.codes).collect())
    }

    /// From the first vector to the last; each error is made good by later ones.
    fn walk(&self, books: &Books, factor: &Factor) -> Result<Vec<u8>> {
        let mut rows = self.rows();
        for_chunks(&mut rows, ROWS, self.n_threads, |_, rows| {
            let mut searches: Vec<Search> = Vec::new();
            let mut first = usize::MAX;
            in_blocks(rows, factor, |_, row, block, errors| {
                if first != block.start {
                    first = block.start;
                    let vectors = block.clone().step_by(DIM);
                    searches =
                        vectors.map(|c| Search::behind(books, &inverse(factor, c))).collect();
                }
                for (c, search) in block.clone().step_by(DIM).zip(&searches) {
                    let own: [f32; DIM] = std::array::from_fn(|i| row.values[c + i]);
                    let codes = search.codes(&search.turned(&own));
                    let mut value = [0.0; DIM];
                    books.values(codes.as_slice(), &mut value);
                    row.codes.extend(codes.as_slice());
                    let apart: [f32; DIM] = std::array::from_fn(|i| own[i] - value[i]);
                    let made_good = search.turned(&apart);
                    errors[c - block.start..][..DIM].copy_from_slice(&made_good);
                    for (i, error) in made_good.iter().enumerate() {
                        let within = c + DIM..block.end;
                        let factors = &factor.row(c + i)[within.clone()];
                        let next = row.values[within].iter_mut().zip(factors);
                        next.for_each(|(w, factor)| *w -= error * factor);
                    }
                }
                Ok(())
            })
        })?;
        Ok(rows.into_iter().flat_map(|row| row.codes).collect())
    }

    /// Solves for codebooks and codes in turns.
    fn improve(&self, books: &mut Books, codes: &mut [u8]) -> Result<()> {
        let mut before = f64::INFINITY;
        for round in 0..=ROUNDS {
            self.solve_books(books, codes);
            let is_last = round == ROUNDS;
            if is_last {
                books.round();
            }
            let loss = self.solve_codes(books, codes)?;
            if is_last {
                break;
            }
            if loss > before * (1.0 - LEAST_GAIN) {
                books.round();
                self.solve_codes(books, codes)?;
                break;
            }
            before = loss;
        }
        Ok(())
    }
}

/// `U[c][c]⁻¹` of eight inputs.
fn inverse(factor: &Factor, c: usize) -> [[f32; DIM]; DIM] {
    let mut inverse = [[0.0_f32; DIM]; DIM];
    for (i, row) in inverse.iter_mut().enumerate() {
        for j in i..DIM {
            let unit = if i == j { 1.0 } else { 0.0 };
            let before: f32 = (i..j).map(|l| row[l] * factor.row(c + l)[c + j]).sum();
            row[j] = (unit - before) / factor.row(c + j)[c + j];
        }
    }
    inverse
}
