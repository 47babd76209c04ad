//! Errors between a path and a running model.

use std::path::PathBuf;

use pelton_quant::QuantError;
use pelton_tensor::{ByteSize, TensorError};

use crate::fields::ConfigError;

/// A model that cannot be opened or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The path holds nothing that looks like a model.
    #[error("{}: not a model: {why}", path.display())]
    NotAModel {
        /// The path given.
        path: PathBuf,
        /// The thing that was looked for.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The configuration cannot be used.
    #[error("{}: {source}", file.display())]
    Config {
        /// `config.json`, or the GGUF file.
        file: PathBuf,
        /// The field and what is wrong with it.
        source: ConfigError,
    },
    /// The weights' container is damaged.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The configuration asks for a tensor that is not there.
    #[error("{}: tensor `{tensor}` of shape {shape:?} is missing", file.display())]
    MissingTensor {
        /// The checkpoint.
        file: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape that the configuration asks for.
        shape: Vec<usize>,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("{}: tensor `{tensor}`: expected shape {expected:?}, found {found:?}", file.display())]
    Shape {
        /// The checkpoint.
        file: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape that the configuration asks for.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is stored in a way that cannot be computed with.
    #[error("{}: {source}", file.display())]
    Format {
        /// The checkpoint.
        file: PathBuf,
        /// The tensor, its type, and the known ones.
        source: QuantError,
    },
    /// The kernels asked for cannot run here.
    #[error(transparent)]
    Kernels(#[from] pelton_kernels::UnknownKernels),
    /// A longer context than the model reaches.
    #[error("the context: expected 1 to {most} tokens, as far as this model reaches, got {asked}")]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Most tokens possible.
        most: usize,
    },
    /// A model on more than one rank.
    #[error("{n_ranks} ranks: a model runs on one rank, because weights are not split yet")]
    Ranks {
        /// Size of the communicator.
        n_ranks: usize,
    },
    /// The weights are larger than the memory there is.
    #[error(
        "{}: the weights need {} of memory, expected at most the {} available",
        file.display(),
        ByteSize(*needed_bytes),
        ByteSize(*available_bytes)
    )]
    Memory {
        /// The checkpoint.
        file: PathBuf,
        /// Bytes of all packed weights.
        needed_bytes: u64,
        /// Bytes that the machine can still give.
        available_bytes: u64,
    },
    /// Weights that are quantized already were to be rounded while they are loaded.
    #[error(
        "{}: only weights in f32, f16 or bf16 are rounded to {to} at a load, and it has {found}",
        file.display()
    )]
    Rounded {
        /// The checkpoint.
        file: PathBuf,
        /// The format asked for.
        to: &'static str,
        /// The method of the checkpoint, or the tensor and its type.
        found: String,
    },
    /// A file is where one was to be written.
    #[error("{}: there is a file already", file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// The model cannot be written in the format asked for.
    #[error("cannot export: {0}")]
    Export(String),
}

impl ModelError {
    /// Whether there is too little memory for the weights.
    pub fn lacks_memory(&self) -> bool {
        match self {
            Self::Memory { .. } | Self::Format { source: QuantError::Memory { .. }, .. } => true,
            Self::Tensor(TensorError::Io { source, .. }) => {
                source.kind() == std::io::ErrorKind::OutOfMemory
            }
            _ => false,
        }
    }

    pub(crate) fn io(file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.into();
        move |source| Self::Io { file, source }
    }

    pub(crate) fn config(file: impl Into<PathBuf>) -> impl FnOnce(ConfigError) -> Self {
        let file = file.into();
        move |source| Self::Config { file, source }
    }
}
