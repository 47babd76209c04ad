//! The formats that weights can be rounded to while they are loaded.

use std::fmt;
use std::sync::LazyLock;

use pelton_tensor::DType;

use super::{FORMATS, WeightFormat, for_dtype};

/// A format that weights in f32, f16 or bf16 are rounded to while they are packed.
///
/// All of [`FORMATS`] but F32, which rounds nothing, and Q8_K, which is packed as f32.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct RoundTo {
    dtype: DType,
    name: &'static str,
}

static ALL: LazyLock<Vec<RoundTo>> = LazyLock::new(|| {
    let is_smaller = |dtype: &DType| !matches!(dtype, DType::F32 | DType::Q8K);
    let dtypes = FORMATS.iter().map(|format| format.dtype()).filter(is_smaller);
    // The list is made once, so its names live as long as the process.
    let name = |dtype: DType| &*dtype.name().to_lowercase().leak();
    dtypes.map(|dtype| RoundTo { dtype, name: name(dtype) }).collect()
});

impl RoundTo {
    /// Every such format, in the order of [`FORMATS`].
    pub fn all() -> &'static [Self] {
        &ALL
    }

    /// The one with this name, in upper or lower case.
    pub fn find(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|known| known.name.eq_ignore_ascii_case(name))
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The type of rounded weights.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The format of rounded weights.
    pub fn format(self) -> &'static dyn WeightFormat {
        for_dtype(self.dtype).expect("invariant: made of the formats")
    }
}

impl fmt::Display for RoundTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl fmt::Debug for RoundTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_but_two_is_found_by_its_name_in_either_case() {
        assert_eq!(RoundTo::all().len(), FORMATS.len() - 2);
        for to in RoundTo::all() {
            let name = to.format().name();
            assert_eq!(RoundTo::find(name), Some(*to), "{name}");
            assert_eq!(RoundTo::find(to.name()), Some(*to), "{to}");
        }
        assert_eq!((RoundTo::find("f32"), RoundTo::find("q8_k")), (None, None));
        assert_eq!(RoundTo::find("Q4_K").map(RoundTo::dtype), Some(DType::Q4K));
    }
}
