//! Why a cache is not used.

/// A cache that is not believed. The message stands after the file's name.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejected {
    /// There is no such file, or no folder for it; writing the cache reports a missing folder.
    #[error("there is none")]
    Missing,
    /// The system does not give it.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It is something else, or damaged.
    #[error("{field}: expected {expected}, got {got}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// The value that it must hold.
        expected: String,
        /// The value that it holds.
        got: String,
    },
    /// It is in order, but made from or for something else.
    #[error("{0}")]
    Other(&'static str),
    /// It lacks a matrix, or has another one in its place.
    #[error("matrix `{recipe}`: {why}")]
    Matrix {
        /// The recipe.
        recipe: String,
        /// Why it is refused.
        why: &'static str,
    },
}

impl Rejected {
    /// A field that does not hold what it must.
    pub(super) fn malformed(
        field: &'static str,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
    ) -> Self {
        Self::Malformed { field, expected: expected.to_string(), got: got.to_string() }
    }
}
