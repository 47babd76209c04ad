//! The form that an answer must have: the dialects in which clients ask for one.
//!
//! ```text
//! OpenAI        response_format: json_object, json_schema
//! vLLM          structured_outputs: json, regex, choice, grammar, structural_tag; guided_*
//! llama.cpp     grammar (GBNF), json_schema
//! ```

mod formats;
#[cfg(test)]
mod formats_tests;

use pelton_base::{Shape, Tag, limits};
use serde_json::Value;

use super::Fields;
use super::json::{Extent, Kind, RawValue, each, free_within, string, wrong};
use crate::error::ApiError;

/// The largest schema.
pub(crate) const SCHEMA: Extent = Extent { bytes: limits::GRAMMAR_BYTES, depth: 100, fields: 4096 };

/// The form of the answers as a request asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Form {
    /// The form; `None` for free text.
    pub(crate) shape: Option<Shape>,
    /// Whether JSON has no white space.
    pub(crate) is_compact: bool,
    /// Field that asks for the form.
    pub(crate) field: String,
}

/// Reads the form of the answers.
///
/// # Errors
///
/// Names the field that is wrong, and two fields that each ask for a form.
pub(crate) fn form(fields: &mut Fields<'_>) -> Result<Form, ApiError> {
    let mut found: Option<(String, Shape)> = None;
    let mut add = |name: &str, shape: Option<Shape>| {
        let Some(shape) = shape else { return Ok(()) };
        if let Some((first, _)) = &found {
            let message = format!("`{first}` and `{name}` both ask for a form of the answer");
            return Err(ApiError::param(name, message));
        }
        found = Some((name.to_owned(), shape));
        Ok(())
    };
    add("response_format", response_format(fields)?)?;
    let Form { shape, is_compact, field } = structured_outputs(fields)?;
    add(&field, shape)?;
    add("structural_tag", take(fields, "structural_tag", structural_tag)?)?;
    for (name, read) in GUIDED {
        add(name, take(fields, name, *read)?)?;
    }
    // The kind of library changes no token here: there is one.
    fields.string("guided_decoding_backend")?;
    let (field, shape) = found.unzip();
    Ok(Form { shape, is_compact, field: field.unwrap_or_default() })
}

/// A reader of a form; the path names its value.
type Read = fn(&str, &RawValue) -> Result<Option<Shape>, ApiError>;

/// The fields of a body that hold a form.
const GUIDED: &[(&str, Read)] = &[
    ("guided_json", json),
    ("guided_regex", regex),
    ("guided_choice", choice),
    ("guided_grammar", grammar),
    ("json_schema", json),
    ("grammar", grammar),
    // As SGLang names them.
    ("regex", regex),
    ("ebnf", grammar),
];

fn take(fields: &mut Fields<'_>, name: &str, read: Read) -> Result<Option<Shape>, ApiError> {
    let path = fields.path(name);
    fields.take(name).map_or(Ok(None), |raw| read(&path, raw))
}

fn response_format(fields: &mut Fields<'_>) -> Result<Option<Shape>, ApiError> {
    let Some(raw) = fields.take("response_format") else { return Ok(None) };
    let mut inner = Fields::nested("response_format", raw)?;
    let kind = inner.string("type")?;
    let shape = match kind.as_deref() {
        Some("text") => None,
        // Some servers take a schema here, too.
        Some("json_object") => match take(&mut inner, "schema", json)? {
            None => Some(Shape::any_object()),
            shape => shape,
        },
        Some("json_schema") => Some(named_schema(&mut inner)?),
        Some("structural_tag") => {
            let shape = structural_tags(&mut inner)?;
            inner.finish()?;
            return Ok(Some(shape));
        }
        kind => {
            let expected = "text, json_object, json_schema or structural_tag";
            let got = kind.map_or(Value::Null, Value::from).to_string();
            return Err(wrong("response_format.type", expected, &got));
        }
    };
    inner.finish()?;
    Ok(shape)
}

/// The schema in `json_schema`, which has a name and a description beside it.
fn named_schema(outer: &mut Fields<'_>) -> Result<Shape, ApiError> {
    let path = outer.path("json_schema");
    let missing = |path: &str| ApiError::param(path, format!("`{path}` is missing"));
    let raw = outer.take("json_schema").ok_or_else(|| missing(&path))?;
    let mut inner = Fields::nested(&path, raw)?;
    // A name and a description are for the model of the client's choice; a schema is always strict.
    inner.string("name")?;
    inner.string("description")?;
    inner.bool("strict")?;
    let shape = take(&mut inner, "schema", json)?;
    let path = inner.path("schema");
    inner.finish()?;
    shape.ok_or_else(|| missing(&path))
}

fn structured_outputs(fields: &mut Fields<'_>) -> Result<Form, ApiError> {
    let name = "structured_outputs";
    let Some(raw) = fields.take(name) else { return Ok(Form::default()) };
    let mut inner = Fields::nested(name, raw)?;
    let mut found = Vec::new();
    let readers: [(&str, Read); 5] = [
        ("json", json),
        ("regex", regex),
        ("choice", choice),
        ("grammar", grammar),
        ("structural_tag", structural_tag),
    ];
    for (name, read) in readers {
        let shape = take(&mut inner, name, read)?;
        found.extend(shape.map(|shape| (inner.path(name), shape)));
    }
    if inner.bool("json_object")?.unwrap_or(false) {
        found.push((inner.path("json_object"), Shape::any_object()));
    }
    let is_compact = inner.bool("disable_any_whitespace")?.unwrap_or(false);
    for name in ["disable_additional_properties", "disable_fallback"] {
        if inner.bool(name)?.unwrap_or(false) {
            return Err(ApiError::unsupported(inner.path(name)));
        }
    }
    for name in ["whitespace_pattern", "_backend"] {
        if inner.string(name)?.is_some() {
            return Err(ApiError::unsupported(inner.path(name)));
        }
    }
    inner.finish()?;
    if found.len() > 1 {
        return Err(ApiError::param(name, format!("`{name}` must have one form, got several")));
    }
    let (field, shape) = found.pop().unzip();
    Ok(Form { shape, is_compact, field: field.unwrap_or_default() })
}

/// A JSON schema, as an object or as its text; `true` allows every value.
pub(crate) fn json(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    let schema = match Kind::of(raw) {
        Kind::Object => raw.get().to_owned(),
        Kind::String => string(path, raw)?,
        _ if raw.get() == "true" => "{}".to_owned(),
        _ => return Err(wrong(path, "a JSON schema", raw.get())),
    };
    let text = RawValue::from_string(schema)
        .map_err(|error| ApiError::param(path, format!("`{path}` is no JSON: {error}")))?;
    free_within(path, &text, SCHEMA)?;
    Ok(Some(Shape::Json { schema: text.get().to_owned(), path: path.to_owned() }))
}

fn regex(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    Ok(Some(Shape::Regex(limited(path, string(path, raw)?)?)))
}

fn choice(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    const EXPECTED: &str = "an array of at least one text";
    if Kind::of(raw) != Kind::Array {
        return Err(wrong(path, EXPECTED, raw.get()));
    }
    let mut texts = Vec::new();
    each(path, raw, limits::GRAMMAR_CHOICES, |i, item| {
        texts.push(Shape::Text(string(&format!("{path}[{i}]"), item)?));
        Ok(())
    })?;
    if texts.is_empty() {
        return Err(wrong(path, EXPECTED, raw.get()));
    }
    Ok(Some(Shape::OneOf(texts)))
}

/// A grammar in GBNF, whose rules are written `name ::= ...`, or in Lark.
fn grammar(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    let text = limited(path, string(path, raw)?)?;
    Ok(match text.trim() {
        // llama.cpp's default, which asks for nothing.
        "" if path == "grammar" => None,
        "" => return Err(wrong(path, "a grammar in GBNF or Lark", "\"\"")),
        grammar if grammar.contains("::=") => Some(Shape::Gbnf(text)),
        _ => Some(Shape::Lark(text)),
    })
}

fn limited(path: &str, text: String) -> Result<String, ApiError> {
    match text.len() {
        0..=limits::GRAMMAR_BYTES => Ok(text),
        n => {
            let expected = format!("at most {} bytes", limits::GRAMMAR_BYTES);
            Err(ApiError::param(path, format!("`{path}` must be {expected}, got {n}")))
        }
    }
}

/// Structural tags, as an object or as its text.
fn structural_tag(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    let text;
    let raw = match Kind::of(raw) {
        Kind::String => {
            text = RawValue::from_string(limited(path, string(path, raw)?)?)
                .map_err(|error| ApiError::param(path, format!("`{path}` is no JSON: {error}")))?;
            &*text
        }
        _ => raw,
    };
    let mut fields = Fields::nested(path, raw)?;
    let kind = fields.string("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "structural_tag") {
        let got = kind.map_or(Value::Null, Value::from).to_string();
        return Err(wrong(&fields.path("type"), "\"structural_tag\"", &got));
    }
    let shape = structural_tags(&mut fields)?;
    fields.finish()?;
    Ok(Some(shape))
}

/// A tree of formats; or free text in which each trigger begins a tag: `structures` of `begin`,
/// `schema` and `end`.
fn structural_tags(fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
    if let Some(raw) = fields.take("format") {
        return formats::format(&fields.path("format"), raw);
    }
    let missing = |path: String| ApiError::param(&path, format!("`{path}` is missing"));
    let tags = fields.list("structures", limits::TOOLS, |path, raw| {
        let mut fields = Fields::nested(path, raw)?;
        let mut text = |name: &str| {
            let path = fields.path(name);
            fields.string(name)?.ok_or_else(|| missing(path))
        };
        let (begin, end) = (text("begin")?, text("end")?);
        let content = take(&mut fields, "schema", json)?;
        let content = content.ok_or_else(|| missing(fields.path("schema")))?;
        fields.finish()?;
        Ok(Tag { begin, content, end })
    })?;
    let tags = tags.ok_or_else(|| missing(fields.path("structures")))?;
    let triggers = fields.list("triggers", limits::TOOLS, string)?;
    let triggers = triggers.ok_or_else(|| missing(fields.path("triggers")))?;
    let path = fields.path("triggers");
    if tags.is_empty() || triggers.is_empty() || triggers.iter().any(String::is_empty) {
        let message = format!("`{path}` and the structures beside it must not be empty");
        return Err(ApiError::param(path, message));
    }
    if let Some(tag) = tags.iter().find(|tag| !triggers.iter().any(|t| tag.begin.starts_with(t))) {
        let begin = Value::from(tag.begin.as_str());
        let message = format!("`{path}` has no beginning of {begin}, which begins a structure");
        return Err(ApiError::param(path, message));
    }
    Ok(Shape::Triggered { tags, triggers, at_least_one: false, stop_after_first: false })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Option<Shape>, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let form = form(&mut fields)?;
        fields.finish()?;
        Ok(form.shape)
    }

    fn schema(path: &str, schema: Value) -> Option<Shape> {
        Some(Shape::Json { schema: schema.to_string(), path: path.to_owned() })
    }

    #[test]
    fn every_dialect_asks_for_the_same_forms() {
        let own = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let path = "response_format.json_schema.schema";
        for (body, expected) in [
            (json!({}), None),
            (json!({"response_format": {"type": "text"}, "grammar": ""}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Shape::any_object())),
            (
                json!({"response_format": {"type": "json_schema", "json_schema":
                    {"name": "x", "strict": true, "schema": own}}}),
                schema(path, own.clone()),
            ),
            (json!({"guided_json": own}), schema("guided_json", own.clone())),
            (json!({"json_schema": own}), schema("json_schema", own.clone())),
            (
                json!({"structured_outputs": {"json": own.to_string()}}),
                schema("structured_outputs.json", own.clone()),
            ),
            (json!({"guided_regex": "[0-9]+"}), Some(Shape::Regex("[0-9]+".to_owned()))),
            (
                json!({"structured_outputs": {"choice": ["yes", "no"]}}),
                Some(Shape::OneOf(vec![Shape::text("yes"), Shape::text("no")])),
            ),
            (
                json!({"grammar": "root ::= \"a\"", "guided_decoding_backend": "auto"}),
                Some(Shape::Gbnf("root ::= \"a\"".to_owned())),
            ),
            (
                json!({"guided_grammar": "start: \"a\""}),
                Some(Shape::Lark("start: \"a\"".to_owned())),
            ),
        ] {
            assert_eq!(read(body.clone()).expect("valid"), expected, "{body}");
        }
        let tags = json!({"type": "structural_tag", "triggers": ["<f"],
            "structures": [{"begin": "<f=a>", "schema": {}, "end": "</f>"}]});
        let Some(Shape::Triggered { tags: read_tags, triggers, .. }) =
            read(json!({ "response_format": tags })).expect("valid")
        else {
            panic!("tags")
        };
        assert_eq!((read_tags[0].begin.as_str(), &triggers[..]), ("<f=a>", &["<f".to_owned()][..]));
    }

    #[test]
    fn a_form_that_is_wrong_is_named() {
        let own = json!({"type": "object"});
        for (param, body) in [
            ("response_format.type", json!({"response_format": {"type": "xml"}})),
            ("response_format.type", json!({"response_format": {}})),
            ("response_format.json_schema", json!({"response_format": {"type": "json_schema"}})),
            (
                "response_format.json_schema.schema",
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            ),
            (
                "response_format.json_schema.schema.a",
                // A name that is given twice.
                Value::Null,
            ),
            ("guided_json", json!({"guided_json": 1})),
            ("guided_json", json!({"guided_json": "{"})),
            ("guided_choice", json!({"guided_choice": []})),
            ("guided_choice[1]", json!({"guided_choice": ["a", 1]})),
            ("guided_regex", json!({"guided_regex": ["a"]})),
            ("grammar", json!({"grammar": "a".repeat(limits::GRAMMAR_BYTES + 1)})),
            ("guided_grammar", json!({"guided_grammar": ""})),
            ("structured_outputs.grammar", json!({"structured_outputs": {"grammar": " "}})),
            (
                "json_schema",
                json!({"json_schema": own, "response_format": {"type": "json_object"}}),
            ),
            ("structured_outputs", json!({"structured_outputs": {"json": own, "regex": "a"}})),
            (
                "structured_outputs.whitespace_pattern",
                json!({"structured_outputs": {"json": own, "whitespace_pattern": " "}}),
            ),
            ("structured_outputs.x", json!({"structured_outputs": {"x": 1}})),
            (
                "response_format.format.type",
                json!({"response_format": {"type": "structural_tag", "format": {"type": "x"}}}),
            ),
            ("structural_tag.structures", json!({"structural_tag": {"triggers": ["a"]}})),
            (
                "structural_tag.triggers",
                json!({"structural_tag": {"triggers": ["a"], "structures":
                    [{"begin": "b", "schema": {}, "end": ""}]}}),
            ),
        ] {
            let error = match body {
                Value::Null => {
                    let text = r#"{"response_format": {"type": "json_schema", "json_schema":
                        {"schema": {"a": 1, "a": 2}}}}"#;
                    form(&mut Fields::of_body(text.as_bytes()).expect("fields")).map(drop)
                }
                body => read(body).map(drop),
            };
            let error = error.expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }
}
