//! Ternary codes of BitNet, four outputs to a byte.

use pelton_tensor::DType;

use super::{WrittenTensor, floats};
use crate::solve::ternary::Ternary;

/// Codes in a byte.
const PER_BYTE: usize = 4;

/// Whether codes of a matrix fill whole bytes of BitNet's layout.
pub fn fits_bitnet([n, _]: [usize; 2]) -> bool {
    n.is_multiple_of(PER_BYTE)
}

/// The tensors of a ternary matrix, whose scale is a factor (`autobitlinear`).
///
/// # Panics
///
/// When the matrix does not [fit](fits_bitnet).
pub fn bitnet_tensors(solved: &Ternary) -> Vec<WrittenTensor> {
    let [n, k] = solved.shape;
    assert!(fits_bitnet(solved.shape), "whole bytes");
    let mut data = vec![0; solved.codes.len() / PER_BYTE];
    for (part, codes) in solved.codes.chunks_exact(data.len().max(1)).enumerate() {
        data.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= code << (2 * part));
    }
    vec![
        WrittenTensor { suffix: "weight", dtype: DType::U8, shape: vec![n / PER_BYTE, k], data },
        floats("weight_scale", vec![1], &[solved.scale]),
    ]
}
