//! `tools` and `tool_choice` of a request.

use std::collections::HashSet;

use pelton_base::limits;
use pelton_llm::{Tool, ToolChoice};
use serde_json::Value;

use crate::error::ApiError;
use crate::routes::conversation::{
    distinct, expect_function, function_name, known, missing, schema,
};
use crate::wire::json::{Kind, RawValue, free_within, string, wrong};
use crate::wire::{Accept, Fields, Ignored, SCHEMA, check_unhonoured};

/// Fields of a function that change no token.
const UNHONOURED: &[(&str, Accept)] = &[
    ("defer_loading", Accept::Only("false")),
    ("allowed_callers", Accept::Only("[\"direct\"]")),
    ("async", Accept::Only("false")),
];

/// The tools of a request that the model may call, and the choice among them.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) tools: Vec<Tool>,
    /// The same tools as they were sent.
    pub(crate) sent: Vec<Box<RawValue>>,
    pub(crate) choice: ToolChoice,
    /// The choice as it was sent.
    pub(crate) sent_choice: Box<RawValue>,
}

impl Tools {
    /// Reads `tools` and `tool_choice`. Tools that are no functions are left out, which `ignored`
    /// tells.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong, a name that is given twice, and a choice of a tool that is
    /// not there.
    pub(crate) fn read(fields: &mut Fields<'_>, ignored: &mut Ignored) -> Result<Self, ApiError> {
        let auto = RawValue::from_string("\"auto\"".to_owned());
        let mut all = Self {
            tools: Vec::new(),
            sent: Vec::new(),
            choice: ToolChoice::Auto,
            sent_choice: auto.expect("invariant: a string is JSON"),
        };
        let (mut names, mut place) = (HashSet::new(), 0..);
        fields.list("tools", limits::TOOLS, |path, raw| {
            let place = place.next();
            match tool(path, raw)? {
                Some(tool) => {
                    distinct(&mut names, &format!("{path}.name"), &tool.name)?;
                    all.tools.push(Tool { place, ..tool });
                    all.sent.push(raw.to_owned());
                }
                None => ignored.add(path),
            }
            Ok(())
        })?;
        if let Some(raw) = fields.take("tool_choice") {
            all.choice = all.choose(raw)?;
            all.sent_choice = raw.to_owned();
        }
        if all.tools.is_empty() && all.choice == ToolChoice::Required {
            let message = "`tool_choice` asks for a call, and `tools` has no function";
            return Err(ApiError::param("tool_choice", message));
        }
        Ok(all)
    }

    /// Reads `tool_choice`; a choice among some functions removes the other ones.
    fn choose(&mut self, raw: &RawValue) -> Result<ToolChoice, ApiError> {
        const EXPECTED: &str = "none, auto, required, a function or allowed_tools";
        let path = "tool_choice";
        if Kind::of(raw) == Kind::String {
            return mode(path, EXPECTED, &string(path, raw)?);
        }
        let mut fields = Fields::nested(path, raw).map_err(|_| wrong(path, EXPECTED, raw.get()))?;
        let kind_path = fields.path("type");
        match fields.string("type")?.as_deref() {
            Some("function") => {
                let name = function_name(&mut fields)?;
                fields.finish()?;
                known("tool_choice.name", &name, &self.tools)?;
                Ok(ToolChoice::Named(name))
            }
            Some("allowed_tools") => {
                let mode_path = fields.path("mode");
                let sent = fields.string("mode")?.ok_or_else(|| missing(&mode_path))?;
                let choice = mode(&mode_path, "auto or required", &sent)?;
                if choice == ToolChoice::None {
                    return Err(wrong(&mode_path, "auto or required", "\"none\""));
                }
                let names = fields.list("tools", limits::TOOLS, |path, raw| {
                    let mut fields = Fields::nested(path, raw)?;
                    expect_function(&mut fields)?;
                    let name = function_name(&mut fields)?;
                    fields.finish()?;
                    known(&format!("{path}.name"), &name, &self.tools)?;
                    Ok(name)
                })?;
                let names = names.ok_or_else(|| missing(&fields.path("tools")))?;
                fields.finish()?;
                self.tools.retain(|tool| names.contains(&tool.name));
                Ok(choice)
            }
            kind => {
                let got = kind.map_or(Value::Null, Value::from).to_string();
                Err(wrong(&kind_path, "function or allowed_tools", &got))
            }
        }
    }
}

fn mode(path: &str, expected: &str, mode: &str) -> Result<ToolChoice, ApiError> {
    match mode {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" => Ok(ToolChoice::Required),
        _ => Err(wrong(path, expected, &Value::from(mode).to_string())),
    }
}

/// Reads a tool; `None` for one that is no function.
fn tool(path: &str, raw: &RawValue) -> Result<Option<Tool>, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    if fields.string("type")?.ok_or_else(|| missing(&kind_path))? != "function" {
        free_within(path, raw, SCHEMA)?;
        return Ok(None);
    }
    let name = function_name(&mut fields)?;
    let description = fields.string("description")?;
    let strict = fields.bool("strict")?.unwrap_or(false);
    let parameters = schema(&mut fields, "parameters")?;
    check_unhonoured(&mut fields, UNHONOURED)?;
    fields.finish()?;
    Ok(Some(Tool { name, description, parameters, strict, place: None }))
}
