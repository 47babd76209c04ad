//! Properties of the comparison over synthetic noise.

use pelton_sim::Random;
use serde_json::json;

use super::*;
use crate::record::{Baseline, BesideBaseline, Noise};

/// Names of the figures of a synthetic report.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Rounds, noise, and whether the machine is shared.
type Case = (usize, f64, bool);

/// A report of `n` rounds. Each round has a level of its own, which all figures share, and each
/// figure has noise of its own, both of `noise`. On a shared machine one round in twenty is 15 %
/// slower.
fn report(random: &mut Random, (n, noise, is_shared): Case, factor: f64) -> Recorded {
    let levels: Vec<f64> = (0..n)
        .map(|_| {
            let slow = if is_shared && random.below(20) == 0 { 0.15 } else { 0.0 };
            (noise * random.normal() - slow).exp()
        })
        .collect();
    let measures: Vec<_> = NAMES
        .iter()
        .enumerate()
        .map(|(idx, name)| {
            let base = 10.0 * (idx + 1) as f64 * factor;
            let sample = |level: &f64| base * level * (noise * random.normal()).exp();
            let samples: Vec<f64> = levels.iter().map(sample).collect();
            json!({"name": name, "unit": "tokens/s", "better": "higher", "samples": samples})
        })
        .collect();
    of(&json!(measures))
}

fn of(measures: &serde_json::Value) -> Recorded {
    let whole = json!({
        "report": {
            "format": "pelton-bench", "version": 1, "kind": "offline", "pelton": "0", "command": [],
            "at": 0, "interrupted": false,
            "machine": {"cpu": "x", "n_processors": 2, "kernels": "avx2", "threads": 2},
        },
        "measures": measures,
    });
    Recorded::parse("a.json", &whole.to_string()).expect("a report")
}

#[test]
fn a_run_of_a_noisy_minute_is_noted() {
    let run = |is_noisy: bool| {
        let mut run = of(&json!([]));
        let others_share = Some(if is_noisy { 0.5 } else { 0.01 });
        run.report.noise = Some(Noise { seconds: 1.0, others_share, stolen_share: 0.0, is_noisy });
        run
    };
    let is_noted = |a: bool, b: bool| {
        let found = warnings(&[(run(a), run(b))]);
        found
            .iter()
            .any(|warning| warning.starts_with("a run was in a noisy minute: other programs"))
    };
    assert!(is_noted(true, false) && is_noted(false, true) && !is_noted(false, false));
}

#[test]
fn a_baseline_of_a_noisy_minute_is_noted() {
    let run = |is_noisy: bool| {
        let mut run = of(&json!([]));
        run.report.machine.baseline = Some(Baseline { is_noisy, ..Baseline::default() });
        run
    };
    let is_noted = |a: bool, b: bool| {
        let found = warnings(&[(run(a), run(b))]);
        found.iter().any(|warning| warning.starts_with("the baseline of the machine"))
    };
    assert!(is_noted(true, false) && is_noted(false, true) && !is_noted(false, false));
}

#[test]
fn a_run_with_memory_of_another_speed_than_the_baseline_is_noted() {
    let run = |bytes_per_s: f64| {
        let mut run = of(&json!([]));
        run.report.reads = Some(BesideBaseline { bytes_per_s, baseline_bytes_per_s: 80e9 });
        run
    };
    let is_noted = |a: f64, b: f64| {
        let found = warnings(&[(run(a), run(b))]);
        found.iter().any(|warning| warning.starts_with("in a run, memory gave 52.0 GB/s"))
    };
    assert!(is_noted(52e9, 80e9) && is_noted(80e9, 52e9) && !is_noted(80e9, 79e9));
}

/// Runs of `n` trials in which a difference was called.
fn n_called(n: u64, seed: u64, pair: impl Fn(&mut Random) -> (Recorded, Recorded)) -> usize {
    let called = |trial: u64| {
        let pair = pair(&mut Random::new(seed, trial));
        let found = compare(&[pair], Limits::default()).expect("comparable");
        found.count(Verdict::Worse) + found.count(Verdict::Better) > 0
    };
    (0..n).filter(|&trial| called(trial)).count()
}

#[test]
fn reports_of_one_sample_need_seven_pairs() {
    let one = |x: f64| of(&json!([{"name": "x", "unit": "s", "better": "lower", "samples": [x]}]));
    let verdict = |n: u32| {
        let pairs = (0..n).map(|at| (one(10.0 + f64::from(at)), one(20.0 + f64::from(at))));
        compare(&pairs.collect::<Vec<_>>(), Limits::default()).expect("comparable").rows[0].verdict
    };
    assert_eq!([1, 6, 7].map(verdict), [Verdict::TooFew, Verdict::TooFew, Verdict::Worse]);
}

#[test]
fn equal_programs_are_called_equal_in_95_of_100_runs() {
    for case in [(5, 0.01, true), (10, 0.005, false), (12, 0.05, true)] {
        let both = |random: &mut Random| (report(random, case, 1.0), report(random, case, 1.0));
        let n = n_called(100, 1, both);
        assert!(n <= 5, "{n} of 100 with {case:?}");
    }
}

#[test]
fn a_program_that_is_3_percent_slower_is_found_in_9_of_10_runs() {
    for case in [(5, 0.004, false), (10, 0.007, false), (12, 0.005, true)] {
        let both = |random: &mut Random| (report(random, case, 1.0), report(random, case, 0.97));
        let n = n_called(100, 2, both);
        assert!(n >= 90, "{n} of 100 with {case:?}");
    }
}

#[test]
fn pairs_in_turn_cancel_a_slow_drift() {
    // The machine becomes 30 % slower from pair to pair; B is 3 % slower.
    let mut random = Random::new(5, 0);
    let pairs: Vec<(Recorded, Recorded)> = (0..4)
        .map(|pair| {
            let drift = 0.7_f64.powi(pair);
            let case = (5, 0.005, false);
            let a = report(&mut random, case, drift);
            (a, report(&mut random, case, 0.97 * drift))
        })
        .collect();
    let found = compare(&pairs, Limits::default()).expect("comparable");
    assert_eq!(found.n_pairs, 4);
    assert!(found.is_worse(), "{}", found.render());
}

fn two(a: &[f64], b: &[f64], better: &str) -> Row {
    let measure = |samples: &[f64]| {
        of(&json!([{"name": "x", "unit": "s", "better": better, "samples": samples}]))
    };
    let found = compare(&[(measure(a), measure(b))], Limits::default()).expect("comparable");
    found.rows[0].clone()
}

#[test]
fn the_verdict_follows_the_direction_of_the_figure() {
    let (low, high) = ([1.0, 1.01, 1.02, 1.0, 1.01], [1.1, 1.11, 1.12, 1.1, 1.1]);
    assert_eq!(two(&low, &high, "lower").verdict, Verdict::Worse);
    assert_eq!(two(&low, &high, "higher").verdict, Verdict::Better);
    let row = two(&high, &low, "lower");
    assert_eq!(row.verdict, Verdict::Better);
    assert!(row.change_percent.is_some_and(|x| (-10.0..-8.0).contains(&x)), "{row:?}");
    let Interval { low, high } = row.interval_percent.expect("samples");
    assert!(low < -8.5 && high > -9.5 && low < high, "{row:?}");
}

#[test]
fn too_few_rounds_are_said_and_never_called_equal() {
    assert_eq!(two(&[1.0], &[2.0], "lower").verdict, Verdict::TooFew);
    assert_eq!(two(&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0], "lower").verdict, Verdict::TooFew);
    assert_eq!(two(&[1.0; 4], &[2.0; 4], "lower").verdict, Verdict::Worse);
}

#[test]
fn equal_samples_and_zeros_are_no_difference() {
    assert_eq!(two(&[3.0; 6], &[3.0; 6], "lower").verdict, Verdict::Same);
    assert_eq!(two(&[0.0; 6], &[0.0; 6], "lower").verdict, Verdict::Same);
    // Significant, and below the smallest difference that counts.
    let row = two(&[1.0, 1.0, 1.0, 1.0, 1.001], &[1.005; 5], "lower");
    assert!(row.significance < 0.03 && row.verdict == Verdict::Same, "{row:?}");
}

#[test]
fn reports_that_cannot_be_compared_are_refused() {
    let report = |name: &str, unit: &str| {
        of(&json!([{"name": name, "unit": unit, "better": "lower", "samples": [1.0]}]))
    };
    let refused = |a, b| compare(&[(a, b)], Limits::default()).expect_err("refused").to_string();
    assert!(refused(report("x", "s"), report("y", "s")).contains("no figure in common"));
    assert!(refused(report("x", "s"), report("x", "ms")).contains("different units"));
    let mut other = report("x", "s");
    other.report.kind = "serve".to_owned();
    assert!(refused(report("x", "s"), other).contains("bench serve"));
}
