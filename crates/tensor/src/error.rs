//! Errors of checkpoint files.

use std::io;
use std::path::{Path, PathBuf};

use crate::DType;

/// A file that cannot be read, or that does not hold what it claims to hold.
///
/// Every message is one line that names the file and the field; text taken from the file is escaped
/// and shortened, since the file may be hostile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The system refused to open, read or write the file.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A field does not hold the expected content.
    #[error("{}: {field}: expected {expected}, got {got}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The field, with the tensor or key it belongs to.
        field: String,
        /// The expected content.
        expected: String,
        /// The content.
        got: String,
    },
    /// A tensor has an element type that is not known.
    #[error("{}: tensor `{tensor}`: unknown element type {got}; known types: {known}", file.display())]
    UnknownDType {
        /// The file.
        file: PathBuf,
        /// The tensor, escaped.
        tensor: String,
        /// The type as the file gives it.
        got: String,
        /// Every type that this kind of file may hold.
        known: String,
    },
    /// A split GGUF model lacks one of its files.
    #[error("{}: part {number} of {count} is missing", file.display())]
    MissingPart {
        /// The file that is missing.
        file: PathBuf,
        /// Number of the part, from 1.
        number: usize,
        /// Number of parts.
        count: usize,
    },
    /// The index of a sharded checkpoint names a file that is not there.
    #[error("{}: shard `{shard}` is missing, though the index names it", folder.display())]
    MissingShard {
        /// The folder of the checkpoint.
        folder: PathBuf,
        /// The file that is missing.
        shard: String,
    },
}

/// Result of reading or writing a checkpoint file.
pub type Result<T> = std::result::Result<T, TensorError>;

impl TensorError {
    /// The file or folder that the error is about.
    pub fn file(&self) -> &Path {
        match self {
            Self::Io { file, .. } | Self::Malformed { file, .. } => file,
            Self::UnknownDType { file, .. } | Self::MissingPart { file, .. } => file,
            Self::MissingShard { folder, .. } => folder,
        }
    }

    pub(crate) fn io(file: &Path, source: io::Error) -> Self {
        Self::Io { file: file.to_owned(), source }
    }

    pub(crate) fn malformed(
        file: &Path,
        field: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self::Malformed {
            file: file.to_owned(),
            field: field.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    pub(crate) fn unknown_dtype(
        file: &Path,
        tensor: &str,
        got: String,
        is_known: fn(DType) -> bool,
    ) -> Self {
        let known: Vec<&str> = DType::all().filter(|&d| is_known(d)).map(DType::name).collect();
        Self::UnknownDType {
            file: file.to_owned(),
            tensor: shown(tensor),
            got,
            known: known.join(", "),
        }
    }
}

/// Text from a file made fit for a message: control characters escaped, at most 80 characters.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut out: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        out.push('…');
    }
    out
}

/// [`shown`] for bytes that may not be UTF-8.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(&bytes[..bytes.len().min(400)]))
}
