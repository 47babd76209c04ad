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

    /// The lower end of the 95 % confidence interval of a ratio: Student's t over the logarithms of
    /// the rounds. `None` for less than two rounds, and where a ratio is not above zero.
    pub(crate) fn least_ratio(&self) -> Option<f64> {
        let n = self.rounds.len();
        if n < 2 || self.lowest <= 0.0 {
            return None;
        }
        let logs: Vec<f64> = self.rounds.iter().map(|ratio| ratio.ln()).collect();
        let mean = logs.iter().sum::<f64>() / n as f64;
        let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let t = STUDENT_T.get(n - 2).copied().unwrap_or(STUDENT_T[STUDENT_T.len() - 1]);
        Some((mean - t * (variance / n as f64).sqrt()).exp())
    }
}

/// The 97.5 % quantiles of Student's t for one degree of freedom, two, and so on. The last one
/// stands for all further ones, for which it is a little too large.
const STUDENT_T: [f64; 10] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

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

    #[test]
    fn a_confidence_interval_needs_two_rounds_and_narrows_with_more() {
        let least = |rounds: &[f64]| Summary::new(rounds.to_vec()).expect("rounds").least_ratio();
        assert_eq!((least(&[1.9]), least(&[0.0, 1.0])), (None, None));
        assert_eq!(least(&[1.5, 1.5]).map(|x| (x * 1e9).round()), Some(1.5e9));
        // Mean of the logarithms 0.05, standard error 0.05: exp(0.05 - 12.706 * 0.05).
        let two = least(&[1.0, f64::exp(0.1)]).expect("two rounds");
        assert!((two - f64::exp(0.05 - 12.706 * 0.05)).abs() < 1e-9, "{two}");
        let four = least(&[1.0, f64::exp(0.1), 1.0, f64::exp(0.1)]).expect("four rounds");
        assert!(four > two && four < 1.05, "{four}");
        let many = least(&[1.4; 30]).expect("thirty rounds");
        assert!((many - 1.4).abs() < 1e-9, "{many}");
    }
}
