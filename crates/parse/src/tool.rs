//! Tools, and the calls of tools that a model writes.

use serde_json::Value;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name by which the model calls it.
    pub name: String,
    /// Purpose, in words for the model.
    pub description: Option<String>,
    /// JSON Schema of its arguments, which are an object; `null` and `{}` allow every object.
    pub parameters: Value,
    /// Whether the arguments must validate whatever the model says.
    pub strict: bool,
    /// Its index in the `tools` of a request, which errors name; without it the index in the list.
    pub place: Option<usize>,
}

impl Tool {
    /// A tool with a schema and without a description.
    pub fn new(name: impl Into<String>, parameters: Value) -> Self {
        Self { name: name.into(), description: None, parameters, strict: false, place: None }
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ToolChoice {
    /// It must not.
    None,
    /// It decides.
    #[default]
    Auto,
    /// It must call at least one.
    Required,
    /// It must call the tool of this name.
    Named(String),
}

impl ToolChoice {
    /// The calls that an answer's form has to have, or `None` where there are no calls.
    pub fn demand(&self) -> Option<Demand<'_>> {
        match self {
            Self::None => None,
            Self::Auto => Some(Demand::Auto),
            Self::Required => Some(Demand::Required),
            Self::Named(name) => Some(Demand::Named(name)),
        }
    }
}

/// The calls that the form of an answer asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Demand<'a> {
    /// Free text in which each call is valid.
    Auto,
    /// Nothing but calls of any of the tools.
    Required,
    /// Nothing but calls of the tool of this name.
    Named(&'a str),
}

/// A call as the model wrote it.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON text: an object, whose end is missing where the answer was cut.
    pub arguments: String,
}
