//! A form as a grammar in the Lark notation of llguidance.
//!
//! A lexer takes the longest piece, so two neighbouring expressions of which the first could eat the
//! second would never be told apart. Forms that are regular are therefore joined to one terminal,
//! which is exact; rules are used for what needs recursion, control tokens or a grammar of its own.

use llguidance::api::GrammarWithLexer;
use pelton_base::{Shape, Tag};

use crate::book::{Book, escaped, quoted};
use crate::error::GrammarError;
use crate::grammars::Layout;
use crate::json;
use crate::limits::Limits;
use crate::regular;
use crate::vocabulary::Vocabulary;

/// Any text.
pub(crate) const ANY: &str = "/(?s:.*)/";

/// The grammars of a form, the one to start with first.
///
/// # Errors
///
/// When the form is malformed, too large or cannot be enforced.
pub(crate) fn compose(
    shape: &Shape,
    layout: Layout,
    vocabulary: &Vocabulary,
    limits: &Limits,
) -> Result<Vec<GrammarWithLexer>, GrammarError> {
    let book = Book::default();
    let mut composer = Composer { layout, vocabulary, limits, book, others: Vec::new() };
    let start = composer.shape(shape, 0)?;
    // One class of lexemes for all: expressions for multiples bring rules of their own.
    let options = "%llguidance {\"ignore_once\": true}";
    let main = format!("{options}\nstart: {start}\n{}", composer.book.text());
    Ok(std::iter::once(grammar("main", main)).chain(composer.others).collect())
}

fn grammar(name: &str, lark: String) -> GrammarWithLexer {
    GrammarWithLexer { name: Some(name.to_owned()), lark_grammar: Some(lark), json_schema: None }
}

struct Composer<'a> {
    layout: Layout,
    vocabulary: &'a Vocabulary,
    limits: &'a Limits,
    book: Book,
    others: Vec<GrammarWithLexer>,
}

type Composed = Result<String, GrammarError>;

impl Composer<'_> {
    /// An expression of rules for a form.
    fn shape(&mut self, shape: &Shape, depth: usize) -> Composed {
        if depth > self.limits.nesting {
            let why = format!("forms are nested deeper than {}", self.limits.nesting);
            return Err(GrammarError::new("", why));
        }
        if let Shape::Until(text) = shape {
            return Ok(self.until(text));
        }
        if regular::is_regular(shape, self.vocabulary) {
            let expression = regular::expression(shape, self.limits, depth)?;
            return Ok(self.book.terminal(&expression));
        }
        let deeper = depth + 1;
        match shape {
            Shape::Json { schema, path } => {
                self.check_size(schema, path)?;
                json::compile(schema, path, self.layout, self.limits, &mut self.book)
            }
            Shape::Lark(source) => {
                self.check_size(source, "")?;
                let name = format!("g{}", self.others.len());
                self.others.push(grammar(&name, source.clone()));
                Ok(format!("@{name}"))
            }
            Shape::Gbnf(source) => {
                self.check_size(source, "")?;
                crate::gbnf::compile(source, self.vocabulary, &mut self.book)
            }
            Shape::Token(name) => Ok(match self.vocabulary.control(name) {
                Some(token) => format!("<[{}]>", token.0),
                None => self.book.terminal(&quoted(name)),
            }),
            Shape::Sequence(items) => self.sequence(items, deeper),
            Shape::OneOf(items) => {
                let items: Result<Vec<String>, _> =
                    items.iter().map(|item| self.shape(item, deeper)).collect();
                Ok(format!("({})", items?.join(" | ")))
            }
            Shape::Repeat { item, separator, least, most } => {
                let item = self.shape(item, deeper)?;
                regular::repeated(&item, separator, *least, *most)
            }
            Shape::Triggered { tags, triggers, at_least_one, stop_after_first } => {
                let tag = self.tags(tags, triggers, deeper)?;
                let tail = self.without(triggers);
                Ok(match (at_least_one, stop_after_first) {
                    (true, true) => tag,
                    (false, true) => format!("({tag} | {tail})"),
                    (true, false) => format!("({tag}+ {tail})"),
                    (false, false) => format!("({tag}* {tail})"),
                })
            }
            Shape::Text(_) | Shape::Regex(_) | Shape::Until(_) | Shape::Any => {
                regular::expression(shape, self.limits, depth)
            }
        }
    }

    fn check_size(&self, source: &str, path: &str) -> Result<(), GrammarError> {
        let limit = self.limits.source_bytes;
        if source.len() <= limit {
            return Ok(());
        }
        let why = format!("{} bytes are more than {limit}; send a smaller one", source.len());
        Err(GrammarError::new(path, why))
    }

    /// Joins neighbours that are regular to one terminal.
    fn sequence(&mut self, items: &[Shape], depth: usize) -> Composed {
        let mut parts = Vec::new();
        let mut idx = 0;
        while idx < items.len() {
            let rest = &items[idx..];
            let is_regular = |item: &&Shape| regular::is_regular(item, self.vocabulary);
            let n_regular = rest.iter().take_while(is_regular).count();
            // A text with an end needs no neighbour, and is cheaper alone.
            let n_joined = if matches!(rest[0], Shape::Until(_)) { 1 } else { n_regular };
            if n_joined > 1 {
                let joined = Shape::Sequence(rest[..n_joined].to_vec());
                parts.push(self.shape(&joined, depth)?);
            } else {
                parts.push(self.shape(&rest[0], depth)?);
            }
            let last = &rest[n_joined.max(1) - 1];
            idx += n_joined.max(1);
            if idx < items.len() && matches!(last, Shape::Any) {
                let why = "a free text before a grammar has no end; use a text that ends it";
                return Err(GrammarError::new("", why));
            }
        }
        Ok(format!("({})", parts.join(" ")))
    }

    /// Any text that ends with the first occurrence of `text`.
    fn until(&mut self, text: &str) -> String {
        if text.is_empty() {
            return quoted("");
        }
        if let Some((at, name, token)) = self.vocabulary.first_control(text) {
            // A text holds no control token, so what comes before the token is where it ends.
            let before = self.book.terminal(&format!("/(?s:.*){}/", escaped(&text[..at])));
            let rest = self.marked(&text[at + name.len()..]);
            return format!("({before} <[{}]> {rest})", token.0);
        }
        let name = self.book.name();
        self.book.define(&name, "[lazy]", &format!("/(?s:.*){}/", escaped(text)));
        name
    }

    /// Any text in which none of these occurs.
    fn without(&mut self, texts: &[String]) -> String {
        let is_text = |text: &&String| self.vocabulary.control(text).is_none();
        let texts: Vec<String> = texts.iter().filter(is_text).cloned().collect();
        self.book.terminal(&regular::without(&texts))
    }

    /// Free text up to a tag, and the tag.
    fn tags(&mut self, tags: &[Tag], triggers: &[String], depth: usize) -> Composed {
        let mut options = Vec::new();
        for trigger in triggers.iter().filter(|trigger| !trigger.is_empty()) {
            let mut rest = Vec::new();
            for tag in tags {
                let Some(begin) = tag.begin.strip_prefix(trigger.as_str()) else { continue };
                let content = self.shape(&tag.content, depth)?;
                let (begin, end) = (self.marked(begin), self.marked(&tag.end));
                rest.push(format!("{begin} {content} {end}"));
            }
            if !rest.is_empty() {
                let head = self.until(trigger);
                options.push(format!("{head} ({})", rest.join(" | ")));
            }
        }
        let reached = |tag: &&Tag| {
            triggers.iter().any(|trigger| !trigger.is_empty() && tag.begin.starts_with(trigger))
        };
        if let Some(tag) = tags.iter().find(|tag| !reached(tag)) {
            let why = format!("no trigger begins the tag {:?}, so it can never come", tag.begin);
            return Err(GrammarError::new("", why));
        }
        if options.is_empty() {
            return Err(GrammarError::new("", "there is no tag; give at least one"));
        }
        Ok(self.book.rule(&options.join(" | ")))
    }

    /// A text of a tag, in which names of control tokens mean the tokens.
    fn marked(&mut self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, name, token)) = self.vocabulary.first_control(rest) {
            parts.push(quoted(&rest[..at]));
            parts.push(format!("<[{}]>", token.0));
            rest = &rest[at + name.len()..];
        }
        parts.push(quoted(rest));
        parts.retain(|part| part != "\"\"");
        parts.join(" ")
    }
}
