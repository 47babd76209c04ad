//! The form that an answer must have, as a tree: grammars are made from it.

/// A form of text. A JSON schema, a regular expression, a tool call in the words of one model and
/// an answer after a thought are all written as one of these, and only one place turns them into a
/// [`Rule`](crate::Rule).
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Exactly this text.
    Text(String),
    /// The control token of this name, such as `<|python_tag|>`; exactly this text where the
    /// vocabulary has no control token of this name.
    Token(String),
    /// A JSON value that this JSON Schema allows, written as JSON text; `{}` allows every value.
    Json {
        /// The schema, as JSON text.
        schema: String,
        /// The place of the schema in the request, for errors, such as
        /// `response_format.json_schema.schema`.
        path: String,
    },
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this grammar in the Lark notation of llguidance.
    Lark(String),
    /// A text of this grammar in llama.cpp's GBNF notation.
    Gbnf(String),
    /// Any text, which ends where this text occurs first; this text is part of it.
    Until(String),
    /// Any text.
    Any,
    /// These, one after the other.
    Sequence(Vec<Shape>),
    /// One of these.
    OneOf(Vec<Shape>),
    /// One form several times.
    Repeat {
        /// The form.
        item: Box<Shape>,
        /// The text between two of them.
        separator: String,
        /// Least times.
        least: usize,
        /// Most times; `None` for any number.
        most: Option<usize>,
    },
    /// Any text in which a form must follow wherever one of several triggers occurs (a structural
    /// tag).
    Triggered {
        /// The forms, with their beginnings.
        tags: Vec<Tag>,
        /// Each tag's beginning starts with one of these; none of them occurs in the text outside of
        /// tags.
        triggers: Vec<String>,
        /// Whether the text has at least one tag.
        at_least_one: bool,
        /// Whether the text ends after the first tag.
        stop_after_first: bool,
    },
}

/// A form within a text that is free otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// The text that begins it.
    pub begin: String,
    /// The form between beginning and end.
    pub content: Shape,
    /// The text that ends it; may be empty.
    pub end: String,
}

impl Shape {
    /// Exactly this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Any JSON object.
    pub fn any_object() -> Self {
        Self::Json { schema: "{\"type\":\"object\"}".to_owned(), path: String::new() }
    }
}
