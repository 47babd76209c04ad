//! The likeliest tokens of a row, from which drafts are made.

use crate::select;
use pelton_base::TokenId;

/// Finds the largest logits of rows; holds scratch.
#[derive(Debug, Default)]
pub struct Likely {
    keys: Vec<u64>,
}

impl Likely {
    /// In place of a token, where a row has too few that are possible.
    pub const NONE: TokenId = TokenId(u32::MAX);

    /// Appends the ids of the `n` largest logits to `tokens`, the largest first, the lower id among
    /// equals; always `n`, with [`Likely::NONE`] at the end where fewer are above minus infinity.
    ///
    /// # Shapes
    ///
    /// `logits`: `[vocab]`.
    pub fn tell(&mut self, logits: &[f32], n: usize, tokens: &mut Vec<TokenId>) {
        select::largest(logits, n, &mut self.keys);
        tokens.extend(self.keys.iter().map(|&key| TokenId(select::id_of(key) as u32)));
        tokens.extend(std::iter::repeat_n(Self::NONE, n - self.keys.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_a_row_is_always_full() {
        let (mut likely, mut tokens) = (Likely::default(), Vec::new());
        likely.tell(&[1.0, 3.0, f32::NEG_INFINITY, 3.0], 2, &mut tokens);
        likely.tell(&[f32::NAN, f32::NEG_INFINITY, 0.5], 2, &mut tokens);
        assert_eq!(tokens, [TokenId(1), TokenId(3), TokenId(2), Likely::NONE]);
    }
}
