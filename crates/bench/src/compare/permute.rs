//! The permutation test of several figures at once.

use pelton_sim::Random;

use crate::estimate::{Interval, mean, median};
use crate::record::Better;

/// Deals, beside the one that was measured.
const N_DEALS: usize = 1_999;
/// Draws of an interval.
const N_DRAWS: usize = 1_000;
/// Seed of all deals.
const SEED: u64 = 1935;
/// Robust deviations (1.4826 times the median distance from the median, of A and B together) beyond
/// which a sample counts as if it lay there.
const REACH: f64 = 1.5;
/// A statistic this close to the measured one counts as equal, because sums in another order differ
/// in their last bits.
const CLOSE: f64 = 1e-9;

/// Samples of A and of B.
pub(super) type Pair = (Vec<f64>, Vec<f64>);

/// The samples of one figure, as they are compared.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
    /// Samples of A and B of each pair, pulled in; logarithms where all are above zero.
    pub(super) strata: Vec<Pair>,
    pub(super) is_log: bool,
}

impl Figure {
    pub(super) fn new(name: String, unit: String, better: Better, mut strata: Vec<Pair>) -> Self {
        let is_log = strata.iter().flat_map(|(a, b)| a.iter().chain(b)).all(|&x| x > 0.0);
        if is_log {
            for (a, b) in &mut strata {
                a.iter_mut().chain(b).for_each(|x| *x = x.ln());
            }
        }
        strata.iter_mut().for_each(clip);
        Self { name, unit, better, strata, is_log }
    }

    /// The smallest significance that any samples of these numbers can have: two of all deals are
    /// as far apart as the farthest.
    pub(super) fn least_significance(&self) -> f64 {
        let deals: f64 =
            self.strata.iter().map(|(a, b)| binomial(a.len() + b.len(), a.len())).product();
        (2.0 / deals).max(1.0 / (N_DEALS + 1) as f64)
    }

    /// The change from A to B with a confidence of 95 %, by drawing samples within each side.
    pub(super) fn interval_percent(&self) -> Option<Interval> {
        let n = |side: fn(&Pair) -> usize| self.strata.iter().map(side).sum::<usize>();
        if !self.is_log || n(|(a, _)| a.len()) < 2 || n(|(_, b)| b.len()) < 2 {
            return None;
        }
        let mut random = Random::new(SEED, 1);
        let mut side = |pick: fn(&Pair) -> &Vec<f64>| {
            let mut drawn = Side::default();
            for samples in self.strata.iter().map(pick) {
                for _ in 0..samples.len() {
                    drawn.add(samples[random.below(samples.len() as u64) as usize]);
                }
            }
            drawn.mean()
        };
        let mut change = || 100.0 * ((side(|(_, b)| b) - side(|(a, _)| a)).exp() - 1.0);
        let mut draws: Vec<f64> = (0..N_DRAWS).map(|_| change()).collect();
        draws.sort_by(f64::total_cmp);
        let at = |share: f64| draws[((N_DRAWS - 1) as f64 * share).round() as usize];
        Some(Interval { low: at(0.025), high: at(0.975) })
    }

    /// The means of A and B.
    pub(super) fn means(&self) -> (f64, f64) {
        let of = |which: fn(&Pair) -> &Vec<f64>| {
            let all: Vec<f64> = self.strata.iter().flat_map(which).copied().collect();
            let middle = mean(&all).unwrap_or(0.0);
            if self.is_log { middle.exp() } else { middle }
        };
        (of(|(a, _)| a), of(|(_, b)| b))
    }

    /// The samples of each pair less their median, samples of A before those of B.
    fn centred(&self) -> Vec<(Vec<f64>, usize)> {
        let centre = |(a, b): &Pair| {
            let mut both: Vec<f64> = a.iter().chain(b).copied().collect();
            let middle = median(&both).unwrap_or(0.0);
            both.iter_mut().for_each(|x| *x -= middle);
            (both, a.len())
        };
        self.strata.iter().map(centre).collect()
    }
}

/// Pulls samples in that lie farther from the median of a pair than [`REACH`] robust deviations.
fn clip((a, b): &mut Pair) {
    let both: Vec<f64> = a.iter().chain(b.iter()).copied().collect();
    let middle = median(&both).unwrap_or(0.0);
    let distances: Vec<f64> = both.iter().map(|x| (x - middle).abs()).collect();
    let reach = REACH * 1.4826 * median(&distances).unwrap_or(0.0);
    if reach > 0.0 {
        let (low, high) = (middle - reach, middle + reach);
        a.iter_mut().chain(b).for_each(|x| *x = x.clamp(low, high));
    }
}

/// Distance of two sides in standard errors (Welch, 1947).
fn statistic(a: Side, b: Side) -> f64 {
    let distance = (b.mean() - a.mean()).abs();
    let error = (a.error() + b.error()).sqrt();
    if distance <= f64::EPSILON * 16.0 { 0.0 } else { distance / error.max(1e-12) }
}

/// Sums of the samples of one side.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Side {
    fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    fn mean(self) -> f64 {
        self.sum / self.n.max(1.0)
    }

    /// Squared standard error of the mean.
    fn error(self) -> f64 {
        let squares = self.squares - self.sum * self.mean();
        squares.max(0.0) / (self.n - 1.0).max(1.0) / self.n.max(1.0)
    }
}

/// The statistic of a figure where `place` says which sample lies at each place of each pair.
fn dealt(figure: &[(Vec<f64>, usize)], place: impl Fn(usize, usize) -> usize) -> f64 {
    let (mut a, mut b) = (Side::default(), Side::default());
    for (stratum, (samples, n_a)) in figure.iter().enumerate() {
        for at in 0..samples.len() {
            let side = if at < *n_a { &mut a } else { &mut b };
            side.add(samples[place(stratum, at)]);
        }
    }
    statistic(a, b)
}

/// The significance of each figure, all figures considered.
pub(super) fn significances(figures: &[Figure]) -> Vec<f64> {
    let centred: Vec<Vec<(Vec<f64>, usize)>> = figures.iter().map(Figure::centred).collect();
    let measured: Vec<f64> = centred.iter().map(|figure| dealt(figure, |_, at| at)).collect();
    let mut n_beyond = vec![0_usize; figures.len()];
    let mut random = Random::new(SEED, 0);
    for _ in 0..N_DEALS {
        let seed = random.bits();
        let mut deals: Vec<(Vec<usize>, Vec<Vec<usize>>)> = Vec::new();
        let mut largest = 0.0_f64;
        for figure in &centred {
            // Figures of the same numbers of samples are dealt alike.
            let sizes: Vec<usize> = figure.iter().map(|(samples, _)| samples.len()).collect();
            let known = deals.iter().position(|(known, _)| *known == sizes);
            let idx = known.unwrap_or_else(|| {
                let of = |(stratum, &n): (usize, &usize)| {
                    shuffled(n, &mut Random::new(seed, stratum as u64))
                };
                let deal = sizes.iter().enumerate().map(of).collect();
                deals.push((sizes, deal));
                deals.len() - 1
            });
            let deal = &deals[idx].1;
            largest = largest.max(dealt(figure, |stratum, at| deal[stratum][at]));
        }
        for (n, measured) in n_beyond.iter_mut().zip(&measured) {
            *n += usize::from(largest >= measured * (1.0 - CLOSE));
        }
    }
    n_beyond.into_iter().map(|n| (n + 1) as f64 / (N_DEALS + 1) as f64).collect()
}

/// The numbers below `n` in random order (Fisher and Yates).
fn shuffled(n: usize, random: &mut Random) -> Vec<usize> {
    let mut places: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        places.swap(last, random.below(last as u64 + 1) as usize);
    }
    places
}

/// Ways to choose `k` of `n`.
fn binomial(n: usize, k: usize) -> f64 {
    (0..k.min(n - k)).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}
