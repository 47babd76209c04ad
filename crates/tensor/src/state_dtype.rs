//! The types that states of recurrent layers are stored in, and their names.

use std::fmt;

/// How the states of recurrent layers are stored at borders of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateDtype {
    /// 4 bytes per element, exact.
    #[default]
    F32,
    /// 2 bytes per element, 8 bits of precision: rounded to nearest, ties to even.
    Bf16,
}

impl StateDtype {
    /// All types, the most exact first.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Bytes per element.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for StateDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
