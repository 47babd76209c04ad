//! Vectors of a lattice as QuIP# has them.

use pelton_tensor::DType;

use super::{WrittenTensor, floats, half_scales};
use crate::quip::{FINER_WORD, packed};
use crate::solve::quip::Quip;

/// The tensors of a matrix.
pub fn quip_tensors(solved: &Quip) -> Vec<WrittenTensor> {
    let ([n, k], books) = (solved.shape, solved.books);
    let words = |codes: &[u16]| -> Vec<u8> {
        packed(codes, [n, k]).into_iter().flat_map(u64::to_le_bytes).collect()
    };
    let first = words(&solved.codes);
    let second = match books.finer_word {
        None => Vec::new(),
        Some(FINER_WORD) => solved.finer.iter().map(|code| *code as u8).collect(),
        Some(_) => words(&solved.finer),
    };
    let row = |data: &'_ [u8], row: usize| data[data.len() / n * row..][..data.len() / n].to_vec();
    let data: Vec<u8> = (0..n).flat_map(|i| [row(&first, i), row(&second, i)].concat()).collect();
    let signs = |suffix, values: &[f32]| WrittenTensor {
        suffix,
        dtype: DType::F16,
        shape: vec![values.len()],
        data: half_scales(values),
    };
    let id = WrittenTensor {
        suffix: "codebook_id",
        dtype: DType::I64,
        shape: vec![],
        data: (books.id as i64).to_le_bytes().to_vec(),
    };
    let shape = vec![n, data.len() / n / size_of::<u64>()];
    vec![
        WrittenTensor { suffix: "Qidxs", dtype: DType::I64, shape, data },
        signs("SU", &solved.scales.su),
        signs("SV", &solved.scales.sv),
        floats("Wscale", vec![], &[solved.scales.scale as f32]),
        id,
    ]
}
