//! QuIP#: eight weights at a time become a vector of the lattice E8, between two Hadamard transforms.
//!
//! ```text
//! P, Q          rotations of outputs and of inputs: P W Qᵀ has no outliers        `Rotation`
//! W' = P W Qᵀ,  H' = Q H Qᵀ                     the same outputs, and the same errors
//! U = upper Cholesky factor of H'⁻¹
//! for each eight inputs c:   q = scale · nearest(W'[c] / scale);  y U[c][c] = W'[c] - q;
//!                            W'[later] -= y · U[c][later]       BlockLDLQ: GPTQ with vectors
//! ```
//!
//! With 3 and 4 bits the rest of each vector gets a code of a second codebook.
//!
//! Here we differ: `scale` is the one with the least error among a few, as the method itself counts it
//! on some of the rows; and each output has a scale of its own, by least squares of the layer's
//! outputs, where the paper has a sign alone before it trains them. The paper's training of signs,
//! scales and norms is not done.
//!
//! Without a calibration every vector is the nearest one.
//!
//! # Paper
//!
//! Tseng et al., *QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice
//! Codebooks*, 2024.

use half::f16;

use super::gptq::{self, Factor, in_blocks};
use super::threads::for_chunks;
use super::{Hessian, Result, Weights, fitted};
use crate::Rotation;
use crate::quip::{
    BLOCK, BOOKS, Books, DIM, FINER_WORD, Finer, Hadamard, Nearest, Scales, weights,
};

/// Rows on which scales are compared, at most.
const SAMPLE: usize = 64;
/// Scales that are compared, as shares of the root of the mean square of the transformed weights.
const SHARES: [f32; 9] = [0.76, 0.82, 0.88, 0.94, 1.0, 1.06, 1.12, 1.2, 1.3];

/// A quantized matrix.
#[derive(Clone, Debug)]
pub struct Quip {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    pub(crate) books: &'static Books,
    /// `[n, k / 8]`.
    pub(crate) codes: Vec<u16>,
    /// `[n, k / 8]`, of the second codebook; empty where there is none.
    pub(crate) finer: Vec<u16>,
    pub(crate) scales: Scales,
}

impl Quip {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let vectors = Vectors::new(self.books);
        let per_row = self.shape[1] / DIM;
        weights(self.shape, &self.scales, |row, line| {
            for (i, line) in line.chunks_exact_mut(DIM).enumerate() {
                let at = row * per_row + i;
                let value = vectors.value(self.codes[at], self.finer.get(at).copied());
                line.copy_from_slice(&value);
            }
        })
    }
}

/// Name of the codebook of so many bits, and the version of its packing.
///
/// # Panics
///
/// When there is no such codebook.
pub fn codebook(bits: usize) -> (&'static str, i64) {
    let books = books(bits);
    (books.name, books.version)
}

fn books(bits: usize) -> &'static Books {
    BOOKS.iter().find(|books| books.bits == bits).expect("a codebook of these bits")
}

/// Whether a matrix of this shape has transforms, and whole blocks of codes.
pub fn fits([n, k]: [usize; 2]) -> bool {
    let has_blocks = n.is_multiple_of(BLOCK[0]) && k.is_multiple_of(BLOCK[1]);
    has_blocks && [n, k].into_iter().all(|side| Hadamard::new(side).is_some())
}

/// Factors the Hessian of a layer's inputs behind their transform.
///
/// # Errors
///
/// As [`Factor::new`].
///
/// # Panics
///
/// When inputs as many have no transform.
pub fn factor(hessian: &Hessian, options: gptq::Options) -> Result<Factor> {
    let k = hessian.k();
    let rotation = rotation(k, Side::Inputs);
    let mut moments = hessian.sum().to_vec();
    for _ in 0..2 {
        rotation.columns(&mut moments, k);
        for i in 0..k {
            for j in 0..i {
                moments.swap(i * k + j, j * k + i);
            }
        }
    }
    Factor::of(&moments, k, hessian.n_threads(), gptq::Options { act_order: false, ..options })
}

/// Quantizes a matrix to 2, 3 or 4 bits; `calibrated` is the Hessian of its inputs and its [factor].
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When the shape does not [fit](fits), there is no codebook of so many bits, or the factor is of
/// another number of inputs.
pub fn solve(
    weights: Weights<'_>,
    bits: usize,
    calibrated: Option<(&Hessian, &Factor)>,
    n_threads: usize,
) -> Result<Quip> {
    weights.check_finite()?;
    assert!(fits(weights.shape), "a matrix with transforms");
    let books = books(bits);
    let [n, k] = weights.shape;
    let (of_outputs, of_inputs) = (rotation(n, Side::Outputs), rotation(k, Side::Inputs));
    let [sv, su] = [&of_outputs, &of_inputs].map(|rotation| rotation.signs().to_vec());
    let mut solved = Quip {
        shape: weights.shape,
        books,
        codes: vec![0; n * k / DIM],
        finer: vec![0; if books.finer_word.is_some() { n * k / DIM } else { 0 }],
        scales: Scales { su, sv, scale: 0.0, divisors: None, factor: 1.0 },
    };
    let mut turned = weights.values.to_vec();
    of_inputs.rows(&mut turned);
    of_outputs.columns(&mut turned, k);
    let squares: f64 = turned.iter().map(|x| f64::from(*x).powi(2)).sum();
    let size = (squares / turned.len().max(1) as f64).sqrt() as f32;
    // The codebook has no zero: a scale of 0 says that all weights are.
    if size < f32::MIN_POSITIVE {
        return Ok(solved);
    }
    let walk = Walk { vectors: Vectors::new(books), factor: calibrated.map(|(_, factor)| factor) };
    let sample = Weights { shape: weights.shape, values: &turned }.sample(SAMPLE).1;
    let mut best = (f64::INFINITY, size);
    for share in SHARES {
        let rows = walk.rows(&sample, k, size * share, n_threads)?;
        let error: f64 = rows.iter().map(|row| row.error).sum();
        if error < best.0 {
            best = (error, size * share);
        }
    }
    let rows = walk.rows(&turned, k, best.1, n_threads)?;
    solved.codes = rows.iter().flat_map(|row| &row.codes).copied().collect();
    solved.finer = rows.iter().flat_map(|row| &row.finer).copied().collect();
    solved.scales.scale = f64::from(best.1);
    let hessian = calibrated.map(|(hessian, _)| hessian);
    let factors = fitted(weights, &solved.weights(), hessian, n_threads);
    for (sv, factor) in solved.scales.sv.iter_mut().zip(factors) {
        // An output of zeros gets a scale of 0.
        *sv = f16::from_f32(*sv * factor.unwrap_or(1.0)).to_f32();
    }
    Ok(solved)
}

/// The codebooks of a matrix.
struct Vectors {
    books: &'static Books,
    coarse: Nearest,
    bytes: Finer,
}

impl Vectors {
    fn new(books: &'static Books) -> Self {
        Self { books, coarse: Nearest::new(), bytes: Finer::new() }
    }

    /// The codes nearest to eight weights: of the first codebook, and of the second one for the rest.
    fn codes(&self, x: &[f32; DIM]) -> (u16, Option<u16>) {
        let (code, vector) = self.coarse.code(x);
        let divisor = self.books.finer as f32;
        let rest = std::array::from_fn(|i| (x[i] - vector[i]) * divisor);
        let finer = match self.books.finer_word {
            None => None,
            Some(FINER_WORD) => Some(u16::from(self.bytes.nearest(&rest).0)),
            Some(_) => Some(self.coarse.code(&rest).0),
        };
        (code, finer)
    }

    /// The vector of these codes.
    fn value(&self, code: u16, finer: Option<u16>) -> [f64; DIM] {
        let coarse = self.coarse.vector(code).map(f64::from);
        let finer = match (self.books.finer_word, finer) {
            (Some(FINER_WORD), Some(finer)) => self.bytes.vector(finer as u8),
            (Some(_), Some(finer)) => self.coarse.vector(finer),
            _ => return coarse,
        };
        std::array::from_fn(|i| coarse[i] + f64::from(finer[i]) / self.books.finer)
    }
}

/// A row on its way.
struct Row {
    values: Vec<f32>,
    codes: Vec<u16>,
    finer: Vec<u16>,
    /// The sum of the squares of its errors, as the factor weighs them.
    error: f64,
}

impl AsMut<[f32]> for Row {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

/// Rounds rows of transformed weights.
struct Walk<'a> {
    vectors: Vectors,
    factor: Option<&'a Factor>,
}

impl Walk<'_> {
    fn rows(&self, values: &[f32], k: usize, scale: f32, n_threads: usize) -> Result<Vec<Row>> {
        let row = |values: &[f32]| Row {
            values: values.to_vec(),
            codes: Vec::with_capacity(k / DIM),
            finer: Vec::new(),
            error: 0.0,
        };
        let mut rows: Vec<Row> = values.chunks_exact(k).map(row).collect();
        for_chunks(&mut rows, gptq::ROWS, n_threads, |_, rows| match self.factor {
            Some(factor) => in_blocks(rows, factor, |_, row, block, errors| {
                for c in block.clone().step_by(DIM) {
                    let made_good = self.round(row, c, scale);
                    errors[c - block.start..][..DIM].copy_from_slice(&made_good);
                    for (i, error) in made_good.iter().enumerate() {
                        let within = c + DIM..block.end;
                        let next = row.values[within.clone()].iter_mut();
                        let factors = &factor.row(c + i)[within];
                        next.zip(factors).for_each(|(w, factor)| *w -= error * factor);
                    }
                }
                Ok(())
            }),
            None => {
                for row in rows {
                    (0..k).step_by(DIM).for_each(|c| _ = self.round(row, c, scale));
                }
                Ok(())
            }
        })?;
        Ok(rows)
    }

    /// Rounds eight inputs from `c` on, and returns the errors that later inputs make good.
    fn round(&self, row: &mut Row, c: usize, scale: f32) -> [f32; DIM] {
        let own: [f32; DIM] = std::array::from_fn(|i| row.values[c + i]);
        let (code, finer) = self.vectors.codes(&own.map(|w| w / scale));
        let value = self.vectors.value(code, finer);
        row.codes.push(code);
        row.finer.extend(finer);
        let mut errors: [f32; DIM] = std::array::from_fn(|i| own[i] - scale * value[i] as f32);
        if let Some(factor) = self.factor {
            // `errors · U[c][c]⁻¹`, from the first input to the last.
            for i in 0..DIM {
                let before: f32 = (0..i).map(|j| errors[j] * factor.row(c + j)[c + i]).sum();
                errors[i] = (errors[i] - before) / factor.row(c + i)[c + i];
            }
        }
        row.error += errors.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        errors
    }
}

/// A side of a matrix.
#[derive(Clone, Copy)]
enum Side {
    Outputs,
    Inputs,
}

/// The rotation of all matrices with this side.
fn rotation(len: usize, side: Side) -> Rotation {
    Rotation::new(len, side as u64).expect("a side with a transform")
}
