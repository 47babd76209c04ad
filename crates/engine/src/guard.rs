//! The border around one request: a panic inside becomes an error of that request alone.
//!
//! Rules, logits processors, proposers, detokenizers and chat templates run code that a request
//! chooses. A bug in them must not end the answers of other requests, so each call into them goes
//! through [`guard`]. The code around the call drops what the panic may have left half changed.

#[cfg(panic = "abort")]
compile_error!("a panic must unwind: the engine ends the request that caused it and goes on");

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic that was caught at the border of one request.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("this is a bug in Pelton: {part} panicked: {message}")]
pub struct Panicked {
    /// The part of the request's work that panicked.
    pub part: &'static str,
    /// The message of the panic.
    pub message: String,
}

/// The reason why one answer failed while the others went on.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Code of the request panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// No token may come next.
    #[error("no token may come next: {0}")]
    Stuck(String),
    /// The model computed no number for any token.
    #[error("the model computed no finite logit: its weights or its KV are damaged")]
    Damaged,
    /// The engine did not come back from a step.
    #[error("this is a bug in Pelton: a step of the engine hung, and the engine was given up")]
    Hung,
}

impl Fault {
    /// Whether the request itself is the cause, and would fail again.
    pub fn is_of_request(&self) -> bool {
        matches!(self, Self::Stuck(_))
    }
}

/// Calls `work`; a panic in it is logged and comes back as an error that names `part`.
///
/// The caller makes sure that nothing which `work` may have left half changed is used again.
///
/// # Errors
///
/// When `work` panics.
pub fn guard<T>(part: &'static str, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let panicked = Panicked { part, message: text.unwrap_or("no message").to_owned() };
        tracing::error!(part, message = panicked.message, "caught a panic");
        panicked
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_without_a_way_on_is_the_fault_of_its_request_alone() {
        assert!(Fault::Stuck("no letter fits".to_owned()).is_of_request());
        let panicked = Panicked { part: "the sampler", message: "a bug".to_owned() };
        for fault in [Fault::Panicked(panicked), Fault::Damaged, Fault::Hung] {
            assert!(!fault.is_of_request(), "{fault}");
        }
    }
}
