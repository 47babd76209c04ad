//! Solved matrices as the tensors of a checkpoint, in the layouts that the methods beside this read.
//!
//! Each layout is drawn where it is read. Scales become f16, which solvers have rounded them to. Zero
//! points of GPTQ are stored less one in version 1, and solvers leave 0 out.
//!
//! A [`Written`] matrix knows its tensors and its weights: `tests/written.rs` reads every layout back
//! and compares all bits.

mod aqlm;
mod bitnet;
mod bytes;
mod hqq;
mod nibbles;
mod packed;
mod quip;

use std::rc::Rc;

use half::f16;
use pelton_tensor::DType;

pub use aqlm::aqlm_tensors;
pub use bitnet::{bitnet_tensors, fits_bitnet};
pub use bytes::{fp8_tensors, int8_tensors, llm_int8_tensors};
pub use hqq::{fits_hqq, hqq_tensors};
pub use nibbles::{fp4_tensors, nf4_tensors};
pub use packed::packed_tensors;
pub use quip::quip_tensors;

use super::awq::NIBBLE;
use crate::solve::Solved;

/// A solved matrix with the layout that it is written in.
pub struct Written {
    tensors: Box<dyn Fn() -> Vec<WrittenTensor>>,
    weights: Box<dyn Fn() -> Vec<f32>>,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").finish_non_exhaustive()
    }
}

impl Written {
    /// A matrix with its layout and its meaning, each computed when it is asked for.
    pub fn new<T: 'static>(
        solved: T,
        tensors: impl Fn(&T) -> Vec<WrittenTensor> + 'static,
        weights: impl Fn(&T) -> Vec<f32> + 'static,
    ) -> Self {
        let solved = Rc::new(solved);
        let same = Rc::clone(&solved);
        Self {
            tensors: Box::new(move || tensors(&solved)),
            weights: Box::new(move || weights(&same)),
        }
    }

    /// Its tensors.
    pub fn tensors(&self) -> Vec<WrittenTensor> {
        (self.tensors)()
    }

    /// The weights that a reader computes from them, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        (self.weights)()
    }
}

/// One tensor of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenTensor {
    /// Its name behind that of the module.
    pub suffix: &'static str,
    /// Type of its elements.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Little-endian bytes.
    pub data: Vec<u8>,
}

/// Whether codes of a matrix fill whole words of GPTQ's layout.
pub fn fits_gptq([n, k]: [usize; 2], bits: usize) -> bool {
    [n, k].iter().all(|len| (len * bits).is_multiple_of(32))
}

/// Whether codes of a matrix fill whole words of AWQ's layout.
pub fn fits_awq([n, _]: [usize; 2]) -> bool {
    n.is_multiple_of(8)
}

/// The tensors of a matrix in the layout of GPTQ, version 1.
///
/// # Panics
///
/// When the matrix does not [fit](fits_gptq).
pub fn gptq_tensors(solved: &Solved) -> Vec<WrittenTensor> {
    in_gptq_words(solved, 1)
}

/// The same in version 2, in which zero points are stored as they are.
///
/// # Panics
///
/// When the matrix does not [fit](fits_gptq).
pub fn gptq_v2_tensors(solved: &Solved) -> Vec<WrittenTensor> {
    in_gptq_words(solved, 0)
}

/// Zero points are stored `less` than they are.
fn in_gptq_words(solved: &Solved, less: u8) -> Vec<WrittenTensor> {
    let ([n, k], bits, n_groups) = (solved.shape, solved.bits, solved.n_groups());
    assert!(fits_gptq(solved.shape, bits), "whole words");
    let mut qweight = vec![0_u32; k * bits / 32 * n];
    for (row, codes) in solved.codes.chunks_exact(k).enumerate() {
        for (j, code) in codes.iter().enumerate() {
            put(&mut qweight, |word| word * n + row, j * bits, *code);
        }
    }
    let n_words = n * bits / 32;
    let mut qzeros = vec![0_u32; n_groups * n_words];
    for (row, zeros) in solved.zeros.chunks_exact(n_groups).enumerate() {
        for (group, zero) in zeros.iter().enumerate() {
            put(&mut qzeros, |word| group * n_words + word, row * bits, zero.wrapping_sub(less));
        }
    }
    vec![
        words("qweight", vec![k * bits / 32, n], &qweight),
        words("qzeros", vec![n_groups, n_words], &qzeros),
        scales(solved),
        words("g_idx", vec![k], &solved.groups),
    ]
}

/// The tensors of a matrix of 4 bits in the layout of AWQ's GEMM kernels.
///
/// # Panics
///
/// When the matrix does not [fit](fits_awq), has not 4 bits, or its groups do not follow each other.
pub fn awq_tensors(solved: &Solved) -> Vec<WrittenTensor> {
    let ([n, k], n_groups) = (solved.shape, solved.n_groups());
    assert!(fits_awq(solved.shape) && solved.bits == 4, "whole words of 4 bits");
    assert!(solved.groups.is_sorted(), "groups that follow each other");
    // `[lines, outputs]` from `[outputs, lines]`.
    let packed = |values: &[u8], n_lines: usize| -> Vec<u8> {
        let mut words = vec![0_u32; n_lines * n / 8];
        for (output, line) in values.chunks_exact(n_lines).enumerate() {
            for (at, value) in line.iter().enumerate() {
                let word = &mut words[at * (n / 8) + output / 8];
                *word |= u32::from(*value) << (NIBBLE[output % 8] * 4);
            }
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let tensor = |suffix, n_lines, data| {
        let shape = vec![n_lines, n / 8];
        WrittenTensor { suffix, dtype: DType::I32, shape, data }
    };
    vec![
        tensor("qweight", k, packed(&solved.codes, k)),
        tensor("qzeros", n_groups, packed(&solved.zeros, n_groups)),
        scales(solved),
    ]
}

/// `[groups, n]` from `[n, groups]`.
fn scales(solved: &Solved) -> WrittenTensor {
    let (n, n_groups) = (solved.shape[0], solved.n_groups());
    let by_group = (0..n_groups).flat_map(|g| (0..n).map(move |row| row * n_groups + g));
    let values: Vec<f32> = by_group.map(|at| solved.scales[at]).collect();
    let data = half_scales(&values);
    WrittenTensor { suffix: "scales", dtype: DType::F16, shape: vec![n_groups, n], data }
}

/// Bytes of scales that are values of f16.
fn half_scales(scales: &[f32]) -> Vec<u8> {
    scales.iter().flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect()
}

/// A tensor of words.
fn words(suffix: &'static str, shape: Vec<usize>, words: &[u32]) -> WrittenTensor {
    let data = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    WrittenTensor { suffix, dtype: DType::I32, shape, data }
}

/// A tensor of f32.
fn floats(suffix: &'static str, shape: Vec<usize>, values: &[f32]) -> WrittenTensor {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    WrittenTensor { suffix, dtype: DType::F32, shape, data }
}

/// Puts a code at bit `at` of a stream of words, low bits first; `place` says where its words lie.
fn put(words: &mut [u32], place: impl Fn(usize) -> usize, at: usize, code: u8) {
    let code = u64::from(code) << (at % 32);
    words[place(at / 32)] |= code as u32;
    if code >> 32 != 0 {
        words[place(at / 32 + 1)] |= (code >> 32) as u32;
    }
}
