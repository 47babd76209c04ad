//! Bits for each matrix under a budget: the least total loss, found exactly.
//!
//! ```text
//! frontier after matrix i:   (size, loss) ascending in size, descending in loss
//! matrix i + 1:              each point with each width, and of these only what no other is better than
//! ```
//!
//! Sizes are whole numbers of units, and matrices of a model have few shapes, so a frontier stays
//! short: it never has more points than there are units in the budget. Where that would be millions,
//! units are made larger, and sizes are rounded up; then the choice is exact to one unit per matrix.

/// Most points of a frontier.
const MOST_POINTS: u64 = 1 << 16;

/// Size and loss of a matrix at one width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Width {
    pub(crate) bits: usize,
    pub(crate) size: u64,
    pub(crate) loss: f64,
}

/// One point of a frontier, and where it came from.
#[derive(Clone, Copy)]
struct Point {
    size: u64,
    loss: f64,
    /// Index in the frontier before, and of the width.
    from: (u32, u8),
}

/// The width of each matrix with the least total loss whose sizes sum to at most `budget`; the least
/// possible sum where that is more.
pub(crate) fn choose(matrices: &[Vec<Width>], budget: u64) -> Result<Vec<usize>, u64> {
    let least = |widths: &Vec<Width>| widths.iter().map(|w| w.size).min().unwrap_or(0);
    let least: u64 = matrices.iter().map(least).sum();
    if least > budget {
        return Err(least);
    }
    let sizes = matrices.iter().flatten().map(|width| width.size);
    let unit = sizes.fold(0, gcd).max(budget / MOST_POINTS).max(1);
    let units = budget / unit;
    let mut frontiers: Vec<Vec<Point>> = vec![vec![Point { size: 0, loss: 0.0, from: (0, 0) }]];
    for widths in matrices {
        let before = frontiers.last().expect("invariant: there is a first frontier");
        let mut points = Vec::with_capacity(before.len() * widths.len());
        for (i, point) in before.iter().enumerate() {
            for (j, width) in widths.iter().enumerate() {
                let size = point.size + width.size.div_ceil(unit);
                if size <= units {
                    let from = (i as u32, j as u8);
                    points.push(Point { size, loss: point.loss + width.loss, from });
                }
            }
        }
        points.sort_by(|a, b| a.size.cmp(&b.size).then(a.loss.total_cmp(&b.loss)));
        let mut best = f64::INFINITY;
        points.retain(|point| {
            let is_better = point.loss < best;
            best = best.min(point.loss);
            is_better
        });
        if points.is_empty() {
            // Only where rounding up to larger units left no room.
            return Ok(matrices.iter().map(|widths| smallest(widths)).collect());
        }
        frontiers.push(points);
    }
    let mut at = frontiers[matrices.len()].len() - 1;
    let mut chosen = vec![0; matrices.len()];
    for (i, chosen) in chosen.iter_mut().enumerate().rev() {
        let (before, width) = frontiers[i + 1][at].from;
        (*chosen, at) = (usize::from(width), before as usize);
    }
    Ok(chosen)
}

/// The index of the smallest width.
fn smallest(widths: &[Width]) -> usize {
    let smallest = widths.iter().enumerate().min_by_key(|(_, width)| width.size);
    smallest.map_or(0, |(idx, _)| idx)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 20
    }

    fn total(matrices: &[Vec<Width>], chosen: &[usize]) -> (u64, f64) {
        let widths = matrices.iter().zip(chosen).map(|(widths, idx)| widths[*idx]);
        widths.fold((0, 0.0), |(size, loss), width| (size + width.size, loss + width.loss))
    }

    #[test]
    fn the_choice_is_the_best_of_all() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..200 {
            let matrices: Vec<Vec<Width>> = (0..5)
                .map(|_| {
                    let n = 64 * (1 + next(&mut state) % 5);
                    let mut loss = 0.0;
                    let mut widths: Vec<Width> = [8, 4, 3]
                        .into_iter()
                        .map(|bits| {
                            loss += (next(&mut state) % 1000) as f64;
                            Width { bits, size: n * bits as u64, loss }
                        })
                        .collect();
                    widths.reverse();
                    widths
                })
                .collect();
            let budget = 64 * (20 + next(&mut state) % 80);
            let mut best: Option<f64> = None;
            for code in 0..3_usize.pow(5) {
                let chosen: Vec<usize> = (0..5).map(|i| code / 3_usize.pow(i) % 3).collect();
                let (size, loss) = total(&matrices, &chosen);
                if size <= budget && best.is_none_or(|best| loss < best) {
                    best = Some(loss);
                }
            }
            match choose(&matrices, budget) {
                Ok(chosen) => {
                    let (size, loss) = total(&matrices, &chosen);
                    assert!(size <= budget);
                    assert_eq!(Some(loss), best);
                }
                Err(least) => assert!(best.is_none() && least > budget),
            }
        }
    }

    #[test]
    fn a_budget_that_cannot_be_met_is_answered_with_the_least() {
        let width = |bits, size| Width { bits, size, loss: 1.0 / bits as f64 };
        let matrices = vec![vec![width(3, 30), width(4, 40)]; 3];
        assert_eq!(choose(&matrices, 89), Err(90));
        assert_eq!(choose(&matrices, 90), Ok(vec![0, 0, 0]));
        assert_eq!(choose(&matrices, 1000), Ok(vec![1, 1, 1]));
        assert_eq!(choose(&[], 0), Ok(Vec::new()));
        // Sizes without a common unit, of which there are too many to keep.
        let odd = vec![vec![width(3, 3_000_000_019), width(4, 4_000_000_007)]; 4];
        let chosen = choose(&odd, 14_100_000_000).expect("fits");
        assert_eq!(chosen.iter().sum::<usize>(), 2, "{chosen:?}");
    }
}
