//! The kinds of values that a JSON Schema allows, as far as they are needed to read a text.

use serde_json::Value;

/// A set of kinds of JSON values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Kinds(u8);

/// Schemas within a schema that are looked at; a larger one may allow everything.
const MOST_SCHEMAS: usize = 256;

impl Kinds {
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const NUMBER: Self = Self(2);
    pub(crate) const INTEGER: Self = Self(4);
    pub(crate) const BOOLEAN: Self = Self(8);
    pub(crate) const NULL: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    pub(crate) const ANY: Self = Self(127);
    const NONE: Self = Self(0);

    /// Whether it has all of these.
    pub(crate) fn has(self, kinds: Self) -> bool {
        self.0 & kinds.0 == kinds.0
    }

    /// Whether it has this kind; every integer is a number.
    fn allows(self, kind: Self) -> bool {
        self.widened().has(kind)
    }

    /// Both sets together.
    fn or(self, kinds: Self) -> Self {
        Self(self.0 | kinds.0)
    }

    /// The kinds that both sets have; an integer is a number.
    fn and(self, kinds: Self) -> Self {
        Self(self.widened().0 & kinds.widened().0)
    }

    fn widened(self) -> Self {
        if self.has(Self::NUMBER) { self.or(Self::INTEGER) } else { self }
    }

    /// The kind of a value.
    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// A kind by its name in a schema, or by a name that tools in the wild have for it.
    fn named(name: &str) -> Self {
        match name {
            "string" | "str" | "text" => Self::STRING,
            "number" | "float" | "double" => Self::NUMBER,
            "integer" | "int" => Self::INTEGER,
            "boolean" | "bool" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" | "list" => Self::ARRAY,
            "object" | "dict" => Self::OBJECT,
            _ => Self::ANY,
        }
    }
}

/// How a value is written between tags.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ValueForm {
    /// The kinds of values that there may be.
    pub(crate) kinds: Kinds,
    /// Whether a string may be written in quotes, as JSON. Strings are written as they stand; one
    /// that must match a pattern can be held to it only as JSON, so both are read.
    pub(crate) is_quoted: bool,
}

impl Default for ValueForm {
    /// Of a parameter without a schema.
    fn default() -> Self {
        Self { kinds: Kinds::ANY, is_quoted: true }
    }
}

impl ValueForm {
    /// Whether it is a string as it stands.
    pub(crate) fn is_text(self) -> bool {
        self.kinds == Kinds::STRING && !self.is_quoted
    }

    /// Whether it may be a string as it stands.
    pub(crate) fn may_be_text(self) -> bool {
        self.kinds.has(Kinds::STRING) && !self.is_quoted
    }
}

/// How the values of a schema are written between tags.
pub(crate) fn form_of(schema: &Value, root: &Value) -> ValueForm {
    let kinds = kinds_of(schema, root);
    let is_quoted = kinds == Kinds::ANY
        || kinds.has(Kinds::STRING) && !is_bare(schema) && alternatives(schema).is_none();
    ValueForm { kinds, is_quoted }
}

/// Keywords that restrict nothing.
const NOTES: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];

/// The keywords of a schema that restrict.
fn restrictions(schema: &Value) -> Option<Vec<(&str, &Value)>> {
    let all = schema.as_object()?.iter().map(|(key, value)| (key.as_str(), value));
    Some(all.filter(|(key, _)| !NOTES.contains(key)).collect())
}

/// Whether nothing but the kind of a value is restricted.
pub(crate) fn is_bare(schema: &Value) -> bool {
    match restrictions(schema).as_deref() {
        Some([("type", _)]) => true,
        Some([("anyOf" | "oneOf", Value::Array(each))]) => each.iter().all(|schema| {
            matches!(restrictions(schema).as_deref(), Some([("type", Value::String(_))]))
        }),
        _ => false,
    }
}

/// The values that a schema allows, where it names each.
pub(crate) fn alternatives(schema: &Value) -> Option<Vec<Value>> {
    let restrictions: Vec<(&str, &Value)> = restrictions(schema)?;
    let named = |name: &str| restrictions.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
    let values = match (named("const"), named("enum"), named("anyOf"), named("type")) {
        (Some(value), None, None, _) => vec![value.clone()],
        (None, Some(Value::Array(values)), None, _) => values.clone(),
        (None, None, Some(Value::Array(each)), None) => {
            let each: Option<Vec<Vec<Value>>> = each.iter().map(alternatives).collect();
            each?.concat()
        }
        (None, None, None, Some(Value::String(name))) if name == "null" => vec![Value::Null],
        _ => return None,
    };
    let others = restrictions.iter().filter(|(key, _)| !["const", "enum", "anyOf"].contains(key));
    let has_others = others.clone().any(|(key, _)| *key != "type");
    let fits = |value: &Value| {
        others.clone().all(|(_, kinds)| {
            kinds_of(&serde_json::json!({ "type": kinds }), &Value::Null).allows(Kinds::of(value))
        })
    };
    let values: Vec<Value> = values.into_iter().filter(fits).collect();
    (!has_others && !values.is_empty()).then_some(values)
}

/// The kinds of values that `schema` may allow; references point into `root`.
pub(crate) fn kinds_of(schema: &Value, root: &Value) -> Kinds {
    kinds_within(schema, root, &mut { MOST_SCHEMAS })
}

fn kinds_within(schema: &Value, root: &Value, n_left: &mut usize) -> Kinds {
    let Some(schema) = schema.as_object() else { return Kinds::ANY };
    if *n_left == 0 {
        return Kinds::ANY;
    }
    *n_left -= 1;
    let mut kinds = match schema.get("type") {
        Some(Value::String(name)) => Kinds::named(name),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).map(Kinds::named);
            names.fold(Kinds::NONE, Kinds::or)
        }
        _ => Kinds::ANY,
    };
    if let Some(value) = schema.get("const") {
        kinds = kinds.and(Kinds::of(value));
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        kinds = kinds.and(values.iter().map(Kinds::of).fold(Kinds::NONE, Kinds::or));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(schemas)) = schema.get(key) {
            let each = schemas.iter().map(|schema| kinds_within(schema, root, n_left));
            kinds = kinds.and(each.fold(Kinds::NONE, Kinds::or));
        }
    }
    if let Some(Value::Array(schemas)) = schema.get("allOf") {
        let each = schemas.iter().map(|schema| kinds_within(schema, root, n_left));
        kinds = each.fold(kinds, Kinds::and);
    }
    if let Some(Value::String(reference)) = schema.get("$ref") {
        let found = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        kinds = found.map_or(kinds, |found| kinds.and(kinds_within(found, root, n_left)));
    }
    if kinds == Kinds::NONE { Kinds::ANY } else { kinds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unions_references_and_constants_are_understood() {
        let root = json!({"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}});
        let table = [
            (json!({"type": "string"}), Kinds::STRING),
            (json!({"type": ["integer", "null"]}), Kinds::INTEGER.or(Kinds::NULL)),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                Kinds::STRING.or(Kinds::NULL),
            ),
            (json!({"enum": ["a", "b"]}), Kinds::STRING),
            (json!({"const": 1}), Kinds::INTEGER),
            (json!({"$ref": "#/$defs/n"}), Kinds::INTEGER),
            (json!({"$ref": "#/$defs/loop"}), Kinds::ANY),
            (json!({"allOf": [{"type": "number"}, {"type": "integer"}]}), Kinds::INTEGER),
            (json!({"type": "dict"}), Kinds::OBJECT),
            (json!({}), Kinds::ANY),
            (json!(true), Kinds::ANY),
        ];
        for (schema, expected) in table {
            assert_eq!(kinds_of(&schema, &root), expected, "{schema}");
        }
    }

    #[test]
    fn a_schema_of_many_references_is_understood_in_little_time() {
        let twice = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]});
        assert_eq!(kinds_of(&twice, &twice), Kinds::ANY);
    }
}
