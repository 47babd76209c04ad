//! Weight formats: how weights are stored, what the stored bits mean, and how they reach a kernel.
//!
//! **Formats are many, kernels are few.** A [`WeightFormat`] is one file under `formats/`: a scalar
//! quantizer and a scalar dequantizer, of which the dequantizer is the specification. [`pack`]
//! brings stored rows into one of the few layouts that kernels read, and changes no value on the
//! way: what a packed row unpacks to has the same bits as what the format dequantizes to. Packed
//! weights take what stored ones do, but for seven formats of 1.5 to 3.5 bits, which grow: see
//! `formats/lattice`.
//!
//! A new format is a new file and one line in [`FORMATS`]; that line enrols it in every test.
//!
//! Checkpoints whose matrices are spread over several tensors (GPTQ, AWQ, ...) are the subject of
//! [`checkpoint`].
#![forbid(unsafe_code)]

pub mod checkpoint;
mod error;
mod fit;
mod formats;
mod packing;

pub use error::{QuantError, Result};
pub use formats::{FORMATS, Rewrite, WeightFormat, fitting, for_dtype, for_name, supported_names};
pub use packing::{Compute, dequantize_tensor, pack, pack_bands, packed_bytes, quantize_tensor};
