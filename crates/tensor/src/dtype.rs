//! Element types: the elements and bytes of a block, and the names of the type in files.
//!
//! A type that is known here can be named, measured and skipped; the crate of weight formats
//! decides whether it can be *computed with*.

use std::fmt;

/// How the elements of an array are stored.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every variant is the usual name of its type; see `DType::name`")]
pub enum DType {
    F32,
    F16,
    Bf16,
    F64,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    F8E4M3,
    F8E5M2,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    Iq2Xxs,
    Iq2Xs,
    Iq3Xxs,
    Iq1S,
    Iq4Nl,
    Iq3S,
    Iq2S,
    Iq4Xs,
    Iq1M,
    Tq1_0,
    Tq2_0,
    Mxfp4,
}

/// Facts about one type.
struct Row {
    dtype: DType,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
    /// Its number in GGUF files.
    gguf: Option<u32>,
    /// Its name in safetensors files.
    safetensors: Option<&'static str>,
}

/// A plain type: a block is one element.
const fn plain(
    dtype: DType,
    name: &'static str,
    n_bytes: usize,
    gguf: Option<u32>,
    safetensors: Option<&'static str>,
) -> Row {
    Row { dtype, name, block_len: 1, block_bytes: n_bytes, gguf, safetensors }
}

/// A block type, which exists in GGUF files only.
const fn block(
    dtype: DType,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
    gguf: u32,
) -> Row {
    Row { dtype, name, block_len, block_bytes, gguf: Some(gguf), safetensors: None }
}

/// Every type, in the order of the enum, so that a type is its own index.
static ROWS: &[Row] = &[
    plain(DType::F32, "F32", 4, Some(0), Some("F32")),
    plain(DType::F16, "F16", 2, Some(1), Some("F16")),
    plain(DType::Bf16, "BF16", 2, Some(30), Some("BF16")),
    plain(DType::F64, "F64", 8, Some(28), Some("F64")),
    plain(DType::I64, "I64", 8, Some(27), Some("I64")),
    plain(DType::I32, "I32", 4, Some(26), Some("I32")),
    plain(DType::I16, "I16", 2, Some(25), Some("I16")),
    plain(DType::I8, "I8", 1, Some(24), Some("I8")),
    plain(DType::U64, "U64", 8, None, Some("U64")),
    plain(DType::U32, "U32", 4, None, Some("U32")),
    plain(DType::U16, "U16", 2, None, Some("U16")),
    plain(DType::U8, "U8", 1, None, Some("U8")),
    plain(DType::Bool, "BOOL", 1, None, Some("BOOL")),
    plain(DType::F8E4M3, "F8_E4M3", 1, None, Some("F8_E4M3")),
    plain(DType::F8E5M2, "F8_E5M2", 1, None, Some("F8_E5M2")),
    block(DType::Q4_0, "Q4_0", 32, 18, 2),
    block(DType::Q4_1, "Q4_1", 32, 20, 3),
    block(DType::Q5_0, "Q5_0", 32, 22, 6),
    block(DType::Q5_1, "Q5_1", 32, 24, 7),
    block(DType::Q8_0, "Q8_0", 32, 34, 8),
    block(DType::Q8_1, "Q8_1", 32, 36, 9),
    block(DType::Q2K, "Q2_K", 256, 84, 10),
    block(DType::Q3K, "Q3_K", 256, 110, 11),
    block(DType::Q4K, "Q4_K", 256, 144, 12),
    block(DType::Q5K, "Q5_K", 256, 176, 13),
    block(DType::Q6K, "Q6_K", 256, 210, 14),
    block(DType::Q8K, "Q8_K", 256, 292, 15),
    block(DType::Iq2Xxs, "IQ2_XXS", 256, 66, 16),
    block(DType::Iq2Xs, "IQ2_XS", 256, 74, 17),
    block(DType::Iq3Xxs, "IQ3_XXS", 256, 98, 18),
    block(DType::Iq1S, "IQ1_S", 256, 50, 19),
    block(DType::Iq4Nl, "IQ4_NL", 32, 18, 20),
    block(DType::Iq3S, "IQ3_S", 256, 110, 21),
    block(DType::Iq2S, "IQ2_S", 256, 82, 22),
    block(DType::Iq4Xs, "IQ4_XS", 256, 136, 23),
    block(DType::Iq1M, "IQ1_M", 256, 56, 29),
    block(DType::Tq1_0, "TQ1_0", 256, 54, 34),
    block(DType::Tq2_0, "TQ2_0", 256, 66, 35),
    block(DType::Mxfp4, "MXFP4", 32, 17, 39),
];

impl DType {
    /// The name that users and files know, for example `"BF16"` or `"Q4_K"`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements per block; one for plain types.
    pub fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes that `n_elements` take.
    ///
    /// `None` when `n_elements` is not a whole number of blocks, or when the answer overflows.
    pub fn bytes_for(self, n_elements: usize) -> Option<usize> {
        if !n_elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Every type, in a fixed order.
    pub fn all() -> impl Iterator<Item = DType> {
        ROWS.iter().map(|row| row.dtype)
    }

    /// The number of this type in GGUF files, or `None` when they cannot hold it.
    pub fn gguf_id(self) -> Option<u32> {
        self.row().gguf
    }

    /// The type that a GGUF file calls `id`.
    pub fn from_gguf_id(id: u32) -> Option<DType> {
        ROWS.iter().find(|row| row.gguf == Some(id)).map(|row| row.dtype)
    }

    /// The name of this type in safetensors files, or `None` when they cannot hold it.
    pub fn safetensors_name(self) -> Option<&'static str> {
        self.row().safetensors
    }

    /// The type that a safetensors file calls `name`.
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        ROWS.iter().find(|row| row.safetensors == Some(name)).map(|row| row.dtype)
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_its_own_index_and_is_found_by_its_names() {
        for (idx, row) in ROWS.iter().enumerate() {
            assert_eq!(row.dtype as usize, idx, "{}", row.name);
            if let Some(id) = row.gguf {
                assert_eq!(DType::from_gguf_id(id), Some(row.dtype));
            }
            if let Some(name) = row.safetensors {
                assert_eq!(DType::from_safetensors_name(name), Some(row.dtype));
            }
        }
        // The numbers that GGUF gave to withdrawn types.
        for id in [4, 5, 31, 32, 33, 36, 37, 38, u32::MAX] {
            assert_eq!(DType::from_gguf_id(id), None, "{id}");
        }
    }

    #[test]
    fn broken_blocks_and_overflow_have_no_size() {
        assert_eq!(DType::Q8_0.bytes_for(64), Some(68));
        assert_eq!(DType::Q8_0.bytes_for(33), None);
        assert_eq!(DType::F32.bytes_for(usize::MAX), None);
        assert_eq!(DType::F32.bytes_for(usize::MAX / 4), Some(usize::MAX / 4 * 4));
        assert_eq!(DType::Q4K.bytes_for(0), Some(0));
    }
}
