//! Round to nearest: every weight by itself. Needs no calibration, and is what other methods are
//! measured against.

use super::grid::Grid;
use super::threads::for_chunks;
use super::{Group, Result, Solved, Weights};

/// Rounds every weight to the grid of its group, whose range is that of its weights. A scale that
/// all of a matrix share stands once for each output.
///
/// # Errors
///
/// A weight that is no number, one too large for a scale in f16, a group that does not divide the
/// inputs.
pub fn solve(weights: Weights<'_>, grid: &Grid, n_threads: usize) -> Result<Solved> {
    weights.check(grid)?;
    let k = weights.shape[1];
    if grid.group == Group::Tensor {
        let largest = |a: &(usize, &f32), b: &(usize, &f32)| a.1.abs().total_cmp(&b.1.abs());
        let row = weights.values.iter().enumerate().max_by(largest).map_or(0, |(at, _)| at / k);
        let step = grid.fit(weights.values.iter().copied(), row)?;
        return round_groups(weights, grid, n_threads, |_, _, _| Ok(step));
    }
    round_groups(weights, grid, n_threads, |row, first, group| {
        debug_assert!(first < k);
        grid.fit(group.iter().copied(), row)
    })
}

/// Rounds every weight to the grid that `fit` chooses for its group; `fit` is called with the row, the
/// first input of the group, and its weights.
pub(super) fn round_groups(
    weights: Weights<'_>,
    grid: &Grid,
    n_threads: usize,
    fit: impl Fn(usize, usize, &[f32]) -> Result<super::grid::Step> + Sync,
) -> Result<Solved> {
    let [n, k] = weights.shape;
    let group = grid.group.inputs(k);
    let n_groups = k / group;
    struct Row {
        codes: Vec<u8>,
        scales: Vec<f32>,
        zeros: Vec<u8>,
    }
    let mut rows: Vec<Row> =
        (0..n).map(|_| Row { codes: Vec::new(), scales: Vec::new(), zeros: Vec::new() }).collect();
    const ROWS: usize = 16;
    for_chunks(&mut rows, ROWS, n_threads, |chunk, rows| {
        for (i, out) in rows.iter_mut().enumerate() {
            let row = chunk * ROWS + i;
            let values = &weights.values[row * k..][..k];
            for (g, values) in values.chunks_exact(group).enumerate() {
                let step = fit(row, g * group, values)?;
                out.codes.extend(values.iter().map(|w| grid.round(step, *w).0));
                out.scales.push(step.scale);
                out.zeros.push(step.zero);
            }
        }
        Ok(())
    })?;
    let mut solved = Solved {
        shape: weights.shape,
        bits: grid.bits,
        codes: Vec::with_capacity(n * k),
        scales: Vec::with_capacity(n * n_groups),
        zeros: Vec::with_capacity(n * n_groups),
        groups: (0..k).map(|j| (j / group) as u32).collect(),
    };
    for row in rows {
        solved.codes.extend(row.codes);
        solved.scales.extend(row.scales);
        solved.zeros.extend(row.zeros);
    }
    Ok(solved)
}
