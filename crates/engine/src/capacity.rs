//! Time of the machine that a request takes where the machine is full, by the prices of steps.
//!
//! ```text
//! request = its prompt in steps of its own
//!         + generated tokens · time of a full decoding step / rows of that step
//! rows    = the most that run at once, that the KV memory holds, and whose step keeps the target
//! ```

use crate::EngineMetrics;
use pelton_sched::StepLoad;

/// Mean tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Tokens of its prompt.
    pub prompt_tokens: f64,
    /// The part of them that is found in the cache.
    pub cached_tokens: f64,
    /// Tokens of its answers.
    pub generated_tokens: f64,
}

impl EngineMetrics {
    /// Seconds of a full machine for a request; `None` before the prices are known, and for a mix
    /// without tokens.
    pub fn seconds_per_request(&self, mix: &Mix) -> Option<f64> {
        let Mix { prompt_tokens, cached_tokens, generated_tokens } = *mix;
        let is_mix = generated_tokens >= 1.0 && prompt_tokens >= 1.0;
        if !self.cost.is_known() || !is_mix {
            return None;
        }
        let n_read = (prompt_tokens - cached_tokens).max(0.0) as usize;
        let chunk = self.limits.batch_tokens;
        let prefill_ns = self.cost.prefill_ns(cached_tokens as usize, n_read, chunk);
        let middle = (prompt_tokens + generated_tokens / 2.0) as usize;
        let n_rows = self.rows(prompt_tokens + generated_tokens, middle);
        let step_ns = self.decode_ns(n_rows, middle);
        let decode_ns = generated_tokens * step_ns as f64 / n_rows as f64;
        Some((prefill_ns as f64 + decode_ns) * 1e-9)
    }

    /// Rows of a full step: at least one.
    fn rows(&self, tokens: f64, middle: usize) -> usize {
        let n_tokens = (tokens / self.block_tokens.max(1) as f64).ceil();
        let n_held = self.windows.map_or(n_tokens, |windows| {
            windows.n_held(n_tokens as usize, 0, self.block_tokens) as f64
        });
        let held = self.n_blocks as f64 / n_held.max(1.0);
        let most = (held as usize).min(self.limits.running).max(1);
        let Some(target) = self.slo.tpot else { return most };
        let target_ns = u64::try_from(target.as_nanos()).unwrap_or(u64::MAX);
        // Time grows with rows, so the last one that keeps the target is found by halving.
        let (mut fits, mut late) = (1, most + 1);
        while late - fits > 1 {
            let half = fits.midpoint(late);
            let is_late = self.decode_ns(half, middle) > target_ns;
            *(if is_late { &mut late } else { &mut fits }) = half;
        }
        fits
    }

    fn decode_ns(&self, n_rows: usize, position: usize) -> u64 {
        let mut load = StepLoad::default();
        (0..n_rows).for_each(|_| load.add_rows(position, 1, 1));
        self.cost.step_ns(&load)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pelton_base::Slo;
    use pelton_sched::StepCost;

    use super::*;
    use crate::Limits;

    fn metrics() -> EngineMetrics {
        EngineMetrics {
            // A step takes 10 ms, a token 1 ms more.
            cost: StepCost {
                base_ps: 10_000_000_000,
                token_ps: 1_000_000_000,
                ..StepCost::default()
            },
            limits: Limits { batch_tokens: 50, running: 10 },
            n_blocks: 100,
            block_tokens: 16,
            ..EngineMetrics::default()
        }
    }

    #[test]
    fn a_full_machine_shares_its_steps_among_requests() {
        let mix = Mix { prompt_tokens: 100.0, cached_tokens: 20.0, generated_tokens: 40.0 };
        // 80 tokens in two steps are 100 ms; 40 tokens at 20 ms for ten rows are 80 ms.
        let seconds = metrics().seconds_per_request(&mix).expect("prices are known");
        assert!((seconds - 0.180).abs() < 1e-6, "{seconds}");
        // A target of 15 ms leaves five rows: 40 tokens at 3 ms each.
        let slo = Slo { tpot: Some(Duration::from_millis(15)), ttft: None };
        let seconds = EngineMetrics { slo, ..metrics() }.seconds_per_request(&mix);
        assert!((seconds.expect("known") - 0.220).abs() < 1e-6, "{seconds:?}");
        // Memory for two requests of 140 tokens: 40 tokens at 6 ms each.
        let small = EngineMetrics { n_blocks: 18, ..metrics() };
        let seconds = small.seconds_per_request(&mix).expect("known");
        assert!((seconds - 0.340).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn without_prices_or_tokens_there_is_no_estimate() {
        let mix = Mix { prompt_tokens: 1.0, cached_tokens: 0.0, generated_tokens: 1.0 };
        assert_eq!(EngineMetrics::default().seconds_per_request(&mix), None);
        for (prompt_tokens, generated_tokens) in [(0.0, 0.0), (9.0, 0.0), (0.0, 9.0)] {
            let mix = Mix { prompt_tokens, cached_tokens: 0.0, generated_tokens };
            assert_eq!(metrics().seconds_per_request(&mix), None, "{mix:?}");
        }
    }
}
