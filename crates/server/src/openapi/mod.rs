//! The OpenAPI 3.1 document of the server, at `/openapi.json` and by `pelton openapi`.
//!
//! ```text
//!   ROUTES: method, path, need ──────────────────────────▶ paths, security
//!   readers of bodies, run on samples while they record ──▶ fields, their types, what is required
//!   operations: summaries, samples, names of answers ─────▶ the rest
//! ```
//!
//! Nobody writes the fields of a request down a second time: a reader notes what it asks for (see
//! [`record`](crate::wire::record)), so the document has the fields that are read and no other.
//! [`hints`] adds what a reader cannot tell: the shape of a value that it takes as JSON, and words.
//! The shapes of answers are in `assets/openapi/answers.json`; `tests/e2e/openapi.py` compares them with real
//! answers.

mod hints;
mod operations;
mod schema;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use self::operations::{OPERATIONS, Operation};
use crate::access::Need;
use crate::routes::{ROUTES, Route};

/// Shapes of answers, by name.
const ANSWERS: &str = include_str!("../../assets/openapi/answers.json");

/// The document as JSON.
pub fn openapi() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}", document()));
    &TEXT
}

fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    let answers: Value = serde_json::from_str(ANSWERS).expect("invariant: a test reads it");
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Pelton",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models over HTTP. In a request, `null` is the same as the \
                absence of a field; a field that is not listed is refused by name.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": answers,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// The description of a route.
fn described(route: &Route) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|one| one.method == route.method.as_str() && one.path == route.path)
}

fn operation(route: &Route) -> Value {
    let Some(operation) = described(route) else { return json!({"responses": {}}) };
    let mut all = json!({
        "summary": operation.summary,
        "operationId": name_of(route),
        "tags": [operation.tag],
        "security": security(route.need),
        "responses": responses(operation, route.need),
    });
    let parameters = parameters(operation, route.path);
    if !parameters.is_empty() {
        all["parameters"] = parameters.into();
    }
    if let Some(body) = &operation.body {
        let sample = operations::sample(body.sample);
        let content = json!({"schema": schema::of_body(body), "example": sample});
        all["requestBody"] = json!({"required": true, "content": {"application/json": content}});
    }
    if let Some((media, schema)) = operation.takes {
        let schema = hints::json(schema);
        all["requestBody"] = json!({"required": true, "content": {media: {"schema": schema}}});
    }
    all
}

/// `post_v1_chat_completions`.
fn name_of(route: &Route) -> String {
    let path = route.path.replace(['/', '.', '-'], "_").replace(['{', '}', '*'], "");
    format!("{}{path}", route.method.as_str().to_ascii_lowercase())
}

/// Without keys a server lets everyone in, so the absence of a key is a choice everywhere.
fn security(need: Need) -> Value {
    let scopes: &[&str] = match need {
        Need::Open => return json!([]),
        Need::Key | Need::User => &[],
        Need::Metrics => &["metrics"],
        Need::Admin => &["admin"],
    };
    json!([{"key": scopes}, {}])
}

fn parameters(operation: &Operation, path: &str) -> Vec<Value> {
    let segments = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let of_path = segments.map(|name| {
        let name = name.trim_start_matches('*');
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
    });
    let of_query = operation.query.iter().map(|(name, schema, about)| {
        let schema = hints::json(schema);
        json!({"name": name, "in": "query", "description": about, "schema": schema})
    });
    of_path.chain(of_query).collect()
}

fn responses(operation: &Operation, need: Need) -> Value {
    let content = |media: &str, schema: &str| {
        let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
        (media.to_owned(), json!({ "schema": schema }))
    };
    let mut fine: Map<String, Value> = match operation.answer {
        ("", _) => Map::new(),
        ("application/json", schema) => [content("application/json", schema)].into_iter().collect(),
        (media, _) => [(media.to_owned(), json!({}))].into_iter().collect(),
    };
    if let Some(media) = operation.or_media {
        fine.insert(media.to_owned(), json!({}));
    }
    let mut all = Map::new();
    let description = "The answer";
    all.insert("200".to_owned(), json!({"description": description, "content": fine}));
    let error = |about: &str| {
        let content: Map<_, _> =
            [content("application/json", operation.error)].into_iter().collect();
        json!({"description": about, "content": content})
    };
    let takes = operation.body.is_some() || operation.takes.is_some();
    let mut statuses = vec![("400", "The request is malformed, or a field is refused by name")];
    statuses.push(("403", "The host is not allowed, or the key lacks a scope"));
    if need != Need::Open {
        statuses.push(("401", "The key is missing or unknown"));
        statuses.push(("429", "Too many requests; `Retry-After` says when to try again"));
    }
    if takes || path_has_name(operation.path) {
        statuses.push(("404", "There is nothing of this name"));
    }
    if takes {
        statuses.push(("408", "The body came too slowly"));
        statuses.push(("413", "The body is too large"));
        statuses.push(("415", "The body is not JSON"));
        statuses.push(("500", "Computing the answer failed"));
    }
    statuses.push(("503", "The server is shutting down, or has failed"));
    for (status, about) in statuses {
        all.insert(status.to_owned(), error(about));
    }
    for (status, schema) in operation.also {
        let content: Map<_, _> = [content("application/json", schema)].into_iter().collect();
        let answer = json!({"description": "See the schema", "content": content});
        all.insert((*status).to_owned(), answer);
    }
    all.into()
}

fn path_has_name(path: &str) -> bool {
    path.contains('{')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::openapi::operations::Reads;

    fn bodies() -> impl Iterator<Item = (&'static str, &'static operations::Body)> {
        OPERATIONS.iter().filter_map(|one| Some((one.path, one.body.as_ref()?)))
    }

    /// A sample of a body with one field more.
    fn with_field(sample: &str, name: &str, value: Value) -> Vec<u8> {
        let mut sample = operations::sample(sample);
        sample[name] = value;
        sample.to_string().into_bytes()
    }

    /// The first sample of a body with one field more.
    fn with(body: &operations::Body, name: &str, value: Value) -> Vec<u8> {
        with_field(body.sample, name, value)
    }

    fn properties(body: &operations::Body) -> Map<String, Value> {
        let schema = schema::of_body(body);
        schema["properties"].as_object().expect("fields").clone()
    }

    #[test]
    fn every_route_is_described_once() {
        let described: BTreeSet<_> = OPERATIONS.iter().map(|one| (one.method, one.path)).collect();
        for route in ROUTES {
            let is_there = described.contains(&(route.method.as_str(), route.path));
            assert!(is_there, "operations.rs lacks {} {}", route.method, route.path);
        }
        assert_eq!(described.len(), OPERATIONS.len(), "an operation stands twice");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for (at, _) in text.match_indices("\"#/") {
            let target = text[at + 2..].split('"').next().expect("an end");
            assert!(document.pointer(target).is_some(), "{target}");
        }
        assert!(text.matches("\"#/").count() > 50);
    }

    #[test]
    fn samples_are_accepted_and_each_required_field_is_required() {
        for (path, body) in bodies() {
            for text in body.samples() {
                let read = (body.reader)(text.as_bytes());
                assert!(read.is_ok(), "{path}: {text}: {:?}", read.err());
            }
            let schema = schema::of_body(body);
            for name in schema["required"].as_array().into_iter().flatten() {
                let mut sample = operations::sample(body.sample);
                sample.as_object_mut().expect("an object").remove(name.as_str().expect("a name"));
                assert!((body.reader)(sample.to_string().as_bytes()).is_err(), "{path}: {name}");
            }
        }
    }

    #[test]
    fn of_names_that_mean_the_same_a_body_has_one_and_each_will_do() {
        let mut n_checked = 0;
        for (path, body) in bodies().filter(|(_, body)| !body.either.is_empty()) {
            let schema = schema::of_body(body);
            let groups = schema["allOf"].as_array().expect("groups");
            assert_eq!(groups.len(), body.either.len(), "{path}");
            for name in body.either.iter().copied().flatten() {
                let has = |sample: &&str| operations::sample(sample).get(name).is_some();
                let sample = body.samples().find(has).unwrap_or_else(|| panic!("{path}: {name}"));
                let mut less = operations::sample(sample);
                less.as_object_mut().expect("an object").remove(*name);
                assert!((body.reader)(less.to_string().as_bytes()).is_err(), "{path}: {name}");
                assert!(schema["properties"].get(name).is_some(), "{path}: {name}");
                n_checked += 1;
            }
        }
        assert!(n_checked >= 3 + 8 + 8);
    }

    #[test]
    fn every_body_and_every_answer_has_fields() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        for (name, schema) in schemas.as_object().expect("schemas") {
            let has_fields = schema["properties"].as_object().is_some_and(|all| !all.is_empty());
            // One of several others, each of which has fields by this loop.
            let of_known = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
            let has_known = of_known.is_some_and(|all| {
                let target = |one: &Value| {
                    let path = one["$ref"].as_str()?.strip_prefix("#/components/schemas/")?;
                    schemas.get(path)
                };
                all.len() > 1 && all.iter().all(|one| target(one).is_some())
            });
            assert!(has_fields || has_known, "{name} says nothing");
        }
        let items = document["paths"].as_object().expect("paths").values();
        for operation in items.flat_map(|item| item.as_object().expect("methods").values()) {
            let id = &operation["operationId"];
            for content in operation["requestBody"]["content"].as_object().into_iter().flatten() {
                let n_fields = content.1["schema"]["properties"].as_object().map_or(0, Map::len);
                assert!(n_fields > 0, "{id}: {}", content.0);
            }
            let fine = operation["responses"]["200"]["content"].as_object().expect("answers");
            let is_json = fine.get("application/json");
            assert!(is_json.is_none_or(|json| json["schema"]["$ref"].is_string()), "{id}");
            assert!(!fine.is_empty(), "{id}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_by_the_name_of_its_field() {
        for (path, body) in bodies() {
            let mut n_checked = 0;
            for (name, schema) in properties(body) {
                let Some(kind) = schema["type"].as_str() else { continue };
                let wrong = if kind == "string" { json!(17.5) } else { json!("\u{1}") };
                let error = (body.reader)(&with(body, &name, wrong)).expect_err(&name);
                let param = error.body.param.unwrap_or_default();
                assert!(param.starts_with(&name), "{path}: {name}: {}", error.body.message);
                n_checked += 1;
            }
            assert!(n_checked > 0, "{path}");
        }
    }

    #[test]
    fn an_example_of_each_hint_is_accepted() {
        for (path, body) in bodies() {
            for (name, schema) in properties(body) {
                for example in schema["examples"].as_array().into_iter().flatten() {
                    // A body of several forms has a sample of each.
                    let mut samples = body.samples();
                    let is_accepted = samples.any(|sample| {
                        (body.reader)(&with_field(sample, &name, example.clone())).is_ok()
                    });
                    assert!(is_accepted, "{path}: {name} {example}");
                }
            }
        }
    }

    /// Every text in the sources that could be the name of a field.
    fn words() -> BTreeSet<String> {
        fn collect(folder: &std::path::Path, words: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    collect(&path, words);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("a source");
                let is_name = |word: &&str| {
                    (1..=60).contains(&word.len())
                        && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                };
                words.extend(text.split('"').filter(is_name).map(str::to_owned));
            }
        }
        let mut words = BTreeSet::new();
        let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for folder in ["routes", "wire"] {
            collect(&sources.join(folder), &mut words);
        }
        words
    }

    #[test]
    fn a_reader_knows_no_field_that_the_document_lacks() {
        let words = words();
        assert!(words.len() > 200 && words.contains("temperature"));
        for (path, body) in bodies() {
            let known = properties(body);
            for word in words.iter().filter(|word| !known.contains_key(*word)) {
                let read: Reads = (body.reader)(&with(body, word, json!([[[]]])));
                let error = read.expect_err("an unknown field is refused");
                let message = error.body.message;
                assert!(message.contains("unknown parameter"), "{path}: {word}: {message}");
            }
            assert!(!known.contains_key("zzz"));
        }
    }
}
