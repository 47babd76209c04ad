//! The 20 bytes of `Q5_0` and `Q5_1` that hold 32 integers of 5 bits.

use bytemuck::{Pod, Zeroable};

/// Weights per block.
pub(super) const BLOCK_LEN: usize = 32;

/// Bit `i` of `high`, a little-endian word, above the nibble of integer `i`; `low` holds `i` and
/// `i + 16` in one byte.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FiveBits {
    high: [u8; 4],
    low: [u8; BLOCK_LEN / 2],
}

/// Packs integers below 32.
pub(super) fn store(q: &[u8; BLOCK_LEN]) -> FiveBits {
    let word = q.iter().enumerate().fold(0_u32, |word, (i, q)| word | u32::from(q >> 4) << i);
    FiveBits {
        high: word.to_le_bytes(),
        low: std::array::from_fn(|j| q[j] & 15 | q[j + BLOCK_LEN / 2] << 4),
    }
}

/// The integers.
pub(super) fn load(bits: &FiveBits) -> [u8; BLOCK_LEN] {
    let word = u32::from_le_bytes(bits.high);
    std::array::from_fn(|i| {
        let low = bits.low[i % (BLOCK_LEN / 2)] >> (i / (BLOCK_LEN / 2) * 4) & 15;
        low | ((word >> i & 1) as u8) << 4
    })
}
