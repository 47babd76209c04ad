//! Parts of the forms that make a model write calls, for all formats.
//!
//! A form is written so that the parser of its format reads each of its texts as calls whose
//! arguments validate. Marks that are control tokens are written as such ([`Shape::Token`]).

mod python;
mod tags;

use pelton_base::{Shape, Tag};
use serde_json::Value;

use crate::read::{MOST_NAME, is_name};
use crate::{Demand, Tool};

pub(crate) use python::call as python_call;
pub(crate) use tags::{TagForm, parameters as tag_parameters};

/// Why no form can be written.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{path}`: {reason}")]
pub struct ShapeError {
    /// Place in the request.
    pub path: String,
    /// The mistake there, and what is expected.
    pub reason: String,
}

impl ShapeError {
    pub(crate) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}

/// A tool, and its place in the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) tool: &'a Tool,
    tool_idx: usize,
}

impl Placed<'_> {
    /// The place of the tool's schema.
    pub(crate) fn path(&self) -> String {
        format!("tools[{}].function.parameters", self.tool_idx)
    }

    /// The tool's schema, which says that the arguments are an object.
    pub(crate) fn schema(&self) -> Result<Value, ShapeError> {
        let object = || Value::from("object");
        match &self.tool.parameters {
            Value::Null | Value::Bool(true) => Ok(serde_json::json!({ "type": "object" })),
            Value::Object(schema) => match schema.get("type") {
                None => {
                    let mut schema = schema.clone();
                    schema.insert("type".to_owned(), object());
                    Ok(schema.into())
                }
                Some(kind) if *kind == object() => Ok(schema.clone().into()),
                Some(kind) => Err(ShapeError::new(
                    self.path() + ".type",
                    format!("arguments are an object: expected \"object\", got {kind}"),
                )),
            },
            other => Err(ShapeError::new(
                self.path(),
                format!("expected a JSON Schema of an object, got {other}"),
            )),
        }
    }

    /// The arguments as JSON.
    pub(crate) fn arguments(&self) -> Result<Shape, ShapeError> {
        Ok(Shape::Json { schema: self.schema()?.to_string(), path: self.path() })
    }
}

/// The tools that may be called, and how often.
pub(crate) struct Calling<'a> {
    tools: Vec<Placed<'a>>,
    is_auto: bool,
    parallel: bool,
}

impl<'a> Calling<'a> {
    /// The tools that are asked for.
    pub(crate) fn new(
        tools: &'a [Tool],
        demand: Demand<'_>,
        parallel: bool,
    ) -> Result<Self, ShapeError> {
        let placed =
            |(i, tool): (usize, &'a Tool)| Placed { tool, tool_idx: tool.place.unwrap_or(i) };
        let all = tools.iter().enumerate().map(placed);
        let tools: Vec<Placed<'_>> = match demand {
            Demand::Named(name) => all.filter(|placed| placed.tool.name == name).collect(),
            Demand::Auto | Demand::Required => all.collect(),
        };
        if let Some(placed) = tools.iter().find(|placed| !is_name(&placed.tool.name)) {
            return Err(ShapeError::new(
                format!("tools[{}].function.name", placed.tool_idx),
                format!(
                    "expected letters, digits and `_-.:/`, at most {MOST_NAME} bytes, got {:?}",
                    placed.tool.name
                ),
            ));
        }
        match (tools.is_empty(), demand) {
            (true, Demand::Named(name)) => Err(ShapeError::new(
                "tool_choice.function.name",
                format!("no tool has the name {name:?}: expected one of `tools`"),
            )),
            (true, _) => Err(ShapeError::new("tools", "expected at least one tool")),
            _ => Ok(Self { tools, is_auto: demand == Demand::Auto, parallel }),
        }
    }

    /// A form for one of the tools.
    pub(crate) fn any(
        &self,
        form: impl Fn(&Placed<'_>) -> Result<Shape, ShapeError>,
    ) -> Result<Shape, ShapeError> {
        Ok(one_of(self.tools.iter().map(form).collect::<Result<_, _>>()?))
    }

    /// The tools.
    pub(crate) fn tools(&self) -> &[Placed<'a>] {
        &self.tools
    }

    /// Whether an answer may have several calls.
    pub(crate) fn parallel(&self) -> bool {
        self.parallel
    }

    /// Whether an answer may do without calls.
    pub(crate) fn is_auto(&self) -> bool {
        self.is_auto
    }

    /// As many calls as may be, with `separator` between them.
    pub(crate) fn several(&self, call: Shape, separator: &str) -> Shape {
        match self.parallel {
            true => Shape::Repeat {
                item: Box::new(call),
                separator: separator.to_owned(),
                least: 1,
                most: None,
            },
            false => call,
        }
    }

    /// Calls that each stand between two marks. The first of `begins` is the mark that is written
    /// where calls are demanded; each of them begins a call where the model decides.
    pub(crate) fn tagged(&self, begins: &[&str], call: Shape, end: &str, separator: &str) -> Shape {
        if !self.is_auto {
            let call = Shape::Sequence(vec![mark(begins[0]), ended(call, end)]);
            return self.several(call, separator);
        }
        let tag = |begin: &&str| Tag {
            begin: (*begin).to_owned(),
            content: ended(call.clone(), end),
            end: String::new(),
        };
        self.triggered(begins.iter().map(tag).collect())
    }

    /// Free text with these tags, each of which is its own trigger.
    pub(crate) fn triggered(&self, tags: Vec<Tag>) -> Shape {
        Shape::Triggered {
            triggers: tags.iter().map(|tag| tag.begin.clone()).collect(),
            tags,
            at_least_one: false,
            stop_after_first: !self.parallel,
        }
    }

    /// One mark, and after it all calls in one form.
    pub(crate) fn listed(&self, begin: &str, calls: Shape, end: &str) -> Shape {
        if self.is_auto {
            let (content, end) = (ended(calls, end), String::new());
            let tag = Tag { begin: begin.to_owned(), content, end };
            return Shape::Triggered {
                triggers: vec![begin.to_owned()],
                tags: vec![tag],
                at_least_one: false,
                stop_after_first: true,
            };
        }
        Shape::Sequence(vec![mark(begin), ended(calls, end)])
    }
}

/// A form and the mark at its end, which is a control token where the vocabulary has it.
fn ended(form: Shape, end: &str) -> Shape {
    match end {
        "" => form,
        _ => Shape::Sequence(vec![form, mark(end)]),
    }
}

/// A mark: a control token where the vocabulary has it.
pub(crate) fn mark(text: &str) -> Shape {
    Shape::Token(text.to_owned())
}

/// One of several forms.
pub(crate) fn one_of(mut shapes: Vec<Shape>) -> Shape {
    if shapes.len() == 1 { shapes.remove(0) } else { Shape::OneOf(shapes) }
}

/// `{"name": NAME, "arguments": ARGUMENTS}`
pub(crate) fn json_object(tool: &Placed<'_>) -> Result<Shape, ShapeError> {
    json_object_with(tool, "arguments")
}

/// The same with another key for the arguments.
pub(crate) fn json_object_with(tool: &Placed<'_>, key: &str) -> Result<Shape, ShapeError> {
    let name = crate::read::quoted(&tool.tool.name);
    Ok(Shape::Sequence(vec![
        Shape::Text(format!("{{\"name\": {name}, \"{key}\": ")),
        tool.arguments()?,
        Shape::text("}"),
    ]))
}
