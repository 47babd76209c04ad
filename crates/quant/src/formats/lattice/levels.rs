//! Values of the levels and signs of a lattice.

use pelton_kernels::{WeightLayout, codes};

/// Values of levels and signs.
pub(in crate::formats) struct Levels {
    /// The layout that holds their codes.
    pub(super) layout: WeightLayout,
    /// Factor of all weights.
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
    values: &codes::IQ1,
};
pub(in crate::formats) static IQ2: Levels = Levels {
    layout: WeightLayout::Iq2,
    unit: 0.125,
    n_bits: 3,
    codes: [&[0, 1, 2], &[4, 5, 6]],
    values: &codes::IQ2,
};
pub(in crate::formats) static IQ3_XXS: Levels = Levels {
    layout: WeightLayout::Iq3Xxs,
    unit: 0.25,
    n_bits: 4,
    codes: [&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]],
    values: &codes::IQ3_XXS,
};
pub(in crate::formats) static IQ3_S: Levels = Levels {
    layout: WeightLayout::Iq3S,
    unit: 1.0,
    n_bits: 4,
    codes: [&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]],
    values: &codes::IQ3_S,
};
