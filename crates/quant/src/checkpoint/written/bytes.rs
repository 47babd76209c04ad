//! A byte per weight: fp8 of `float-quantized` and of blocks, int8 of `int-quantized` and LLM.int8.

use pelton_tensor::DType;

use super::{WrittenTensor, floats};
use crate::solve::Group;
use crate::solve::fp8::{Fp8, Kind};
use crate::solve::int8::Int8;

/// The tensors of a matrix of 8-bit floats: `weight_scale` for a scale per output, and
/// `weight_scale_inv` for blocks.
pub fn fp8_tensors(solved: &Fp8) -> Vec<WrittenTensor> {
    let ([n, k], [rows, columns]) = (solved.shape, solved.layout.block(solved.shape));
    let weight = WrittenTensor {
        suffix: "weight",
        dtype: match solved.layout.kind {
            Kind::E4m3 => DType::F8E4M3,
            Kind::E5m2 => DType::F8E5M2,
        },
        shape: vec![n, k],
        data: solved.codes.clone(),
    };
    let (suffix, shape) = match solved.layout.group {
        Group::Tensor => ("weight_scale", vec![1]),
        Group::Row => ("weight_scale", vec![n, 1]),
        Group::Inputs(_) => ("weight_scale_inv", vec![n.div_ceil(rows), k.div_ceil(columns)]),
    };
    vec![weight, floats(suffix, shape, &solved.scales)]
}

/// The tensors of int8 as compressed-tensors has them, with a scale per output or per matrix.
pub fn int8_tensors(solved: &Int8) -> Vec<WrittenTensor> {
    let scales = solved.scales();
    let shape = if solved.group == Group::Tensor { vec![1] } else { vec![scales.len(), 1] };
    vec![int8(solved), floats("weight_scale", shape, &scales)]
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
