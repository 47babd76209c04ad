//! Beam search by its definition, as a reference: whole answers in lists, sorted anew at every step.

use std::cmp::Ordering;

use pelton_base::TokenId;

/// Parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct NaiveBeams<'a> {
    /// Live beams, and answers that are kept.
    pub width: usize,
    /// Exponent of the length.
    pub length_penalty: f64,
    /// `Some(true)` ends a search at `width` answers, `Some(false)` when the best live beam is no
    /// better than the last of them; `None` never does.
    pub stops_early: Option<bool>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Most tokens of an answer.
    pub n_most: usize,
    /// Tokens that end an answer.
    pub ends: &'a [TokenId],
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct NaiveBeam {
    /// Its tokens, with the one that ends it.
    pub tokens: Vec<TokenId>,
    /// Sum of the log probabilities.
    pub sum: f64,
    /// The sum by the length to the power of the penalty.
    pub score: f64,
    /// Whether a token ended it.
    pub is_stopped: bool,
}

struct Candidate {
    tokens: Vec<TokenId>,
    sum: f64,
    beam: usize,
}

impl Candidate {
    fn order(&self, other: &Self) -> Ordering {
        let ties = |it: &Self| (it.tokens.last().copied(), it.beam);
        other.sum.total_cmp(&self.sum).then(ties(self).cmp(&ties(other)))
    }
}

impl NaiveBeams<'_> {
    /// The answers, the best first. `next` gives the log probability of every token of the vocabulary
    /// after the tokens of an answer; minus infinity where a token may not come next.
    pub fn search(&self, mut next: impl FnMut(&[TokenId]) -> Vec<f64>) -> Vec<NaiveBeam> {
        let mut live = vec![(Vec::new(), 0.0)];
        let mut done = Vec::new();
        for n_tokens in 1..=self.n_most {
            let mut candidates = Vec::new();
            for (beam, (tokens, sum)) in live.iter().enumerate() {
                candidates.extend(self.candidates(beam, tokens, *sum, &next(tokens)));
            }
            candidates.sort_by(Candidate::order);
            let ends = |it: &Candidate| self.ends.contains(it.tokens.last().expect("a token"));
            let (stopped, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(ends);
            done.extend(stopped.into_iter().map(|it| self.answer(it.tokens, it.sum, true)));
            live = rest.into_iter().take(self.width).map(|it| (it.tokens, it.sum)).collect();
            // At the end all live beams are answers too, and the best of all count.
            let is_end = live.is_empty() || n_tokens == self.n_most;
            if !is_end && self.is_enough(&mut done, live[0].1, n_tokens) {
                live.clear();
                break;
            }
        }
        done.extend(live.into_iter().map(|(tokens, sum)| self.answer(tokens, sum, false)));
        sort(&mut done);
        done.truncate(self.width);
        done
    }

    /// The likeliest `2 * width` tokens after a beam.
    fn candidates(
        &self,
        beam: usize,
        tokens: &[TokenId],
        sum: f64,
        logprobs: &[f64],
    ) -> Vec<Candidate> {
        let mut ids: Vec<usize> =
            (0..logprobs.len()).filter(|&id| logprobs[id].is_finite()).collect();
        ids.sort_by(|&a, &b| logprobs[b].total_cmp(&logprobs[a]).then(a.cmp(&b)));
        ids.truncate(2 * self.width);
        let candidate = |id: usize| {
            let tokens = tokens.iter().copied().chain([TokenId(id as u32)]).collect();
            Candidate { tokens, sum: sum + logprobs[id], beam }
        };
        ids.into_iter().map(candidate).collect()
    }

    fn is_enough(&self, done: &mut [NaiveBeam], best: f64, n_tokens: usize) -> bool {
        sort(done);
        match (self.stops_early, done.get(self.width - 1)) {
            (Some(true), Some(_)) => true,
            (Some(false), Some(worst)) => worst.score >= self.score(best, n_tokens),
            _ => false,
        }
    }

    fn score(&self, sum: f64, n_counted: usize) -> f64 {
        sum / ((self.n_prompt + n_counted) as f64).powf(self.length_penalty)
    }

    fn answer(&self, tokens: Vec<TokenId>, sum: f64, is_stopped: bool) -> NaiveBeam {
        let score = self.score(sum, tokens.len() - usize::from(is_stopped));
        NaiveBeam { tokens, sum, score, is_stopped }
    }
}

/// The best first; a stable sort keeps equals in order.
fn sort(done: &mut [NaiveBeam]) {
    done.sort_by(|a, b| b.score.total_cmp(&a.score));
}

/// The logarithm of the softmax of a row of logits; NaN is impossible.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let logits = || logits.iter().map(|&logit| f64::from(logit));
    let max = logits().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits().filter(|logit| !logit.is_nan()).map(|logit| (logit - max).exp()).sum();
    let logprob =
        |logit: f64| if logit.is_nan() { f64::NEG_INFINITY } else { logit - max - sum.ln() };
    logits().map(logprob).collect()
}
