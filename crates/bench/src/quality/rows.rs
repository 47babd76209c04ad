//! Logits of the same rows under two models.

use pelton_base::TokenId;
use pelton_sampling::Scorer;

use super::Sums;

/// Logits of a few rows.
pub(super) struct Pair<'a> {
    pub(super) vocab_size: usize,
    /// `[rows, vocab]`.
    pub(super) model: &'a [f32],
    pub(super) reference: Option<&'a [f32]>,
}

impl Pair<'_> {
    /// Adds what these rows say about the tokens that follow them.
    pub(super) fn add(&self, scorer: &mut Scorer, targets: &[TokenId], sums: &mut Sums) {
        if targets.is_empty() {
            // No logits are written where none are asked for.
            return;
        }
        let mut nats =
            |logits: &[f32], target| -f64::from(scorer.score(logits, target, 0).logprobs.logprob);
        let rows = self.model.chunks_exact(self.vocab_size);
        for (i, (row, target)) in rows.zip(targets).enumerate() {
            sums.n_tokens += 1;
            sums.nats += nats(row, *target);
            if let Some(reference) = self.reference {
                let reference = &reference[i * self.vocab_size..][..self.vocab_size];
                sums.reference_nats += nats(reference, *target);
                sums.kl += divergence(reference, row);
                sums.n_agreed += usize::from(likeliest(reference) == likeliest(row));
            }
        }
    }
}

/// `Σ p (ln p - ln q)` of two rows of logits; never below zero but for a NaN.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_total, q_total) = (log_sum_exp(p), log_sum_exp(q));
    let mut sum = 0.0;
    for (&p, &q) in p.iter().zip(q) {
        let ln_p = f64::from(p) - p_total;
        let weight = ln_p.exp();
        if weight > 0.0 {
            sum += weight * (ln_p - (f64::from(q) - q_total));
        } else if weight.is_nan() {
            return f64::NAN;
        }
    }
    // Rounding may leave a little less than nothing.
    if sum.is_nan() { sum } else { sum.max(0.0) }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = f64::from(most);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    most + sum.ln()
}

/// The likeliest token, the lowest id among equals.
pub(super) fn likeliest(logits: &[f32]) -> Option<usize> {
    let better = |best: Option<usize>, (i, logit): (usize, &f32)| match best {
        Some(best) if logits[best] >= *logit => Some(best),
        _ if logit.is_nan() => best,
        _ => Some(i),
    };
    logits.iter().enumerate().fold(None, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_is_that_of_the_definition() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 ln 2 - 1/4 ln 2.
        let p = [2.0_f32.ln(), 0.0, 0.0];
        let q = [0.0, 0.0, 2.0_f32.ln()];
        assert!((divergence(&p, &q) - 0.25 * 2.0_f64.ln()).abs() < 1e-7);
        assert_eq!(divergence(&p, &p), 0.0);
        // Logits have no zero.
        let shifted = p.map(|logit| logit + 40.0);
        assert!(divergence(&p, &shifted) < 1e-6);
        assert_eq!(divergence(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]), 0.0);
        assert_eq!(divergence(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
        assert!(divergence(&[0.0, f32::NAN], &[0.0, 0.0]).is_nan());
        assert!(divergence(&[0.0, 0.0], &[0.0, f32::NAN]).is_nan());
    }

    #[test]
    fn the_lowest_of_equal_tokens_is_the_likeliest() {
        assert_eq!(likeliest(&[1.0, 5.0, 5.0]), Some(1));
        assert_eq!(likeliest(&[f32::NAN, -1.0, f32::NAN, 3.0]), Some(3));
        assert_eq!(likeliest(&[f32::NAN]), None);
    }

    #[test]
    fn rows_are_paired_with_their_tokens() {
        let model = [0.0, 3.0_f32.ln(), 0.0, 0.0];
        let reference = [0.0, 0.0, 0.0, 1.0];
        let pair = Pair { vocab_size: 2, model: &model, reference: Some(&reference) };
        let mut sums = Sums::default();
        pair.add(&mut Scorer::default(), &[TokenId(1), TokenId(0)], &mut sums);
        let expected = (4.0_f64 / 3.0).ln() + 2.0_f64.ln();
        assert!((sums.nats - expected).abs() < 1e-6, "{sums:?}");
        assert_eq!((sums.n_tokens, sums.n_agreed), (2, 0));
        pair.add(&mut Scorer::default(), &[], &mut sums);
        assert_eq!(sums.n_tokens, 2);
    }
}
