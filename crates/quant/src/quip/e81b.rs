//! The codebook E81B: 256 vectors of eight weights, the finer part of E8P12RVQ3B.
//!
//! ```text
//! entries   0 .. 113     0 and the vectors of ±1 twice and 0, in ascending order: 0 lies among them
//!         113 .. 241     the vectors of ±1/2 whose sum is even, in ascending order
//!         241 .. 256     2 in one place, then -2 in one place but the last: they fill the byte
//! word      64 bits: eight vectors side by side of a row, the first one's entry lowest
//! ```
//!
//! The first 241 are the origin and the shortest vectors of E8.

use super::e8p::DIM;

/// Weights of a word.
pub(crate) const WORD: usize = 64;

/// The entries, in halves.
#[derive(Clone, Debug)]
pub(crate) struct Finer(Vec<[i8; DIM]>);

impl Finer {
    pub(crate) fn new() -> Self {
        // Halves of `-least`, `least - step` and so on: digits of a number, so in ascending order.
        let vectors = |base: usize, step: i8, least: i8| {
            (0..base.pow(DIM as u32)).map(move |number| {
                std::array::from_fn(|i| {
                    let digit = number / base.pow((DIM - 1 - i) as u32) % base;
                    least + step * digit as i8
                })
            })
        };
        let is_short = |entry: &[i8; DIM]| {
            let (sum, norm) = entry
                .iter()
                .fold((0, 0), |(sum, norm), x| (sum + i32::from(*x), norm + i32::from(*x).pow(2)));
            norm <= 4 * 2 && sum % 4 == 0
        };
        let long = [4, -4].into_iter().flat_map(|x| {
            (0..DIM).map(move |place| std::array::from_fn(|i| if i == place { x } else { 0 }))
        });
        let short = vectors(3, 2, -2).chain(vectors(2, 2, -1)).filter(is_short);
        Self(short.chain(long).take(256).collect())
    }

    /// The entry nearest to `x`, and its weights.
    pub(crate) fn nearest(&self, x: &[f32; DIM]) -> (u8, [f32; DIM]) {
        let distance = |entry: &[i8; DIM]| -> f32 {
            let apart = entry.iter().zip(x).map(|(half, x)| f32::from(*half) * 0.5 - x);
            apart.map(|x| x * x).sum()
        };
        let distances = self.0.iter().map(distance).enumerate();
        let (best, _) = distances.min_by(|a, b| a.1.total_cmp(&b.1)).expect("256 entries");
        (best as u8, self.vector(best as u8))
    }

    /// The weights of an entry.
    pub(crate) fn vector(&self, entry: u8) -> [f32; DIM] {
        self.0[usize::from(entry)].map(|half| f32::from(half) * 0.5)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_codebook_has_the_shortest_vectors_of_the_lattice_and_fifteen_more() {
        let book = Finer::new();
        assert_eq!(book.0.len(), 256);
        assert_eq!(book.0.iter().collect::<BTreeSet<_>>().len(), 256);
        for (entries, norm) in [(0..241, 2.0), (241..256, 4.0)] {
            for entry in entries {
                let vector = book.vector(entry as u8);
                let own: f32 = vector.iter().map(|x| x * x).sum();
                assert!(own == norm || (own == 0.0 && entry == 56), "{entry}: {vector:?}");
                assert_eq!(vector.iter().sum::<f32>() % 2.0, 0.0, "{entry}: {vector:?}");
                let is_whole = vector.iter().all(|x| x.fract() == 0.0);
                assert!(is_whole || vector.iter().all(|x| x.abs() == 0.5), "{entry}");
            }
        }
        assert_eq!(book.vector(0), [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(book.vector(113), [-0.5; DIM]);
        assert_eq!(book.vector(240), [0.5; DIM]);
        assert_eq!(book.vector(255), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -2.0, 0.0]);
    }
}
