//! Readers of functions and of calls, which every dialect of conversations has.

use std::collections::HashSet;

use pelton_base::limits;
use pelton_llm::Tool;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::wire::json::{Kind, RawValue, free_within, string, typed, wrong};
use crate::wire::{Fields, SCHEMA};

/// Most calls of one message.
pub(crate) const CALLS: usize = 1 << 10;

/// A field that must be there and is not.
pub(crate) fn missing(path: &str) -> ApiError {
    ApiError::param(path, format!("`{path}` is missing"))
}

/// Expects that the field `type` says `function`.
pub(crate) fn expect_function(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let path = fields.path("type");
    match fields.string("type")?.as_deref() {
        Some("function") => Ok(()),
        Some(other) => Err(wrong(&path, "\"function\"", &Value::from(other).to_string())),
        None => Err(missing(&path)),
    }
}

/// The field `name`, which is the name of a function: letters, digits, `_`, `-` and `.`.
pub(crate) fn function_name(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let path = fields.path("name");
    let name = fields.string("name")?.ok_or_else(|| missing(&path))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if (1..=limits::TOOL_NAME_BYTES).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(name);
    }
    let expected = "1 to 64 letters, digits, underscores, hyphens and dots";
    Err(wrong(&path, expected, &Value::from(name).to_string()))
}

/// The schema of a function's arguments in the field `name`; every object where it is absent.
pub(crate) fn schema(fields: &mut Fields<'_>, name: &str) -> Result<Value, ApiError> {
    let path = fields.path(name);
    match fields.take(name) {
        None => Ok(json!({"type": "object", "properties": {}})),
        Some(raw) if Kind::of(raw) == Kind::Object => {
            free_within(&path, raw, SCHEMA)?;
            typed(&path, "a JSON schema", raw)
        }
        Some(raw) => Err(wrong(&path, "a JSON schema of an object", raw.get())),
    }
}

/// Adds a name to those that are taken; `path` names the field that holds it.
pub(crate) fn distinct(
    names: &mut HashSet<String>,
    path: &str,
    name: &str,
) -> Result<(), ApiError> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    let message = format!("`{path}`: two tools have the name `{name}`");
    Err(ApiError::param(path, message))
}

/// Checks that a tool has this name; `path` names the field that holds it.
pub(crate) fn known(path: &str, name: &str, tools: &[Tool]) -> Result<(), ApiError> {
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(());
    }
    Err(ApiError::param(path, format!("`{path}`: `tools` has no tool named `{name}`")))
}

/// A call of an earlier answer, as templates read it.
pub(crate) fn call(id: Option<String>, name: String, arguments: Value) -> Value {
    let mut call = Map::new();
    call.extend(id.map(|id| ("id".to_owned(), Value::from(id))));
    call.insert("type".to_owned(), "function".into());
    call.insert("function".to_owned(), json!({"name": name, "arguments": arguments}));
    Value::Object(call)
}

/// The arguments of a call: an object, or its JSON text.
pub(crate) fn arguments(path: &str, raw: Option<&RawValue>) -> Result<Value, ApiError> {
    const EXPECTED: &str = "an object, or its JSON text";
    let Some(raw) = raw else { return Ok(json!({})) };
    let text;
    let raw = match Kind::of(raw) {
        Kind::String => {
            let sent = string(path, raw)?;
            if sent.trim().is_empty() {
                return Ok(json!({}));
            }
            text = RawValue::from_string(sent).map_err(|_| wrong(path, EXPECTED, raw.get()))?;
            &*text
        }
        _ => raw,
    };
    if Kind::of(raw) != Kind::Object {
        return Err(wrong(path, EXPECTED, raw.get()));
    }
    free_within(path, raw, SCHEMA)?;
    typed(path, EXPECTED, raw)
}
