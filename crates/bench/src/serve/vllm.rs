//! The report in the form of the results file of vLLM's `bench serve`, for the tools that read it.
//!
//! Lengths and times are those of whole answers. Lists of single tokens and texts are left out, as
//! in files that vLLM writes without its details.

use pelton_sim::trace::ArrivalKind;
use serde_json::{Map, Value, json};

use super::report::ServeReport;
use crate::estimate::{mean, median};
use crate::pace::Pace;

/// How requests came, in the words of the file.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Arrivals.
    pub pace: Pace,
    /// How requests follow each other by the clock, and how many per second; absent for a file.
    pub arrivals: Option<(ArrivalKind, f64)>,
    /// Requests that were asked for.
    pub n_requests: u64,
    /// Whether requests have latency targets.
    pub has_targets: bool,
}

impl Traffic {
    /// The fields about arrivals. In vLLM the burstiness is the shape of a gamma distribution of the
    /// gaps, and 1 is a Poisson process. Bursts with phases, equal gaps and files have no such
    /// shape. Without a clock, and on a ramp, its own program writes a rate of `inf`.
    fn arrival_fields(&self) -> Vec<(&'static str, Value)> {
        let (rate, burstiness) = match (self.pace, self.arrivals) {
            (Pace::Concurrency(_), _) | (Pace::Clock, Some((ArrivalKind::Ramp, _))) => {
                (json!("inf"), json!(1.0))
            }
            (Pace::Clock, Some((ArrivalKind::Poisson, rate))) => (json!(rate), json!(1.0)),
            (Pace::Clock, Some((ArrivalKind::Bursty | ArrivalKind::Constant, rate))) => {
                (json!(rate), Value::Null)
            }
            (Pace::Clock, None) => (Value::Null, Value::Null),
        };
        let mut fields = vec![("request_rate", rate), ("burstiness", burstiness)];
        let clocked = self.arrivals.filter(|_| self.pace == Pace::Clock);
        if let Some((first, last)) = clocked.and_then(|(kind, rate)| kind.ramp(rate)) {
            fields.push(("ramp_up_strategy", json!("linear")));
            fields.push(("ramp_up_start_rps", json!(first)));
            fields.push(("ramp_up_end_rps", json!(last)));
        }
        fields
    }
}

impl ServeReport {
    /// The results file; `date` is its moment, such as `20261123-071500`.
    pub fn vllm(&self, date: &str, traffic: Traffic) -> Value {
        let requests = &self.requests;
        let sum = |lengths: &[u32]| lengths.iter().map(|&n| u64::from(n)).sum::<u64>();
        let (input, output) = (sum(&requests.prompt_tokens), sum(&requests.output_tokens));
        let (seconds, goodput) =
            self.served.reports().next().map_or((1e-9, 0.0), |report| {
                (report.duration_s.max(1e-9), report.all.goodput_per_s)
            });
        let n_failed =
            self.failures.values().map(|failure| failure.n).sum::<u64>() + self.n_refused;
        let mut file = Map::new();
        let mut put = |name: &str, value: Value| drop(file.insert(name.to_owned(), value));
        put("date", json!(date));
        put("endpoint_type", json!("openai"));
        put("backend", json!("openai"));
        put("label", Value::Null);
        put("model_id", json!(self.model));
        put("tokenizer_id", json!(self.model));
        put("num_prompts", json!(traffic.n_requests));
        for (name, value) in traffic.arrival_fields() {
            put(name, value);
        }
        put(
            "max_concurrency",
            match traffic.pace {
                Pace::Clock => Value::Null,
                Pace::Concurrency(n) => json!(n),
            },
        );
        put("duration", json!(seconds));
        put("completed", json!(self.n_answers));
        put("failed", json!(n_failed));
        put("total_input_tokens", json!(input));
        put("total_output_tokens", json!(output));
        put("request_throughput", json!(self.n_answers as f64 / seconds));
        put("request_goodput", if traffic.has_targets { json!(goodput) } else { Value::Null });
        put("output_throughput", json!(output as f64 / seconds));
        put("total_token_throughput", json!((input + output) as f64 / seconds));
        let tpot: Vec<f64> = requests.tpot_ms.iter().flatten().copied().collect();
        for (name, values) in [
            ("ttft", &requests.ttft_ms),
            ("tpot", &tpot),
            ("itl", &self.gaps_ms),
            ("e2el", &requests.end_to_end_ms),
        ] {
            put(&format!("mean_{name}_ms"), json!(mean(values).unwrap_or(0.0)));
            put(&format!("median_{name}_ms"), json!(median(values).unwrap_or(0.0)));
            put(&format!("std_{name}_ms"), json!(deviation(values)));
            put(&format!("p99_{name}_ms"), json!(p99(values)));
        }
        Value::Object(file)
    }
}

/// Standard deviation of all values.
fn deviation(values: &[f64]) -> f64 {
    let Some(middle) = mean(values) else { return 0.0 };
    let squares: f64 = values.iter().map(|x| (x - middle).powi(2)).sum();
    (squares / values.len() as f64).sqrt()
}

/// The 99th percentile between the two nearest values, as NumPy interpolates it.
fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = last as f64 * 0.99;
    let (below, share) = (place.floor() as usize, place.fract());
    sorted[below] + share * (sorted[(below + 1).min(last)] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields about arrivals by this pace.
    fn fields(pace: Pace, arrivals: Option<(ArrivalKind, f64)>) -> Value {
        let traffic = Traffic { pace, arrivals, n_requests: 9, has_targets: false };
        let fields = traffic.arrival_fields().into_iter();
        Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
    }

    #[test]
    fn rate_and_burstiness_are_those_of_the_arrivals() {
        use ArrivalKind::{Bursty, Constant, Poisson, Ramp};
        for &kind in ArrivalKind::ALL {
            let closed = fields(Pace::Concurrency(4), Some((kind, 2.0)));
            assert_eq!(closed, json!({"request_rate": "inf", "burstiness": 1.0}), "{kind:?}");
        }
        let clocked = |kind| fields(Pace::Clock, Some((kind, 2.0)));
        assert_eq!(clocked(Poisson), json!({"request_rate": 2.0, "burstiness": 1.0}));
        for kind in [Bursty, Constant] {
            assert_eq!(clocked(kind), json!({"request_rate": 2.0, "burstiness": null}), "{kind:?}");
        }
        let ramp = clocked(Ramp);
        assert_eq!((&ramp["request_rate"], &ramp["burstiness"]), (&json!("inf"), &json!(1.0)));
        assert_eq!(ramp["ramp_up_strategy"], "linear");
        let (first, last) = (&ramp["ramp_up_start_rps"], &ramp["ramp_up_end_rps"]);
        assert!((first.as_f64().expect("a rate") - 0.2).abs() < 1e-12, "{ramp}");
        assert!((last.as_f64().expect("a rate") - 3.8).abs() < 1e-12, "{ramp}");
        let file = fields(Pace::Clock, None);
        assert_eq!(file, json!({"request_rate": null, "burstiness": null}));
    }

    #[test]
    fn spread_and_percentile_are_those_of_numpy() {
        // numpy.std([1, 2, 3, 4]), numpy.percentile([1, 2, 3, 4], 99).
        assert!((deviation(&[1.0, 2.0, 3.0, 4.0]) - 1.118_033_988_749_895).abs() < 1e-12);
        assert!((p99(&[4.0, 1.0, 3.0, 2.0]) - 3.97).abs() < 1e-12);
        assert_eq!((deviation(&[]), p99(&[]), p99(&[5.0])), (0.0, 0.0, 5.0));
    }
}
