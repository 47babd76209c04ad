//! Checkpoint to logits: architecture specs, one decoder, the loader, and the device seam.
//!
//! # The chapter
//!
//! ```text
//! path ── ModelFiles ──> HfConfig ── arch ──> ArchSpec ─┐
//!                └── tensors ─────────────────── load ──┴──> Decoder<D> ── forward ──> logits
//! ```
//!
//! * [`ModelFiles`] opens what lies at a path, a Hugging Face folder or a GGUF file, and trusts
//!   none of it: [`parse_config`] and the GGUF reader check every number before anything uses it.
//! * [`arch`] turns a config into an [`ArchSpec`]. A family is one small file of data.
//! * [`load()`] looks up every tensor the spec asks for, undoes the quirks of the file (stacked,
//!   permuted or differently named tensors) and packs the weights for the kernels, or maps them as an
//!   earlier load packed them ([`PackedCache`]).
//! * [`Decoder`] runs any spec on any [`Device`] with its [`Ops`]; [`CpuDevice`] is the one here.
//! * [`LayerWalk`] runs one layer at a time and shows what its matrices read, for quantizers.
//! * [`VectorModel`](embed::VectorModel) makes vectors of texts, where these are what a model is for.
//! * [`export()`] writes a model as a GGUF file, which is how one is converted, quantized or embedded.
//!
//! **Architecture invariant:** quirks die at load time. Nothing after [`load()`] knows the name of
//! an architecture, a file format or a weight format.
#![forbid(unsafe_code)]

pub mod arch;
mod comm;
mod config;
mod decoder;
pub mod device;
pub mod embed;
mod error;
mod export;
mod fields;
mod files;
mod inspect;
mod kv;
pub mod layer;
mod load;
mod outline;
mod parameters;
pub mod rope;
mod state;
mod wrapper;

pub use arch::{ARCHS, Arch, ArchSpec, ENCODER_DECODERS, ENCODERS, EncoderSpec, LayerSpec, Mixer};
pub use comm::{Communicator, SoleRank};
pub use config::{HfConfig, Window, parse_config};
pub use decoder::{
    Decoder, ForwardInput, Lap, LayerWalk, Reads, ScoredRows, StepOp, Tap, TextRows,
};
pub use device::cpu::{CpuDevice, load_cpu};
pub use device::{BlockTables, Device, ForwardSequence, GreedyRows, Ops, PackedBytes, PackedForm};
pub use error::ModelError;
pub use export::{
    ExportOptions, ExportProgress, GgufMatrix, Importance, export, export_gguf, gguf_left_out,
    gguf_matrices,
};
pub use fields::ConfigError;
pub use files::{ModelFiles, ModelKind};
pub use inspect::{Ignored, InspectedEncoder, Inspection, Quantization, TensorTotals, inspect};
pub use kv::{KvFootprint, KvPlace, KvShape, NarrowKv, SwapStore};
pub use layer::KvHeads;
pub use load::{
    ExpertSlice, FoldNorm, LayerMatrix, LayerShape, LoadOptions, LoadProgress, PackedCache,
    StoredRows, StreamEnds, check, layer_shape, load, outer_modules, packed_bytes, stored_bytes,
    stream_ends,
};
pub use outline::ModelOutline;
pub use parameters::{MatrixRole, MatrixShape, Parameters};
pub use pelton_quant::checkpoint::Scheme;
pub use pelton_quant::{Compute, RoundTo};
pub use pelton_tensor::{
    ActivationGroup, KvDtype, StateDtype, UnknownKvDtype, available_memory_bytes,
};
pub use state::{CHUNK_TOKENS, Lane, StateBytes, StateCopy, StateLayer, StateShape};
