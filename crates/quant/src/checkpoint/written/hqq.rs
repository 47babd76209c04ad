//! Codes, scales and zero points of HQQ, read row by row as `[n k / group, group]`.

use pelton_tensor::DType;

use super::{WrittenTensor, half_scales};
use crate::solve::hqq::Hqq;

/// Codes of 3 bits in a word.
const PER_WORD: usize = 10;

/// Whether codes of a matrix fill whole bytes of HQQ's layout.
pub fn fits_hqq([n, k]: [usize; 2], bits: usize, group: usize) -> bool {
    let rows = n * k / group.max(1);
    (n * k).is_multiple_of(group.max(1)) && (bits == 3 || rows.is_multiple_of(8 / bits))
}

/// The tensors of a matrix of HQQ.
///
/// # Panics
///
/// When the matrix does not [fit](fits_hqq).
pub fn hqq_tensors(solved: &Hqq) -> Vec<WrittenTensor> {
    let (bits, columns) = (solved.bits, solved.group);
    assert!(fits_hqq(solved.shape, bits, columns), "whole bytes");
    let rows = solved.scales.len();
    let per_word = if bits == 3 { PER_WORD } else { 8 / bits };
    let step = rows.div_ceil(per_word);
    let mut packed = vec![0_u32; step * columns];
    for (at, code) in solved.codes.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let (part, index) = (row / step, row % step * columns + column);
        let shift = if bits == 3 { 27 - 3 * part } else { 8 - bits * (part + 1) };
        packed[index] |= u32::from(*code) << shift;
    }
    let (dtype, data) = match bits {
        3 => (DType::I32, packed.iter().flat_map(|word| word.to_le_bytes()).collect()),
        _ => (DType::U8, packed.iter().map(|byte| *byte as u8).collect()),
    };
    let whole = |suffix, values: &[usize]| WrittenTensor {
        suffix,
        dtype: DType::I64,
        shape: if values.len() == 1 { Vec::new() } else { vec![values.len()] },
        data: values.iter().flat_map(|value| (*value as i64).to_le_bytes()).collect(),
    };
    let half = |suffix, values: &[f32]| WrittenTensor {
        suffix,
        dtype: DType::F16,
        shape: vec![rows, 1],
        data: half_scales(values),
    };
    // The library decodes numbers and words from tensors where it finds `encoded_state_dict`.
    let packing = if bits == 3 { "3bit_32".to_owned() } else { format!("{bits}bit_u8") };
    let bytes = |suffix, shape, data| WrittenTensor { suffix, dtype: DType::U8, shape, data };
    let flag = |suffix, is: bool| bytes(suffix, Vec::new(), vec![u8::from(is)]);
    vec![
        WrittenTensor { suffix: "W_q", dtype, shape: vec![step, columns], data },
        half("scale", &solved.scales),
        half("zero", &solved.zeros),
        whole("nbits", &[bits]),
        whole("group_size", &[columns]),
        whole("axis", &[1]),
        whole("shape", &solved.shape),
        bytes("packing", vec![packing.len()], packing.into_bytes()),
        flag("encoded_state_dict", true),
        // Neither scales nor zero points are quantized, and codes lie as whole numbers.
        flag("quant_scale", false),
        flag("quant_zero", false),
        flag("view_as_float", false),
        flag("offload_meta", false),
    ]
}
