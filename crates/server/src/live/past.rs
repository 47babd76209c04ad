//! The last minute of a model's engine, looked at once a second.

use std::collections::VecDeque;

use pelton_llm::EngineMetrics;

use super::meter::{RATE_SECONDS, WINDOW_SECONDS};

/// An engine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) kv_usage: f64,
    /// Prompt tokens computed since the start.
    prompt_tokens: u64,
    generated_tokens: u64,
    n_steps: u64,
    step_seconds: f64,
}

impl Sample {
    pub(super) fn of(metrics: &EngineMetrics) -> Self {
        Self {
            running: metrics.n_running,
            waiting: metrics.n_waiting,
            kv_usage: kv_usage(metrics),
            prompt_tokens: metrics.prompt_tokens,
            generated_tokens: metrics.generated_tokens,
            n_steps: metrics.n_steps,
            step_seconds: metrics.step_time.as_secs_f64(),
        }
    }
}

/// Share of the KV blocks that is in use.
pub(super) fn kv_usage(metrics: &EngineMetrics) -> f64 {
    let n_used = metrics.n_blocks.saturating_sub(metrics.n_free_blocks);
    n_used as f64 / metrics.n_blocks.max(1) as f64
}

/// Rates of an engine over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Rates {
    /// Prompt tokens computed per second; those found in the cache are none of them.
    pub(crate) prompt_tokens_per_second: f64,
    pub(crate) generated_tokens_per_second: f64,
    pub(crate) steps_per_second: f64,
    /// Share of the time in which a step was under way.
    pub(crate) busy_ratio: f64,
}

/// Samples of the last minute, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(VecDeque<(u64, Sample)>);

impl Past {
    /// Adds the sample of a second.
    pub(super) fn add(&mut self, second: u64, sample: Sample) {
        if self.0.back().is_some_and(|(last, _)| *last >= second) {
            self.0.pop_back();
        }
        if self.0.len() > WINDOW_SECONDS as usize {
            self.0.pop_front();
        }
        self.0.push_back((second, sample));
    }

    /// A figure of each sample.
    pub(super) fn history<T>(&self, of: impl Fn(&Sample) -> T) -> Vec<T> {
        self.0.iter().map(|(_, sample)| of(sample)).collect()
    }

    /// Means over the last seconds up to `now`.
    pub(super) fn rates(&self, second: u64, now: &Sample) -> Rates {
        let since = second.saturating_sub(RATE_SECONDS);
        let first = self.0.iter().find(|(at, _)| *at >= since && *at < second);
        let Some((at, then)) = first else { return Rates::default() };
        let seconds = (second - at) as f64;
        // A reload puts an engine with new counters in place of the old one.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates {
            prompt_tokens_per_second: rate(now.prompt_tokens, then.prompt_tokens),
            generated_tokens_per_second: rate(now.generated_tokens, then.generated_tokens),
            steps_per_second: rate(now.n_steps, then.n_steps),
            busy_ratio: ((now.step_seconds - then.step_seconds) / seconds).clamp(0.0, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_ten_seconds_and_survive_a_reload() {
        let mut past = Past::default();
        let sample =
            |n: u64| Sample { generated_tokens: 100 * n, n_steps: 10 * n, ..Sample::default() };
        for second in 0..100 {
            past.add(second, sample(second));
        }
        assert_eq!(past.0.len(), 61);
        let rates = past.rates(100, &sample(100));
        assert_eq!((rates.generated_tokens_per_second, rates.steps_per_second), (100.0, 10.0));
        assert_eq!(past.rates(100, &sample(0)), Rates::default(), "a new engine");
        assert_eq!(past.rates(1000, &sample(100)), Rates::default(), "no sample is recent");
        past.add(99, sample(7));
        assert_eq!(past.history(|s| s.n_steps).last(), Some(&70), "one sample for each second");
    }
}
