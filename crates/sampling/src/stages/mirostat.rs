//! Mirostat: cuts that keep the surprise of the text near a target.
//!
//! ```text
//! mu = 2 tau at first
//! row ──▶ cut by mu ──▶ token with probability p among those left
//!                       surprise = -log2 p          mu = mu - eta * (surprise - tau)
//! ```
//!
//! Version 2 drops the tokens whose surprise is above `mu`. Version 1 estimates Zipf's exponent `s`
//! from the [`N_ESTIMATED`] likeliest tokens and keeps as many as give the surprise `mu`:
//!
//! ```text
//! k = ((s - 1) 2^mu / (1 - n^(1 - s)))^(1 / s)          n: tokens of the vocabulary
//! ```
//!
//! The surprise is measured after the cut, as in llama.cpp; the paper measures it before. Bias,
//! penalties, DRY and masks apply before Mirostat, and so does a dynamic temperature; llama.cpp
//! leaves out penalties and DRY.
//!
//! **State.** `mu` follows the tokens that the sequence goes on with. A row leaves the probabilities
//! of its tokens with the state, and the next accepted token is looked up among them, so `mu` is a
//! function of the rows and tokens so far, whichever way the token was chosen: drawn, or decided by
//! the verification of drafts. A token without such a row, and one that no other token could
//! replace, leaves `mu` as it is (llama.cpp counts the latter as no surprise at all); so tokens that
//! a rule forces may skip their rows.
//!
//! Paper: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
//! Perplexity", ICLR 2021.

use super::Candidates;
use crate::math::{exp, ln_positive};
use crate::select::{self, id_of, logit_of};
use pelton_base::{Mirostat, TokenId};
use std::f64::consts::LN_2;

/// The likeliest tokens from which Zipf's exponent is estimated.
const N_ESTIMATED: usize = 100;

/// How far a sequence has come.
#[derive(Clone, Debug)]
pub(crate) struct MirostatState {
    settings: Mirostat,
    /// The surprise at which is cut, in bits.
    mu: f64,
    /// Tokens of the latest row and their weights, until one of them is accepted.
    row: Vec<(TokenId, f32)>,
    total: f64,
}

impl MirostatState {
    /// At the beginning of an answer.
    pub(crate) fn new(settings: Mirostat) -> Self {
        let mu = 2.0 * f64::from(settings.tau);
        Self { settings, mu, row: Vec::new(), total: 0.0 }
    }

    /// Cuts the candidates of the next row.
    pub(crate) fn cut(&mut self, candidates: &mut Candidates<'_>) {
        self.row.clear();
        self.row.reserve(candidates.n_vocab());
        if candidates.keys.len() < 2 {
            return;
        }
        match self.settings.version {
            1 => candidates.keep_zipf(self.mu),
            _ => candidates.keep_surprises(self.mu),
        }
        self.total = candidates.weigh();
        let left = candidates.keys.iter().zip(&*candidates.weights);
        self.row.extend(left.map(|(&key, &weight)| (TokenId(id_of(key) as u32), weight)));
    }

    /// Learns which token the sequence went on with.
    pub(crate) fn accepted(&mut self, token: TokenId) {
        let chosen = self.row.iter().find(|(id, weight)| *id == token && *weight > 0.0);
        if let Some(&(_, weight)) = chosen {
            let surprise = -ln_positive(f64::from(weight) / self.total) / LN_2;
            let Mirostat { tau, eta, .. } = self.settings;
            self.mu -= f64::from(eta) * (surprise - f64::from(tau));
        }
        self.row.clear();
    }

    /// A copy that continues on its own.
    pub(crate) fn fork(&self) -> Self {
        Self { row: Vec::new(), ..*self }
    }
}

impl Candidates<'_> {
    /// Version 1: keeps as many of the largest as have this surprise under Zipf's law.
    fn keep_zipf(&mut self, mu: f64) {
        self.scratch.clear();
        self.scratch.extend_from_slice(self.keys);
        let n = N_ESTIMATED.min(self.scratch.len());
        select::sort_largest(self.scratch, n);
        let x = |key: u64| f64::from(logit_of(key)) / f64::from(self.temperature);
        let (mut products, mut squares) = (0.0, 0.0);
        for (rank, pair) in (1..).zip(self.scratch[..n].windows(2)) {
            let step = ln_positive(f64::from(rank + 1) / f64::from(rank));
            products += step * (x(pair[0]) - x(pair[1]));
            squares += step * step;
        }
        let k = n_kept(products / squares, mu, self.n_vocab() as f64);
        self.keep_largest(k);
    }

    /// Version 2: keeps the tokens whose surprise is at most this.
    fn keep_surprises(&mut self, mu: f64) {
        let least = ln_positive(self.weigh()) - mu * LN_2;
        let (max, temperature) = (self.max(), self.temperature);
        self.keep_if(|logit| f64::from((logit - max) / temperature) >= least);
    }
}

/// Tokens to keep under Zipf's law with exponent `s`; at least 1.
fn n_kept(s: f64, mu: f64, n_vocab: f64) -> usize {
    let epsilon = s - 1.0;
    let ln_n = ln_positive(n_vocab);
    // `epsilon / (1 - n^-epsilon)`, which is above zero, and 1 / ln n at zero.
    let ratio = match epsilon.abs() < 1e-9 {
        true => 1.0 / ln_n,
        false => epsilon / (1.0 - exp(-epsilon * ln_n)),
    };
    let ln_k = (ln_positive(ratio) + mu * LN_2) / s;
    // A flat row has s = 0, which makes this infinite; NaN keeps all.
    match ln_k < ln_n {
        true => (exp(ln_k) as usize).max(1),
        false => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_tokens_is_that_of_the_papers_formula() {
        for (s, mu) in [(1.5_f64, 6.0_f64), (0.7, 3.0), (2.5, 10.0), (1.0 + 1e-7, 8.0)] {
            let n = 50_000.0_f64;
            let epsilon = s - 1.0;
            let k = (epsilon * mu.exp2() / (1.0 - n.powf(-epsilon))).powf(1.0 / s);
            let (got, k) = (n_kept(s, mu, n) as f64, k.max(1.0));
            assert!(got <= k * (1.0 + 1e-6) && got + 1.0 > k * (1.0 - 1e-6), "{got} of {k}");
        }
        // At s = 1 the formula has a limit, 2^mu / ln n.
        assert_eq!(n_kept(1.0, 8.0, 50_000.0), (256.0 / 50_000.0_f64.ln()) as usize);
        assert_eq!(n_kept(0.0, 20.0, 1000.0), usize::MAX, "flat and surprising enough");
        assert_eq!((n_kept(0.0, 5.0, 1000.0), n_kept(1.5, -50.0, 1000.0)), (1, 1));
        assert_eq!(n_kept(f64::NAN, 5.0, 1000.0), usize::MAX);
    }
}
