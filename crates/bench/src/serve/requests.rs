//! The whole answers of a run, in order of arrival, and the part of the run in a steady state.
//!
//! ```text
//! arrivals        | | ||  | ||| | |  || | | ||  |  ||| |
//!                 ├ warm-up ┤├──── steady ──────────────┤├ drain ...
//! ```
//!
//! The end of the warm-up is found by MSER-5 (White, "An effective truncation heuristic for bias
//! reduction in simulation output", Simulation 69, 1997): times from arrival to the last token are
//! averaged in fives, and the beginning is cut off where that makes the standard error of the mean
//! of the rest smallest. If that is past the middle, the run has no steady state: it was too short,
//! or the server falls further and further behind. The window ends with the last arrival; the
//! tokens of the drain after it count in no rate.

use pelton_sim::report::RequestRecord;
use serde::Serialize;

use crate::estimate::Percentiles;
use crate::record::Measure;

/// Requests that are averaged.
const BATCH: usize = 5;
/// Fewest requests of a window.
const FEWEST: usize = 10 * BATCH;
/// Blocks of the requests of a window, each of which is a sample.
const BLOCKS: usize = 20;

/// Whole answers, a value per request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Requests {
    /// Arrivals in seconds from the start, which never fall.
    pub arrived_s: Vec<f64>,
    /// Times to the first token.
    pub ttft_ms: Vec<f64>,
    /// Times per token after the first; absent for answers of one token.
    pub tpot_ms: Vec<Option<f64>>,
    /// Times to the last token.
    pub end_to_end_ms: Vec<f64>,
    /// Tokens of the prompts.
    pub prompt_tokens: Vec<u32>,
    /// Tokens of the answers.
    pub output_tokens: Vec<u32>,
}

/// The part of a run in which nothing grows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// Its begin, in seconds from the start.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// Requests that arrived in it and were answered.
    pub n: usize,
    /// Answers that ended in it, per second.
    pub answers_per_s: f64,
    /// Tokens of those answers, per second.
    pub output_tokens_per_s: f64,
    /// Times of the requests that arrived in it.
    pub ttft_ms: Percentiles,
    /// The same per token after the first.
    pub tpot_ms: Option<Percentiles>,
    /// The same to the last token.
    pub end_to_end_ms: Percentiles,
}

/// Whether a run has a steady part.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Steadiness {
    /// It has this one.
    Steady(Box<Steady>),
    /// Times still change past the middle of the run.
    Unsteady,
    /// Fewer than 50 whole answers.
    TooShort,
}

impl Requests {
    /// The whole answers of a ledger.
    pub(super) fn new(records: &[RequestRecord]) -> Self {
        let mut whole: Vec<&RequestRecord> = records.iter().filter(|r| r.is_complete).collect();
        whole.sort_by_key(|record| record.arrived_ns);
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            arrived_s: whole.iter().map(|r| r.arrived_ns as f64 / 1e9).collect(),
            ttft_ms: whole.iter().map(|r| ms(r.ttft_ns())).collect(),
            tpot_ms: whole.iter().map(|r| r.tpot_ns().map(ms)).collect(),
            end_to_end_ms: whole.iter().map(|r| ms(r.end_to_end_ns())).collect(),
            prompt_tokens: whole.iter().map(|r| r.n_prompt).collect(),
            output_tokens: whole.iter().map(|r| r.n_output).collect(),
        }
    }

    /// The steady part.
    pub(super) fn steadiness(&self) -> Steadiness {
        if self.arrived_s.len() < FEWEST {
            return Steadiness::TooShort;
        }
        let Some(first) = warm_up(&self.end_to_end_ms) else { return Steadiness::Unsteady };
        self.window(first).map_or(Steadiness::TooShort, |found| Steadiness::Steady(Box::new(found)))
    }

    fn window(&self, first: usize) -> Option<Steady> {
        let (from_s, to_s) = (*self.arrived_s.get(first)?, *self.arrived_s.last()?);
        let seconds = Some(to_s - from_s).filter(|seconds| *seconds > 0.0)?;
        let ends = self.arrived_s.iter().zip(&self.end_to_end_ms).map(|(at, ms)| at + ms / 1e3);
        let ended = ends.zip(&self.output_tokens).filter(|(end, _)| (from_s..=to_s).contains(end));
        let (n_ended, n_tokens) =
            ended.fold((0_u64, 0_u64), |(n, tokens), (_, &more)| (n + 1, tokens + u64::from(more)));
        let tpot: Vec<f64> = self.tpot_ms[first..].iter().flatten().copied().collect();
        Some(Steady {
            from_s,
            to_s,
            n: self.arrived_s.len() - first,
            answers_per_s: n_ended as f64 / seconds,
            output_tokens_per_s: n_tokens as f64 / seconds,
            ttft_ms: Percentiles::new(&blocks(&self.ttft_ms[first..]))?,
            tpot_ms: Percentiles::new(&blocks(&tpot)),
            end_to_end_ms: Percentiles::new(&blocks(&self.end_to_end_ms[first..]))?,
        })
    }

    /// Means of blocks of consecutive requests, after the warm-up where there is a steady part.
    /// Requests that meet in a queue depend on each other; blocks of them do so less.
    pub(super) fn measures(&self) -> Vec<Measure> {
        let is_short = self.arrived_s.len() < FEWEST;
        let first = if is_short { 0 } else { warm_up(&self.end_to_end_ms).unwrap_or(0) };
        let mean = |block: &Vec<f64>| block.iter().sum::<f64>() / block.len() as f64;
        let of = |name: &str, values: &[f64]| {
            let samples: Vec<f64> = blocks(values).iter().map(mean).collect();
            (!samples.is_empty()).then(|| Measure::cost(name, "ms", samples))
        };
        let tpot: Vec<f64> = self.tpot_ms[first..].iter().flatten().copied().collect();
        let measures = [
            of("TTFT", &self.ttft_ms[first..]),
            of("TPOT", &tpot),
            of("end to end", &self.end_to_end_ms[first..]),
        ];
        measures.into_iter().flatten().collect()
    }
}

/// At most [`BLOCKS`] blocks of consecutive values, nearly equal in size.
fn blocks(values: &[f64]) -> Vec<Vec<f64>> {
    let size = values.len().div_ceil(BLOCKS).max(1);
    values.chunks(size).map(<[f64]>::to_vec).collect()
}

/// The first value after the warm-up; `None` where it would be past the middle, or without values.
fn warm_up(values: &[f64]) -> Option<usize> {
    let means: Vec<f64> =
        values.chunks_exact(BATCH).map(|five| five.iter().sum::<f64>() / BATCH as f64).collect();
    // Sums from the end, so that each candidate costs one step.
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let mut best: Option<(f64, usize)> = None;
    let shift = means.last().copied()?;
    for (idx, mean) in means.iter().enumerate().rev() {
        let mean = mean - shift;
        (n, sum, squares) = (n + 1.0, sum + mean, squares + mean * mean);
        // The last few are always close together by chance.
        if n < 5.0 {
            continue;
        }
        let error = (squares - sum * sum / n).max(0.0) / (n * n);
        if best.is_none_or(|(least, _)| error <= least) {
            best = Some((error, idx));
        }
    }
    let (_, cut) = best?;
    (cut * 2 <= means.len()).then_some(cut * BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_sim::Random;

    fn requests(times: &[f64]) -> Requests {
        let n = times.len();
        Requests {
            arrived_s: (0..n).map(|at| at as f64).collect(),
            ttft_ms: times.to_vec(),
            tpot_ms: vec![Some(1.0); n],
            end_to_end_ms: times.to_vec(),
            prompt_tokens: vec![1; n],
            output_tokens: vec![10; n],
        }
    }

    #[test]
    fn a_cold_start_is_cut_off_and_the_rest_is_kept() {
        let mut random = Random::new(4, 0);
        let mut noise = || 100.0 + 10.0 * random.normal();
        let times: Vec<f64> = (0..400)
            .map(|at| noise() + if at < 60 { 20.0 * f64::from(60 - at) } else { 0.0 })
            .collect();
        let Steadiness::Steady(steady) = requests(&times).steadiness() else { panic!("unsteady") };
        assert!((45.0..=80.0).contains(&steady.from_s), "{steady:?}");
        assert_eq!((steady.to_s, steady.n), (399.0, 400 - steady.from_s as usize));
        assert!((95.0..105.0).contains(&steady.ttft_ms.p50.value), "{steady:?}");
        // One answer of ten tokens a second; the last end lies behind the last arrival.
        assert!((9.5..=10.1).contains(&steady.output_tokens_per_s), "{steady:?}");
    }

    #[test]
    fn a_level_run_keeps_nearly_all_of_its_requests() {
        let mut random = Random::new(4, 1);
        let times: Vec<f64> = (0..400).map(|_| 100.0 + 10.0 * random.normal()).collect();
        let Steadiness::Steady(steady) = requests(&times).steadiness() else { panic!("unsteady") };
        assert!(steady.from_s <= 60.0, "{steady:?}");
    }

    #[test]
    fn a_server_that_falls_behind_has_no_steady_part() {
        let times: Vec<f64> = (0..400).map(|at| 10.0 * f64::from(at)).collect();
        assert_eq!(requests(&times).steadiness(), Steadiness::Unsteady);
        assert_eq!(requests(&times[..49]).steadiness(), Steadiness::TooShort);
        assert_eq!(Requests::default().steadiness(), Steadiness::TooShort);
    }

    #[test]
    fn samples_are_blocks_in_order_of_arrival() {
        let times: Vec<f64> = (0..100).map(f64::from).collect();
        let blocks = blocks(&times);
        assert_eq!((blocks.len(), blocks[1][0]), (20, 5.0));
        let measures = requests(&vec![7.0; 100]).measures();
        let names: Vec<&str> = measures.iter().map(|measure| measure.name.as_str()).collect();
        assert_eq!(names, ["TTFT", "TPOT", "end to end"]);
        assert_eq!(measures[0].samples, [7.0; 20]);
        assert_eq!(Requests::default().measures(), Vec::new());
    }
}
