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
pub(crate) const DIM: usize = 8;
/// Bit of the sign of each weight.
const SLOT: [usize; DIM] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Weights that are 3/2 in each entry of norm 12; the first weight is the highest of eight bits.
const NORM_12: [u8; 29] = [
    0x8f, 0x4f, 0x2f, 0x1f, 0xec, 0xea, 0xe6, 0xe9, 0xe5, 0xe3, 0xdc, 0xda, 0xd6, 0xd9, 0xd5, 0xd3,
    0xbc, 0xba, 0xb6, 0xb9, 0xb5, 0x73, 0x7c, 0x7a, 0x76, 0x79, 0x75, 0x37, 0xce,
];

/// The 256 entries, in halves: odd numbers.
#[derive(Clone, Debug)]
pub(crate) struct Codebook(Vec<[i8; DIM]>);

impl Codebook {
    pub(crate) fn new() -> Self {
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
    pub(crate) fn vector(&self, code: u16) -> [f32; DIM] {
        let entry = &self.0[usize::from(code >> 8)];
        let is_odd_sum = has_odd_sum(entry);
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

/// The vector of the codebook that is nearest to eight weights.
///
/// For each of the two shifts by 1/4, entries are compared with the magnitudes of what is left. Where
/// an entry's parity does not fit that of the signs, the sign that costs least is turned.
#[derive(Clone, Debug)]
pub(crate) struct Nearest {
    book: Codebook,
    /// Entries side by side: `[DIM][256]`.
    entries: Box<[[f32; 256]; DIM]>,
    norms: [f32; 256],
    /// The cost of turning a sign, per magnitude, where the signs' parity is even, and where it is odd.
    turning: [[f32; 256]; 2],
}

impl Nearest {
    pub(crate) fn new() -> Self {
        let book = Codebook::new();
        let mut entries = Box::new([[0.0; 256]; DIM]);
        let (mut norms, mut turning) = ([0.0; 256], [[0.0; 256]; 2]);
        for (e, entry) in book.0.iter().enumerate() {
            for (i, x) in entry.iter().enumerate() {
                let half = f32::from(*x) * 0.5;
                entries[i][e] = half;
                norms[e] += half * half;
            }
            turning[usize::from(!has_odd_sum(entry))][e] = 4.0;
        }
        Self { book, entries, norms, turning }
    }

    /// The code and the vector nearest to `x`.
    pub(crate) fn code(&self, x: &[f32; DIM]) -> (u16, [f32; DIM]) {
        let (up, down) = (self.shifted(x, 0.25), self.shifted(x, -0.25));
        let code = if down.0 < up.0 { down.1 } else { up.1 };
        (code, self.book.vector(code))
    }

    /// The weights of a code.
    pub(crate) fn vector(&self, code: u16) -> [f32; DIM] {
        self.book.vector(code)
    }

    /// The nearest vector with this shift: its squared distance, and its code.
    fn shifted(&self, x: &[f32; DIM], shift: f32) -> (f32, u16) {
        let left = x.map(|x| x - shift);
        let magnitudes = left.map(f32::abs);
        let is_odd = left.iter().filter(|x| **x < 0.0).count() % 2 == 1;
        let (mut scores, mut least) = (self.norms, [f32::INFINITY; 256]);
        for (entries, magnitude) in self.entries.iter().zip(magnitudes) {
            for ((score, least), entry) in scores.iter_mut().zip(&mut least).zip(entries) {
                let product = magnitude * entry;
                *score -= 2.0 * product;
                *least = least.min(product);
            }
        }
        let costs = &self.turning[usize::from(is_odd)];
        for ((score, least), cost) in scores.iter_mut().zip(&least).zip(costs) {
            *score += cost * least;
        }
        let mut best = 0;
        for (e, score) in scores.iter().enumerate() {
            if *score < scores[best] {
                best = e;
            }
        }
        let entry = &self.book.0[best];
        let mut is_negative = left.map(|x| x < 0.0);
        if has_odd_sum(entry) != is_odd {
            let cost = |i: &usize| magnitudes[*i] * self.entries[*i][best];
            let cheapest = (0..DIM).min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("eight");
            is_negative[cheapest] = !is_negative[cheapest];
        }
        let mut signs = 0;
        for (i, is_negative) in is_negative.into_iter().enumerate() {
            let is_turned = is_negative ^ (i == DIM - 1 && has_odd_sum(entry));
            signs |= u16::from(is_turned) << SLOT[i];
        }
        let norm: f32 = left.iter().map(|x| x * x).sum();
        (norm + scores[best], (best as u16) << 8 | signs ^ u16::from(shift < 0.0))
    }
}

/// Whether the weights of an entry sum to an odd number.
fn has_odd_sum(entry: &[i8; DIM]) -> bool {
    entry.iter().map(|x| i32::from(*x)).sum::<i32>() % 4 == 2
}

/// Codes of a matrix `[m, k]` as they are stored.
///
/// ```text
/// word     of two rows and two vectors: the low half their entries, a byte each, the two rows of the
///          first vector and then those of the second; in the high half bit 4 j + i is sign j of the ith
/// words    in blocks of 8 pairs of rows by 4 pairs of vectors, both row-major
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<'a> {
    words: &'a [u8],
    /// Blocks along a row: 64 weights each.
    n_blocks: usize,
}

/// Outputs and inputs of a block of words.
pub(crate) const BLOCK: [usize; 2] = [16, 64];

impl<'a> Codes<'a> {
    /// Codes of rows of `k` weights, whole blocks, from words `[rows, k / 32]`.
    pub(crate) fn new(words: &'a [u8], k: usize) -> Self {
        Self { words, n_blocks: k / BLOCK[1] }
    }

    /// The code of vector `vector` of row `row`.
    pub(crate) fn code(&self, row: usize, vector: usize) -> u16 {
        let (index, i) = place(row, vector, self.n_blocks);
        let word = u64::from_le_bytes(self.words.as_chunks().0[index]);
        let entry = (word >> (8 * i)) as u8;
        let signs = (0..8).map(|j| (word >> (32 + 4 * j + i) & 1) << j).sum::<u64>();
        u16::from(entry) << 8 | signs as u16
    }
}

/// Codes `[n, k / 8]` as they are stored, each row's words after those of the row before.
///
/// # Panics
///
/// When these are not whole blocks.
pub(crate) fn packed(codes: &[u16], [n, k]: [usize; 2]) -> Vec<u64> {
    assert!(n.is_multiple_of(BLOCK[0]) && k.is_multiple_of(BLOCK[1]), "whole blocks");
    let mut words = vec![0_u64; n * k / 32];
    for (row, codes) in codes.chunks_exact(k / DIM).enumerate() {
        for (vector, code) in codes.iter().enumerate() {
            let (index, i) = place(row, vector, k / BLOCK[1]);
            words[index] |= u64::from(code >> 8) << (8 * i);
            for j in 0..8 {
                words[index] |= u64::from(code >> j & 1) << (32 + 4 * j + i);
            }
        }
    }
    words
}

/// The word of a vector, and which of its four codes is that of the vector.
fn place(row: usize, vector: usize, n_blocks: usize) -> (usize, usize) {
    let block = row / 16 * n_blocks + vector / 8;
    (block * 32 + row % 16 / 2 * 4 + vector % 8 / 2, row % 2 + vector % 2 * 2)
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

    /// Numbers like those of a normal distribution, with some far out.
    fn vectors(n: usize) -> impl Iterator<Item = [f32; DIM]> {
        let mut state = 1_u32;
        let mut next = move || {
            let mut sum = 0.0;
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                sum += (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            }
            2.0 * sum
        };
        (0..n).map(move |i| std::array::from_fn(|_| next() * if i % 10 == 9 { 4.0 } else { 1.0 }))
    }

    #[test]
    fn the_nearest_vector_is_found() {
        let (book, nearest) = (Codebook::new(), Nearest::new());
        let distance = |a: &[f32; DIM], b: &[f32; DIM]| -> f32 {
            a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
        };
        let edges = [[0.0; DIM], [0.25; DIM], [-0.25; DIM], [1e3; DIM]];
        for x in vectors(200).chain(edges) {
            let (code, vector) = nearest.code(&x);
            assert_eq!(vector, book.vector(code));
            let all = (0..=u16::MAX).map(|code| distance(&x, &book.vector(code)));
            let least = all.fold(f32::INFINITY, f32::min);
            let own = distance(&x, &vector);
            assert!(own <= least + 1e-5 * (1.0 + least), "{x:?}: {own} {least}");
        }
    }

    #[test]
    fn packed_codes_are_read_back() {
        let [n, k] = [32, 192];
        let codes: Vec<u16> = (0..n * k / DIM).map(|i| (i * 40_503 % 65_521) as u16).collect();
        let words = packed(&codes, [n, k]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (i, code) in codes.iter().enumerate() {
            let found = Codes::new(&bytes, k).code(i / (k / DIM), i % (k / DIM));
            assert_eq!(found, *code, "{i}");
        }
    }
}
