//! Simulated plants: a step takes a known time, the clock is a number.

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const MOST: Limits = Limits { batch_tokens: 512, running: 64 };

fn targets(tpot_ms: u64, ttft_ms: Option<u64>) -> Slo {
    let millis = Duration::from_millis;
    Slo { tpot: Some(millis(tpot_ms)), ttft: ttft_ms.map(millis) }
}

/// An engine that has always more to do than a step holds.
struct Plant {
    controller: Controller,
    charts: Charts,
    now_ns: u64,
    random: u64,
    decisions: Vec<Decision>,
}

impl Plant {
    fn new(targets: Slo) -> Self {
        let controller = Controller::new(targets, MOST, ControllerConfig::default());
        let charts = Charts::default();
        Self { controller, charts, now_ns: 0, random: 1, decisions: Vec::new() }
    }

    /// Runs for a while; a step with these limits and `n_running` requests takes `step_ns` of it,
    /// by and large. Tells the limits after each look.
    fn run(
        &mut self,
        seconds: u64,
        n_running: usize,
        ttft_ns: Option<u64>,
        step_ns: impl Fn(Limits) -> u64,
    ) -> Vec<Limits> {
        let end = self.now_ns + seconds * SECOND;
        let mut seen = Vec::new();
        while self.now_ns < end {
            let limits = self.controller.limits(n_running);
            assert!(limits.batch_tokens <= MOST.batch_tokens && limits.running <= MOST.running);
            assert!(limits.batch_tokens >= 32 && limits.running >= 1);
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A tenth up or down.
            let step = step_ns(limits) / 1000 * (900 + (self.random >> 33) % 201);
            self.now_ns += step;
            let n = n_running.min(limits.running) as u32;
            if n > 0 {
                self.charts.tpot.record(self.now_ns, step, n);
            }
            if let Some(ttft_ns) = ttft_ns {
                self.charts.ttft.record(self.now_ns, ttft_ns, 1);
            }
            if let Some(decision) = self.controller.look(self.now_ns, &self.charts, n as usize) {
                assert!(self.decisions.len() as u64 <= self.now_ns / (2 * SECOND), "too often");
                self.decisions.push(decision);
                seen.push(decision.after);
            }
        }
        seen
    }
}

#[test]
fn without_a_target_for_tpot_limits_are_full() {
    let slo = Slo { tpot: None, ttft: Some(Duration::from_millis(1)) };
    let mut plant = Plant::new(slo);
    assert!(plant.run(60, 8, Some(SECOND), |_| 900 * MS).is_empty());
    assert_eq!(plant.controller.limits(8), MOST);
}

#[test]
fn long_chunks_shrink_until_tokens_are_in_time_and_then_it_rests() {
    // 45 ms are 125 tokens, 105 where the slowest steps count.
    let step = |limits: Limits| 20 * MS + limits.batch_tokens as u64 * MS / 5;
    let mut plant = Plant::new(targets(45, Some(1)));
    plant.run(20, 8, Some(SECOND), step);
    let reached = plant.controller.limits(8);
    assert_eq!(reached.running, MOST.running, "requests are the last to go");
    assert_eq!(plant.decisions[0].reason, Reason::TpotLate);
    assert!((75..=120).contains(&reached.batch_tokens), "{reached:?}");
    // First tokens are late all the time, so it tries for more whenever there is slack.
    let moves = plant.run(300, 8, Some(SECOND), step);
    assert!(moves.len() <= 3, "it does not rest: {moves:?}");
    for limits in moves {
        let ratio = limits.batch_tokens as f64 / reached.batch_tokens as f64;
        assert!((0.8..1.2).contains(&ratio), "{limits:?} after {reached:?}");
    }
}

#[test]
fn too_many_requests_shrink_after_the_tokens() {
    // Only who decodes costs: 40 ms are 15 requests.
    let step = |limits: Limits| 10 * MS + limits.running.min(48) as u64 * 2 * MS;
    let mut plant = Plant::new(targets(40, None));
    plant.run(60, 48, None, step);
    let reached = plant.controller.limits(0);
    assert!((10..=16).contains(&reached.running), "{reached:?}");
    for limits in plant.run(300, 48, None, step) {
        assert!(limits.running.abs_diff(reached.running) <= reached.running / 5, "{limits:?}");
    }
}

#[test]
fn whoever_decodes_gets_a_token_in_every_step() {
    let mut plant = Plant::new(targets(1, None));
    plant.run(60, 60, None, |_| 500 * MS);
    assert_eq!(plant.controller.limits(0), Limits { batch_tokens: 32, running: 1 });
    assert_eq!(plant.controller.limits(60).batch_tokens, 61);
}

#[test]
fn a_limit_that_is_not_kept_yet_is_not_lowered_further() {
    let config = ControllerConfig { min_batch_tokens: 512, ..ControllerConfig::default() };
    let mut controller = Controller::new(targets(10, None), MOST, config);
    let mut charts = Charts::default();
    let mut moves = 0;
    for step in 1..1000 {
        // Much too late at first, then by a little: a fresh look would ask for 31.
        charts.tpot.record(step * 100 * MS, if step < 40 { 100 * MS } else { 12 * MS }, 40);
        // All forty go on, whatever the limit is.
        moves += usize::from(controller.look(step * 100 * MS, &charts, 40).is_some());
    }
    assert_eq!((moves, controller.limits(40).running), (1, 20));
}

#[test]
fn late_first_tokens_get_the_slack_of_the_others() {
    let step = |limits: Limits| 10 * MS + limits.batch_tokens as u64 * MS / 5;
    let mut plant = Plant::new(targets(60, Some(500)));
    // Something else was in the way for a while.
    plant.run(20, 8, Some(SECOND), |_| 200 * MS);
    assert_eq!(plant.controller.limits(8).batch_tokens, 32);
    plant.run(200, 8, Some(100 * MS), step);
    let in_time = plant.controller.limits(8).batch_tokens;
    plant.run(200, 8, Some(SECOND), step);
    let late = plant.controller.limits(8).batch_tokens;
    assert!(late > in_time, "{late} tokens after {in_time}");
    assert!((170..=260).contains(&late), "60 ms are 250 tokens: {late}");
    assert!(plant.decisions.iter().any(|decision| decision.reason == Reason::TtftLate));
}

#[test]
fn when_the_load_goes_limits_become_full_again() {
    let mut plant = Plant::new(targets(20, None));
    plant.run(60, 48, None, |_| 100 * MS);
    assert_eq!(plant.controller.limits(0), Limits { batch_tokens: 32, running: 1 });
    plant.run(30, 0, None, |_| 100 * MS);
    assert_eq!(plant.controller.limits(0), MOST);
    // The same when there was not even a step meanwhile.
    plant.run(60, 48, None, |_| 100 * MS);
    plant.now_ns += 60 * SECOND;
    assert!(plant.controller.look(plant.now_ns, &plant.charts, 0).is_some());
    assert_eq!(plant.controller.limits(0), MOST);
    // The same when a few go on, with much more time than they need.
    plant.run(60, 48, None, |_| 100 * MS);
    plant.run(600, 1, None, |_| 5 * MS);
    assert_eq!(plant.controller.limits(0), MOST);
    assert_eq!(plant.decisions.last().map(|last| last.reason), Some(Reason::Roomy));
}

/// The limit of requests doubles first, then that of tokens.
#[test]
fn limits_double_for_each_interval_without_work() {
    let config = ControllerConfig::default();
    let interval = nanoseconds(config.interval);
    let mut controller = Controller::new(targets(20, None), MOST, config);
    controller.limits = Limits { batch_tokens: 32, running: 2 };
    controller.looked_ns = 100 * SECOND;
    let charts = Charts::default();
    let mut now = controller.looked_ns;
    for (n_intervals, batch_tokens, running) in [(1, 32, 4), (2, 32, 16), (3, 64, 64), (9, 512, 64)]
    {
        now += n_intervals * interval;
        assert!(controller.look(now, &charts, 0).is_some());
        assert_eq!(controller.limits, Limits { batch_tokens, running }, "{n_intervals}");
    }
}

#[test]
fn one_roomy_reading_is_no_reason_to_grow() {
    let mut controller = Controller::new(targets(100, None), MOST, ControllerConfig::default());
    controller.limits = Limits { batch_tokens: 64, running: 8 };
    let mut grown = Vec::new();
    // Readings of charts of their own: roomy, as wanted, roomy, roomy.
    for (reading, tpot_ms) in [(1, 10), (2, 85), (3, 10), (4, 10)] {
        let now = reading * 20 * SECOND;
        let mut charts = Charts::default();
        charts.tpot.record(now - SECOND, tpot_ms * MS, 100);
        charts.tpot.record(now, tpot_ms * MS, 100);
        if controller.look(now, &charts, 8).is_some() {
            grown.push(reading);
        }
    }
    assert_eq!(grown, [4], "two roomy readings in a row let the limits grow");
    assert_ne!(controller.limits, Limits { batch_tokens: 64, running: 8 });
}

#[test]
fn each_reason_has_a_name_of_its_own_in_logs() {
    let reasons = [Reason::TpotLate, Reason::TtftLate, Reason::Roomy, Reason::Idle];
    let names = reasons.map(Reason::name);
    assert_eq!(names, ["tpot-late", "ttft-late", "roomy", "idle"]);
}
