//! One figure, measured once per round: the median, and how far the rounds lie apart.

use serde::Serialize;

/// The rounds of a figure, at least one and all finite, with their median and range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The one in the middle, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) lowest: f64,
    /// The highest.
    pub(crate) highest: f64,
    /// All rounds, in the order in which they were measured.
    pub(crate) rounds: Vec<f64>,
}

impl Summary {
    /// The summary of some rounds; `None` if there are none.
    pub(crate) fn new(rounds: Vec<f64>) -> Option<Self> {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, lowest, highest, rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_the_rounds_keep_their_order() {
        let odd = Summary::new(vec![5.0, 1.0, 2.0]).expect("measured");
        assert_eq!((odd.median, odd.lowest, odd.highest), (2.0, 1.0, 5.0));
        assert_eq!(odd.rounds, [5.0, 1.0, 2.0]);
        let even = Summary::new(vec![4.0, 1.0, 2.0, 9.0]).expect("measured");
        assert_eq!(even.median, 3.0);
        assert_eq!(Summary::new(Vec::new()), None);
    }
}
