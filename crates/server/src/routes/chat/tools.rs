//! Tools of a request, and calls in its messages.

use std::collections::HashSet;

use pelton_base::limits;
use pelton_llm::{Tool, ToolChoice};
use serde_json::Value;

use crate::error::ApiError;
use crate::routes::conversation::{
    CALLS, arguments, call, distinct, expect_function, function_name, known, missing, schema,
};
use crate::wire::Fields;
use crate::wire::json::{Kind, RawValue, string, wrong};

/// The tools of a request, and whether the model may, must or must not call them.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub(crate) parallel: Option<bool>,
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong, a name that is given twice, and a choice of a tool that is
    /// not there.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut names = HashSet::new();
        let mut place = 0..;
        let tools = fields.list("tools", limits::TOOLS, |path, raw| {
            let tool = Tool { place: place.next(), ..tool(path, raw)? };
            distinct(&mut names, &format!("{path}.function.name"), &tool.name)?;
            Ok(tool)
        })?;
        let mut tools = tools.unwrap_or_default();
        let choice = match fields.take("tool_choice") {
            Some(raw) => choice(raw, &mut tools)?,
            None => ToolChoice::Auto,
        };
        if tools.is_empty() && matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
            let message = "`tool_choice` asks for a call, and `tools` has no tool";
            return Err(ApiError::param("tool_choice", message));
        }
        Ok(Self { tools, choice, parallel: fields.bool("parallel_tool_calls")? })
    }
}

fn tool(path: &str, raw: &RawValue) -> Result<Tool, ApiError> {
    let mut outer = Fields::nested(path, raw)?;
    expect_function(&mut outer)?;
    let path = outer.path("function");
    let raw = outer.take("function").ok_or_else(|| missing(&path))?;
    outer.finish()?;
    let mut fields = Fields::nested(&path, raw)?;
    let name = function_name(&mut fields)?;
    let description = fields.string("description")?;
    let strict = fields.bool("strict")?.unwrap_or(false);
    let parameters = schema(&mut fields, "parameters")?;
    fields.finish()?;
    Ok(Tool { name, description, parameters, strict, place: None })
}

/// Reads `tool_choice`; a choice among some tools removes the other ones.
fn choice(raw: &RawValue, tools: &mut Vec<Tool>) -> Result<ToolChoice, ApiError> {
    const EXPECTED: &str = "none, auto, required or a function";
    let path = "tool_choice";
    if Kind::of(raw) == Kind::String {
        let mode = string(path, raw)?;
        return mode_of(&mode).ok_or_else(|| wrong(path, EXPECTED, raw.get()));
    }
    let mut fields = Fields::nested(path, raw).map_err(|_| wrong(path, EXPECTED, raw.get()))?;
    let kind = fields.string("type")?;
    match kind.as_deref() {
        Some("function") => {
            let (at, name) = named(&mut fields)?;
            known(&at, &name, tools)?;
            fields.finish()?;
            Ok(ToolChoice::Named(name))
        }
        Some("allowed_tools") => {
            let at = fields.path("allowed_tools");
            let raw = fields.take("allowed_tools").ok_or_else(|| missing(&at))?;
            fields.finish()?;
            allowed(&at, raw, tools)
        }
        kind => {
            let got = kind.map_or(Value::Null, Value::from).to_string();
            Err(wrong("tool_choice.type", "function or allowed_tools", &got))
        }
    }
}

fn mode_of(mode: &str) -> Option<ToolChoice> {
    match mode {
        "none" => Some(ToolChoice::None),
        "auto" => Some(ToolChoice::Auto),
        "required" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// The name in `function`, and its path.
fn named(fields: &mut Fields<'_>) -> Result<(String, String), ApiError> {
    let path = fields.path("function");
    let raw = fields.take("function").ok_or_else(|| missing(&path))?;
    let mut inner = Fields::nested(&path, raw)?;
    let at = inner.path("name");
    let name = function_name(&mut inner)?;
    inner.finish()?;
    Ok((at, name))
}

/// A choice among some of the tools.
fn allowed(path: &str, raw: &RawValue, tools: &mut Vec<Tool>) -> Result<ToolChoice, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let at = fields.path("mode");
    let mode = fields.string("mode")?.ok_or_else(|| missing(&at))?;
    let choice = mode_of(&mode).filter(|choice| *choice != ToolChoice::None);
    let got = || Value::from(mode.as_str()).to_string();
    let choice = choice.ok_or_else(|| wrong(&at, "auto or required", &got()))?;
    let names = fields.list("tools", limits::TOOLS, |path, raw| {
        let mut fields = Fields::nested(path, raw)?;
        expect_function(&mut fields)?;
        let (at, name) = named(&mut fields)?;
        fields.finish()?;
        known(&at, &name, tools)?;
        Ok(name)
    })?;
    let names = names.ok_or_else(|| missing(&fields.path("tools")))?;
    fields.finish()?;
    tools.retain(|tool| names.contains(&tool.name));
    Ok(choice)
}

/// Reads the calls of an earlier answer; the arguments become the object that templates print.
pub(crate) fn calls(fields: &mut Fields<'_>) -> Result<Option<Value>, ApiError> {
    let calls = fields.list("tool_calls", CALLS, |path, raw| {
        let mut outer = Fields::nested(path, raw)?;
        expect_function(&mut outer)?;
        let id = outer.string("id")?;
        // Some clients send the place of a call back as it was streamed.
        outer.usize("index")?;
        let path = outer.path("function");
        let raw = outer.take("function").ok_or_else(|| missing(&path))?;
        outer.finish()?;
        let mut fields = Fields::nested(&path, raw)?;
        let name = function_name(&mut fields)?;
        let path = fields.path("arguments");
        let arguments = arguments(&path, fields.take("arguments"))?;
        fields.finish()?;
        Ok(call(id, name, arguments))
    })?;
    Ok(calls.filter(|calls| !calls.is_empty()).map(Value::Array))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Tools, ApiError> {
        let text = body.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let tools = Tools::read(&mut fields)?;
        fields.finish()?;
        Ok(tools)
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn tools_and_every_choice_are_read() {
        let tools = json!([function("a"), {"type": "function", "function": {"name": "b", "strict":
            true, "description": "does", "parameters": {"type": "object", "required": ["x"]}}}]);
        let choose = |choice: Value| read(json!({"tools": tools, "tool_choice": choice}));
        let all = choose(json!("auto")).expect("valid");
        assert_eq!((all.tools.len(), &all.choice), (2, &ToolChoice::Auto));
        assert_eq!(all.tools[1].parameters["required"][0], "x");
        assert!(all.tools[1].strict && !all.tools[0].strict);
        assert_eq!(choose(json!("none")).expect("valid").choice, ToolChoice::None);
        assert_eq!(choose(json!("required")).expect("valid").choice, ToolChoice::Required);
        let named = choose(function("b")).expect("valid").choice;
        assert_eq!(named, ToolChoice::Named("b".to_owned()));
        let some = choose(json!({"type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [function("b")]}}))
        .expect("valid");
        assert_eq!((some.tools.len(), some.tools[0].name.as_str()), (1, "b"));
        assert_eq!(some.tools[0].place, Some(1), "errors name its place in the request");
        assert_eq!(some.choice, ToolChoice::Required);
        assert!(read(json!({"tools": [], "tool_choice": "auto"})).expect("valid").tools.is_empty());
    }

    #[test]
    fn a_tool_or_choice_that_is_wrong_is_named() {
        let tools = json!([function("a")]);
        let many: Vec<Value> = (0..=limits::TOOLS).map(|i| function(&format!("f{i}"))).collect();
        for (param, body) in [
            ("tools[0].type", json!({"tools": [{"type": "web_search"}]})),
            ("tools[0].function", json!({"tools": [{"type": "function"}]})),
            ("tools[0].function.name", json!({"tools": [function("a b")]})),
            ("tools[0].function.name", json!({"tools": [function("")]})),
            ("tools[1].function.name", json!({"tools": [function("a"), function("a")]})),
            (
                "tools[0].function.parameters",
                json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
            ),
            ("tools", json!({ "tools": many })),
            ("tool_choice", json!({"tool_choice": "required"})),
            ("tool_choice", json!({"tools": tools, "tool_choice": "any"})),
            ("tool_choice", json!({"tools": tools, "tool_choice": 1})),
            ("tool_choice.function.name", json!({"tools": tools, "tool_choice": function("b")})),
            ("tool_choice.type", json!({"tools": tools, "tool_choice": {"type": "custom"}})),
            (
                "tool_choice.allowed_tools.mode",
                json!({"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools":
                    {"mode": "none", "tools": []}}}),
            ),
            ("parallel_tool_calls", json!({"parallel_tool_calls": 1})),
        ] {
            let error = read(body).map(drop).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }

    #[test]
    fn arguments_of_earlier_calls_become_objects() {
        let read = |function: Value| {
            let text = json!({"tool_calls": [{"id": "c1", "type": "function", "index": 0,
                "function": function}]})
            .to_string();
            calls(&mut Fields::of_body(text.as_bytes()).expect("fields"))
        };
        let expected = json!([{"id": "c1", "type": "function", "function":
            {"name": "f", "arguments": {"b": 1, "a": [2]}}}]);
        for arguments in [json!("{\"b\": 1, \"a\": [2]}"), json!({"b": 1, "a": [2]})] {
            let got = read(json!({"name": "f", "arguments": arguments})).expect("valid");
            assert_eq!(got, Some(expected.clone()));
        }
        for arguments in [json!("[1]"), json!("{"), json!(3)] {
            let error = read(json!({"name": "f", "arguments": arguments})).expect_err("no object");
            let param = error.body.param.as_deref();
            assert_eq!(param, Some("tool_calls[0].function.arguments"));
        }
    }
}
