//! Random texts of a form, and a check of their arguments.

use pelton_base::Shape;
use serde_json::{Map, Value, json};

/// A small random number generator (xorshift), so that a failure comes again.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Texts that are no mark, but look like one.
const WORDS: [&str; 12] =
    ["Hm. ", "\n", "  ", "a < b", "</", "\"x\"", "{", "é🎉", "null", "12", "true", "<par"];

/// Appends a text of the form.
pub(crate) fn walk(shape: &Shape, random: &mut Random, text: &mut String) {
    match shape {
        Shape::Text(part) | Shape::Token(part) => text.push_str(part),
        Shape::Json { schema, .. } => {
            let schema = serde_json::from_str(schema).expect("a schema");
            text.push_str(&instance(&schema, &schema, random).to_string());
        }
        Shape::Regex(regex) => text.push_str(match regex.as_str() {
            "0" => "0",
            "0|[1-9][0-9]{0,2}" => ["0", "7", "120"][random.below(3)],
            "[ \\n]{0,4}" => ["", " ", "\n\n"][random.below(3)],
            other => panic!("no texts of {other}"),
        }),
        Shape::Until(end) => {
            let mut part = free(random, |part| part.contains(end.as_str()));
            part.push_str(end);
            // A word and the mark may make a mark that begins earlier.
            if part.find(end.as_str()) != Some(part.len() - end.len()) {
                part = end.clone();
            }
            text.push_str(&part);
        }
        Shape::Any => text.push_str(&free(random, |_| false)),
        Shape::Sequence(items) => items.iter().for_each(|item| walk(item, random, text)),
        Shape::OneOf(items) => walk(random.of(items), random, text),
        Shape::Repeat { item, separator, least, most } => {
            let n_items = (*least + random.below(3)).min(most.unwrap_or(usize::MAX));
            for item_idx in 0..n_items {
                text.push_str(if item_idx > 0 { separator } else { "" });
                walk(item, random, text);
            }
        }
        Shape::Triggered { tags, triggers, stop_after_first, .. } => {
            let is_free = |part: &str| !triggers.iter().any(|trigger| part.contains(trigger));
            let n_tags = if *stop_after_first { random.below(2) } else { random.below(3) };
            for tag_idx in 0..=n_tags {
                if tag_idx > 0 {
                    let tag = random.of(tags);
                    text.push_str(&tag.begin);
                    walk(&tag.content, random, text);
                    text.push_str(&tag.end);
                }
                if tag_idx == n_tags && *stop_after_first && n_tags > 0 {
                    break;
                }
                text.push_str(&free(random, |part| !is_free(part)));
            }
        }
        Shape::Lark(_) | Shape::Gbnf(_) => panic!("no format writes {shape:?}"),
    }
}

/// A few words that are not `forbidden`.
fn free(random: &mut Random, forbidden: impl Fn(&str) -> bool) -> String {
    let words: String = (0..random.below(5)).map(|_| *random.of(&WORDS)).collect();
    if forbidden(&words) { String::new() } else { words }
}

/// A value that the schema allows.
fn instance(schema: &Value, root: &Value, random: &mut Random) -> Value {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let found = root.pointer(reference.trim_start_matches('#')).expect("a definition");
        return instance(found, root, random);
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        return random.of(values).clone();
    }
    if let Some(Value::Array(schemas)) = schema.get("anyOf") {
        return instance(&random.of(schemas).clone(), root, random);
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => random.of(kinds).as_str().expect("a name").to_owned(),
        Some(kind) => kind.as_str().expect("a name").to_owned(),
        None => "any".to_owned(),
    };
    match kind.as_str() {
        "string" if schema.get("pattern").is_some() => "ABC".into(),
        "string" => {
            let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0) as usize;
            let words = free(random, |_| false);
            if words.chars().count() < least { "long enough".into() } else { words.into() }
        }
        "integer" => json!(schema["minimum"].as_i64().unwrap_or(-3) + random.below(9) as i64),
        "number" => json!(random.below(9) as f64 / 2.0),
        "boolean" => (random.below(2) == 0).into(),
        "null" => Value::Null,
        "array" => {
            let items = schema.get("items").cloned().unwrap_or(json!({}));
            (0..random.below(3)).map(|_| instance(&items, root, random)).collect()
        }
        "object" => {
            let mut object = Map::new();
            let properties = schema.get("properties").and_then(Value::as_object);
            for (key, property) in properties.into_iter().flatten() {
                let required = schema["required"].as_array();
                let is_required = required.is_some_and(|r| r.contains(&key.as_str().into()));
                if is_required || random.below(2) == 0 {
                    object.insert(key.clone(), instance(property, root, random));
                }
            }
            object.into()
        }
        _ => random.of(&[json!("12"), json!(12), json!([null]), json!({"a": "b"})]).clone(),
    }
}

/// Why a value is not allowed by the schema.
pub(crate) fn fault(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let found = root.pointer(reference.trim_start_matches('#')).expect("a definition");
        return fault(value, found, root);
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        return (!values.contains(value)).then(|| format!("{value} is none of {values:?}"));
    }
    if let Some(Value::Array(schemas)) = schema.get("anyOf") {
        let faults: Vec<_> = schemas.iter().map(|schema| fault(value, schema, root)).collect();
        return faults.iter().all(Option::is_some).then(|| format!("{faults:?}"));
    }
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fits = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| is(kind.as_str().unwrap_or(""))),
        Some(kind) => is(kind.as_str().unwrap_or("")),
        None => true,
    };
    if !fits {
        return Some(format!("{value} is no {}", schema["type"]));
    }
    if schema.get("pattern").is_some() && value != "ABC" {
        return Some(format!("{value} does not match"));
    }
    if let (Some(least), Some(text)) = (schema["minLength"].as_u64(), value.as_str())
        && (text.chars().count() as u64) < least
    {
        return Some(format!("{value} is too short"));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
        && number < least
    {
        return Some(format!("{value} is too small"));
    }
    let items = value.as_array().into_iter().flatten();
    let properties = schema.get("properties").and_then(Value::as_object);
    let members = properties.into_iter().flatten();
    let missing = schema["required"].as_array().into_iter().flatten();
    items
        .filter_map(|item| fault(item, schema.get("items")?, root))
        .chain(members.filter_map(|(key, property)| fault(value.get(key)?, property, root)))
        .chain(
            missing
                .filter(|key| value.get(key.as_str().unwrap_or("")).is_none())
                .map(|key| format!("{key} is missing")),
        )
        .next()
}
