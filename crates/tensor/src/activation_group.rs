//! How many activations share a scale in products of quantized weights.

use std::fmt;

/// Most activations that share a scale where int8 activations multiply quantized weights.
///
/// A product never takes larger groups than the scales of its weights have: integer sums end where
/// either scale changes, so more would lose precision and gain nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActivationGroup {
    /// 32, as most GGUF formats have it.
    #[default]
    Of32,
    /// 64.
    Of64,
    /// 128.
    Of128,
    /// A whole row: one scale per token.
    Row,
}

impl ActivationGroup {
    /// All sizes, the most exact first.
    pub const ALL: [Self; 4] = [Self::Of32, Self::Of64, Self::Of128, Self::Row];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Of32 => "32",
            Self::Of64 => "64",
            Self::Of128 => "128",
            Self::Row => "row",
        }
    }

    /// Activations of a group in rows of `width`; the last group of a row may have fewer.
    pub fn len_in(self, width: usize) -> usize {
        match self {
            Self::Of32 => 32,
            Self::Of64 => 64,
            Self::Of128 => 128,
            Self::Row => width,
        }
    }
}

impl fmt::Display for ActivationGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
