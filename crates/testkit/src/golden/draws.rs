//! Random numbers that the generators of fixtures and these tests draw alike.

use std::ops::Range;

/// Numbers of a seed between two bounds, as the bits of bf16; `crates/model/tests/stored.py` defines
/// them.
pub(super) fn drawn(
    seed: u64,
    numbers: Range<u64>,
    low: f64,
    high: f64,
) -> impl Iterator<Item = u16> {
    numbers.map(move |i| {
        let part = ((split_mix(seed, i) >> 40) as f64 + 0.5) / f64::from(1 << 24);
        rounded((low + (high - low) * part) as f32)
    })
}

/// Output `i` of SplitMix64.
fn split_mix(seed: u64, i: u64) -> u64 {
    let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The nearest bf16, of two the one whose last bit is 0.
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_has_the_published_outputs() {
        // The reference implementation, seeded with 1234567.
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([0, 1, 2].map(|i| split_mix(1_234_567, i)), expected);
    }

    #[test]
    fn numbers_fill_the_space_between_their_bounds() {
        let values: Vec<f32> =
            drawn(7, 0..10_000, -1.0, 3.0).map(|x| f32::from_bits(u32::from(x) << 16)).collect();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let [least, most] = [f32::min, f32::max].map(|f| values.iter().copied().fold(1.0, f));
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        assert!((-1.0..-0.99).contains(&least) && most > 2.99 && most <= 3.0, "{least} {most}");
    }
}
