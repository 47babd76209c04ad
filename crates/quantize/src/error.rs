//! Why a checkpoint cannot be quantized.

use std::path::PathBuf;

use pelton_model::ModelError;
use pelton_quant::solve::SolveError;
use pelton_tensor::TensorError;

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, QuantizeError>;

/// Why a checkpoint cannot be quantized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// An option that is out of range; names it as the flag of `pelton quantize`.
    #[error("{0}")]
    Option(String),
    /// The source is not one that can be quantized.
    #[error("{}: {why}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// The reason, and what was expected.
        why: String,
    },
    /// A matrix cannot be quantized.
    #[error("`{module}`: {source}")]
    Matrix {
        /// Name of its module.
        module: String,
        /// The reason.
        source: SolveError,
    },
    /// A matrix whose shape the files cannot hold.
    #[error("`{module}` is {shape:?}: {expected}")]
    Shape {
        /// Name of its module.
        module: String,
        /// Outputs and inputs.
        shape: [usize; 2],
        /// A description of a shape that fits.
        expected: String,
    },
    /// The calibration text is too short.
    #[error("the calibration text has {n_tokens} tokens: expected at least {least}")]
    Calibration {
        /// Tokens that there are.
        n_tokens: usize,
        /// Tokens that are needed.
        least: usize,
    },
    /// Something is where the folder is to be.
    #[error("{}: there is something already", .0.display())]
    Exists(PathBuf),
    /// The beginning of a folder, left by a run that did not end, is in the way or is another one's.
    #[error("{}: {why}", folder.display())]
    Partial {
        /// The unfinished folder.
        folder: PathBuf,
        /// The reason, and a way out.
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
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The folder that was written cannot be loaded, so it did not get its name.
    #[error("reading the result back: {0}")]
    ReadBack(ModelError),
    /// A file of tensors cannot be written.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl QuantizeError {
    pub(crate) fn io(file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.into();
        move |source| Self::Io { file, source }
    }

    pub(crate) fn matrix(module: &str) -> impl FnOnce(SolveError) -> Self + '_ {
        move |source| Self::Matrix { module: module.to_owned(), source }
    }
}
