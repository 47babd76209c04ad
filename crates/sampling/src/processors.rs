//! Processors, which reshape a row of logits before a token is chosen from it.

use pelton_base::TokenId;

/// The place of a row in its sequence.
#[derive(Clone, Copy, Debug)]
pub struct RowContext {
    /// Output tokens before this one.
    pub n_generated: usize,
}

/// Reshapes logits: a grammar mask, a penalty or a bias.
///
/// Processors see logits as the model made them, NaN and infinities included, and apply in the
/// order in which [`SamplerState`](crate::SamplerState) holds them. Ids beyond the row are ignored.
pub trait LogitsProcessor: std::fmt::Debug + Send {
    /// Changes `logits`, shape `[vocab]`, in place.
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]);

    /// Learns which token the sequence went on with.
    fn accepted(&mut self, token: TokenId);

    /// Allocates the memory that `n_tokens` more accepted tokens can need.
    fn reserve(&mut self, n_tokens: usize);

    /// Whether the largest logit stays the largest, now and whatever is accepted later; greedy rows
    /// then skip it, and may never have logits (see
    /// [`SamplerState::takes_largest`](crate::SamplerState::takes_largest)). Once true, it stays
    /// so.
    fn preserves_argmax(&self) -> bool;

    /// A copy that continues on its own, to draft with.
    fn fork(&self) -> Box<dyn LogitsProcessor>;
}

/// Adds to the logits of single tokens.
#[derive(Clone, Debug)]
pub struct LogitBias(Vec<(TokenId, f32)>);

impl LogitBias {
    /// Adds each bias to its token's logit, in the order given.
    pub fn new(biases: Vec<(TokenId, f32)>) -> Self {
        Self(biases)
    }
}

impl LogitsProcessor for LogitBias {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        for &(token, bias) in &self.0 {
            if let Some(logit) = logits.get_mut(token.0 as usize) {
                *logit += bias;
            }
        }
    }

    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        self.0.is_empty()
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowContext = RowContext { n_generated: 0 };

    #[test]
    fn a_bias_beyond_the_vocabulary_is_ignored() {
        let mut logits = [0.0; 2];
        LogitBias::new(vec![(TokenId(1), 3.0), (TokenId(2), 5.0)]).apply(&ROW, &mut logits);
        assert_eq!(logits, [0.0, 3.0]);
    }
}
