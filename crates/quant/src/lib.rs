//! Weight formats: how weights are stored, what the stored bits mean, and how they are packed.
//!
//! **Formats are many, kernels are few.** A [`WeightFormat`] is one file under `formats/`: a scalar
//! quantizer and a scalar dequantizer, and the dequantizer is the specification. [`pack`] writes
//! stored rows in one of the few layouts that kernels read, and changes no value: a packed row
//! unpacks to the bits that its format dequantizes to. Packed weights take as many bytes as stored
//! ones, except for seven formats of 1.5 to 3.5 bits, which grow: see `formats/lattice`.
//!
//! A new format is a new file and one line in [`FORMATS`]; that line enrols it in every test.
//!
//! [`solve`] chooses codes: rounding to nearest, GPTQ, AWQ.
//!
//! Checkpoints whose matrices are spread over several tensors (GPTQ, AWQ, ...) are the subject of
//! [`checkpoint`].
#![forbid(unsafe_code)]

pub mod checkpoint;
mod error;
mod fit;
mod formats;
mod packing;
mod quip;
mod rotation;
pub mod solve;

pub use error::{QuantError, Result};
pub use formats::{
    FORMATS, Rewrite, RoundTo, WeightFormat, Weighted, fitting, for_dtype, for_name,
    supported_names,
};
pub use packing::{
    Compute, dequantize_tensor, pack, pack_bands, pack_rounded, packed_size, quantize_tensor,
    quantize_weighted,
};
pub use rotation::Rotation;
