//! What the levels and signs of a lattice stand for.

use pelton_kernels::WeightLayout;

/// What levels and signs stand for.
pub(in crate::formats) struct Levels {
    /// The layout that holds their codes.
    pub(super) layout: WeightLayout,
    /// What all weights have as a factor.
    pub(super) unit: f32,
    /// Bits of a code.
    pub(super) n_bits: usize,
    /// The code of each level without and with a sign.
    pub(super) codes: [&'static [u8]; 2],
    /// The value of each code; those of the second half are the negatives of the first.
    pub(super) values: &'static [i8],
}

impl Levels {
    pub(super) fn code(&self, level: u8, sign: u8) -> u8 {
        self.codes[usize::from(sign)][usize::from(level)]
    }

    pub(super) fn value(&self, level: u8, sign: u8) -> f32 {
        f32::from(self.values[usize::from(self.code(level, sign))])
    }

    /// The level whose value is nearest to `x`, the lower one among equals.
    pub(super) fn nearest(&self, x: f32, sign: u8) -> u8 {
        let distance = |level: u8| (x - self.value(level, sign)).abs();
        let levels = 0..self.codes[0].len() as u8;
        levels.min_by(|&a, &b| distance(a).total_cmp(&distance(b))).expect("levels")
    }
}

/// -1, 0 and 1, each an eighth more, or less with a sign; in eighths.
pub(in crate::formats) static IQ1: Levels = Levels {
    layout: WeightLayout::Iq1,
    unit: 0.125,
    n_bits: 3,
    codes: [&[5, 0, 2], &[6, 4, 1]],
    values: &[1, 7, 9, 0, -1, -7, -9, 0],
};
pub(in crate::formats) static IQ2: Levels = Levels {
    layout: WeightLayout::Iq2,
    unit: 0.125,
    n_bits: 3,
    codes: [&[0, 1, 2], &[4, 5, 6]],
    values: &[8, 25, 43, 0, -8, -25, -43, 0],
};
pub(in crate::formats) static IQ3_XXS: Levels = Levels {
    layout: WeightLayout::Iq3Xxs,
    unit: 0.25,
    n_bits: 4,
    codes: [&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]],
    values: &[4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62],
};
pub(in crate::formats) static IQ3_S: Levels = Levels {
    layout: WeightLayout::Iq3S,
    unit: 1.0,
    n_bits: 4,
    codes: [&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]],
    values: &[1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
};
