//! Dynamic temperature: hot where the model does not know, cold where it does.
//!
//! ```text
//! T = low + (high - low) * (H / ln n)^exponent       low, high = temperature -+ range, low >= 0
//! ```
//!
//! `H` is the entropy of the `n` candidates at the temperature so far, which is 1. In llama.cpp's
//! order the temperature comes last, after the truncations, so `n` is small there; in ours it comes
//! first. A `samplers` list with `temperature` at its end gives llama.cpp's. Temperature 0 is greedy,
//! whatever the range; llama.cpp then takes temperatures from 0 to the range.
//!
//! Definition: kalomaze, "Dynamic temperature", 2023, as in llama.cpp #4972.

use super::Candidates;
use crate::math::{exp, ln_positive};
use crate::select::logit_of;
use pelton_base::Dynatemp;

impl Candidates<'_> {
    /// Divides the logits by the temperature, or by one that follows the entropy.
    pub(crate) fn heat(&mut self, temperature: f32, Dynatemp { range, exponent }: Dynatemp) {
        if range <= 0.0 {
            self.temperature *= temperature;
            return;
        }
        let n = self.keys.len();
        if n < 2 {
            return;
        }
        let low = f64::from(temperature - range).max(0.0);
        let high = f64::from(temperature) + f64::from(range);
        let share = (self.entropy() / ln_positive(n as f64)).clamp(0.0, 1.0);
        let factor = match (share, exponent) {
            (_, 0.0) => 1.0,
            (0.0, _) => 0.0,
            _ => exp(f64::from(exponent) * ln_positive(share)),
        };
        let dynamic = (low + (high - low) * factor) as f32;
        if dynamic > 0.0 {
            self.temperature *= dynamic;
        } else {
            // As cold as can be: one token, whatever `min_keep` says.
            self.min_keep = 1;
            self.keep_largest(1);
        }
    }

    /// `-sum p ln p` of the candidates, in nats.
    fn entropy(&mut self) -> f64 {
        let (total, max) = (self.weigh(), self.max());
        let share = |(&key, &weight): (&u64, &f32)| match weight > 0.0 {
            true => f64::from(weight) * f64::from((logit_of(key) - max) / self.temperature),
            false => 0.0,
        };
        let mean: f64 = self.keys.iter().zip(&*self.weights).map(share).sum::<f64>() / total;
        (ln_positive(total) - mean).max(0.0)
    }
}
