//! Random schemas, and a validator that follows the words of the specification one by one.
#![allow(dead_code, reason = "each test file uses some of it")]

use serde_json::{Map, Value, json};

/// Xorshift (Marsaglia 2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }
}

const NAMES: [&str; 4] = ["a", "bb", "n\"q", "é"];

pub(crate) fn random_schema(random: &mut Random, depth: usize) -> Value {
    let n_kinds = if depth == 0 { 6 } else { 12 };
    let mut schema = match random.below(n_kinds) {
        0 => json!({"type": "boolean"}),
        1 => {
            let least = random.below(40) as i64 - 20;
            let most = least + random.below(60) as i64;
            json!({"type": "integer", "minimum": least, "exclusiveMaximum": most + 1})
        }
        2 => {
            let least = random.below(400) as f64 / 8.0 - 25.0;
            json!({"type": "number", "exclusiveMinimum": least, "maximum": least + 1.5})
        }
        3 => {
            let least = random.below(4);
            json!({"type": "string", "minLength": least, "maxLength": least + random.below(4)})
        }
        4 => json!({"enum": [null, "x", "y\n\"z", 3, [1, "k"], {"q": true}]}),
        5 => json!({"type": ["string", "null", "integer"]}),
        6 => array(random, depth),
        7 | 8 => object(random, depth),
        9 => {
            let options = (0..2 + random.below(2)).map(|_| random_schema(random, depth - 1));
            let options: Vec<Value> = options.collect();
            json!({"anyOf": options})
        }
        10 => {
            let kinds = ["k", "l", "m"].iter().take(2 + random.below(2)).map(|kind| {
                let mut object = object(random, depth);
                object["properties"]["kind"] = json!({"const": kind});
                object["required"].as_array_mut().expect("a list").push(json!("kind"));
                object
            });
            let kinds: Vec<Value> = kinds.collect();
            json!({"oneOf": kinds})
        }
        _ => json!({"allOf": [object(random, depth), object(random, depth)]}),
    };
    if depth > 0 && random.below(6) == 0 {
        schema["not"] = json!({"required": [NAMES[random.below(4)]]});
    }
    schema
}

fn array(random: &mut Random, depth: usize) -> Value {
    let mut schema = json!({"type": "array", "items": random_schema(random, depth - 1)});
    if random.below(2) == 0 {
        schema["prefixItems"] = json!([random_schema(random, depth - 1)]);
    }
    let least = random.below(3);
    schema["minItems"] = json!(least);
    schema["maxItems"] = json!(least + random.below(3));
    schema
}

fn object(random: &mut Random, depth: usize) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in NAMES {
        if random.below(3) > 0 {
            properties.insert(name.to_owned(), random_schema(random, depth - 1));
            if random.below(2) == 0 {
                required.push(json!(name));
            }
        }
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    match random.below(5) {
        0 => schema["additionalProperties"] = random_schema(random, depth - 1),
        1 => {}
        _ => schema["additionalProperties"] = json!(false),
    }
    match random.below(6) {
        0 => schema["dependentRequired"] = json!({"a": ["bb"]}),
        1 => {
            schema["if"] = json!({"properties": {"a": {"const": true}}, "required": ["a"]});
            schema["then"] = json!({"required": ["bb"]});
            schema["else"] = json!({"properties": {"bb": {"type": ["string", "integer"]}}});
        }
        2 => schema["maxProperties"] = json!(2 + random.below(2)),
        3 => schema["minProperties"] = json!(1),
        _ => {}
    }
    schema
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| equal(v, w)))
        }
        _ => a == b,
    }
}

/// Whether `value` fits `schema`, for the keywords that random schemas have.
pub(crate) fn validates(schema: &Value, value: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema == &Value::Bool(true) };
    let fits = |schema: &Value| validates(schema, value);
    schema.iter().all(|(keyword, word)| {
        let number = |holds: fn(f64, f64) -> bool| match (value.as_f64(), word.as_f64()) {
            (Some(value), Some(bound)) => holds(value, bound),
            _ => true,
        };
        let count = |n: Option<usize>, holds: fn(u64, u64) -> bool| match (n, word.as_u64()) {
            (Some(n), Some(bound)) => holds(n as u64, bound),
            _ => true,
        };
        let length = value.as_str().map(|text| text.chars().count());
        let n_items = value.as_array().map(Vec::len);
        let n_properties = value.as_object().map(Map::len);
        let list = || word.as_array().cloned().unwrap_or_default();
        match keyword.as_str() {
            "type" => match word {
                Value::Array(names) => {
                    names.iter().any(|name| is_type(name.as_str().unwrap_or(""), value))
                }
                name => is_type(name.as_str().unwrap_or(""), value),
            },
            "enum" => list().iter().any(|one| equal(one, value)),
            "const" => equal(word, value),
            "minimum" => number(|value, bound| value >= bound),
            "maximum" => number(|value, bound| value <= bound),
            "exclusiveMinimum" => number(|value, bound| value > bound),
            "exclusiveMaximum" => number(|value, bound| value < bound),
            "minLength" => count(length, |n, bound| n >= bound),
            "maxLength" => count(length, |n, bound| n <= bound),
            "minItems" => count(n_items, |n, bound| n >= bound),
            "maxItems" => count(n_items, |n, bound| n <= bound),
            "minProperties" => count(n_properties, |n, bound| n >= bound),
            "maxProperties" => count(n_properties, |n, bound| n <= bound),
            "items" => {
                let n_prefix =
                    schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                let items = value.as_array().into_iter().flatten().skip(n_prefix);
                items.into_iter().all(|item| validates(word, item))
            }
            "prefixItems" => value
                .as_array()
                .into_iter()
                .flatten()
                .zip(list())
                .all(|(item, schema)| validates(&schema, item)),
            "properties" => word.as_object().into_iter().flatten().all(|(name, schema)| {
                value.get(name).is_none_or(|member| validates(schema, member))
            }),
            "additionalProperties" => {
                value.as_object().into_iter().flatten().all(|(name, member)| {
                    let is_listed = schema.get("properties").is_some_and(|p| p.get(name).is_some());
                    is_listed || validates(word, member)
                })
            }
            "required" => {
                !value.is_object()
                    || list().iter().all(|n| value.get(n.as_str().unwrap_or("")).is_some())
            }
            "dependentRequired" => word.as_object().into_iter().flatten().all(|(name, names)| {
                let names = names.as_array().cloned().unwrap_or_default();
                value.get(name).is_none()
                    || names.iter().all(|n| value.get(n.as_str().unwrap_or("")).is_some())
            }),
            "allOf" => list().iter().all(fits),
            "anyOf" => list().iter().any(fits),
            "oneOf" => list().iter().filter(|schema| fits(schema)).count() == 1,
            "not" => !fits(word),
            "if" => {
                let next = if fits(word) { "then" } else { "else" };
                schema.get(next).is_none_or(fits)
            }
            "then" | "else" => true,
            other => panic!("the validator does not know {other:?}"),
        }
    })
}
