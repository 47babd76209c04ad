//! The types that keys and values are stored in, and their names.

use std::fmt;
use std::str::FromStr;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 4 bytes per element, exact.
    F32,
    /// 2 bytes per element, 8 bits of precision.
    Bf16,
    /// 2 bytes per element, 11 bits of precision, infinite from 65520 on.
    F16,
    /// 1 byte per element (E4M3), 4 bits of precision, at most 448 in magnitude.
    Fp8,
    /// 1 byte per element, and one f32 scale per token and head for its key and for its value.
    Int8,
}

impl KvDtype {
    /// All types, the most exact first.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::Fp8, Self::Int8];

    /// Bytes per element, scales not counted.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Fp8 | Self::Int8 => 1,
        }
    }

    /// Its name, as [`KvDtype::from_str`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }

    /// Whether each token and head has a scale.
    pub fn has_scales(self) -> bool {
        self == Self::Int8
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = UnknownKvDtype;

    fn from_str(name: &str) -> Result<Self, UnknownKvDtype> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| UnknownKvDtype { name: name.to_owned() })
    }
}

/// A name that is no [`KvDtype`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKvDtype {
    /// The name as it was given.
    pub name: String,
}

impl fmt::Display for UnknownKvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = KvDtype::ALL.map(KvDtype::name).join(", ");
        write!(f, "{:?} is no type of keys and values: expected {names}", self.name)
    }
}

impl std::error::Error for UnknownKvDtype {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_the_name_it_prints() {
        for dtype in KvDtype::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        assert_eq!(KvDtype::ALL.map(KvDtype::name), ["f32", "bf16", "f16", "fp8", "int8"]);
    }

    #[test]
    fn an_unknown_name_is_refused_and_the_message_lists_what_there_is() {
        let error = "int4".parse::<KvDtype>().expect_err("no such type");
        let message = error.to_string();
        assert!(message.contains("\"int4\"") && message.contains("bf16, f16, fp8"), "{message}");
    }
}
