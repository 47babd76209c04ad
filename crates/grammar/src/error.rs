//! The reason why a form cannot be enforced.

/// A form that is refused, with the place that is at fault.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}{why}", Self::prefix(path))]
pub struct GrammarError {
    /// The part of the request that is at fault, such as
    /// `response_format.json_schema.schema.properties.a.oneOf`; empty where the form has no place of
    /// its own in the request.
    pub path: String,
    /// The reason, and the fix where there is one.
    pub why: String,
}

impl GrammarError {
    pub(crate) fn new(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), why: why.into() }
    }

    fn prefix(path: &str) -> String {
        if path.is_empty() { String::new() } else { format!("{path}: ") }
    }
}
