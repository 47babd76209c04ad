//! Integers in words as `pack-quantized` of compressed-tensors.

use pelton_tensor::DType;

use super::{WrittenTensor, half_scales, put, words};
use crate::solve::Solved;

/// The tensors of a symmetric matrix whose groups follow each other.
///
/// # Panics
///
/// When a zero point is not the middle of the codes, or groups are scattered.
pub fn packed_tensors(solved: &Solved) -> Vec<WrittenTensor> {
    let ([n, k], bits) = (solved.shape, solved.bits);
    assert!(solved.zeros.iter().all(|zero| *zero == 1 << (bits - 1)), "symmetric codes");
    assert!(solved.groups.is_sorted(), "groups that follow each other");
    let row_words = (k * bits).div_ceil(32);
    let mut packed = vec![0_u32; n * row_words];
    for (row, codes) in packed.chunks_exact_mut(row_words).zip(solved.codes.chunks_exact(k)) {
        codes.iter().enumerate().for_each(|(j, code)| put(row, |word| word, j * bits, *code));
    }
    vec![
        words("weight_packed", vec![n, row_words], &packed),
        WrittenTensor {
            suffix: "weight_scale",
            dtype: DType::F16,
            shape: vec![n, solved.n_groups()],
            data: half_scales(&solved.scales),
        },
        WrittenTensor {
            suffix: "weight_shape",
            dtype: DType::I64,
            shape: vec![2],
            data: [n, k].iter().flat_map(|len| (*len as i64).to_le_bytes()).collect(),
        },
    ]
}
