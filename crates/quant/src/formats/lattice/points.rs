//! Points by index, and the index of the point that is nearest to any combination of levels.
//!
//! Both tables are made when they are first used: the points (4 to 16 KiB) when such a format is
//! read, the neighbours (13 KiB, some hundredths of a second) when it is written.

use std::sync::OnceLock;

use super::sets;

/// The points that exist.
pub(in crate::formats) struct Lattice {
    set: &'static [u64],
    pub(super) n_dims: usize,
    n_levels: usize,
    points: OnceLock<Box<[[u8; 8]]>>,
    nearest: OnceLock<Box<[u16]>>,
}

pub(in crate::formats) static POINTS_IQ1: Lattice = Lattice::new(&sets::IQ1, 8, 3);
pub(in crate::formats) static POINTS_IQ2_XXS: Lattice = Lattice::new(&sets::IQ2_XXS, 8, 3);
pub(in crate::formats) static POINTS_IQ2_XS: Lattice = Lattice::new(&sets::IQ2_XS, 8, 3);
pub(in crate::formats) static POINTS_IQ2_S: Lattice = Lattice::new(&sets::IQ2_S, 8, 3);
pub(in crate::formats) static POINTS_IQ3_XXS: Lattice = Lattice::new(&sets::IQ3_XXS, 4, 8);
pub(in crate::formats) static POINTS_IQ3_S: Lattice = Lattice::new(&sets::IQ3_S, 4, 8);

impl Lattice {
    const fn new(set: &'static [u64], n_dims: usize, n_levels: usize) -> Self {
        Self { set, n_dims, n_levels, points: OnceLock::new(), nearest: OnceLock::new() }
    }

    /// The coordinates of the point of a number; beyond the last one zeros.
    fn coordinates(&self, number: usize) -> [u8; 8] {
        let mut rest = number;
        std::array::from_fn(|_| {
            let coordinate = rest % self.n_levels;
            rest /= self.n_levels;
            coordinate as u8
        })
    }

    /// The points by index.
    fn points(&self) -> &[[u8; 8]] {
        self.points.get_or_init(|| {
            let numbers = 0..self.set.len() * 64;
            let is_in = |number: &usize| self.set[number / 64] >> (number % 64) & 1 == 1;
            numbers.filter(is_in).map(|number| self.coordinates(number)).collect()
        })
    }

    /// The coordinates of the point at `index`, which a file may only name if it exists.
    pub(in crate::formats) fn point(&self, index: usize) -> &[u8] {
        &self.points()[index][..self.n_dims]
    }

    /// The index of the point nearest to `levels`, which is `levels` itself if it exists.
    pub(in crate::formats) fn index_of(&self, levels: &[u8]) -> usize {
        let nearest = self.nearest.get_or_init(|| {
            let numbers = 0..self.n_levels.pow(self.n_dims as u32);
            numbers.map(|number| self.search(&self.coordinates(number))).collect()
        });
        let number = levels
            .iter()
            .rev()
            .fold(0, |number, &level| number * self.n_levels + usize::from(level));
        usize::from(nearest[number])
    }

    fn search(&self, to: &[u8; 8]) -> u16 {
        let distance = |point: &[u8; 8]| {
            let squares = point.iter().zip(to).map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2));
            squares.sum::<u32>()
        };
        let nearest = self.points().iter().enumerate().min_by_key(|(_, point)| distance(point));
        nearest.expect("points").0 as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lattice_has_as_many_points_as_its_format_and_each_is_its_own_neighbour() {
        for (lattice, n_points) in [
            (&POINTS_IQ1, 2048),
            (&POINTS_IQ2_XXS, 256),
            (&POINTS_IQ2_XS, 512),
            (&POINTS_IQ2_S, 1024),
            (&POINTS_IQ3_XXS, 256),
            (&POINTS_IQ3_S, 512),
        ] {
            assert_eq!(lattice.points().len(), n_points);
            for index in 0..n_points {
                assert_eq!(lattice.index_of(lattice.point(index)), index);
            }
        }
    }
}
