//! Errors of tokenizers.

use std::path::{Path, PathBuf};

/// A tokenizer that cannot be built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file or text is larger than its limit.
    #[error("{what} has {n_bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// The file, or the name of the text.
        what: String,
        /// Its size, in bytes.
        n_bytes: u64,
        /// Most bytes allowed.
        limit: u64,
    },
    /// A file has malformed content.
    #[error("{origin}: {reason}")]
    Malformed {
        /// The file.
        origin: String,
        /// The field and its expected content.
        reason: String,
    },
    /// A file is well formed but needs a feature that is not supported.
    #[error("{origin}: {field} `{found}` is not supported; known are {known}")]
    Unsupported {
        /// The file.
        origin: String,
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// Values that are supported.
        known: String,
    },
    /// A GGUF file or its metadata cannot be read.
    #[error(transparent)]
    Gguf {
        /// The reader's error, which names the file and the key.
        source: Box<pelton_tensor::TensorError>,
    },
    /// A text has more tokens than its limit.
    #[error("the prompt has more than {at_least} tokens; at most {limit} fit into the context")]
    TooManyTokens {
        /// Tokens counted before giving up.
        at_least: usize,
        /// Most tokens allowed.
        limit: usize,
    },
    /// Text could not be encoded.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// The reason.
        reason: String,
    },
}

impl TextError {
    pub(crate) fn malformed(origin: &str, reason: impl std::fmt::Display) -> Self {
        Self::Malformed { origin: origin.to_owned(), reason: reason.to_string() }
    }
}

/// Reads a whole file after checking that it is at most `limit` bytes long.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, TextError> {
    use std::io::Read;

    let read_error = |source| TextError::Read { path: path.to_owned(), source };
    // The kind is checked before opening, because opening a named pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        let what = "expected a regular file";
        return Err(read_error(std::io::Error::new(std::io::ErrorKind::InvalidInput, what)));
    }
    let file = std::fs::File::open(path).map_err(read_error)?;
    let too_large =
        |n_bytes| TextError::TooLarge { what: path.display().to_string(), n_bytes, limit };
    let n_bytes = file.metadata().map_err(read_error)?.len();
    if n_bytes > limit {
        return Err(too_large(n_bytes));
    }
    // The size may be wrong (a growing file, a device), so the reading itself is limited too.
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Like [`read_limited`], but a file that does not exist is no error.
pub(crate) fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    match read_limited(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(TextError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
