//! Prompts of random tokens.

use pelton_base::TokenId;

/// Random token ids of a vocabulary; every process draws the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct RandomTokens {
    state: u64,
    vocab_size: u64,
}

impl RandomTokens {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { state: 0, vocab_size: vocab_size as u64 }
    }

    /// The next `n`; the generator is splitmix64 (Steele, Lea and Flood, 2014).
    pub(crate) fn take(&mut self, n: usize) -> Vec<TokenId> {
        let mut next = || {
            self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut x = self.state;
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            TokenId(((x ^ (x >> 31)) % self.vocab_size) as u32)
        };
        (0..n).map(|_| next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_below_the_vocabulary_and_never_the_same_prompt_twice() {
        let mut random = RandomTokens::new(300);
        let (a, b) = (random.take(64), random.take(64));
        assert!(a.iter().chain(&b).all(|token| token.0 < 300));
        assert_ne!(a, b);
        assert_eq!(a, RandomTokens::new(300).take(64));
    }
}
