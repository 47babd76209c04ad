//! The 64 bytes of `Q2_K`, `Q3_K` and `TQ2_0` that hold 256 pairs of bits.
//!
//! ```text
//! bits 2 p.. of byte 32 h + i: weight 128 h + 32 p + i      h = 0..2, p = 0..4, i = 0..32
//! ```

/// The bytes of pairs below 4.
pub(super) fn store(pairs: &[u8; 256]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (i, &pair) in pairs.iter().enumerate() {
        bytes[i / 128 * 32 + i % 32] |= pair << (i / 32 % 4 * 2);
    }
    bytes
}

/// The pair of weight `i`.
pub(super) fn load(bytes: &[u8; 64], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}
