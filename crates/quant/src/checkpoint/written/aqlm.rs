//! Sums of codebooks as AQLM has them.

use pelton_tensor::DType;

use super::{WrittenTensor, half_scales};
use crate::solve::aqlm::{Aqlm, DIM, N_ENTRIES};

/// The tensors of a matrix.
pub fn aqlm_tensors(solved: &Aqlm) -> Vec<WrittenTensor> {
    let ([n, k], n_codebooks) = (solved.shape, solved.n_codebooks);
    let halves = |suffix, shape, values: &[f32]| {
        let data = half_scales(values);
        WrittenTensor { suffix, dtype: DType::F16, shape, data }
    };
    vec![
        WrittenTensor {
            suffix: "codes",
            dtype: DType::I8,
            shape: vec![n, k / DIM, n_codebooks],
            // Codes from 128 on are stored as negative numbers.
            data: solved.codes.clone(),
        },
        halves("codebooks", vec![n_codebooks, N_ENTRIES, 1, DIM], &solved.codebooks),
        halves("scales", vec![n, 1, 1, 1], &solved.scales),
    ]
}
