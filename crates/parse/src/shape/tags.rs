//! Parameters between tags, one after the other: GLM and Qwen3-Coder.
//!
//! Properties stand in the order of the schema. A string stands as it is until its closing tag; a
//! value of another kind is JSON, and so is a string that must match a pattern, because the parser
//! reads such a string either way ([`ValueForm`]).

use pelton_base::Shape;
use serde_json::{Map, Value};

use super::{Placed, ShapeError, one_of};
use crate::read::{ValueForm, alternatives, form_of, is_key, json_of};

/// The texts around names and values of parameters.
pub(crate) struct TagForm {
    pub(crate) before_key: &'static str,
    pub(crate) after_key: &'static str,
    /// The text between value and closing tag, and the closing tag.
    pub(crate) before_close: &'static str,
    pub(crate) close: &'static str,
    pub(crate) after: &'static str,
}

/// All parameters of a tool.
pub(crate) fn parameters(tool: &Placed<'_>, form: &TagForm) -> Result<Shape, ShapeError> {
    let mut parts = Vec::new();
    for property in properties(tool)? {
        let item = Shape::Sequence(vec![
            Shape::Text([form.before_key, &property.key, form.after_key].concat()),
            value(&property, form)?,
            Shape::text(form.after),
        ]);
        parts.push(match property.is_required {
            true => item,
            false => Shape::OneOf(vec![item, Shape::text("")]),
        });
    }
    Ok(Shape::Sequence(parts))
}

/// A value and its closing tag.
fn value(property: &Property, form: &TagForm) -> Result<Shape, ShapeError> {
    let close = [form.before_close, form.close].concat();
    let written = form_of(&property.schema, &property.schema);
    if let Some(values) = alternatives(&property.schema) {
        let texts: Vec<Shape> =
            values.iter().filter_map(|value| text_of(value, written, form)).collect();
        if texts.is_empty() {
            return Err(ShapeError::new(
                &property.path,
                format!("expected a value without {:?}, which ends values", form.close),
            ));
        }
        return Ok(Shape::Sequence(vec![one_of(texts), Shape::Text(close)]));
    }
    if written.may_be_text() {
        return Ok(Shape::Until(form.close.to_owned()));
    }
    Ok(Shape::Sequence(vec![property.json(), Shape::Text(close)]))
}

/// The text that is read as exactly this value.
fn text_of(value: &Value, written: ValueForm, form: &TagForm) -> Option<Shape> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let json = if written.is_text() { crate::read::quoted(&text) } else { json_of(&text, written) };
    let is_read = serde_json::from_str::<Value>(&json).is_ok_and(|read| read == *value);
    (is_read && !text.contains(form.close)).then_some(Shape::Text(text))
}

/// A parameter whose value stands alone.
pub(super) struct Property {
    pub(super) key: String,
    /// Its schema, with the definitions of the tool.
    pub(super) schema: Value,
    pub(super) is_required: bool,
    path: String,
}

impl Property {
    /// The value as JSON.
    pub(super) fn json(&self) -> Shape {
        Shape::Json { schema: self.schema.to_string(), path: self.path.clone() }
    }
}

/// Keywords of a tool's schema that say nothing about several parameters at once.
const EACH: [&str; 15] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "strict",
];

/// The parameters of a tool; each can be written without regard to the others.
pub(super) fn properties(tool: &Placed<'_>) -> Result<Vec<Property>, ShapeError> {
    let (root, path) = (tool.schema()?, tool.path());
    let empty = Map::new();
    let root = root.as_object().unwrap_or(&empty);
    if let Some(key) = root.keys().find(|key| !EACH.contains(&key.as_str())) {
        return Err(ShapeError::new(
            format!("{path}.{key}"),
            "calls of this model write one parameter after the other, so a rule about several \
             cannot be enforced: leave it away, or choose another `--tool-parser`",
        ));
    }
    let listed = root.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = match root.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let others = root.get("additionalProperties").unwrap_or(&Value::Bool(true));
    let unlisted = required.iter().filter(|key| !listed.contains_key(**key));
    let all = listed.iter().map(|(key, schema)| (key.as_str(), schema));
    let mut properties = Vec::new();
    for (key, schema) in all.chain(unlisted.map(|key| (*key, others))) {
        let path = format!("{path}.properties.{key}");
        let is_required = required.contains(&key);
        if *schema == Value::Bool(false) {
            if is_required {
                return Err(ShapeError::new(path, "required, and no value is allowed"));
            }
            continue;
        }
        if !is_key(key) {
            return Err(ShapeError::new(
                path,
                "calls of this model cannot have a parameter of this name: expected letters, \
                 digits and `_-.`",
            ));
        }
        let schema = alone(schema, root, &path)?;
        properties.push(Property { key: key.to_owned(), schema, is_required, path });
    }
    Ok(properties)
}

/// The schema of a parameter with the definitions that it refers to.
fn alone(schema: &Value, root: &Map<String, Value>, path: &str) -> Result<Value, ShapeError> {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    let definitions = ["$defs", "definitions"];
    for key in definitions {
        if let Some(found) = root.get(key).filter(|_| refers(&schema)) {
            schema.insert(key.to_owned(), found.clone());
        }
    }
    let schema = Value::Object(schema);
    match reference(&schema, &definitions.map(|key| format!("#/{key}/"))) {
        Some(reference) => Err(ShapeError::new(
            path,
            format!(
                "a reference to {reference:?} cannot be enforced in calls of this model: expected one to `#/$defs/`"
            ),
        )),
        None => Ok(schema),
    }
}

fn refers(schema: &Map<String, Value>) -> bool {
    schema.iter().any(|(key, value)| key == "$ref" || holds_reference(value))
}

fn holds_reference(value: &Value) -> bool {
    reference(value, &[]).is_some()
}

/// A reference in a schema that begins with none of these.
fn reference<'a>(value: &'a Value, allowed: &[String]) -> Option<&'a str> {
    match value {
        Value::Array(values) => values.iter().find_map(|value| reference(value, allowed)),
        Value::Object(values) => values.iter().find_map(|(key, value)| match value {
            Value::String(text) if key == "$ref" => {
                (!allowed.iter().any(|start| text.starts_with(start))).then_some(text.as_str())
            }
            _ => reference(value, allowed),
        }),
        _ => None,
    }
}
