//! The schema of a body, made from what its reader asks for.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::hints;
use super::operations::{Body, sample};
use crate::wire::Accept;
use crate::wire::record::{Asked, Expected, recorded};

/// Shapes of values by their paths, for one body.
type Shapes = &'static [(&'static str, &'static str)];

/// A value of a body: what its reader expects, its fields, and its elements.
#[derive(Debug, Default)]
struct Node {
    expected: Option<Expected>,
    fields: BTreeMap<String, Node>,
    elements: Option<Box<Node>>,
}

/// The schema of the whole body.
pub(super) fn of_body(body: &Body) -> Value {
    let mut root = Node::default();
    for text in body.samples() {
        let asked = recorded(|| {
            // Samples are accepted, which a test makes sure of.
            let _ = (body.reader)(text.as_bytes());
        });
        asked.iter().for_each(|asked| root.add(asked));
    }
    let mut schema = root.object("", body.shapes);
    let required = required(body);
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    if !body.either.is_empty() {
        let one = |name: &&str| json!({ "required": [name] });
        let group = |names: &&[&str]| json!({"anyOf": names.iter().map(one).collect::<Vec<_>>()});
        schema["allOf"] = body.either.iter().map(group).collect();
    }
    schema
}

/// The fields without which the sample is refused, but for those that have another name.
fn required(body: &Body) -> Vec<String> {
    let whole = sample(body.sample);
    let names = whole.as_object().into_iter().flat_map(Map::keys);
    let is_needed = |name: &&String| {
        let mut less = whole.clone();
        less.as_object_mut().expect("invariant: samples are objects").remove(name.as_str());
        (body.reader)(less.to_string().as_bytes()).is_err()
    };
    let has_another =
        |name: &&String| body.either.iter().any(|group| group.contains(&name.as_str()));
    names.filter(|name| !has_another(name) && is_needed(name)).cloned().collect()
}

impl Node {
    /// Notes a field at its path, such as `messages[0].role`.
    fn add(&mut self, asked: &Asked) {
        let mut node = self;
        for part in asked.path.split('.') {
            let (name, indices) = part
                .split_once('[')
                .map_or((part, 0), |(name, rest)| (name, rest.matches(']').count()));
            node = node.fields.entry(name.to_owned()).or_default();
            for _ in 0..indices {
                node = node.elements.get_or_insert_default();
            }
        }
        // The record that says more wins: a reader may look at a field twice.
        if matches!(node.expected, None | Some(Expected::Json)) {
            node.expected = Some(asked.expected);
        }
    }

    fn object(&self, path: &str, shapes: Shapes) -> Value {
        let fields: Map<String, Value> = self
            .fields
            .iter()
            .map(|(name, node)| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                (name.clone(), node.schema(name, &path, shapes))
            })
            .collect();
        json!({"type": "object", "properties": fields, "additionalProperties": false})
    }

    fn schema(&self, name: &str, path: &str, shapes: Shapes) -> Value {
        let own = shapes.iter().find(|(known, _)| *known == path);
        let shape = own.map(|(_, text)| hints::json(text)).or_else(|| hints::shape(path));
        let mut schema = match (self.expected, shape) {
            (Some(Expected::Nothing(accept)), _) => return unhonoured(accept),
            // A reader that takes JSON, or a list, tells less than its hint.
            (None | Some(Expected::Json | Expected::List), Some(shape)) => shape,
            _ => self.plain(path, shapes),
        };
        if let Some(about) = hints::about(name) {
            schema["description"] = about.into();
        }
        schema
    }

    fn plain(&self, path: &str, shapes: Shapes) -> Value {
        if !self.fields.is_empty() {
            return self.object(path, shapes);
        }
        if let Some(elements) = &self.elements {
            let items = elements.plain(&format!("{path}[]"), shapes);
            return json!({"type": "array", "items": items});
        }
        match self.expected {
            None | Some(Expected::Json) => json!({}),
            Some(Expected::Bool) => json!({"type": "boolean"}),
            Some(Expected::Number) => json!({"type": "number"}),
            Some(Expected::Whole(least, most)) => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            Some(Expected::String) => json!({"type": "string"}),
            Some(Expected::List) => json!({"type": "array"}),
            Some(Expected::Nothing(accept)) => unhonoured(accept),
        }
    }
}

/// The values of a field that is known and not honoured.
fn unhonoured(accept: Accept) -> Value {
    let values = |list: &[&str]| -> Vec<Value> {
        list.iter().map(|text| hints::json(text)).chain([Value::Null]).collect()
    };
    let allowed = match accept {
        Accept::Anything => return json!({"description": "Accepted, without effect"}),
        Accept::Text => return json!({"type": "string", "description": "Accepted, without effect"}),
        Accept::Nothing => values(&[]),
        Accept::Only(value) => values(&[value]),
        Accept::OneOf(list) => values(list),
        Accept::Empty => values(&["[]", "{}", "\"\""]),
    };
    json!({"enum": allowed, "description": "Not honoured: other values are refused by name"})
}
