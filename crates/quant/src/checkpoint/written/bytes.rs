//! A byte per weight: fp8 of `float-quantized` and of blocks, int8 of `int-quantized` and LLM.int8.

use pelton_tensor::DType;

use super::{WrittenTensor, floats};
use crate::solve::fp8::{Fp8, Kind};
use crate::solve::int8::Int8;

/// The tensors of a matrix of 8-bit floats: `weight_scale` for a scale per output, and
/// `weight_scale_inv` for blocks.
pub fn fp8_tensors(solved: &Fp8) -> Vec<WrittenTensor> {
    let ([n, k], [rows, columns]) = (solved.shape, solved.layout.block);
    let weight = WrittenTensor {
        suffix: "weight",
        dtype: match solved.layout.kind {
            Kind::E4m3 => DType::F8E4M3,
            Kind::E5m2 => DType::F8E5M2,
        },
        shape: vec![n, k],
        data: solved.codes.clone(),
    };
    let is_row = rows == 1 && columns == k;
    let suffix = if is_row { "weight_scale" } else { "weight_scale_inv" };
    let shape = vec![n.div_ceil(rows), k.div_ceil(columns)];
    vec![weight, floats(suffix, shape, &solved.scales)]
}

/// The tensors of int8 rows as compressed-tensors has them.
pub fn int8_tensors(solved: &Int8) -> Vec<WrittenTensor> {
    let shape = vec![solved.shape[0], 1];
    vec![int8(solved), floats("weight_scale", shape, &solved.scales())]
}

/// The tensors of int8 rows as bitsandbytes has them.
pub fn llm_int8_tensors(solved: &Int8) -> Vec<WrittenTensor> {
    vec![int8(solved), floats("SCB", vec![solved.shape[0]], &solved.largest)]
}

fn int8(solved: &Int8) -> WrittenTensor {
    WrittenTensor {
        suffix: "weight",
        dtype: DType::I8,
        shape: solved.shape.to_vec(),
        data: solved.codes.iter().map(|code| code.cast_unsigned()).collect(),
    }
}
