//! `best_of`: generates more answers than were asked for and keeps the likeliest.
//!
//! ```text
//!   prompt 0                    prompt 1                  n = 2, best_of = 4
//!   -0.9  -0.2  -0.5  -1.1      -0.1  -0.7  -0.3  -0.3    mean log probability of a token
//!          1st   2nd             1st         2nd          ties: the lower number
//! ```
//!
//! Answers are ranked by the mean and not by the sum, because a sum prefers short answers.

use crate::event::Event;

/// Ranks the answers to each prompt by the mean log probability of their tokens.
#[derive(Clone, Debug)]
pub struct BestOf {
    /// Answers kept per prompt.
    n: usize,
    /// Answers generated per prompt.
    best_of: usize,
    /// Per answer: the log probabilities of its tokens summed, and how many there are.
    sums: Vec<(f64, usize)>,
}

impl BestOf {
    /// An empty ranking of `best_of` answers to each of `n_prompts` prompts, of which `n` are kept.
    ///
    /// # Panics
    ///
    /// Panics unless `1 <= n <= best_of`.
    pub fn new(n_prompts: usize, n: usize, best_of: usize) -> Self {
        assert!((1..=best_of).contains(&n), "{n} of {best_of} answers cannot be kept");
        Self { n, best_of, sums: vec![(0.0, 0); n_prompts * best_of] }
    }

    /// Counts the tokens of an event; tokens without a log probability are left out.
    pub fn add(&mut self, event: &Event) {
        let (sum, n_tokens) = &mut self.sums[event.choice];
        for logprob in event.tokens.iter().filter_map(|token| token.logprob.as_ref()) {
            *sum += f64::from(logprob.logprob);
            *n_tokens += 1;
        }
    }

    /// The answers to keep, prompt by prompt, the likeliest first.
    pub fn choices(&self) -> Vec<usize> {
        let mean = |idx: usize| match self.sums[idx] {
            (_, 0) => f64::NEG_INFINITY,
            (sum, n_tokens) => sum / n_tokens as f64,
        };
        let mut kept = Vec::new();
        for first in (0..self.sums.len()).step_by(self.best_of) {
            let mut ranked: Vec<usize> = (first..first + self.best_of).collect();
            // A stable sort keeps answers of equal rank in order.
            ranked.sort_by(|&a, &b| mean(b).total_cmp(&mean(a)));
            kept.extend_from_slice(&ranked[..self.n]);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::TokenId;

    use super::*;
    use crate::event::{EventToken, Logprob, Released};

    #[test]
    fn the_likeliest_per_token_are_kept_and_equals_stay_in_order() {
        let mut best = BestOf::new(2, 2, 3);
        // One long answer and short ones: the sum of the long one is the lowest.
        let said: [(usize, &[f32]); 6] = [
            (0, &[-0.5]),
            (1, &[-0.25, -0.25, -0.25, -0.25]),
            (2, &[-0.75]),
            (3, &[]),
            (4, &[f32::NEG_INFINITY]),
            (5, &[-9.0]),
        ];
        for (choice, logprobs) in said {
            let token = |&logprob: &f32| EventToken {
                id: TokenId(0),
                bytes: Vec::new(),
                is_special: false,
                logprob: Some(Logprob { logprob, top: Vec::new() }),
                released: Released::Nothing,
            };
            let tokens = logprobs.iter().map(token).collect();
            best.add(&Event { tokens, ..Event::new(choice) });
        }
        assert_eq!(best.choices(), [1, 0, 5, 3]);
    }
}
