//! Labels of a client, which are kept and sent back.

use serde_json::Value;

use super::Fields;
use super::json::{RawValue, free, wrong};
use crate::error::ApiError;

/// Most pairs of `metadata`.
const PAIRS: usize = 16;

/// Reads `metadata`: an object of texts, as it was sent.
///
/// # Errors
///
/// Names `metadata` where it is something else.
pub(crate) fn metadata<'a>(fields: &mut Fields<'a>) -> Result<Option<&'a RawValue>, ApiError> {
    let Some(raw) = fields.take("metadata") else { return Ok(None) };
    let is_fine = match free("metadata", raw)? {
        Value::Object(pairs) => pairs.len() <= PAIRS && pairs.values().all(Value::is_string),
        _ => false,
    };
    match is_fine {
        true => Ok(Some(raw)),
        false => Err(wrong("metadata", &format!("an object of at most {PAIRS} texts"), raw.get())),
    }
}
