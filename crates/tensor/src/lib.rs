//! Arrays: dtypes, shapes, aligned buffers, memory maps, safetensors and GGUF readers and writers;
//! no arithmetic.
//!
//! A checkpoint is a [`TensorSource`]: names that lead to [`TensorView`]s, which borrow the bytes
//! of a mapped file. Nothing is copied and nothing is converted here.
//!
//! **Every file is hostile.** A length is compared with the bytes that are really there before it
//! is used for anything; sums and products are checked; memory grows with the file's real size and
//! never with a number that the file claims. Malformed files are refused with a [`TensorError`]
//! that names the file and the field.

mod activation_group;
mod aligned;
mod dtype;
mod error;
mod gguf;
mod json;
mod kv_dtype;
mod mapped;
mod memory;
mod pending;
mod regular;
mod safetensors;
mod source;
mod state_dtype;

pub use activation_group::ActivationGroup;
pub use aligned::{ALIGNMENT, AlignedBuf, AlignedVec, PagePool, Part, Placement};
pub use dtype::DType;
pub use error::{Result, TensorError};
pub use gguf::{Gguf, GgufArray, GgufData, GgufPartName, GgufValue, GgufWriter, gguf_file_type};
pub use kv_dtype::{KvDtype, UnknownKvDtype};
pub use mapped::{LOST_FILE_EXIT_CODE, MappedFile, handle_file_signals};
pub use memory::{
    ByteSize, ExplainingAllocator, MemoryLeft, MemoryRefused, NO_MEMORY_EXIT_CODE,
    available_memory_bytes, give_free_memory_back, handle_memory_signal, limit_arenas,
};
pub use pending::PendingFile;
pub use regular::{open_regular, read_limited, read_limited_text};
pub use safetensors::{Safetensors, write_safetensors};
pub use source::{TensorSource, TensorView};
pub use state_dtype::StateDtype;
