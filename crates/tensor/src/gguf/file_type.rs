//! How readers learn what most of a file is stored as, without a look at its tensors.

use crate::DType;

/// Number and type, as llama.cpp counts them.
const FILE_TYPES: [(DType, u32); 25] = [
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q8_0, 7),
    (DType::Q5_0, 8),
    (DType::Q5_1, 9),
    (DType::Q2K, 10),
    (DType::Q3K, 11),
    (DType::Q4K, 14),
    (DType::Q5K, 16),
    (DType::Q6K, 18),
    (DType::Iq2Xxs, 19),
    (DType::Iq2Xs, 20),
    (DType::Iq3Xxs, 23),
    (DType::Iq1S, 24),
    (DType::Iq4Nl, 25),
    (DType::Iq3S, 26),
    (DType::Iq2S, 28),
    (DType::Iq4Xs, 30),
    (DType::Iq1M, 31),
    (DType::Bf16, 32),
    (DType::Tq1_0, 36),
    (DType::Tq2_0, 37),
    (DType::Mxfp4, 38),
];

/// The number that stands in `general.file_type` of a GGUF file whose matrices have this type;
/// other engines refuse a file that does not say. `None` where no number exists.
pub fn gguf_file_type(dtype: DType) -> Option<u32> {
    FILE_TYPES.iter().find(|(of, _)| *of == dtype).map(|(_, number)| *number)
}
