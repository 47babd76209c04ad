//! Structural tags as a tree of formats, as XGrammar and vLLM have them.
//!
//! ```text
//!   const_string, regex, grammar, json_schema, token        one piece
//!   any_text                                                up to the end of the tag around it
//!   sequence, or, optional, plus, star, repeat              pieces together
//!   tag                                                     begin, content, end
//!   triggered_tags, tags_with_separator                     tags in a text, or one after the other
//! ```
//!
//! A free text ends where the first of the texts begins that must follow it, so it has to know them:
//! a format is read together with the ends of the tag around it, and its form includes the end.
//! Forms that cannot be told apart that way are refused by path.

use pelton_base::{Shape, limits};
use serde_json::Value;

use super::super::Fields;
use super::super::json::{Kind, RawValue, each, string, wrong};
use super::{grammar, json, regex, take};
use crate::error::ApiError;

/// Most formats inside of each other.
const DEPTH: usize = 24;

/// The kinds of formats.
const KINDS: &str = "const_string, json_schema, regex, grammar, any_text, token, sequence, or, \
                     optional, plus, star, repeat, tag, triggered_tags or tags_with_separator";

/// The form of a format.
///
/// # Errors
///
/// Names the place that is malformed or cannot be enforced.
pub(super) fn format(path: &str, raw: &RawValue) -> Result<Shape, ApiError> {
    Format { depth: 0, ends: &[] }.read(path, raw)
}

/// Where a format stands.
#[derive(Clone, Copy)]
struct Format<'a> {
    depth: usize,
    /// Texts of which one must follow and becomes part of the form; none for no end.
    ends: &'a [String],
}

impl Format<'_> {
    fn read(self, path: &str, raw: &RawValue) -> Result<Shape, ApiError> {
        if self.depth == DEPTH {
            let message = format!("`{path}` is more than {DEPTH} formats deep");
            return Err(ApiError::param(path, message));
        }
        let mut fields = Fields::nested(path, raw)?;
        let kind = fields.string("type")?;
        let shape = match kind.as_deref() {
            Some("any_text") => self.any_text(&mut fields)?,
            Some("sequence") => self.sequence(&mut fields)?,
            Some("or") => self.either(&mut fields)?,
            Some("tag") => self.tag(&mut fields)?.1,
            Some("triggered_tags") => self.triggered_tags(&mut fields)?,
            Some("tags_with_separator") => self.close(self.separated_tags(&mut fields)?),
            Some("optional" | "plus" | "star" | "repeat") => {
                let kind = kind.as_deref().unwrap_or_default();
                self.close(self.repeated(&mut fields, kind)?)
            }
            _ => self.close(piece(&mut fields, kind.as_deref())?),
        };
        fields.finish()?;
        Ok(shape)
    }

    fn inner(self) -> Format<'static> {
        Format { depth: self.depth + 1, ends: &[] }
    }

    fn within(self, ends: &[String]) -> Format<'_> {
        Format { depth: self.depth + 1, ends }
    }

    /// A form that has an end of its own, and what must follow.
    fn close(self, shape: Shape) -> Shape {
        if self.ends.is_empty() { shape } else { chain(vec![shape, one_of(self.ends)]) }
    }

    fn any_text(self, fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
        for name in ["max_tokens", "max_chars"] {
            if fields.take(name).is_some() {
                return Err(ApiError::unsupported(fields.path(name)));
            }
        }
        let path = fields.path("excludes");
        let excludes = fields.list("excludes", limits::TOOLS, text)?.unwrap_or_default();
        self.text(&path, excludes)
    }

    /// Free text without `excludes`, and the end that must follow.
    fn text(self, path: &str, excludes: Vec<String>) -> Result<Shape, ApiError> {
        match self.ends {
            [] if excludes.is_empty() => Ok(Shape::Any),
            [] => Ok(free(excludes)),
            [end] if excludes.iter().all(|text| text == end) => Ok(Shape::Until(end.clone())),
            ends => {
                check_apart(path, ends)?;
                let text = free([excludes, ends.to_vec()].concat());
                // Text and end are one piece each, so that the text leaves the end to it.
                let closed = ends.iter().map(|end| chain(vec![text.clone(), pieces(end)]));
                Ok(Shape::OneOf(closed.collect()))
            }
        }
    }

    fn sequence(self, fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
        let elements = elements(fields)?;
        let (last, before) = elements.split_last().ok_or_else(|| is_empty(fields, "elements"))?;
        let mut parts = Vec::with_capacity(elements.len());
        for (path, raw) in before {
            parts.push(self.inner().closed(path, raw)?);
        }
        parts.push(self.within(self.ends).read(&last.0, last.1)?);
        Ok(chain(parts))
    }

    fn either(self, fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
        let elements = elements(fields)?;
        if elements.is_empty() {
            return Err(is_empty(fields, "elements"));
        }
        let read = |(path, raw): &(String, &RawValue)| self.within(self.ends).read(path, raw);
        Ok(Shape::OneOf(elements.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// A format that something else follows, so it needs an end of its own.
    fn closed(self, path: &str, raw: &RawValue) -> Result<Shape, ApiError> {
        let shape = self.read(path, raw)?;
        if !is_endless(&shape) {
            return Ok(shape);
        }
        let message = format!("`{path}` is a text without an end; put it into a `tag`");
        Err(ApiError::param(path, message))
    }

    fn repeated(self, fields: &mut Fields<'_>, kind: &str) -> Result<Shape, ApiError> {
        let raw = fields.take("content").ok_or_else(|| is_missing(fields, "content"))?;
        let item = Box::new(self.inner().closed(&fields.path("content"), raw)?);
        let (least, most) = match kind {
            "optional" => (0, Some(1)),
            "plus" => (1, None),
            "star" => (0, None),
            _ => {
                let least = fields.usize("min")?.ok_or_else(|| is_missing(fields, "min"))?;
                let most = fields.i64("max")?.ok_or_else(|| is_missing(fields, "max"))?;
                let expected = "-1 for any number, or at least `min`";
                let wrong = || wrong(&fields.path("max"), expected, &most.to_string());
                let number = usize::try_from(most).ok().filter(|most| *most >= least);
                match most {
                    -1 => (least, None),
                    _ => (least, Some(number.ok_or_else(wrong)?)),
                }
            }
        };
        Ok(Shape::Repeat { item, separator: String::new(), least, most })
    }

    /// A tag with its beginning, where that is a text.
    fn tag(self, fields: &mut Fields<'_>) -> Result<(Option<String>, Shape), ApiError> {
        let raw = fields.take("begin").ok_or_else(|| is_missing(fields, "begin"))?;
        let (begin, head) = match Kind::of(raw) {
            Kind::String => {
                let begin = string(&fields.path("begin"), raw)?;
                (Some(begin.clone()), pieces(&begin))
            }
            _ => (None, Shape::Token(token(&fields.path("begin"), raw)?)),
        };
        let path = fields.path("end");
        let raw = fields.take("end").ok_or_else(|| is_missing(fields, "end"))?;
        let ends = match Kind::of(raw) {
            Kind::Object => vec![token(&path, raw)?],
            Kind::Array => {
                let mut ends = Vec::new();
                each(&path, raw, limits::TOOLS, |i, raw| {
                    ends.push(text(&format!("{path}[{i}]"), raw)?);
                    Ok(())
                })?;
                ends
            }
            _ => vec![string(&path, raw)?],
        };
        let raw = fields.take("content").ok_or_else(|| is_missing(fields, "content"))?;
        let content = fields.path("content");
        if ends.iter().all(String::is_empty) {
            // Without an end of its own the tag ends like what is around it.
            let content = self.within(self.ends).read(&content, raw)?;
            return Ok((begin, chain(vec![head, content])));
        }
        let content = self.within(&ends).read(&content, raw)?;
        Ok((begin, self.close(chain(vec![head, content]))))
    }

    /// The tags of a list, each with its end.
    fn tags(self, fields: &mut Fields<'_>) -> Result<Vec<(Option<String>, Shape)>, ApiError> {
        let tags = fields.list("tags", limits::TOOLS, |path, raw| {
            let mut fields = Fields::nested(path, raw)?;
            let kind = fields.string("type")?;
            if kind.as_deref().is_some_and(|kind| kind != "tag") {
                let got = kind.map_or(Value::Null, Value::from).to_string();
                return Err(wrong(&fields.path("type"), "\"tag\"", &got));
            }
            let tag = self.inner().tag(&mut fields)?;
            fields.finish()?;
            if is_endless(&tag.1) {
                let message = format!("`{path}` has no end; give it an `end`");
                return Err(ApiError::param(path, message));
            }
            Ok(tag)
        })?;
        tags.filter(|tags| !tags.is_empty()).ok_or_else(|| is_missing(fields, "tags"))
    }

    fn separated_tags(self, fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
        let tags = self.tags(fields)?;
        let separator =
            fields.string("separator")?.ok_or_else(|| is_missing(fields, "separator"))?;
        let least = usize::from(fields.bool("at_least_one")?.unwrap_or(false));
        let most = fields.bool("stop_after_first")?.unwrap_or(false).then_some(1);
        let item = Shape::OneOf(tags.into_iter().map(|(_, tag)| tag).collect());
        Ok(Shape::Repeat { item: Box::new(item), separator, least, most })
    }

    /// A text in which a tag follows wherever a trigger occurs.
    fn triggered_tags(self, fields: &mut Fields<'_>) -> Result<Shape, ApiError> {
        let tags = self.tags(fields)?;
        let path = fields.path("triggers");
        let triggers = fields.list("triggers", limits::TOOLS, text)?.unwrap_or_default();
        let begins = |begin: &String| triggers.iter().any(|text| begin.starts_with(text));
        if let Some((begin, _)) = tags.iter().find(|(begin, _)| !begin.as_ref().is_some_and(begins))
        {
            let begin = Value::from(begin.clone());
            let message = format!("`{path}` has no beginning of {begin}, which begins a tag");
            return Err(ApiError::param(path, message));
        }
        let excludes = fields.list("excludes", limits::TOOLS, text)?.unwrap_or_default();
        let at_least_one = fields.bool("at_least_one")?.unwrap_or(false);
        let only_first = fields.bool("stop_after_first")?.unwrap_or(false);
        let barred = [triggers, self.ends.to_vec()].concat();
        check_apart(&path, &barred)?;
        let barred = [barred, excludes].concat();
        let alone: Vec<Shape> = tags.into_iter().map(|(_, tag)| tag).collect();
        let after_text = |tag: &Shape| chain(vec![free(barred.clone()), tag.clone()]);
        let next = Shape::OneOf(alone.iter().map(after_text).collect());
        // The end of the text is one piece with the text, see `text`.
        let tail = match self.ends {
            [] => free(barred.clone()),
            ends => {
                let closed = ends.iter().map(|end| chain(vec![free(barred.clone()), pieces(end)]));
                Shape::OneOf(closed.collect())
            }
        };
        let more = Shape::Repeat {
            item: Box::new(next.clone()),
            separator: String::new(),
            least: 0,
            most: None,
        };
        Ok(match (at_least_one, only_first) {
            (true, true) => self.close(Shape::OneOf(alone)),
            (true, false) => chain(vec![Shape::OneOf(alone), more, tail]),
            (false, true) => Shape::OneOf(vec![self.close(next), tail]),
            (false, false) => chain(vec![more, tail]),
        })
    }
}

/// A format without formats inside.
fn piece(fields: &mut Fields<'_>, kind: Option<&str>) -> Result<Shape, ApiError> {
    let (name, shape) = match kind {
        Some("const_string") => ("value", fields.string("value")?.map(Shape::Text)),
        Some("regex") => ("pattern", take(fields, "pattern", regex)?),
        Some("grammar") => ("grammar", take(fields, "grammar", grammar)?),
        Some("token") => {
            let path = fields.path("token");
            let raw = fields.take("token");
            ("token", raw.map(|raw| name_of(&path, raw).map(Shape::Token)).transpose()?)
        }
        Some("json_schema") => {
            if fields.string("style")?.is_some_and(|style| style != "json") {
                return Err(ApiError::unsupported(fields.path("style")));
            }
            if fields.bool("any_order")?.unwrap_or(false) {
                return Err(ApiError::unsupported(fields.path("any_order")));
            }
            ("json_schema", take(fields, "json_schema", json)?)
        }
        kind => {
            let got = kind.map_or(Value::Null, Value::from).to_string();
            return Err(wrong(&fields.path("type"), &format!("one of {KINDS}"), &got));
        }
    };
    shape.ok_or_else(|| is_missing(fields, name))
}

/// The name in a format of a single token.
fn token(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    match fields.string("type")?.as_deref() {
        Some("token") => {}
        kind => {
            let got = kind.map_or(Value::Null, Value::from).to_string();
            return Err(wrong(&fields.path("type"), "\"token\"", &got));
        }
    }
    let raw = fields.take("token").ok_or_else(|| is_missing(&fields, "token"))?;
    let name = name_of(&fields.path("token"), raw)?;
    fields.finish()?;
    Ok(name)
}

fn name_of(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    match Kind::of(raw) {
        Kind::String => text(path, raw),
        _ => Err(wrong(path, "the name of a token", raw.get())),
    }
}

/// A text that is not empty.
fn text(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    let text = string(path, raw)?;
    if text.is_empty() { Err(wrong(path, "a text that is not empty", raw.get())) } else { Ok(text) }
}

fn elements<'a>(fields: &mut Fields<'a>) -> Result<Vec<(String, &'a RawValue)>, ApiError> {
    let read = |path: &str, raw| Ok((path.to_owned(), raw));
    let elements = fields.list("elements", limits::TOOLS, read)?;
    elements.ok_or_else(|| is_missing(fields, "elements"))
}

fn is_missing(fields: &Fields<'_>, name: &str) -> ApiError {
    let path = fields.path(name);
    ApiError::param(&path, format!("`{path}` is missing"))
}

fn is_empty(fields: &Fields<'_>, name: &str) -> ApiError {
    let path = fields.path(name);
    ApiError::param(&path, format!("`{path}` must not be empty"))
}

/// Any text in which none of these occurs.
fn free(texts: Vec<String>) -> Shape {
    let tags = Vec::new();
    Shape::Triggered { tags, triggers: texts, at_least_one: false, stop_after_first: false }
}

/// One form after the other, in one list, so that neighbours can be joined.
fn chain(shapes: Vec<Shape>) -> Shape {
    let mut parts = Vec::new();
    for shape in shapes {
        match shape {
            Shape::Sequence(inner) => parts.extend(inner),
            shape => parts.push(shape),
        }
    }
    Shape::Sequence(parts)
}

fn one_of(texts: &[String]) -> Shape {
    Shape::OneOf(texts.iter().map(|text| pieces(text)).collect())
}

/// A text in which what looks like the name of a control token is that token, where there is one.
fn pieces(text: &str) -> Shape {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['<', '[']) {
        let close = if rest[at..].starts_with('<') { '>' } else { ']' };
        let Some(n_bytes) = rest[at..].find(close) else { break };
        let (before, name) = (&rest[..at], &rest[at..=at + n_bytes]);
        if !before.is_empty() {
            parts.push(Shape::text(before));
        }
        parts.push(Shape::Token(name.to_owned()));
        rest = &rest[at + n_bytes + 1..];
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Shape::text(rest));
    }
    Shape::Sequence(parts)
}

/// Whether any text may follow, so that nothing else can be told from it.
fn is_endless(shape: &Shape) -> bool {
    match shape {
        Shape::Any | Shape::Triggered { .. } => true,
        Shape::Sequence(items) => items.last().is_some_and(is_endless),
        Shape::OneOf(items) => items.iter().any(is_endless),
        Shape::Repeat { item, .. } => is_endless(item),
        _ => false,
    }
}

/// Refuses texts of which the end of one is the beginning of another: where they overlap, the first
/// of them could end in the middle of the next.
fn check_apart(path: &str, texts: &[String]) -> Result<(), ApiError> {
    for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (a, b))) {
        let ends = a.char_indices().skip(1).map(|(at, _)| &a[at..]);
        if let Some(shared) = ends.into_iter().find(|end| end.len() < b.len() && b.starts_with(end))
        {
            let [a, b, shared] = [a.as_str(), b, shared].map(Value::from);
            let message = format!("`{path}`: {a} ends with {shared}, which begins {b}");
            return Err(ApiError::param(path, message));
        }
    }
    Ok(())
}
