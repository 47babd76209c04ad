//! Two codes a byte: NF4 of bitsandbytes, MXFP4 and NVFP4 of compressed-tensors.

use pelton_kernels::codes::NF4;
use pelton_tensor::DType;
use serde_json::json;

use super::{WrittenTensor, floats};
use crate::solve::fp4::{Fp4, Kind};
use crate::solve::nf4::{self, Nf4};

/// The tensors of a matrix of NF4; `dtype` is the type of the weights that it stands for, in the
/// words of torch.
pub fn nf4_tensors(solved: &Nf4, dtype: &str) -> Vec<WrittenTensor> {
    let pairs = solved.codes.chunks(2);
    let data: Vec<u8> = pairs.map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
    let state = json!({
        "quant_type": "nf4", "blocksize": solved.block, "dtype": dtype, "shape": solved.shape,
        "nested_blocksize": nf4::NESTED_BLOCK, "nested_dtype": "float32",
        "nested_offset": solved.offset,
    });
    let state = state.to_string().into_bytes();
    let byte = |suffix, shape, data| WrittenTensor { suffix, dtype: DType::U8, shape, data };
    vec![
        byte("weight", vec![data.len(), 1], data),
        byte("weight.absmax", vec![solved.scales.len()], solved.scales.clone()),
        floats("weight.quant_map", vec![NF4.len()], &NF4),
        floats("weight.nested_absmax", vec![solved.nested.len()], &solved.nested),
        floats("weight.nested_quant_map", vec![256], &nf4::table()),
        byte("weight.quant_state.bitsandbytes__nf4", vec![state.len()], state),
    ]
}

/// The tensors of a matrix of MXFP4 or NVFP4.
pub fn fp4_tensors(solved: &Fp4) -> Vec<WrittenTensor> {
    let [n, k] = solved.shape;
    let data = solved.codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let dtype = match solved.kind {
        Kind::Mx => DType::U8,
        Kind::Nv => DType::F8E4M3,
    };
    let mut tensors = vec![
        WrittenTensor { suffix: "weight_packed", dtype: DType::U8, shape: vec![n, k / 2], data },
        WrittenTensor {
            suffix: "weight_scale",
            dtype,
            shape: vec![n, k / solved.kind.group()],
            data: solved.scales.clone(),
        },
    ];
    if solved.kind == Kind::Nv {
        tensors.push(floats("weight_global_scale", vec![1], &[solved.divisor]));
    }
    tensors
}
