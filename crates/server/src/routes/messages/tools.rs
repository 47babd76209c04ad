//! `tools` and `tool_choice` of a request.

use std::collections::HashSet;

use pelton_base::limits;
use pelton_llm::{ChatOptions, Tool, ToolChoice};
use serde_json::Value;

use super::blocks::cache_control;
use crate::error::ApiError;
use crate::routes::conversation::{distinct, function_name, known, missing, schema};
use crate::wire::json::{RawValue, brief, wrong};
use crate::wire::{Accept, Fields, check_unhonoured};

/// Fields of a tool that change no token.
const UNHONOURED: &[(&str, Accept)] = &[
    ("eager_input_streaming", Accept::OneOf(&["true", "false"])),
    ("defer_loading", Accept::Only("false")),
    ("allowed_callers", Accept::Only("[\"direct\"]")),
    ("input_examples", Accept::Empty),
];

/// Reads the tools and the choice among them into `options`.
///
/// # Errors
///
/// Names the field that is wrong, a name that is given twice, and a choice of a tool that is not
/// there.
pub(crate) fn tools(fields: &mut Fields<'_>, options: &mut ChatOptions) -> Result<(), ApiError> {
    let mut names = HashSet::new();
    let tools = fields.list("tools", limits::TOOLS, |path, raw| {
        let tool = tool(path, raw)?;
        distinct(&mut names, &format!("{path}.name"), &tool.name)?;
        Ok(tool)
    })?;
    options.tools = tools.unwrap_or_default();
    let Some(raw) = fields.take("tool_choice") else { return Ok(()) };
    let mut choice = Fields::nested("tool_choice", raw)?;
    let kind_path = choice.path("type");
    let kind = choice.string("type")?.ok_or_else(|| missing(&kind_path))?;
    options.tool_choice = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => {
            let name = function_name(&mut choice)?;
            known("tool_choice.name", &name, &options.tools)?;
            ToolChoice::Named(name)
        }
        _ => {
            let got = Value::from(kind).to_string();
            return Err(wrong(&kind_path, "auto, any, tool or none", &got));
        }
    };
    let is_single = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    options.parallel_tool_calls = !is_single;
    choice.finish()?;
    if options.tools.is_empty() && options.tool_choice == ToolChoice::Required {
        let message = "`tool_choice` asks for a call, and `tools` has no tool";
        return Err(ApiError::param("tool_choice", message));
    }
    Ok(())
}

fn tool(path: &str, raw: &RawValue) -> Result<Tool, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    let kind = fields.string("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        let kind = brief(&kind);
        let message = format!(
            "`{kind_path}`: tools of type `{kind}` are not supported; a tool of \
            type `custom` has an `input_schema`"
        );
        return Err(ApiError::param(kind_path, message));
    }
    let name = function_name(&mut fields)?;
    let description = fields.string("description")?;
    let strict = fields.bool("strict")?.unwrap_or(false);
    cache_control(&mut fields)?;
    check_unhonoured(&mut fields, UNHONOURED)?;
    let schema_path = fields.path("input_schema");
    if !fields.has("input_schema") {
        return Err(missing(&schema_path));
    }
    let parameters = schema(&mut fields, "input_schema")?;
    fields.finish()?;
    Ok(Tool { name, description, parameters, strict, place: None })
}
