//! Flags for the form of an answer, and the tools that it may call.

use std::path::{Path, PathBuf};

use clap::Args;
use pelton_base::{Shape, limits};
use pelton_llm::{ChatOptions, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};

/// The form of the answer.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of the answer")]
#[group(multiple = false)]
pub(crate) struct FormArgs {
    /// The answer is JSON of this schema: a file, or the schema itself; `{}` allows any JSON
    #[arg(long, value_name = "FILE|SCHEMA")]
    json_schema: Option<String>,
    /// The answer matches this regular expression as a whole
    #[arg(long, value_name = "PATTERN")]
    regex: Option<String>,
    /// The answer is one of these texts; may be given several times
    #[arg(long, value_name = "TEXT")]
    choice: Vec<String>,
    /// The answer is a text of this grammar: a file in GBNF or in Lark notation
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl FormArgs {
    /// The flag that asks for a form; empty where none does.
    pub(crate) fn flag(&self) -> &'static str {
        let Self { json_schema, regex, choice, grammar } = self;
        let flags = [
            (json_schema.is_some(), "--json-schema"),
            (regex.is_some(), "--regex"),
            (!choice.is_empty(), "--choice"),
            (grammar.is_some(), "--grammar"),
        ];
        flags.into_iter().find(|(is_given, _)| *is_given).map_or("", |(_, flag)| flag)
    }

    /// The form, if one is asked for.
    ///
    /// # Errors
    ///
    /// Names the flag and the file that cannot be read.
    pub(crate) fn shape(&self) -> Result<Option<Shape>> {
        let Self { json_schema, regex, choice, grammar } = self;
        if let Some(schema) = json_schema {
            return schema_shape("--json-schema", schema).map(Some);
        }
        if let Some(regex) = regex {
            return Ok(Some(Shape::Regex(regex.clone())));
        }
        if !choice.is_empty() {
            return Ok(Some(Shape::OneOf(choice.iter().map(Shape::text).collect())));
        }
        let Some(path) = grammar else { return Ok(None) };
        let text = read("--grammar", path)?;
        Ok(Some(if text.contains("::=") { Shape::Gbnf(text) } else { Shape::Lark(text) }))
    }
}

/// A JSON schema in a file, or as it stands.
///
/// # Errors
///
/// Names the flag where there is neither a schema nor a file.
pub(crate) fn schema_shape(flag: &str, schema: &str) -> Result<Shape> {
    let text = match schema.trim_start().starts_with('{') {
        true => schema.to_owned(),
        false => read(flag, Path::new(schema))?,
    };
    if let Err(error) = serde_json::from_str::<Value>(&text) {
        return Err(Failure::new(format!("`{flag}`: the schema is no JSON: {error}")));
    }
    Ok(Shape::Json { schema: text, path: flag.to_owned() })
}

fn read(flag: &str, path: &Path) -> Result<String> {
    let fail = |why: String| Failure::new(format!("`{flag}`: {why}"));
    pelton_tensor::read_limited_text(path, limits::GRAMMAR_BYTES as u64)
        .map_err(|error| fail(format!("cannot read {}: {error}", path.display())))
}

/// The tools that the model may call.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of the answer")]
pub(crate) struct ToolArgs {
    /// Functions that the model may call: a JSON file with OpenAI's `tools`; calls are printed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "tokens"])]
    tools: Option<PathBuf>,
    /// Whether it calls them: none, auto, required, or the name of one
    #[arg(long, value_name = "CHOICE", requires = "tools")]
    tool_choice: Option<String>,
    /// Most tokens of the thought of a model that thinks before it answers
    #[arg(long, value_name = "N", conflicts_with_all = ["raw", "tokens"])]
    thinking_budget: Option<usize>,
}

impl ToolArgs {
    /// The options of a conversation.
    ///
    /// # Errors
    ///
    /// Names the flag, and the file and the place in it that is wrong.
    pub(crate) fn options(&self) -> Result<ChatOptions> {
        let mut options =
            ChatOptions { thinking_budget: self.thinking_budget, ..ChatOptions::default() };
        if let Some(path) = &self.tools {
            options.tools = read_tools("--tools", path)?;
        }
        options.tool_choice = match self.tool_choice.as_deref() {
            None | Some("auto") => ToolChoice::Auto,
            Some("none") => ToolChoice::None,
            Some("required") => ToolChoice::Required,
            Some(name) if options.tools.iter().any(|tool| tool.name == name) => {
                ToolChoice::Named(name.to_owned())
            }
            Some(name) => {
                let known: Vec<&str> = options.tools.iter().map(|t| t.name.as_str()).collect();
                let known = known.join(", ");
                return Err(Failure::new(format!(
                    "`--tool-choice` must be none, auto, required or a tool ({known}), got `{name}`"
                )));
            }
        };
        Ok(options)
    }

    /// Whether any of the flags asks for something that needs a conversation.
    pub(crate) fn is_set(&self) -> bool {
        self.tools.is_some() || self.thinking_budget.is_some()
    }
}

/// The tools in a file: an array in OpenAI's form, or one tool.
///
/// # Errors
///
/// Names the file and the tool that is wrong.
pub(crate) fn read_tools(flag: &str, path: &Path) -> Result<Vec<Tool>> {
    let text = read(flag, path)?;
    let fail = |why: String| Failure::new(format!("`{flag}`: {}: {why}", path.display()));
    let value: Value = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut object) if object.contains_key("tools") => match object.remove("tools") {
            Some(Value::Array(list)) => list,
            _ => return Err(fail("`tools` is no array".to_owned())),
        },
        one => vec![one],
    };
    list.into_iter()
        .enumerate()
        .map(|(i, tool)| tool_of(tool).map_err(|why| fail(format!("tool {i}: {why}"))))
        .collect()
}

fn tool_of(value: Value) -> std::result::Result<Tool, String> {
    let Value::Object(mut object) = value else { return Err("expected an object".to_owned()) };
    let mut function: Map<String, Value> = match object.remove("function") {
        Some(Value::Object(function)) => function,
        Some(_) => return Err("`function` is no object".to_owned()),
        None => object,
    };
    let Some(Value::String(name)) = function.remove("name") else {
        return Err("`name` is missing: expected a text".to_owned());
    };
    let description = match function.remove("description") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => return Err("`description` is no text".to_owned()),
    };
    let parameters = match function.remove("parameters") {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema,
        Some(_) => return Err("`parameters` is no JSON schema".to_owned()),
    };
    Ok(Tool { name, description, parameters, strict: true, place: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_read_in_every_usual_form() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tools.json");
        let own = json!({"name": "f", "description": "does", "parameters": {"type": "object"}});
        let wrapped = json!({"type": "function", "function": own});
        for file in [json!([wrapped]), json!({"tools": [wrapped]}), own.clone(), json!([own])] {
            std::fs::write(&path, file.to_string()).expect("written");
            let tools = read_tools("--tools", &path).expect("valid");
            assert_eq!((tools.len(), tools[0].name.as_str()), (1, "f"), "{file}");
            assert_eq!(tools[0].parameters, json!({"type": "object"}));
        }
        for (file, part) in [("[1]", "tool 0"), ("[{}]", "`name`"), ("{", "EOF")] {
            std::fs::write(&path, file).expect("written");
            let error = read_tools("--tools", &path).expect_err("wrong");
            let error = format!("{error:?}");
            assert!(error.contains(part) && error.contains("--tools"), "{error}");
        }
    }

    #[test]
    fn a_schema_is_a_file_or_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        std::fs::write(&path, "{\"type\": \"integer\"}").expect("written");
        for schema in ["{\"type\": \"integer\"}", path.to_str().expect("UTF-8")] {
            let Ok(Shape::Json { schema, .. }) = schema_shape("--json-schema", schema) else {
                panic!("{schema}")
            };
            assert_eq!(schema, "{\"type\": \"integer\"}");
        }
        for schema in ["{", "no/such/file"] {
            let error = schema_shape("--json-schema", schema).expect_err("wrong");
            let error = format!("{error:?}");
            assert!(error.contains("--json-schema"), "{error}");
        }
    }
}
