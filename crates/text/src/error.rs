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
    /// The code that reads or uses the tokenizer panicked.
    #[error("the tokenizer panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
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

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, TextError> {
    pelton_tensor::read_limited(path, limit).map_err(|source| match source.kind() {
        std::io::ErrorKind::FileTooLarge => TextError::TooLarge {
            what: path.display().to_string(),
            n_bytes: std::fs::metadata(path).map_or(0, |file| file.len()).max(limit + 1),
            limit,
        },
        _ => TextError::Read { path: path.to_owned(), source },
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_not_there_may_be_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        assert_eq!(read_optional(&path, 2).expect("no file"), None);
        std::fs::write(&path, "ab").expect("written");
        assert_eq!(read_optional(&path, 2).expect("a file").as_deref(), Some(&b"ab"[..]));
        let error = read_optional(&path, 1).expect_err("too large").to_string();
        assert!(error.contains("has 2 bytes; the limit is 1"), "{error}");
        let error = read_optional(folder.path(), 1).expect_err("a folder").to_string();
        assert!(error.starts_with("cannot read"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_says_it_is_empty_is_too_large_all_the_same() {
        let error = read_limited(Path::new("/proc/version"), 3).expect_err("too large").to_string();
        assert!(error.contains("has 4 bytes; the limit is 3"), "{error}");
    }
}
