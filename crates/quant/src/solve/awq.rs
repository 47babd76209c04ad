//! AWQ: inputs are scaled by their size before weights are rounded, and ranges are clipped.
//!
//! ```text
//! s_j = mean|x_j|^α, or mean|x_j|^α / mean|w_j|^(1-α)     for α in 0, 1/20 .. 1
//! y = W x = (W · s) (x / s)
//! best s:   least |(round(W · s) / s - W) X|²    over all matrices that read the same inputs
//! clip:     least error of a row's output        among ranges that end at 1, 19/20 .. 1/2 of the
//!                                                weights' range, on either side
//! ```
//!
//! The division of `x` is folded into what comes before: a norm's weight, the rows of another
//! matrix. Nothing stays in 16 bits. Errors are exact for the calibration: they are computed from
//! the Hessian, which holds all that a sum of squares needs.
//!
//! Here we differ from the paper. Factors are compared with clipped ranges, as they will be used.
//! The two ends of a range are clipped each by itself. Of the α every second one is tried, and then
//! the neighbours of the best. A group's range is chosen for the error of its row and not of the
//! group alone: errors of other groups are known, and one can cancel the other. Groups take turns
//! until none changes.
//!
//! # Paper
//!
//! Lin et al., *AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration*,
//! 2023.

use pelton_kernels::{Activations, Forms};

use super::grid::{Step, in_lanes};
use super::hessian::Part;
use super::rtn::round_groups;
use super::threads::for_chunks;
use super::{Grid, Hessian, Result, SolveError, Solved, Weights};

/// Steps of the search for α: every second one, and the neighbours of the best.
const N_ALPHAS: usize = 20;
/// Outputs of a matrix that the search for factors looks at. Tried and dropped: 64 of them, and one
/// product for the errors of all factors, which take as long.
const MOST_ROWS: usize = 128;
/// Ends that are tried on each side of a range.
const N_CLIPS: usize = 10;
/// The narrowest of these, as a share of the weights' range.
const LEAST_CLIP: f32 = 0.5;
/// Ranges that go from the quick comparison to the exact one.
const N_EXACT: usize = 8;
/// Most times that each group takes a turn. The third takes 6 % of the time of a layer, and without
/// it the errors of outputs are 1 % larger.
const N_TURNS: usize = 3;
/// Rows that are solved together.
const ROWS: usize = 64;

/// The factors by which the inputs of some matrices are divided, and their weights multiplied.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// One for each input, above zero.
    pub factors: Vec<f32>,
    /// The α that they were made with; 0 for factors of 1.
    pub alpha: f32,
}

/// Finds the factors for matrices that all read the inputs of `hessian`.
///
/// # Errors
///
/// As [`rtn::solve`](super::rtn::solve).
///
/// # Panics
///
/// When a matrix has another number of inputs.
pub fn scales(matrices: &[Weights<'_>], grid: &Grid, hessian: &Hessian) -> Result<Scales> {
    let k = hessian.k();
    let sizes = hessian.sizes();
    let mut weight_sizes = vec![0.0_f64; k];
    let mut n_rows = 0;
    for matrix in matrices {
        assert_eq!(matrix.shape[1], k, "matrices of these inputs");
        matrix.check(grid)?;
        n_rows += matrix.shape[0];
        for row in matrix.values.chunks_exact(k) {
            weight_sizes.iter_mut().zip(row).for_each(|(sum, w)| *sum += f64::from(w.abs()));
        }
    }
    let weight_sizes: Vec<f32> =
        weight_sizes.iter().map(|sum| (sum / n_rows.max(1) as f64) as f32).collect();
    let samples: Vec<(usize, Vec<f32>)> =
        matrices.iter().map(|matrix| matrix.sample(MOST_ROWS)).collect();
    let candidate = |(i, by_weights): (usize, bool)| {
        let alpha = i as f32 / N_ALPHAS as f32;
        let factors = factors(&sizes, by_weights.then_some(&*weight_sizes), alpha);
        Candidate { step: i, by_weights, scales: Scales { factors, alpha } }
    };
    // At the ends factors of weights are those without, or say nothing of the inputs.
    let is_one = |(i, by_weights): &(usize, bool)| {
        *i <= N_ALPHAS && !(*by_weights && (*i == 0 || *i == N_ALPHAS))
    };
    let all = (0..=N_ALPHAS).step_by(2).flat_map(|i| [(i, false), (i, true)]);
    let (error, best) = best_of(all.filter(is_one).map(candidate), &samples, grid, hessian)?;
    // The error changes little from step to step: of the steps between, the best one's neighbours.
    let near = [best.step.wrapping_sub(1), best.step + 1].map(|i| (i, best.by_weights));
    let near = near.into_iter().filter(is_one).map(candidate);
    let (near_error, near) = best_of(near, &samples, grid, hessian)?;
    Ok(if near_error < error { near.scales } else { best.scales })
}

/// Factors that are tried.
struct Candidate {
    /// The number of their α.
    step: usize,
    by_weights: bool,
    scales: Scales,
}

/// The factors with which rounded and clipped weights have the least squared error of their
/// outputs, and that error. `samples` are rows of each matrix, and how many each stands for.
fn best_of(
    candidates: impl Iterator<Item = Candidate>,
    samples: &[(usize, Vec<f32>)],
    grid: &Grid,
    hessian: &Hessian,
) -> Result<(f64, Candidate)> {
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates {
        let mut error = 0.0;
        for (stride, values) in samples {
            let delta = delta(values, grid, hessian, &candidate.scales.factors)?;
            error += *stride as f64 * hessian.energy(&delta);
        }
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, candidate));
        }
    }
    Ok(best.expect("invariant: there is an α"))
}

/// The errors of rounded and clipped weights with these factors, `[rows, k]`, of inputs that are
/// not divided.
fn delta(values: &[f32], grid: &Grid, hessian: &Hessian, factors: &[f32]) -> Result<Vec<f32>> {
    let k = factors.len();
    let weights = Weights { shape: [values.len() / k, k], values };
    let scaled = multiplied(weights, factors);
    let importance = importance(hessian, factors);
    let of_scaled = Weights { values: &scaled, ..weights };
    let rounded = round_groups(of_scaled, grid, hessian.n_threads(), |row, first, group| {
        grid.search(group, &importance[first..][..group.len()], row)
    })?;
    let delta = |(at, (a, b)): (usize, (&f32, &f32))| (a - b) / factors[at % k];
    Ok(rounded.weights().iter().zip(&scaled).enumerate().map(delta).collect())
}

/// Squares of the divided inputs.
fn importance(hessian: &Hessian, factors: &[f32]) -> Vec<f32> {
    let squares = hessian.squares();
    squares.iter().zip(factors).map(|(square, factor)| square / (factor * factor)).collect()
}

/// Weights with each input's column multiplied by its factor.
pub fn multiplied(weights: Weights<'_>, factors: &[f32]) -> Vec<f32> {
    let rows = weights.values.chunks_exact(factors.len().max(1));
    rows.flat_map(|row| row.iter().zip(factors).map(|(w, factor)| w * factor)).collect()
}

/// Rounds a matrix, each group to the range that leaves the least error; `scales` are those of its
/// inputs, and `hessian` is of the inputs before they are divided. The result reads divided inputs.
///
/// # Errors
///
/// As [`rtn::solve`](super::rtn::solve).
///
/// # Panics
///
/// When the numbers of inputs differ.
pub fn solve(
    weights: Weights<'_>,
    grid: &Grid,
    hessian: &Hessian,
    scales: &Scales,
) -> Result<Solved> {
    let [n, k] = weights.shape;
    assert_eq!(k, hessian.k(), "a matrix of these inputs");
    let values = multiplied(weights, &scales.factors);
    let scaled = Weights { values: &values, ..weights };
    scaled.check(grid)?;
    let divided = hessian.divided(&scales.factors);
    let importance = importance(hessian, &scales.factors);
    let group = grid.group.inputs(k);
    let mut steps: Vec<Step> = vec![Step { scale: 1.0, zero: 0 }; n * (k / group)];
    let per_chunk = ROWS * (k / group);
    let inputs = Inputs { hessian: &divided, parts: parts(&divided, group), importance };
    for_chunks(&mut steps, per_chunk, hessian.n_threads(), |chunk, steps| {
        let first = chunk * ROWS;
        let rows = &values[first * k..][..steps.len() * group];
        clip_rows(rows, first, steps, grid, &inputs)
    })?;
    round_groups(scaled, grid, hessian.n_threads(), |row, first, _| {
        Ok(steps[row * (k / group) + first / group])
    })
}

/// The inputs of a matrix, as the rows that are rounded see them.
struct Inputs<'a> {
    hessian: &'a Hessian,
    /// Of each group.
    parts: Vec<Part<'a>>,
    importance: Vec<f32>,
}

/// The columns of `H` of each group, packed once for all rows.
fn parts(hessian: &Hessian, group: usize) -> Vec<Part<'_>> {
    let mut parts: Vec<Option<Part<'_>>> = (0..hessian.k() / group).map(|_| None).collect();
    let packed = for_chunks(&mut parts, 1, hessian.n_threads(), |g, part| {
        part[0] = Some(Part::new(hessian, g * group, group, 0..hessian.k()));
        Ok::<(), SolveError>(())
    });
    packed.expect("invariant: nothing here fails");
    parts.into_iter().flatten().collect()
}

/// A range that a group may take, and its errors.
struct Choice {
    step: Step,
    delta: Vec<f32>,
}

/// Chooses the steps of some rows; `first` is the number of the first one.
fn clip_rows(
    rows: &[f32],
    first: usize,
    steps: &mut [Step],
    grid: &Grid,
    inputs: &Inputs<'_>,
) -> Result<()> {
    let k = inputs.hessian.k();
    let group = grid.group.inputs(k);
    let n_groups = k / group;
    let mut choices: Vec<Vec<Choice>> = Vec::with_capacity(steps.len());
    for (at, values) in rows.chunks_exact(group).enumerate() {
        let importance = &inputs.importance[at % n_groups * group..][..group];
        choices.push(shortlist(values, importance, grid, first + at / n_groups)?);
    }
    let chosen = take_turns(&choices, inputs.hessian, &inputs.parts);
    for ((step, choices), chosen) in steps.iter_mut().zip(&choices).zip(chosen) {
        *step = choices[chosen].step;
    }
    Ok(())
}

/// The index of each group's choice, once none would change; `choices` are those of each row's groups.
///
/// All rows take the turn of a group together, so that what `H` makes of their errors is one product
/// of matrices. Two layers of 2,048 and 8,192 inputs took 636 seconds with a dot product for each row
/// and choice, calibration included, and 296 with this and with sums in lanes.
fn take_turns(choices: &[Vec<Choice>], hessian: &Hessian, parts: &[Part<'_>]) -> Vec<usize> {
    let (k, n_groups) = (hessian.k(), parts.len());
    let group = k / n_groups;
    let energies: Vec<Vec<f64>> =
        (0..n_groups).map(|g| energies(choices, g, hessian, group)).collect();
    let mut chosen = vec![0; choices.len()];
    let mut deltas: Vec<f32> =
        choices.iter().flat_map(|of_group| of_group[0].delta.iter().copied()).collect();
    let mut inputs = Activations::new(k, Forms::F32);
    let mut products = Vec::new();
    for _ in 0..N_TURNS {
        let mut is_settled = true;
        for (g, energies) in energies.iter().enumerate() {
            let first = g * group;
            hessian.cpu().write_rows(&deltas, &mut inputs);
            parts[g].product(&inputs, &mut products);
            for (row, product) in products.chunks_exact(group).enumerate() {
                let at = row * n_groups + g;
                let (own, now) = (&choices[at], chosen[at]);
                let energy = |a: usize, b: usize| energies[(row * N_EXACT + a) * N_EXACT + b];
                let linear = |c: usize| dot(&own[c].delta, product);
                let of_now = linear(now);
                let gain = |c: usize| {
                    let squares = energy(c, c) - 2.0 * energy(c, now) + energy(now, now);
                    2.0 * (linear(c) - of_now) + squares
                };
                let gains = (0..own.len()).filter(|c| *c != now).map(|c| (gain(c), c));
                let best = gains.fold(
                    (0.0, now),
                    |best, other| {
                        if other.0 < best.0 { other } else { best }
                    },
                );
                if best.1 != now {
                    is_settled = false;
                    chosen[at] = best.1;
                    deltas[row * k + first..][..group].copy_from_slice(&own[best.1].delta);
                }
            }
        }
        if is_settled {
            break;
        }
    }
    chosen
}

/// `a H b` of the errors of each pair of a group's choices, `[rows, N_EXACT, N_EXACT]`.
fn energies(choices: &[Vec<Choice>], g: usize, hessian: &Hessian, group: usize) -> Vec<f64> {
    let n_groups = hessian.k() / group;
    let of_group = || choices.iter().skip(g).step_by(n_groups);
    let deltas: Vec<f32> = of_group().flatten().flat_map(|c| c.delta.iter().copied()).collect();
    let mut inputs = Activations::new(group, Forms::F32);
    hessian.cpu().write_rows(&deltas, &mut inputs);
    let mut products = Vec::new();
    Part::new(hessian, g * group, group, g * group..(g + 1) * group)
        .product(&inputs, &mut products);
    let mut products = products.chunks_exact(group);
    let mut energies = vec![0.0; of_group().count() * N_EXACT * N_EXACT];
    for (own, energies) in of_group().zip(energies.chunks_exact_mut(N_EXACT * N_EXACT)) {
        for (b, product) in products.by_ref().take(own.len()).enumerate() {
            own.iter().enumerate().for_each(|(a, choice)| {
                energies[a * N_EXACT + b] = dot(&choice.delta, product);
            });
        }
    }
    energies
}

/// The dot product of two vectors, in lanes that vector units add.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    in_lanes(a, b, |a, b| a * b)
}

/// The ranges of a group with the least weighted squared errors, the best one first.
fn shortlist(values: &[f32], importance: &[f32], grid: &Grid, row: usize) -> Result<Vec<Choice>> {
    let (low, high) = values.iter().fold((0.0_f32, 0.0_f32), |(a, b), w| (a.min(*w), b.max(*w)));
    let clip = |i: usize| 1.0 - (1.0 - LEAST_CLIP) * i as f32 / N_CLIPS as f32;
    let mut found: Vec<(f64, Step)> = Vec::with_capacity(N_EXACT);
    for i in 0..=N_CLIPS {
        for j in 0..=N_CLIPS {
            // Both ends of a symmetric range are one, and an end at zero cannot move.
            let is_same = match grid.symmetric {
                true => i != j,
                false => (low == 0.0 && i > 0) || (high == 0.0 && j > 0),
            };
            if is_same {
                continue;
            }
            let Some(step) = grid.step(low * clip(i), high * clip(j)) else { continue };
            let error = grid.error(step, values, importance);
            let is_short = found.len() < N_EXACT;
            let is_better = is_short || found.last().is_some_and(|(most, _)| error < *most);
            if is_better && found.iter().all(|(_, known)| *known != step) {
                if !is_short {
                    found.pop();
                }
                let place = found.partition_point(|(known, _)| *known <= error);
                found.insert(place, (error, step));
            }
        }
    }
    if found.is_empty() {
        return Err(SolveError::Scale { row });
    }
    let choice = |(_, step): (f64, Step)| Choice {
        step,
        delta: values.iter().map(|w| grid.round(step, *w).1 - w).collect(),
    };
    Ok(found.into_iter().map(choice).collect())
}

/// `size^α`, or `size^α / weight^(1-α)`, such that the least and the greatest are each other's
/// inverse.
fn factors(sizes: &[f32], weights: Option<&[f32]>, alpha: f32) -> Vec<f32> {
    /// Inputs that are nearly always zero do not count as nothing.
    const LEAST: f32 = 1e-4;
    let power = |(j, size): (usize, &f32)| {
        let weight = weights.map_or(1.0, |weights| weights[j].max(LEAST).powf(1.0 - alpha));
        size.max(LEAST).powf(alpha) / weight
    };
    let powers: Vec<f32> = sizes.iter().enumerate().map(power).collect();
    let (low, high) = powers
        .iter()
        .fold((f32::MAX, f32::MIN_POSITIVE), |(low, high), p| (low.min(*p), high.max(*p)));
    let middle = (low * high).sqrt();
    powers.iter().map(|power| power / middle).collect()
}
