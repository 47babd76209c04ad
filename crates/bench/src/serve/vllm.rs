//! The report in the form of the results file of vLLM's `bench serve`, for the tools that read it.
//!
//! Lengths and times are those of whole answers. Lists of single tokens and texts are left out, as
//! in files that vLLM writes without its details.

use serde_json::{Map, Value, json};

use super::report::ServeReport;
use crate::estimate::{mean, median};
use crate::pace::Pace;

/// How requests came, in the words of the file.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Arrivals.
    pub pace: Pace,
    /// Requests per second, where the workload has a rate.
    pub rate: Option<f64>,
    /// Requests that were asked for.
    pub n_requests: u64,
    /// Whether requests have latency targets.
    pub has_targets: bool,
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
        put("request_rate", traffic.rate.map_or_else(|| json!("inf"), |rate| json!(rate)));
        put("burstiness", json!(1.0));
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

    #[test]
    fn spread_and_percentile_are_those_of_numpy() {
        // numpy.std([1, 2, 3, 4]), numpy.percentile([1, 2, 3, 4], 99).
        assert!((deviation(&[1.0, 2.0, 3.0, 4.0]) - 1.118_033_988_749_895).abs() < 1e-12);
        assert!((p99(&[4.0, 1.0, 3.0, 2.0]) - 3.97).abs() < 1e-12);
        assert_eq!((deviation(&[]), p99(&[]), p99(&[5.0])), (0.0, 0.0, 5.0));
    }
}
