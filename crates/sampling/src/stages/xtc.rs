//! XTC, "exclude top choices": where several tokens are likely, only the least likely of them stays.
//!
//! ```text
//! threshold 0.1    0.5  0.2  0.12 | 0.08  0.05  ...
//! dropped           x    x        |                   and 0.12 stays, so a good choice is left
//! ```
//!
//! It applies to a token with `xtc_probability`; the number that decides is of a
//! [`Stream`](crate::Stream) of its own, keyed by the position, so that it is the same however often
//! and in whatever company the token is computed. As in llama.cpp, XTC that would leave fewer than
//! `min_keep` tokens does not apply.
//!
//! Definition: p-e-w, "Exclude Top Choices (XTC): A sampler that boosts creativity",
//! text-generation-webui #6335, 2024.

use super::Candidates;

impl Candidates<'_> {
    /// Drops all tokens with a probability of `threshold` or more but the least likely of them.
    pub(crate) fn exclude_top(&mut self, threshold: f32) {
        let least = f64::from(threshold) * self.weigh();
        let is_top = |weight: &f32| f64::from(*weight) >= least;
        let tops = self.keys.iter().zip(&*self.weights).filter(|(_, weight)| is_top(weight));
        let (n_tops, last) =
            tops.fold((0, u64::MAX), |(n, last), (&key, _)| (n + 1, last.min(key)));
        if n_tops < 2 || self.keys.len() + 1 - n_tops < self.min_keep {
            return;
        }
        // All tops are larger keys than the rest, and `last` is the smallest of them.
        self.retain(|key| key <= last);
    }
}
