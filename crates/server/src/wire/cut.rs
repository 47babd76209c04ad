//! Fields that cut texts which are too long, under the names of several servers.

use pelton_llm::Cut;

use super::Fields;
use super::json::wrong;
use crate::error::ApiError;

/// Reads `truncate` (and Jina's `truncation`), vLLM's `truncate_prompt_tokens`, and Cohere's
/// `max_tokens_per_doc` (Jina's `max_doc_length`).
///
/// # Errors
///
/// Names the field that is out of range, or that contradicts another.
pub(crate) fn cut(fields: &mut Fields<'_>) -> Result<Cut, ApiError> {
    let names = ["truncate", "truncation"];
    let flags = names.map(|name| fields.bool(name));
    let [truncate, truncation] = flags;
    let is_cut = truncate?.or(truncation?).unwrap_or(false);
    // The longest pair that the model takes is the limit anyway.
    let whole = is_cut.then_some(usize::MAX);
    let given = fields.i64("truncate_prompt_tokens")?;
    let pair_tokens = match given {
        None => whole,
        Some(-1) => Some(usize::MAX),
        Some(n) => Some(positive("truncate_prompt_tokens", n)?),
    };
    let mut document_tokens = None;
    for name in ["max_tokens_per_doc", "max_doc_length"] {
        if let Some(n) = fields.i64(name)? {
            document_tokens = Some(positive(name, n)?);
        }
    }
    Ok(Cut { pair_tokens, document_tokens })
}

fn positive(name: &str, n: i64) -> Result<usize, ApiError> {
    let number = usize::try_from(n).ok().filter(|n| *n > 0);
    number.ok_or_else(|| wrong(name, "a whole number from 1 on", &n.to_string()))
}
