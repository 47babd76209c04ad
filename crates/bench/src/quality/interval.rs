//! Intervals by bootstrap over windows (Efron, 1979).
//!
//! Tokens of one window depend on each other, windows nearly do not. So windows are drawn with
//! replacement, as many as there are, and the figure is computed anew from what was drawn; the
//! interval lies between the 2.5th and the 97.5th percentile of a thousand such figures. Model and
//! reference are drawn together. The draws are seeded, so that the same figures give the same
//! interval.

use serde::Serialize;

use super::Sums;

/// Draws of an interval.
pub(super) const N_DRAWS: usize = 1000;

/// A figure, and where it lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The figure over all windows.
    pub value: f64,
    /// Lower end; `None` where one window is too few to say.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl Interval {
    /// The figure that `figure` computes of sums over windows.
    pub(super) fn new(windows: &[Sums], figure: impl Fn(&Sums) -> f64) -> Self {
        let value = figure(&total(windows.iter()));
        if windows.len() < 2 {
            return Self { value, low: None, high: None };
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut drawn: Vec<f64> = (0..N_DRAWS)
            .map(|_| {
                figure(&total((0..windows.len()).map(|_| &windows[random.below(windows.len())])))
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        let tail = N_DRAWS / 40;
        Self { value, low: Some(drawn[tail]), high: Some(drawn[N_DRAWS - 1 - tail]) }
    }
}

fn total<'a>(windows: impl Iterator<Item = &'a Sums>) -> Sums {
    windows.fold(Sums::default(), |a, b| Sums {
        n_tokens: a.n_tokens + b.n_tokens,
        n_bytes: a.n_bytes + b.n_bytes,
        nats: a.nats + b.nats,
        reference_nats: a.reference_nats + b.reference_nats,
        kl: a.kl + b.kl,
        n_agreed: a.n_agreed + b.n_agreed,
    })
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(x ^ (x >> 31)) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kl: f64) -> Sums {
        Sums { n_tokens: 1, kl, ..Sums::default() }
    }

    fn mean(sums: &Sums) -> f64 {
        sums.kl / sums.n_tokens as f64
    }

    #[test]
    fn the_interval_of_a_mean_is_that_of_the_normal_distribution() {
        // 400 windows of 0 and 1: the mean deviates by 0.5 / 20.
        let windows: Vec<Sums> = (0..400).map(|i| window(f64::from(i % 2))).collect();
        let interval = Interval::new(&windows, mean);
        assert_eq!(interval.value, 0.5);
        let (low, high) = (interval.low.expect("low"), interval.high.expect("high"));
        assert!((low - 0.451).abs() < 0.008 && (high - 0.549).abs() < 0.008, "{low} {high}");
        assert_eq!(Interval::new(&windows, mean), interval, "the same figures, the same interval");
    }

    #[test]
    fn one_window_has_no_interval_and_equal_windows_have_an_empty_one() {
        assert_eq!(Interval::new(&[window(2.0)], mean).low, None);
        let interval = Interval::new(&[window(2.0); 9], mean);
        assert_eq!((interval.low, interval.high), (Some(2.0), Some(2.0)));
    }
}
