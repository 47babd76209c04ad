//! The codebook E8P12: 65536 vectors of eight weights, packed.
//!
//! ```text
//! code     16 bits: entry << 8 | signs
//! entry    of 256: vectors of 1/2, 3/2 and 5/2 without signs. First the 227 whose squares sum to 10 at
//!          most, in ascending order, then 29 of the norm 12 (five of 3/2, three of 1/2)
//! signs    bit `SLOT[i]` is that of weight i. Their parity is not stored but used: where it is odd, bit
//!          0 is turned and 1/4 is taken off every weight, else 1/4 is added. Weight 7 is turned
//!          once more where the entry's sum is odd.
//! ```
//!
//! Every weight is a multiple of 1/4 and at most 11/4 in magnitude. Codes lie in words of 64 bits
//! as a GPU wants them: see [`Codes`].
//!
//! # Paper
//!
//! Tseng et al., *QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice
//! Codebooks*, 2024.

/// Weights of a vector.
pub(super) const DIM: usize = 8;
/// Bit of the sign of each weight.
const SLOT: [usize; DIM] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Weights that are 3/2 in each entry of norm 12; the first weight is the highest of eight bits.
const NORM_12: [u8; 29] = [
    0x8f, 0x4f, 0x2f, 0x1f, 0xec, 0xea, 0xe6, 0xe9, 0xe5, 0xe3, 0xdc, 0xda, 0xd6, 0xd9, 0xd5, 0xd3,
    0xbc, 0xba, 0xb6, 0xb9, 0xb5, 0x73, 0x7c, 0x7a, 0x76, 0x79, 0x75, 0x37, 0xce,
];

/// The 256 entries, in halves: odd numbers.
#[derive(Clone, Debug)]
pub(super) struct Codebook(Vec<[i8; DIM]>);

impl Codebook {
    pub(super) fn new() -> Self {
        let mut entries: Vec<[i8; DIM]> = Vec::with_capacity(256);
        // Digits of a number of base 3, so in ascending order.
        for number in 0..3_usize.pow(DIM as u32) {
            let digit = |i: usize| (number / 3_usize.pow((DIM - 1 - i) as u32) % 3) as i8;
            let entry: [i8; DIM] = std::array::from_fn(|i| 2 * digit(i) + 1);
            let norm: i32 = entry.iter().map(|x| i32::from(*x).pow(2)).sum();
            if norm <= 4 * 10 {
                entries.push(entry);
            }
        }
        entries.extend(NORM_12.map(|mask| {
            std::array::from_fn(|i| if mask >> (DIM - 1 - i) & 1 == 1 { 3 } else { 1 })
        }));
        Self(entries)
    }

    /// The weights of a code.
    pub(super) fn vector(&self, code: u16) -> [f32; DIM] {
        let entry = &self.0[usize::from(code >> 8)];
        let is_odd_sum = entry.iter().map(|x| i32::from(*x)).sum::<i32>() % 4 == 2;
        let signs = code as u8;
        let is_odd = signs.count_ones() % 2 == 1;
        let signs = signs ^ u8::from(is_odd);
        std::array::from_fn(|i| {
            let is_turned = (signs >> SLOT[i] & 1 == 1) ^ (i == DIM - 1 && is_odd_sum);
            let half = f32::from(entry[i]) * 0.5;
            (if is_turned { -half } else { half }) + if is_odd { -0.25 } else { 0.25 }
        })
    }
}

/// Codes of a matrix `[m, k]` as they are stored.
///
/// ```text
/// word     of two rows and two vectors: the low half their entries, a byte each, the two rows of the
///          first vector and then those of the second; in the high half bit 4 j + i is sign j of the ith
/// words    in blocks of 8 pairs of rows by 4 pairs of vectors, both row-major
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes<'a> {
    words: &'a [u8],
    /// Blocks along a row: 64 weights each.
    n_blocks: usize,
}

/// Outputs and inputs of a block of words.
pub(super) const BLOCK: [usize; 2] = [16, 64];

impl<'a> Codes<'a> {
    /// Codes of rows of `k` weights, whole blocks, from words `[rows, k / 32]`.
    pub(super) fn new(words: &'a [u8], k: usize) -> Self {
        Self { words, n_blocks: k / BLOCK[1] }
    }

    /// The code of vector `vector` of row `row`.
    pub(super) fn code(&self, row: usize, vector: usize) -> u16 {
        let block = row / 16 * self.n_blocks + vector / 8;
        let index = block * 32 + row % 16 / 2 * 4 + vector % 8 / 2;
        let word = u64::from_le_bytes(self.words.as_chunks().0[index]);
        let i = row % 2 + vector % 2 * 2;
        let entry = (word >> (8 * i)) as u8;
        let signs = (0..8).map(|j| (word >> (32 + 4 * j + i) & 1) << j).sum::<u64>();
        u16::from(entry) << 8 | signs as u16
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_codebook_has_65536_different_vectors_of_the_lattice() {
        let book = Codebook::new();
        assert_eq!(book.0.len(), 256);
        let mut seen = BTreeSet::new();
        for code in 0..=u16::MAX {
            let vector = book.vector(code);
            let quarters = vector.map(|x| (x * 4.0) as i32);
            assert!(quarters.iter().zip(vector).all(|(q, x)| *q as f32 == x * 4.0));
            // E8 + 1/4: without the quarter all are halves, and their sum is even.
            let shift = if (code as u8).count_ones() % 2 == 1 { -1 } else { 1 };
            let halves = quarters.map(|q| q - shift);
            assert!(halves.iter().all(|h| h % 4 == 2 || h % 4 == -2), "{code}: {halves:?}");
            assert_eq!(halves.iter().sum::<i32>() % 8, 0, "{code}: {halves:?}");
            seen.insert(quarters);
        }
        assert_eq!(seen.len(), 1 << 16);
    }
}
