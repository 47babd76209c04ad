//! Signals for autoscalers: how far the targets are, and how many replicas the load needs.
//!
//! ```text
//!   headroom  = least of (target - P95) / target over the targets for TTFT and TPOT
//!             = 1 - share of the time in which steps run, without a target
//!   demand    = (requests per second + waiting requests / 60 s) · seconds per request / 0.8
//!   desired   = the most of the last five minutes of demand (mean of 15 s), rounded up; at least 1
//! ```
//!
//! Seconds per request are those of a full machine, for the mean prompt and answer of the last
//! minute, by the prices that the engine measures of its own steps. So demand is known before the
//! machine is full, and does not depend on how well the present steps are filled.
//!
//! Demand is that of this server's share of the traffic: the sum over replicas is what the service
//! needs. The number rises when demand is a tenth above it, and falls when demand has been a tenth
//! below the next smaller one for five minutes.

use std::collections::VecDeque;

/// Share of a machine that is planned for.
const PLANNED: f64 = 0.8;
/// Seconds in which waiting requests are to be gone.
const BACKLOG_SECONDS: f64 = 60.0;
/// Looks, one a second, over which demand is averaged.
const SMOOTHED: usize = 15;
/// Seconds that a lower demand must last.
const PATIENCE: usize = 300;
/// Share by which demand must differ.
const TOLERANCE: f64 = 0.1;

/// Load of one model in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) requests_per_second: f64,
    pub(super) waiting: usize,
    /// Of a full machine; `None` before it is known.
    pub(super) seconds_per_request: Option<f64>,
}

impl Load {
    /// Machines that the load needs; `None` before that is known.
    fn demand(&self) -> Option<f64> {
        let rate = self.requests_per_second + self.waiting as f64 / BACKLOG_SECONDS;
        match self.seconds_per_request {
            _ if rate == 0.0 => Some(0.0),
            Some(seconds) => Some(rate * seconds / PLANNED),
            None => None,
        }
    }
}

/// The signals of one model.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    demands: VecDeque<f64>,
    smoothed: VecDeque<f64>,
    desired: u32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { demands: VecDeque::new(), smoothed: VecDeque::new(), desired: 1 }
    }
}

/// Signals as they stand.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Signals {
    /// Below 0 where a target is missed.
    pub(crate) slo_headroom_ratio: f64,
    /// Replicas of this size that this server's load needs, as a fraction.
    pub(crate) demand_replicas: f64,
    pub(crate) desired_replicas: u32,
}

/// Headroom for times of these P95, each with its target, in seconds.
pub(super) fn headroom(times: [(Option<f64>, Option<f64>); 2], busy_ratio: f64) -> f64 {
    let has_target = times.iter().any(|(_, target)| target.is_some());
    if !has_target {
        return 1.0 - busy_ratio;
    }
    let of = |(p95, target): (Option<f64>, Option<f64>)| Some((target? - p95?) / target?);
    // Without requests every target is kept.
    times.into_iter().filter_map(of).fold(1.0, f64::min)
}

impl Scale {
    /// Looks at the load, once a second.
    pub(super) fn look(&mut self, load: &Load) {
        let Some(demand) = load.demand() else { return };
        push(&mut self.demands, demand, SMOOTHED);
        let mean = self.demands.iter().sum::<f64>() / self.demands.len() as f64;
        push(&mut self.smoothed, mean, PATIENCE);
        let most = self.smoothed.iter().copied().fold(0.0, f64::max);
        let round_up = |demand: f64| (demand.ceil().clamp(1.0, f64::from(u32::MAX))) as u32;
        if most > f64::from(self.desired) * (1.0 + TOLERANCE) {
            self.desired = round_up(most);
        } else if self.smoothed.len() == PATIENCE {
            self.desired = self.desired.min(round_up(most * (1.0 + TOLERANCE)));
        }
    }

    /// Mean demand of the last looks.
    pub(super) fn demand(&self) -> f64 {
        self.smoothed.back().copied().unwrap_or_default()
    }

    pub(super) fn desired(&self) -> u32 {
        self.desired
    }
}

fn push(values: &mut VecDeque<f64>, value: f64, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(scale: &mut Scale, n: usize, requests_per_second: f64, waiting: usize) -> u32 {
        let seconds_per_request = Some(0.4);
        (0..n)
            .for_each(|_| scale.look(&Load { requests_per_second, waiting, seconds_per_request }));
        scale.desired()
    }

    #[test]
    fn replicas_rise_within_seconds_and_fall_after_minutes() {
        let mut scale = Scale::default();
        assert_eq!(looks(&mut scale, 100, 1.0, 0), 1, "demand is 0.5");
        assert!((scale.demand() - 0.5).abs() < 1e-9, "{}", scale.demand());
        assert_eq!(looks(&mut scale, SMOOTHED, 5.0, 0), 3, "demand is 2.5");
        assert!((scale.demand() - 2.5).abs() < 1e-9, "{}", scale.demand());
        assert_eq!(looks(&mut scale, PATIENCE - 1, 1.0, 0), 3, "the peak was in five minutes");
        assert_eq!(looks(&mut scale, 20, 1.0, 0), 1);
    }

    #[test]
    fn demand_that_swings_around_a_whole_number_does_not_move_the_replicas() {
        let mut scale = Scale::default();
        looks(&mut scale, SMOOTHED, 3.9, 0);
        for swing in 0..40 {
            let rate = if swing % 2 == 0 { 3.7 } else { 4.2 };
            assert_eq!(looks(&mut scale, 60, rate, 0), 2, "demand is {}", rate / 2.0);
        }
    }

    #[test]
    fn waiting_requests_and_unknown_prices() {
        let mut scale = Scale::default();
        assert_eq!(looks(&mut scale, SMOOTHED, 0.0, 300), 3, "300 within a minute is 5 a second");
        let unknown = Load { requests_per_second: 99.0, waiting: 0, seconds_per_request: None };
        let mut scale = Scale::default();
        scale.look(&unknown);
        assert_eq!((scale.desired(), scale.demand()), (1, 0.0), "no guess is made");
        scale.look(&Load::default());
        assert_eq!(scale.smoothed.len(), 1, "no load is no demand, whatever the prices");
    }

    #[test]
    fn headroom_is_that_of_the_worst_target() {
        let ttft = (Some(0.5), Some(2.0));
        assert_eq!(headroom([ttft, (None, None)], 0.9), 0.75);
        assert_eq!(headroom([ttft, (Some(0.3), Some(0.2))], 0.9), (0.2 - 0.3) / 0.2);
        assert_eq!(headroom([(None, Some(2.0)), (None, None)], 0.9), 1.0, "no request, no delay");
        assert_eq!(headroom([(Some(9.0), None), (None, None)], 0.75), 0.25);
    }
}
