//! The conversation of a request: `system` and `messages`, whose contents are texts or blocks.

use serde_json::Value;

use crate::error::ApiError;
use crate::limits;
use crate::routes::conversation::{Turns, arguments, function_name, missing};
use crate::wire::json::{Kind, RawValue, each, free, string, wrong};
use crate::wire::{Accept, Fields, check_unhonoured};

const TEXT_OR_BLOCKS: &str = "a string or an array of blocks";
/// Beginning of a block that Claude Code writes for its own accounts. It differs from request to
/// request, so as a part of the prompt it would make every cached prefix useless.
const BILLING: &str = "x-anthropic-billing-header:";
/// Mark of a result that is an error; templates have no field for it.
const ERROR_MARK: &str = "Error: ";

/// Fields of blocks that change no token.
const UNHONOURED: &[(&str, Accept)] = &[
    // Every prompt is cached, by its prefix.
    ("cache_control", Accept::Anything),
    ("citations", Accept::Anything),
    ("caller", Accept::Anything),
];

/// Reads `system` and `messages` into the turns of a conversation.
///
/// # Errors
///
/// Names the field that is wrong.
pub(crate) fn conversation(fields: &mut Fields<'_>) -> Result<Turns, ApiError> {
    let mut turns = Turns::default();
    if let Some(raw) = fields.take("system") {
        system(raw, &mut turns)?;
    }
    let messages =
        fields.list("messages", limits::MESSAGES, |path, raw| message(path, raw, &mut turns))?;
    let messages = messages.ok_or_else(|| missing("messages"))?;
    // The last answer may be empty: it is then the one that is asked for.
    let Some((last, before)) = messages.split_last() else {
        return Err(ApiError::param("messages", "`messages` is empty: expected at least one"));
    };
    let empty = before.iter().position(|message| message.is_empty);
    let empty = empty.or((last.is_empty && last.role == "user").then_some(before.len()));
    if let Some(idx) = empty {
        let path = format!("messages[{idx}].content");
        let message = format!("`{path}` is empty: expected a text, or at least one block");
        return Err(ApiError::param(&path, message));
    }
    Ok(turns)
}

/// A message that was read.
struct Read {
    role: &'static str,
    /// Whether it has no block.
    is_empty: bool,
}

fn system(raw: &RawValue, turns: &mut Turns) -> Result<(), ApiError> {
    match Kind::of(raw) {
        Kind::String => turns.text("system", string("system", raw)?),
        Kind::Array => each("system", raw, limits::CONTENT_PARTS, |i, raw| {
            let text = text_alone(&format!("system[{i}]"), raw)?;
            if !text.starts_with(BILLING) {
                turns.text("system", text);
            }
            Ok(())
        })?,
        _ => return Err(wrong("system", TEXT_OR_BLOCKS, raw.get())),
    }
    Ok(())
}

fn message(path: &str, raw: &RawValue, turns: &mut Turns) -> Result<Read, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let role_path = fields.path("role");
    let role = match fields.string("role")?.as_deref() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some(other) => {
            let got = Value::from(other).to_string();
            return Err(wrong(&role_path, "\"user\" or \"assistant\"", &got));
        }
        None => return Err(missing(&role_path)),
    };
    let content_path = fields.path("content");
    let raw = fields.take("content").ok_or_else(|| missing(&content_path))?;
    fields.finish()?;
    let mut is_empty = false;
    match Kind::of(raw) {
        Kind::String => turns.text(role, string(&content_path, raw)?),
        Kind::Array => {
            is_empty = true;
            each(&content_path, raw, limits::CONTENT_PARTS, |i, raw| {
                is_empty = false;
                block(&format!("{content_path}[{i}]"), role, raw, turns)
            })?;
        }
        _ => return Err(wrong(&content_path, TEXT_OR_BLOCKS, raw.get())),
    }
    Ok(Read { role, is_empty })
}

/// Reads one block of a message.
fn block(path: &str, role: &str, raw: &RawValue, turns: &mut Turns) -> Result<(), ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    let kind = fields.string("type")?.ok_or_else(|| missing(&kind_path))?;
    check_unhonoured(&mut fields, UNHONOURED)?;
    match (kind.as_str(), role) {
        ("text", _) => {
            let text = required_text(&mut fields, "text")?;
            turns.text(role, text);
        }
        ("thinking", "assistant") => {
            let thought = required_text(&mut fields, "thinking")?;
            // Thoughts are not signed here, so every signature will do.
            fields.string("signature")?;
            turns.thought(&thought);
        }
        ("tool_use", "assistant") => {
            let id = required_text(&mut fields, "id")?;
            let name = function_name(&mut fields)?;
            let input_path = fields.path("input");
            let input = fields.take("input");
            turns.call(id, name, arguments(&input_path, input)?);
        }
        ("tool_result", "user") => {
            let id = required_text(&mut fields, "tool_use_id")?;
            let is_error = fields.bool("is_error")?.unwrap_or(false);
            let text = result_text(&mut fields)?;
            let mark = if is_error { ERROR_MARK } else { "" };
            turns.result(id, format!("{mark}{text}"));
        }
        (other, _) => return Err(unsupported(&kind_path, other, role)),
    }
    fields.finish()
}

/// A block that is not read here, or not from this role.
fn unsupported(path: &str, kind: &str, role: &str) -> ApiError {
    let message = match kind {
        "thinking" | "tool_use" | "tool_result" => {
            format!("`{path}`: a message of the {role} cannot have blocks of type `{kind}`")
        }
        "redacted_thinking" => format!(
            "`{path}`: blocks of type `redacted_thinking` hold text that only its maker can read; \
             leave them out"
        ),
        other => {
            let other = crate::wire::json::brief(other);
            format!("`{path}`: blocks of type `{other}` are not supported yet")
        }
    };
    ApiError::param(path, message)
}

/// The text of a result: a string, blocks of text, or nothing.
fn result_text(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let path = fields.path("content");
    let Some(raw) = fields.take("content") else { return Ok(String::new()) };
    match Kind::of(raw) {
        Kind::String => string(&path, raw),
        Kind::Array => {
            let mut all = String::new();
            each(&path, raw, limits::CONTENT_PARTS, |i, raw| {
                all.push_str(if i > 0 { "\n" } else { "" });
                all.push_str(&text_alone(&format!("{path}[{i}]"), raw)?);
                Ok(())
            })?;
            Ok(all)
        }
        _ => Err(wrong(&path, TEXT_OR_BLOCKS, raw.get())),
    }
}

/// The text of a block where only text may be.
fn text_alone(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    match fields.string("type")?.as_deref() {
        Some("text") => {}
        Some(other) => return Err(unsupported(&kind_path, other, "user")),
        None => return Err(missing(&kind_path)),
    }
    check_unhonoured(&mut fields, UNHONOURED)?;
    let text = required_text(&mut fields, "text")?;
    fields.finish()?;
    Ok(text)
}

fn required_text(fields: &mut Fields<'_>, name: &str) -> Result<String, ApiError> {
    fields.string(name)?.ok_or_else(|| missing(&fields.path(name)))
}

/// Reads `cache_control`, which changes no token; only its size and shape are checked.
pub(crate) fn cache_control(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let path = fields.path("cache_control");
    fields.take("cache_control").map_or(Ok(()), |raw| free(&path, raw).map(drop))
}
