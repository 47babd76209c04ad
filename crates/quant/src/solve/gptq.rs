//! GPTQ: inputs are rounded one after the other, and each error is made good by the inputs that
//! follow.
//!
//! ```text
//! H = Σ x xᵀ + damping · mean(diag H) · I        of the layer's inputs
//! U = upper Cholesky factor of H⁻¹
//! for each input c:   q = round(w[c]);  e = (w[c] - q) / U[c][c];  w[c+1..] -= e · U[c][c+1..]
//! ```
//!
//! The updates of inputs more than a block ahead are gathered, and applied as one product per block.
//! With act-order, inputs go in the order of their size, so that what matters most is rounded while
//! most others are left to make up for it; groups then hold scattered inputs.
//!
//! Here we differ: the scale of a group is not the width of its weights but the one with the least
//! `Σ (w - q)² / U[c][c]²` among narrower ones ([`Options::search`]), which is the error that the
//! method itself counts. Inputs that are always zero keep their weights, rounded to nearest.
//!
//! The numbers that weights may become are `Levels`: `fp8`, `fp4` and `int8` have theirs.
//!
//! # Paper
//!
//! Frantar et al., *GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
//! Transformers*, 2022.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;

use super::cholesky::upper_of_inverse;
use super::grid::Step;
use super::matrices::{matrix, matrix_mut, part};
use super::threads::for_chunks;
use super::{Grid, Hessian, Result, SolveError, Solved, Weights};

/// Inputs whose updates are applied at once.
pub(super) const BLOCK: usize = 128;
/// Rows that go through the blocks together.
pub(super) const ROWS: usize = 32;

/// The damping where less is asked for.
pub const LEAST_DAMPING: f64 = 1e-8;

/// How GPTQ works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Added to the diagonal, as a share of its mean.
    pub damping: f64,
    /// Whether inputs go in the order of their size.
    pub act_order: bool,
    /// Whether scales are searched for.
    pub search: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { damping: 0.01, act_order: false, search: true }
    }
}

/// A factored Hessian, which all matrices with the same inputs share.
#[derive(Clone, Debug)]
pub struct Factor {
    k: usize,
    /// Input that goes at each place.
    order: Vec<usize>,
    /// `[k, k]`, in that order.
    upper: Vec<f32>,
    /// With the damping that was added at last.
    options: Options,
}

impl Factor {
    /// Factors the Hessian of a layer's inputs.
    ///
    /// Where the damped Hessian has no Cholesky factor, ten times the damping is tried, and so on up
    /// to the size of the diagonal.
    ///
    /// # Errors
    ///
    /// When none of these can be factored.
    pub fn new(hessian: &Hessian, options: Options) -> Result<Self> {
        Self::of(hessian.sum(), hessian.k(), hessian.n_threads(), options)
    }

    /// The same for the moments `[k, k]` of inputs.
    pub(super) fn of(
        moments: &[f32],
        k: usize,
        n_threads: usize,
        options: Options,
    ) -> Result<Self> {
        let size = |j: usize| moments[j * k + j];
        let mut order: Vec<usize> = (0..k).collect();
        if options.act_order {
            order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
        }
        let live = (0..k).map(|j| f64::from(size(j))).filter(|x| *x > 0.0);
        let (n_live, total) = live.fold((0, 0.0), |(n, total), x| (n + 1, total + x));
        let mean = if n_live == 0 { 1.0 } else { total / f64::from(n_live) };
        let mut damping = options.damping.max(LEAST_DAMPING);
        loop {
            let damped = |i: usize, j: usize| {
                let x = f64::from(moments[order[i] * k + order[j]]) / mean;
                // An input that is always zero says nothing about the others.
                if i != j { x } else { damping + if x > 0.0 { x } else { 1.0 } }
            };
            if let Some(upper) = upper_of_inverse(k, n_threads, damped) {
                return Ok(Self { k, order, upper, options: Options { damping, ..options } });
            }
            if damping >= 1.0 {
                return Err(SolveError::Singular);
            }
            damping *= 10.0;
        }
    }

    /// The damping with which there was a factor, as a share of the mean of the diagonal.
    pub fn damping(&self) -> f64 {
        self.options.damping
    }

    /// The row of an input, in the order of the inputs.
    pub(super) fn row(&self, input: usize) -> &[f32] {
        &self.upper[input * self.k..][..self.k]
    }
}

/// The numbers that weights may become when they are rounded one after the other.
pub(super) trait Levels: Sync {
    /// The scale, and what else decides the numbers of one group.
    type Step: Copy + Send;

    /// Inputs of a group in rows of `k`; the last group may be shorter.
    fn group(&self, k: usize) -> usize;

    /// Chooses the numbers of a group that begins at input `first`; `importance` weighs the squared
    /// errors of its weights.
    ///
    /// # Errors
    ///
    /// When there is no such scale.
    fn step(
        &self,
        row: usize,
        first: usize,
        weights: &[f32],
        importance: &[f32],
    ) -> Result<Self::Step>;

    /// The code of a weight and the value that it stands for.
    fn round(&self, step: Self::Step, weight: f32) -> (u8, f32);
}

/// Codes and steps of all rows.
pub(super) struct Rounded<S> {
    /// `[n, k]`.
    pub(super) codes: Vec<u8>,
    /// `[n, groups]`.
    pub(super) steps: Vec<S>,
    /// Group of each input, `[k]`.
    pub(super) groups: Vec<u32>,
}

/// A grid whose scales are searched for, or those of the weights' range.
struct GridLevels<'a> {
    grid: &'a Grid,
    search: bool,
}

impl Levels for GridLevels<'_> {
    type Step = Step;

    fn group(&self, k: usize) -> usize {
        self.grid.group.inputs(k)
    }

    fn step(&self, row: usize, _: usize, weights: &[f32], importance: &[f32]) -> Result<Step> {
        match self.search {
            true => self.grid.search(weights, importance, row),
            false => self.grid.fit(weights.iter().copied(), row),
        }
    }

    fn round(&self, step: Step, weight: f32) -> (u8, f32) {
        self.grid.round(step, weight)
    }
}

/// Quantizes a matrix whose inputs have this factor.
///
/// # Errors
///
/// A weight that is no number, one too large for a scale in f16, a group that does not divide the
/// inputs.
///
/// # Panics
///
/// When the factor is of another number of inputs.
pub fn solve(
    weights: Weights<'_>,
    grid: &Grid,
    factor: &Factor,
    n_threads: usize,
) -> Result<Solved> {
    weights.check(grid)?;
    let levels = GridLevels { grid, search: factor.options.search };
    let Rounded { codes, steps, groups } = round_rows(weights, &levels, factor, n_threads)?;
    Ok(Solved {
        shape: weights.shape,
        bits: grid.bits,
        codes,
        scales: steps.iter().map(|step| step.scale).collect(),
        zeros: steps.iter().map(|step| step.zero).collect(),
        groups,
    })
}

/// One row on its way.
struct Row<S> {
    /// Weights in the order of the factor.
    values: Vec<f32>,
    codes: Vec<u8>,
    steps: Vec<S>,
}

impl<S> AsMut<[f32]> for Row<S> {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

/// Rounds the inputs of every row one after the other; each error is made good by those that follow.
///
/// # Errors
///
/// As [`Levels::step`].
///
/// # Panics
///
/// When the factor is of another number of inputs.
pub(super) fn round_rows<L: Levels>(
    weights: Weights<'_>,
    levels: &L,
    factor: &Factor,
    n_threads: usize,
) -> Result<Rounded<L::Step>> {
    let [n, k] = weights.shape;
    assert_eq!(factor.k, k, "a factor of the matrix's inputs");
    let (group, order) = (levels.group(k), &factor.order);
    let mut rows: Vec<Row<L::Step>> =
        (0..n).map(|_| Row { values: Vec::new(), codes: Vec::new(), steps: Vec::new() }).collect();
    for_chunks(&mut rows, ROWS, n_threads, |chunk, rows| {
        for (i, row) in rows.iter_mut().enumerate() {
            let values = &weights.values[(chunk * ROWS + i) * k..][..k];
            row.values = order.iter().map(|j| values[*j]).collect();
        }
        solve_rows(rows, chunk * ROWS, levels, factor)
    })?;
    let mut groups = vec![0; k];
    order.iter().enumerate().for_each(|(place, j)| groups[*j] = (place / group) as u32);
    let mut codes = vec![0; n * k];
    for (row, out) in rows.iter().zip(codes.chunks_exact_mut(k)) {
        order.iter().zip(&row.codes).for_each(|(j, code)| out[*j] = *code);
    }
    let steps = rows.iter().flat_map(|row| row.steps.iter().copied()).collect();
    Ok(Rounded { codes, steps, groups })
}

/// Takes a few rows through all blocks; `first_row` is named in errors.
fn solve_rows<L: Levels>(
    rows: &mut [Row<L::Step>],
    first_row: usize,
    levels: &L,
    factor: &Factor,
) -> Result<()> {
    in_blocks(rows, factor, |i, row, block, errors| {
        solve_block(row, block, first_row + i, errors, levels, factor)
    })
}

/// Takes rows of weights through the blocks of inputs, from the first to the last. `round` gets the place
/// of a row, the row and a block, rounds the block, and leaves the errors that the inputs behind it
/// make good.
pub(super) fn in_blocks<R: AsMut<[f32]>>(
    rows: &mut [R],
    factor: &Factor,
    mut round: impl FnMut(usize, &mut R, Range<usize>, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let k = factor.k;
    let upper = matrix(&factor.upper, k);
    let mut errors = vec![0.0_f32; rows.len() * BLOCK];
    let mut later = Vec::new();
    for start in (0..k).step_by(BLOCK) {
        let end = k.min(start + BLOCK);
        let (width, n_later) = (end - start, k - end);
        for (i, row) in rows.iter_mut().enumerate() {
            round(i, row, start..end, &mut errors[i * width..][..width])?;
        }
        if n_later == 0 {
            break;
        }
        later.clear();
        later.resize(rows.len() * n_later, 0.0_f32);
        let errors = matrix(&errors[..rows.len() * width], width);
        let right = part(upper, start..end, end..k);
        general_mat_mul(1.0, &errors, &right, 0.0, &mut matrix_mut(&mut later, n_later));
        for (row, updates) in rows.iter_mut().zip(later.chunks_exact(n_later)) {
            row.as_mut()[end..].iter_mut().zip(updates).for_each(|(w, update)| *w -= update);
        }
    }
    Ok(())
}

/// Rounds one block of one row; `errors` gets what the inputs behind the block have to make good.
fn solve_block<L: Levels>(
    row: &mut Row<L::Step>,
    block: Range<usize>,
    row_idx: usize,
    errors: &mut [f32],
    levels: &L,
    factor: &Factor,
) -> Result<()> {
    let (k, group) = (factor.k, levels.group(factor.k));
    for c in block.clone() {
        if c.is_multiple_of(group) {
            let own = c..k.min(c + group);
            let weigh = |c: usize| factor.upper[c * k + c].powi(-2);
            let importance: Vec<f32> = own.clone().map(weigh).collect();
            row.steps.push(levels.step(row_idx, c, &row.values[own], &importance)?);
        }
        let step = *row.steps.last().expect("invariant: a group begins with the first input");
        let (code, value) = levels.round(step, row.values[c]);
        row.codes.push(code);
        let factors = &factor.upper[c * k..][..k];
        let error = (row.values[c] - value) / factors[c];
        errors[c - block.start] = error;
        let within = c + 1..block.end;
        let next = row.values[within.clone()].iter_mut().zip(&factors[within]);
        next.for_each(|(w, factor)| *w -= error * factor);
    }
    Ok(())
}
