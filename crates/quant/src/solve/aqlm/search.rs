//! The sum of entries that is nearest to a vector, in a metric that is the same for many rows.

use super::books::Books;
use super::{DIM, N_ENTRIES};

/// Partial sums that are followed.
const BEAM: usize = 8;
/// Codebooks at most.
pub(super) const MOST_BOOKS: usize = 8;

/// One code per codebook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    codes: [u8; MOST_BOOKS],
    n: usize,
}

impl Codes {
    pub(super) fn of(codes: &[u8]) -> Self {
        let mut own = Self { codes: [0; MOST_BOOKS], n: codes.len() };
        own.codes[..codes.len()].copy_from_slice(codes);
        own
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.codes[..self.n]
    }
}

/// A sum on its way.
#[derive(Clone, Copy)]
struct Partial {
    /// Squared distance.
    distance: f32,
    codes: Codes,
    /// The vector less the entries so far.
    rest: [f32; DIM],
}

/// Entries of all codebooks, multiplied by a matrix: distances between them are those of the metric.
pub(super) struct Search {
    turn: [[f32; DIM]; DIM],
    tables: Vec<Table>,
}

/// The entries of one codebook.
struct Table {
    /// `[DIM][256]`.
    columns: Box<[[f32; N_ENTRIES]; DIM]>,
    norms: [f32; N_ENTRIES],
}

impl Search {
    /// With distances as they are.
    pub(super) fn plain(books: &Books) -> Self {
        let unit = |i: usize| std::array::from_fn(|j| if i == j { 1.0 } else { 0.0 });
        Self::behind(books, &std::array::from_fn(unit))
    }

    /// With distances `|x T|²`.
    pub(super) fn behind(books: &Books, turn: &[[f32; DIM]; DIM]) -> Self {
        let table = |entries: &[f32]| {
            let mut table =
                Table { columns: Box::new([[0.0; N_ENTRIES]; DIM]), norms: [0.0; N_ENTRIES] };
            for (e, entry) in entries.as_chunks::<DIM>().0.iter().enumerate() {
                for (j, x) in times(entry, turn).into_iter().enumerate() {
                    table.columns[j][e] = x;
                    table.norms[e] += x * x;
                }
            }
            table
        };
        Self { turn: *turn, tables: books.each().map(table).collect() }
    }

    /// `x T`.
    pub(super) fn turned(&self, x: &[f32; DIM]) -> [f32; DIM] {
        times(x, &self.turn)
    }

    /// The codes of a sum near to `x`, which is turned.
    pub(super) fn codes(&self, x: &[f32; DIM]) -> Codes {
        self.found(x).codes
    }

    /// The codes of a sum near to `x`, which is turned, and no farther than that of `known`.
    pub(super) fn better(&self, x: &[f32; DIM], known: Codes) -> Codes {
        let (found, known) = (self.found(x), self.refined(x, known));
        if found.distance < known.distance { found.codes } else { known.codes }
    }

    fn found(&self, x: &[f32; DIM]) -> Partial {
        let distance = x.iter().map(|x| x * x).sum();
        let mut beam = [Partial { distance, codes: Codes::of(&[]), rest: *x }; BEAM];
        let mut n_beam = 1;
        for (m, table) in self.tables.iter().enumerate() {
            let width = if m + 1 == self.tables.len() { 1 } else { BEAM };
            let mut best: [(f32, usize, usize); BEAM] = [(f32::INFINITY, 0, 0); BEAM];
            for (from, partial) in beam[..n_beam].iter().enumerate() {
                for (e, score) in table.scores(&partial.rest).into_iter().enumerate() {
                    let distance = partial.distance + score;
                    if distance < best[width - 1].0 {
                        let place = best[..width].partition_point(|(known, ..)| *known <= distance);
                        best[place..width].rotate_right(1);
                        best[place] = (distance, from, e);
                    }
                }
            }
            let before = beam;
            for (to, (distance, from, e)) in beam.iter_mut().zip(&best[..width]) {
                let Partial { mut codes, rest, .. } = before[*from];
                codes.codes[m] = *e as u8;
                codes.n = m + 1;
                *to = Partial { distance: *distance, codes, rest: table.less(&rest, *e as u8) };
            }
            n_beam = width;
        }
        self.refined(x, beam[0].codes)
    }

    /// Chooses each code anew, all others as they are.
    fn refined(&self, x: &[f32; DIM], codes: Codes) -> Partial {
        let mut rest = *x;
        for (table, code) in self.tables.iter().zip(codes.as_slice()) {
            rest = table.less(&rest, *code);
        }
        let mut own = codes;
        for (m, table) in self.tables.iter().enumerate() {
            let whole: [f32; DIM] =
                std::array::from_fn(|j| rest[j] + table.columns[j][usize::from(own.codes[m])]);
            let scores = table.scores(&whole);
            let mut best = usize::from(own.codes[m]);
            for (e, score) in scores.iter().enumerate() {
                if *score < scores[best] {
                    best = e;
                }
            }
            own.codes[m] = best as u8;
            rest = table.less(&whole, best as u8);
        }
        Partial { distance: rest.iter().map(|x| x * x).sum(), codes: own, rest }
    }
}

impl Table {
    /// Squared distances of all entries from `x`, less that of 0.
    fn scores(&self, x: &[f32; DIM]) -> [f32; N_ENTRIES] {
        let mut scores = self.norms;
        for (column, x) in self.columns.iter().zip(x) {
            let twice = 2.0 * x;
            scores.iter_mut().zip(column).for_each(|(score, entry)| *score -= twice * entry);
        }
        scores
    }

    /// `x` less an entry.
    fn less(&self, x: &[f32; DIM], code: u8) -> [f32; DIM] {
        std::array::from_fn(|j| x[j] - self.columns[j][usize::from(code)])
    }
}

/// `x T`.
fn times(x: &[f32; DIM], turn: &[[f32; DIM]; DIM]) -> [f32; DIM] {
    let mut product = [0.0; DIM];
    for (x, row) in x.iter().zip(turn) {
        product.iter_mut().zip(row).for_each(|(sum, t)| *sum += x * t);
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_near_the_best_of_all_and_never_farther_than_what_is_known() {
        let value = |i: usize| ((i * 7919 + i * i % 331) % 1009) as f32 / 504.5 - 1.0;
        let entries = (0..2 * N_ENTRIES * DIM).map(value).collect();
        let books = Books { entries };
        let turn = std::array::from_fn(|i| {
            std::array::from_fn(|j| if i == j { 1.0 + i as f32 } else { 0.1 * value(i * 8 + j) })
        });
        let search = Search::behind(&books, &turn);
        let distance = |x: &[f32; DIM], codes: &[u8]| -> f32 {
            let mut sum = [0.0; DIM];
            books.values(codes, &mut sum);
            search.turned(&std::array::from_fn(|i| x[i] - sum[i])).iter().map(|x| x * x).sum()
        };
        let (mut own, mut least) = (0.0, 0.0);
        for seed in 0..8 {
            let x: [f32; DIM] = std::array::from_fn(|i| 1.5 * value(seed * 97 + i * 13));
            let codes = search.codes(&search.turned(&x));
            own += distance(&x, codes.as_slice());
            let all = (0..=u16::MAX).map(|pair| distance(&x, &pair.to_le_bytes()));
            least += all.fold(f32::INFINITY, f32::min);
            for known in [[3, 200], [77, 0]] {
                let better = search.better(&search.turned(&x), Codes::of(&known));
                let bound = distance(&x, &known).min(distance(&x, codes.as_slice()));
                assert!(distance(&x, better.as_slice()) <= bound * 1.0001, "{seed}");
            }
        }
        assert!(own < 1.15 * least, "{own} {least}");
    }
}
