//! A random generator without state: Philox4x32-10.
//!
//! Ten rounds of multiply and mix turn a 128-bit counter into 128 random bits under a 64-bit key.
//!
//! ```text
//! key      seed, low | seed, high
//! counter  position, low | position, high | choice | stream (8 bits), index in it (24 bits)
//! ```
//!
//! Paper: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, §3.3.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Golden ratio and √3 − 1: added to the key after each round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const N_ROUNDS: usize = 10;

/// The bijection itself: `counter` to random words, under `key`.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..N_ROUNDS {
        let product_0 = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let product_1 = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (product_1 >> 32) as u32 ^ counter[1] ^ key[0],
            product_1 as u32,
            (product_0 >> 32) as u32 ^ counter[3] ^ key[1],
            product_0 as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The use of a random number. Numbers of different streams are independent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Stream {
    /// The token at a position, as plain decoding draws it.
    Token = 0,
    /// A guess of it; the index is its place among the guesses for this position.
    Draft = 1,
    /// Whether a guess is accepted; the index is that of the guess.
    Accept = 2,
    /// The token at a position whose guesses were all rejected.
    Recovered = 3,
    /// Whether XTC applies to the token at a position.
    Exclude = 4,
}

/// The random numbers of one sequence: key `seed`, counter `(position, choice)`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Philox {
    seed: u64,
    choice: u32,
}

impl Philox {
    /// Names the sequence of random numbers of one choice under one seed.
    pub fn new(seed: u64, choice: u32) -> Self {
        Self { seed, choice }
    }

    /// The uniform number in `[0, 1)` for the output token at `position`; a multiple of 2⁻⁵³.
    pub fn uniform(&self, position: u64) -> f64 {
        self.uniform_of(Stream::Token, position, 0)
    }

    /// The number of a stream at a position, one of those that the stream has there.
    ///
    /// # Panics
    ///
    /// If `index` is 2²⁴ or more.
    pub fn uniform_of(&self, stream: Stream, position: u64, index: u32) -> f64 {
        assert!(index < 1 << 24, "24 bits of the counter number the draws of a position");
        let stream = stream as u32 | index << 8;
        let counter = [position as u32, (position >> 32) as u32, self.choice, stream];
        let words = philox4x32_10(counter, [self.seed as u32, (self.seed >> 32) as u32]);
        let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
        bits as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_known_answers_come_out() {
        // The three `philox4x32 10` lines of Random123's `kat_vectors`.
        let ones = u32::MAX;
        let known = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in known {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn seed_choice_position_and_stream_each_change_the_number() {
        let numbers = [
            Philox::new(1, 0).uniform(0),
            Philox::new(2, 0).uniform(0),
            Philox::new(1 | 1 << 32, 0).uniform(0),
            Philox::new(1, 1).uniform(0),
            Philox::new(1, 0).uniform(1),
            Philox::new(1, 0).uniform(1 << 32),
            Philox::new(1, 0).uniform_of(Stream::Draft, 0, 0),
            Philox::new(1, 0).uniform_of(Stream::Draft, 0, 1),
            Philox::new(1, 0).uniform_of(Stream::Accept, 0, 0),
            Philox::new(1, 0).uniform_of(Stream::Accept, 0, (1 << 24) - 1),
            Philox::new(1, 0).uniform_of(Stream::Recovered, 0, 0),
            Philox::new(1, 0).uniform_of(Stream::Exclude, 0, 0),
        ];
        for (i, a) in numbers.iter().enumerate() {
            assert!((0.0..1.0).contains(a));
            assert!(numbers[..i].iter().all(|b| a != b), "{numbers:?}");
        }
    }

    #[test]
    fn a_million_numbers_are_uniform() {
        let rng = Philox::new(7, 0);
        let mut bins = [0_u32; 100];
        for position in 0..1_000_000 {
            bins[(rng.uniform(position) * 100.0) as usize] += 1;
        }
        let chi_square: f64 = bins.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        // 99 degrees of freedom: mean 99, standard deviation 14.
        assert!((60.0..150.0).contains(&chi_square), "{chi_square}");
    }
}
