//! A control chart of one series of points.
//!
//! ```text
//!   ── 3σ ─────────────────────────── upper limit      one point beyond: rule 1
//!   ── 2σ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─                    two of three beyond: rule 2
//!   ── 1σ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─                    four of five beyond: rule 3
//!   ── centre ───────────────────────                  eight on one side: rule 4
//!   ── ... and likewise below
//!
//!   [ 60 points: centre and σ ][ 8 points: judged ]◀── now
//! ```
//!
//! Each point stands alone, so σ comes from the mean distance of neighbouring points, divided by
//! 1.128 (the chart of individuals and moving ranges). A slow drift hardly changes it, as it would
//! change a standard deviation. The points that are judged do not take part in their own limits,
//! and after ten minutes a new level is the normal one.
//!
//! Sources: Shewhart, "Economic control of quality of manufactured product", 1931; Western
//! Electric, "Statistical quality control handbook", 1956, for the rules.

use std::collections::VecDeque;

/// Points that give centre and limits.
const BASELINE: usize = 60;
/// Fewer points give none.
const LEAST_BASELINE: usize = 12;
/// Points that are judged: as many as the longest rule looks at.
const JUDGED: usize = 8;
/// Mean distance of two points of a normal distribution, in standard deviations.
const D2: f64 = 1.128;

/// The points of one series.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    points: VecDeque<f64>,
}

/// A chart as it stands.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Reading {
    /// The last point.
    pub(crate) value: f64,
    pub(crate) centre: f64,
    pub(crate) upper: f64,
    /// At least 0: times are not negative.
    pub(crate) lower: f64,
    /// For each of the four rules, in order, whether the last points break it.
    pub(crate) violations: [bool; 4],
}

impl Chart {
    /// Adds a point.
    pub(crate) fn push(&mut self, point: f64) {
        if self.points.len() == BASELINE + JUDGED {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The chart; `None` before there are limits.
    pub(crate) fn read(&self) -> Option<Reading> {
        let n_baseline = self.points.len().checked_sub(JUDGED).filter(|n| *n >= LEAST_BASELINE)?;
        let points: Vec<f64> = self.points.iter().copied().collect();
        let (baseline, judged) = points.split_at(n_baseline);
        let centre = baseline.iter().sum::<f64>() / n_baseline as f64;
        let ranges = baseline.windows(2).map(|pair| (pair[1] - pair[0]).abs());
        let sigma = ranges.sum::<f64>() / (n_baseline - 1) as f64 / D2;
        Some(Reading {
            value: *judged.last()?,
            centre,
            upper: centre + 3.0 * sigma,
            lower: (centre - 3.0 * sigma).max(0.0),
            violations: violations(judged, centre, sigma),
        })
    }
}

/// The rules of Western Electric, for the last of these points.
fn violations(judged: &[f64], centre: f64, sigma: f64) -> [bool; 4] {
    // At least `n` of the last `of` points lie more than `sigmas` away, on the same side.
    let is_broken = |n: usize, of: usize, sigmas: f64| {
        let last = &judged[judged.len().saturating_sub(of)..];
        [1.0, -1.0].into_iter().any(|side| {
            let beyond = |point: &&f64| side * (**point - centre) > sigmas * sigma;
            // An old outlier does not make the present one: the last point is among them.
            last.last().is_some_and(|point| beyond(&point))
                && last.iter().filter(beyond).count() >= n
        })
    };
    [is_broken(1, 1, 3.0), is_broken(2, 3, 2.0), is_broken(4, 5, 1.0), is_broken(8, 8, 0.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty points around 10 whose neighbours are 1.128 apart, so that σ is 1; then `last`.
    fn after(last: &[f64]) -> Reading {
        let mut chart = Chart::default();
        for i in 0..(28 - last.len()) {
            chart.push(10.0 + if i.is_multiple_of(2) { 0.564 } else { -0.564 });
        }
        last.iter().for_each(|point| chart.push(*point));
        chart.read().expect("there are limits")
    }

    #[test]
    fn centre_and_limits_are_those_of_a_chart_of_individuals() {
        let read = after(&[]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(read.centre, 10.0) && close(read.upper, 13.0) && close(read.lower, 7.0));
        assert_eq!(read.violations, [false; 4]);
        // Montgomery's way of counting, by hand: 3 1 4 1 5 9 2 6 5 3 5 8 has the mean 52/12 and
        // moving ranges 2 3 3 4 4 7 4 1 2 2 3, whose mean is 35/11.
        let mut chart = Chart::default();
        for point in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 4, 4, 4, 4, 4, 4, 4, 4] {
            chart.push(f64::from(point));
        }
        let read = chart.read().expect("twelve points are enough");
        let (centre, sigma) = (52.0 / 12.0, 35.0 / 11.0 / 1.128);
        assert!(close(read.centre, centre) && close(read.upper, centre + 3.0 * sigma), "{read:?}");
        assert_eq!(read.lower, 0.0, "a time is not negative");
    }

    #[test]
    fn each_rule_has_its_pattern_on_either_side() {
        let table: [(&[f64], [bool; 4]); 11] = [
            (&[13.1], [true, false, false, false]),
            (&[12.9], [false; 4]),
            (&[12.1, 10.0, 12.1], [false, true, false, false]),
            (&[12.1, 10.0, 7.9], [false; 4]),
            (&[12.1, 12.1, 10.0], [false; 4]),
            (&[11.1, 11.1, 9.0, 11.1, 11.1], [false, false, true, false]),
            (&[11.1, 9.0, 9.0, 11.1, 11.1], [false; 4]),
            (&[11.1, 9.0, 9.0, 11.1, 11.1, 11.1], [false; 4]),
            (&[9.9, 10.1, 10.2, 10.1, 10.2, 10.1, 10.2, 10.1], [false; 4]),
            (&[10.1, 10.2, 10.1, 10.2, 10.1, 10.2, 10.1, 10.2], [false, false, false, true]),
            (&[10.1, 10.2, 10.1, 9.9, 10.1, 10.2, 10.1, 10.2], [false; 4]),
        ];
        for (last, expected) in table {
            assert_eq!(after(last).violations, expected, "{last:?}");
            let below: Vec<f64> = last.iter().map(|point| 20.0 - point).collect();
            assert_eq!(after(&below).violations, expected, "{below:?}");
        }
    }

    #[test]
    fn a_new_level_is_told_and_then_becomes_the_normal_one() {
        let mut chart = Chart::default();
        let wave = |i: usize, level: f64| level + if i.is_multiple_of(2) { 0.5 } else { -0.5 };
        (0..100).for_each(|i| chart.push(wave(i, 10.0)));
        assert_eq!(chart.read().expect("limits").violations, [false; 4]);
        (0..8).for_each(|i| chart.push(wave(i, 20.0)));
        assert_eq!(chart.read().expect("limits").violations, [true; 4]);
        (0..100).for_each(|i| chart.push(wave(i, 20.0)));
        let read = chart.read().expect("limits");
        assert_eq!(read.violations, [false; 4]);
        assert!((read.centre - 20.0).abs() < 1e-9 && chart.points.len() == BASELINE + JUDGED);
    }

    #[test]
    fn few_points_have_no_limits_and_equal_points_break_no_rule() {
        let mut chart = Chart::default();
        (0..LEAST_BASELINE + JUDGED - 1).for_each(|_| chart.push(1.0));
        assert_eq!(chart.read(), None);
        chart.push(1.0);
        assert_eq!(chart.read().expect("limits").violations, [false; 4]);
    }
}
